"""How far the estimate may be off: widths that held the share asked for among the measurements left out."""

from __future__ import annotations

import numpy as np

from workspan.estimate.curve import Floats
from workspan.estimate.decide import Decision

__all__ = ["calibrate"]

HALF = 25.0  # measurements after which a miss counts half
SHARE = 0.6  # quantile of the misses that stands for their usual size
USUAL = 1.0  # how much of it is added to the spread expected at each place
FLOOR = 0.02  # log seconds; no interval is quite empty
EXTRA = 1.0
BEYOND = 5.0


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the smallest value with at least this share of the weight at or below it."""
    order = np.argsort(values)
    grown = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(grown, share * grown[-1])), len(values) - 1)])


def calibrate(decision: Decision, y: Floats, level: float) -> tuple[Floats, Floats]:
    """Return the widths below and above the estimate at each node, in log seconds, at least 0.

    The spread expected at each place is scaled by one factor, such that intervals made in the same way would have held
    the share *level* of the measurements, had each been left out; with the correction for a finite number of them.

    Parameters
    ----------
    decision
        For the measurements left out (count,), then for the nodes.
    y
        What was measured (count,), in log seconds.
    """
    count = len(y)
    weights = 0.5 ** ((count - 1 - np.arange(count)) / HALF)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    miss = y - decision.value[:count]
    usual = USUAL * weighted_quantile(np.abs(miss), weights, SHARE) + FLOOR
    down, up = decision.value - decision.low + usual, decision.high - decision.value + usual
    scores = np.where(miss > 0.0, miss / up[:count], -miss / down[:count])
    wanted = level * (1.0 + EXTRA / effective)
    factor = weighted_quantile(scores, weights, min(wanted, 1.0))
    factor *= 1.0 + BEYOND * max(wanted - 1.0, 0.0)  # more is asked than so few can show
    return factor * down[count:], factor * up[count:]
