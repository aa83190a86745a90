"""Runs as streams of events: recorded from real ones, or made by the scheduler itself from given times of blocks."""

from __future__ import annotations

import heapq
import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspan.estimate.remaining import Look, Running
from workspan.grid import Layout
from workspan.run.costs import PlacedCosts
from workspan.schedule.dispatch import Dispatcher
from workspan.schedule.events import Ended, Ready, Returned, Send, StartWorker, StopWorker
from workspan.schedule.ledger import Ledger
from workspan.schedule.spec import PipelineSpec, TaskSpec

if TYPE_CHECKING:
    from oracle import Law


@dataclass
class Recorded:
    """One task of one run. Times are seconds since its begin."""

    total: int
    skipped: int
    ended: float
    blocks: list[tuple[int, int, float, float]]
    """Index, worker, begin and end of each block, in order of their ends."""
    workers: list[tuple[float, float, float]]
    """When each worker was asked for, was ready, and was gone."""
    levels: list[int] = field(default_factory=list)
    """Blocks of each level."""
    sizes: list[float] = field(default_factory=list)
    """Size of each block; empty: they are alike, or nobody knows."""
    law: Law | None = None
    """How the times came about."""

    def save(self, path: Path) -> None:
        """Write it down, in milliseconds."""
        values = asdict(self)
        del values["law"]
        values["blocks"] = [(i, w, round(b, 4), round(e, 4)) for i, w, b, e in self.blocks]
        values["workers"] = [tuple(round(t, 4) for t in times) for times in self.workers]
        path.write_text(json.dumps(values, separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: Path) -> Recorded:
        """Read one back."""
        return cls(**json.loads(path.read_text()))


class Looker:
    """Looks at a recorded run as a display does at a running one.

    *predict* says what a block of a size takes, from earlier runs; *places*, how much longer it takes along the task.
    """

    def __init__(
        self, run: Recorded, predict: Callable[[float], float] | None = None, places: Sequence[float] = ()
    ) -> None:
        self.run = run
        self._ends = [end for _, _, _, end in run.blocks]
        times = [end - begin for _, _, begin, end in run.blocks]
        self._seconds = [0.0, *accumulate(times)]
        self._longest = [0.0, *accumulate(times, max)]
        self._squares = [0.0, *accumulate(t * t for t in times)]
        seen: set[int] = set()
        self._first = []
        self._by_begin = sorted(run.blocks, key=lambda b: b[2])
        self._begun, self._running = 0, []
        for index, worker, begin, end in self._by_begin:
            if worker not in seen:
                seen.add(worker)
                self._first.append((end, end - begin, index))
        self._first.sort()
        self._firsts = {index for _, _, index in self._first}
        sizes = run.sizes or [1.0] * run.total
        self.measures: list[list[float]] = [] if predict is None else [[predict(size) for size in sizes]]
        if places:
            costs = PlacedCosts(1.0, places, run.total)
            self.measures = [[each * costs.cost(index) for index, each in enumerate(self.measures[0])]]
        if run.sizes or places or predict is None:
            self.measures.append([1.0] * run.total)
            if run.sizes and predict is None:
                self.measures.append(run.sizes)
        self._later: list[int] = []
        best = len(run.sizes) - 1
        for index in range(best, -1, -1):
            best = index if run.sizes[index] >= run.sizes[best] else best
            self._later.append(best)
        self._later.reverse()
        self._order = [index for index, *_ in run.blocks]
        units = [tuple(m[i] for m in self.measures) for i in self._order]
        self._all = tuple(sum(m[i] for i in self._order) for m in self.measures)
        none = (0.0,) * len(self.measures)
        self._done = list(
            accumulate(
                (none if i in self._firsts else u for i, u in zip(self._order, units, strict=True)),
                lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
                initial=none,
            )
        )
        self._taken = list(
            accumulate(units, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), initial=none)
        )

    def in_flight(self, now: float) -> list[tuple[int, int, float, float]]:
        """Return the blocks that run at *now*, which is not before what was asked for last."""
        while self._begun < len(self._by_begin) and self._by_begin[self._begun][2] <= now:
            self._running.append(self._by_begin[self._begun])
            self._begun += 1
        self._running = [block for block in self._running if block[3] > now]
        return self._running

    def look(self, now: float) -> Look:
        """Return what could be seen at *now*, which is not before the last one."""
        run = self.run
        done = bisect_right(self._ends, now)
        running = [
            Running(now - begin, tuple(m[index] for m in self.measures), index in self._firsts)
            for index, _, begin, _ in self.in_flight(now)
        ]
        begun = [sum(block.units[n] for block in running) for n in range(len(self.measures))]
        rest = tuple(max(0.0, a - t - b) for a, t, b in zip(self._all, self._taken[done], begun, strict=True))
        firsts = [seconds for end, seconds, _ in self._first if end <= now]
        there = [(ready, gone) for asked, ready, gone in run.workers if asked <= now < gone]
        levels, passed, chain = run.levels, done + run.skipped, 0
        for size in levels:
            chain += passed < size
            passed -= min(passed, size)
        return Look(
            at=now,
            blocks=done,
            seconds=self._seconds[done],
            squares=self._squares[done],
            left=len(run.blocks) - done,
            running=running,
            workers=len(there),
            ready_workers=sum(ready <= now for ready, _ in there),
            firsts=len(firsts),
            first_seconds=sum(firsts),
            first_squares=sum(t * t for t in firsts),
            first_units=tuple(sum(m[index] for end, _, index in self._first if end <= now) for m in self.measures),
            longest=self._longest[done],
            done=self._done[done],
            rest=rest,
            chain=max(1, chain),
            largest=self._largest(done + len(running)),
        )

    def _largest(self, begun: int) -> tuple[int, tuple[float, ...]] | None:
        sizes = self.run.sizes
        if not sizes or begun >= len(sizes):
            return None
        index = self._later[begun]
        return index - begun, tuple(m[index] for m in self.measures)


