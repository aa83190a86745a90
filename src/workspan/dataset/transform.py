"""The steps of each kind of operator: input preparation, body, output build.

Everything that a stage does for its rows is in one of its steps, so the clock of the chain sees all of it. Row
functions are called chunk by chunk: the windows of the timers lie around some thousand calls, and cost next to nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct, field

from workspan.dataset import sinks
from workspan.dataset.batching import BATCH_BYTES, Shape, batches, row_chunks, shaped
from workspan.dataset.blocks import (
    Given,
    first_rows,
    guess,
    hand_over,
    no_rows,
    rows_in,
    rows_of,
    table_of_batch,
    table_of_rows,
)
from workspan.dataset.columns import mask_array
from workspan.dataset.expressions import filtered, projected
from workspan.dataset.ops import Filter, FilterRows, Limit, MapBatches, MapRows, Project, Read, Write
from workspan.dataset.record import Flow
from workspan.dataset.retry import back_off, may_retry
from workspan.engines.failure import failure_line
from workspan.errors import DataError
from workspan.steps import Phase, Step
from workspan.steps.sizes import sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.dataset.ops import Op

__all__ = ["TaskState", "stage_steps", "step_sizes"]

MOST_IO_ATTEMPTS = 10
"""How often a file is opened, where its errors are ones to try again after."""

CHUNK_ROWS = 4096
"""Rows that are Python objects at the same time."""


class TaskState(Struct):
    """What the steps of one attempt of one task share; each attempt begins with a new one."""

    index: int = 0
    where: str = "block 0"
    """Names the task in messages."""
    batch_bytes: int = BATCH_BYTES
    flows: list[Flow] = field(default_factory=list)
    part: sinks.Part | None = None
    """The file that a sink writes."""
    setup_seconds: dict[int, float] = field(default_factory=dict)
    retried_io_errors: tuple[str, ...] = ()
    ends: dict[int, Callable[[], Any]] = field(default_factory=dict)
    """Stage -> ``end_task`` of its instance."""

    def end_task(self) -> list[Any]:
        """Return what each stage has to tell of the task, in order.

        Raises
        ------
        DataError
            It is nothing that can be told: numbers, texts, lists and dicts can.
        """
        told = []
        for number in range(len(self.flows)):
            end = self.ends.get(number)
            told.append(None if end is None else plain(end(), f"end_task() of stage {number}, {self.where}"))
        return told


def plain(value: Any, where: str) -> Any:
    """Return a value as builtin ones; numbers of NumPy are numbers."""
    import msgspec

    try:
        return msgspec.to_builtins(value, enc_hook=lambda other: other.item())
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where} returned {str(value)[:60]!r}: return numbers, texts, lists or dicts") from error


def step_sizes(item: Any) -> tuple[int | None, int | None]:
    """Return the rows and the bytes of what goes from step to step, as far as it has any."""
    if isinstance(item, Given):
        item = item.value
    elif isinstance(item, tuple):
        item = item[0]
    if isinstance(item, list):
        return len(item), None
    if type(item).__module__.partition(".")[0] == "pandas" and hasattr(item, "memory_usage"):
        return len(item), int(item.memory_usage(index=False).sum())
    return sizes_of(item)


class _Stage:
    """One stage while its task runs: counts what leaves it, and remembers the schema of what came in."""

    def __init__(self, op: Op, number: int, state: TaskState, shape: Shape | None) -> None:
        self.op, self.number, self.state = op, number, state
        self.where = state.where
        self.flow = Flow()
        state.flows.append(self.flow)
        self._shape = shape
        self.schema: pa.Schema | None = None
        """Of the blocks that come in; ``None``: none has come."""

    def step(self, phase: Phase, apply: Callable[[Any], Any]) -> Step:
        return Step(
            f"{self.op.name} {phase.value}",
            phase,
            self.number,
            apply,
            user=self.op.function is not None,
            ops=(self.op.name,),
        )

    def steps(self, prep: Any, body: Any, build: Any) -> list[Step]:
        parts = ((Phase.INPUT_PREP, prep), (Phase.FUNCTION_BODY, body), (Phase.OUTPUT_BUILD, build))
        return [self.step(phase, apply) for phase, apply in parts if apply is not None]

    def watched(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        return map(self._watch, tables)

    def _watch(self, table: pa.Table) -> pa.Table:
        if self.schema is None or not len(self.schema):
            self.schema = table.schema
        return table

    def out(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Hand tables on: as they are made inside an operator, in the asked shape at its end."""
        if self._shape is not None:
            made = shaped(tables, self._shape, where=f"{self.op.name}, {self.where}", schema=self._presumed)
        else:
            made = _passed(iter(tables), self._presumed)
        return map(self._count, made)

    def _presumed(self) -> pa.Schema | None:
        """Return the schema of what leaves the stage if nothing does: it is a guess where a function makes the rows."""
        guessed = self.schema is not None and isinstance(self.op, (MapRows, MapBatches))
        return guess(self.schema) if guessed else self.schema

    def _count(self, table: pa.Table) -> pa.Table:
        names = table.column_names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                f"{self.op.name}, {self.where}: {names.count(twice)} columns have the name {twice!r}: rename them"
            )
        flow = self.flow
        flow.blocks += 1
        flow.rows += table.num_rows
        flow.bytes += table.nbytes
        return table

    def ready(self) -> Callable[..., Any]:
        function = self.op.function
        assert function is not None
        try:
            called = function.ready()
        except Exception as error:
            error.add_note(f"while {function.name} was constructed")
            self.told(error)
            raise
        for name, hooks in (("begin_task", None), ("end_task", self.state.ends)):
            hook = getattr(called, name, None)
            if not callable(hook):
                continue
            if hooks is None:
                hook()
            else:
                hooks[self.number] = hook
        if function.setup_seconds is not None:
            self.state.setup_seconds[self.number] = function.setup_seconds
        return called

    def skip(self, error: Exception, rows: int) -> None:
        """Count a batch whose function failed, and go on without it, unless there were too many.

        Raises
        ------
        Exception
            The error, if it is one too many for this task.
        """
        op, flow = self.op, self.flow
        assert isinstance(op, MapBatches)
        flow.errored_calls += 1
        flow.errored_rows += rows
        if flow.first_error is None:
            flow.first_error = failure_line(error)
        if op.max_errors is not None and flow.errored_calls > op.max_errors:
            error.add_note(f"{flow.errored_calls} batches failed in this task, and max_errors={op.max_errors}")
            self.told(error)
            raise error

    def told(self, error: BaseException) -> None:
        """Note on the error of a user's function where it was raised.

        Raises
        ------
        RuntimeError
            It is a StopIteration, which would look like the end of the rows.
        """
        if isinstance(error, StopIteration):
            raise RuntimeError(f"{self.op.name}, {self.where}: the function raised StopIteration") from error
        note = f"in {self.op.name}, {self.where}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        op = self.op
        if isinstance(op, MapBatches) and isinstance(error, ValueError) and "read-only" in str(error):
            if op.zero_copy:
                remedy = "pass zero_copy=False to map_batches, or work on a copy"
                error.add_note(f"batches are views of the block and cannot be changed in place: {remedy}")
            elif op.batch_format == "pandas":
                error.add_note("pandas hands out views that are read-only: assign to the frame's columns instead")


