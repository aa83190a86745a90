"""One map task, where it runs: pull the chain, keep what comes out, write down what it cost."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from workspan.dataset import sinks
from workspan.dataset.blocks import digest, has_dictionary, whole
from workspan.dataset.expressions import nodes
from workspan.dataset.failures import written_down
from workspan.dataset.record import BlockTimes, StepFigures, TaskRecord, pack, unpack
from workspan.dataset.retry import back_off, may_retry
from workspan.dataset.sources import ArrowPiece
from workspan.dataset.transform import TaskState, step_sizes
from workspan.dataset.within import sections_within
from workspan.errors import ConfigurationError, DataError
from workspan.measure.sections import section
from workspan.steps import TransformClock

if TYPE_CHECKING:
    from workspan.dataset.plan import Operator
    from workspan.dataset.sources import Piece
    from workspan.dataset.within import Sections
    from workspan.grid.block import Block
    from workspan.steps import ChainTimes

__all__ = ["HOLD", "INTERRUPTED", "STOP", "MapTask", "Mode", "replace_file"]

Mode = Literal["keep", "drop", "write"]
"""What becomes of the blocks: Arrow files for the driver or the next operator, nothing, or what a sink makes."""

HOLD = "hold"
"""Name of the file that is there while the consumer has enough."""

STOP = "stop"
"""Name of the file that is there when nobody wants the results any more."""

INTERRUPTED = "interrupted"
"""Name of the file that is there when the run has been told to end: what goes on may be done, but not tried again."""

_HOLD_SECONDS = 0.005
_LOOK_SECONDS = 0.1

_MODULES = {
    "ReadParquet": "pyarrow.parquet",
    "WriteParquet": "pyarrow.parquet",
    "ReadCSV": "pyarrow.csv",
    "WriteCSV": "pyarrow.csv",
    "ReadJSON": "pyarrow.json",
    "WriteJSON": "json",
}


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class MapTask:
    """The block function of an operator: block *i* is its *i*-th task.

    Parameters
    ----------
    operator
        What is done.
    bundles
        What each task reads; ``None``: the results of the operator before, which are in *upstream*.
    mode
        What becomes of the blocks.
    folder
        Where record and result of each task are put.
    upstream
        Folder of the operator before.
    """

    def __init__(
        self,
        operator: Operator,
        bundles: tuple[tuple[Piece, ...], ...] | None,
        mode: Mode,
        folder: Path,
        upstream: Path | None,
    ) -> None:
        self.operator = operator
        self.bundles = bundles
        self.mode = mode
        self.folder = folder
        self.upstream = upstream
        self._place = folder.parent
        self.patience = inf
        """Seconds after which a task goes on although it is not wanted yet."""
        self.raised: dict[int, BaseException] = {}
        """Task -> what it raised, where that was in this process."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "raised": {}}

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """What a worker loads for this."""
        names = (_MODULES[op.name] for op in self.operator.ops if op.name in _MODULES)
        return (__name__, *dict.fromkeys(names))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Come into being in a worker: what the steps import is part of its start, and not of its first block."""
        self.__dict__.update(state)
        for op in self.operator.ops:
            if op.name in _MODULES:
                import_module(_MODULES[op.name])
            elif getattr(op, "expression", None) is not None:
                nodes()

    def __call__(self, block: Block) -> None:
        """Run one task.

        Raises
        ------
        ConfigurationError
            The folder of the results is not to be seen here; nothing was done.
        """
        if not os.path.isdir(self.folder):
            # On a cluster without a shared file system; before the work and not after it.
            raise ConfigurationError(
                f"the folder of the dataset's results, {str(self._place)!r}, cannot be seen on {platform.node()}: "
                "give a tracking_path on a file system that the driver and all workers share"
            )
        assert block.index is not None  # as its ROIs are made by a library that a worker need not load
        index = block.index
        held = self._wait_until_wanted()
        try:
            self.check_wanted()
            record = _Run(self, index).all()
            record.held_seconds = held
        except _Unwanted:
            raise
        except Exception as error:
            self.raised[index] = error
            replace_file(self.folder / f"{index}.error", written_down(error))
            raise
        replace_file(self.folder / f"{index}.record", pack(record))

    def _wait_until_wanted(self) -> float:
        """Wait while the consumer, or the next operator, has enough; that is time of no step of the chain."""
        begin = time.perf_counter()
        if not self._is_held():
            return 0.0
        with section("waiting for the consumer"):
            while self._is_held() and time.perf_counter() - begin < self.patience:
                time.sleep(_HOLD_SECONDS)
        return time.perf_counter() - begin

    def _is_held(self) -> bool:
        folder, place = self.folder, self._place
        held = os.path.exists(f"{place}/{HOLD}") or os.path.exists(f"{folder}/{HOLD}")
        return held and not os.path.exists(f"{place}/{STOP}")

    def check_wanted(self, *more: str) -> None:
        """End the task if nobody wants its result any more, or one of the files *more* is there."""
        if any(os.path.exists(f"{self._place}/{name}") for name in (STOP, *more)):
            raise _Unwanted("nobody wants the result any more")

    def where(self, index: int) -> str:
        """Return what a task is called in messages."""
        if self.bundles is None:
            return f"block {index}"
        bundle = self.bundles[index]
        return f"block {index} ({bundle[0].label}{' and others' if len(bundle) > 1 else ''})"

    def inputs(self, index: int) -> list[Piece]:
        """Return what a task reads.

        Raises
        ------
        DataError
            What the operator before has left is not there any more: its rows must not be taken for none.
        """
        if self.bundles is not None:
            return list(self.bundles[index])
        assert self.upstream is not None
        found: list[Piece] = list(result_pieces(self.upstream, index))
        expected = unpack((self.upstream / f"{index}.record").read_bytes()).files
        if len(found) < expected:
            raise DataError(
                f"{self.operator.name}, {self.where(index)}: {len(found)} of {expected} files with the result of the "
                f"operator before are in {str(self.upstream)!r}: delete the tracking_path and the output, and begin "
                "anew"
            )
        return found


def result_pieces(folder: Path, index: int) -> Iterator[ArrowPiece]:
    """Yield the files with the result of a task, in order."""
    number = 0
    while (path := folder / f"{index}.{number}.arrow").exists():
        yield ArrowPiece(f"result {index}", None, str(path))
        number += 1


class _Unwanted(Exception):
    """Nobody wants the result any more."""


class _Run:
    """One run of one task, with all of its attempts."""

    def __init__(self, task: MapTask, index: int) -> None:
        self._task = task
        self._index = index
        self._anchor = time.time() - time.perf_counter()
        self._blocks: list[BlockTimes] = []
        self._failed = self._replayed = self._backoff = 0.0
        self._state = TaskState()
        self._rows_in = self._blocks_in = self._bytes_in = 0
        self._statistics: list[Any] = []
        self._digests: list[bytes] = []
        """Of the blocks that were delivered, if replays are compared by content."""

    def all(self) -> TaskRecord:
        task, operator = self._task, self._task.operator
        begin = time.perf_counter()
        keeper = _Keeper(task.folder, self._index) if task.mode == "keep" else None
        most, patterns = operator.retries
        labels = [step.label for step in operator.steps()]
        attempt = 1
        try:
            while True:
                options = operator.options
                before = sections_within(labels) if attempt > 1 else None
                clock = TransformClock(cpu=options.step_cpu, sizes=step_sizes if options.step_sizes else False)
                try:
                    times, trailing, written = self._attempt(attempt, clock, keeper)
                    break
                except Exception as error:
                    if self._state.part is not None:
                        sinks.discard(self._state.part)
                    if isinstance(error, _Unwanted) or most == 0 or not may_retry(error, patterns):
                        raise
                    if attempt > most:
                        error.add_note(
                            f"given up after {attempt} attempts and {self._backoff:.1f} s of waiting "
                            f"(max_map_retries={most}, retried_map_errors={patterns!r})"
                        )
                        raise
                    self._back_off(attempt)
                    attempt += 1
            with self._disk():
                files = keeper.finish() if keeper is not None else 0
        finally:
            if keeper is not None:
                keeper.close()
        figures, wall = _figures(times, sections_within(labels, before)), time.perf_counter() - begin
        part = self._state.part
        return TaskRecord(
            index=self._index,
            node=platform.node(),
            pid=os.getpid(),
            started_at=self._anchor + begin,
            wall_seconds=wall,
            blocks=self._blocks,
            trailing_ns=trailing,
            steps=figures,
            flows=self._state.flows,
            blocks_in=self._blocks_in,
            rows_in=None if operator.reads else self._rows_in,
            fetch_seconds=times.input_fetch_s or 0.0,
            setup_seconds=[self._state.setup_seconds.get(number) for number in range(len(operator.ops))],
            attempts=attempt,
            failed_seconds=self._failed,
            replayed_seconds=self._replayed,
            backoff_seconds=self._backoff,
            clamped_ns=times.clamped_ns,
            overhead_seconds=times.overhead_s if times.measured else None,
            files=files,
            written=written,
            statistics=self._statistics,
            bytes_in=None if operator.reads else self._bytes_in,
            schema=None if part is None or part.schema is None else part.schema.serialize().to_pybytes(),
        )

    def _attempt(
        self, attempt: int, clock: TransformClock, keeper: _Keeper | None
    ) -> tuple[ChainTimes, list[int] | None, tuple[str, int, int | None] | None]:
        """Run the chain once, from its inputs on; what was delivered by an attempt before is made again and dropped."""
        task, operator = self._task, self._task.operator
        state = self._state = TaskState(self._index, task.where(self._index))
        steps = operator.steps(state)
        self._rows_in = self._blocks_in = self._bytes_in = 0
        inputs = task.inputs(self._index)
        source = inputs if operator.reads else self._counted(inputs)
        self._blocks_in = len(inputs) if operator.reads else 0
        items = clock.chain(steps, source, timed=operator.timed)
        delivered, number, written = len(self._blocks), 0, None
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            while True:
                try:
                    item = next(items)
                except StopIteration:
                    break
                ready, used = time.perf_counter(), time.process_time()
                times = clock.drain()
                if isinstance(item, sinks.Written):
                    written = (item.name, item.rows, item.size_bytes)
                rows, size = (item.rows, item.size_bytes or 0) if written else (item.num_rows, item.nbytes)
                if number < delivered:
                    self._replayed += ready - begin
                    self._check_replay(number, rows, attempt)
                    self._check_content(number, item, attempt)
                else:
                    self._note_content(item)
                    if keeper is not None:
                        with self._disk():
                            keeper.write(item)
                    kept = time.perf_counter()
                    self._blocks.append(
                        BlockTimes(
                            self._anchor + begin,
                            ready - begin,
                            used - cpu,
                            rows,
                            size,
                            kept - ready,
                            attempt,
                            list(times.step_ns) if times.measured else None,
                        )
                    )
                number += 1
                item = None
                task.check_wanted()
                begin, cpu = time.perf_counter(), time.process_time()
        except BaseException:
            self._failed += time.perf_counter() - begin
            raise
        finally:
            items.close()
        if number < delivered:
            self._check_replay(number, None, attempt)
        self._statistics = state.end_task()
        last = clock.drain()
        return clock.total(), list(last.step_ns) if last.measured else None, written

    def _disk(self) -> Any:
        """Note on errors of the disk whose result was kept, and where."""
        task = self._task
        return sinks.disk(
            f"the result of {task.operator.name}, {task.where(self._index)}, was kept in {task.folder}",
            "set TMPDIR, or tracking_path where there is one, to a folder on another disk",
        )

    def _counted(self, inputs: list[Piece]) -> Iterator[Any]:
        for piece in inputs:
            yield _CountedPiece(self, piece)

    def _check_replay(self, number: int, rows: int | None, attempt: int) -> None:
        """Refuse an attempt that makes other blocks than the one before."""
        expected = self._blocks[number].rows
        if rows != expected:
            made = "none" if rows is None else f"{rows:,} rows"
            raise DataError(
                f"{self._task.operator.name}, {self._state.where}: attempt {attempt} made {made} as block {number} and "
                f"an attempt before {expected:,}, so it cannot take over: retries need functions that do the same"
            )

    def _note_content(self, item: Any) -> None:
        options = self._task.operator.options
        if options.replay_check == "content" and self._task.operator.retries[0] and not isinstance(item, sinks.Written):
            self._digests.append(digest(item))

    def _check_content(self, number: int, item: Any, attempt: int) -> None:
        """Refuse an attempt whose blocks have other values."""
        if number < len(self._digests) and digest(item) != self._digests[number]:
            raise DataError(
                f"{self._task.operator.name}, {self._state.where}: attempt {attempt} made other values in block "
                f"{number} than an attempt before, so it cannot take over: retries need functions that do the same"
            )

    def _back_off(self, attempt: int) -> None:
        begin = time.perf_counter()
        back_off(attempt, self._sleep)
        self._backoff += time.perf_counter() - begin

    def _sleep(self, seconds: float) -> None:
        """Sleep, and end the task when it is not to be tried again."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
            self._task.check_wanted(INTERRUPTED)


