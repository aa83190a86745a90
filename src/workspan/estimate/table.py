"""From measurements to the table of a curve: where its nodes are, and what its values may not do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from workspan.estimate.curve import Curve, Floats
from workspan.estimate.decide import decide
from workspan.estimate.interval import calibrate
from workspan.estimate.model import predictive
from workspan.estimate.spline import distinct_points

__all__ = ["fit_curve"]

SMALLEST = 1e-9  # s: what a clock cannot resolve is taken as this, as logarithms need more than 0
GAP = 1.5  # ratio of neighbouring places between which the curve needs nodes of its own
OUTER = np.array([1.5, 3.0, 10.0, 100.0])  # nodes beyond the ends, in multiples of the end
FEW = 4  # measurements; fewer tell nothing of a distribution, and each size is expected to take the median of its own
WIDEN = 0.25  # of the log distance from the data, by which an interval grows beyond them


def fit_curve(
    places: Sequence[float],
    dts: Sequence[float],
    n_at: Callable[[float], float | None],
    *,
    level: float,
    monotone: bool | None,
) -> Curve:
    """Fit a curve to measurements, given in the order in which they were made.

    Parameters
    ----------
    places, dts
        Place and seconds of each measurement, at least one.
    n_at
        N of a place.
    level
        Share of runs that the interval is to hold.
    monotone
        ``True``: never falling. ``None``: laws grow, measurements at each size override them. ``False``: laws may fall.
    """
    measured = np.asarray(places, float)
    y = np.log(np.maximum(np.asarray(dts, float), SMALLEST))
    count = len(y)
    known = np.array(distinct_points(places, tie=False))
    inner, outer_low, outer_high = between(known), known[0] / OUTER[::-1], known[-1] * OUTER
    # O_0 has one place; and a place whose N is beyond the range of a float cannot be asked for
    outer = np.concatenate((outer_low, outer_high)) if len(known) > 1 or known[0] > 0 else np.empty(0)
    nodes = np.unique(np.concatenate((known, inner, outer)))
    ns = [n_at(place) for place in nodes]
    keep = np.array([n is not None for n in ns])
    nodes, n_nodes = nodes[keep], np.array([n for n in ns if n is not None])
    all_places = np.concatenate((measured, nodes))
    floor = float(np.min(all_places[all_places > 0.0], initial=1.0)) * 0.05
    x = np.log(np.maximum(all_places, floor))
    n = np.concatenate(([n_at(place) or 0.0 for place in measured], n_nodes))
    decision = decide(*predictive(n, x, y, falling=monotone is False))
    below, above = calibrate(decision, y, level)
    is_known = np.isin(nodes, known)
    group = np.searchsorted(known, measured, side="right") - 1
    weight = np.bincount(group, minlength=len(known)).astype(float)
    chosen = decision.value[count:].copy()
    if count < FEW:
        for number in np.flatnonzero(weight > 1.0):
            chosen[nodes == known[number]] = np.log(np.median(np.exp(y[group == number])))
    value = tame(chosen, n_nodes, np.flatnonzero(is_known), weight if monotone is True else None)
    ends = np.flatnonzero(is_known)[[0, -1]]
    logs = x[count:]
    far = np.maximum(logs[ends[0]] - logs, 0.0) + np.maximum(logs - logs[ends[1]], 0.0)
    first, last = ends
    for width in (below, above):
        width[:first] = np.maximum(width[:first], width[first])
        width[last + 1 :] = np.maximum(width[last + 1 :], width[last])
        width[:first] = np.maximum.accumulate(width[:first][::-1])[::-1]
        width[last + 1 :] = np.maximum.accumulate(width[last + 1 :])
        width += WIDEN * far
    return Curve(
        tuple(logs.tolist()),
        tuple(value.tolist()),
        tuple(below.tolist()),
        tuple(above.tolist()),
        float(n_nodes[first]),
        float(n_nodes[last]),
        float(np.exp(value[first])),
        float(np.exp(value[last])),
    )


def between(known: Floats) -> Floats:
    """Return nodes that divide wide gaps: one in the middle from a ratio of `GAP`, three from its fourth power."""
    low, high = known[:-1], known[1:]
    positive = low > 0.0
    low, high = low[positive], high[positive]
    ratio = high / low
    wide, wider = ratio > GAP, ratio > GAP**4
    return np.concatenate((np.sqrt(low * high)[wide], (low**0.75 * high**0.25)[wider], (low**0.25 * high**0.75)[wider]))


def tame(value: Floats, n: Floats, at: npt.NDArray[np.intp], weight: Floats | None) -> Floats:
    """Hold log values to the promises: no overshoot between measured places, bounded growth beyond them.

    Parameters
    ----------
    value, n
        Of each node.
    at
        Indices of the nodes that were measured.
    weight
        Number of measurements at each of these, if the values may not fall; else ``None``.
    """
    value = value.copy()
    if weight is not None:
        value[at] = pooled(value[at], weight)
    for left, right in pairwise(at):
        if right - left > 1:
            ends = sorted((value[left], value[right]))
            inside = np.clip(value[left + 1 : right], *ends)
            if value[left] <= value[right]:
                inside = np.maximum.accumulate(inside)
            value[left + 1 : right] = inside
    first, last = at[0], at[-1]
    beyond = np.maximum(value[last + 1 :], value[last])
    if n[last] > 0.0:  # logarithms of sizes up to 1 are 0, and grow by no factor
        beyond = np.minimum(beyond, value[last] + np.log(n[last + 1 :] / n[last]))
    value[last + 1 :] = np.maximum.accumulate(beyond)
    value[:first] = np.minimum.accumulate(np.minimum(value[:first], value[first])[::-1])[::-1]
    return value


def pooled(value: Floats, weight: Floats) -> Floats:
    """Return the nearest non-decreasing sequence, in weighted least squares (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for v, w in zip(value.tolist(), weight.tolist(), strict=True):
        blocks.append([v, w, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            v2, w2, c2 = blocks.pop()
            v1, w1, c1 = blocks[-1]
            blocks[-1] = [(v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, c1 + c2]
    return np.repeat([b[0] for b in blocks], [int(b[2]) for b in blocks])