def _passed(tables: Iterator[pa.Table], schema: Callable[[], pa.Schema | None]) -> Iterator[pa.Table]:
    """Yield the tables that have rows; if none has, one that has none but a schema."""
    given, known = False, None
    for table in tables:
        if table.num_rows:
            given = True
            box = [table]
            table = None
            yield box.pop()
        elif known is None or not len(known):
            known = table.schema
    if not given:
        if known is None or not len(known):
            known = schema() or known
        yield pa.table({}) if known is None else no_rows(known)


def stage_steps(op: Op, number: int, state: TaskState, *, shape: Shape | None) -> list[Step]:
    """Return the steps of one operator.

    Parameters
    ----------
    op
        The operator.
    number
        Index of its stage, from 0.
    state
        Of this attempt of the task.
    shape
        Of the blocks that leave it; ``None``: they are handed on as they are made.
    """
    stage = _Stage(op, number, state, shape)
    if isinstance(op, Read):
        return stage.steps(None, partial(_read, state), stage.out)
    if isinstance(op, MapRows):
        return stage.steps(
            partial(_to_rows, stage), partial(_flat_map if op.flat else _map, stage), partial(_from_rows, stage)
        )
    if isinstance(op, FilterRows):
        return stage.steps(partial(_with_rows, stage), partial(_decide, stage), partial(_keep, stage))
    if isinstance(op, MapBatches):
        prep = partial(_to_batches, stage, op)
        return stage.steps(prep, partial(_call_batches, stage), partial(_from_batches, stage))
    if isinstance(op, Filter):
        return stage.steps(None, partial(_each, partial(filtered, op, state.where), stage), stage.out)
    if isinstance(op, Project):
        return stage.steps(None, partial(_each, partial(projected, op, state.where), stage), stage.out)
    if isinstance(op, Limit):
        return stage.steps(None, partial(_limited, op.rows), stage.out)
    assert isinstance(op, Write)
    part = state.part = sinks.Part(op.sink, state.index, state.where)
    commit = Step(f"{op.name} commit", Phase.FUNCTION_BODY, number, partial(sinks.commit, part), ops=(op.name,))
    return [*stage.steps(partial(sinks.prepare, part), partial(sinks.write, part), None), commit]


