"""One operator in one execution: what it is made of, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.dataset.forecast import BundleRows
from workspan.dataset.results import read_record
from workspan.schedule.state import TaskState

if TYPE_CHECKING:
    from workspan.dataset.plan import Operator
    from workspan.dataset.record import TaskRecord
    from workspan.dataset.stats import OperatorMetrics
    from workspan.dataset.tally import OperatorTally
    from workspan.dataset.task import MapTask
    from workspan.report.task import RunReport

__all__ = ["Enough", "OperatorRun"]


@dataclass
class OperatorRun:
    """One operator in one execution."""

    operator: Operator
    folder: Path
    function: MapTask
    count: int
    """Tasks."""
    source_rows: int | None = None
    sizes: BundleRows = field(default_factory=lambda: BundleRows(None))
    """Rows that each task reads from the source."""
    report: RunReport | None = None
    fresh: dict[int, float] = field(default_factory=dict)
    """Tasks that this execution ran -> when the driver knew of it, in seconds since the epoch."""
    state: TaskState | None = None
    """Counters of its tasks; ``None``: it has not begun."""

    began_at: float | None = None
    results_waiting: Callable[[], int] = lambda: 0
    """Results that the next operator has not used yet."""
    backpressure: Callable[[], float | None] = lambda: None
    """Seconds in which its workers were told to wait; ``None``: its results are taken all at once."""
    skipped: tuple[int, ...] = ()
    """Tasks that an execution before has done."""
    _tally: OperatorTally | None = None
    _told: set[int] = field(default_factory=set)
    _kept: dict[int, TaskRecord] = field(default_factory=dict)
    """Records that were read at the end; their files may be gone."""

    def metrics(self, first: int, rows_before: int | None = None) -> OperatorMetrics:
        """Return how far it has come.

        Parameters
        ----------
        first
            From which on its number is counted.
        rows_before
            Rows that the operator before has made.
        """
        from workspan.dataset.stats import OperatorMetrics
        from workspan.dataset.tally import OperatorTally, operator_summary

        tally = self._tally = self._tally or OperatorTally(self.operator, self.began_at)
        for index in (*list(self.fresh), *self.skipped):
            record = None if index in self._told else self._kept.get(index) or read_record(self.folder, index)
            if record is not None:
                self._told.add(index)
                tally.add(record, fresh=index in self.fresh, seen_at=self.fresh.get(index))
        state = self.state or TaskState()
        return OperatorMetrics(
            number=self.operator.number + first,
            name=self.operator.name,
            tasks=self.count,
            waiting=state.pending_count,
            ready=state.ready_count,
            running=state.processing_count,
            finished=state.completed_count,
            failed=state.failed_count + state.orphaned_count,
            results_waiting=self.results_waiting(),
            summary=operator_summary(self, tally, rows_before, first),
        )

    def records(self) -> list[TaskRecord]:
        """Return the records of all tasks that have finished, in order."""
        found = (read_record(self.folder, index) for index in range(self.count))
        self._kept = {record.index: record for record in found if record is not None}
        return list(self._kept.values())


class Enough:
    """Tells when the first tasks, in order, have as many rows as a limit asks for."""

    def __init__(self, run: OperatorRun, limit: int | None) -> None:
        self._run, self._limit = run, limit
        self._next = self._rows = 0
        self.is_reached = False

    def reached(self) -> bool:
        """Whether there are."""
        if self._limit is None or self.is_reached:
            return False
        while self._next < self._run.count and (record := read_record(self._run.folder, self._next)) is not None:
            self._rows += sum(block.rows for block in record.blocks)
            self._next += 1
        self.is_reached = self._next > 0 and self._rows >= self._limit  # an empty result has columns too
        return self.is_reached
