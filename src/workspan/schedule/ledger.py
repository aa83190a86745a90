"""Which blocks may run: dependencies, retries and orphans of a whole pipeline, counted block by block.

Nothing is allocated for a block before it runs, except one counter of satisfied inputs for tasks whose blocks wait
for others; the pages of that array come into being when the frontier reaches them. Completing a block costs as much
as it has direct dependents.
"""

from __future__ import annotations

import mmap
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from workspan.grid.neighbours import ConflictGraph
from workspan.schedule.state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from workspan.grid.neighbours import Relation
    from workspan.schedule.events import SkipReason
    from workspan.schedule.spec import PipelineSpec, TaskSpec

_SMALL = 1 << 16

CHECKED_AHEAD = 64
"""For how many blocks of a task the check function is asked before they are due."""


class Checker(Protocol):
    """Asks a task's check function outside the scheduler's loop.

    Answers may come in any order; blocks are handed out in theirs.
    """

    def ask(self, index: int) -> None:
        """Have the function asked about a block."""

    def answer(self, index: int) -> bool | None:
        """Return, once, whether the block was done before; ``None``: not known yet."""


class TaskBlocks:
    """The blocks of one task of a :class:`Ledger`."""

    def __init__(self, spec: TaskSpec, upstream: dict[int, Relation], downstream: dict[int, Relation]) -> None:
        layout = spec.layout
        self.spec = spec
        self.layout = layout
        self.state = TaskState(
            spec.task_id,
            total_block_count=layout.num_blocks,
            timeout_secs=None if spec.timeout == float("inf") else spec.timeout,
        )
        self.conflict = ConflictGraph(layout) if layout.num_levels > 1 else None
        self.upstream, self.downstream = upstream, downstream
        self.in_flight: set[int] = set()
        self.retried: dict[int, int] = {}
        self.fifo: deque[int] = deque()
        self.source: Iterator[int] | None = None
        """Blocks that are ready from the start, in the order in which they are handed out."""
        self.precheck: Callable[[int], SkipReason | None] | None = None
        """Says at once whether a block need not run, and why."""
        self.checker: Checker | None = None
        """Finds out by and by whether a block was done before; asked after :attr:`precheck`."""
        self.asked: deque[int] = deque()
        """Blocks about which the checker was asked, in the order in which they are handed out."""
        most = (self.conflict.most_inputs if self.conflict else 0) + sum(r.most_inputs for r in upstream.values())
        self.orphan_mark = 0
        self.satisfied = memoryview(b"")
        """Per block: how many of its inputs are complete, or :attr:`orphan_mark`."""
        if most:
            code, self.orphan_mark = _counter_type(most)
            self.satisfied = _zeros(layout.num_blocks, code)
        if not upstream:
            self.source = layout.level_blocks(0)
            self.state.ready_count = layout.level_size(0)

    def next_candidate(self) -> int | None:
        """Take the next ready block out of the queue: those ready from the start first, then by and by."""
        if self.source is not None:
            index = next(self.source, None)
            if index is not None:
                return index
            self.source = None
        return self.fifo.popleft() if self.fifo else None

    def num_inputs(self, index: int) -> int:
        """For how many blocks, of this and of other tasks, block *index* waits."""
        own = len(self.conflict.inputs(index)) if self.conflict else 0
        return own + sum(relation.num_inputs(index) for relation in self.upstream.values())


