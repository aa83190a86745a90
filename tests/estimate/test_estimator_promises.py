"""What every estimate promises (E83-E89), whatever was measured."""

from __future__ import annotations

import math
import random
import time
import warnings
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspan.estimate.estimator import Estimator, Prediction
from workspan.estimate.order import ComputationalOrder

SIZES = st.one_of(st.just(0.0), st.floats(1e-3, 1e12))
TIMES = st.one_of(st.just(0.0), st.floats(1e-7, 1e6))
DATA = st.lists(st.tuples(SIZES, TIMES), min_size=1, max_size=20)
ORDERS = st.sampled_from([*ComputationalOrder, "auto"])
MONOTONE = st.sampled_from([None, True, False])
MONOTONES = pytest.mark.parametrize("monotone", [None, True, False])
few = settings(max_examples=25, deadline=None)


def value(estimator: Estimator, N_ref: float) -> float:
    found = estimator.predict(N_ref).value
    assert found is not None
    return found


@few
@given(DATA, ORDERS, MONOTONE, st.lists(st.floats(0.0, 1e15), min_size=1, max_size=8))
def test_estimate_is_never_negative_or_nan(data, order, monotone, sizes):
    """E85, E87, R61: any finite size has a finite estimate of at least 0, within its interval, as Python floats."""
    estimator = Estimator(order, monotone=monotone).fit(data)
    for size in [*sizes, *(size for size, _ in data)]:
        found = estimator.predict(size)
        if found.value is None:
            assert found.source == "none"
            continue
        assert type(found.value) is float
        assert 0.0 <= found.value < math.inf
        if len(data) < 5:
            assert found.low is found.high is None
        elif found.source == "model":
            assert 0.0 <= found.low <= found.value <= found.high < math.inf


@few
@given(DATA, ORDERS, MONOTONE, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5))
def test_no_overshoot_between_measurements(data, order, monotone, parts):
    """E83: between two neighbouring measured sizes the curve stays within its values at these."""
    estimator = Estimator(order, monotone=monotone).fit(data)
    known = sorted({size for size, _ in estimator.measurements})
    for left, right in pairwise(known):
        ends = sorted((value(estimator, left), value(estimator, right)))
        for part in parts:
            inside = value(estimator, min(left + part * (right - left), right))
            assert ends[0] * (1 - 1e-9) <= inside <= ends[1] * (1 + 1e-9)


@few
@given(
    DATA,
    st.sampled_from(["O_LOG_N", "O_N", "O_N_LOG_N", "O_N_2", "O_N_3", "auto"]),
    MONOTONE,
    st.lists(st.one_of(st.floats(1.0, 1e3), st.floats(1e3, 1e9)), min_size=1, max_size=6),
)
def test_growth_beyond_measurements_is_bounded(data, order, monotone, factors):
    """E84, D33: beyond the largest N the estimate does not fall, and grows no faster than in proportion to N."""
    estimator = Estimator(order, monotone=monotone).fit(data)
    convert = ComputationalOrder(estimator.order)
    last = max(size for size, _ in estimator.measurements)
    at_last, before = value(estimator, last), 0.0
    for factor in sorted(factors):
        found = value(estimator, last * factor)
        ratio = convert(last * factor) / convert(last) if convert(last) else math.inf
        assert at_last * (1 - 1e-9) <= found <= at_last * ratio * (1 + 1e-9)
        assert found >= before * (1 - 1e-9)
        before = found


def test_no_fall_beyond_sizes_whose_logarithm_is_none():
    """E52, E84: where N is 0 for all measured sizes, as ln up to 1 is, larger ones are not expected to be quicker."""
    estimator = Estimator("O_LOG_N").fit([(0.0, 0.0), (0.5, 1.0)])
    values = [value(estimator, size) for size in (0.5, 0.75, 1.0, 2.0, 1e6)]
    assert values == sorted(values)


@few
@given(DATA, MONOTONE, st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6))
def test_below_measurements_the_estimate_falls_to_its_value_at_zero(data, monotone, parts):
    """E84: below the smallest size the estimate is between the value at 0 and the one at the smallest size."""
    estimator = Estimator("O_N", monotone=monotone).fit(data)
    first = min(size for size, _ in estimator.measurements)
    found = [value(estimator, part * first) for part in [0.0, *sorted(parts), 1.0]]
    assert found == pytest.approx(sorted(found), rel=1e-9)


