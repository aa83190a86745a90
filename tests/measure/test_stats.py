from __future__ import annotations

import json
import math
import pickle
import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan.errors import UsageTypeError
from workspan.measure.stats import Stat, Trend, Welford, linear_trend

# No figure of a run is smaller than an attosecond; below 1e-154 the square of a difference is 0 in floating point.
samples = st.lists(st.floats(-1e9, 1e9).map(lambda x: x if abs(x) > 1e-18 else 0.0), max_size=60)


def filled(values) -> Welford:
    welford = Welford()
    welford.extend(values)
    return welford


def close(got: float, wanted: float, scale: float) -> bool:
    return math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-12 * scale)


class TestWelford:
    @given(samples.filter(bool))
    def test_figures_agree_with_numpy_and_statistics(self, values):
        """Mean, sample standard deviation, extremes and sum are those of the two-pass formulas (B145)."""
        stat, scale = filled(values).stat(), max(map(abs, values))
        assert stat.n == len(values)
        assert close(stat.mean, float(np.mean(values)), scale)
        assert stat.std == 0.0 if len(values) == 1 else close(stat.std, statistics.stdev(values), scale)
        assert (stat.min, stat.max) == (min(values), max(values))
        assert close(stat.total, math.fsum(values), scale)
        assert stat.min <= stat.mean <= stat.max

    def test_nothing_measured_is_nan_and_not_zero(self):
        """Without samples mean, std, min and max are NaN and the total is 0.0 (B145)."""
        stat = Welford().stat()
        assert (stat.n, stat.total) == (0, 0.0)
        assert all(map(math.isnan, (stat.mean, stat.std, stat.min, stat.max)))

    def test_one_sample_has_no_spread(self):
        """The standard deviation of a single sample is 0.0 (B145)."""
        assert filled([7.5]).stat() == Stat(1, 7.5, 0.0, 7.5, 7.5, 7.5)

    def test_equal_samples_have_no_spread_at_all(self):
        """A thousand equal samples give exactly that mean and a spread of exactly 0."""
        stat = filled([0.1] * 1000).stat()
        assert (stat.mean, stat.std, stat.min, stat.max) == (0.1, 0.0, 0.1, 0.1)

    def test_small_spread_on_a_large_mean_survives(self):
        """A spread of one in 10^15 of the mean is not cancelled away, as the sum of squares would do."""
        values = [1e9 + step * 1e-6 for step in (4, 7, 13, 16)] * 50
        assert filled(values).stat().std == pytest.approx(np.std(values, ddof=1), rel=1e-3)

    def test_small_samples_after_a_large_one_stay_in_the_total(self):
        """The sum keeps what a plain running sum would round away."""
        assert filled([1e16, *[1.0] * 10, -1e16]).stat().total == 10.0

    def test_not_measured_is_no_sample(self):
        """None and NaN are skipped and not counted: a mean over fewer samples, never a zero among them (KF-37)."""
        assert filled([1.0, None, math.nan, 3.0]).stat() == filled([1.0, 3.0]).stat()

    def test_integers_and_numpy_scalars_are_taken_as_floats(self):
        """Bytes come as integers, and a float32 scalar does not drag the arithmetic down to its own precision."""
        values = [np.float32(0.1), 2**53 + 2, 5]
        assert filled(values).stat() == filled([float(value) for value in values]).stat()
        assert all(type(figure) is float for figure in filled([1, 2]).stat().to_json().values() if figure != 2)

    @given(samples, samples, samples)
    def test_merging_equals_pushing_everything(self, first, second, third):
        """Merged accumulators summarise as one that saw all samples, in whatever grouping."""
        scale = max([1.0, *map(abs, first + second + third)])
        whole = filled(first + second + third).stat()
        left, tail = filled(first), filled(second)
        tail.merge(filled(third))
        left.merge(tail)
        merged = left.stat()
        assert (merged.n, merged.min, merged.max) == (whole.n, whole.min, whole.max) or merged == whole
        if merged.n:
            assert close(merged.mean, whole.mean, scale)
            assert close(merged.std, whole.std, scale)
            assert close(merged.total, whole.total, scale)

    def test_merging_leaves_the_other_alone(self):
        """The accumulator that is merged in keeps its own figures."""
        other = filled([1.0, 2.0])
        before = other.stat()
        filled([5.0]).merge(other)
        assert other.stat() == before

    def test_merging_with_itself_doubles_every_sample(self):
        """An accumulator merged into itself counts its samples twice."""
        twice = filled([1.0, 2.0, 4.0])
        twice.merge(twice)
        assert twice.stat().to_json() == pytest.approx(filled([1.0, 2.0, 4.0] * 2).stat().to_json())

    def test_survives_pickling_and_goes_on(self):
        """A pickled accumulator continues where it was."""
        welford = pickle.loads(pickle.dumps(filled([1.0, 2.0])))
        welford.push(6.0)
        assert welford.stat() == filled([1.0, 2.0, 6.0]).stat()


