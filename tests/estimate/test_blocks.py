"""Times of blocks, learned from blocks: the mean, the spread, the warm-up, and how runs differ."""

from __future__ import annotations

import numpy as np
import pytest

from workspan.estimate.blocks import NO_DATA, BlockTimes


def test_without_a_measurement_the_answer_says_so() -> None:
    """No data: the default of the estimator, named as such, no interval, and nothing to sum (D33, E75)."""
    times = BlockTimes.fit([], [])
    found = times.predict(1e9)
    assert (found.value, found.low, found.high, found.source, found.basis) == (3.0, None, None, "default", NO_DATA)
    assert np.isnan(times.expected([1.0, 2.0])).all()
    assert (times.count, times.runs, times.source) == (0, 0, "default")


def test_the_mean_is_predicted_so_that_sums_are_right() -> None:
    """With stragglers the median would forecast too little work: the mean counts (D32)."""
    seconds = np.full(200, 0.1)
    seconds[::20] = 2.0
    times = BlockTimes.fit(np.full(200, 50.0), seconds)
    assert times.expected(np.full(200, 50.0)).sum() == pytest.approx(seconds.sum(), rel=1e-6)
    assert times.predict(50).value == pytest.approx(seconds.mean(), rel=1e-6)
    drawn = times.sample(np.random.default_rng(0), np.full(20_000, 50.0))
    assert drawn.mean() == pytest.approx(seconds.mean(), rel=0.05)
    assert set(np.round(drawn, 6)) == {0.1, 2.0}


def test_time_grows_with_size_as_measured() -> None:
    """A size between two measured ones is predicted between them (D32, D33)."""
    times = BlockTimes.fit([1000.0] * 10 + [4000.0] * 10, [0.2] * 10 + [0.5] * 10)
    assert times.predict(2000).value == pytest.approx(0.3, rel=0.1)
    assert times.predict(1000).value == pytest.approx(0.2, rel=0.02)


def test_few_blocks_have_no_interval() -> None:
    """Below five measurements nothing is said of the spread (D33)."""
    assert BlockTimes.fit([1.0] * 4, [1.0, 2.0, 1.0, 2.0]).predict(1).low is None
    found = BlockTimes.fit([1.0] * 5, [1.0, 2.0, 1.0, 2.0, 1.0]).predict(1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.4 < found.high


def test_the_interval_holds_its_share_of_blocks() -> None:
    """Nine in ten blocks of a wide distribution lie inside (D33)."""
    rng = np.random.default_rng(1)
    seconds = rng.lognormal(0.0, 0.8, 4000)
    found = BlockTimes.fit(np.ones(2000), seconds[:2000]).predict(1)
    assert found.low is not None
    assert found.high is not None
    assert np.mean((seconds[2000:] >= found.low) & (seconds[2000:] <= found.high)) == pytest.approx(0.9, abs=0.04)


def test_the_first_block_of_a_worker_is_not_a_usual_one() -> None:
    """What first blocks take longer is the warm-up; it does not enter the time of the others (D32)."""
    seconds = [1.5, 0.5, 0.5, 0.5, 1.7, 0.5, 0.5, 0.5]
    times = BlockTimes.fit(np.ones(8), seconds, first=[True, False, False, False] * 2)
    assert times.warm_up_seconds == pytest.approx(1.1)
    assert times.predict(1).value == pytest.approx(0.5)
    assert times.sample_warm_up(np.random.default_rng(0), 50).mean() == pytest.approx(1.1, abs=0.1)
    assert BlockTimes.fit(np.ones(2), [1.5, 1.7], first=[True, True]).predict(1).value == pytest.approx(1.6)


def test_runs_that_differ_widen_what_is_said_of_the_next_one() -> None:
    """Two runs of which one was twice as slow leave more open than two alike; a single one leaves the guess (D33)."""
    ones = np.ones(100)
    runs = np.repeat([0, 1], 50)
    alike = BlockTimes.fit(ones, ones, runs=runs)
    unlike = BlockTimes.fit(ones, np.repeat([1.0, 2.0], 50), runs=runs)
    rng = np.random.default_rng(2)
    narrow, wide = (np.std(np.log(times.run_factors(rng, 4000))) for times in (alike, unlike))
    assert 0.02 < narrow < 0.2 < wide
    assert alike.basis == "100 blocks of 2 runs"


def test_runs_with_as_many_workers_count_most() -> None:
    """Two workers slow each other down here: two are asked about, two were measured (D32)."""
    times = BlockTimes.fit(
        np.ones(100), np.repeat([1.0, 1.5, 1.0, 1.5], 25), runs=np.repeat([0, 1, 2, 3], 25), workers=[1, 2, 1, 2]
    )
    assert times.predict(1, workers=1).value == pytest.approx(1.0, rel=0.05)
    assert times.predict(1, workers=2).value == pytest.approx(1.5, rel=0.05)


def test_rows_can_stand_for_many_blocks() -> None:
    """A summary's slices, with their numbers, give what the blocks themselves give (D32)."""
    rng = np.random.default_rng(3)
    seconds = np.sort(rng.lognormal(0.0, 0.5, 1000))
    slices = seconds.reshape(50, 20).mean(1)
    whole = BlockTimes.fit(np.ones(1000), seconds)
    short = BlockTimes.fit(np.ones(50), slices, weights=np.full(50, 20.0))
    assert short.count == 1000
    assert short.predict(1).value == pytest.approx(whole.predict(1).value, rel=1e-3)


def test_blocks_that_take_no_time_are_measurements_too() -> None:
    """Blocks granted ahead return several at once, most after 0 s: their sum is what counts (D32)."""
    times = BlockTimes.fit(np.ones(400), np.tile([0.0, 0.0, 0.0, 0.004], 100))
    assert times.expected(np.ones(400)).sum() == pytest.approx(0.4, rel=0.01)


def test_what_is_no_time_is_left_out() -> None:
    """NaN, infinite and negative times and sizes that are not above 0 are no measurements (E80)."""
    times = BlockTimes.fit([1, 1, 0, np.nan, 1, 1], [np.nan, -1.0, 1.0, 1.0, np.inf, 2.0])
    assert times.count == 1
    assert times.predict(1).value == pytest.approx(2.0)
    assert times.predict(float("nan")).value is None