class Ledger:
    """The state of every block of a pipeline.

    Parameters
    ----------
    pipeline
        What is to be run.
    on_skip
        Called as ``on_skip(task, [index], reason)`` for each block that turns out not to need running.

    Attributes
    ----------
    tasks
        One :class:`TaskBlocks` a task, in display order.
    changed
        Numbers of tasks that gained ready blocks since the caller last cleared it.

    Raises
    ------
    ConfigurationError
        A block of a downstream task overlaps no block of its upstream task.
    """

    def __init__(
        self, pipeline: PipelineSpec, *, on_skip: Callable[[int, list[int], SkipReason], None] | None = None
    ) -> None:
        relations = {edge: pipeline.relation(*edge) for edge in pipeline.edges}
        for relation in relations.values():
            relation.check()
        self.pipeline = pipeline
        self.tasks = [
            TaskBlocks(
                spec,
                {u: r for (u, d), r in relations.items() if d == number},
                {d: r for (u, d), r in relations.items() if u == number},
            )
            for number, spec in enumerate(pipeline.tasks)
        ]
        self.changed: set[int] = set()
        self._on_skip = on_skip or (lambda task, indices, reason: None)

    def acquire(self, task: int) -> int | None:
        """Hand out the next ready block of *task* and count it as processing; ``None`` if none is ready.

        Blocks that need not run are completed on the way. With a checker, ``None`` may also mean that its answer about
        the next block has not come yet.
        """
        blocks = self.tasks[task]
        state = blocks.state
        if state.abandoned:
            return None
        while True:
            if blocks.checker is None:
                index = blocks.fifo.popleft() if blocks.source is None and blocks.fifo else blocks.next_candidate()
                if index is None:
                    return None
                reason = None if blocks.precheck is None else blocks.precheck(index)
            else:
                self._ask_ahead(task, blocks, blocks.checker)
                if not blocks.asked:
                    return None
                done = blocks.checker.answer(blocks.asked[0])
                if done is None:
                    return None
                index = blocks.asked.popleft()
                reason = "check" if done else None
            state.started = True
            if reason is None:
                state.ready_count -= 1
                state.processing_count += 1
                blocks.in_flight.add(index)
                return index
            self._skip(task, blocks, index, reason)

    def complete(self, task: int, index: int) -> bool:
        """Count a block in flight as completed and unlock what waits for it.

        Returns
        -------
        bool
            False, with nothing changed, if the block is not in flight.
        """
        blocks = self.tasks[task]
        try:
            blocks.in_flight.remove(index)
        except KeyError:
            return False
        state = blocks.state
        state.processing_count -= 1
        state.completed_count += 1
        self._unlock(task, blocks, index)
        return True

    def fail(self, task: int, index: int, *, raised: bool = False, refused: bool = False) -> bool | None:
        """Count a failed attempt of a block in flight: it is retried, or given up and its dependents orphaned.

        Parameters
        ----------
        raised
            Its function raised; some tasks do not try such a block again.
        refused
            Another attempt would fail in the same way: there is none.

        Returns
        -------
        bool | None
            Whether that was the last attempt; ``None``, with nothing changed, if the block is not in flight.
        """
        blocks = self.tasks[task]
        if index not in blocks.in_flight:
            return None
        blocks.in_flight.remove(index)
        state = blocks.state
        state.processing_count -= 1
        attempts = blocks.retried.get(index, 0) + 1
        if not refused and attempts <= blocks.spec.max_retries and (blocks.spec.retries_errors or not raised):
            blocks.retried[index] = attempts
            blocks.fifo.append(index)
            state.ready_count += 1
            self.changed.add(task)
            return False
        blocks.retried.pop(index, None)
        state.failed_count += 1
        self._orphan(task, index)
        return True

    def is_in_flight(self, task: int, index: int) -> bool:
        """Whether a block is handed out and not released."""
        return index in self.tasks[task].in_flight

    def give_back(self, task: int, index: int) -> None:
        """Return a block that was handed out but never started: it was no attempt, and it is the next to go out."""
        blocks = self.tasks[task]
        if index in blocks.in_flight:
            blocks.in_flight.remove(index)
            blocks.state.processing_count -= 1
            blocks.state.ready_count += 1
            if blocks.source is None:
                blocks.fifo.appendleft(index)
            else:
                blocks.source = chain((index,), blocks.source)
            self.changed.add(task)

    def abandon(self, task: int, reason: str) -> None:
        """Give *task* up, and every task downstream of it: their unfinished blocks become orphaned."""
        todo, seen = [(task, reason)], set()
        while todo:
            number, why = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            blocks = self.tasks[number]
            state = blocks.state
            if not (state.abandoned or state.is_done()):
                state.abandoned, state.abandon_reason = True, why
                state.orphaned_count = state.total_block_count - state.completed_count - state.failed_count
                state.ready_count = state.processing_count = 0
                blocks.in_flight.clear()
                blocks.fifo.clear()
                blocks.asked.clear()
                blocks.source = None
            todo += [(down, "upstream task abandoned") for down in blocks.downstream]

    def is_done(self) -> bool:
        """Whether every block of every task is completed, failed or orphaned."""
        return all(blocks.state.is_done() for blocks in self.tasks)

    def is_stalled(self) -> bool:
        """Whether blocks are left although none is ready or in flight anywhere: that never happens."""
        return not self.is_done() and not any(b.state.ready_count or b.state.processing_count for b in self.tasks)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _ask_ahead(self, task: int, blocks: TaskBlocks, checker: Checker) -> None:
        """Ask the checker about the next blocks, as far as the look-ahead goes."""
        while len(blocks.asked) < CHECKED_AHEAD:
            index = blocks.next_candidate()
            if index is None:
                return
            reason = blocks.precheck(index) if blocks.precheck is not None else None
            if reason is not None:
                self._skip(task, blocks, index, reason)
                continue
            blocks.asked.append(index)
            checker.ask(index)

    def _skip(self, task: int, blocks: TaskBlocks, index: int, reason: SkipReason) -> None:
        """Complete a ready block that need not run."""
        state = blocks.state
        state.started = True
        state.ready_count -= 1
        state.completed_count += 1
        state.skipped_count += 1
        self._on_skip(task, [index], reason)
        self._unlock(task, blocks, index)

    def _unlock(self, task: int, blocks: TaskBlocks, index: int) -> None:
        if blocks.conflict is not None:
            satisfied, mark, alone = blocks.satisfied, blocks.orphan_mark, not blocks.upstream
            for offset, waits_for in blocks.conflict.dependents(index):
                other = index + offset
                count = satisfied[other] + 1
                if count <= mark:
                    satisfied[other] = count
                    if count == (waits_for if alone else blocks.num_inputs(other)):
                        blocks.fifo.append(other)
                        blocks.state.ready_count += 1
                        self.changed.add(task)
        for number, relation in blocks.downstream.items() if blocks.downstream else ():
            down = self.tasks[number]
            if not down.state.abandoned:
                ready = list(_satisfy(down, relation.dependents(index)))
                if ready:
                    if len(ready) > 1:
                        ready.sort(key=down.layout.id_order)
                    down.fifo.extend(ready)
                    down.state.ready_count += len(ready)
                    self.changed.add(number)

    def _orphan(self, task: int, index: int) -> None:
        todo = [(task, index)]
        while todo:
            task, index = todo.pop()
            blocks = self.tasks[task]
            if blocks.conflict is not None:
                own = [index + neighbour.offset for neighbour in blocks.conflict.dependents(index)]
                todo += [(task, other) for other in self._mark(blocks, own)]
            for number, relation in blocks.downstream.items():
                others = (other for other, _ in relation.dependents(index))
                todo += [(number, other) for other in self._mark(self.tasks[number], others)]

    @staticmethod
    def _mark(blocks: TaskBlocks, indices: Iterable[int]) -> list[int]:
        """Mark blocks as orphaned; return those that were not marked before."""
        if blocks.state.abandoned:
            return []
        fresh = [i for i in indices if blocks.satisfied[i] != blocks.orphan_mark]
        for i in fresh:
            blocks.satisfied[i] = blocks.orphan_mark
        blocks.state.orphaned_count += len(fresh)
        return fresh


def _satisfy(blocks: TaskBlocks, dependents: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Count one more complete input for each of *dependents*; yield those that became ready."""
    satisfied, mark = blocks.satisfied, blocks.orphan_mark
    only_source = blocks.conflict is None and len(blocks.upstream) == 1
    for other, inputs in dependents:
        count = satisfied[other] + 1
        if count > mark:
            continue
        satisfied[other] = count
        if count == (inputs if only_source else blocks.num_inputs(other)):
            yield other


def _counter_type(most: int) -> tuple[str, int]:
    """Type code of a counter up to *most*, and a value beyond it that marks an orphan."""
    for code, limit in (("B", 0xFF), ("H", 0xFFFF), ("I", 0xFFFFFFFF)):
        if most < limit:
            return code, limit
    return "Q", 0xFFFFFFFFFFFFFFFF


def _zeros(count: int, code: str) -> memoryview:
    """Zeroed counters whose pages are allocated when they are first written."""
    size = count * memoryview(bytearray(8)).cast(code).itemsize  # type: ignore[call-overload]
    if size <= _SMALL:
        return memoryview(bytearray(size)).cast(code)  # type: ignore[call-overload,no-any-return]
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(pages).cast(code)  # type: ignore[call-overload,no-any-return]
