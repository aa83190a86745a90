"""By how much two means differ, and how far that may be off, where neighbours in time are alike.

What is compared is the ratio of means, since the mean times the number of blocks is what a run costs. Its spread is
taken from chunks of blocks that followed each other, not from single blocks: a machine that was busy for a while slowed
all blocks of that while, and taking these for so many independent witnesses makes every two runs differ. The chunks are
few and long, their sums are nearly normal, and what is still alike between one chunk and the next widens the interval
further. Student's quantiles are exact for so few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.measure.stats import Stat

__all__ = ["FEWEST", "Ratio", "from_pairs", "from_samples", "from_summaries", "student"]

FEWEST = 4
"""Blocks on each side below which nothing can be said of the spread."""

_MOST_CHUNKS = 20
_FEW_CHUNKS = 10
_CHUNK_BLOCKS = 4
"""Least length of a chunk where that leaves more than :data:`_FEW_CHUNKS`."""
_LIKENESS = 4.0
"""Factor on the variance of means of which only a summary is left, which does not tell how alike neighbours were: that
of neighbours with a correlation of 0.6."""
_MOST_ALIKE = 0.8
"""Correlation of neighbouring chunks that is allowed for at most."""
_SAME_ORDER = 0.9


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two positive means."""

    value: float
    deviation: float
    """Standard deviation of its logarithm; NaN: not known."""
    freedom: int
    """Degrees of freedom of that."""

    def interval(self, error: float) -> tuple[float, float] | None:
        """Return what the true ratio lies between but for a chance of *error*; ``None``: the spread is not known."""
        if not math.isfinite(self.deviation) or self.freedom < 1:
            return None
        half = student(self.freedom, error) * self.deviation if self.deviation else 0.0
        if half > 50.0:  # which says nothing
            return None
        return self.value * math.exp(-half), self.value * math.exp(half)

    def widened(self, deviation: float, freedom: int) -> Ratio:
        """Return the ratio with what whole runs of one program differ by, which their blocks do not tell.

        Parameters
        ----------
        deviation
            Standard deviation of the logarithm of one run's mean.
        freedom
            Degrees of freedom of that, 0 if it was not measured.
        """
        inside, between = self.deviation**2, 2.0 * deviation**2
        if not between or not math.isfinite(inside):
            return self
        total = inside + between
        doubt = inside**2 / self.freedom + (between**2 / freedom if freedom else 0.0)
        found = int(total**2 / doubt) if doubt else freedom or self.freedom
        return Ratio(self.value, math.sqrt(total), max(1, min(found, 10_000)))


def from_pairs(
    a: NDArray[np.float64], b: NDArray[np.float64], when_a: NDArray[np.float64], when_b: NDArray[np.float64]
) -> Ratio:
    """Return ``mean(b) / mean(a)`` of the same blocks in two runs: what blocks differ by among themselves drops out.

    Parameters
    ----------
    a, b
        Figures, shape (blocks,), with means above 0.
    when_a, when_b
        When the blocks were begun in each run; only the order matters.
    """
    n, mean = len(a), float(a.mean())
    value = float(b.mean()) / mean
    if n < FEWEST:
        return Ratio(value, math.nan, 0)
    rest = (b - value * a) / (value * mean)
    first, second = np.argsort(when_a, kind="stable"), np.argsort(when_b, kind="stable")
    one, freedom = _variance(rest[first])
    two, _ = _variance(rest[second])
    variance = max(one, two)
    if _likeness_of_orders(first, second) < _SAME_ORDER:
        # Each order shows the drifts of its own run, and those of the other one only as if they were shuffled.
        variance = max(variance, one + two - float(np.mean(rest**2)) / n)
    return Ratio(value, math.sqrt(variance), freedom)


def from_samples(
    a: NDArray[np.float64], b: NDArray[np.float64], when_a: NDArray[np.float64], when_b: NDArray[np.float64]
) -> Ratio:
    """Return ``mean(b) / mean(a)`` of blocks that have no counterpart; parameters as of :func:`from_pairs`."""
    parts = []
    for values, when in ((a, when_a), (b, when_b)):
        mean = float(values.mean())
        if len(values) < FEWEST:
            parts.append((mean, math.nan, 0))
        else:
            parts.append((mean, *_variance((values[np.argsort(when, kind="stable")] - mean) / mean)))
    return _unpaired(*parts)


def from_summaries(a: Stat, b: Stat) -> Ratio:
    """Return ``b.mean / a.mean`` of runs whose single blocks are not known any more; means above 0."""
    parts = []
    for stat in (a, b):
        if stat.n < FEWEST:
            parts.append((stat.mean, math.nan, 0))
        else:
            variance = _LIKENESS * (stat.std / stat.mean) ** 2 / stat.n
            parts.append((stat.mean, variance, _chunk_count(stat.n) - 1))
    return _unpaired(*parts)


def _unpaired(a: tuple[float, float, int], b: tuple[float, float, int]) -> Ratio:
    """Join two means, each with the variance of its logarithm and the freedom of that (Welch, Satterthwaite)."""
    total = a[1] + b[1]
    freedom = 0
    if math.isfinite(total):
        parts = [variance**2 / n for _, variance, n in (a, b) if variance]
        freedom = int(total**2 / sum(parts)) if parts and sum(parts) else min(a[2], b[2])
    return Ratio(b[0] / a[0], math.sqrt(total), max(freedom, min(a[2], b[2])))


def _variance(rest: NDArray[np.float64]) -> tuple[float, int]:
    """Return the variance of the mean of *rest*, which is in order of time and has the mean 0, and its freedom."""
    n = len(rest)
    chunks = _chunk_count(n)
    begins = np.arange(chunks) * n // chunks
    sums = np.add.reduceat(rest, begins)
    squares = float(sums @ sums)
    if squares <= (1e-12 * n) ** 2:
        return 0.0, chunks - 1
    alike = min(max(float(sums[1:] @ sums[:-1]) / squares, 0.0), _MOST_ALIKE)
    variance = squares / (n * n) * chunks / (chunks - 1) * (1 + alike) / (1 - alike)
    return variance, chunks - 1


def _chunk_count(blocks: int) -> int:
    return min(blocks, max(_FEW_CHUNKS, min(_MOST_CHUNKS, blocks // _CHUNK_BLOCKS)))


def _likeness_of_orders(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return Spearman's correlation of two orders of the same blocks."""
    n = len(first)
    ranks = np.empty((2, n))
    ranks[0, first] = ranks[1, second] = np.arange(n)
    return 1.0 - 6.0 * float(np.mean((ranks[0] - ranks[1]) ** 2)) / (n * n - 1.0)


def student(freedom: int, error: float) -> float:
    """Return what Student's t exceeds, on either side, with the chance *error*.

    The distribution has a closed form for whole degrees of freedom, which is inverted by bisection.
    """
    low, high = 0.0, 1.0
    while _beyond(high, freedom) > error and high < 1e12:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > error else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """Return the chance that the absolute value of Student's t exceeds *t*."""
    if freedom > 200:
        # Hill's normal approximation, good to 1e-6 from here on.
        z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (1 - 3 / (4 * freedom)) / (1 - 1 / (2 * freedom))
        return math.erfc(z / math.sqrt(2))
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    if freedom == 1:
        total = 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)