class _Nobody:
    """A recorder that keeps what the replay needs."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, float, float]] = []

    def block_done(self, task: int, index: int, worker: int, sent: float, returned: float, *_: Any) -> None:
        self.blocks.append((index, worker, sent, returned))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def made(
    layout: Layout,
    workers: int,
    seconds: Callable[[int, int], float],
    *,
    start_up: Callable[[int], float] = lambda worker: 0.1,
    skipped: int = 0,
    dies: Callable[[int, float], bool] = lambda worker, now: False,
    sizes: list[float] | None = None,
) -> Recorded:
    """Let the scheduler run *layout* with workers that take *seconds(index, nth block of the worker)*.

    *dies(worker, now)*: the worker leaves instead of taking another block, and is not replaced.
    """
    spec = PipelineSpec((TaskSpec("t", layout, max_workers=workers, max_worker_restarts=0),))
    ledger = Ledger(spec)
    if skipped:
        ledger.tasks[0].precheck = lambda index: "done" if index < skipped else None
    nobody = _Nobody()
    dispatcher = Dispatcher(ledger, nobody)
    now, number = 0.0, 0
    heap: list[tuple[float, int, Any]] = []
    queues: dict[int, deque[int]] = {}
    count: dict[int, int] = {}
    lives: dict[int, list[float]] = {}
    busy: set[int] = set()

    def begin(worker: int) -> None:
        nonlocal number
        if queues[worker] and worker not in busy:
            busy.add(worker)
            index = queues[worker][0]
            nth = count[worker] = count.get(worker, -1) + 1
            number += 1
            heapq.heappush(heap, (now + seconds(index, nth), number, Returned(worker, index, True)))

    def act(decisions: list[Any]) -> None:
        nonlocal number
        for decision in decisions:
            number += 1
            if isinstance(decision, StartWorker):
                queues[decision.worker] = deque()
                ready = now + start_up(decision.worker)
                lives[decision.worker] = [now, ready, float("inf")]
                heapq.heappush(heap, (ready, number, Ready(decision.worker)))
            elif isinstance(decision, Send):
                queues[decision.worker].append(decision.index)
                begin(decision.worker)
            elif isinstance(decision, StopWorker):
                heapq.heappush(heap, (now + 0.01, number, Ended(decision.worker, True, "exit code 0")))

    act(dispatcher.start(now))
    while heap:
        now, _, event = heapq.heappop(heap)
        if isinstance(event, Returned):
            queues[event.worker].popleft()
            busy.discard(event.worker)
            act(dispatcher.handle(event, now))
            if dies(event.worker, now):
                act(dispatcher.handle(Ended(event.worker, False, "killed", unstarted=tuple(queues[event.worker])), now))
                queues[event.worker].clear()
                lives[event.worker][2] = now
                heap = [item for item in heap if item[2].worker != event.worker]
                heapq.heapify(heap)
            else:
                begin(event.worker)
        else:
            if isinstance(event, Ended):
                lives[event.worker][2] = now
            act(dispatcher.handle(event, now))
    blocks = nobody.blocks
    end = blocks[-1][3]
    levels = [layout.level_size(level) for level in range(layout.num_levels)]
    return Recorded(
        layout.num_blocks,
        ledger.tasks[0].state.skipped_count,
        end,
        blocks,
        [(a, b, min(c, end)) for a, b, c in lives.values()],
        levels if len(levels) > 1 else [],
        sizes or [],
    )


def line(blocks: int) -> Layout:
    """Return blocks in a row that have nothing to do with each other."""
    return Layout((0,), (blocks,), (0,), (1,), (0,), (1,), read_write_conflict=False)
