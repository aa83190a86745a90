"""What an execution cost: data set -> operators -> steps, as values.

:mod:`workspan.dataset.tally` makes them of the records of the tasks, and :mod:`workspan.dataset.text` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.dataset.figures import Figure, Spread
from workspan.errors import NotInReportError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DatasetSummary",
    "IterationSummary",
    "OperatorMetrics",
    "OperatorSummary",
    "SectionSummary",
    "StageSummary",
    "StepSummary",
]


@dataclass(frozen=True, slots=True)
class IterationSummary:
    """Where the time of a consumer of batches went: the parts add up to the total."""

    total_seconds: float
    first_wait_seconds: float | None
    """From the begin to the first batch; ``None``: there was none."""
    waiting: Figure | None
    """For blocks, a batch."""
    creating: Figure | None
    """Cutting and joining blocks into batches."""
    formatting: Figure | None
    """Turning them into the form that was asked for."""
    user: Figure | None
    """In the consumer's own code, between two batches."""
    batches: int
    rows: int
    fetch: Figure | None = None
    """Mapping the results of a task; part of the waiting."""
    blocked_seconds: dict[str, float] = field(default_factory=dict)
    """Waiting by its cause: ``"start"``: no result had come yet, workers and their imports included; ``"order"``: later
    results were there, and the next one was not; ``"work"``: none was there."""
    initialisation_seconds: float | None = None
    """From the begin until a task began, with the start of the workers; part of the waiting. ``None``: none ran."""


@dataclass(frozen=True, slots=True)
class SectionSummary:
    """A part of a step that its function has named by :func:`workspan.section`, over all tasks."""

    name: str
    total_seconds: float
    """Time in it and in no section within it, in the attempts of the tasks that came through."""
    calls: int


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step over all tasks of its operator."""

    label: str
    phase: str | None
    """``"input prep"``, ``"body"``, ``"output build"``, ``"input fetch"``; ``None``: it spans several."""
    stage: int | None
    user: bool
    seconds: Figure | None
    """Self time a block; ``None``: not measured."""
    total_seconds: float | None
    """Self time in all tasks, after their last block too."""
    pulls: int
    items: int
    overlapped: bool
    first_item: Figure | None
    """Time from the first pull to the first item, a task, the steps before it included."""
    item: Spread | None
    """Time of a pull that gave an item, the steps before it included, over all tasks."""
    cpu_seconds: float | None = None
    """CPU time of its own work; ``None``: not measured, see ``options(step_cpu=True)``."""
    rows: int | None = None
    """Rows of its items; ``None``: not measured, see ``options(step_sizes=True)``, or they have none."""
    bytes: int | None = None
    """Bytes of its items; ``None``: as of the rows."""
    sections: tuple[SectionSummary, ...] = ()
    """Parts of it that its function has named."""


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One logical operator inside a physical one."""

    name: str
    stage: int
    user: bool
    seconds: Figure | None
    """Self time of its steps, a block; ``None``: not measured."""
    total_seconds: float | None
    """Self time of its steps in all tasks, after their last block too."""
    rows_out: int
    bytes_out: int
    blocks_out: int
    calls: int
    """Calls of the user's function."""
    errored_calls: int = 0
    errored_rows: int = 0
    first_error: str | None = None
    statistics: tuple[Any, ...] = ()
    """What ``end_task()`` of its function returned, a task, in order."""


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """One physical operator. Seconds and bytes; ``None`` is not measured."""

    number: int
    name: str
    tasks: int
    """Tasks that ran in this execution."""
    skipped: int
    """Tasks that an execution before had done."""
    blocks: int
    """Blocks produced."""
    span_seconds: float | None
    """From the begin of its first task to the end of its last."""
    started_at: float | None
    ended_at: float | None
    wall: Figure | None
    """A block, from the begin of the work on it until it was ready."""
    cpu: Figure | None
    transform: Figure | None
    input_prep: Figure | None
    function_body: Figure | None
    output_build: Figure | None
    unsplit: Figure | None
    user: Figure | None
    built_in: Figure | None
    input_fetch: Figure | None
    serialise: Figure | None
    trailing_seconds: float | None
    """Time in steps after the last block of each task."""
    overhead_seconds: float | None
    """What the timers are estimated to have cost; it is in the times above."""
    clamped_seconds: float
    approximate: bool
    """Whether stages that are timed as a whole are in the user's time, with their preparation and building."""
    attempts: int
    failed_seconds: float
    replayed_seconds: float
    backoff_seconds: float
    setup: Figure | None
    """Constructing stateful functions."""
    peak_memory: Figure | None
    rows_in: int | None
    """``None``: it is a source."""
    rows_out: int
    bytes_out: int
    rows_per_block: Figure | None
    bytes_per_block: Figure | None
    rows_per_task: Figure | None
    tasks_per_node: Figure | None
    nodes: int
    stages: tuple[StageSummary, ...]
    steps: tuple[StepSummary, ...]
    blocks_in: int = 0
    """Blocks that it took, or pieces that it read."""
    bytes_in: int | None = None
    """``None``: it is a source."""
    held: Figure | None = None
    """Waiting, a task, while what it would have made was not wanted yet."""
    task_wall: Figure | None = None
    """A task, as its worker saw it."""
    task_seen: Figure | None = None
    """A task, from its begin until the driver knew of its end; ``None``: not of tasks that were done before."""
    scheduling_seconds: float | None = None
    """From the begin of the execution until the work on its first block began."""
    backpressure_seconds: float | None = None
    """For how long its workers were told to wait, as enough of its results lay unused; ``None``: all of them are taken
    at once, or at the end."""

    @property
    def rows_per_second(self) -> float | None:
        """Rows out over the span."""
        return self.rows_out / self.span_seconds if self.span_seconds else None

    @property
    def rows_per_task_second(self) -> float | None:
        """Rows out over the time of all blocks: what one worker alone would do."""
        return self.rows_out / self.wall.sum if self.wall is not None and self.wall.sum else None

    def stage(self, key: int | str) -> StageSummary:
        """Return a stage by its index or name."""
        for stage in self.stages:
            if key in (stage.stage, stage.name):
                return stage
        raise NotInReportError(f"{self.name} has no stage {key!r}: it has {[stage.name for stage in self.stages]}")

    def step(self, key: int | str) -> StepSummary:
        """Return a step by its index or label."""
        for number, step in enumerate(self.steps):
            if key in (number, step.label):
                return step
        raise NotInReportError(f"{self.name} has no step {key!r}: it has {[step.label for step in self.steps]}")


