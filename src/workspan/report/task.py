"""The record of a run: one value a task and one for the pipeline, the same in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from workspan.errors import InvalidMetadataError, NoStoreError, NotInReportError
from workspan.grid.block import Block
from workspan.grid.layout import pyramid_cell
from workspan.report._value import Value, check
from workspan.report.parts import BlockFailure, BlocksSummary, StepSummary, TaskPlace, WorkerRecord, WorkersSummary

if TYPE_CHECKING:
    from workspan.report.frames import Kind
    from workspan.report.windows import Window
    from workspan.store.reader import StoreReader
    from workspan.store.records import BlockRecord

SCHEMA = 1
"""Version of the JSON form. 1: the first one."""


class _Report(Value):
    """A value that says on disk which version of the form it has."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **super().to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        schema = check(data, dict, cls.__name__).get("schema")
        if type(schema) is not int or schema < 1:
            raise InvalidMetadataError(f"not a {cls.__name__}: 'schema' is {schema!r} where a version number should be")
        if schema > SCHEMA:
            raise InvalidMetadataError(
                f"a {cls.__name__} of schema {schema}, but this version of Workspan reads up to {SCHEMA}: upgrade it"
            )
        return super().from_json(data)


@dataclass(frozen=True, slots=True, repr=False)
class TaskReport(_Report):
    """One task in one run: how far it came and what it cost."""

    run_id: str
    task_id: str
    started_at: float
    """Begin of the run, in seconds since the epoch."""
    ended_at: float
    """``started_at + wall_seconds``."""
    wall_seconds: float
    """From the begin of the run until all workers had ended, on the monotonic clock."""
    outcome: str
    """``"completed"``, ``"incomplete"``, ``"abandoned"``, ``"interrupted"`` or ``"error"``; ``"running"`` where it was
    put together from the store of a run that goes on."""
    resource_tracking: bool
    """The workers measured what each block cost."""
    tracking_path: str | None
    """Folder of the tracking store; ``None``: the run had none."""
    blocks: BlocksSummary
    workers: WorkersSummary
    steps: dict[str, StepSummary] = field(default_factory=dict)
    """Name -> cost of the step, in the order in which they were first seen."""
    work_seconds: float | None = None
    """Sum of the time of all executed blocks, in seconds; ``None``: none was executed."""
    work_basis: str | None = None
    """What :attr:`work_seconds` sums: ``"wall"`` (the workers' own measurement), ``"round trip"`` (the driver's,
    without resource tracking) or ``"call"`` (without workers)."""
    failed_blocks: tuple[BlockFailure, ...] = ()
    """The first blocks that failed; :attr:`BlocksSummary.failed` counts all."""
    span_seconds: float | None = None
    """Longest chain of this task's executed blocks that had to run one after the other, in seconds, on the basis
    :attr:`work_basis`; ``None``: not measured."""
    place: TaskPlace | None = None
    """Where the task stood in its run; ``None`` in lines of versions that did not record it."""

    @property
    def work(self) -> float | None:
        """What the blocks of this run cost together, in seconds: the time of one worker that never waits.

        Retries count with the attempt that succeeded, skipped blocks not at all. ``None``: nothing was executed.
        """
        return self.work_seconds

    @property
    def span(self) -> float | None:
        """Seconds that no number of workers could have saved: the longest chain of blocks that wait for each other.

        Only waiting inside the task counts; :attr:`RunReport.span` is that of all tasks. ``None``: not measured.
        """
        return self.span_seconds

    @property
    def parallelism(self) -> float | None:
        """Work over span: beyond so many workers the task cannot get faster. ``None``: not measured."""
        return _ratio(self.work_seconds, self.span_seconds)

    @property
    def has_room_for_workers(self) -> bool:
        """Whether the blocks' dependencies let at least twice the workers of this run work at once.

        That is what the blocks allow; whether disks and memory do is not known here.
        """
        return bool(self.workers.count) and (self.parallelism or 0.0) >= 2 * self.workers.count

    def worker(self, id: int) -> WorkerRecord:
        """Return the record of one worker.

        Raises
        ------
        NotInReportError
            No worker of this task had that id.
        """
        for record in self.workers.records:
            if record.id == id:
                return record
        known = ", ".join(str(record.id) for record in self.workers.records[:10]) or "none"
        raise NotInReportError(
            f"task {self.task_id!r} had no worker {id!r}: the ids of its {self.workers.count} are {known}"
        )

    def block(self, coord: Sequence[int] | Block) -> BlockRecord | None:
        """Look up one block in the tracking store, as the store is now.

        Parameters
        ----------
        coord
            Position in the tracking grid, or a block of this task.

        Returns
        -------
        BlockRecord | None
            ``None`` if the block was never executed.

        Raises
        ------
        BlockNotFoundError
            *coord* is outside the tracking grid.
        NoStoreError
            The task has no tracking store, or it is gone.
        """
        store = self.open_store()
        if isinstance(coord, Block):
            coord = pyramid_cell(coord.block_id[1], len(store.cell_counts))
        return store.block(coord)

    def block_records(self) -> list[BlockRecord]:
        """List every recorded block, in C order of the tracking grid, as the store is now.

        Raises
        ------
        NoStoreError
            The task has no tracking store, or it is gone.
        """
        return list(self.open_store().block_records())

    def to_frame(self, kind: Kind = "arrow") -> Any:
        """Return every recorded block as a table, a row a block in C order of the tracking grid, as the store is now.

        Parameters
        ----------
        kind
            ``"arrow"``: a ``pyarrow.Table``; ``"pandas"``: a ``pandas.DataFrame`` of nullable types.

        Returns
        -------
        pyarrow.Table | pandas.DataFrame
            ``block_id``, the position ``cell_0`` ... in the tracking grid, ``done``, ``failures`` (attempts that did
            not succeed, over all runs of the store), ``worker_id``, ``sent_at`` and ``returned_at`` (seconds since the
            epoch), ``wall_seconds``, ``cpu_seconds``, ``peak_rss_bytes``, ``io_read_bytes``, ``io_write_bytes``,
            ``gpu_util_pct``, ``gpu_mem_bytes``, and ``steps/<name>`` for the self seconds of each step. What was not
            measured is null. Ids that need more than 63 bits make ``block_id`` a column of text.

        Raises
        ------
        NoStoreError
            The task has no tracking store, or it is gone.
        MissingExtraError
            pandas is asked for and not installed.
        """
        from workspan.report.frames import block_frame, check_kind

        check_kind(kind)
        store = self.open_store()
        return block_frame(store.table(), len(store.cell_counts), kind)

    def workers_frame(self, kind: Kind = "arrow") -> Any:
        """Return the workers of this run as a table, a row a worker by id; empty if the run had none.

        Parameters
        ----------
        kind
            As of :meth:`to_frame`.

        Returns
        -------
        pyarrow.Table | pandas.DataFrame
            The fields of :class:`WorkerRecord`: ``worker_id``, ``startup_seconds``, ``blocks``, ``blocks_failed``,
            ``compute_n``, ``compute_mean_seconds``, ``compute_total_seconds``, the same of ``idle``,
            ``final_wait_seconds``, ``teardown_seconds``, ``exit`` and ``text``.

        Raises
        ------
        MissingExtraError
            pandas is asked for and not installed.
        """
        from workspan.report.frames import check_kind, worker_frame

        check_kind(kind)
        return worker_frame(self.workers, kind)

    def timeline(self) -> list[Window]:
        """Rebuild from the store who did which block when, in the order in which blocks were sent.

        The blocks that this run completed, each with its successful attempt, to a microsecond. Blocks that a later run
        into the same store did again have that run's stamps, and are not among them.

        Raises
        ------
        NoStoreError
            The task has no tracking store, or it is gone; or the store has no stamps, since no run had
            ``resource_tracking=True``.
        """
        from workspan.report.windows import windows

        return windows(self.open_store(), self.started_at, self.ended_at)

    def open_store(self) -> StoreReader:
        """Open the tracking store for reading, as it is now.

        Raises
        ------
        NoStoreError
            The task has no tracking store, or it is gone.
        """
        from workspan.store.tracking import TrackingStore

        if self.tracking_path is None:
            raise NoStoreError(
                f"task {self.task_id!r} ran without a tracking store, so its single blocks are not recorded: "
                "give the task a tracking_path"
            )
        return TrackingStore.peek(self.tracking_path)

    def __repr__(self) -> str:
        blocks = self.blocks
        return (
            f"<TaskReport {self.task_id!r} {self.outcome}: {blocks.count} of {blocks.total} blocks, "
            f"{blocks.skipped} skipped, {self.workers.count} workers, {self.wall_seconds:.3g} s>"
        )


