"""Dependency graphs and the scheduler as objects of blocks, for people who drive them by hand.

The arithmetic is that of ``grid`` and the rules are those of ``schedule``; here indices become blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError
from workspan.grid import Block, BlockStatus, Layout, as_roi
from workspan.grid.block import box_roi, index_of
from workspan.grid.neighbours import ConflictGraph
from workspan.run.checks import hang_in_checks
from workspan.run.pipeline import Pipeline
from workspan.run.stores import skip_known_blocks
from workspan.schedule.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from funlib.geometry import Roi

    from workspan.schedule.spec import TaskSpec
    from workspan.schedule.state import TaskState


class BlockwiseDependencyGraph:
    """The blocks of one region and which of them wait for which.

    Parameters
    ----------
    task_id
        Id that the blocks carry.
    read_roi, write_roi
        What one block reads and writes.
    read_write_conflict
        Blocks whose write ROI overlaps another's read ROI are ordered.
    fit
        ``"valid"``, ``"overhang"`` or ``"shrink"``.
    total_read_roi, total_write_roi
        The region; the total write ROI is the total read ROI less the context. At least one is needed.

    Raises
    ------
    ConfigurationError
        Neither total is given, or both with another context than the block's, or the layout is not valid.
    """

    def __init__(
        self,
        task_id: str | None,
        read_roi: Any,
        write_roi: Any,
        read_write_conflict: bool,
        fit: str,
        total_read_roi: Any = None,
        total_write_roi: Any = None,
    ) -> None:
        read, write = as_roi(read_roi, "read_roi"), as_roi(write_roi, "write_roi")
        total = _total_read_roi(read, write, total_read_roi, total_write_roi)
        self.task_id = task_id
        self.layout = Layout(
            tuple(total.begin),
            tuple(total.shape),
            tuple(read.begin),
            tuple(read.shape),
            tuple(write.begin),
            tuple(write.shape),
            fit,
            bool(read_write_conflict),
        )
        self._conflict = ConflictGraph(self.layout)

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return self.layout.num_blocks

    @property
    def num_levels(self) -> int:
        """Number of levels; the blocks of one level are independent of each other."""
        return self.layout.num_levels

    def num_roots(self) -> int:
        """Return the number of blocks of level 0, which wait for none."""
        return self.layout.level_size(0)

    def root_gen(self) -> Iterator[Block]:
        """Yield the blocks of level 0, in C order."""
        return self.level_blocks(0)

    def level_blocks(self, level: int) -> Iterator[Block]:
        """Yield the blocks of *level*, in C order.

        Raises
        ------
        ConfigurationError
            There is no such level.
        """
        if not 0 <= level < self.num_levels:
            raise ConfigurationError(f"level={level} does not exist: the levels are 0 to {self.num_levels - 1}")
        return map(self._block, self.layout.level_blocks(level))

    def enumerate_all_dependencies(self) -> Iterator[tuple[Block, list[Block]]]:
        """Yield ``(block, blocks that it waits for)``, level by level."""
        for level in range(self.num_levels):
            for index in self.layout.level_blocks(level):
                yield self._block(index), [self._block(up) for up in self._conflict.inputs(index)]

    def upstream(self, block: Block) -> list[Block]:
        """Return the blocks for which *block* waits, by id."""
        return [self._block(index) for index in self._conflict.inputs(index_of(self.layout, block))]

    def downstream(self, block: Block) -> list[Block]:
        """Return the blocks that wait for *block*, by id."""
        index = index_of(self.layout, block)
        return [self._block(index + other.offset) for other in self._conflict.dependents(index)]

    def get_subgraph_blocks(self, sub_roi: Any, read_roi: bool = False) -> list[Block]:
        """Return the blocks whose write ROI overlaps *sub_roi* within the total write ROI, in C order.

        With *read_roi*, those whose read ROI overlaps *sub_roi*. Overlap is exact on the fitted ROIs.
        """
        roi = as_roi(sub_roi, "sub_roi")
        if any(extent == 0 for extent in roi.shape):
            return []
        return [self._block(index) for index in self.layout.overlapping((tuple(roi.begin), tuple(roi.end)), read_roi)]

    def _block(self, index: int) -> Block:
        return Block.at(self.layout, index, self.task_id)


class DependencyGraph:
    """The blocks of a pipeline and which of them wait for which, across tasks.

    Parameters
    ----------
    pipeline
        A ``Pipeline``, a ``Task`` or a list of tasks.

    Raises
    ------
    ConfigurationError
        A block of a task overlaps no block of a task that it depends on.
    """

    def __init__(self, pipeline: Any) -> None:
        self._spec = Pipeline.of(pipeline).spec()
        self.ledger = Ledger(self._spec)
        self._number = {task.task_id: number for number, task in enumerate(self._spec.tasks)}

    @property
    def task_ids(self) -> list[str]:
        """Ids of the tasks, in display order."""
        return list(self._number)

    def num_blocks(self, task_id: str) -> int:
        """Return the number of blocks of a task."""
        return self._task(task_id).layout.num_blocks

    def root_tasks(self) -> list[str]:
        """Return the ids of the tasks that wait for none, in display order."""
        return [task.task_id for number, task in enumerate(self._spec.tasks) if not self._spec.upstream(number)]

    def num_roots(self, task_id: str) -> int:
        """Return the number of blocks of a task that are ready before anything ran: 0 for a downstream task."""
        return self._task(task_id).layout.level_size(0) if task_id in self.root_tasks() else 0

    def root_gen(self, task_id: str) -> Iterator[Block]:
        """Yield the blocks of a task that are ready before anything ran."""
        layout = self._task(task_id).layout
        indices: Iterable[int] = layout.level_blocks(0) if task_id in self.root_tasks() else ()
        return (Block.at(layout, index, task_id) for index in indices)

    def roots(self) -> dict[str, Iterator[Block]]:
        """Return :meth:`root_gen` of every root task, by id."""
        return {task_id: self.root_gen(task_id) for task_id in self.root_tasks()}

    def upstream(self, block: Block) -> list[Block]:
        """Return the blocks, of its own and of other tasks, for which *block* waits, sorted by spatial id."""
        number, index = self._locate(block)
        blocks = self.ledger.tasks[number]
        found = [(number, up) for up in blocks.conflict.inputs(index)] if blocks.conflict else []
        found += [(up, i) for up, relation in blocks.upstream.items() for i in relation.inputs(index)]
        return self._sorted(found)

    def downstream(self, block: Block) -> list[Block]:
        """Return the blocks, of its own and of other tasks, that wait for *block*, sorted by spatial id."""
        number, index = self._locate(block)
        blocks = self.ledger.tasks[number]
        found = [(number, index + n.offset) for n in blocks.conflict.dependents(index)] if blocks.conflict else []
        found += [(down, i) for down, relation in blocks.downstream.items() for i, _ in relation.dependents(index)]
        return self._sorted(found)

    def _sorted(self, found: Sequence[tuple[int, int]]) -> list[Block]:
        tasks = self._spec.tasks
        blocks = [Block.at(tasks[number].layout, index, tasks[number].task_id) for number, index in found]
        return sorted(blocks, key=lambda block: (block.block_id[1], block.task_id))

    def _task(self, task_id: str) -> TaskSpec:
        return self._spec.tasks[task_number(self._number, task_id)]

    def _locate(self, block: Block) -> tuple[int, int]:
        number = task_number(self._number, block.task_id)
        return number, index_of(self._spec.tasks[number].layout, block)


class Scheduler:
    """Hands out the blocks of a pipeline in a legal order; for people who run them by themselves.

    It opens no tracking store, starts nothing and waits for nothing.

    Parameters
    ----------
    pipeline_or_tasks
        A ``Pipeline``, a ``Task`` or a list of tasks.
    count_all_orphans
        Kept for daisy's sake: orphans are always counted.

    Raises
    ------
    ConfigurationError
        The pipeline cannot be run.
    """

    def __init__(self, pipeline_or_tasks: Any, count_all_orphans: bool = True) -> None:
        pipeline = Pipeline.of(pipeline_or_tasks)
        self.dependency_graph = DependencyGraph(pipeline)
        self._ledger = self.dependency_graph.ledger
        self._number = {blocks.spec.task_id: number for number, blocks in enumerate(self._ledger.tasks)}
        by_id = {task.task_id: task for task in pipeline.tasks}
        tasks = [by_id[blocks.spec.task_id] for blocks in self._ledger.tasks]
        skip_known_blocks(self._ledger, tasks, [None] * len(tasks), lambda *skipped: None)
        hang_in_checks(self._ledger, tasks)

    @property
    def task_states(self) -> dict[str, TaskState]:
        """Task id -> counters, live, in display order."""
        return {task_id: self._ledger.tasks[number].state for task_id, number in self._number.items()}

    def get_ready_tasks(self) -> list[str]:
        """Return the ids of tasks that have a ready block, in display order."""
        return [task_id for task_id, state in self.task_states.items() if state.ready_count]

    def acquire_block(self, task_id: str) -> Block | None:
        """Hand out the next ready block of a task; ``None`` if none is ready or the task is over.

        Raises
        ------
        ConfigurationError
            There is no such task.
        """
        number = task_number(self._number, task_id)
        index = self._ledger.acquire(number)
        if index is None:
            return None
        block = Block.at(self._ledger.tasks[number].layout, index, task_id)
        block.status = BlockStatus.PROCESSING
        return block

    def release_block(self, block: Block) -> dict[str, TaskState]:
        """Take a block back with its outcome in ``block.status``.

        Returns
        -------
        dict
            Task id -> counters of the tasks that gained ready blocks.

        Raises
        ------
        ConfigurationError
            The status is neither ``SUCCESS`` nor ``FAILED``; a ``RuntimeError`` too.
        """
        number = task_number(self._number, block.task_id)
        index = index_of(self._ledger.tasks[number].layout, block)
        self._ledger.changed.clear()
        if block.status == BlockStatus.SUCCESS:
            self._ledger.complete(number, index)
        elif block.status == BlockStatus.FAILED:
            self._ledger.fail(number, index)
        else:
            raise ConfigurationError(
                f"block {block.block_id} was released with status {block.status.name}: set SUCCESS or FAILED first"
            )
        tasks = self._ledger.tasks
        return {tasks[n].spec.task_id: tasks[n].state for n in sorted(self._ledger.changed)}


def task_number(numbers: dict[str, int], task_id: str | None) -> int:
    """Return the number of task *task_id*.

    Raises
    ------
    ConfigurationError
        It is not among *numbers*.
    """
    if task_id is None or task_id not in numbers:
        raise ConfigurationError(f"there is no task {task_id!r}: the tasks are {', '.join(map(repr, numbers))}")
    return numbers[task_id]


def expand_roi_to_grid(sub_roi: Any, total_roi: Any, read_roi: Any, write_roi: Any) -> Roi:
    """Return the smallest union of whole write blocks of the task that covers *sub_roi*."""
    total, read, write = as_roi(total_roi, "total_roi"), as_roi(read_roi, "read_roi"), as_roi(write_roi, "write_roi")
    return _snapped(as_roi(sub_roi, "sub_roi"), total.begin + write.begin - read.begin, write.shape)


def expand_write_roi_to_grid(roi: Any, write_roi: Any) -> Roi:
    """Return the smallest union of whole write blocks that covers *roi*, on the grid anchored at 0."""
    write = as_roi(write_roi, "write_roi")
    return _snapped(as_roi(roi, "roi"), (0,) * len(write.shape), write.shape)


def _snapped(roi: Roi, anchor: Sequence[int], block: Sequence[int]) -> Roi:
    begin = tuple(a + (b - a) // w * w for b, a, w in zip(roi.begin, anchor, block, strict=True))
    end = tuple(a - (a - e) // w * w for e, a, w in zip(roi.end, anchor, block, strict=True))
    return box_roi((begin, end))


def _total_read_roi(read: Roi, write: Roi, total_read: Any, total_write: Any) -> Roi:
    lower, upper = write.begin - read.begin, read.end - write.end
    if total_read is None and total_write is None:
        raise ConfigurationError("total_read_roi and total_write_roi are both missing: give at least one")
    if total_write is None:
        return as_roi(total_read, "total_read_roi")
    grown = as_roi(total_write, "total_write_roi").grow(lower, upper)
    if total_read is not None and as_roi(total_read, "total_read_roi") != grown:
        raise ConfigurationError(
            f"total_read_roi={total_read} and total_write_roi={total_write} do not differ by the block's context "
            f"(lower {tuple(lower)}, upper {tuple(upper)}): give one of them only"
        )
    return grown
