"""What the page's script draws from: plain JSON, with columns as base64 of little-endian numbers."""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.report.frames import STEP_PREFIX
from workspan.views.format import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.report.page import Page, PageTask
    from workspan.report.page_blocks import Measure, PageBlocks, Rows

__all__ = ["LABELS", "label_of", "page_json"]

LABELS = {
    "wall_seconds": "wall time",
    "cpu_seconds": "CPU time",
    "round_trip": "round trip",
    "peak_rss_bytes": "peak RSS",
    "io_read_bytes": "bytes read",
    "io_write_bytes": "bytes written",
    "gpu_util_pct": "GPU busy",
    "gpu_mem_bytes": "GPU memory",
    "rows": "rows out",
    "bytes": "bytes out",
    "failures": "failed attempts",
}
"""What the figures of a block are called on the page."""

_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_DIGITS = 7


def label_of(name: str) -> str:
    """Return what a figure is called on the page."""
    return LABELS.get(name) or f"step {one_line(name.removeprefix(STEP_PREFIX))}"


def page_json(page: Page) -> str:
    """Return the data as JSON that can stand in a script element: nothing in it can end the element."""
    value = {
        "wall": _finite(page.report.wall_seconds),
        "started": _finite(page.report.started_at),
        "tasks": [_task(task, page) for task in page.tasks],
    }
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_SAFE)


def _task(task: PageTask, page: Page) -> dict[str, Any]:
    blocks = task.blocks
    out: dict[str, Any] = {
        "id": one_line(task.report.task_id),
        "noun": task.extra.block_noun,
        "worker": task.extra.worker_noun,
        "began": _finite(task.report.started_at - page.report.started_at),
    }
    if blocks is None or not blocks.n:
        return out
    out |= {
        "n": blocks.n,
        "counts": blocks.counts,
        "sizes": blocks.sizes,
        "bins": blocks.bin_counts,
        "main": blocks.main,
        "measures": [_measure(measure) for measure in blocks.measures],
        "slow": _rows(blocks.slowest),
    }
    if blocks.origin is not None:
        out |= {"origin": blocks.origin, "step": blocks.step, "limit": blocks.limit}
    if blocks.rows is not None:
        out["rows"] = _rows(blocks.rows)
    else:
        out |= _binned(blocks)
    return out


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "key": measure.name,
        "label": label_of(measure.name),
        "step": measure.name.startswith(STEP_PREFIX),
        "unit": measure.unit,
        "n": measure.n,
        "min": measure.min,
        "max": measure.max,
        "mean": measure.mean,
        "quantiles": measure.quantiles,
        "edges": [_short(edge) for edge in measure.edges.tolist()],
        "counts": measure.counts.tolist(),
        "log": measure.is_log,
    }


def _rows(rows: Rows) -> dict[str, Any]:
    flags = rows.done.astype(np.uint8) | (rows.here.astype(np.uint8) << 1)
    return {
        "number": _packed(rows.number, "f8"),
        "flags": _packed(flags, "u1"),
        "failures": _packed(rows.failures, "u4"),
        "worker": _packed(rows.worker, "i4"),
        "sent": _packed(rows.sent, "f8"),
        "returned": _packed(rows.returned, "f8"),
        "values": {name: _packed(column, _kind(column)) for name, column in rows.values.items()},
    }


def _binned(blocks: PageBlocks) -> dict[str, Any]:
    out: dict[str, Any] = {
        "known": None if blocks.bins_known is None else _packed(blocks.bins_known, "u4"),
        "done": None if blocks.bins_done is None else _packed(blocks.bins_done, "u4"),
        "mean": {name: _packed(bins.mean, "f4") for name, bins in blocks.bins.items()},
        "most": {name: _packed(bins.greatest, "f4") for name, bins in blocks.bins.items()},
    }
    if (trend := blocks.trend) is not None:
        out["trend"] = {
            "end": _finite(trend.end),
            "counts": _packed(trend.counts.reshape(-1), "u4"),
            "edges": [_short(edge) for edge in trend.edges.tolist()],
            "log": trend.is_log,
            "mean": _packed(trend.mean, "f4"),
        }
    if blocks.busy is not None:
        out["lanes"] = blocks.lanes
        out["busy"] = _packed(np.rint(blocks.busy.reshape(-1) * 255), "u1")
    return out


def _kind(column: NDArray[np.float64]) -> str:
    """Return the smaller type that holds the column: times are kept to 24 bits in the store, too."""
    whole = column[~np.isnan(column)]
    return "f4" if np.array_equal(whole.astype(np.float32), whole) else "f8"


def _packed(column: NDArray[Any], kind: str) -> list[str]:
    data = np.ascontiguousarray(column).astype(f"<{kind}").tobytes()
    return [kind, base64.b64encode(data).decode("ascii")]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