# -- blocks ----------------------------------------------------------------------------------------------------------


def _read(state: TaskState, pieces: Iterable[Any]) -> Iterator[pa.Table]:
    return chain.from_iterable(map(partial(_read_piece, state), pieces))


def _read_piece(state: TaskState, piece: Any) -> Iterator[pa.Table]:
    found: Iterator[pa.Table] = piece.read()
    return _read_again(state, piece, found) if state.retried_io_errors else found


def _read_again(state: TaskState, piece: Any, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the blocks of a file, and open it again after some errors: those that were yielded are passed over."""
    given = 0
    for attempt in itertools.count(1):
        try:
            for number, table in enumerate(tables):
                if number >= given:
                    given += 1
                    box = [table]
                    table = None
                    yield box.pop()
            return
        except Exception as error:
            if attempt >= MOST_IO_ATTEMPTS or not may_retry(error, state.retried_io_errors):
                raise
        back_off(attempt)
        tables = piece.read()


def _each(function: Callable[[pa.Table], pa.Table], stage: _Stage, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    return map(function, stage.watched(tables))


def _limited(rows: int, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    left = rows
    for table in tables:
        box = [first_rows(table, left)]
        left -= box[0].num_rows
        table = None
        yield box.pop()
        if left <= 0:
            return


# -- rows ------------------------------------------------------------------------------------------------------------


def _chunks(stage: _Stage, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    return chain.from_iterable(map(partial(row_chunks, rows=CHUNK_ROWS), stage.watched(tables)))


def _to_rows(stage: _Stage, tables: Iterable[pa.Table]) -> Iterator[list[dict[str, Any]]]:
    return map(rows_of, _chunks(stage, tables))


def _map(stage: _Stage, chunks: Iterable[list[dict[str, Any]]]) -> Iterator[list[Mapping[str, Any]]]:
    function = stage.ready()

    def call(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
        try:
            out = [function(row) for row in rows]
        except Exception as error:
            stage.told(error)
            raise
        stage.flow.calls += len(rows)
        _check_rows(stage, out)
        return out

    return map(call, chunks)


def _flat_map(stage: _Stage, chunks: Iterable[list[dict[str, Any]]]) -> Iterator[list[Mapping[str, Any]]]:
    function = stage.ready()

    def call(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
        out: list[Mapping[str, Any]] = []
        try:
            for row in rows:
                found = function(row)
                if isinstance(found, (Mapping, str, bytes)) or not isinstance(found, Iterable):
                    raise DataError(
                        f"{stage.op.name}, {stage.where}: the function returned a {type(found).__name__}: return a "
                        "list of rows (it may be empty), each a dict"
                    )
                out.extend(found)
                stage.flow.calls += 1
        except DataError:
            raise
        except Exception as error:
            stage.told(error)
            raise
        _check_rows(stage, out)
        return out

    return map(call, chunks)


def _check_rows(stage: _Stage, rows: list[Any]) -> None:
    """Refuse what is no row."""
    if {dict}.issuperset(map(type, rows)):
        return
    for row in rows:
        if not isinstance(row, Mapping):
            raise DataError(
                f"{stage.op.name}, {stage.where}: the function returned a {type(row).__name__} ({str(row)[:60]!r}): a "
                'row is a dict of its columns, for example {"x": 1}'
            )


def _from_rows(stage: _Stage, chunks: Iterable[list[Mapping[str, Any]]]) -> Iterator[pa.Table]:
    where = f"{stage.op.name}, {stage.where}"
    return stage.out(map(lambda rows: table_of_rows(rows, where, stage.schema), filter(None, chunks)))


def _with_rows(stage: _Stage, tables: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, list[dict[str, Any]]]]:
    return map(lambda table: (table, rows_of(table)), _chunks(stage, tables))


def _decide(stage: _Stage, chunks: Iterable[Any]) -> Iterator[tuple[pa.Table, list[bool]]]:
    function = stage.ready()

    def call(chunk: tuple[pa.Table, list[dict[str, Any]]]) -> tuple[pa.Table, list[bool]]:
        try:
            kept = [bool(function(row)) for row in chunk[1]]
        except Exception as error:
            stage.told(error)
            raise
        stage.flow.calls += len(kept)
        return chunk[0], kept

    return map(call, chunks)


def _keep(stage: _Stage, chunks: Iterable[tuple[pa.Table, list[bool]]]) -> Iterator[pa.Table]:
    # The rows stay those of Arrow: their types do not go through Python and back.
    return stage.out(map(lambda chunk: chunk[0] if all(chunk[1]) else chunk[0].filter(mask_array(chunk[1])), chunks))


# -- batches ---------------------------------------------------------------------------------------------------------


def _to_batches(stage: _Stage, op: MapBatches, tables: Iterable[pa.Table]) -> Iterator[Any]:
    where = f"{op.name}, {stage.where}"
    cut = batches(stage.watched(tables), op.batch_size, target_bytes=stage.state.batch_bytes, where=where)
    return map(partial(Given, form=op.batch_format, zero_copy=op.zero_copy), cut)


def _call_batches(stage: _Stage, items: Iterable[Given]) -> Iterator[tuple[Any, Given]]:
    function = stage.ready()
    tolerant = isinstance(stage.op, MapBatches) and stage.op.on_error == "skip"

    def call(given: Given) -> Iterator[tuple[Any, Given]]:
        batch = given.take()
        rows = rows_in(batch) if tolerant else 0
        try:
            out = function(batch)
            if isinstance(out, GeneratorType) or (hasattr(out, "__next__") and hasattr(out, "__iter__")):
                if not tolerant:
                    return _drained(stage, out, given)
                # The end of a batch must be known before its beginning is handed on.
                made = [(value, given) for value in out]
                stage.flow.calls += 1
                return hand_over(made)
        except Exception as error:
            if tolerant:
                stage.skip(error, rows)
                return iter(())
            stage.told(error)
            raise
        del batch
        stage.flow.calls += 1
        box = [(out, given)]
        del out
        return hand_over(box)

    return chain.from_iterable(map(call, items))


def _drained(stage: _Stage, generator: Iterator[Any], given: Given) -> Iterator[tuple[Any, Given]]:
    try:
        for value in generator:
            box = [(value, given)]
            del value
            yield box.pop()
    except Exception as error:
        stage.told(error)
        raise
    finally:
        close = getattr(generator, "close", None)
        if close is not None:
            close()
    stage.flow.calls += 1


def _from_batches(stage: _Stage, outputs: Iterable[tuple[Any, Given]]) -> Iterator[pa.Table]:
    return stage.out(map(partial(_table, stage.op.name, stage.where), outputs))


def _table(operator: str, where: str, output: tuple[Any, Given]) -> pa.Table:
    return table_of_batch(output[0], operator, where, output[1])
