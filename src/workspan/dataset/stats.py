"""What an execution cost: data set -> operators -> steps, as values; :mod:`workspan.dataset.text` prints them.

All figures come from the records of the tasks, in whole ns where they are times of steps, so that blocks, trailing
time, tasks and operators add up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.errors import NotInReportError, UsageTypeError
from workspan.measure.sketch import Sketch
from workspan.steps import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from workspan.dataset.execute import OperatorRun
    from workspan.dataset.record import TaskRecord
    from workspan.steps import Step

__all__ = [
    "DatasetSummary",
    "Figure",
    "IterationSummary",
    "OperatorSummary",
    "StageSummary",
    "StepSummary",
    "Tally",
    "summarise",
]


@dataclass(frozen=True, slots=True)
class Figure:
    """A distribution of samples: seconds, bytes or counts."""

    min: float
    max: float
    mean: float
    sum: float
    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, samples: Iterable[float]) -> Figure | None:
        """Return the figure of samples; ``None`` without any."""
        values = list(samples)
        if not values:
            return None
        sketch = Sketch()
        sketch.extend(values)
        total = sum(values)
        p50, p90, p99 = (sketch.quantile(q) for q in (0.5, 0.9, 0.99))
        return cls(min(values), max(values), total / len(values), total, len(values), p50, p90, p99)


class Tally:
    """Samples that are summed up as they come, in bounded memory."""

    __slots__ = ("_buffer", "_sketch", "count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._sketch = Sketch()
        self._buffer: list[float] = []

    def add(self, sample: float) -> None:
        """Take in one sample."""
        self.count += 1
        self.sum += sample
        self._buffer.append(sample)
        if len(self._buffer) >= 512:
            self._flush()

    def _flush(self) -> None:
        self._sketch.extend(self._buffer)
        self._buffer.clear()

    def figure(self) -> Figure | None:
        """Return the distribution; ``None`` without samples."""
        self._flush()
        low, high = self._sketch.min, self._sketch.max
        if low is None or high is None:
            return None
        p50, p90, p99 = (self._sketch.quantile(q) for q in (0.5, 0.9, 0.99))
        return Figure(low, high, self.sum / self.count, self.sum, self.count, p50, p90, p99)


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
    median_item: Figure | None
    """Median time of a pull that gave an item, a task, the steps before it included."""
    slowest_item_seconds: float | None
    """The longest such pull; ``None``: there was none."""


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


def summarise(
    runs: Sequence[OperatorRun],
    iteration: IterationSummary | None = None,
    parent: DatasetSummary | None = None,
    driver_seconds: float | None = None,
) -> DatasetSummary:
    """Sum up an execution.

    Parameters
    ----------
    runs
        Its operators.
    iteration
        Where the time of the consumer went.
    parent
        Of the execution whose result it read.
    driver_seconds
        Its wall time in the driver.
    """
    operators: list[OperatorSummary] = []
    first = 0 if parent is None else parent.depth
    for run in runs:
        operators.append(_operator(run, operators[-1].rows_out if operators else None, first))
    begins = [op.started_at for op in operators if op.started_at is not None]
    ends = [op.ended_at for op in operators if op.ended_at is not None]
    span = max(ends) - min(begins) if begins and ends else None
    return DatasetSummary(
        tuple(operators), operators[-1].rows_out if operators else 0, span, driver_seconds, iteration, parent
    )


def _operator(run: OperatorRun, rows_before: int | None, first: int) -> OperatorSummary:
    operator = run.operator
    everything = run.records()
    records = [record for record in everything if record.index in run.fresh]
    steps = operator.steps()
    blocks = [block for record in records for block in record.blocks]
    times = [block.self_ns for block in blocks if block.self_ns is not None]
    inner = [n for n, step in enumerate(steps) if step.bucket is not Phase.INPUT_FETCH]
    has_phases = any(steps[n].bucket is not None for n in inner)

    def grouped(chosen: Callable[[Step], bool]) -> Figure | None:
        numbers = [n for n in inner if chosen(steps[n])]
        return Figure.of(sum(own[n] for n in numbers) / 1e9 for own in times)

    def phase(bucket: Phase) -> Figure | None:
        return grouped(lambda step: step.bucket is bucket) if has_phases else None

    bodies = (Phase.FUNCTION_BODY, None)
    split = all(step.stage is not None for step in steps)
    fetch = [n for n, step in enumerate(steps) if step.bucket is Phase.INPUT_FETCH]
    unsplit = any(steps[n].bucket is None for n in inner)
    trailing = [sum(r.trailing_ns[n] for n in inner) for r in records if r.trailing_ns is not None]
    begins = [record.started_at for record in records]
    ends = [record.started_at + record.wall_seconds for record in records]
    per_node: dict[str, int] = {}
    for record in records:
        per_node[record.node] = per_node.get(record.node, 0) + 1
    overheads = [record.overhead_seconds for record in records if record.overhead_seconds is not None]
    return OperatorSummary(
        number=operator.number + first,
        name=operator.name,
        tasks=len(records),
        skipped=len(everything) - len(records),
        blocks=len(blocks),
        span_seconds=max(ends) - min(begins) if begins else None,
        started_at=min(begins, default=None),
        ended_at=max(ends, default=None),
        wall=Figure.of(block.wall_seconds for block in blocks),
        cpu=Figure.of(block.cpu_seconds for block in blocks),
        transform=grouped(lambda step: True),
        input_prep=phase(Phase.INPUT_PREP),
        function_body=phase(Phase.FUNCTION_BODY),
        output_build=phase(Phase.OUTPUT_BUILD),
        unsplit=grouped(lambda step: step.bucket is None) if unsplit else None,
        user=grouped(lambda step: step.bucket in bodies and step.user) if split else None,
        built_in=grouped(lambda step: step.bucket in bodies and not step.user) if split else None,
        input_fetch=Figure.of(sum(own[n] for n in fetch) / 1e9 for own in times) if fetch else None,
        serialise=Figure.of(block.serialise_seconds for block in blocks),
        trailing_seconds=sum(trailing) / 1e9 if trailing else None,
        overhead_seconds=sum(overheads) if overheads else None,
        clamped_seconds=sum(record.clamped_ns for record in records) / 1e9,
        approximate=any(steps[n].bucket is None for n in inner),
        attempts=sum(record.attempts for record in records),
        failed_seconds=sum(record.failed_seconds for record in records),
        replayed_seconds=sum(record.replayed_seconds for record in records),
        backoff_seconds=sum(record.backoff_seconds for record in records),
        setup=Figure.of(s for s in _setups(records)),
        peak_memory=_peak(run),
        rows_in=None if operator.reads else rows_before if not run.source_rows else run.source_rows,
        rows_out=sum(block.rows for record in everything for block in record.blocks),
        bytes_out=sum(block.bytes for record in everything for block in record.blocks),
        rows_per_block=Figure.of(block.rows for block in blocks),
        bytes_per_block=Figure.of(block.bytes for block in blocks),
        rows_per_task=Figure.of(sum(block.rows for block in record.blocks) for record in records),
        tasks_per_node=Figure.of(per_node.values()),
        nodes=len(per_node),
        stages=_stages(run, records, steps, times),
        steps=_steps(records, steps, times),
    )


def _setups(records: Sequence[TaskRecord]) -> list[float]:
    """Return the set-ups, each once: all tasks of a process tell of the same one."""
    found: dict[tuple[str, int, int], float] = {}
    for record in records:
        for stage, seconds in enumerate(record.setup_seconds):
            if seconds is not None:
                found[record.node, record.pid, stage] = seconds
    return list(found.values())


def _peak(run: OperatorRun) -> Figure | None:
    """Return the peak memory of the blocks, if the run measured it."""
    if run.report is None:
        return None
    for task in run.report.tasks.values():
        if task.task_id.startswith(f"{run.operator.number} "):
            stat = task.blocks.peak_rss
            return None if stat is None or not stat.n else Figure(stat.min, stat.max, stat.mean, stat.total, stat.n)
    return None


def _stages(
    run: OperatorRun, records: Sequence[TaskRecord], steps: Sequence[Step], times: Sequence[Sequence[int]]
) -> tuple[StageSummary, ...]:
    split = all(step.stage is not None for step in steps) and any(r.trailing_ns is not None for r in records)
    out = []
    for number, op in enumerate(run.operator.ops):
        own = [n for n, step in enumerate(steps) if step.stage == number and step.bucket is not Phase.INPUT_FETCH]
        flows = [record.flows[number] for record in records if number < len(record.flows)]
        written = [record.written for record in records if record.written is not None]
        ends = number == len(run.operator.ops) - 1
        rows, size = sum(flow.rows for flow in flows), sum(flow.bytes for flow in flows)
        if ends and written:
            rows, size = sum(part[1] for part in written), sum(part[2] or 0 for part in written)
        out.append(
            StageSummary(
                op.name,
                number,
                op.function is not None,
                Figure.of(sum(ns[n] for n in own) / 1e9 for ns in times) if split else None,
                sum(_total(records, n) for n in own) / 1e9 if split else None,
                rows,
                size,
                sum(flow.blocks for flow in flows),
                sum(flow.calls for flow in flows),
                sum(flow.errored_calls for flow in flows),
                sum(flow.errored_rows for flow in flows),
                next((flow.first_error for flow in flows if flow.first_error is not None), None),
            )
        )
    return tuple(out)


def _steps(
    records: Sequence[TaskRecord], steps: Sequence[Step], times: Sequence[Sequence[int]]
) -> tuple[StepSummary, ...]:
    timed = any(record.trailing_ns is not None for record in records)
    out = []
    for number, step in enumerate(steps):
        figures = [record.steps[number] for record in records if number < len(record.steps)]
        out.append(
            StepSummary(
                step.label,
                None if step.bucket is None else step.bucket.value,
                step.stage,
                step.user,
                Figure.of(own[number] / 1e9 for own in times),
                _total(records, number) / 1e9 if timed else None,
                sum(figure.pulls for figure in figures),
                sum(figure.items for figure in figures),
                any(figure.overlapped for figure in figures),
                Figure.of(figure.first_item_s for figure in figures if figure.first_item_s is not None),
                Figure.of(lat[2] for figure in figures if (lat := figure.latency) is not None and lat[2] is not None),
                max((lat[5] for figure in figures if (lat := figure.latency) and lat[5] is not None), default=None),
            )
        )
    return tuple(out)


def _total(records: Sequence[TaskRecord], number: int) -> int:
    """Return the self time of a step in all blocks and after them, in ns."""
    inside = sum(block.self_ns[number] for r in records for block in r.blocks if block.self_ns is not None)
    return inside + sum(record.trailing_ns[number] for record in records if record.trailing_ns is not None)
