"""Running statistics of any number of samples in constant memory.

Mean and spread follow Welford, merging follows Chan et al.: both work on differences to the mean, so that a small
spread on top of a large mean (a few microseconds in an epoch time, a few bytes in gigabytes) is not cancelled away.
"""

from __future__ import annotations

from math import fsum, isfinite, nan, sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.errors import UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Stat", "Trend", "Welford", "linear_trend"]


class Stat(msgspec.Struct, frozen=True):
    """Summary of *n* samples, in the unit of the samples.

    Two summaries are equal if their figures are; NaN equals NaN here, so that a summary equals its own copy.

    Examples
    --------
    >>> Stat()  # nothing measured
    Stat(n=0, mean=nan, std=nan, min=nan, max=nan, total=0.0)
    """

    n: int = 0
    """Number of samples."""
    mean: float = nan
    """Arithmetic mean; NaN without samples, like the next three."""
    std: float = nan
    """Sample standard deviation (n - 1); 0.0 for one sample."""
    min: float = nan
    max: float = nan
    total: float = 0.0
    """Sum of the samples; 0.0 without samples."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name, with ``None`` for NaN: strict JSON."""
        return {name: value if isfinite(value) else None for name, value in msgspec.structs.asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Stat:
        """Return the summary that :meth:`to_json` wrote; names that are not known here are skipped.

        Raises
        ------
        UsageTypeError
            A figure is absent, or is not a number.
        """
        try:
            n = data["n"]
            figures = [data[name] for name in cls.__struct_fields__[1:]]
            if isinstance(n, bool) or not isinstance(n, int):
                raise TypeError
            return cls(n, *(nan if figure is None else float(figure) for figure in figures))
        except (KeyError, TypeError, ValueError):
            names = ", ".join(cls.__struct_fields__)
            raise UsageTypeError(f"{data!r} is not a summary: it needs the numbers {names} (null: not known)") from None

    def _key(self) -> tuple[float | None, ...]:
        return tuple(self.to_json().values())

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Stat) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())


class Welford:
    """Accumulator behind a :class:`Stat`.

    Not measured (``None`` or NaN) is no sample: it is skipped and not counted. Not thread-safe.

    Examples
    --------
    >>> seconds = Welford()
    >>> for sample in (1.0, None, 3.0):
    ...     seconds.push(sample)
    >>> seconds.stat()
    Stat(n=2, mean=2.0, std=1.4142135623730951, min=1.0, max=3.0, total=4.0)
    """

    __slots__ = ("_lost", "_m2", "_max", "_mean", "_min", "_total", "n")

    def __init__(self) -> None:
        self.n = 0
        """Number of samples so far."""
        self._mean = 0.0
        self._m2 = 0.0  # sum of squared differences to the mean
        self._min = nan
        self._max = nan
        self._total = 0.0
        self._lost = 0.0  # what rounding has taken from the total so far (Neumaier)

    def push(self, sample: float | None) -> None:
        """Add one sample."""
        if sample is None or sample != sample:
            return
        sample = float(sample)
        self.n = n = self.n + 1
        delta = sample - self._mean
        self._mean = mean = self._mean + delta / n
        self._m2 += delta * (sample - mean)
        if n == 1:
            self._min = self._max = sample
        elif sample < self._min:
            self._min = sample
        elif sample > self._max:
            self._max = sample
        self._add(sample)

    def extend(self, samples: Iterable[float | None]) -> None:
        """Add several samples."""
        for sample in samples:
            self.push(sample)

    def merge(self, other: Welford) -> None:
        """Add all samples of *other*, which keeps its own; the order of merging does not matter beyond rounding."""
        count = other.n
        if not count:
            return
        if not self.n:
            self._min, self._max, self._mean = other._min, other._max, other._mean
        n = self.n + count
        delta = other._mean - self._mean
        self._m2 += other._m2 + delta * delta * (self.n * (count / n))
        self._mean += delta * (count / n)
        self._min = min(self._min, other._min)
        self._max = max(self._max, other._max)
        self.n = n
        lost = other._lost
        self._add(other._total)
        self._add(lost)

    def stat(self) -> Stat:
        """Return the summary of the samples so far."""
        if not self.n:
            return Stat()
        std = sqrt(self._m2 / (self.n - 1)) if self.n > 1 else 0.0
        return Stat(self.n, self._mean, std, self._min, self._max, self._total + self._lost)

    def _add(self, value: float) -> None:
        total = self._total + value
        big, small = (self._total, value) if abs(self._total) >= abs(value) else (value, self._total)
        self._lost += (big - total) + small
        self._total = total


class Trend:
    """Least-squares slope of samples over their number 0, 1, ..., computed as they come.

    Examples
    --------
    >>> trend = Trend()
    >>> for wall_ms in (10.0, 12.0, 14.0):
    ...     trend.push(wall_ms)
    >>> trend.slope
    2.0
    """

    __slots__ = ("_covariance", "_mean", "n")

    def __init__(self) -> None:
        self.n = 0
        """Number of samples so far."""
        self._mean = 0.0
        self._covariance = 0.0  # sum of (x - mean x) (y - mean y)

    def push(self, sample: float) -> None:
        """Add the next sample."""
        n = self.n
        delta = sample - self._mean
        self._mean += delta / (n + 1)
        # (x - old mean of x) (y - new mean of y) = (n + 1) / 2 * delta n / (n + 1)
        self._covariance += delta * n / 2
        self.n = n + 1

    @property
    def slope(self) -> float:
        """Growth per sample, in the unit of the samples; 0.0 for fewer than two."""
        n = self.n
        return self._covariance / (n * (n * n - 1) / 12) if n > 1 else 0.0


def linear_trend(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and least-squares slope of *values* over 0, 1, ..., n - 1.

    Exact but for the last rounding: the yardstick for :class:`Trend`. The mean of nothing is NaN, the slope of fewer
    than two values 0.0.

    Examples
    --------
    >>> linear_trend([10.0, 12.0, 14.0])
    (12.0, 2.0)
    """
    ys = list(values)
    n = len(ys)
    if not n:
        return nan, 0.0
    mean = fsum(ys) / n
    if n == 1:
        return mean, 0.0
    middle = (n - 1) / 2
    return mean, fsum((x - middle) * (y - mean) for x, y in enumerate(ys)) / (n * (n * n - 1) / 12)
