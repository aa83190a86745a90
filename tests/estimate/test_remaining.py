from __future__ import annotations

import heapq
import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import exp

import pytest

from workspan.estimate.remaining import Look, Remaining, Running


class Run:
    """A run of blocks that take *seconds*, handed out in order to *workers*, as it is seen at any moment."""

    def __init__(self, seconds: Sequence[float], workers: int = 1, *, sizes: Sequence[float] | None = None) -> None:
        free = [(0.0, number) for number in range(workers)]
        self.workers = workers
        self.blocks = []
        self.sizes = sizes
        seen: set[int] = set()
        for index, each in enumerate(seconds):
            begin, worker = free[0]
            heapq.heapreplace(free, (begin + each, worker))
            self.blocks.append((begin + each, begin, index, worker not in seen))
            seen.add(worker)
        self.blocks.sort()
        self.ends = [end for end, *_ in self.blocks]

    def look(self, now: float, **changes: object) -> Look:
        """Return what is seen at *now*."""
        count = bisect_right(self.ends, now)
        done, rest = self.blocks[:count], self.blocks[count:]
        times = [end - begin for end, begin, *_ in done]
        firsts = [end - begin for end, begin, _, first in done if first]
        running = [(now - begin, index, first) for _, begin, index, first in rest if begin <= now]
        sizes = self.sizes
        units = [(1.0,) if sizes is None else (1.0, sizes[index]) for _, index, _ in running]
        look = Look(
            at=now,
            blocks=count,
            seconds=sum(times),
            squares=sum(t * t for t in times),
            left=len(rest),
            running=[Running(age, unit, first) for (age, _, first), unit in zip(running, units, strict=True)],
            workers=self.workers,
            ready_workers=self.workers,
            longest=max(times, default=0.0),
            firsts=len(firsts),
            first_seconds=sum(firsts),
            first_squares=sum(t * t for t in firsts),
        )
        if sizes is not None:
            mine = [sizes[index] for _, _, index, first in done if not first]
            waiting = [sizes[index] for _, begin, index, _ in rest if begin > now]
            done_units, rest_units = (float(len(mine)), sum(mine)), (float(len(waiting)), sum(waiting))
            look = look._replace(done=done_units, rest=rest_units)
        return look._replace(**changes)

    def watch(self, until: float, remaining: Remaining | None = None, *, every: float = 0.5, **changes) -> Remaining:
        """Look at the run every so many seconds until that moment."""
        remaining = remaining or Remaining(1 if self.sizes is None else 2)
        for number in range(int(until / every) + 1):
            remaining.look(self.look(number * every, **changes))
        return remaining

    def truth(self, now: float) -> float:
        """Return the time that is left in fact."""
        return self.ends[-1] - now


def value(remaining: Remaining, now: float) -> float:
    """Return the estimate, which must be there."""
    left = remaining.left(now)
    assert left is not None
    return left.value


class TestKnownFaults:
    def test_skipped_blocks_are_no_speed(self):
        """1000 blocks, 900 skipped at once, the rest 1 s each: after 10 s, 90 s are left (KF-47)."""
        assert value(Run([1.0] * 100).watch(10.0), 10.0) == pytest.approx(90.0, rel=0.05)

    def test_blocks_skipped_during_the_run_are_no_speed(self):
        """The same if 900 of them are skipped one by one beside the first block (KF-47)."""
        remaining = Remaining()
        run = Run([1.0] * 100)
        remaining.look(run.look(0.0, left=1000))
        for now in range(1, 11):
            remaining.look(run.look(float(now), skipped=900))
        assert value(remaining, 10.0) == pytest.approx(90.0, rel=0.05)

    def test_long_blocks_have_an_estimate(self):
        """20 blocks of 60 s: 1140 s at t=60, between 1080 and 1140 s at t=90 (KF-48)."""
        run = Run([60.0] * 20)
        remaining = run.watch(60.0)
        assert value(remaining, 60.0) == pytest.approx(1140.0)
        assert 1080 <= value(run.watch(90.0), 90.0) <= 1140

    def test_it_counts_down_until_a_block_is_overdue(self):
        """Between two returns it falls, with every second; of a block that is much too late it says so (KF-48)."""
        run = Run([60.0, 400.0, *[60.0] * 18])
        remaining = run.watch(60.0)
        seen = []
        for now in range(60, 400, 5):
            remaining.look(run.look(float(now)))
            seen.append(value(remaining, now))
        assert seen[:10] == sorted(seen[:10], reverse=True)
        assert seen[9] < 1101
        assert seen[-1] > 1080
        assert all(abs(b - a) < 75 for a, b in pairwise(seen))

    def test_a_slow_first_block_is_forgotten(self):
        """Blocks of 10, 1, 1, 1, 1 s: after them the other 15 are put at 15 s, not at the mean's 42 s (KF-49)."""
        run = Run([10.0, *[1.0] * 19])
        assert 13 <= value(run.watch(14.0), 14.0) <= 17

    def test_a_slow_first_block_is_no_promise(self):
        """While only a short first block is back nothing is said, or most of it would be a warm-up (KF-49)."""
        run = Run([10.0, *[1.0] * 19])
        assert run.watch(10.5).left(10.5) is None

    def test_the_wait_before_it_began_is_no_work(self):
        """2 of 10 blocks of 5 s done after a wait of 10 s for another task: 40 s are left (KF-50)."""
        remaining = Remaining()
        run = Run([5.0] * 10)
        for now in range(10):
            remaining.look(Look(float(now), 0, 0.0, 0.0, 10, (), 0, 0))
        for now in range(10, 21):
            remaining.look(run.look(now - 10.0)._replace(at=float(now)))
        assert value(remaining, 20.0) == pytest.approx(40.0, rel=0.1)

    def test_nothing_to_do(self):
        """No blocks, or none left: 0 s, without a division by zero (KF-56)."""
        remaining = Remaining()
        remaining.look(Look(0.0, 0, 0.0, 0.0, 0))
        assert value(remaining, 0.0) == 0.0

    def test_never_below_zero(self):
        """A last block that drags on leaves no less than 0 s, nor does its range (KF-68)."""
        run = Run([*[1.0] * 9, 30.0])
        remaining = Remaining()
        for now in range(39):
            remaining.look(run.look(float(now)))
            left = remaining.left(now + 100.0)
            assert left is None or (left.value == 0.0 and min(left.low or 0.0, left.high or 0.0) == 0.0)


