"""From a distribution of what to expect to one number and a raw interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workspan.estimate.curve import Floats

__all__ = ["Decision", "decide"]

STEP = 0.05  # of the grid on which losses are compared, in log seconds
REACH = 4.0  # half its width, around the median
SMEAR = 0.12  # log seconds: what is expected is at least this uncertain when losses are compared
CAP = 1.0  # a relative error beyond this is no worse, unless it is tenfold
TENFOLD = 2.0  # cost of being more than ten times off
WINDOW = 0.25  # the estimate is the median of what is expected this near to the place of least loss;
SURE = 0.8  # where this share of all is not there, it stays near that place itself: by this much
DOWN, UP = 0.3, 0.02  # below and above, since for relative errors too low is better than too high
TAIL = 0.05  # of the distribution on each side of the raw interval
CHUNK = 8  # rows in one product: small enough for BLAS not to start threads, which cost more than they save

_GRID = np.arange(-REACH, REACH + STEP / 2, STEP)


def loss_table() -> Floats:
    """Return the loss of each estimate on the grid for each outcome on it, (outcomes, estimates)."""
    off = _GRID[None, :] - _GRID[:, None]
    loss = np.minimum(np.abs(np.expm1(np.minimum(off, 1.0))), CAP)
    loss += TENFOLD * np.clip((np.abs(off) - 2.1) / 0.4, 0.0, 1.0)
    smear = np.exp(-np.abs(off) / SMEAR)
    return np.asarray((smear / smear.sum(1, keepdims=True)) @ loss)


LOSS = loss_table()


@dataclass(frozen=True)
class Decision:
    """Logarithms of seconds, one of each for each row; low <= value <= high."""

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
        Their weights, of the same shape, at least 0, some of each row above 0.
    """
    order = np.argsort(atoms, 1)
    atoms = np.take_along_axis(atoms, order, 1)
    weights = np.take_along_axis(weights, order, 1)
    low, median, high = (quantile(atoms, weights, share) for share in (TAIL, 0.5, 1.0 - TAIL))
    # each atom is shared between the two places of the grid around it
    at = np.clip((atoms - median[:, None] + REACH) / STEP, 0.0, len(_GRID) - 1.001)
    left = at.astype(np.intp)
    part = at - left
    flat = (left + np.arange(len(atoms))[:, None] * len(_GRID)).ravel()
    size = len(atoms) * len(_GRID)
    histogram = np.bincount(flat, (weights * (1.0 - part)).ravel(), size)
    histogram += np.bincount(flat + 1, (weights * part).ravel(), size)
    histogram = histogram.reshape(len(atoms), -1)
    cost = np.concatenate([histogram[i : i + CHUNK] @ LOSS for i in range(0, len(atoms), CHUNK)])
    best = median + _GRID[np.argmin(cost, 1)]
    inside = weights * (np.abs(atoms - best[:, None]) <= WINDOW)
    value = np.where(inside.any(1), quantile(atoms, inside, 0.5), best)
    held = inside.sum(1) / weights.sum(1)
    value = np.where(held >= SURE, value, np.clip(value, best - DOWN, best + UP))
    return Decision(value, np.minimum(low, value), np.maximum(high, value))


def quantile(atoms: Floats, weights: Floats, share: float) -> Floats:
    """Return the first atom of each row, sorted, with this share of the weight at or below it."""
    grown = np.cumsum(weights, 1)
    return np.asarray(atoms[np.arange(len(atoms)), np.argmax(grown >= share * grown[:, -1:], 1)])
