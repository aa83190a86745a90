"""What whole runs of one program differ by: a busy machine, another frequency, a cold cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from workspan.measure.stats import Welford
from workspan.report.comparison_figures import METRICS, TaskFigures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.report.recorded import Place, RecordedTask

__all__ = ["FEWEST_RUNS", "Others"]

FEWEST_RUNS = 3
"""Runs from which on their difference is measured and not assumed."""

_ASSUMED = {"s": 0.015, "B": 0.0}
"""Standard deviation of the logarithm of a run's mean, by unit: that of an ordinary machine with nothing else to do."""
_ASSUMED_MEMORY = 0.005


class Others:
    """Runs of the older program, of one task.

    Parameters
    ----------
    task_id
        The task.
    a
        Where the older run is; the other runs in the history of its tasks count as well.
    also
        Where more are.
    """

    def __init__(self, task_id: str, a: Place, also: Sequence[Place]) -> None:
        found: dict[str, TaskFigures] = {}
        totals: set[int] = set()
        for place in (a, *also):
            for task in place.tasks:
                if task.task_id == task_id or len(place.tasks) == 1:
                    found |= _whole_runs(place, task, totals)
        self._runs = list(found.values()) if len(totals) == 1 else []

    @property
    def count(self) -> int:
        """Runs that executed all blocks of the task."""
        return len(self._runs)

    def deviation(self, key: str) -> tuple[float, int]:
        """Return the standard deviation of the logarithm of a run's mean, and its freedom; 0: it is assumed."""
        fold = Welford()
        for figures in self._runs:
            stat = figures.summary(key)
            if stat is not None and stat.mean > 0:
                fold.push(math.log(stat.mean))
        stat = fold.stat()
        if stat.n >= FEWEST_RUNS:
            return stat.std, stat.n - 1
        unit = METRICS[key].unit if key in METRICS else "s"
        return (_ASSUMED_MEMORY if key == "memory" else _ASSUMED[unit]), 0


def _whole_runs(place: Place, task: RecordedTask, totals: set[int]) -> dict[str, TaskFigures]:
    out: dict[str, TaskFigures] = {}
    for run in task.runs:
        if place.selected is not None and task.runs and len(task.runs) > 1 and run.run_id > place.selected:
            continue  # newer than the run that was asked for: it may be of another program
        if run.outcome == "completed" and not run.blocks.skipped:
            totals.add(run.blocks.total)
            out[run.run_id] = TaskFigures(task, run, whole=False)
    return out
