from __future__ import annotations

import heapq
import random
from itertools import pairwise
from math import exp, log, sqrt

import pytest

from workspan.estimate.ends import STRAGGLES, Stragglers, finish, left_of, range_of, with_stragglers
from workspan.estimate.remaining import Look, Remaining, Running


def handed_out(busy: list[float], waiting: int, a_block: float, workers: int) -> float:
    """Return when the last of the blocks ends, by handing out one after the other."""
    ends = [*busy, *[0.0] * (workers - len(busy))]
    heapq.heapify(ends)
    for _ in range(waiting):
        heapq.heapreplace(ends, ends[0] + a_block)
    return max(ends)


class TestFinish:
    def test_it_is_what_handing_out_gives(self):
        """For any workers, blocks in flight and blocks to come the end is that of the worker that is last (B165)."""
        rng = random.Random(1)
        for _ in range(300):
            workers = rng.randint(1, 9)
            busy = [rng.choice([0.3, 1.0, 40.0]) * rng.random() for _ in range(rng.randint(0, workers))]
            waiting, a_block = rng.choice([0, 1, 5, 40, 300]), rng.choice([0.01, 1.0, 7.0])
            found = finish(busy, waiting, a_block, workers, 0.0, 0)
            truth = handed_out(busy, waiting, a_block, workers)
            assert found == pytest.approx(truth, abs=1e-6 * truth + (a_block if waiting else 0.0))

    def test_who_runs_on_takes_no_rounds(self):
        """A block that runs for 60 s more holds up nobody: the other three workers share what is to come."""
        assert finish([60.0, 0.5, 0.5, 0.5], 300, 1.0, 4, 0.0, 0) == pytest.approx(90.0, abs=1.5)

    def test_many_workers(self):
        """Beyond some hundred workers it is told by their number, in no more time, and not before the longest one."""
        assert finish([1.0] * 500, 5000, 1.0, 1000, 0.0, 0) == pytest.approx(6.0, abs=1.0)
        assert finish([90.0] + [1.0] * 499, 5000, 1.0, 1000, 0.0, 0) == 90.0

    def test_blocks_that_take_nothing(self):
        """Without a time of blocks only those in flight count (E84)."""
        assert finish([3.0], 10, 0.0, 4, 0.0, 0) == 3.0


