"""The curve as a B-spline, for files that other programs read, and the reading of theirs. Plain Python throughout."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["Tck", "evaluate", "sample"]

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
