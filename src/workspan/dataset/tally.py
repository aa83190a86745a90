"""From the records of tasks to what an execution cost: one pass, and partial sums merge in any order.

Times are whole ns and sizes whole numbers until they are told, so that blocks, trailing time, tasks and operators add
up exactly. While a run goes on and when it has ended the same code does it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workspan.dataset.figures import Figure, Spread, Tally
from workspan.dataset.stats import DatasetSummary, OperatorSummary, SectionSummary, StageSummary, StepSummary
from workspan.measure.sketch import Sketch
from workspan.steps import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workspan.dataset.plan import Operator
    from workspan.dataset.record import Flow, StepFigures, TaskRecord
    from workspan.dataset.runs import OperatorRun
    from workspan.dataset.stats import IterationSummary
    from workspan.steps import Step

__all__ = ["OperatorTally", "summarise"]

_NS = 1e9


class OperatorTally:
    """Sums up the tasks of one operator.

    Parameters
    ----------
    operator
        What the tasks did.
    began_at
        When the execution began, in seconds since the epoch.
    """

    def __init__(self, operator: Operator, began_at: float | None = None) -> None:
        self.operator = operator
        self._began_at = began_at
        steps = self._list = operator.steps()
        self.tasks = self.skipped = 0
        self._groups = _groups(steps, len(operator.ops))
        self._times = {name: Tally() for name in self._groups}
        names = ("wall", "cpu", "serialise", "rows_per_block", "bytes_per_block", "rows_per_task", "held", "task_wall")
        self._tallies = {name: Tally() for name in (*names, "task_seen")}
        self._rows_out = self._bytes_out = self._blocks_in = self._rows_in = self._bytes_in = 0
        self._attempts = self._clamped = 0
        self._begin: float | None = None
        self._end: float | None = None
        self._work: float | None = None
        self._lost = [0, 0, 0]
        """Failed, replayed and waited, in ns."""
        self._trailing: int | None = None
        self._overhead: int | None = None
        self._per_node: dict[str, int] = {}
        self._setups: dict[tuple[str, int, int], float] = {}
        """Each once: all tasks of a process tell of the same one."""
        self._stages = [_Stage() for _ in operator.ops]
        self._steps = [_Step() for _ in steps]

    def add(self, record: TaskRecord, *, fresh: bool = True, seen_at: float | None = None) -> None:
        """Take in a task.

        Parameters
        ----------
        fresh
            It ran in this execution; of another only the rows count.
        seen_at
            When the driver knew of its end, in seconds since the epoch.
        """
        self._rows_out += sum(block.rows for block in record.blocks)
        self._bytes_out += sum(block.bytes for block in record.blocks)
        if not fresh:
            self.skipped += 1
            return
        self.tasks += 1
        tallies = self._tallies
        for block in record.blocks:
            tallies["wall"].add(_ns(block.wall_seconds))
            tallies["cpu"].add(_ns(block.cpu_seconds))
            tallies["serialise"].add(_ns(block.serialise_seconds))
            tallies["rows_per_block"].add(block.rows)
            tallies["bytes_per_block"].add(block.bytes)
            if block.self_ns is not None:
                for name, numbers in self._groups.items():
                    self._times[name].add(sum(block.self_ns[n] for n in numbers))
        tallies["rows_per_task"].add(sum(block.rows for block in record.blocks))
        tallies["task_wall"].add(_ns(record.wall_seconds))
        if record.held_seconds:
            tallies["held"].add(_ns(record.held_seconds))
        if seen_at is not None:
            tallies["task_seen"].add(_ns(max(0.0, seen_at - record.started_at)))
        self._blocks_in += record.blocks_in
        self._rows_in += record.rows_in or 0
        self._bytes_in += record.bytes_in or 0
        self._attempts += record.attempts
        self._clamped += record.clamped_ns
        lost = (record.failed_seconds, record.replayed_seconds, record.backoff_seconds)
        self._lost = [sum_ + _ns(seconds) for sum_, seconds in zip(self._lost, lost, strict=True)]
        self._begin = _least(self._begin, record.started_at)
        self._end = _most(self._end, record.started_at + record.wall_seconds)
        if record.blocks:
            self._work = _least(self._work, record.blocks[0].started_at)
        if record.trailing_ns is not None:
            self._trailing = (self._trailing or 0) + sum(record.trailing_ns[n] for n in self._groups["transform"])
        if record.overhead_seconds is not None:
            self._overhead = (self._overhead or 0) + _ns(record.overhead_seconds)
        self._per_node[record.node] = self._per_node.get(record.node, 0) + 1
        for stage, seconds in enumerate(record.setup_seconds):
            if seconds is not None:
                self._setups[record.node, record.pid, stage] = seconds
        for number, found in enumerate(self._stages):
            found.add(record, number, is_last=number == len(self._stages) - 1)
        for number, step in enumerate(self._steps):
            step.add(record, number)

    def merge(self, other: OperatorTally) -> None:
        """Take in all tasks of another tally of the same operator, which keeps its own."""
        self.tasks += other.tasks
        self.skipped += other.skipped
        for mine, yours in ((self._times, other._times), (self._tallies, other._tallies)):
            for name, tally in mine.items():
                tally.merge(yours[name])
        for name in ("_rows_out", "_bytes_out", "_blocks_in", "_rows_in", "_bytes_in", "_attempts", "_clamped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._lost = [a + b for a, b in zip(self._lost, other._lost, strict=True)]
        for name in ("_trailing", "_overhead"):
            if getattr(other, name) is not None:
                setattr(self, name, (getattr(self, name) or 0) + getattr(other, name))
        self._begin = _least(self._begin, other._begin)
        self._work = _least(self._work, other._work)
        self._end = _most(self._end, other._end)
        for node, count in other._per_node.items():
            self._per_node[node] = self._per_node.get(node, 0) + count
        self._setups.update(other._setups)
        for stage, its in zip(self._stages, other._stages, strict=True):
            stage.merge(its)
        for step, their in zip(self._steps, other._steps, strict=True):
            step.merge(their)

    def summary(self, number: int, rows_in: int | None = None, peak: Figure | None = None) -> OperatorSummary:
        """Return the figures.

        Parameters
        ----------
        number
            What the operator is called by.
        rows_in
            Rows that the operator before has made; ``None``: it has none, or its tasks know.
        peak
            Of the memory of a block.
        """
        steps, operator = self._list, self.operator
        inner = [steps[n] for n in self._groups["transform"]]
        has_phases = any(step.bucket is not None for step in inner)
        split = all(step.stage is not None for step in steps)
        unsplit = any(step.bucket is None for step in inner)

        def time(name: str, is_known: bool = True) -> Figure | None:
            return self._times[name].figure(_NS) if is_known else None

        def seconds(name: str) -> Figure | None:
            return self._tallies[name].figure(_NS)

        failed, replayed, backoff = (ns / _NS for ns in self._lost)
        span = None if self._begin is None or self._end is None else self._end - self._begin
        return OperatorSummary(
            number=number,
            name=operator.name,
            tasks=self.tasks,
            skipped=self.skipped,
            blocks=self._tallies["wall"].count,
            span_seconds=span,
            started_at=self._begin,
            ended_at=self._end,
            wall=seconds("wall"),
            cpu=seconds("cpu"),
            transform=time("transform"),
            input_prep=time(Phase.INPUT_PREP.value, has_phases),
            function_body=time(Phase.FUNCTION_BODY.value, has_phases),
            output_build=time(Phase.OUTPUT_BUILD.value, has_phases),
            unsplit=time("unsplit", unsplit),
            user=time("user", split),
            built_in=time("built-in", split),
            input_fetch=time("fetch", bool(self._groups["fetch"])),
            serialise=seconds("serialise"),
            trailing_seconds=None if self._trailing is None else self._trailing / _NS,
            overhead_seconds=None if self._overhead is None else self._overhead / _NS,
            clamped_seconds=self._clamped / _NS,
            approximate=unsplit,
            attempts=self._attempts,
            failed_seconds=failed,
            replayed_seconds=replayed,
            backoff_seconds=backoff,
            setup=Figure.of(self._setups.values()),
            peak_memory=peak,
            rows_in=None if operator.reads else self._rows_in if rows_in is None else rows_in,
            rows_out=self._rows_out,
            bytes_out=self._bytes_out,
            rows_per_block=self._tallies["rows_per_block"].figure(),
            bytes_per_block=self._tallies["bytes_per_block"].figure(),
            rows_per_task=self._tallies["rows_per_task"].figure(),
            tasks_per_node=Figure.of(self._per_node.values()),
            nodes=len(self._per_node),
            stages=tuple(self._stage(n, split) for n in range(len(operator.ops))),
            steps=tuple(self._step(n) for n in range(len(steps))),
            blocks_in=self._blocks_in,
            bytes_in=None if operator.reads else self._bytes_in,
            held=seconds("held"),
            task_wall=seconds("task_wall"),
            task_seen=seconds("task_seen"),
            scheduling_seconds=None
            if self._work is None or self._began_at is None
            else max(0.0, self._work - self._began_at),
        )

    def _stage(self, number: int, split: bool) -> StageSummary:
        op, found = self.operator.ops[number], self._stages[number]
        own = self._groups[f"stage {number}"]
        known = split and any(self._steps[n].timed for n in range(len(self._steps)))
        return StageSummary(
            op.name,
            number,
            op.function is not None,
            self._times[f"stage {number}"].figure(_NS) if split else None,
            sum(self._steps[n].ns for n in own) / _NS if known else None,
            found.rows,
            found.bytes,
            found.flow.blocks,
            found.flow.calls,
            found.flow.errored_calls,
            found.flow.errored_rows,
            found.flow.first_error,
            tuple(found.statistics[index] for index in sorted(found.statistics)),
        )

    def _step(self, number: int) -> StepSummary:
        step, found = self._list[number], self._steps[number]
        return StepSummary(
            step.label,
            None if step.bucket is None else step.bucket.value,
            step.stage,
            step.user,
            self._times[f"step {number}"].figure(_NS),
            found.ns / _NS if found.timed else None,
            found.pulls,
            found.items,
            found.overlapped,
            found.first.figure(_NS),
            found.spread(),
            None if found.cpu is None else found.cpu / _NS,
            found.rows,
            found.bytes,
            tuple(SectionSummary(name, ns / _NS, calls) for name, (ns, calls) in found.sections.items()),
        )


def _groups(steps: Sequence[Step], stages: int) -> dict[str, list[int]]:
    """Return the groupings of the one array of self times: name -> numbers of the steps."""
    inner = [n for n, step in enumerate(steps) if step.bucket is not Phase.INPUT_FETCH]
    bodies = (Phase.FUNCTION_BODY, None)
    groups = {
        "transform": inner,
        "fetch": [n for n, step in enumerate(steps) if step.bucket is Phase.INPUT_FETCH],
        "unsplit": [n for n in inner if steps[n].bucket is None],
        "user": [n for n in inner if steps[n].bucket in bodies and steps[n].user],
        "built-in": [n for n in inner if steps[n].bucket in bodies and not steps[n].user],
    }
    for phase in (Phase.INPUT_PREP, Phase.FUNCTION_BODY, Phase.OUTPUT_BUILD):
        groups[phase.value] = [n for n in inner if steps[n].bucket is phase]
    for number in range(stages):
        groups[f"stage {number}"] = [n for n in inner if steps[n].stage == number]
    for number in range(len(steps)):
        groups[f"step {number}"] = [number]
    return groups


class _Stage:
    """What went out of a stage."""

    def __init__(self) -> None:
        from workspan.dataset.record import Flow

        self.flow: Flow = Flow()
        self.rows = self.bytes = 0
        self.statistics: dict[int, Any] = {}

    def add(self, record: TaskRecord, number: int, *, is_last: bool) -> None:
        if number < len(record.flows):
            flow = record.flows[number]
            self._sum(flow)
            if is_last and record.written is not None:
                self.rows += record.written[1]
                self.bytes += record.written[2] or 0
            else:
                self.rows += flow.rows
                self.bytes += flow.bytes
        if number < len(record.statistics) and record.statistics[number] is not None:
            self.statistics[record.index] = record.statistics[number]

    def _sum(self, flow: Flow) -> None:
        for name in ("blocks", "calls", "errored_calls", "errored_rows"):
            setattr(self.flow, name, getattr(self.flow, name) + getattr(flow, name))
        if self.flow.first_error is None:
            self.flow.first_error = flow.first_error

    def merge(self, other: _Stage) -> None:
        self._sum(other.flow)
        self.rows += other.rows
        self.bytes += other.bytes
        self.statistics.update(other.statistics)


class _Step:
    """What one step took, blocks and trailing time."""

    def __init__(self) -> None:
        self.ns = self.pulls = self.items = 0
        self.timed = self.overlapped = False
        self.first = Tally()
        self.cpu: int | None = None
        self.rows: int | None = None
        self.bytes: int | None = None
        self.sections: dict[str, tuple[int, int]] = {}
        """Name -> (self time in ns, calls)."""
        self._latencies = Sketch()
        self._counted = 0
        self._least: float | None = None
        self._most: float | None = None

    def add(self, record: TaskRecord, number: int) -> None:
        self.ns += sum(block.self_ns[number] for block in record.blocks if block.self_ns is not None)
        if record.trailing_ns is not None:
            self.timed = True
            self.ns += record.trailing_ns[number]
        if number < len(record.steps):
            self._add(record.steps[number])

    def _add(self, figures: StepFigures) -> None:
        self.pulls += figures.pulls
        self.items += figures.items
        self.overlapped |= figures.overlapped
        if figures.first_item_s is not None:
            self.first.add(_ns(figures.first_item_s))
        self.cpu, self.rows = _plus(self.cpu, figures.cpu_ns), _plus(self.rows, figures.rows)
        self.bytes = _plus(self.bytes, figures.bytes)
        self._add_sections((name, (ns, calls)) for name, ns, calls in figures.sections)
        if figures.latency is not None:
            items, least, most, levels = figures.latency
            self._counted += items
            self._least, self._most = _least(self._least, least), _most(self._most, most)
            for level, samples in enumerate(levels):
                self._latencies.extend(samples, level)

    def _add_sections(self, sections: Iterable[tuple[str, tuple[int, int]]]) -> None:
        for name, (ns, calls) in sections:
            had = self.sections.get(name, (0, 0))
            self.sections[name] = had[0] + ns, had[1] + calls

    def merge(self, other: _Step) -> None:
        self._add_sections(other.sections.items())
        for name in ("ns", "pulls", "items", "_counted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.timed |= other.timed
        self.overlapped |= other.overlapped
        self.first.merge(other.first)
        for name in ("cpu", "rows", "bytes"):
            setattr(self, name, _plus(getattr(self, name), getattr(other, name)))
        self._latencies.merge(other._latencies)
        self._least, self._most = _least(self._least, other._least), _most(self._most, other._most)

    def spread(self) -> Spread | None:
        if self._least is None or self._most is None:
            return None
        p50, p90, p99 = (None if ns is None else ns / _NS for ns in self._latencies.quantiles((0.5, 0.9, 0.99)))
        return Spread(self._counted, self._least, p50, p90, p99, self._most)


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


def _least(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


def _most(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


# -- an execution ----------------------------------------------------------------------------------------------------


def summarise(
    runs: Sequence[OperatorRun],
    iteration: IterationSummary | None = None,
    parent: DatasetSummary | None = None,
    driver_seconds: float | None = None,
    scheduling: Figure | None = None,
    began_at: float | None = None,
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
    scheduling
        What the driver did between two waits.
    began_at
        When it began, in seconds since the epoch.
    """
    operators: list[OperatorSummary] = []
    first = 0 if parent is None else parent.depth
    for run in runs:
        tally = OperatorTally(run.operator, began_at)
        for record in run.records():
            tally.add(record, fresh=record.index in run.fresh, seen_at=run.fresh.get(record.index))
        operators.append(operator_summary(run, tally, operators[-1].rows_out if operators else None, first))
    begins = [op.started_at for op in operators if op.started_at is not None]
    ends = [op.ended_at for op in operators if op.ended_at is not None]
    span = max(ends) - min(begins) if begins and ends else None
    rows = operators[-1].rows_out if operators else 0
    return DatasetSummary(tuple(operators), rows, span, driver_seconds, iteration, scheduling, parent)


def operator_summary(run: OperatorRun, tally: OperatorTally, rows_before: int | None, first: int) -> OperatorSummary:
    """Return the figures of one operator of an execution."""
    rows_in = run.source_rows if run.source_rows else rows_before
    found = tally.summary(run.operator.number + first, rows_in, _peak(run))
    return replace(found, backpressure_seconds=run.backpressure())


def _peak(run: OperatorRun) -> Figure | None:
    """Return the peak memory of the blocks, if the run measured it."""
    if run.report is None:
        return None
    for task in run.report.tasks.values():
        if task.task_id.startswith(f"{run.operator.number} "):
            stat = task.blocks.peak_rss
            return None if stat is None or not stat.n else Figure(stat.min, stat.max, stat.mean, stat.total, stat.n)
    return None