class TestLeftOf:
    def test_it_is_the_mean_of_what_is_not_ruled_out(self):
        """Of lognormal times those above the age are left: their mean, and 5 to 95 % of them between the ends."""
        rng, spread, usual, age = random.Random(2), 0.5, 2.0, 2.5
        drawn = [usual * exp(rng.gauss(0.0, spread) - spread**2 / 2) for _ in range(60_000)]
        rests = sorted(t - age for t in drawn if t > age)
        assert left_of(age, usual, spread)[0] == pytest.approx(sum(rests) / len(rests), rel=0.05)
        low, high = range_of(age, usual, spread)
        assert low == pytest.approx(rests[len(rests) // 20], rel=0.2)
        assert high == pytest.approx(rests[-len(rests) // 20], rel=0.1)

    def test_a_straggler_without_history(self):
        """Of a block that outlasts all others nothing is known but its age."""
        assert left_of(50.0, 1.0, 0.2) == (STRAGGLES * 50.0, 1.0)

    def test_a_straggler_with_history(self):
        """Where earlier runs had blocks of 60 times the usual it is taken for one of these, and its rest falls."""
        rests = [left_of(age, 1.0, 0.2, 60.0)[0] for age in (5.0, 20.0, 40.0)]
        assert rests[0] == pytest.approx(60.0 - 5.0, rel=0.15)
        assert rests == sorted(rests, reverse=True)
        low, high = range_of(20.0, 1.0, 0.2, 60.0)
        assert low < 40.0 < high


class TestStragglersToCome:
    def test_the_chance_is_that_of_draws(self):
        """With as many stragglers as expected, at any moment alike, runs have ended by what is said as often."""
        rng, end, length, expected = random.Random(3), 100.0, 60.0, 1.5
        ends = []
        for _ in range(20_000):
            gone, last = 0.0, 0.0
            while (gone := gone + rng.expovariate(1.0)) < expected:
                last = max(last, rng.random() * end)
            ends.append(max(end, last + length) if last else end)
        for share in (0.5, 0.95):
            said = with_stragglers(end, length, expected, 10**9, share)
            assert sum(each <= said + 1e-6 for each in ends) / len(ends) == pytest.approx(share, abs=0.02)

    def test_few_are_expected(self):
        """The fewer blocks are to come the less is said for a straggler; never does it jump."""
        said = [with_stragglers(n / 4, 60.0, n / 600, 4) - n / 4 for n in range(600, -1, -1)]
        assert said[-1] == 0.0
        assert max(abs(a - b) for a, b in pairwise(said)) < 0.5


def looked(remaining: Remaining, run: list[tuple[float, float, int]], now: float, blocks: int, workers: int) -> float:
    """Let *remaining* see a run, told as (begin, end, index), and return what is left."""
    done = [(begin, end) for begin, end, _ in run if end <= now]
    flight = [now - begin for begin, end, _ in run if begin <= now < end]
    firsts = [end - begin for begin, end, index in run if index < workers and end <= now]
    times = [end - begin for begin, end in done]
    waiting = float(blocks - len(done) - len(flight))
    remaining.look(
        Look(
            at=now,
            blocks=len(done),
            seconds=sum(times),
            squares=sum(t * t for t in times),
            left=blocks - len(done),
            running=[Running(age, (1.0,)) for age in flight],
            workers=workers,
            ready_workers=workers,
            firsts=len(firsts),
            first_seconds=sum(firsts),
            first_squares=sum(t * t for t in firsts),
            longest=max(times, default=0.0),
            done=(float(len(done) - len(firsts)),),
            rest=(waiting,),
        )
    )
    left = remaining.left(now)
    assert left is not None
    return left.value


def played(seconds: list[float], workers: int) -> list[tuple[float, float, int]]:
    """Hand blocks out in order, to the worker that is free first."""
    free = [0.0] * workers
    run = []
    for index, each in enumerate(seconds):
        begin = heapq.heapreplace(free, free[0] + each)
        run.append((begin, begin + each, index))
    return run


class TestHistory:
    def test_a_straggler_in_flight(self):
        """A block that runs for long is expected to take what such blocks took in earlier runs, from the first look."""
        run = played([1.0] * 200 + [60.0] + [1.0] * 39, 4)
        known = Remaining(history=0, history_spread=0.1, stragglers=Stragglers(1.0, 240.0, 60.0))
        alone = Remaining(history=0, history_spread=0.1)
        end = max(block[1] for block in run)
        off = {known: [], alone: []}
        for remaining, errors in off.items():
            for now in range(0, int(end)):
                value = looked(remaining, run, float(now), 240, 4)
                if now > 55:
                    errors.append(abs(value - (end - now)))
        assert sum(off[known]) < 0.5 * sum(off[alone])

    def test_first_blocks_say_how_far_off_it_is(self):
        """Four first blocks that take a sixth more, or half as long, as earlier runs say move it most of the way."""
        for each in (1.17, 0.5):
            run = played([each] * 100, 4)
            remaining = Remaining(history=0, history_spread=0.1)
            assert looked(remaining, run, 0.0, 100, 4) == pytest.approx(25.0, rel=0.1)
            assert looked(remaining, run, each, 100, 4) == pytest.approx(24.0 * each, rel=0.12)

    def test_first_blocks_with_a_warm_up_say_little(self):
        """Where they take ten times as long anyhow, a third more of that moves the estimate by less than a fifth."""
        run = played([13.0] * 4 + [1.0] * 96, 4)
        remaining = Remaining(history=0, history_spread=0.1, first_extra=9.0)
        assert looked(remaining, run, 13.0, 100, 4) == pytest.approx(24.0, rel=0.19)

    def test_a_history_that_is_far_off_is_forgotten(self):
        """Blocks that take a fifth of what earlier runs say are believed after a few, not after dozens."""
        rng = random.Random(4)
        sigma = sqrt(log(2.0))
        run = played([0.2 * exp(rng.gauss(0.0, sigma) - sigma**2 / 2) for _ in range(400)], 1)
        remaining = Remaining(history=0, history_spread=1.0)
        for now in range(5):
            value = looked(remaining, run, float(now), 400, 1)
        assert value == pytest.approx(max(end for _, end, _ in run) - 4.0, rel=0.4)