@dataclass(frozen=True, slots=True)
class OperatorMetrics:
    """One operator while it runs, or when it has run."""

    number: int
    name: str
    tasks: int
    """All of them."""
    waiting: int
    """Whose input is not there yet."""
    ready: int
    """That no worker has taken yet."""
    running: int
    finished: int
    """Those that were done before included."""
    failed: int
    results_waiting: int
    """Results that the next operator has not used yet."""
    summary: OperatorSummary
    """Figures of the tasks that have finished; at the end they are those of the report."""


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """A whole execution."""

    operators: tuple[OperatorSummary, ...]
    rows: int
    span_seconds: float | None
    """From the begin of the first task to the end of the last, of all operators."""
    driver_seconds: float | None = None
    """Wall time of the execution in the driver, with starting and ending the workers."""
    iteration: IterationSummary | None = None
    """Where the time of the consumer went; ``None``: nobody iterated."""

    scheduling: Figure | None = None
    """What the driver did between two waits for something to happen, in seconds."""

    parent: DatasetSummary | None = None
    """The execution whose materialised result this one read."""

    @property
    def depth(self) -> int:
        """Number of operators, those of the parents included."""
        return len(self.operators) + (0 if self.parent is None else self.parent.depth)

    @property
    def rows_per_second(self) -> float | None:
        """Rows of the last operator over the span."""
        return self.rows / self.span_seconds if self.span_seconds else None

    @property
    def wall_seconds(self) -> float:
        """Summed wall time of all blocks of all operators."""
        return sum(op.wall.sum for op in self.operators if op.wall is not None)

    @property
    def cpu_seconds(self) -> float:
        """Summed CPU time of all blocks of all operators."""
        return sum(op.cpu.sum for op in self.operators if op.cpu is not None)

    @property
    def peak_memory_bytes(self) -> float | None:
        """Largest peak of a block; ``None``: not measured."""
        return max((op.peak_memory.max for op in self.operators if op.peak_memory is not None), default=None)

    def operator(self, key: int | str) -> OperatorSummary:
        """Return an operator by its number or name.

        Raises
        ------
        NotInReportError
            There is none.
        """
        for op in self.operators:
            if key in (op.number, op.name):
                return op
        raise NotInReportError(f"no operator {key!r}: there are {[op.name for op in self.operators]}")

    def to_json(self) -> dict[str, Any]:
        """Return everything as dicts, lists, numbers and ``None``."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DatasetSummary:
        """Return the summary that :meth:`to_json` wrote.

        Raises
        ------
        UsageTypeError
            It is none.
        """
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise UsageTypeError(f"this is no summary of a dataset: {error}") from None
