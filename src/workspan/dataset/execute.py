"""Run a plan: the tasks of each operator are the blocks of a 1-d task, and the operators a pipeline of such tasks.

So a dataset has the scheduler, the engines, the retries after losses, the tracking store and the report of every other
run. Task *i* of an operator waits for task *i* of the operator before, and for nothing else.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workspan.dataset.blocks import clash, is_guess, no_rows
from workspan.dataset.failures import map_error
from workspan.dataset.figures import Tally
from workspan.dataset.forecast import BundleRows, operator_mark, rows_of_bundles, task_id_of
from workspan.dataset.inputs import Inputs
from workspan.dataset.manifest import Manifest
from workspan.dataset.ops import MapBatches, Write
from workspan.dataset.pace import Pace, Paced
from workspan.dataset.plan import bundled
from workspan.dataset.record import pack
from workspan.dataset.results import Place, drop_result, read_record
from workspan.dataset.runs import Enough, OperatorRun
from workspan.dataset.sinks import write_empty
from workspan.dataset.sources import ArrowPiece, MemoryPiece
from workspan.dataset.task import HOLD, INTERRUPTED, STOP, MapTask, replace_file, result_pieces
from workspan.dataset.tracked import check_free, open_plan
from workspan.errors import ConfigurationError, DataError, MapError, TrackingError, UsageTypeError
from workspan.run.orders import in_force
from workspan.run.pipeline import Pipeline
from workspan.run.runner import choose_engine, execute
from workspan.run.task import Task

if TYPE_CHECKING:
    from workspan.dataset.manifest import Existing
    from workspan.dataset.plan import Plan, Segment
    from workspan.dataset.record import TaskRecord
    from workspan.dataset.sources import Piece
    from workspan.dataset.stats import OperatorMetrics
    from workspan.dataset.task import Mode
    from workspan.run.session import Session
    from workspan.schedule.spec import TaskSpec

__all__ = ["Execution", "RunOptions"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a dataset is executed: as :func:`workspan.run_blockwise` takes it."""

    engine: Any = None
    max_workers: int | None = None
    tracking_path: str | os.PathLike[str] | None = None
    resource_tracking: bool = False
    progress: Any = False
    resources: Mapping[str, int] | None = None
    timeout: Any = None

    @property
    def patience(self) -> float:
        """Seconds that a task may wait until it is wanted: that is time of its deadline too, of which half is left."""
        timeout = self.timeout
        if timeout is None:
            return inf
        return 0.5 * (timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout))

    @property
    def workers(self) -> int:
        """Most workers of an operator that asks for no number."""
        if self.max_workers is not None:
            return self.max_workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OperatorTask(Task):
    """A task that tries again what was lost, and not what its function refused."""

    takes_orders = False  # they are in the options already

    def __init__(self, execution: Execution, run: OperatorRun, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._execution, self._run = execution, run

    def history_marks(self) -> tuple[str | None, str | None]:
        """Return what tells this operator and the sizes of its tasks from others: not where its results are."""
        return operator_mark(self._run.operator), self._run.sizes.mark

    def check_outputs(self, done: Any, *, fresh: bool) -> None:
        """Look for the results of tasks that were done before."""
        if done is None:
            return
        indices = done.ravel().nonzero()[0].tolist()
        self._execution.check_done(self._run, indices)

    def spec(self) -> TaskSpec:
        return replace(super().spec(), retries_errors=False)


class Execution:
    """One execution of a plan.

    Parameters
    ----------
    plan
        What runs.
    options
        How.
    mode
        What becomes of the blocks of the last operator.
    """

    def __init__(self, plan: Plan, options: RunOptions, mode: Mode, existing: Existing = "refuse") -> None:
        if options.tracking_path is not None and not isinstance(options.tracking_path, (str, os.PathLike)):
            kind = type(options.tracking_path).__name__
            raise UsageTypeError(f"tracking_path={options.tracking_path!r} is a {kind}: pass a folder")
        options = _as_ordered(plan, options, mode)
        self.plan = plan
        self.options = options
        self.mode: Mode = mode
        tracking = options.tracking_path
        self.tracking = None if tracking is None else Path(tracking).absolute()
        if self.tracking is not None:
            check_free(self.tracking, plan)
        self.place = Place(None if self.tracking is None else self.tracking / "blocks")
        for name in (HOLD, STOP, INTERRUPTED):
            (self.place.path / name).unlink(missing_ok=True)
        choose_engine(options.engine, True)  # a name that is not known is refused before anything is touched
        op = plan.operators[-1].ops[-1]
        if isinstance(op, Write) and existing == "overwrite":
            _check_apart(plan, op.sink.folder)
        run_id = open_plan(self.tracking, plan, mode)
        self.manifest = Manifest(op.sink, run_id, existing) if isinstance(op, Write) else None
        self.runs: list[OperatorRun] = []
        self.on_result: Callable[[int, bool], Any] = lambda index, done: None
        """Called with every task of the last operator that is done or given up, in the thread of the run."""
        self.backpressure: Callable[[], float | None] = lambda: None
        """For how long the last operator has waited for whoever takes its results; ``None``: nobody takes them."""
        self.stop = Event()
        self._errored: dict[tuple[int, int], int] = {}
        self._refused: DataError | None = None
        self._reading = Lock()
        self.inputs = Inputs(self.place.path / "input")
        self.scheduling = Tally()
        """What was done between two waits for something to happen, in seconds."""
        self.began_at: float | None = None
        """In seconds since the epoch; ``None``: it has not."""
        self.driver_seconds: float | None = None
        """Wall time of the execution in this process; ``None``: it has not ended."""

    def run(self) -> None:
        """Run all segments.

        Raises
        ------
        MapError
            A function raised in a worker process; in this process its exception is raised as it is.
        """
        begin, self.began_at = time.perf_counter(), time.time()
        try:
            self._run_segments()
        finally:
            self.driver_seconds = time.perf_counter() - begin

    def _run_segments(self) -> None:
        bundles: list[tuple[Piece, ...]] = list(self._first_bundles())
        rows = self.plan.source.rows
        for number, segment in enumerate(self.plan.segments):
            last = number == len(self.plan.segments) - 1
            runs = self._prepare(segment, bundles, self.mode if last else "keep", rows)
            self.runs += runs
            self._run_segment(segment, runs, last)
            if not last:
                bundles = self._cut(runs[-1], segment.limit)
                rows = None
        if self.manifest is not None:
            self._settle_columns(self.runs[-1])
            self.manifest.finish()

    def _settle_columns(self, run: OperatorRun) -> None:
        """Write a file without rows where no task has written any, and tell of files that do not go together.

        A reader of what had no rows finds the columns, and not nothing.
        """
        assert self.manifest is not None
        records = run.records()
        schemas = {record.schema: record for record in records if record.schema is not None and record.written}
        if len(schemas) > 1:
            empty = [no_rows(_schema(data)) for data in schemas]
            try:
                pa.unify_schemas([table.schema for table in empty], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                names = [record.written[0] for record in schemas.values() if record.written]
                warnings.warn(f"{', '.join(names[:5])}: {clash(empty)}", UserWarning, stacklevel=7)
        if any(record.written is not None for record in records):
            return
        found = [_schema(record.schema) for record in records if record.schema is not None]
        known = [schema for schema in found if not is_guess(no_rows(schema))] or found
        if known:
            op = run.operator.ops[-1]
            assert isinstance(op, Write)
            made = write_empty(op.sink, known[0])
            records[0].written = made.name, made.rows, made.size_bytes
            replace_file(run.folder / f"{records[0].index}.record", pack(records[0]))
            self.manifest.note(records[0])

    def metrics(self) -> tuple[OperatorMetrics, ...]:
        """Return how far each operator has come; the tasks that have finished since the last call are read now."""
        with self._reading:
            parent = self.plan.source.parent
            first = 0 if parent is None else parent.summary.depth
            found: list[OperatorMetrics] = []
            for run in list(self.runs):
                found.append(run.metrics(first, found[-1].summary.rows_out if found else None))
            return tuple(found)

    def check_done(self, run: OperatorRun, indices: list[int]) -> None:
        """Take note of what was done before, and refuse to go on where that is gone."""
        run.skipped = tuple(indices)
        records = {index: record for index in indices if (record := read_record(run.folder, index)) is not None}
        gone = [index for index in indices if index not in records]
        last = run.operator is self.plan.operators[-1]
        if last and self.manifest is not None:
            gone = self.manifest.missing(indices, records)
            for record in records.values():
                self.manifest.note(record)
        if gone:
            raise TrackingError(
                f"{run.operator.name}: {len(gone)} of {len(indices)} tasks that were done before have no result any "
                f"more (task {gone[0]} for example): delete {str(self.tracking)!r} and the output, and begin anew"
            )
        for index in indices if last else ():  # whoever takes them one by one waits for them too
            self.on_result(index, True)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _first_bundles(self) -> list[tuple[Piece, ...]]:
        pieces: tuple[Piece, ...] = self.plan.source.pieces
        if self._has_workers():
            pieces = tuple(self.inputs.promise(str(number), piece) for number, piece in enumerate(pieces))
        bundles = bundled(pieces, self.plan.operators[0].batch_rows)
        self.inputs.are_of(bundles)
        return bundles

    def _has_workers(self) -> bool:
        engine = self.options.engine
        return engine != "serial" if isinstance(engine, str) or engine is None else bool(engine.has_workers)

    def _prepare(
        self, segment: Segment, bundles: list[tuple[Piece, ...]], mode: Mode, rows: int | None
    ) -> list[OperatorRun]:
        runs: list[OperatorRun] = []
        sizes = BundleRows(rows_of_bundles(bundles))
        for operator in segment.operators:
            last = operator is segment.operators[-1]
            folder = self.place.folder(operator.slug)
            for stale in (*folder.glob("*.error"), *folder.glob(".*.part"), folder / HOLD):  # of a run that was killed
                stale.unlink(missing_ok=True)
            upstream = runs[-1].folder if runs else None
            function = MapTask(operator, None if runs else tuple(bundles), mode if last else "keep", folder, upstream)
            function.patience = self.options.patience
            source_rows = None if runs else rows
            made = OperatorRun(operator, folder, function, len(bundles), source_rows, sizes, began_at=self.began_at)
            runs.append(made)
        return runs

    # -- one segment --------------------------------------------------------------------------------------------------

    def _run_segment(self, segment: Segment, runs: list[OperatorRun], last: bool) -> None:
        options = self.options
        tasks = [self._task(run) for run in runs]
        pipeline = Pipeline(tasks, [(tasks[i], tasks[i + 1]) for i in range(len(tasks) - 1)])
        by_id = {task.task_id: number for number, task in enumerate(tasks)}
        tolerant = [
            any(isinstance(op, MapBatches) and op.max_errors is not None for op in r.operator.ops) for r in runs
        ]
        enough = Enough(runs[-1], segment.limit)
        # As much as keeps the workers of the next operator busy. In this process tasks take turns by themselves, and
        # one that waited for another would wait for ever.
        is_free = not self._has_workers()
        pace = Pace([r.folder for r in runs], [inf if is_free else 2 * self._workers_of(r) + 2 for r in runs[1:]])
        stop = self.stop if segment.limit is None else Event()

        def listen(task_id: str, index: int, done: bool) -> None:
            number = by_id[task_id]
            if done:
                runs[number].fresh[index] = time.time()
                pace.came(number)
                if tolerant[number] and self._has_too_many(runs[number], index):
                    (self.place.path / STOP).touch()
                    stop.set()
                if number:  # with a tracking_path too: the task that used it is done, and will not run again
                    drop_result(runs[number - 1].folder, index)
            if number:
                pace.went(number - 1)
            if number == len(runs) - 1:
                if last and done and self.manifest is not None:
                    self.manifest.note(_finished(runs[-1], index))
                if last:
                    self.on_result(index, done)
                if enough.reached():
                    (self.place.path / STOP).touch()
                    stop.set()

        def begin(session: Session) -> None:
            session.record.listener = listen
            session.on_stopping = (self.place.path / INTERRUPTED).touch
            for number, run in enumerate(runs):
                run.results_waiting = partial(pace.waiting, number)
                run.backpressure = partial(pace.held, number)
                run.state = session.states[tasks[number].task_id]
            if last:
                runs[-1].backpressure = self.backpressure
            elif segment.limit is not None:
                runs[-1].backpressure = lambda: None
            sessions.append(session)

        if enough.reached():  # by tasks of an earlier run
            for record in runs[-1].records() if last else ():
                self.on_result(record.index, True)
            return
        sessions: list[Session] = []
        engine = choose_engine(options.engine, True)
        assert engine is not None
        paced = Paced(engine, pace, self.scheduling, self.inputs)
        try:
            execute(
                pipeline,
                paced,
                resources=options.resources,
                progress=options.progress,
                block_tracking=self.tracking is not None,
                summary=False,
                stop_event=stop,
                on_start=begin,
            )
        finally:
            pace.close()
            if segment.limit is not None:
                for name in (STOP, INTERRUPTED):
                    (self.place.path / name).unlink(missing_ok=True)
            for run in runs:
                run.report = sessions[0].report if sessions else None
        if segment.limit is None or not enough.is_reached:
            self._raise_failures(runs)

    def _has_too_many(self, run: OperatorRun, index: int) -> bool:
        """Whether more batches have failed, in all tasks together, than an operator tolerates."""
        record = _finished(run, index)
        for stage, op in enumerate(run.operator.ops):
            if not isinstance(op, MapBatches) or op.max_errors is None or not record.flows[stage].errored_calls:
                continue
            key = run.operator.number, stage
            count = self._errored[key] = self._errored.get(key, 0) + record.flows[stage].errored_calls
            if count > op.max_errors and self._refused is None:
                self._refused = DataError(
                    f"{op.name}: {count} batches failed, and max_errors={op.max_errors}; the last in "
                    f"{run.function.where(index)}: {record.flows[stage].first_error}"
                )
        return self._refused is not None

    def _task(self, run: OperatorRun) -> Task:
        from funlib.geometry import Roi

        operator, options = run.operator, self.options
        return _OperatorTask(
            self,
            run,
            task_id_of(operator),
            Roi((0,), (run.count,)),
            Roi((0,), (1,)),
            Roi((0,), (1,)),
            run.function,
            read_write_conflict=False,
            fit="valid",
            max_workers=self._workers_of(run),
            timeout=inf if options.timeout is None else options.timeout,
            tracking_path=False if self.tracking is None else self.tracking / operator.slug,
            resource_tracking=options.resource_tracking,
            requires=operator.requires,
            n_ref=run.sizes,
        )

    def _workers_of(self, run: OperatorRun) -> int:
        """Return the most workers of an operator: in this process one, so that operators take turns."""
        if not self._has_workers():
            return 1
        asked = run.operator.concurrency
        return min(self.options.workers if asked is None else asked, run.count)

    def _raise_failures(self, runs: list[OperatorRun]) -> None:
        """Raise the first failure, if there is any, with the report of the run."""
        try:
            self._look_for_failures(runs)
        except Exception as error:
            with suppress(Exception):  # a user's exception may refuse attributes
                error.run_report = runs[0].report  # type: ignore[attr-defined]
            raise

    def _look_for_failures(self, runs: list[OperatorRun]) -> None:
        if self._refused is not None:
            raise self._refused
        for run in runs:
            if run.function.raised:
                raise run.function.raised[min(run.function.raised)]
            errors = sorted(run.folder.glob("*.error"), key=lambda path: int(path.stem))
            if errors:
                raise map_error(errors[0].read_bytes(), len(errors))
        if self.stop.is_set():
            return
        for run in runs:
            report = None if run.report is None else run.report.tasks.get(task_id_of(run.operator))
            if report is not None and report.outcome != "completed":
                first = report.failed_blocks[0] if report.failed_blocks else None
                told = "" if first is None else f"; {run.function.where(first.cell[0])}: {first.error}"
                missing = report.blocks.total - report.blocks.count
                raise MapError(
                    "Incomplete", f"{run.operator.name}: {missing} of {report.blocks.total} tasks not done{told}"
                )

    def _cut(self, run: OperatorRun, limit: int | None) -> list[tuple[Piece, ...]]:
        """Return the results of a segment as what the next one reads: the first *limit* rows."""
        assert limit is not None
        bundles: list[tuple[Piece, ...]] = []
        left = limit
        schema: pa.Schema | None = None
        for index in range(run.count):
            record = read_record(run.folder, index)
            if record is None or (left <= 0 and schema is not None):
                break
            pieces: list[Piece] = []
            for piece in result_pieces(run.folder, index):
                table = next(piece.read())
                schema = table.schema if schema is None else schema
                rows = min(left, table.num_rows)
                left -= rows
                if rows:
                    pieces.append(ArrowPiece(piece.label, rows, piece.path, rows))
            if pieces:
                bundles.append(tuple(pieces))
        if not bundles:
            empty = pa.table({}) if schema is None else no_rows(schema)
            none: Piece = MemoryPiece("no rows", 0, empty)
            none = self.inputs.promise(f"after-{run.operator.number}", none) if self._has_workers() else none
            bundles.append((none,))
        self.inputs.are_of(bundles)
        return bundles


def _as_ordered(plan: Plan, options: RunOptions, mode: Mode) -> RunOptions:
    """Return *options* as changed by whoever started the program; only what is written is tracked."""
    asked = in_force()
    if asked is None:
        return options
    asked.before(plan)
    asked.datasets += 1
    tracking = asked.tracking if mode == "write" and asked.tracking is not None else options.tracking_path
    return replace(
        options,
        engine=options.engine if asked.engine is None else asked.engine,
        max_workers=options.max_workers if asked.max_workers is None else asked.max_workers,
        tracking_path=tracking,
    )


def _check_apart(plan: Plan, folder: str) -> None:
    """Refuse to remove what is going to be read, by whichever name it is reached."""
    real = os.path.realpath(folder)
    for piece in plan.source.pieces:
        path = getattr(piece, "path", "")
        if path.startswith(f"{folder}/") or os.path.realpath(path).startswith(f"{real}/"):
            raise ConfigurationError(
                f"existing='overwrite' would remove {path!r}, which this dataset reads: write to another folder"
            )


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _finished(run: OperatorRun, index: int) -> TaskRecord:
    record = read_record(run.folder, index)
    if record is None:
        raise TrackingError(f"{run.operator.name}: task {index} is done, and its record is not in {str(run.folder)!r}")
    return record
