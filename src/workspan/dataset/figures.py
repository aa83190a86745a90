"""Distributions: of samples that are there, or summed up as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspan.measure.sketch import Sketch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Figure", "Spread", "Tally"]

_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Figure:
    """A distribution of samples: seconds, bytes or counts."""

    min: float
    max: float
    mean: float
    sum: float
    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, samples: Iterable[float]) -> Figure | None:
        """Return the figure of samples; ``None`` without any."""
        tally = Tally()
        for sample in samples:
            tally.add(sample)
        return tally.figure()


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of which no total is known, in seconds."""

    count: int
    min: float
    p50: float | None
    p90: float | None
    p99: float | None
    max: float


class Tally:
    """Samples that are summed up as they come, in bounded memory.

    Of whole numbers (ns, bytes, rows) the sums are exact, in whatever order samples and tallies are put together.
    """

    __slots__ = ("_buffer", "_sketch", "count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum: float = 0
        self._sketch = Sketch()
        self._buffer: list[float] = []

    def add(self, sample: float) -> None:
        """Take in one sample."""
        self.count += 1
        self.sum += sample
        self._buffer.append(sample)
        if len(self._buffer) >= 512:
            self._flush()

    def merge(self, other: Tally) -> None:
        """Take in all samples of another tally, which keeps its own."""
        other._flush()
        self._flush()
        self.count += other.count
        self.sum += other.sum
        self._sketch.merge(other._sketch)

    def _flush(self) -> None:
        self._sketch.extend(self._buffer)
        self._buffer.clear()

    def figure(self, unit: float = 1) -> Figure | None:
        """Return the distribution; ``None`` without samples.

        Parameters
        ----------
        unit
            By what the samples are divided: 1e9 for ns that are told in seconds.
        """
        self._flush()
        low, high = self._sketch.min, self._sketch.max
        if low is None or high is None:
            return None
        p50, p90, p99 = (None if q is None else q / unit for q in self._sketch.quantiles(_SHARES))
        total = self.sum / unit
        return Figure(low / unit, high / unit, total / self.count, total, self.count, p50, p90, p99)
