"""The figures of one task on one side of a comparison: block by block where a store has them, else summaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.measure.stats import Stat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.report.recorded import RecordedTask
    from workspan.report.task import TaskReport
    from workspan.store.reader import StoreReader

__all__ = ["METRICS", "Metric", "TaskFigures"]

_ROUNDING = 1e-6
STEPS = "steps/"


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a block."""

    key: str
    unit: str
    """``"s"`` or ``"B"``."""
    column: str | None
    """Array of the store; ``None``: made of others."""
    field: str
    """Of the report's section about blocks."""
    least: float
    """Difference of means, in the unit, below which nobody cares."""


METRICS = {
    metric.key: metric
    for metric in (
        Metric("wall", "s", "wall_seconds", "wall", 0.0),
        Metric("cpu", "s", "cpu_seconds", "cpu", 0.0),
        Metric("memory", "B", "peak_rss_bytes", "peak_rss", 2.0**20),
        Metric("io read", "B", "io_read_bytes", "io_read", 4096.0),
        Metric("io write", "B", "io_write_bytes", "io_write", 4096.0),
        Metric("overhead", "s", None, "overhead", 0.0),
        Metric("round trip", "s", None, "round_trip", 0.0),
    )
}
"""What is compared, in the order in which it is shown; a step's metric is :data:`STEPS` and its name."""


class TaskFigures:
    """What one task cost on one side.

    Parameters
    ----------
    task
        Where it is recorded.
    run
        The run to look at, or the last one, which says what the store does not; ``None``: there is no history.
    whole
        Take every block that the store has, whichever run executed it, and not only those of *run*.

    Attributes
    ----------
    by_block
        The blocks' own figures are there; if not, only the summaries of *run* are.
    """

    def __init__(self, task: RecordedTask, run: TaskReport | None, *, whole: bool) -> None:
        self.task, self.run = task, run
        self._cells: NDArray[np.int64] = np.empty(0, np.int64)
        """Numbers of the blocks in the tracking grid."""
        store = task.store
        if store is not None and {"returned_at", "sent_at", "worker_id"} <= set(store.arrays):
            returned = store.array("returned_at").ravel()
            chosen = returned > 0
            if not whole and run is not None:
                chosen &= (store.array("sent_at").ravel() >= run.started_at - _ROUNDING) & (
                    returned <= run.ended_at + _ROUNDING
                )
                executed = run.blocks.count - run.blocks.skipped
                if int(np.count_nonzero(chosen)) != executed:  # a later run did some of them again
                    chosen[:] = False
            self._cells = np.flatnonzero(chosen)
        self.by_block = len(self._cells) > 0

    @property
    def store(self) -> StoreReader:
        """The store, which is there where the blocks' figures are."""
        assert self.task.store is not None
        return self.task.store

    @property
    def cells(self) -> NDArray[np.int64]:
        """Numbers of the blocks in the tracking grid, ascending, shape (blocks,)."""
        return self._cells

    @cached_property
    def when(self) -> NDArray[np.float64]:
        """When each block was begun, in seconds since the epoch, shape (blocks,)."""
        return self._column("sent_at")

    @cached_property
    def workers(self) -> NDArray[np.int64]:
        """Worker of each block, shape (blocks,)."""
        return self._column("worker_id").astype(np.int64)

    @cached_property
    def has_workers(self) -> bool:
        """Whether blocks travelled to workers."""
        from workspan.store.reader import NO_WORKER

        return bool((self.workers != NO_WORKER).any())

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps."""
        if self.by_block:
            return self.store.step_names
        return () if self.run is None else tuple(self.run.steps)

    @property
    def layout(self) -> dict[str, Any] | None:
        """Fields of the layout; ``None``: not known."""
        store = self.task.store
        ours = None if store is None else store.attributes.get("workspan")
        if not isinstance(ours, dict):
            return None
        rois = [ours.get(key) for key in ("write_roi", "read_roi")]
        return ours if all(isinstance(roi, dict) and isinstance(roi.get("shape"), list) for roi in rois) else None

    @cached_property
    def is_first(self) -> NDArray[np.bool_]:
        """Where a block was the first one that its worker completed in its run, shape (blocks,)."""
        begins = np.array(sorted(run.started_at for run in self.task.runs))
        number = np.searchsorted(begins, self.when + _ROUNDING, side="right")
        order = np.lexsort((self.when, self.workers, number))
        keys = np.stack([number[order], self.workers[order]])
        first = np.ones(len(order), np.bool_)
        first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        out = np.zeros(len(order), np.bool_)
        out[order] = first
        return out

    def values(self, key: str) -> NDArray[np.float64] | None:
        """Return a metric of every block, shape (blocks,), in its unit; ``None``: not measured.

        A step that a block did not enter cost it 0.
        """
        if key.startswith(STEPS):
            if key.removeprefix(STEPS) not in self.store.step_names:
                return np.zeros(len(self._cells))
            return np.nan_to_num(self._column(key), nan=0.0)
        metric = METRICS[key]
        if metric.column is not None:
            found = self._column(metric.column)
            blank = metric.column in self.store.unmeasured and not found.any()
            return None if blank else found
        if not self.has_workers:
            return None
        trip = self._column("returned_at") - self.when
        return trip if key == "round trip" else np.maximum(trip - self._column("wall_seconds"), 0.0)

    def summary(self, key: str) -> Stat | None:
        """Return the summary of a metric over the run's executed blocks; ``None``: not measured."""
        if self.run is None:
            return None
        if not key.startswith(STEPS):
            found: Stat | None = getattr(self.run.blocks, METRICS[key].field)
            return found if found is not None and found.n else None
        step = self.run.steps.get(key.removeprefix(STEPS))
        n = self.run.blocks.count - self.run.blocks.skipped
        if step is None or n < 1:
            return Stat(n, 0.0, 0.0, 0.0, 0.0, 0.0) if n > 0 else None
        own = step.self_seconds
        mean = own.total / n
        squares = max((own.n - 1) * own.std**2 + own.n * own.mean**2 - n * mean**2, 0.0)
        least = own.min if own.n >= n else 0.0
        return Stat(n, mean, math.sqrt(squares / (n - 1)) if n > 1 else 0.0, least, own.max, own.total)

    def _column(self, name: str) -> NDArray[np.float64]:
        return self.store.array(name).ravel()[self._cells].astype(np.float64)
