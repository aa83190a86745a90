"""The curve as a B-spline, for files that other programs read, and the reading of theirs. Plain Python throughout."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from workspan.errors import ConfigurationError

__all__ = ["TIE", "Tck", "bounded", "checked", "distinct_points", "evaluate", "sample"]

TIE = 1e-5  # relative; values of N closer than this to the first of their group are one (E79)

#: Knots, coefficients and degree, as plain lists and an int: what SciPy's ``splev`` takes.
Tck: TypeAlias = tuple[list[float], list[float], int]


def sample(curve: Callable[[float], float], points: Sequence[float], degree: int) -> Tck:
    """Write a curve as a spline of a given degree.

    The coefficients are the curve's values at the Greville points (Schoenberg's variation-diminishing spline), so the
    spline is nowhere outside the curve's range, grows where the curve grows, and is never negative. For degree 1 it
    passes through the points.

    Parameters
    ----------
    curve
        Seconds at N.
    points
        N of the samples, strictly growing, at least ``degree + 1`` of them.
    degree
        0 gives a constant, the curve's value at the last point, between two equal knots.
    """
    if degree == 0:
        return [points[-1], points[-1]], [curve(points[-1])], 0
    inner = list(points[1:-1])
    # degree + 1 points make one polynomial piece: it has room for degree - 1 inner points fewer.
    spare = degree - 1
    inner = inner[spare // 2 : len(inner) - (spare - spare // 2)]
    knots = [points[0]] * (degree + 1) + inner + [points[-1]] * (degree + 1)
    greville = [sum(knots[i + 1 : i + degree + 1]) / degree for i in range(len(knots) - degree - 1)]
    greville[0], greville[-1] = points[0], points[-1]  # a rounded mean may lie outside
    return knots, [curve(n) for n in greville], degree


def evaluate(tck: Tck, n: float) -> float:
    """Evaluate a spline by de Boor's recurrence; beyond its knots it is held at its end values."""
    knots, coefficients, degree = tck
    count = len(coefficients)
    if degree == 0 or len(knots) < 2 * degree + 2:
        return coefficients[-1]
    n = min(max(n, knots[degree]), knots[count])
    span = min(max(bisect_right(knots, n) - 1, degree), count - 1)
    local = [coefficients[span - degree + i] for i in range(degree + 1)]
    for level in range(1, degree + 1):
        for i in range(degree, level - 1, -1):
            left, right = knots[span - degree + i], knots[span + 1 + i - level]
            share = (n - left) / (right - left) if right > left else 0.0
            local[i] = (1.0 - share) * local[i - 1] + share * local[i]
    return local[degree]


def distinct_points(ns: Iterable[float], *, tie: bool) -> list[float]:
    """Return the distinct values of N in growing order; while there are fewer than 3, with 0 before them if *tie*."""
    points: list[float] = []
    for n in sorted(ns):
        if not points or n - points[-1] > TIE * points[-1]:
            points.append(n)
    return [0.0, *points] if tie and points and points[0] > 0.0 and len(points) < 3 else points


def checked(tck: Tck) -> Tck:
    """Return a copy of a stored spline as plain lists of floats.

    Raises
    ------
    ConfigurationError
        If the numbers of knots and coefficients do not belong together.
    """
    knots, coefficients, degree = tck
    constant = degree == 0 and len(knots) == 2
    if not coefficients or (len(knots) != len(coefficients) + degree + 1 and not constant):
        raise ConfigurationError(
            f"a spline of degree {degree} with {len(coefficients)} coefficients has "
            f"{len(coefficients) + degree + 1} knots, not {len(knots)}; read the file anew or discard the step"
        )
    return [float(knot) for knot in knots], [float(c) for c in coefficients], int(degree)


def bounded(tck: Tck, n: float) -> float:
    """Evaluate a stored spline within E84 and E85: never negative, and beyond its end no faster than N."""
    last = tck[0][-1]
    value = max(0.0, evaluate(tck, n))
    return min(value * (n / last), 1e300) if n > last > 0.0 else value
