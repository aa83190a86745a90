"""One execution of a dataset, as its caller gets it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workspan.dataset.execute import Execution
    from workspan.dataset.stats import DatasetSummary, IterationSummary
    from workspan.report.task import RunReport

__all__ = ["DatasetRun"]

logger = logging.getLogger(__name__)


class DatasetRun:
    """What an execution did and cost."""

    def __init__(self, execution: Execution, iteration: IterationSummary | None = None) -> None:
        self.execution = execution
        self.records = tuple(tuple(run.records()) for run in execution.runs)
        """Records of the tasks of each operator."""
        self.steps = tuple(tuple(run.operator.steps()) for run in execution.runs)
        """Steps of each operator."""
        from workspan.dataset.tally import summarise  # here, as the workers have long started

        if iteration is not None:
            own = zip(execution.runs, self.records, strict=True)
            begins = [record.started_at for run, records in own for record in records if record.index in run.fresh]
            if begins and execution.began_at is not None:
                wait = min(max(0.0, min(begins) - execution.began_at), iteration.total_seconds)
                iteration = replace(iteration, initialisation_seconds=wait)
        parent = execution.plan.source.parent
        self.summary = summarise(
            execution.runs,
            iteration,
            None if parent is None else parent.summary,
            execution.driver_seconds,
            execution.scheduling.figure(),
            execution.began_at,
        )
        if execution.plan.options.log_stats:
            logger.info("%s", self.stats())

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Files that a sink wrote, in order of the tasks."""
        records = self.records[-1] if self.records else ()
        folder = self._folder
        return tuple(f"{folder}/{record.written[0]}" for record in records if record.written is not None)

    @property
    def _folder(self) -> str:
        from workspan.dataset.ops import Write

        op = self.execution.plan.operators[-1].ops[-1]
        return op.sink.folder if isinstance(op, Write) else ""

    def stats(self, *, verbose: bool = False) -> str:
        """Return what it cost, as text."""
        from workspan.dataset.text import render

        return render(self.summary, verbose=verbose)

    def stats_summary(self) -> DatasetSummary:
        """Return what it cost, as values."""
        return self.summary

    def report(self) -> RunReport | None:
        """Return the report of its tasks as of any blockwise run; ``None``: nothing ran."""
        return next((run.report for run in reversed(self.execution.runs) if run.report is not None), None)

    def __repr__(self) -> str:
        from workspan.dataset.text import seconds, whole
        from workspan.views.format import count, one_line

        summary = self.summary
        names = one_line("->".join(operator.name for operator in summary.operators))
        tasks = count(sum(operator.tasks for operator in summary.operators), "task")
        rows = f"{whole(summary.rows)} row{'' if summary.rows == 1 else 's'}"
        return f"DatasetRun({names}: {rows}, {tasks}, {seconds(summary.driver_seconds)})"

    def _repr_html_(self) -> str:
        from workspan.dataset.shown import run_html

        return run_html(self)
