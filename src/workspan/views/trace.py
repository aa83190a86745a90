"""A run in the JSON of Chrome's trace events, which Perfetto and others open: a process a task, a thread a worker.

Written as it is read, so that a million blocks need no more memory than some thousands.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from workspan.views.format import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.report.trace import Phase, Trace, TraceBlock, TraceTask

__all__ = ["Lanes", "render_trace"]

Lanes = Literal["workers", "steps"]

_LINES = 512
"""Blocks, or other events, that are joined to one piece of text."""


def render_trace(trace: Trace, *, lanes: Lanes = "workers") -> Iterator[str]:
    """Yield the trace as JSON, piece by piece.

    Parameters
    ----------
    trace
        What to write.
    lanes
        ``"workers"``: steps are slices inside their blocks. ``"steps"``: each step of a worker has a lane of its own.
    """
    other = {
        "origin": datetime.fromtimestamp(trace.origin, UTC).isoformat(),
        "origin_epoch_seconds": trace.origin,
        "blocks": trace.count,
        "blocks_recorded": trace.total,
        "notes": list(trace.notes),
    }
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n'
    lines: list[str] = []
    first_thread = 1
    separator = ""
    for process, task in enumerate(trace.tasks, 1):
        writer = _TaskWriter(task, process, first_thread, lanes)
        first_thread = writer.next_thread
        for line in writer.events(trace.notes):
            lines.append(line)
            if len(lines) >= _LINES:
                yield separator + ",\n".join(lines)
                separator = ",\n"
                lines.clear()
    yield (separator if lines else "") + ",\n".join(lines) + "\n]}\n"


class _TaskWriter:
    """The events of one task.

    Numbers of threads are not used twice, and begin behind those of processes where they could be taken for main
    threads.
    """

    def __init__(self, task: TraceTask, process: int, first_thread: int, lanes: Lanes) -> None:
        self._task = task
        self._pid = process
        self._thread = first_thread if first_thread > 1 else 1_000_000
        self._apart = lanes == "steps"
        self._stride = 1 + (len(task.steps) if self._apart else 0)
        self.next_thread = self._thread + 1 + self._stride * len(task.lanes)

        def head(kind: str, thread: int, name: str = "") -> str:
            name = f'"name":{json.dumps(one_line(name))},' if name else ""
            return f',\n{{"ph":"{kind}","pid":{process},"tid":{thread},{name}"ts":'

        threads = [self._tid(number) for number in range(len(task.lanes))]
        named = list(zip(threads, task.lanes, strict=True))
        self._slices = [head("X", thread)[2:] for thread in threads]
        self._memory = [head("C", thread, f"peak RSS, {lane.name}") for thread, lane in named]
        self._io = [head("C", thread, f"I/O, {lane.name}") for thread, lane in named]
        ranks = range(1, self._stride) if self._apart else (0,)
        self._step_slices = [head("X", thread + rank) for thread in threads for rank in ranks]
        self._step_ends = [
            f',"cat":"step","name":{json.dumps(one_line(name))},"args":{{"position":"not recorded"'
            for name in task.steps
        ]

    def events(self, notes: tuple[str, ...]) -> Iterator[str]:
        yield from self._metadata()
        yield self._moment(self._thread, 0, "how to read this", {"notes": list(notes)})
        for phase in self._task.phases:
            yield self._phase(phase)
        for block in self._task.blocks():
            yield self._block(block)

    def _tid(self, lane: int | None) -> int:
        return self._thread if lane is None else self._thread + 1 + lane * self._stride

    def _metadata(self) -> Iterator[str]:
        def told(name: str, thread: int, key: str, value: str | int) -> str:
            return json.dumps({"ph": "M", "pid": self._pid, "tid": thread, "name": name, "args": {key: value}})

        yield told("process_name", self._thread, "name", one_line(self._task.task_id))
        yield told("process_sort_index", self._thread, "sort_index", self._pid)
        yield told("thread_name", self._thread, "name", "runs")
        yield told("thread_sort_index", self._thread, "sort_index", -1)
        for number, lane in enumerate(self._task.lanes):
            thread = self._tid(number)
            yield told("thread_name", thread, "name", one_line(lane.name))
            yield told("thread_sort_index", thread, "sort_index", number * self._stride)
            if self._apart:
                for step, name in enumerate(self._task.steps, 1):
                    yield told("thread_name", thread + step, "name", f"{one_line(lane.name)}: {one_line(name)}")
                    yield told("thread_sort_index", thread + step, "sort_index", number * self._stride + step)

    def _phase(self, phase: Phase) -> str:
        thread = self._tid(phase.lane)
        if phase.end is None:
            return self._moment(thread, phase.begin, phase.name, phase.told)
        event = {"ph": "X", "pid": self._pid, "tid": thread, "ts": phase.begin, "dur": phase.end - phase.begin}
        return json.dumps({**event, "name": one_line(phase.name), "cat": "phase", "args": phase.told})

    def _moment(self, thread: int, at: int, name: str, told: dict[str, object]) -> str:
        event = {"ph": "i", "s": "t", "pid": self._pid, "tid": thread, "ts": at, "name": one_line(name)}
        return json.dumps({**event, "cat": "note", "args": told})

    def _block(self, block: TraceBlock) -> str:
        """Return a block, its steps and its counters: one piece of text, as there may be millions of them."""
        begin, end, lane = block.begin, block.end, block.lane
        told = []
        if block.wall_seconds is not None:
            told.append(f'"wall_s":{block.wall_seconds:.7g}')
        if block.cpu_seconds is not None:
            told.append(f'"cpu_s":{block.cpu_seconds:.7g}')
        if block.failures:
            told.append(f'"failed_attempts":{block.failures}')
        if block.gpu_util_pct is not None:
            told.append(f'"gpu_pct":{block.gpu_util_pct:.4g}')
        if block.gpu_mem_bytes is not None:
            told.append(f'"gpu_bytes":{block.gpu_mem_bytes}')
        if block.run >= 0 and len(self._task.runs) > 1:
            told.append(f'"run":{json.dumps(self._task.runs[block.run].run_id)}')
        cell = block.cell
        name = str(cell[0]) if len(cell) == 1 else ",".join(map(str, cell))
        text = (
            f'{self._slices[lane]}{begin},"dur":{end - begin},"cat":"block","name":"block {name}",'
            f'"args":{{{",".join(told)}}}}}'
        )
        if block.steps:
            text += self._steps(block)
        if block.peak_rss_bytes is not None:
            text += f'{self._memory[lane]}{end},"args":{{"bytes":{block.peak_rss_bytes}}}}}'
        read, written = block.io_read_bytes, block.io_write_bytes
        if end > begin and (read is not None or written is not None):
            seconds = (end - begin) / 1e6
            if read is None or written is None:
                key, only = ("write", written) if read is None else ("read", read)
                rates, none = f'"{key} B/s":{(only or 0) / seconds:.0f}', f'"{key} B/s":0'
            else:
                rates = f'"read B/s":{read / seconds:.0f},"write B/s":{written / seconds:.0f}'
                none = '"read B/s":0,"write B/s":0'
            head = self._io[lane]
            text += f'{head}{begin},"args":{{{rates}}}}}{head}{end},"args":{{{none}}}}}'
        return text

    def _steps(self, block: TraceBlock) -> str:
        """Lay the steps end to end; those that ran at the same time, and so sum to more, are shortened to fit."""
        steps, first, room = block.steps, block.begin, block.end - block.begin
        total = 0.0
        for _, seconds in steps:
            total += seconds
        scale = 1e6 if total * 1e6 <= room or total <= 0 else room / total
        text, at, done = "", 0, 0.0
        for number, seconds in steps:
            done += seconds * scale
            stop = min(int(done), room)
            head = self._step_slices[block.lane * (self._stride - 1) + number if self._apart else block.lane]
            text += f'{head}{first + at},"dur":{stop - at}{self._step_ends[number]}'
            text += "}}" if scale == 1e6 else f',"shortened_from_us":{seconds * 1e6:.0f}}}}}'
            at = stop
        return text