class TestWorkers:
    @pytest.mark.parametrize("now", [19.0, 20.0, 21.0, 33.0, 39.5])
    def test_workers_in_step(self, now):
        """Eight workers return eight blocks at a time: at any moment the time left is right within half a block."""
        run = Run([10.0 + n % 8 * 0.001 for n in range(80)], 8)
        assert value(run.watch(now), now) == pytest.approx(run.truth(now), abs=6.0)

    def test_the_last_round(self):
        """Nine blocks of 10 s on eight workers take 20 s, not 11.25 s."""
        run = Run([10.0] * 17, 8)
        assert value(run.watch(13.5), 13.5) == pytest.approx(16.5, abs=1.0)

    def test_a_worker_that_is_gone(self):
        """Half of the workers die: the rest takes twice as long from then on."""
        run = Run([2.0] * 200, 8)
        remaining = run.watch(20.0)
        before = value(remaining, 20.0)
        look = run.look(20.5)
        remaining.look(look._replace(workers=4, ready_workers=4, running=look.running[:4]))
        assert value(remaining, 20.5) == pytest.approx(2 * before, rel=0.1)

    def test_workers_that_wait(self):
        """Workers that have nothing to do half of the time make the rest take twice as long."""
        run = Run([1.0] * 100, 4)
        remaining = run.watch(10.0, workers=8, ready_workers=8)
        assert value(remaining, 10.0) == pytest.approx(run.truth(10.0), rel=0.1)

    def test_a_chain_of_levels(self):
        """Ten levels that are left take the time of ten blocks, however many workers there are."""
        run = Run([1.0] * 40, 8)
        assert value(run.watch(2.5, chain=10), 2.5) == pytest.approx(9.5, abs=1.0)

    def test_what_it_waits_for(self):
        """A task that waits for another one ends after it."""
        assert value(Run([1.0] * 40, 8).watch(2.5, upstream=100.0), 2.5) == pytest.approx(101.0, abs=0.5)


class TestUnequalBlocks:
    def test_growing_blocks(self):
        """Blocks that take longer and longer: the time left is that of the longer ones to come."""
        run = Run([0.5 + n / 40 for n in range(200)])
        assert value(run.watch(150.0), 150.0) == pytest.approx(run.truth(150.0), rel=0.1)

    def test_growing_sizes(self):
        """The same where their sizes are known: from the first tenth of the blocks on."""
        sizes = [0.5 + n / 40 for n in range(200)]
        run = Run([3 * size for size in sizes], sizes=sizes)
        assert value(run.watch(30.0), 30.0) == pytest.approx(run.truth(30.0), rel=0.1)

    def test_a_size_that_does_not_matter(self):
        """Blocks that take the same whatever their size: after some of them that is seen."""
        rng = random.Random(1)
        sizes = [rng.choice([0.2, 1.8]) for _ in range(50)] + [1.8] * 50
        run = Run([1.0] * 100, sizes=sizes)
        assert value(run.watch(45.0), 45.0) == pytest.approx(55.0, rel=0.1)

    def test_a_pace_that_changed_is_followed(self):
        """After 20 blocks of 1 s and 40 of 3 s the estimate goes by the later ones."""
        run = Run([*[1.0] * 20, *[3.0] * 80])
        assert value(run.watch(140.0), 140.0) == pytest.approx(40 * 3.0, rel=0.05)

    def test_a_straggler_outlasts_the_rest(self):
        """A block that has run for 20 times the usual is not promised to end at once, and the range says how wide."""
        run = Run([*[1.0] * 40, 60.0, *[1.0] * 39], 4)
        left = run.watch(45.0).left(45.0)
        assert left.value > 8
        assert left.low < run.truth(45.0) < left.high

    def test_a_straggler_that_is_done_is_left_out(self):
        """Once it is back, the blocks behind it are expected to take what blocks usually take."""
        run = Run([*[1.0 + n % 5 / 20 for n in range(100)], 60.0, *[1.0 + n % 5 / 20 for n in range(200)]], 4)
        assert run.blocks[-1][0] > 92
        assert value(run.watch(89.0), 89.0) == pytest.approx(run.truth(89.0), abs=1.0)

    def test_a_straggler_of_known_size(self):
        """What is left of a block that is sixty times as large is known while it runs."""
        sizes = [*[1.0] * 40, 60.0, *[1.0] * 39]
        run = Run(sizes, 4, sizes=sizes)
        assert value(run.watch(30.0), 30.0) == pytest.approx(run.truth(30.0), rel=0.1)

    def test_a_large_block_that_has_not_begun(self):
        """A block to come that outlasts all others decides when the run ends."""
        sizes = [*[1.0] * 79, 60.0]
        run = Run(sizes, 4, sizes=sizes)
        remaining = run.watch(10.0, largest=(35, (1.0, 60.0)))
        assert value(remaining, 10.0) == pytest.approx(run.truth(10.0), rel=0.1)


