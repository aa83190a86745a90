"""Many blocks as few bins."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from workspan.report.page_bins import Busy, CellBins, Histogram, Over, bin_sizes


@pytest.mark.parametrize("counts", [(7,), (10**7,), (3162, 3162), (215, 215, 215), (1, 1, 50_000, 3), (600, 600)])
def test_bins_are_few_and_cover_the_grid(counts):
    """A grid of any shape gets at most so many bins, which cover it, and no more than are needed (R54)."""
    sizes = bin_sizes(counts, 20_000, 512)
    bins = [-(-n // size) for n, size in zip(counts, sizes, strict=True)]
    assert prod(bins) <= 20_000
    assert all(size == 1 or 2 * count > 8 for size, count in zip(sizes, bins, strict=True))
    if prod(counts) <= 20_000:
        assert set(sizes) == {1}


def test_a_bin_knows_its_mean_and_its_most():
    """Mean and greatest figure of each bin are those of its blocks; an empty bin has neither (D22)."""
    bins = CellBins(3)
    bins.add(np.array([0, 2, 2]), np.array([1.0, 2.0, 4.0]))
    bins.add(np.array([2]), np.array([-3.0]))
    np.testing.assert_array_equal(bins.mean, [1.0, np.nan, 1.0])
    np.testing.assert_array_equal(bins.greatest, [1.0, np.nan, 4.0])


@pytest.mark.parametrize(("low", "high"), [(0.0, 10.0), (0.001, 50.0), (3.0, 3.0)])
def test_a_histogram_loses_no_value(low, high):
    """Every value is counted once, the extremes too, on a linear and a logarithmic axis; quantiles are near."""
    values = np.random.default_rng(1).uniform(low, high, 5000)
    values[:2] = low, high
    histogram = Histogram(low, high, 4096)
    histogram.add(values)
    assert histogram.counts.sum() == 5000
    edges, counts = histogram.coarse(48)
    assert len(edges) == len(counts) + 1
    assert counts.sum() == 5000
    assert (edges[0], edges[-1]) == (low, high)
    for q in (0.5, 0.9, 0.99):
        assert histogram.quantile(q) == pytest.approx(np.quantile(values, q), rel=0.01)


def test_busy_parts_add_up_to_the_blocks():
    """How busy lanes were in each part of the run is what their blocks cover of it, wherever blocks begin and end."""
    rng = np.random.default_rng(2)
    begin = np.sort(rng.uniform(0, 99, 300))
    end = np.minimum(begin + rng.exponential(3, 300), 100.0)
    lane = rng.integers(0, 2, 300)
    busy = Busy(100.0, 40, 2)
    busy.add(lane[:100], begin[:100], end[:100])
    busy.add(lane[100:], begin[100:], end[100:])
    workers = np.array([30, 40])
    for number in range(2):
        mine = lane == number
        for part in range(40):
            low, high = part * 2.5, part * 2.5 + 2.5
            covered = np.clip(np.minimum(end[mine], high) - np.maximum(begin[mine], low), 0, None).sum()
            assert busy.parts_busy(workers)[number, part] == pytest.approx(covered / 2.5 / workers[number], abs=1e-9)


def test_the_trend_has_every_block_once():
    """Each block is in one bin of time and value; the mean of a time is that of its blocks, none without blocks."""
    over = Over(10.0, 5, Histogram(0.0, 4.0, 4))
    over.add(np.array([0.0, 1.9, 10.0]), np.array([1.0, 3.0, 4.0]))
    assert over.counts.sum() == 3
    assert over.counts[0].tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(over.mean, [2.0, np.nan, np.nan, np.nan, 4.0])
