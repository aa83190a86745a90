"""A run as spans, sent to a collector over OTLP: the run, its tasks, their blocks, the steps of those."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workspan.errors import ConfigurationError, MissingExtraError, WorkspanError
from workspan.views.format import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.report.trace import Trace, TraceBlock, TraceTask

__all__ = ["send", "spans"]

_BATCH = 512
_PATH = "/v1/traces"


def send(trace: Trace, endpoint: str) -> int:
    """Send *trace* and return the number of spans.

    Headers, certificates and time limits are those of the exporter's own variables (``OTEL_EXPORTER_OTLP_*``).

    Parameters
    ----------
    trace
        What to send.
    endpoint
        URL of the collector; without a path it gets ``/v1/traces``.

    Raises
    ------
    ConfigurationError
        The endpoint is no URL.
    MissingExtraError
        The extra is not installed.
    WorkspanError
        The collector did not take them.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(f"--otlp {endpoint!r} is no address of a collector: write http://localhost:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError:
        raise MissingExtraError("--otlp needs the extra 'otel': pip install 'workspan[otel]'") from None
    exporter = OTLPSpanExporter(endpoint=endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _PATH)
    sent = 0
    batch: list[Any] = []

    def flush() -> int:
        if batch and exporter.export(batch) is not SpanExportResult.SUCCESS:
            raise WorkspanError(f"the collector at {endpoint} did not take the spans; {sent} were sent before")
        count = len(batch)
        batch.clear()
        return count

    try:
        for span in spans(trace):
            batch.append(span)
            if len(batch) >= _BATCH:
                sent += flush()
        return sent + flush()
    finally:
        exporter.shutdown()


def spans(trace: Trace) -> Iterator[Any]:
    """Yield the spans of *trace*, each after the one that it belongs to."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    import workspan

    origin = round(trace.origin * 1e9)
    trace_id = secrets.randbits(128) or 1
    resource = Resource.create({"service.name": "workspan"})
    scope = InstrumentationScope("workspan", workspan.__version__)

    def span(name: str, parent: Any, begin: int, end: int, told: dict[str, Any], *, ok: bool = True) -> Any:
        return ReadableSpan(
            name=one_line(name),
            context=SpanContext(trace_id, secrets.randbits(64) or 1, False, TraceFlags(TraceFlags.SAMPLED)),
            parent=None if parent is None else parent.context,
            resource=resource,
            attributes={key: value for key, value in told.items() if value is not None},
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.OK if ok else StatusCode.ERROR),
            start_time=origin + begin * 1000,
            end_time=origin + end * 1000,
            instrumentation_scope=scope,
        )

    windows = [_window(task) for task in trace.tasks]
    root = span("run", None, min(b for b, _ in windows), max(e for _, e in windows), {"workspan.notes": trace.notes})
    yield root
    for task, (begin, end) in zip(trace.tasks, windows, strict=True):
        ok = all(run.outcome == "completed" for run in task.runs)
        told = {"workspan.runs": [run.run_id for run in task.runs], "workspan.blocks": task.count}
        top = span(task.task_id, root, begin, end, told, ok=ok)
        yield top
        for phase in task.phases:
            if phase.lane is not None and phase.end is not None:
                told = {**phase.told, "workspan.worker": task.lanes[phase.lane].name}
                yield span(phase.name, top, phase.begin, phase.end, told)
        for block in task.blocks():
            name = ",".join(map(str, block.cell))
            own = span(f"block {name}", top, block.begin, block.end, _figures(task, block))
            yield own
            at, room = block.begin, block.end
            for number, seconds in block.steps:
                stop = min(at + round(seconds * 1e6), room)
                yield span(
                    task.steps[number],
                    own,
                    at,
                    stop,
                    {"workspan.self_seconds": seconds, "workspan.position": "not recorded"},
                )
                at = stop


def _window(task: TraceTask) -> tuple[int, int]:
    """Return begin and end of a task, in µs since the origin."""
    runs = [(phase.begin, phase.end or phase.begin) for phase in task.phases if phase.lane is None]
    blocks = task.window
    found = [*runs, blocks] if blocks is not None else runs
    return min(begin for begin, _ in found), max(end for _, end in found)


def _figures(task: TraceTask, block: TraceBlock) -> dict[str, Any]:
    return {
        "workspan.worker": task.lanes[block.lane].name,
        "workspan.wall_seconds": block.wall_seconds,
        "workspan.cpu_seconds": block.cpu_seconds,
        "workspan.peak_rss_bytes": block.peak_rss_bytes,
        "workspan.io_read_bytes": block.io_read_bytes,
        "workspan.io_write_bytes": block.io_write_bytes,
        "workspan.failed_attempts": block.failures or None,
    }