@dataclass(frozen=True, slots=True, repr=False)
class RunReport(_Report):
    """A whole pipeline in one run. True if every block of every task completed."""

    run_id: str
    started_at: float
    """Begin of the run, in seconds since the epoch."""
    ended_at: float
    """``started_at + wall_seconds``."""
    wall_seconds: float
    """From the begin of the run until all workers had ended, on the monotonic clock."""
    outcome: str
    """As of a task; the worst one of the tasks."""
    tasks: dict[str, TaskReport]
    """Task id -> report, in display order."""
    span_seconds: float | None = None
    """Longest chain of executed blocks, of any tasks, that had to run one after the other, in seconds; ``None``: not
    measured."""
    stale_results: int = 0
    """Results that came back after their block had been taken away from the worker: ignored."""
    refused_messages: int = 0
    """Messages of workers from outside that could not be accepted."""

    @property
    def work(self) -> float | None:
        """What the blocks of all tasks cost in this run, in seconds. ``None``: nothing was executed."""
        parts = [task.work_seconds for task in self.tasks.values() if task.work_seconds is not None]
        return sum(parts) if parts else None

    @property
    def work_basis(self) -> str | None:
        """What :attr:`work` and :attr:`span` sum, as :attr:`TaskReport.work_basis`; ``"mixed"`` if tasks differ."""
        bases = {task.work_basis for task in self.tasks.values()} - {None}
        return "mixed" if len(bases) > 1 else next(iter(bases), None)

    @property
    def span(self) -> float | None:
        """Seconds that no number of workers could have saved: the longest chain of blocks that wait for each other.

        Blocks wait for blocks of their own task and of those upstream. ``None``: not measured.
        """
        return self.span_seconds

    @property
    def parallelism(self) -> float | None:
        """Work over span: beyond so many workers the run cannot get faster. ``None``: not measured."""
        return _ratio(self.work, self.span_seconds)

    def __bool__(self) -> bool:
        return all(task.blocks.count == task.blocks.total for task in self.tasks.values())

    def __getitem__(self, task_id: str) -> TaskReport:
        try:
            return self.tasks[task_id]
        except KeyError:
            known = ", ".join(map(repr, self.tasks)) or "none"
            raise NotInReportError(f"the run had no task {task_id!r}: its tasks are {known}") from None

    def __contains__(self, task_id: object) -> bool:
        return task_id in self.tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self.tasks)

    def __repr__(self) -> str:
        done = sum(task.blocks.count for task in self.tasks.values())
        total = sum(task.blocks.total for task in self.tasks.values())
        return (
            f"<RunReport {self.run_id!r} {self.outcome}: {done} of {total} blocks of {len(self.tasks)} tasks, "
            f"{self.wall_seconds:.3g} s>"
        )


def _ratio(work: float | None, span: float | None) -> float | None:
    return work / span if work is not None and span else None
