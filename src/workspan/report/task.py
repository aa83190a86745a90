"""The record of a run: one value a task and one for the pipeline, the same in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import comb
from typing import TYPE_CHECKING, Any, Self

from workspan.errors import InvalidMetadataError, NoStoreError
from workspan.grid.block import Block
from workspan.report._value import Value, check
from workspan.report.parts import BlockFailure, BlocksSummary, StepSummary, WorkerRecord, WorkersSummary

if TYPE_CHECKING:
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
    """``"completed"``, ``"incomplete"``, ``"abandoned"``, ``"interrupted"`` or ``"error"``."""
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

    def worker(self, id: int) -> WorkerRecord:
        """Return the record of one worker.

        Raises
        ------
        KeyError
            No worker of this task had that id.
        """
        for record in self.workers.records:
            if record.id == id:
                return record
        known = ", ".join(str(record.id) for record in self.workers.records[:10]) or "none"
        raise KeyError(f"task {self.task_id!r} had no worker {id!r}: the ids of its {self.workers.count} are {known}")

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
        store = self._store()
        if isinstance(coord, Block):
            coord = _cell(coord.block_id[1], len(store.cell_counts))
        return store.block(coord)

    def block_records(self) -> list[BlockRecord]:
        """List every recorded block, in C order of the tracking grid, as the store is now.

        Raises
        ------
        NoStoreError
            The task has no tracking store, or it is gone.
        """
        return list(self._store().block_records())

    def _store(self) -> StoreReader:
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

    def __bool__(self) -> bool:
        return all(task.blocks.count == task.blocks.total for task in self.tasks.values())

    def __getitem__(self, task_id: str) -> TaskReport:
        try:
            return self.tasks[task_id]
        except KeyError:
            known = ", ".join(map(repr, self.tasks)) or "none"
            raise KeyError(f"the run had no task {task_id!r}: its tasks are {known}") from None

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


def _cell(spatial_id: int, rank: int) -> tuple[int, ...]:
    """Return the tracking-grid position of a block: the inverse of ``grid.pyramid_number``."""
    sums = [0]
    for axes in range(rank, 0, -1):
        low, high = 0, 1
        while comb(high + axes - 1, axes) <= spatial_id:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if comb(middle + axes - 1, axes) <= spatial_id else (low, middle)
        spatial_id -= comb(low + axes - 1, axes)
        sums.insert(1, low)
    return tuple(upper - lower for lower, upper in pairwise(sums))