@few
@given(DATA, ORDERS, st.lists(st.floats(0.0, 1e13), min_size=2, max_size=10))
def test_monotone_estimate_never_falls(data, order, sizes):
    """E86: with monotone=True a larger size never has a smaller estimate."""
    estimator = Estimator(order, monotone=True).fit(data)
    everything = sorted([*sizes, *(size for size, _ in data)])
    found = [v for size in everything if (v := estimator.predict(size).value) is not None]
    assert found == pytest.approx(sorted(found), rel=1e-9)


@few
@given(
    st.floats(0.0, 100.0),
    st.floats(1e-3, 10.0),
    st.lists(st.floats(1.0, 1e6), min_size=3, max_size=30, unique=True),
    st.sampled_from(["O_LOG_N", "O_N", "O_N_LOG_N", "O_N_2", "O_N_3"]),
)
def test_exact_law_is_reproduced(constant, slope, sizes, order):
    """E83, D33: data that lie on a + b * order(N) are reproduced at the points to 1e-6."""
    convert = ComputationalOrder(order)
    data = [(size, constant + slope * convert(size)) for size in sizes]
    data = [(size, dt) for size, dt in data if dt > 1e-6] or [(2.0, 1.0)]
    estimator = Estimator(order).fit(data)
    for size, dt in data:
        assert value(estimator, size) == pytest.approx(dt, rel=1e-6)


def test_noisy_line_is_found():
    """E83: 20 points of a + b * N with 5 % of noise have a median error of at most 10 %."""
    rng = random.Random(1)
    sizes = [10 ** rng.uniform(3, 7) for _ in range(20)]
    estimator = Estimator("O_N").fit([(n, (2.0 + 1e-5 * n) * rng.gauss(1.0, 0.05)) for n in sizes])
    errors = sorted(abs(value(estimator, n) / (2.0 + 1e-5 * n) - 1.0) for n in sizes)
    assert errors[10] <= 0.1


def test_extrapolation_of_the_description():
    """E84: the three points that a spline takes to 1442 s at 1e10 give 14 to 112 s."""
    estimator = Estimator("O_N").fit([(1e9, 5.0), (2e9, 5.2), (3e9, 14.0)])
    assert 5.0 <= value(estimator, 3e9) <= 14.0 * 1.001
    assert 5.0 <= value(estimator, 1e10) <= 112.0


@pytest.mark.parametrize("position", [0, 3, 6])
@pytest.mark.parametrize("others", [0, 10])
def test_one_outlier_does_not_move_the_estimate(position, others):
    """E88, R61: one run 100 times too long among at least five of its size moves the estimate by less than 25 %."""
    rng = random.Random(7)
    data = [(1e6 * 2**i, 0.5 * 2**i * rng.gauss(1, 0.03)) for i in range(1, others)]
    same = [(1e6, 0.5 * rng.gauss(1, 0.03)) for _ in range(6)]
    before = value(Estimator("O_N").fit([*data, *same]), 1e6)
    same.insert(position, (1e6, 50.0))
    assert value(Estimator("O_N").fit([*data, *same]), 1e6) == pytest.approx(before, rel=0.25)


@pytest.mark.parametrize("factor", [0.3, 2.0, 5.0])
@pytest.mark.parametrize("spread", [1, 4])
def test_lasting_change_is_followed(factor, spread):
    """E88: five runs in a row at a new level bring the estimate within 20 % of it, through fit and update alike."""
    rng = random.Random(3)
    data = [(1e6 * 2 ** (i % spread), 0.5 * 2 ** (i % spread) * rng.gauss(1, 0.03)) for i in range(30)]
    late = [(1e6 * 2 ** (i % spread), 0.5 * factor * 2 ** (i % spread) * rng.gauss(1, 0.03)) for i in range(5)]
    assert value(Estimator("O_N").fit(data + late), 1e6) == pytest.approx(0.5 * factor, rel=0.2)
    learning = Estimator("O_N").fit(data)
    for pair in late:
        learning.update(*pair)
    assert value(learning, 1e6) == pytest.approx(0.5 * factor, rel=0.2)


def test_interval_covers():
    """E87: with multiplicative noise from 20 measurements on, a 90 % interval holds 80 to 99 % of the runs."""
    rng = random.Random(5)
    inside = total = 0
    for _ in range(12):
        data = [
            (n, (1.0 + 1e-6 * n) * rng.lognormvariate(0.0, 0.2)) for n in (10 ** rng.uniform(4, 8) for _ in range(60))
        ]
        estimator = Estimator("O_N").fit(data[:40])
        for n, dt in data[40:]:
            found = estimator.predict(n)
            inside += found.low <= dt <= found.high
            total += 1
    assert 0.80 <= inside / total <= 0.99