class _CountedPiece:
    """A piece of which it is counted what it gives."""

    __slots__ = ("_piece", "_run")

    def __init__(self, run: _Run, piece: Piece) -> None:
        self._run, self._piece = run, piece

    def read(self) -> Iterator[Any]:
        return map(self._count, self._piece.read())

    def _count(self, table: Any) -> Any:
        self._run._blocks_in += 1
        self._run._rows_in += table.num_rows
        self._run._bytes_in += table.nbytes
        return table


def _figures(times: ChainTimes, sections: Sections) -> list[StepFigures]:
    out = []
    for step, within in zip(times.steps, sections, strict=False):  # with timing off there are no times
        found = step.latency
        latency = None
        if found.n and found.min_s is not None and found.max_s is not None:
            latency = (found.n, found.min_s, found.max_s, found.sketch.levels)
        first = step.first_item_s
        sized = (step.rows, step.nbytes, within)
        out.append(StepFigures(step.pulls, step.items, first, step.overlapped, latency, step.cpu_ns, *sized))
    return out


class _Keeper:
    """Keeps blocks in Arrow files that can be mapped: one file, and another whenever the schema changes.

    A column of a dictionary can have only one in a file, so that with such columns each block is a file.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self._folder, self._index = folder, index
        self._paths: list[Path] = []
        self._writer: Any = None
        self._schema: pa.Schema | None = None

    def write(self, table: pa.Table) -> None:
        if self._writer is None or table.schema != self._schema or has_dictionary(table.schema):
            self._end_file()
            table = whole(table)
            path = self._folder / f".{self._index}.{len(self._paths)}.{os.getpid()}.part"
            self._paths.append(path)
            self._schema = table.schema
            self._writer = pa.ipc.new_file(str(path), table.schema)
        # One batch a block, so that the consumer gets the very blocks.
        self._writer.write_table(table.combine_chunks())

    def _end_file(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def finish(self) -> int:
        """Let the files appear; return how many there are."""
        self._end_file()
        for number, path in enumerate(self._paths):
            os.replace(path, self._folder / f"{self._index}.{number}.arrow")
        return len(self._paths)

    def close(self) -> None:
        """Remove what did not appear."""
        with suppress(Exception):
            self._end_file()
        for path in self._paths:
            path.unlink(missing_ok=True)
