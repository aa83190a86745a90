"""How far the estimate may be off: widths that held the share asked for among the measurements left out."""

from __future__ import annotations

import numpy as np

from workspan.estimate.curve import Floats
from workspan.estimate.decide import Decision

__all__ = ["calibrate"]

USUAL = 0.6  # quantile of the misses that stands for their usual size, which is added to the spread at each place
LEAST = 0.02  # log seconds, added too: no interval is quite empty
EASIER = 0.015  # a new measurement is held a little more often than one left out, which has a neighbour less
BEYOND = 15.0  # growth of the widths where more is asked than so few can show: all of 8 held is no proof of 90 %


def calibrate(decision: Decision, y: Floats, level: float) -> tuple[Floats, Floats]:
    """Return the widths below and above the estimate at each place asked about, in log seconds, at least 0.

    The spread expected at each place is scaled by one factor, such that intervals made in the same way would have held
    the share *level* of the measurements, had each been left out; with the correction for a finite number of them.

    Parameters
    ----------
    decision
        For the measurements left out (count,), then for the places.
    y
        What was measured (count,), in log seconds.
    """
    count = len(y)
    miss = y - decision.value[:count]
    usual = float(np.quantile(np.abs(miss), USUAL, method="higher")) + LEAST
    down, up = decision.value - decision.low + usual, decision.high - decision.value + usual
    needed = np.sort(np.where(miss > 0.0, miss / up[:count], -miss / down[:count]))
    wanted = (level - EASIER) * (1.0 + 1.0 / count)
    factor = float(needed[min(int(np.ceil(wanted * count)), count) - 1]) * (1.0 + BEYOND * max(wanted - 1.0, 0.0))
    return factor * down[count:], factor * up[count:]
