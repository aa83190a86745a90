"""The fitted curve dt(N): a table that is quick to read and cannot go wrong between or beyond its nodes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Curve"]

MOST = 680.0  # log seconds: the interval above it is still a finite number
WIDEST = 3.4  # log width of an interval, a factor of 30: one outlier among five runs would ask for one of 100,000

Floats: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Curve:
    """Estimates at growing places, in logarithms, with what is allowed between and beyond them.

    A *place* is where a size lies on the axis of the fit, at least 0; N is the size after its order. Both grow
    together. Between nodes the logarithm of the estimate is linear in the logarithm of the place.
    """

    places: tuple[float, ...]
    """Logarithms of the nodes' places, growing."""
    values: tuple[float, ...]
    """Logarithm of the estimate in seconds at each node."""
    below: tuple[float, ...]
    """How far the lower end of the interval is below the estimate at each node, as a logarithm, at least 0."""
    above: tuple[float, ...]
    """The same for the upper end."""
    first: float
    """N of the smallest measurement."""
    last: float
    """N of the largest measurement."""
    at_first: float
    """Estimate at `first`, in seconds."""
    at_last: float
    """Estimate at `last`, in seconds."""

    def evaluate(self, place: float, n: float) -> tuple[float, float, float, int]:
        """Return the estimate at a place whose N is *n*, and the ends of its interval, in seconds.

        The last number is 0 below the measurements, 1 among them, and 2 beyond them.
        """
        places, values = self.places, self.values
        z = log(place) if place > 0.0 else places[0]
        last = len(places) - 1
        i = bisect_right(places, z)
        if i == 0 or last == 0:
            y, down, up = values[0], self.below[0], self.above[0]
        else:
            if i > last:
                i = last
            j = i - 1
            t = (z - places[j]) / (places[i] - places[j])
            y = values[j] + t * (values[i] - values[j])
            down = self.below[j] + t * (self.below[i] - self.below[j])
            up = self.above[j] + t * (self.above[i] - self.above[j])
        value = exp(y if y < MOST else MOST)
        where = 1
        if n > self.last:
            where = 2
            most = self.at_last * (n / self.last) if self.last > 0.0 else inf
            value = min(max(value, self.at_last), most)
        elif n < self.first:
            where = 0
            if value > self.at_first:
                value = self.at_first
        return value, value * exp(-down), value * exp(up if up < WIDEST else WIDEST), where
