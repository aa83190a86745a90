"""From logical operators to what runs: which of them are fused, which pieces one task reads, which steps it is made of.

Consecutive operators become one, unless something keeps them apart, which :attr:`Operator.apart` tells of:

- a stage with a class of its own in each worker is the last one with a function in its operator;
- workers of another number, or with other requirements, than those of the operator before, or blocks of another size;
- a limit, which holds for all rows: what comes after it begins when it has been reached.

An operator that changes the number of rows is no reason: batches are filled within the task, whatever comes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from workspan.arguments import at_least
from workspan.dataset.batching import BATCH_BYTES, Shape
from workspan.dataset.ops import FilterRows, Limit, MapBatches, MapRows, Read
from workspan.dataset.retry import checked_patterns
from workspan.dataset.transform import TaskState, stage_steps
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.steps import Phase, Step, explain, fold, rewrite
from workspan.steps.step import Timing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workspan.dataset.ops import Compute, Op
    from workspan.dataset.sources import Piece, Source

__all__ = ["Operator", "Options", "Plan", "Segment", "bundled", "make_plan"]


_FOLDED = """
stages of rows are timed as a whole, as there is no native timer; timing="phases" times each step"""


class Options(Struct, frozen=True):
    """How a whole dataset is run."""

    timing: Timing = "auto"
    """How finely steps are timed."""
    block_rows: int | None = None
    """Rows of the blocks that leave an operator; ``None``: they are shaped by bytes."""
    block_bytes: int | None = None
    """Bytes of the blocks that leave an operator; ``None``: 128 MiB."""
    shape_blocks: bool = True
    """``False``: blocks leave an operator as its last stage makes them, empty ones too."""
    batch_bytes: int = BATCH_BYTES
    """What a batch of size "auto" takes."""
    max_map_retries: int = 0
    """How often a task is tried again after an error of its functions."""
    retried_map_errors: bool | tuple[str, ...] = False
    """Which errors are tried again."""
    retried_io_errors: tuple[str, ...] = ()
    """Patterns of errors of reading a file after which it is opened again, up to 10 times; as *retried_map_errors*."""
    replay_check: Literal["rows", "content"] = "rows"
    """What of the blocks that another attempt makes again is compared with those delivered: rows, or all values."""
    step_cpu: bool = False
    """Measure the CPU time of each step."""
    step_sizes: bool = False
    """Measure the rows and bytes that come out of each step."""
    log_stats: bool = False
    """Log what an execution cost when it has ended."""
    fuse: bool = True
    """``False``: every operator is one of its own."""

    def changed(self, given: Mapping[str, Any]) -> Options:
        """Return options with other values.

        Raises
        ------
        UsageTypeError
            A name is not known, or a value has the wrong type.
        ConfigurationError
            A value cannot be used.
        """
        for name in given:
            if name not in Options.__struct_fields__:
                known = ", ".join(Options.__struct_fields__)
                raise UsageTypeError(f"options({name}=...) is not known: there are {known}")
        made = replace(self, **given)
        if made.timing not in get_args(Timing):
            raise ConfigurationError(f"timing={made.timing!r}: it is one of auto, phases, stages, total, off")
        if made.replay_check not in ("rows", "content"):
            raise ConfigurationError(f"replay_check={made.replay_check!r}: it is 'rows' or 'content'")
        for name, value, least in (("batch_bytes", made.batch_bytes, 1), ("max_map_retries", made.max_map_retries, 0)):
            at_least(name, value, least)
        for name in ("shape_blocks", "step_cpu", "step_sizes", "log_stats", "fuse"):
            if not isinstance(getattr(made, name), bool):
                raise UsageTypeError(f"options({name}={getattr(made, name)!r}): it is True or False")
        Shape.of(made.block_rows, made.block_bytes)
        io = checked_patterns(made.retried_io_errors, "retried_io_errors")
        return replace(
            made,
            retried_map_errors=checked_patterns(made.retried_map_errors, "retried_map_errors"),
            retried_io_errors=((".*",) if io else ()) if isinstance(io, bool) else io,
        )

    @property
    def shape(self) -> Shape:
        """Shape of the blocks that leave an operator."""
        return Shape.of(self.block_rows, self.block_bytes) if self.shape_blocks else Shape("off")


class Operator(Struct, frozen=True):
    """A physical operator: logical ones that run in one task, one after the other."""

    number: int
    """Its depth, from 1."""
    ops: tuple[Op, ...]
    apart: str | None
    """Why it is not fused with the one before; ``None``: there is none."""
    options: Options

    @property
    def name(self) -> str:
        """Names of the logical operators, joined."""
        return "->".join(op.name for op in self.ops)

    @property
    def slug(self) -> str:
        """The name as that of a folder."""
        return f"{self.number}-{re.sub(r'[^A-Za-z0-9_.]+', '-', self.name)[:80].strip('-')}"

    @property
    def reads(self) -> bool:
        """Whether it begins with a source."""
        return isinstance(self.ops[0], Read)

    @property
    def concurrency(self) -> int | None:
        """Most workers; ``None``: as many as the run has."""
        return min((op.compute.concurrency for op in self.ops if op.compute.concurrency is not None), default=None)

    @property
    def requires(self) -> dict[str, int]:
        """What one worker takes of the run's resources."""
        return {name: amount for op in self.ops for name, amount in op.compute.requires}

    @property
    def retries(self) -> tuple[int, bool | tuple[str, ...]]:
        """How often a task is tried again, and after which errors."""
        most = max([self.options.max_map_retries, *(op.compute.retries for op in self.ops)])
        asked = [self.options.retried_map_errors, *(op.compute.retry_on for op in self.ops)]
        if True in asked:
            return most, True
        return most, tuple(pattern for patterns in asked if not isinstance(patterns, bool) for pattern in patterns)

    @property
    def batch_rows(self) -> int:
        """Rows that a task should have at least, so that batches can be filled."""
        sizes = [op.batch_size for op in self.ops if isinstance(op, MapBatches) and isinstance(op.batch_size, int)]
        return max(sizes, default=1)

    @property
    def shape(self) -> Shape:
        """Shape of the blocks that leave its last stage.

        Raises
        ------
        ConfigurationError
            One of its stages asks for a number of bytes, and blocks are not shaped by bytes.
        """
        asked = next((op.compute.block_bytes for op in self.ops if op.compute.block_bytes is not None), None)
        return self.options.shape if asked is None else self.options.shape.overridden(asked)

    @property
    def timed(self) -> bool:
        """Whether there are timers."""
        return self.options.timing != "off"

    def steps(self, state: TaskState | None = None) -> list[Step]:
        """Return the flat list of steps of one task, as it is run and timed."""
        state = state or TaskState()
        state.batch_bytes = self.options.batch_bytes
        state.retried_io_errors = self.options.retried_io_errors
        steps: list[Step] = []
        if not self.reads:
            steps.append(Step("Input fetch", Phase.INPUT_FETCH, 0, fetched))
        for number, op in enumerate(self.ops):
            last = number == len(self.ops) - 1
            steps += stage_steps(op, number, state, shape=self.shape if last else None)
        coarse = {number for number, op in enumerate(self.ops) if op.compute.timing == "stages"}
        rows = {
            number
            for number, op in enumerate(self.ops)
            if isinstance(op, (MapRows, FilterRows)) and op.compute.timing is None
        }
        return rewrite(fold(steps, coarse) if coarse else steps, self.options.timing, rows=rows)

    def explain(self) -> str:
        """Return the table of its steps, and why some are not timed one by one."""
        steps = self.steps()
        folded = self.options.timing == "auto" and any(
            step.bucket is None and step.stage is not None and self.ops[step.stage].compute.timing is None
            for step in steps
        )
        return explain(steps) + (_FOLDED if folded else "")


