"""Many blocks as few bins: of the grid, of the time, of the values. Arrays in, arrays out; nothing a block stays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.grid.layout import Ints

    Floats = NDArray[np.float64]

__all__ = ["Busy", "CellBins", "Histogram", "Over", "bin_sizes"]


def bin_sizes(counts: Ints, most: int, most_axis: int) -> Ints:
    """Return how many cells a bin has along each axis, so that a grid of *counts* has at most *most* bins.

    The longest axis is halved until they are few enough, so that bins stay about as long as they are wide.

    Parameters
    ----------
    counts
        Cells along each axis.
    most
        Bins of the whole grid.
    most_axis
        Bins along one axis, if there is another one that is longer than 1.

    Examples
    --------
    >>> bin_sizes((4, 4, 4), 1000, 500), bin_sizes((215, 215, 215), 20_000, 500)
    ((1, 1, 1), (8, 8, 8))
    """
    sizes = [1] * len(counts)
    several = sum(n > 1 for n in counts) > 1
    while True:
        bins = [-(-n // size) for n, size in zip(counts, sizes, strict=True)]
        longest = max(range(len(bins)), key=lambda axis: bins[axis])
        if prod(bins) <= most and (not several or bins[longest] <= most_axis):
            return tuple(sizes)
        sizes[longest] *= 2


@dataclass(slots=True)
class CellBins:
    """One figure over bins of the grid: how often it was there, its sum, its greatest value."""

    count: int
    """Bins."""
    n: NDArray[np.int64] = field(init=False)
    total: Floats = field(init=False)
    most: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.n = np.zeros(self.count, np.int64)
        self.total = np.zeros(self.count)
        self.most = np.full(self.count, -np.inf)

    def add(self, bins: NDArray[np.int64], values: Floats) -> None:
        """Take in blocks: the bin of each, and its figure."""
        self.n += np.bincount(bins, minlength=self.count)
        self.total += np.bincount(bins, values, minlength=self.count)
        np.maximum.at(self.most, bins, values)

    @property
    def mean(self) -> Floats:
        """NaN where there is nothing."""
        return _mean(self.total, self.n)

    @property
    def greatest(self) -> Floats:
        """NaN where there is nothing."""
        return np.where(self.n > 0, self.most, np.nan)


class Histogram:
    """How often which values occur, between two values that are known beforehand.

    Parameters
    ----------
    low, high
        Least and greatest value.
    bins
        Number of bins; they are equally wide, on a logarithmic axis if *high* is more than twenty times *low*.
    """

    def __init__(self, low: float, high: float, bins: int) -> None:
        self.is_log = low > 0 and high > 20 * low
        self.edges: Floats = np.geomspace(low, high, bins + 1) if self.is_log else np.linspace(low, high, bins + 1)
        if not high > low:
            self.edges = np.array([low, low])
        self.edges[0], self.edges[-1] = low, high  # rounding must not lose the extremes
        self.counts = np.zeros(len(self.edges) - 1, np.int64)

    def place(self, values: Floats) -> NDArray[np.int64]:
        """Return the bin of each value."""
        bins, low, high = len(self.counts), float(self.edges[0]), float(self.edges[-1])
        if bins == 1:
            return np.zeros(len(values), np.int64)
        if self.is_log:
            part = np.log(np.maximum(values, low) / low) * (bins / math.log(high / low))
        else:
            part = (values - low) * (bins / (high - low))
        return np.clip(part.astype(np.int64), 0, bins - 1)

    def add(self, values: Floats) -> None:
        """Take in values."""
        self.counts += np.bincount(self.place(values), minlength=len(self.counts))

    def coarse(self, bins: int) -> tuple[Floats, NDArray[np.int64]]:
        """Return edges and counts of about *bins* bins, each of several of these."""
        step = max(1, len(self.counts) // bins)
        starts = np.arange(0, len(self.counts), step)
        return np.append(self.edges[starts], self.edges[-1]), np.add.reduceat(self.counts, starts)

    def quantile(self, q: float) -> float:
        """Return the value below which a part *q* of the values lies, to the width of a bin."""
        up = np.cumsum(self.counts)
        at = int(np.searchsorted(up, q * up[-1], side="left"))
        inside = (q * up[-1] - (up[at - 1] if at else 0)) / max(1, self.counts[at])
        low, high = float(self.edges[at]), float(self.edges[at + 1])
        return float(low * (high / low) ** inside if self.is_log else low + (high - low) * inside)


class Over:
    """Blocks over the time at which they came back and over their values: counts, and the sum for the mean.

    Parameters
    ----------
    times
        Bins of the time from 0 to *end* seconds.
    values
        Bins of the values.
    """

    def __init__(self, end: float, times: int, values: Histogram) -> None:
        self.end = end
        self.times = times
        self.values = values
        self.counts = np.zeros((times, len(values.counts)), np.int64)
        self.total = np.zeros(times)

    def add(self, at: Floats, values: Floats) -> None:
        """Take in blocks: when each came back, in seconds since the begin, and its value."""
        column = _slot(at, self.end, self.times)
        wide = len(self.values.counts)
        both = column * wide + self.values.place(values)
        self.counts += np.bincount(both, minlength=self.counts.size).reshape(self.counts.shape)
        self.total += np.bincount(column, values, minlength=self.times)

    @property
    def mean(self) -> Floats:
        """Mean of each bin of time; NaN where nothing came back."""
        return _mean(self.total, self.counts.sum(axis=1))


class Busy:
    """How busy lanes of workers were in each of some equal parts of a time.

    What a lane has done until an edge is the sum, over its blocks, of how much of each lies before the edge: the edge
    times the number of begins before it, less their sum, less the same of the ends. So no block is cut into pieces.

    Parameters
    ----------
    end
        Length of the time, in seconds.
    parts
        Parts of the time.
    lanes
        Number of lanes.
    """

    def __init__(self, end: float, parts: int, lanes: int) -> None:
        self.end = end
        self.parts = parts
        self.lanes = lanes
        self._n = np.zeros((2, lanes, parts), np.int64)
        self._sum = np.zeros((2, lanes, parts))

    def add(self, lane: NDArray[np.int64], begin: Floats, end: Floats) -> None:
        """Take in blocks: the lane of each, its begin and its end in seconds."""
        for number, times in enumerate((begin, end)):
            slot = lane * self.parts + _slot(times, self.end, self.parts)
            self._n[number] += np.bincount(slot, minlength=self._n[0].size).reshape(self._n[0].shape)
            self._sum[number] += np.bincount(slot, times, minlength=self._n[0].size).reshape(self._n[0].shape)

    def parts_busy(self, workers: NDArray[np.int64]) -> Floats:
        """Return how busy each lane was in each part, 0 to 1; shape (lanes, parts).

        Parameters
        ----------
        workers
            Workers of each lane.
        """
        width = self.end / self.parts if self.end else 1.0
        edges = width * np.arange(1, self.parts + 1)
        before = edges * np.cumsum(self._n, axis=2) - np.cumsum(self._sum, axis=2)
        done = before[0] - before[1]
        per_part = np.diff(done, axis=1, prepend=0.0)
        part: Floats = np.clip(per_part / (width * np.maximum(workers, 1)[:, None]), 0.0, 1.0)
        return part


def _mean(total: Floats, n: NDArray[np.int64]) -> Floats:
    out = np.full(total.shape, np.nan)
    np.divide(total, n, out=out, where=n > 0)
    return out


def _slot(at: Floats, end: float, parts: int) -> NDArray[np.int64]:
    if not end > 0:
        return np.zeros(len(at), np.int64)
    return np.clip((at * (parts / end)).astype(np.int64), 0, parts - 1)
