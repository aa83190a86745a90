"""What the estimator is compared with. A method maps (order, sizes, seconds, size) to (estimate, low, high)."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import numpy as np
import numpy.typing as npt

from workspan.estimate.estimator import Estimator
from workspan.estimate.order import ComputationalOrder
from workspan.estimate.table import pooled

Floats = npt.NDArray[np.float64]
Answer = tuple[float, float, float]
Method = Callable[[str, Floats, Floats, float], Answer]


def ours(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    return answer(Estimator(order).fit(zip(sizes.tolist(), seconds.tolist(), strict=True)), size)


def answer(estimator: Estimator, size: float) -> Answer:
    value, low, high = estimator.predict(size)[:3]
    return (nan if value is None else value, nan if low is None else low, nan if high is None else high)


class Learning:
    """Ours as a program that runs uses it: one estimator a series, told each new measurement as it comes."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._order = ""
        self._estimator = Estimator()

    def __call__(self, order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
        pairs = list(zip(sizes.tolist(), seconds.tolist(), strict=True))
        if order == self._order and pairs[:-1] in (self._seen, self._seen[1:]):
            self._estimator.update(*pairs[-1])
        else:
            self._estimator = Estimator(order).fit(pairs)
        self._order, self._seen = order, pairs
        return answer(self._estimator, size)


def spline(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    """Interpolate with a spline of degree up to 3 through the mean at each distinct N and, if few, the origin."""
    from scipy.interpolate import splev, splrep

    convert = ComputationalOrder(order)
    n = np.array([convert(s) for s in sizes])
    points = np.unique(n)
    means = np.array([seconds[n == p].mean() for p in points])
    if points[0] > 0.0:
        points, means = np.append(0.0, points), np.append(0.0, means)
    degree = min(len(points) - 1, 3)
    return float(splev(convert(size), splrep(points, means, k=degree, s=0))), nan, nan


def running_mean(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    return float(seconds.mean()), nan, nan


def last_value(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    return float(seconds[-1]), nan, nan


def median_ratio(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    convert = ComputationalOrder(order)
    n = np.array([convert(s) or 1e-300 for s in sizes])
    return float(np.median(seconds / n) * convert(size)), nan, nan


def theil_sen(x: Floats, y: Floats, at: float) -> float:
    left, right = np.triu_indices(len(x), 1)
    apart = x[left] != x[right]
    slopes = (y[right] - y[left])[apart] / (x[right] - x[left])[apart]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    return float(np.median(y - slope * x) + slope * at)


def line(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    convert = ComputationalOrder(order)
    return theil_sen(np.array([convert(s) for s in sizes]), seconds, convert(size)), nan, nan


def power_law(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    return float(np.exp(theil_sen(np.log(sizes), np.log(seconds), np.log(size)))), nan, nan


def isotonic(order: str, sizes: Floats, seconds: Floats, size: float) -> Answer:
    """Fit a growing step curve to the logarithms; between sizes it is interpolated, beyond them held."""
    points, where, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    means = np.bincount(where, np.log(seconds)) / counts
    return float(np.exp(np.interp(np.log(size), np.log(points), pooled(means, counts.astype(float))))), nan, nan


METHODS: dict[str, Method] = {
    "interpolating spline": spline,
    "running mean": running_mean,
    "last value": last_value,
    "median dt/N": median_ratio,
    "Theil-Sen line": line,
    "log-log Theil-Sen": power_law,
    "isotonic in log dt": isotonic,
    "Workspan": ours,
    "Workspan, learning": Learning(),
}
