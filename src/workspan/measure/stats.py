"""Running statistics of any number of samples in constant memory.

Mean and spread follow Welford, merging follows Chan et al.: both work on differences to the mean, so that a small
spread on top of a large mean (a few microseconds in an epoch time, a few bytes in gigabytes) is not cancelled away.
"""

from __future__ import annotations

from math import fsum, isfinite, nan, sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.errors import UsageTypeError
from workspan.measure import ticks

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


class Welford(ticks.Moments):
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

    __slots__ = ()

    def extend(self, samples: Iterable[float | None]) -> None:
        """Add several samples."""
        for sample in samples:
            self.push(sample)

    def stat(self) -> Stat:
        """Return the summary of the samples so far."""
        n, mean, m2, low, high, total = self.figures()
        if not n:
            return Stat()
        return Stat(n, mean, sqrt(m2 / (n - 1)) if n > 1 else 0.0, low, high, total)


class Trend(ticks.Slope):
    """Least-squares slope of samples over their number 0, 1, ..., computed as they come.

    Examples
    --------
    >>> trend = Trend()
    >>> for wall_ms in (10.0, 12.0, 14.0):
    ...     trend.push(wall_ms)
    >>> trend.slope
    2.0
    """

    __slots__ = ()


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
