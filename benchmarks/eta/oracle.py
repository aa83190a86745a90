"""The best possible estimate: by somebody who knows the law of a run and the scheduler, but not the future.

It plays the rest of the run many times, from what can be seen at a moment (blocks done, blocks in flight and their
age), and says the median, which no other value beats in the mean absolute error.

There are two of them. The one that was *told* stands beside a run with history: it knows the law of block times, how
long first blocks take, and what may befall the run (that there is one straggler, or one change of pace, though not
where); the pace it knows as an earlier run tells it, on a machine that is not every day the same. The one that was not
knows the form of the law and how much blocks spread, learns the pace from those that are done, as anybody has to
without earlier runs, and knows of what befalls the run from the moment when it does, then at once and in full. Whoever
knows less does no better; so where such a one does not halve the peer's error nobody can.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from workspan.grid import Layout

if TYPE_CHECKING:
    from runs import Looker, Recorded

SAMPLES = 48
LAST = 12
"""Blocks a worker at the end that are handed out one by one; those before them are shared evenly."""

DRIFT = 0.082
"""Standard deviation, in logarithms, of how much slower or faster a machine is on another day: 10 %, 0 or -10 %."""

Means = Callable[[np.random.Generator, np.ndarray, bool], np.ndarray]


def lognormal(spread: float) -> np.ndarray:
    """Return factors around 1 that are distributed as the noise of made runs, in order."""
    sigma = sqrt(log(1.0 + spread * spread))
    cuts = [NormalDist().inv_cdf((n + 0.5) / 2000) for n in range(2000)]
    return np.exp(sigma * np.array(cuts) - sigma * sigma / 2.0)


@dataclass
class Law:
    """How long the blocks of a run take."""

    means: np.ndarray | Means
    """Mean of each block, by index, in seconds; or what gives it, one row a sample, from a source of chance, which
    blocks have begun, and whether it was told what may befall the run."""
    factors: np.ndarray
    """What blocks take over their means, in order, each as likely."""
    first: float = 1.0
    """How many times as long the first block of a worker takes."""
    exact: int | None = None
    """A block that takes its mean exactly."""
    leaves: Callable[[int], float] = lambda worker: inf
    """From when on a worker takes no more blocks."""
    layout: Layout | None = None
    """Where blocks wait for others."""


class Oracle:
    """Says what is left of a run."""

    def __init__(self, run: Recorded, looker: Looker, law: Law, *, told: float | None = None) -> None:
        """*told*: how much slower than this one earlier runs were; ``None``: there were none."""
        self.run, self.looker, self.law = run, looker, law
        self.told, self.before = told is not None, told or 1.0
        self._rng = np.random.default_rng(len(run.blocks))
        in_order = sorted(run.blocks, key=lambda b: b[2])
        self._order = np.array([block[0] for block in in_order])
        seen: set[int] = set()
        self._firsts = {index for index, worker, *_ in in_order if worker not in seen and not seen.add(worker)}
        self._indices = np.array([index for index, *_ in run.blocks])
        self._ends = np.array([end for *_, end in run.blocks])
        self._seconds = self._ends - np.array([begin for _, _, begin, _ in run.blocks])
        # A first block that takes longer tells nothing of the pace, to whoever does not know by how much.
        hidden = self._firsts if law.first != 1.0 else set()
        self._plain = np.array([index != law.exact and index not in hidden for index in self._indices.tolist()])
        self._needs: list[list[int]] = []
        if law.layout is not None and law.layout.num_levels > 1:
            layout = law.layout
            for index in range(layout.num_blocks):
                at = layout.coords(index)
                offsets = layout.conflict_offsets(layout.level_of(at))
                near = (tuple(a + b for a, b in zip(at, off, strict=True)) for off in offsets)
                self._needs.append([layout.index(n) for n in near if layout.contains(n)])

    def error(self, now: float, truth: float) -> float:
        """Return by how much it is off at *now*, at which the looker has looked.

        While only first blocks are back, of which nobody knows how much of them is a warm-up, who was not told may take
        them for usual ones or say nothing, which counts as 0: whichever is better.
        """
        said = self._left(now, by_first=False)
        if said is not None:
            return abs(said - truth)
        guess = self._left(now, by_first=True)
        return truth if guess is None else min(truth, abs(guess - truth))

    def _left(self, now: float, *, by_first: bool) -> float | None:
        """Return the median of what is left; ``None``: nothing is known."""
        run, law, rng = self.run, self.law, self._rng
        flight = self.looker.in_flight(now)
        done = int(np.searchsorted(self._ends, now, "right"))
        waiting = self._order[done + len(flight) :]
        begun = np.zeros(run.total, bool)
        begun[self._order[: done + len(flight)]] = True
        means = law.means(rng, begun, self.told) if callable(law.means) else law.means
        means = np.broadcast_to(means, (SAMPLES, run.total))
        paces = self._paces(means[0], done, by_first)
        if paces is None:
            return None
        exact = None if law.exact is None else means[:, law.exact]
        means = means * paces[:, None]
        if exact is not None:
            means[:, law.exact] = exact
        there = {n: max(0.0, ready - now) for n, (_, ready, gone) in enumerate(run.workers) if now < gone}
        ends = np.array([np.full(SAMPLES, wait) for wait in there.values()]).T.reshape(SAMPLES, len(there))
        places = {worker: place for place, worker in enumerate(there)}
        for index, worker, begin, _ in flight:
            ends[:, places[worker]] = self._rest(means[:, index], now - begin, index)
        taken = {worker for _, worker, *_ in run.blocks[:done]} | {worker for _, worker, *_ in flight}
        times = means[:, waiting] * rng.choice(law.factors, (SAMPLES, len(waiting)))
        if law.exact is not None and (at := np.flatnonzero(waiting == law.exact)).size:
            times[:, at] = means[:, waiting[at]]
        leaves = np.array([law.leaves(worker) - now if self.told else inf for worker in there])
        cold = np.array([worker not in taken for worker in there])
        if self._needs:
            return self._chained(
                [ends[:, places[worker]] for _, worker, *_ in flight], flight, waiting, times, len(there)
            )
        return float(np.median(self._play(ends, times, cold, leaves)))

    def _paces(self, means: np.ndarray, done: int, by_first: bool) -> np.ndarray | None:
        """Draw how much slower than the law this run may be, from the blocks that are done; ``None``: nobody knows."""
        plain = self._indices[:done] >= 0 if by_first else self._plain[:done]
        count = int(plain.sum())
        if not count and not self.told:
            return None
        error = float(np.log(self.law.factors).std()) / sqrt(max(count, 1))
        seen = float(np.mean((self._seconds[:done] / means[self._indices[:done]])[plain])) if count else 1.0
        middle = log(seen)
        if self.told:
            weight = DRIFT**2 / (DRIFT**2 + error**2) if count else 0.0
            middle = weight * middle + (1.0 - weight) * log(self.before)
            error = sqrt(weight) * error if count else DRIFT
        return np.exp(self._rng.normal(middle, error, SAMPLES))

    def _rest(self, means: np.ndarray, age: float, index: int) -> np.ndarray:
        """Draw what is left of a block of this age."""
        law = self.law
        if index == law.exact:
            return np.maximum(means - age, 0.0)
        whole = means * (law.first if index in self._firsts else 1.0)
        least = np.minimum(np.searchsorted(law.factors, age / whole), len(law.factors) - 1)
        picks = least + (self._rng.random(SAMPLES) * (len(law.factors) - least)).astype(int)
        return np.maximum(whole * law.factors[picks] - age, 0.0)

    def _play(self, ends: np.ndarray, times: np.ndarray, cold: np.ndarray, leaves: np.ndarray) -> np.ndarray:
        """Give each block to the worker that is free first; return when the last one ends."""
        rows, workers = np.arange(SAMPLES), ends.shape[1]
        cold = np.broadcast_to(cold, ends.shape).copy()
        bulk = times.shape[1] - LAST * workers
        if (
            bulk > 0
            and not cold.any()
            and np.isinf(leaves).all()
            and max(times.max(), ends.max()) < LAST / 2 * times.mean()
        ):
            level = (ends.sum(axis=1) + times[:, :bulk].sum(axis=1)) / workers
            ends, times = np.broadcast_to(level[:, None], ends.shape).copy(), times[:, bulk:]
        last = ends.max(axis=1)
        for number in range(times.shape[1]):
            free = np.where(ends < leaves, ends, inf)
            at = free.argmin(axis=1)
            ends[rows, at] = free[rows, at] + times[:, number] * np.where(cold[rows, at], self.law.first, 1.0)
            cold[rows, at] = False
            last = np.maximum(last, ends[rows, at])
        return last

    def _chained(
        self, ends: list[np.ndarray], flight: list, waiting: np.ndarray, times: np.ndarray, workers: int
    ) -> float:
        """Do the same where blocks wait for others, in the order in which they were handed out."""
        place = {index: number for number, index in enumerate(waiting.tolist())}
        open_ = set(place) | {index for index, *_ in flight}
        waits_for = {index: [need for need in self._needs[index] if need in open_] for index in place}
        behind: dict[int, list[int]] = {}
        for index, needs in waits_for.items():
            for need in needs:
                behind.setdefault(need, []).append(index)
        out = []
        for sample in range(0, SAMPLES, 2):
            left = {index: len(needs) for index, needs in waits_for.items()}
            heap = [(float(end[sample]), index) for end, (index, *_) in zip(ends, flight, strict=True)]
            ready = [place[index] for index, count in left.items() if not count]
            heapq.heapify(ready)
            heapq.heapify(heap)
            now, idle = 0.0, workers - len(heap)
            while ready or heap:
                while ready and idle:
                    number = heapq.heappop(ready)
                    heapq.heappush(heap, (now + times[sample, number], int(waiting[number])))
                    idle -= 1
                now, index = heapq.heappop(heap)
                idle += 1
                for other in behind.get(index, ()):
                    left[other] -= 1
                    if not left[other]:
                        heapq.heappush(ready, place[other])
            out.append(now)
        return float(np.median(out))
