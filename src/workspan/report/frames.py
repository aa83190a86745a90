"""Reports as tables: one row a block, or one row a worker. What was not measured is null, never 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from workspan.errors import ConfigurationError, MissingExtraError
from workspan.grid.layout import pyramid_number
from workspan.store.meta import MEASURED, TRACKED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.report.parts import WorkersSummary
    from workspan.store.reader import BlockTable

__all__ = ["Kind", "block_frame", "known_cells", "worker_frame"]

Kind = Literal["arrow", "pandas"]

STEP_PREFIX = "steps/"
"""Before the name of a step's column, as before that of its array in the store."""


def block_frame(table: BlockTable, rank: int, kind: Kind) -> Any:
    """Return every recorded block of a store, a row a block in grid order.

    Parameters
    ----------
    table
        What the store holds.
    rank
        Axes of its tracking grid.
    kind
        ``"arrow"`` or ``"pandas"``.
    """
    import pyarrow as pa

    columns = {"block_id": _block_ids(table.cells, pa)}
    columns |= {f"cell_{axis}": pa.array(np.ascontiguousarray(table.cells[:, axis])) for axis in range(rank)}
    columns |= {"done": pa.array(table.done), "failures": pa.array(table.failures)}
    none = np.zeros(len(table.cells), np.bool_)
    known = known_cells(table)
    for name in ("worker_id", "sent_at", "returned_at", *MEASURED):
        values = table.values.get(name)
        if values is None:
            values = np.zeros(len(none), TRACKED[name].dtype)
        columns[name] = pa.array(values, mask=~known.get(name, none))
    for name, seconds in table.steps.items():
        columns[STEP_PREFIX + name] = pa.array(seconds, mask=np.isnan(seconds))
    return _as_kind(pa.table(columns), kind)


def known_cells(table: BlockTable) -> dict[str, NDArray[np.bool_]]:
    """Return where each column of *table* holds a figure: array name -> mask, one entry a block."""
    from workspan.store.reader import NO_WORKER

    known = {name: table.measured(name) for name in table.values}
    if "worker_id" in known:
        known["worker_id"] = known["worker_id"] & (table.values["worker_id"] != NO_WORKER)
    if "gpu_util_pct" in known:
        known["gpu_util_pct"] = known["gpu_util_pct"] & ~np.isnan(table.values["gpu_util_pct"])
        if "gpu_mem_bytes" in known:
            # Who is on a device holds some of its memory: 0 says that nobody looked, or that there was nothing to see.
            known["gpu_mem_bytes"] = known["gpu_mem_bytes"] & (table.values["gpu_mem_bytes"] > 0)
    return known


def worker_frame(workers: WorkersSummary, kind: Kind) -> Any:
    """Return the workers of a task, a row a worker by id; see :meth:`TaskReport.workers_frame`."""
    import pyarrow as pa

    records = workers.records
    columns: dict[str, tuple[Any, list[Any]]] = {
        "worker_id": (pa.int64(), [r.id for r in records]),
        "startup_seconds": (pa.float64(), [r.startup for r in records]),
        "blocks": (pa.int64(), [r.blocks for r in records]),
        "blocks_failed": (pa.int64(), [r.blocks_failed for r in records]),
    }
    for name in ("compute", "idle"):
        stats = [getattr(r, name) for r in records]
        columns[f"{name}_n"] = pa.int64(), [stat.n for stat in stats]
        columns[f"{name}_mean_seconds"] = pa.float64(), [stat.mean if stat.n else None for stat in stats]
        columns[f"{name}_total_seconds"] = pa.float64(), [stat.total if stat.n else None for stat in stats]
    columns |= {
        "final_wait_seconds": (pa.float64(), [r.final_wait for r in records]),
        "teardown_seconds": (pa.float64(), [r.teardown for r in records]),
        "exit": (pa.string(), [r.exit for r in records]),
        "text": (pa.string(), [r.text for r in records]),
    }
    return _as_kind(pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()}), kind)


def check_kind(kind: str) -> None:
    """Refuse a kind of table that is not offered, before anything is read.

    Raises
    ------
    ConfigurationError
        There is no such kind.
    MissingExtraError
        pandas is not installed.
    """
    if kind not in ("arrow", "pandas"):
        raise ConfigurationError(f"kind={kind!r} is not known: use 'arrow' or 'pandas'")
    if kind == "pandas":
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingExtraError("kind='pandas' needs pandas: pip install pandas, or use kind='arrow'") from None


def _as_kind(table: Any, kind: Kind) -> Any:
    if kind == "arrow":
        return table
    import pandas as pd
    import pyarrow as pa

    # pandas' own nullable types: numpy's would turn whole numbers with a gap into floats.
    exact = {
        pa.bool_(): pd.BooleanDtype(),
        pa.uint32(): pd.UInt32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.uint64(): pd.UInt64Dtype(),
        pa.float32(): pd.Float32Dtype(),
        pa.float64(): pd.Float64Dtype(),
    }
    return table.to_pandas(types_mapper=exact.get)


def _block_ids(cells: NDArray[np.int64], pa: Any) -> Any:
    """Spatial ids; as text if the largest needs more than 63 bits.

    The sums of the first axes are folded as in ``pyramid_number``, whose every product stays below the rank times the
    number of the furthest corner.
    """
    rank = cells.shape[1]
    if not len(cells):
        return pa.array([], pa.int64())
    if pyramid_number(cells.max(axis=0).tolist()) * (rank + 1) >= 2**63:
        return pa.array([str(pyramid_number(cell)) for cell in cells.tolist()])
    ids = np.zeros(len(cells), np.int64)
    total = np.zeros(len(cells), np.int64)
    for axis in range(rank):
        total += cells[:, axis]
        term = total.copy()
        for step in range(1, axis + 1):
            term *= total + step
            term //= step + 1
        ids += term
    return pa.array(ids)
