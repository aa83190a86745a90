from __future__ import annotations

import pytest

from workspan.views.eta import Eta


@pytest.fixture
def run(make):
    """Return a function that feeds ``(time, executed, processing)`` looks at a task to an :class:`Eta`."""

    def feed(total: int, looks, *, skipped: int = 0, **counters) -> Eta:
        eta = Eta()
        for now, executed, processing in looks:
            eta.update(
                make.state("t", total, executed + skipped, skipped=skipped, processing=processing, **counters), now
            )
        return eta

    return feed


def one_worker(*durations: float, every: float | None = None) -> list[tuple[float, int, int]]:
    """Looks at a single worker whose blocks take *durations*: at each return, or *every* so many seconds."""
    ends = [sum(durations[: n + 1]) for n in range(len(durations))]
    times = ends if every is None else [every * n for n in range(1, int(ends[-1] / every) + 1)]
    return [(0.0, 0, 0), (0.0, 0, 1), *((now, sum(end <= now for end in ends), 1) for now in times)]


class TestKnownFaults:
    def test_skipped_blocks_are_no_speed(self, run):
        """1000 blocks, 900 skipped at once, the rest 1 s each: after 10 s, 90 s are left (KF-47)."""
        eta = run(1000, [(0.0, 0, 0), (0.0, 0, 1), *((float(t), t, 1) for t in range(1, 11))], skipped=900)
        assert eta.seconds(10.0) == pytest.approx(90.0, rel=0.05)

    def test_blocks_skipped_during_the_run_are_no_speed(self, make):
        """The same if the 900 are skipped between two looks, beside the first block (KF-47)."""
        eta = Eta()
        eta.update(make.state("t", 1000, 0), 0.0)
        for now in range(1, 11):
            eta.update(make.state("t", 1000, 900 + now, skipped=900, processing=1), float(now))
        assert eta.seconds(10.0) == pytest.approx(90.0, rel=0.05)

    def test_long_blocks_have_an_estimate(self, run):
        """20 blocks of 60 s: 1140 s at t=60, between 1080 and 1140 s at t=90 (KF-48)."""
        eta = run(20, one_worker(60.0))
        assert eta.seconds(60.0) == pytest.approx(1140.0)
        assert 1080 <= eta.seconds(90.0) <= 1140

    def test_never_blank_and_never_rising_after_the_first_block(self, run):
        """Between two returns the estimate falls, and stops at the blocks that are not begun (KF-48)."""
        eta = run(20, one_worker(60.0))
        seen = [eta.seconds(now) for now in range(60, 400, 10)]
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] == pytest.approx(1080.0)

    def test_a_slow_first_block_is_forgotten(self, run):
        """Blocks of 10, 1, 1, 1, 1 s: after them the other 15 are put at 15 s, not at the mean's 42 s (KF-49)."""
        eta = run(20, one_worker(10.0, 1.0, 1.0, 1.0, 1.0))
        assert 13 <= eta.seconds(14.0) <= 22

    def test_each_task_has_its_own_speed(self, run):
        """Task B, 2 of 10 blocks of 5 s done after task A's ten of 1 s: 40 s are left (KF-50)."""
        waiting = [(float(t), 0, 0) for t in range(11)]
        running = [(float(t), (t - 10) // 5, 1) for t in range(11, 21)]
        eta = run(10, waiting + running)
        assert eta.seconds(20.0) == pytest.approx(40.0, rel=0.1)

    def test_nothing_to_do(self, run):
        """No blocks, or none left: 0 s, without a division by zero (KF-56)."""
        assert run(0, [(0.0, 0, 0)]).seconds(0.0) == 0.0
        assert run(10, [(0.0, 0, 0)], skipped=10).seconds(0.0) == 0.0


class TestBatches:
    def test_returns_in_batches(self, run):
        """Eight workers in step, 10 s a block: right after the second burst the pace is 8 in 10 s, not 8 in 0 s."""
        burst = [(10.0 + n * 0.001, n, 8) for n in range(1, 9)] + [(20.0 + n * 0.001, 8 + n, 8) for n in range(1, 9)]
        eta = run(80, [(0.0, 0, 0), (0.1, 0, 8), *burst])
        assert eta.seconds(20.01) == pytest.approx(80.0, rel=0.05)

    def test_the_end_of_the_first_burst(self, run):
        """Eight returns within 8 ms after 10 s are a pace of 8 in 10 s too."""
        eta = run(80, [(0.0, 0, 0), (0.1, 0, 8), *((10.0 + n * 0.001, n, 8) for n in range(1, 9))])
        assert eta.seconds(10.01) == pytest.approx(90.0, rel=0.05)

    def test_blocks_of_two_kinds(self, run):
        """Every fourth block takes 9 s, the others 1 s: the estimate is about the mean, wherever one looks."""
        durations = [1.0, 1.0, 1.0, 9.0] * 10
        for done in (30, 31, 32, 33):
            eta = run(40, one_worker(*durations[:done]))
            assert eta.seconds(sum(durations[:done])) == pytest.approx(sum(durations[done:]), rel=0.45, abs=3.0)

    def test_the_middle_of_a_burst(self, run):
        """Half-way through a burst the estimate is off by less than one batch."""
        looks = [(0.0, 0, 0), *((10.0 * b + n * 0.001, 8 * (b - 1) + n, 8) for b in (1, 2, 3) for n in range(1, 9))]
        eta = run(80, looks[: 1 + 20])
        assert eta.seconds(30.005) == pytest.approx(10.0 * (80 - 20) / 8, abs=10.0 * 2)

    def test_a_pace_that_changed_is_followed(self, run):
        """After 20 blocks of 1 s and 40 of 3 s the estimate goes by the later ones."""
        eta = run(100, one_worker(*[1.0] * 20, *[3.0] * 40))
        assert eta.seconds(140.0) == pytest.approx(40 * 3.0, rel=0.05)

    def test_many_blocks_between_two_looks(self, run):
        """Blocks of a millisecond, looked at twice a second: the speed is right and memory does not grow (R55)."""
        eta = run(10**7, [(0.0, 0, 0), *((0.5 * n, 500 * n, 2) for n in range(1, 3000))])
        assert eta.seconds(1499.5) == pytest.approx((10**7 - 500 * 2999) / 1000, rel=0.01)
        assert len(eta._samples) <= 64


class TestBounds:
    def test_unknown_before_the_first_block(self, run):
        """Nothing has come back: no estimate, rather than a guess."""
        assert run(20, [(0.0, 0, 0), (5.0, 0, 2)]).seconds(5.0) is None

    def test_never_below_zero(self, run):
        """A last block that drags on leaves 0 s, not less (KF-68)."""
        assert run(10, one_worker(*[1.0] * 9)).seconds(60.0) == 0.0

    def test_a_clock_that_stands_still(self, run):
        """Blocks that took no time are put at no time."""
        assert run(10, [(0.0, 0, 0), (0.0, 5, 1)]).seconds(0.0) == 0.0

    def test_failed_and_orphaned_blocks_are_not_waited_for(self, run):
        """A failed block took its time and is not left; an orphaned one is not left either."""
        eta = run(10, one_worker(1.0, 1.0, 1.0), failed=2, orphaned=1)
        assert eta.seconds(3.0) == pytest.approx(4 * 3.0 / 3, rel=0.5)
        assert run(10, one_worker(1.0, 1.0, 1.0), failed=5, orphaned=2).seconds(3.0) == 0.0

    def test_the_wait_for_input_is_no_work(self, run):
        """A task that begins after an hour is timed from that moment."""
        eta = run(10, [(0.0, 0, 0), (3600.0, 0, 0), (3600.5, 0, 1), (3601.0, 1, 1)])
        assert eta.began_at == 3600.0
        assert eta.seconds(3601.0) == pytest.approx(9.0)

    def test_an_observer_that_came_late(self, run):
        """What was executed before the first look is not taken for speed."""
        eta = run(100, [(0.0, 50, 1), (1.0, 51, 1)])
        assert eta.seconds(1.0) == pytest.approx(49.0)
