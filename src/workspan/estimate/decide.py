"""From a distribution of what to expect to one number and an interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workspan.estimate.curve import Floats

__all__ = ["Decision", "decide"]

STEP = 0.05  # of the grid on which losses are compared, in log seconds
REACH = 4.0  # half its width
WINDOW = 0.15  # the estimate is the median of what is expected this near to the best place
CAP = 1.5  # a relative error beyond this is no worse
FAR = 1.0  # cost of being 10 times off
TAIL = 0.05  # of the expected distribution on each side, between which the raw interval lies

_GRID = np.arange(-REACH, REACH + STEP / 2, STEP)
_OFF = _GRID[None, :] - _GRID[:, None]  # estimate less what came, (what came, estimate)


def loss_table() -> Floats:
    """Return what each estimate on the grid costs for each outcome: relative error, capped, and the cost of 10x off."""
    far = np.clip((np.abs(_OFF) - 1.9) / 0.6, 0.0, 1.0)
    return np.asarray(np.minimum(np.abs(np.expm1(np.minimum(_OFF, 6.0))), CAP) + FAR * far)


LOSS = loss_table()


@dataclass(frozen=True)
class Decision:
    """Logarithms of seconds, one of each for each row."""

    value: Floats
    low: Floats
    high: Floats


def decide(atoms: Floats, weights: Floats) -> Decision:
    """Choose the estimate with the least expected loss, and the ends of the raw interval.

    Parameters
    ----------
    atoms
        Possible log times, (rows, atoms).
    weights
        Their weights, of the same shape, at least 0.
    """
    order = np.argsort(atoms, 1)
    atoms = np.take_along_axis(atoms, order, 1)
    weights = np.take_along_axis(weights, order, 1)
    grown = np.cumsum(weights, 1)
    total = grown[:, -1:]
    rows = np.arange(len(atoms))

    def quantile(share: float) -> Floats:
        return np.asarray(atoms[rows, np.argmax(grown >= share * total, 1)])

    median, low, high = quantile(0.5), quantile(TAIL), quantile(1.0 - TAIL)
    # each atom is shared between the two grid places around it
    at = np.clip((atoms - median[:, None] + REACH) / STEP, 0.0, len(_GRID) - 1.001)
    left = at.astype(np.intp)
    part = at - left
    flat = left + rows[:, None] * len(_GRID)
    size = len(atoms) * len(_GRID)
    histogram = np.bincount(flat.ravel(), (weights * (1.0 - part)).ravel(), size)
    histogram += np.bincount(flat.ravel() + 1, (weights * part).ravel(), size)[:size]
    cost = histogram.reshape(len(atoms), -1) @ LOSS
    best = median + _GRID[np.argmin(cost, 1)]
    inside = weights * (np.abs(atoms - best[:, None]) <= WINDOW)
    none = inside.sum(1) <= 0.0
    inside_grown = np.cumsum(inside, 1)
    value = atoms[rows, np.argmax(inside_grown >= 0.5 * inside_grown[:, -1:], 1)]
    value = np.where(none, best, value)
    return Decision(np.asarray(value), np.minimum(low, value), np.maximum(high, value))
