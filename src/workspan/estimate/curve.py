"""The fitted curve dt(N): a table that is quick to read and cannot go wrong between or beyond its nodes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

__all__ = ["Curve"]

Floats = npt.NDArray[np.float64]


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

    def evaluate(self, place: float, n: float) -> tuple[float, float, float]:
        """Return the estimate at a place whose N is *n*, and the ends of its interval, in seconds."""
        places, values = self.places, self.values
        z = log(place) if place > 0.0 else places[0]
        i = bisect_right(places, z)
        if i == 0 or len(places) == 1:
            y, down, up = values[0], self.below[0], self.above[0]
        else:
            i = min(i, len(places) - 1)
            t = (z - places[i - 1]) / (places[i] - places[i - 1])
            y = values[i - 1] + t * (values[i] - values[i - 1])
            down = self.below[i - 1] + t * (self.below[i] - self.below[i - 1])
            up = self.above[i - 1] + t * (self.above[i] - self.above[i - 1])
        value = exp(y) if y < 700.0 else 1e304
        if n > self.last:
            value = min(max(value, self.at_last), self.at_last * (n / self.last) if self.last > 0.0 else value)
        elif n < self.first:
            value = min(value, self.at_first)
        return value, value * exp(-min(down, 700.0)), value * exp(min(up, 20.0))
