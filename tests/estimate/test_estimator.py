"""The estimator's life: before data, learning, what it shows and stores."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest
from scipy.interpolate import splev

from workspan.errors import ConfigurationError
from workspan.estimate.estimator import Estimator
from workspan.estimate.order import ComputationalOrder
from workspan.estimate.spline import evaluate, sample


@pytest.mark.parametrize(
    ("order", "size", "seconds"),
    [("O_N", 1e9, 3.0), ("O_N", 5e9, 15.0), ("O_0", 7.0, 3.0), ("O_N_2", 2e9, 12.0), ("O_N_LOG_N", 1e9, 3.0)],
)
def test_default_is_linear_in_n(order, size, seconds):
    """E75: without measurements every order expects 3.0 s at 1e9, with no interval and marked as the default."""
    found = Estimator(order).predict(size)
    assert found.value == pytest.approx(seconds)
    assert (found.low, found.high, found.source) == (None, None, "default")
    assert found.basis == "no data yet: 3 s for a size of 1e+09 is assumed"


def test_default_without_a_reference_is_no_estimate():
    """E75: where the order has no N for the default size there is no estimate."""
    assert Estimator(lambda n: 0.0).predict(5.0).value is None
    assert Estimator("O_N_3", default_size=1e200).predict(5.0).value is None


@pytest.mark.parametrize("size", [None, math.nan, math.inf, -1.0, "7", True, [1]])
def test_unusable_size_has_no_estimate(size):
    """E36, E37: what is not a size has no estimate, before and after learning, and nothing is raised."""
    for estimator in (Estimator("O_N"), Estimator("O_N").fit([(1.0, 1.0)])):
        found = estimator.predict(size)
        assert (found.value, found.source, found.basis) == (None, "none", "no size to estimate from")


def test_prediction_says_where_it_comes_from():
    """D33: source and basis name the runs and whether the size is among them; nothing can be changed."""
    estimator = Estimator("O_N").fit([(1e3, 1.0), (1e4, 10.0)])
    assert estimator.predict(5e3).basis == "from 2 runs"
    assert estimator.predict(5e5).basis == "from 2 runs, all of them smaller"
    assert estimator.predict(5.0).basis == "from 2 runs, all of them larger"
    with pytest.raises(AttributeError):
        estimator.predict(5.0).value = 1.0


def test_no_interval_below_five_measurements():
    """D33: four measurements give no interval, five do."""
    data = [(n, n * 1e-6) for n in (1e5, 2e5, 4e5, 8e5, 1e6)]
    assert Estimator("O_N").fit(data[:4]).predict(3e5).low is None
    assert Estimator("O_N").fit(data).predict(3e5).low is not None


def test_an_interval_is_made_of_five_measurements():
    """D33, E87: the fifth fits anew where the curve was of fewer, so that no interval comes from four; exact: not."""
    runs = [(1e6, 2.0), (2e6, 4.0), (3e6, 6.0), (2e6, 4.1), (1e6, 2.1)]
    learning = Estimator("O_N")
    assert [learning.update(*run) for run in runs] == [False, False, True, False, True]
    assert learning.predict(2.5e6) == Estimator("O_N").fit(runs).predict(2.5e6)
    exact = Estimator("O_N").fit(runs[:4])
    assert not exact.update(2e6, exact.predict(2e6).value)
    assert exact.predict(2e6).low is not None


def test_all_runs_are_told_of_and_not_those_of_the_last_fit():
    """D33: the basis counts every run, also those that the curve was right about, and knows their sizes."""
    estimator = Estimator("O_N", max_measurements=8).fit([(n * 1e6, n * 2.0) for n in (1, 2, 3, 1, 2)])
    assert not estimator.update(4e6, estimator.predict(4e6).value * 1.01)
    assert estimator.predict(2e6).basis == "from 6 runs"
    assert estimator.predict(4e6).basis == "from 6 runs"
    assert estimator.predict(4.1e6).basis == "from 6 runs, all of them smaller"
    for runs in (7, 8, 8):
        estimator.agree(0.5e6)
        assert estimator.predict(0.6e6).basis == f"from {runs} runs"
    many = Estimator("O_N", max_measurements=8).fit([(n * 1e6, n * 2.0) for n in range(1, 13)])
    assert many.predict(2e6).basis == "from 12 runs"


def test_the_default_tells_how_many_runs_there_are():
    """E75, E77: below the minimum count the default says how many of them are there, for a size without one too."""
    estimator = Estimator("O_N", update_minimum_count=3)
    for known in ("no data yet", "1 of 3 runs so far", "2 of 3 runs so far"):
        assert estimator.predict(1e9).basis == f"{known}: 3 s for a size of 1e+09 is assumed"
        estimator.update(1e9, 2.0)
    none = Estimator(lambda n: n if n < 5 else 0.0)
    none.update(1.0, 2.0)
    assert none.predict(2.0).basis == "1 of 3 runs so far, and no default for this order"


def test_fit_leaves_out_what_is_no_measurement():
    """E57, E62, E81: unusable pairs are left out, dt of 0 is not, and nothing usable changes nothing."""
    estimator = Estimator("O_N").fit([(1.0, 2.0), (None, 1.0), (2.0, math.nan), (3.0, -1.0), (4.0, 0.0)])
    assert estimator.measurements == [(1.0, 2.0), (4.0, 0.0)]
    assert estimator.fit([(math.nan, 1.0)]).measurements == [(1.0, 2.0), (4.0, 0.0)]


def test_update_waits_for_enough_measurements():
    """E77: below the minimum count the default stays."""
    estimator = Estimator("O_N", update_minimum_count=3)
    assert [estimator.update(1e6, 2.0) for _ in range(3)] == [False, False, True]
    assert estimator.source == "model"
    assert estimator.predict(1e6).value == pytest.approx(2.0)


def test_update_keeps_the_curve_while_it_is_right():
    """E77: neither an exact estimate nor one within the threshold or the floor fits anew; a wrong one does."""
    estimator = Estimator("O_N").fit([(1e6, 2.0), (2e6, 4.0), (3e6, 6.0), (2e6, 4.0), (3e6, 6.0)])
    assert not estimator.update(2e6, estimator.predict(2e6).value)
    assert not estimator.update(2e6, 4.5)
    assert estimator.update(2e6, 9.0)
    quick = Estimator("O_N").fit([(1e6, 1e-5), (2e6, 2e-5), (3e6, 3e-5)])
    assert not quick.update(2e6, 9e-4)


def test_the_threshold_itself_is_no_reason_to_fit():
    """E77: an error of exactly the threshold keeps the curve, the least bit more does not."""
    data = [(1.0, 0.8), (2.0, 0.8), (3.0, 0.8)]
    error = abs(Estimator("O_N").fit(data).predict(2.0).value - 1.0)  # of a run that takes 1 s
    assert not Estimator("O_N", update_threshold=error).fit(data).update(2.0, 1.0)
    assert Estimator("O_N", update_threshold=math.nextafter(error, 0.0)).fit(data).update(2.0, 1.0)


def test_bias_below_the_threshold_is_corrected():
    """D33: between fits a local correction follows what the curve misses by, at this size and in part at others."""
    estimator = Estimator("O_N").fit([(1e6, 2.0), (2e6, 4.0), (3e6, 6.0)] * 12)
    for _ in range(6):
        assert not estimator.update(2e6, 4.6)
    assert estimator.predict(2e6).value == pytest.approx(4.6, rel=0.03)
    assert 2.05 < estimator.predict(1e6).value < 2.3


def test_the_interval_learns_from_what_it_was_right_about():
    """E77, E87: after 30 runs within the threshold the interval is nearly as narrow as one fitted to all of them."""
    rng = random.Random(4)
    runs = [(n, n * 2e-6 * rng.uniform(0.93, 1.07)) for n in (rng.uniform(1e6, 4e6) for _ in range(35))]
    learning = Estimator("O_N").fit(runs[:5])
    for run in runs[5:]:
        learning.update(*run)
    fitted = Estimator("O_N").fit(runs)

    def width(estimator):
        found = estimator.predict(2e6)
        return found.high / found.low

    assert width(learning) < 1.15 * width(fitted)


def test_update_keeps_the_newest_measurements():
    """E58: no more than `max_measurements` are kept."""
    estimator = Estimator("O_N", max_measurements=5)
    for n in range(1, 9):
        estimator.update(float(n), float(n))
    assert [N_ref for N_ref, _ in estimator.measurements] == [4.0, 5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize(("order", "power"), [("O_N", 1.0), ("O_N_2", 2.0), ("O_N_3", 3.0)])
def test_auto_finds_the_order(order, power):
    """E50: "auto" chooses by the error on measurements left out, and shows the choice and all errors."""
    rng = random.Random(4)
    data = [(n, 1e-3 * n**power * rng.lognormvariate(0, 0.05)) for n in (rng.uniform(10, 1000) for _ in range(20))]
    estimator = Estimator("auto").fit(data)
    assert (estimator.order, estimator.declared_order) == (order, "auto")
    assert min(estimator.order_errors, key=estimator.order_errors.get) == order
    assert set(estimator.order_errors) == set(ComputationalOrder)


def test_data_override_the_declared_order():
    """D17: with the wrong order declared, estimates among the data are as good."""
    rng = random.Random(6)
    data = [(n, 1e-3 * n * rng.lognormvariate(0, 0.05)) for n in (10 ** rng.uniform(1, 5) for _ in range(30))]
    wrong = Estimator("O_N_2").fit(data)
    errors = sorted(abs(wrong.predict(n).value / (1e-3 * n) - 1) for n in (30.0, 300.0, 3e3, 3e4))
    assert errors[-1] < 0.15


def test_count_and_degree():
    """E79-E81: sizes within 1e-5 are one, 0 is added below 3 of them, the degree is capped, O_0 is a constant."""
    two = Estimator("O_N").fit([(1.0, 1.0), (1.000001, 1.0), (2.0, 2.0)])
    assert (two.count, two.degree) == ((3, 3), 2)
    assert Estimator("O_N").fit([(n, 1.0) for n in (1.0, 1.000009, 2.0, 3.0)]).count == (3, 4)
    assert Estimator("O_N").fit([(n, 1.0) for n in (1.0, 1.000011, 2.0, 3.0)]).count == (4, 4)
    five = Estimator("O_N").fit([(float(n), float(n)) for n in range(1, 6)])
    assert (five.count, five.degree) == ((5, 5), 3)
    assert Estimator("O_N", spline_order=1).fit([(float(n), float(n)) for n in range(1, 6)]).degree == 1
    constant = Estimator("O_0").fit([(5.0, 2.0), (9.0, 2.0)])
    assert (constant.count, constant.degree) == ((1, 2), 0)
    assert Estimator("O_N").degree == 1
    assert Estimator("O_N").tck == ([0.0, 0.0, 1e9, 1e9], [0.0, 3.0], 1)


@pytest.mark.parametrize("order", ["O_LOG_N", "O_N", "O_N_LOG_N", "O_N_2"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 12])
def test_stored_spline_is_read_by_others(order, count):
    """E81, E82, D33: the sampled spline is what SciPy reads, of plain floats, never negative, exact at the end."""
    rng = random.Random(count)
    data = [(n, 0.5 + 1e-3 * n * rng.lognormvariate(0, 0.3)) for n in (10 ** rng.uniform(1, 4) for _ in range(count))]
    estimator = Estimator(order).fit(data)
    knots, coefficients, degree = estimator.tck
    assert degree == min(estimator.count[0] - 1, 3)
    assert {type(number) for number in knots + coefficients} == {float}
    convert = ComputationalOrder(order)
    for size, _ in data:
        n = convert(size)
        assert splev(n, (knots, coefficients, degree)) == pytest.approx(evaluate((knots, coefficients, degree), n))
        assert splev(n, (knots, coefficients, degree)) >= 0
    largest = max(size for size, _ in data)
    assert splev(convert(largest), (knots, coefficients, degree)) == pytest.approx(estimator.predict(largest).value)


def test_sampled_spline_does_not_overshoot():
    """E83, E85: the sampled spline grows where the curve grows and stays in its range."""
    points = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    tck = sample(lambda n: 1.0 if n < 2.5 else 100.0, points, 3)
    found = [evaluate(tck, n / 10) for n in range(51)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1.0, 100.0)


def test_one_outlier_among_few():
    """Five runs, one of them twice as long, ask for no range up to a day (E84)."""
    estimator = Estimator("O_N").fit([(2e7, t) for t in (0.8015, 0.8018, 0.821, 0.8098, 1.6)])
    found = estimator.predict(2e7)
    assert found.low < found.value < found.high <= 30 * found.value


def test_stored_curve_answers_within_bounds():
    """E62, E84, E85: a curve without measurements is legacy, never negative, and beyond its end grows like N."""
    estimator = Estimator.from_tck("O_N", ([1.0, 1.0, 3.0, 3.0], [-1.0, 3.0], 1))
    assert estimator.predict(1.0) == (0.0, None, None, "legacy", "from a stored curve")
    assert estimator.predict(2.0).value == pytest.approx(1.0)
    assert estimator.predict(30.0).value == pytest.approx(30.0)
    assert Estimator.from_tck("O_0", ([1.0, 1.0], [4.0], 0)).predict(9.0).value == 4.0
    assert estimator.fit([(1.0, 5.0)]).source == "model"


def test_broken_stored_curve_is_refused():
    """E62, E65: knots and coefficients that do not belong together are an error that says how many are wanted."""
    with pytest.raises(ConfigurationError, match=r"degree 1 with 2 coefficients has 4 knots, not 3"):
        Estimator.from_tck("O_N", ([1.0, 2.0, 3.0], [1.0, 2.0], 1))


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("level", 1.0),
        ("level", 0.0),
        ("default_seconds", 0.0),
        ("default_size", math.inf),
        ("max_measurements", 0),
        ("update_minimum_count", 51),
        ("update_threshold", -0.1),
        ("update_floor", math.nan),
        ("spline_order", 6),
    ],
)
def test_option_outside_its_range_is_refused(option, bad):
    """E72: the message names the option and the value."""
    with pytest.raises(ConfigurationError, match=rf"^{option} is {bad!r}; it must be "):
        Estimator("O_N", **{option: bad})


def test_functions_as_orders_are_fitted_over_their_value():
    """E50: with a function of the user N is its value."""
    estimator = Estimator(lambda n: (n - 5.0) ** 2).fit([(float(n), (n - 5.0) ** 2 + 1.0) for n in range(20)])
    assert estimator.predict(2.0).value == pytest.approx(10.0, rel=0.05)
    assert estimator.predict(8.0).value == pytest.approx(10.0, rel=0.05)


def test_estimating_needs_no_scipy():
    """E89, D15: fitting and answering import no SciPy."""
    code = (
        "import sys; from workspan.estimate.estimator import Estimator; "
        "Estimator('auto').fit([(1., 1.), (2., 2.), (3., 3.), (4., 4.), (5., 5.)]).predict(9.); "
        "sys.exit('scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