def fetched(inputs: Iterable[Any]) -> Any:
    """Open what the operator before has left."""
    for piece in inputs:
        yield from piece.read()


class Segment(Struct, frozen=True):
    """Operators that run at the same time, as one pipeline."""

    operators: tuple[Operator, ...]
    limit: int | None = None
    """Rows after which it ends."""


class Plan(Struct, frozen=True):
    """What runs."""

    source: Source
    segments: tuple[Segment, ...]
    options: Options

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators, from the source on."""
        return tuple(operator for segment in self.segments for operator in segment.operators)

    def explain(self) -> str:
        """Return the plan as text: nothing runs."""
        lines = [f"Source: {self.source.name}, {_count(self.source)}"]
        for segment in self.segments:
            for operator in segment.operators:
                lines += ["", f"Operator {operator.number} {operator.name}"]
                if operator.apart:
                    lines.append(f"  not fused with the one before: {operator.apart}")
                if operator.reads:
                    tasks = bundled(self.source.pieces, operator.batch_rows)
                    lines.append(f"  {_tasks(tasks)}")
                lines += [f"  {_batches(op)}" for op in operator.ops if isinstance(op, MapBatches)]
                lines += [f"  {line}" for line in operator.explain().splitlines()]
        return "\n".join(lines)


def _count(source: Source) -> str:
    pieces, rows = len(source.pieces), source.rows
    told = f"{pieces:,} piece{'s' if pieces != 1 else ''}"
    return f"{told}, rows not known before they are read" if rows is None else f"{told}, {rows:,} rows"


def _tasks(tasks: Sequence[Sequence[Piece]]) -> str:
    most = max(map(len, tasks))
    told = f"{len(tasks):,} task{'s' if len(tasks) != 1 else ''}"
    return told if most == 1 else f"{told} of up to {most} pieces, bundled so that batches can be filled"


def _batches(op: MapBatches) -> str:
    if op.batch_size is None:
        return f"{op.name}: one batch a block"
    if op.batch_size == "auto":
        return f"{op.name}: batches of as many rows as fit their size in bytes"
    return f"{op.name}: batches of {op.batch_size:,} rows, filled within a task"


def make_plan(source: Source, ops: Sequence[Op], options: Options) -> Plan:
    """Fuse what can be fused.

    Parameters
    ----------
    source
        Where the rows come from.
    ops
        What happens to them, in order.
    options
        Of the dataset.
    """
    groups: list[tuple[list[Op], str | None]] = [([Read(source.name)], None)]
    for op in ops:
        group = groups[-1][0]
        apart = None if options.fuse else "fuse=False"
        apart = apart or keeps_apart(group, op)
        if apart is None:
            group.append(op)
        else:
            groups.append(([op], apart))
    segments: list[Segment] = []
    current: list[Operator] = []
    for number, (group, apart) in enumerate(groups, 1):
        current.append(Operator(number, tuple(group), apart, options))
        _ = current[-1].shape  # refuses a target that cannot be
        if isinstance(group[-1], Limit):
            segments.append(Segment(tuple(current), group[-1].rows))
            current = []
    if current:
        segments.append(Segment(tuple(current)))
    return Plan(source, tuple(segments), options)


def keeps_apart(group: Sequence[Op], op: Op) -> str | None:
    """Return why *op* cannot run in one task with the operators of *group*; ``None``: it can."""
    before = group[-1]
    if isinstance(before, Limit):
        return f"{before.name} holds for all rows"
    size, sizes = op.compute.block_bytes, [other.compute.block_bytes for other in group]
    if size is not None and any(other not in (None, size) for other in sizes):
        return f"it asks for block_bytes={size}, one before for {next(other for other in sizes if other)}"
    if op.function is None:
        return None  # what is built in asks for nothing, and runs wherever the rows are
    if (stateful := next((other for other in group if other.stateful), None)) is not None:
        return f"{stateful.name} has an instance in each of its workers"
    wanted, had = op.compute, _asked(group)
    if wanted.requires and dict(wanted.requires) != dict(had.requires) and (had.requires or not _plain(group)):
        return f"it requires {dict(wanted.requires)}, the one before {dict(had.requires) or 'nothing'}"
    if had.requires and dict(wanted.requires) != dict(had.requires):
        return f"it requires {dict(wanted.requires) or 'nothing'}, the one before {dict(had.requires)}"
    if wanted.concurrency is not None and wanted.concurrency != had.concurrency:
        return f"it has concurrency={wanted.concurrency}, the one before {had.concurrency or 'as many as the run has'}"
    if had.concurrency is not None and wanted.concurrency != had.concurrency:
        return f"the one before has concurrency={had.concurrency}"
    return None


def _asked(group: Sequence[Op]) -> Compute:
    from workspan.dataset.ops import Compute

    concurrency = next((op.compute.concurrency for op in group if op.compute.concurrency is not None), None)
    requires = next((op.compute.requires for op in group if op.compute.requires), ())
    return Compute(concurrency, requires)


def _plain(group: Sequence[Op]) -> bool:
    """Whether only the source is in the group, which asks for nothing."""
    return len(group) == 1 and isinstance(group[0], Read)


def bundled(pieces: Sequence[Piece], rows: int) -> list[tuple[Piece, ...]]:
    """Return the pieces of each task: whole pieces, until there are *rows* rows, where the rows are known."""
    if rows <= 1 or any(piece.rows is None for piece in pieces):
        return [(piece,) for piece in pieces]
    tasks: list[tuple[Piece, ...]] = []
    held: list[Piece] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += piece.rows or 0
        if count >= rows:
            tasks.append(tuple(held))
            held, count = [], 0
    return [*tasks, tuple(held)] if held else tasks