def test_interval_grows_away_from_the_data():
    """E87: beyond the measurements the interval is never narrower than at their end, and grows."""
    rng = random.Random(5)
    data = [(n, 1e-6 * n * rng.lognormvariate(0.0, 0.2)) for n in (10 ** rng.uniform(4, 6) for _ in range(30))]
    estimator = Estimator("O_N").fit(data)
    for end, step in ((max(data)[0], 3.0), (min(data)[0], 1 / 3.0)):
        widths = [math.log(f.high / f.low) for f in (estimator.predict(end * step**i) for i in range(6))]
        assert widths == sorted(widths)
        assert widths[-1] > widths[0] + 0.1


def test_step_that_is_not_monotone_keeps_its_falls():
    """D17, E86: repeated measurements override growth, as an FFT at a prime length needs; True enforces it."""
    data = [(1000.0, 1.0), (1009.0, 9.0), (1024.0, 0.8)] * 6
    free = Estimator("O_N_LOG_N").fit(data)
    assert value(free, 1009.0) == pytest.approx(9.0, rel=0.05)
    assert value(free, 1024.0) == pytest.approx(0.8, rel=0.05)
    forced = Estimator("O_N_LOG_N", monotone=True).fit(data)
    assert value(forced, 1024.0) >= value(forced, 1009.0) >= value(forced, 1000.0)


def test_fit_is_deterministic():
    """E89: the same data give the same answers."""
    data = [(float(n), n**0.7) for n in range(1, 30)]
    assert Estimator("O_N").fit(data).predict(12.5) == Estimator("O_N").fit(data).predict(12.5)


def test_fit_and_evaluation_are_quick():
    """E89, D33: a fit of 50 points takes some milliseconds, a warm evaluation about a microsecond."""
    rng = random.Random(2)
    data = [(10 ** rng.uniform(3, 9), 10 ** rng.uniform(-2, 3)) for _ in range(50)]
    estimator = Estimator("O_N").fit(data)

    def best(act, times: int) -> float:
        def once() -> float:
            begin = time.thread_time()  # of this thread: others may be busy
            for _ in range(times):
                act()
            return (time.thread_time() - begin) / times

        return min(once() for _ in range(5))

    assert best(lambda: estimator.fit(data), 1) <= 20e-3  # 10 ms on a quiet machine: benchmarks/bench_estimator.py
    assert best(lambda: estimator.predict(5e5), 1000) <= 2e-6
    assert isinstance(estimator.predict(5e5), Prediction)


def test_repeated_and_unsorted_sizes():
    """KF-62: sizes that repeat or are out of order are one point each, the median of their times."""
    estimator = Estimator("O_N").fit([(2, 4.0), (1, 1.0), (1, 3.0)])
    assert value(estimator, 1) == pytest.approx(2.0, rel=0.1)
    assert value(estimator, 2) == pytest.approx(4.0, rel=0.1)
    assert value(Estimator("O_N").fit([(1, 1.0)] * 3), 1) == 1.0


@pytest.mark.parametrize(
    ("points", "beyond"),
    [([(0, 0), (1, 1), (2, 3), (3, 3.5)], 5), ([(0, 0), (1e8, 1.0), (2e8, 1.1), (4e8, 1.15)], 1.6e9)],
)
@MONOTONES
def test_points_on_which_a_cubic_runs_away(points, beyond, monotone):
    """KF-63: not below 0 within, beyond not below the largest time nor above proportion, and said to be beyond."""
    estimator = Estimator("O_N", monotone=monotone).fit(points)
    last, most = points[-1]
    grid = [value(estimator, beyond * part / 100) for part in range(101)]
    assert min(grid) >= 0
    assert all(most * 0.999 <= dt <= most * max(1.0, beyond / last) for dt in grid[-1:])
    assert "all of them smaller" in estimator.predict(beyond).basis


@pytest.mark.parametrize(
    "measured",
    [
        [(1e308, 1.0), (1.0, 1.0)],
        [(1e-300, 1.0), (1e300, 2.0), (1.0, 1.0)] * 3,
        [(1.0, 1e300)] * 6,
        [(float(i), 10.0 ** (i % 2 * 300)) for i in range(10)],
    ],
)
@pytest.mark.parametrize("order", list(ComputationalOrder))
def test_numbers_at_the_ends_of_floats_warn_of_nothing(measured, order):
    """No numeric warning, which with -W error would lose the estimate, and finite answers (E52, E85, R61)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator = Estimator(order).fit(measured)
        found = [estimator.predict(size) for size in (0.0, 1e-320, 1.0, 1e10, 1.7e308)]
    for each in found:
        assert each.value is None or 0.0 <= each.value < math.inf
        assert each.low is None or 0.0 <= each.low <= each.value <= each.high < math.inf