class TestStat:
    def test_fields_are_positional_in_the_documented_order(self):
        """Stat(n, mean, std, min, max, total) is the order of the specification (B145)."""
        assert Stat.__struct_fields__ == ("n", "mean", "std", "min", "max", "total")

    def test_cannot_be_changed(self):
        """A summary is a value: assigning to a field fails."""
        with pytest.raises(AttributeError, match="immutable"):
            Stat().n = 3  # type: ignore[misc]

    @given(samples)
    def test_json_round_trip_gives_an_equal_value(self, values):
        """What to_json wrote, through strict JSON text, comes back equal: NaN as null (B145)."""
        stat = filled(values).stat()
        text = json.dumps(stat.to_json(), allow_nan=False)
        assert Stat.from_json(json.loads(text)) == stat

    def test_nan_is_written_as_null(self):
        """Strict JSON has no NaN: an empty summary is nulls and a zero (B145)."""
        empty = {"n": 0, "mean": None, "std": None, "min": None, "max": None, "total": 0.0}
        assert Stat().to_json() == empty
        assert msgspec.json.decode(msgspec.json.encode(Stat().to_json())) == empty

    def test_figures_added_by_later_versions_are_skipped(self):
        """A record that carries more figures than this version knows can still be read."""
        assert Stat.from_json({**filled([1.0]).stat().to_json(), "p50": 1.0}) == filled([1.0]).stat()

    @pytest.mark.parametrize("change", [{"n": None}, {"n": True}, {"mean": "fast"}, {"total": []}])
    def test_what_is_no_summary_is_refused_with_the_value_in_the_text(self, change):
        """A damaged record is refused, naming what was found and what belongs there."""
        damaged = {**Stat().to_json(), **change}
        with pytest.raises(UsageTypeError) as caught:
            Stat.from_json(damaged)
        assert repr(damaged) in str(caught.value)
        assert "n, mean, std, min, max, total" in str(caught.value)

    def test_an_absent_figure_is_refused(self):
        """A summary without one of its figures is not completed by a guess."""
        data = Stat().to_json()
        del data["std"]
        with pytest.raises(UsageTypeError, match="needs the numbers"):
            Stat.from_json(data)

    def test_survives_pickling_equal_and_hashing_alike(self):
        """A copy from another process is equal, NaN included, and finds itself in a dict."""
        for stat in (Stat(), filled([1.0, 2.0]).stat()):
            copy = pickle.loads(pickle.dumps(stat))
            assert copy == stat
            assert {stat: 1}[copy] == 1

    def test_differs_from_other_figures_and_other_things(self):
        """Equality compares all six figures, and nothing but summaries."""
        assert filled([1.0]).stat() != filled([2.0]).stat()
        assert Stat() != 0


class TestTrend:
    @given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=80))
    def test_running_slope_agrees_with_the_fit_over_all_values(self, values):
        """The slope kept in constant memory is linear_trend's to 1e-9 (B146)."""
        trend = Trend()
        for value in values:
            trend.push(value)
        assert math.isclose(trend.slope, linear_trend(values)[1], rel_tol=1e-9, abs_tol=1e-9)

    @given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=80))
    def test_fit_is_the_least_squares_line(self, values):
        """linear_trend's slope is numpy's polynomial fit of degree 1 (B146)."""
        slope = np.polyfit(np.arange(len(values)), np.asarray(values), 1)[0]
        assert math.isclose(linear_trend(values)[1], slope, rel_tol=1e-6, abs_tol=1e-6)

    def test_agreement_holds_over_many_samples_on_a_large_mean(self):
        """A drift of a nanosecond per block on blocks of 1 s is found to 1e-9 after 50,000 blocks (B146)."""
        values = [1000.0 + 1e-6 * index + (index % 7) * 0.5 for index in range(50_000)]
        trend = Trend()
        for value in values:
            trend.push(value)
        assert trend.slope == pytest.approx(linear_trend(values)[1], rel=1e-9, abs=1e-9)
        assert trend.slope == pytest.approx(1e-6, rel=1e-2)

    @pytest.mark.parametrize("values", [[], [5.0]])
    def test_fewer_than_two_samples_have_no_slope(self, values):
        """The slope is 0.0 for n < 2 (B146)."""
        trend = Trend()
        for value in values:
            trend.push(value)
        assert trend.slope == 0.0
        assert linear_trend(values)[1] == 0.0

    def test_positive_means_slower(self):
        """Blocks that take longer and longer have a positive slope, per block (B146)."""
        assert linear_trend([10.0, 12.0, 14.0]) == (12.0, 2.0)

    def test_mean_of_nothing_is_nan(self):
        """linear_trend of no values does not invent a mean."""
        assert math.isnan(linear_trend([])[0])

    def test_survives_pickling_and_goes_on(self):
        """A pickled trend continues where it was."""
        trend = Trend()
        trend.push(1.0)
        trend = pickle.loads(pickle.dumps(trend))
        trend.push(3.0)
        assert trend.slope == 2.0
