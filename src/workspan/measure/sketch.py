"""Percentiles of any number of samples in bounded memory, mergeable.

A buffer of samples is sorted when it is full, and every other sample moves up one level, where it stands for twice as
many (the idea of Manku, Rajagopalan and Lindsay, and of Karnin, Lang and Liberty). Which half moves is drawn by a small
generator of the sketch's own, so that the same samples always give the same figures.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Sketch"]


class Sketch:
    """Distribution of samples, in the unit of the samples.

    The rank of a quantile is off by less than 1 % of the samples; the least and the greatest sample are exact. Memory
    grows with the logarithm of the number of samples. Not thread-safe.

    Parameters
    ----------
    size
        Samples that one level holds.

    Examples
    --------
    >>> sketch = Sketch()
    >>> sketch.extend([3.0, 1.0, 2.0])
    >>> sketch.n, sketch.min, sketch.quantile(0.5), sketch.max
    (3, 1.0, 2.0, 3.0)
    """

    __slots__ = ("_draw", "_levels", "_size", "max", "min", "n")

    def __init__(self, size: int = 512) -> None:
        self.n = 0
        """Number of samples, each as often as it was weighed."""
        self.min: float | None = None
        """Least sample; ``None`` without samples."""
        self.max: float | None = None
        """Greatest sample; ``None`` without samples."""
        self._size = size
        self._levels: list[list[float]] = [[]]  # a sample of level i stands for 2 ** i
        self._draw = 1

    def extend(self, samples: Iterable[float], level: int = 0) -> None:
        """Add samples, of which each stands for ``2 ** level`` like it."""
        found = sorted(samples)
        if not found:
            return
        low, high = found[0], found[-1]
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        self.n += len(found) << level
        self._put(found, level)

    def merge(self, other: Sketch) -> None:
        """Add all samples of *other*, which keeps its own."""
        for level, samples in enumerate(other._levels):
            if samples:
                self._put(samples, level)
        self.n += other.n
        for value in (other.min, other.max):
            if value is not None:
                self.min = value if self.min is None else min(self.min, value)
                self.max = value if self.max is None else max(self.max, value)

    def scaled(self, factor: float) -> Sketch:
        """Return the distribution of the samples times a factor above 0."""
        made = Sketch(self._size)
        made.n = self.n
        made.min = None if self.min is None else self.min * factor
        made.max = None if self.max is None else self.max * factor
        made._levels = [[sample * factor for sample in level] for level in self._levels]
        made._draw = self._draw
        return made

    def quantile(self, q: float) -> float | None:
        """Return a sample below which a share *q* (0 to 1) of the samples lies; ``None`` without samples."""
        return self.quantiles((q,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return what :meth:`quantile` does for several shares, at little more than the price of one.

        Examples
        --------
        >>> sketch = Sketch()
        >>> sketch.extend(range(100))
        >>> sketch.quantiles((0.0, 0.5, 0.99))
        [0, 49, 98]
        """
        weighed = [(sample, 1 << level) for level, samples in enumerate(self._levels) for sample in samples]
        if len(weighed) > 1:
            weighed.sort()
        passed = list(accumulate(weight for _, weight in weighed))
        found: list[float | None] = []
        for q in shares:
            if not weighed or q <= 0:
                found.append(self.min)
            elif q >= 1:
                found.append(self.max)
            else:
                found.append(weighed[bisect_left(passed, q * passed[-1])][0])
        return found

    @property
    def levels(self) -> list[list[float]]:
        """The samples in memory; those of level *i* stand for ``2 ** i`` each, as :meth:`extend` takes them."""
        return [list(samples) for samples in self._levels]

    @property
    def held(self) -> int:
        """Number of samples in memory."""
        return sum(map(len, self._levels))

    def _put(self, samples: list[float], level: int) -> None:
        levels = self._levels
        while len(levels) <= level:
            levels.append([])
        levels[level] += samples
        while len(levels[level]) >= self._size:
            full = sorted(levels[level])
            rest = [full.pop()] if len(full) % 2 else []  # an odd one stays, so that the weights still add up
            self._draw = self._draw * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF
            levels[level] = rest
            level += 1
            if len(levels) == level:
                levels.append([])
            levels[level] += full[self._draw >> 63 :: 2]
