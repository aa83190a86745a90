"""The report of a run that left none, since it was killed or still goes on: what its blocks in the store tell."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.measure.stats import Stat
from workspan.report.parts import BlocksSummary, StepSummary, WorkerRecord, WorkersSummary
from workspan.report.task import TaskReport
from workspan.report.unrecorded import RUN_ID, stored_layout
from workspan.store.lock import holder_of
from workspan.store.reader import NO_WORKER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.store.reader import BlockTable, StoreReader

__all__ = ["rebuild"]

_AFTER_SECONDS = 1.0
"""A block that was sent so long after a run's end is not of that run, whatever its clocks did."""


def rebuild(store: StoreReader, *, after: float = 0.0) -> TaskReport | None:
    """Put together the report of the run whose blocks are the last ones in a store, and whose end nobody recorded.

    What the blocks cost is known, and counts a step once a block; what only the driver knew is not: start-up and idle
    time, failed attempts, the span.

    Parameters
    ----------
    store
        The store.
    after
        End of the last run that was recorded, in seconds since the epoch.

    Returns
    -------
    TaskReport | None
        Its outcome is ``"running"`` if somebody writes to the store now, else ``"interrupted"``. ``None``: every block
        with stamps is of a run that was recorded.
    """
    layout = stored_layout(store, read_write_conflict=False)
    if layout is None or not {"sent_at", "returned_at", "worker_id", "wall_seconds"} <= set(store.arrays):
        return None
    done, failures, parts = 0, 0, []
    for table in store.tables():
        done += int(table.done.sum())
        failures += int(table.failures.sum()) if not after else 0  # of earlier runs they would be in it
        here = table.executed & table.done & (table.values["sent_at"] > after + _AFTER_SECONDS)
        if here.any():
            parts.append(_columns(table, here))
    if not parts:
        return None
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    sent, returned = columns["sent_at"], columns["returned_at"]
    started_at, ended_at = float(sent.min()), float(returned.max())
    trip = np.maximum(returned - sent, 0.0)
    wall = columns["wall_seconds"]
    workers = _workers(columns["worker_id"], trip)
    holder = holder_of(store.path)
    work = float(np.nansum(wall, dtype=np.float64))
    ours = store.attributes.get("workspan")
    task_id = ours.get("task_id") if isinstance(ours, dict) else None
    return TaskReport(
        run_id=RUN_ID if holder is None else f"{RUN_ID}-{holder.pid}",
        task_id=task_id if isinstance(task_id, str) else store.path.name,
        started_at=started_at,
        ended_at=ended_at,
        wall_seconds=ended_at - started_at,
        outcome="interrupted" if holder is None else "running",
        resource_tracking=True,
        tracking_path=str(store.path),
        blocks=BlocksSummary(
            count=done,
            total=layout.num_blocks,
            skipped=done - len(sent),
            failed=0,
            orphaned=0,
            failures=failures,
            round_trip=_stat(trip) if workers.count else Stat(),
            wall=_stat(wall),
            cpu=_measured(columns, "cpu_seconds"),
            peak_rss=_measured(columns, "peak_rss_bytes"),
            io_read=_measured(columns, "io_read_bytes"),
            io_write=_measured(columns, "io_write_bytes"),
            overhead=_stat(np.maximum(trip - wall, 0.0)) if workers.count else None,
            trend=_trend(wall[np.argsort(returned, kind="stable")] * 1e3),
        ),
        workers=workers,
        steps=_steps(store, columns, work),
        work_seconds=work,
        work_basis="wall",
    )


def _columns(table: BlockTable, here: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Return the figures of some blocks, NaN where one was not measured."""
    out: dict[str, NDArray[Any]] = {}
    for name, values in table.values.items():
        if name in ("sent_at", "returned_at", "worker_id"):
            out[name] = values[here]
        else:
            out[name] = np.where(table.measured(name), values, nan)[here]
    return out | {f"steps/{name}": values[here] for name, values in table.steps.items()}


def _stat(values: NDArray[Any]) -> Stat:
    known = values[~np.isnan(values)].astype(np.float64)
    if not len(known):
        return Stat()
    spread = float(known.std(ddof=1)) if len(known) > 1 else 0.0
    return Stat(len(known), float(known.mean()), spread, float(known.min()), float(known.max()), float(known.sum()))


def _measured(columns: dict[str, NDArray[Any]], name: str) -> Stat | None:
    stat = _stat(columns[name]) if name in columns else Stat()
    return stat if stat.n else None


def _trend(values: NDArray[Any]) -> float | None:
    """Slope over the order of completion."""
    if len(values) < 2 or np.isnan(values).any():
        return None
    number = np.arange(len(values)) - (len(values) - 1) / 2
    return float((number @ values.astype(np.float64)) / (number @ number))


def _steps(store: StoreReader, columns: dict[str, NDArray[Any]], work: float) -> dict[str, StepSummary]:
    out = {}
    for name in store.step_names:
        values = columns.get(f"steps/{name}")
        if values is not None and (stat := _stat(values)).n:
            out[name] = StepSummary(stat, stat.n, stat.total / work if work else None)
    return out


def _workers(ids: NDArray[Any], trip: NDArray[Any]) -> WorkersSummary:
    records = []
    for worker in np.unique(ids[ids != NO_WORKER]).tolist():
        compute = _stat(trip[ids == worker])
        records.append(
            WorkerRecord(
                id=worker,
                startup=None,
                blocks=compute.n,
                blocks_failed=0,
                idle=Stat(),
                compute=compute,
                final_wait=None,
                teardown=None,
                exit=None,
            )
        )
    return WorkersSummary(
        count=len(records),
        startup=Stat(),
        idle=Stat(),
        compute=_stat(trip[ids != NO_WORKER]),
        final_wait=Stat(),
        teardown=Stat(),
        exits={},
        unmanaged_clients=0,
        records=tuple(records),
    )