class TestRange:
    def test_none_with_few_blocks(self):
        """Below five blocks there is no range (D33)."""
        run = Run([60.0] * 20)
        assert run.watch(130.0).left(130.0)[1:3] == (None, None)
        assert None not in run.watch(400.0).left(400.0)[1:3]

    def test_it_holds_the_truth(self):
        """Over noisy runs the range holds what is left in at least 80 of 100 looks, and is no wider than need be."""
        held, looks, wide = 0, 0, []
        for seed in range(12):
            rng = random.Random(seed)
            run = Run([exp(rng.gauss(0.0, 0.4)) for _ in range(160)], 4)
            remaining = Remaining()
            for number in range(0, int(run.ends[-1])):
                remaining.look(run.look(float(number)))
                left = remaining.left(float(number))
                if left is not None and left.low is not None:
                    looks += 1
                    held += left.low <= run.truth(number) <= left.high
                    wide.append((left.high - left.low) / run.ends[-1])
        assert held / looks > 0.8
        assert sum(wide) / len(wide) < 0.3


class TestHistory:
    def test_an_estimate_before_the_first_block(self):
        """With earlier runs there is an estimate, and a range, when nothing is done yet."""
        remaining = Remaining(history=0, history_spread=0.2)
        look = Look(0.0, 0, 0.0, 0.0, 40, (), 4, 4, done=(0.0,), rest=(80.0,))
        remaining.look(look)
        left = remaining.left(0.0)
        assert left.source == "history"
        assert left.value == pytest.approx(20.0, rel=0.1)
        assert left.low < 20.0 < left.high

    def test_this_run_wins(self):
        """A machine that is three times as slow as in earlier runs is seen after some blocks."""
        remaining = Remaining(history=0, history_spread=0.1)
        run = Run([3.0] * 100)
        for now in range(0, 91):
            look = run.look(float(now))
            waiting = look.left - len(look.running)
            remaining.look(look._replace(done=(float(look.blocks - look.firsts),), rest=(float(waiting),)))
        assert remaining.left(90.0).source == "run"
        assert value(remaining, 90.0) == pytest.approx(210.0, rel=0.05)


class TestCost:
    def test_memory_is_flat(self):
        """Ten million blocks are watched in as much memory as a hundred (R55)."""
        remaining = Remaining()
        for number in range(500):
            remaining.look(Look(0.5 * number, 500 * number, 0.5 * number, 0.0005 * number, 10**7 - 500 * number))
        assert value(remaining, 249.5) == pytest.approx((10**7 - 500 * 499) / 1000, rel=0.02)
        assert len(remaining._bins) <= 49

    def test_a_look_is_cheap(self):
        """A look takes about as long as a picture, and there are two in a second."""
        run = Run([1.0] * 400, 8)
        remaining = run.watch(40.0)
        looks = [run.look(40.0 + n / 10) for n in range(20)]
        begin = time.thread_time()
        for look in looks:
            remaining.look(look)
        assert (time.thread_time() - begin) / len(looks) < 0.01

    def test_a_clock_that_stands_still(self):
        """Blocks that took no time are put at no time."""
        remaining = Remaining()
        remaining.look(Look(0.0, 0, 0.0, 0.0, 10))
        remaining.look(Look(0.0, 5, 0.0, 0.0, 5))
        assert value(remaining, 0.0) == 0.0

    def test_numbers_at_the_edge(self):
        """Times as small or as large as floats go give a number or nothing, never an error."""
        for each in (5e-324, 1e-300, 1e150):
            remaining = Remaining()
            for done in range(8):
                remaining.look(Look(float(done), done, done * each, done * each * each, 10 - done))
                left = remaining.left(float(done))
                assert left is None or left.value >= 0.0
