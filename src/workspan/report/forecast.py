"""What a run will take, before it has begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from workspan.report._value import Value

__all__ = ["Forecast", "TaskForecast", "WorkersForecast"]


@dataclass(frozen=True, slots=True)
class WorkersForecast(Value):
    """A run with another number of workers."""

    workers: int
    """Workers of each task."""
    wall_seconds: float | None
    """``None``: not known."""
    wall_low: float | None
    """Lower end of the interval."""
    wall_high: float | None
    """Upper end of the interval."""
    memory_bytes: int | None
    """What that many workers take at their peaks; ``None``: not measured."""
    fits: bool | None
    """Whether that is less than there is; ``None``: not known."""


@dataclass(frozen=True, slots=True)
class TaskForecast(Value):
    """One task in the next run. Times are seconds, memory is bytes; ``None``: not known."""

    task_id: str
    total: int
    """Blocks of the task."""
    blocks: int
    """Blocks that would run; the others are done or masked."""
    workers: int
    source: str
    """``"model"``: from measured blocks; ``"default"``: nothing was measured; ``"none"``: nothing would run."""
    basis: str
    """What it is known from: ``"412 blocks of 3 runs"``, ``"default, no data"``."""
    work_seconds: float | None = None
    """Sum of the time of those blocks."""
    span_seconds: float | None = None
    """Longest chain of blocks of this task that wait for each other."""
    block_seconds: float | None = None
    """A block, on the average over those that would run."""
    warm_up_seconds: float | None = None
    """What the first block of a worker takes longer."""
    startup_seconds: float | None = None
    """A worker, from being asked for to its first request."""
    peak_rss_bytes: int | None = None
    """Largest resident set of a worker that was seen."""
    cpu_share: float | None = None
    """Processors that a block keeps busy."""
    steps: dict[str, float] = field(default_factory=dict)
    """Name -> part of the work that the step takes, 0 to 1."""
    default_seconds: float | None = None
    """Without data: what the work would be by the default of the estimator (``timing.default_seconds`` at
    ``timing.default_size``). It is an assumption and enters nothing else."""


@dataclass(frozen=True, slots=True, repr=False)
class Forecast(Value):
    """What the next run of a task, or of a pipeline, will take. Times are seconds, memory is bytes.

    ``None`` stands for what is not known: without a measurement of each task nothing is said about the whole.
    """

    tasks: dict[str, TaskForecast]
    """Task id -> its part, in display order."""
    wall_seconds: float | None
    """From the begin of the run until its end: the middle of what is expected."""
    wall_low: float | None
    """Lower end of the interval that holds the share :attr:`level` of runs."""
    wall_high: float | None
    """Upper end of it."""
    level: float
    work_seconds: float | None
    """Sum of the times of all blocks: what one worker takes that never waits."""
    span_seconds: float | None
    """Longest chain of blocks that wait for each other: no number of workers saves it."""
    source: str
    """``"model"``, ``"default"`` (no data for a task that would run) or ``"none"`` (nothing to do)."""
    basis: str
    """What it is known from: ``"412 blocks of 3 runs"``, ``"default, no data"``."""
    method: str
    """``"simulated"``: block by block through the scheduler; ``"bounds"``: by levels, for huge runs; ``"none"``."""
    table: tuple[WorkersForecast, ...] = ()
    """The same run with other numbers of workers."""
    cpus: int | None = None
    """Processors of the machine, or of the container, that were taken into account."""
    memory_limit_bytes: int | None = None
    """Memory of the machine, or of the container."""
    worker_peak_bytes: int | None = None
    """What one worker takes at its peak, at most, that was seen."""
    workers_that_fit: int | None = None
    """How many of those the memory holds."""
    notes: tuple[str, ...] = ()
    """What to know about it: assumptions, and measurements that were left out."""

    @property
    def parallelism(self) -> float | None:
        """Work over span: beyond so many workers the run cannot get faster. ``None``: not known."""
        if not self.work_seconds or not self.span_seconds:
            return None
        ratio = self.work_seconds / self.span_seconds
        return ratio if isfinite(ratio) else None

    @property
    def blocks(self) -> int:
        """Blocks that would run."""
        return sum(task.blocks for task in self.tasks.values())

    @property
    def total(self) -> int:
        """Blocks of all tasks."""
        return sum(task.total for task in self.tasks.values())

    @property
    def steps(self) -> dict[str, float]:
        """Name -> part of the work of all tasks that the step takes, 0 to 1."""
        out: dict[str, float] = {}
        for task in self.tasks.values():
            if self.work_seconds and task.work_seconds:
                for name, share in task.steps.items():
                    out[name] = out.get(name, 0.0) + share * task.work_seconds / self.work_seconds
        return out

    def with_workers(self, workers: int) -> WorkersForecast | None:
        """Return the row of the table for so many workers, or ``None``."""
        return next((row for row in self.table if row.workers == workers), None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain objects that ``json.dumps(..., allow_nan=False)`` accepts; the same as ``to_json``."""
        return self.to_json()

    def __str__(self) -> str:
        return show(self)

    __repr__ = __str__


def _plain(forecast: Forecast) -> str:
    return f"Forecast({', '.join(forecast.tasks)}: wall_seconds={forecast.wall_seconds}, basis={forecast.basis!r})"


show: Callable[[Forecast], str] = _plain
"""Turns a forecast into text; the rooms behind this one put the one with the table here."""
