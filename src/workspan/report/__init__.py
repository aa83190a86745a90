"""The values people ask for after a run, and the running folds that they are made from."""

from workspan.report.aggregate import TaskAggregate
from workspan.report.parts import BlockFailure, BlocksSummary, StepSummary, TaskPlace, WorkerRecord, WorkersSummary
from workspan.report.task import RunReport, TaskReport
from workspan.report.timeline import TaskTimeline, WorkerTimeline

__all__ = [
    "BlockFailure",
    "BlocksSummary",
    "RunReport",
    "StepSummary",
    "TaskAggregate",
    "TaskPlace",
    "TaskReport",
    "TaskTimeline",
    "WorkerRecord",
    "WorkerTimeline",
    "WorkersSummary",
]
