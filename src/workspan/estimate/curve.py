"""The fitted curve dt(N): a table that is quick to read and cannot go wrong between or beyond its nodes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
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
    _pieces: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # One row for each gap between nodes, by the number of nodes before it: reading eight numbers from four tuples
        # would take a quarter of the time of an estimate. Below the first node nothing rises; beyond the last the last
        # piece goes on.
        nodes = list(zip(self.places, self.values, self.below, self.above, strict=True))
        place, *ends = nodes[0]
        pieces = [(place, *(part for end in ends for part in (end, 0.0)))]
        for (place, *ends), (next_place, *next_ends) in pairwise(nodes):
            wide = next_place - place
            rises = [(there - here) / wide for here, there in zip(ends, next_ends, strict=True)]
            pieces.append((place, *(part for both in zip(ends, rises, strict=True) for part in both)))
        object.__setattr__(self, "_pieces", pieces)

    def evaluate(self, place: float, n: float) -> tuple[float, float, float, int]:
        """Return the estimate at a place whose N is *n*, and the ends of its interval, in seconds.

        The last number is 0 below the measurements, 1 among them, and 2 beyond them.
        """
        places = self.places
        z = log(place) if place > 0.0 else places[0]
        i = bisect_right(places, z)
        start, y, y_rise, down, down_rise, up, up_rise = self._pieces[i if i < len(places) else i - 1]
        t = z - start
        y += t * y_rise
        down += t * down_rise
        up += t * up_rise
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
