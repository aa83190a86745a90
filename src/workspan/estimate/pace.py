"""What a block of a running task takes from now on: descriptions of its blocks so far that compete."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import NamedTuple

__all__ = ["ALIKE", "USUAL_SPREAD", "Bin", "Pace", "weigh"]

USUAL_SPREAD = 0.3
"""Relative deviation of the times of blocks around their mean, before they have shown it."""

SPREAD_COUNTS = 3.0  # how many blocks that guess counts
EXPECTED = 4.0  # log odds of times that grow with the size, or go as they went before, against any other measure
LEAST = 3.0  # blocks after a change that is believed
TEMPER = 0.5  # what a block says counts for less than if times were normal and independent, which they are not
CLUMPS_COUNT = 4.0  # how many stretches the guess counts that blocks are independent
TREND_FROM = 3  # bins from which on a steady growth is looked for
CHANGES = -3.0  # log odds of a pace that does not stay, beside what it costs to describe it
ALIKE = 0.02
"""Relative: nothing is measured better than this, nor are blocks ever more alike."""


class Bin:
    """What happened between two looks."""

    __slots__ = ("blocks", "busy", "seconds", "skipped", "squares", "there", "units")

    def __init__(self, measures: int) -> None:
        self.blocks = 0.0
        self.seconds = self.squares = self.busy = self.there = 0.0
        self.units = [0.0] * measures
        self.skipped = 0

    def take(self, other: Bin) -> None:
        """Add the next one."""
        self.blocks += other.blocks
        self.seconds += other.seconds
        self.squares += other.squares
        self.busy += other.busy
        self.there += other.there
        self.skipped += other.skipped
        self.units = [a + b for a, b in zip(self.units, other.units, strict=True)]


class Pace(NamedTuple):
    """What a unit of each measure takes from now on."""

    rates: list[float]
    """Seconds a unit, by measure."""
    shares: list[float]
    """How much each measure is believed; their sum is 1."""
    spread: float
    """Relative standard deviation of single blocks."""
    doubt: float
    """Relative standard deviation of the mean."""
    counted: float
    """Blocks that it rests on."""
    clumps: float = 1.0
    """By how much the means of stretches vary more than those of as many independent blocks: a factor of variances."""


def weigh(bins: list[Bin], ahead: float, history: int | None, prior: float, usual: float) -> Pace:
    """Let the descriptions compete.

    Parameters
    ----------
    bins
        Stretches of the run, in order; not empty, and none is.
    ahead
        Blocks to come.
    history
        The measure whose units are seconds that earlier runs predict, or ``None``.
    prior
        For how many blocks that counts.
    usual
        Relative deviation of single blocks, unless they show another.
    """
    blocks = sum(b.blocks for b in bins)
    total = sum(b.seconds for b in bins)
    mean = max(total / blocks, 1e-150)
    floor = (ALIKE * mean) ** 2 + 1e-30
    inner = sum(b.squares - b.seconds**2 / b.blocks for b in bins) + blocks * floor
    inner += SPREAD_COUNTS * (0.3 * usual * mean) ** 2
    freedom = blocks + SPREAD_COUNTS
    found: list[tuple[float, int, float, float]] = []  # weight, measure, rate, blocks it rests on
    best = None
    for measure in range(len(bins[0].units)):
        for log_weight, rate, rests_on, outer in _fits(
            bins, measure, ahead, inner, freedom, prior if measure == history else 0.0
        ):
            log_weight += EXPECTED if measure == (len(bins[0].units) - 1 if history is None else history) else 0.0
            found.append((log_weight, measure, rate, rests_on))
            if best is None or log_weight > best[0]:
                best = log_weight, outer
    assert best is not None
    top, outer = best
    found = [(exp(weight - top), measure, rate, rests_on) for weight, measure, rate, rests_on in found]
    whole = sum(weight for weight, *_ in found)
    count = len(bins[0].units)
    shares, rates, counted, square = [0.0] * count, [0.0] * count, 0.0, [0.0] * count
    for weight, measure, rate, rests_on in found:
        weight /= whole
        shares[measure] += weight
        rates[measure] += weight * rate
        square[measure] += weight * rate * rate
        counted += weight * rests_on
    apart = 0.0
    for n, share in enumerate(shares):
        if share > 0.0:
            rates[n] /= share
            apart += share * max(0.0, square[n] / share / rates[n] ** 2 - 1.0) if rates[n] ** 2 > 0.0 else 0.0
    single = sqrt((inner + outer + SPREAD_COUNTS * (usual * mean) ** 2) / (freedom + SPREAD_COUNTS)) / mean
    # Neighbours on a machine, and data, come in stretches: a sum over blocks is then less sure than their number says.
    by_chance = inner / freedom
    loose = len(bins) - 1.0 + CLUMPS_COUNT
    clumps = max(1.0, (outer + CLUMPS_COUNT * by_chance) / (loose * by_chance)) if by_chance > 0.0 else 1.0
    doubt = sqrt(clumps * single**2 / max(counted, 1.0) + apart)
    return Pace(rates, shares, single, doubt, counted + prior, clumps)


def _fits(
    bins: list[Bin], measure: int, ahead: float, inner: float, freedom: float, prior: float
) -> list[tuple[float, float, float, float]]:
    """Return (log weight, seconds a unit from now on, blocks that rests on, misfit) of each description."""
    a_unit = sum(b.blocks for b in bins) / max(sum(b.units[measure] for b in bins), 1e-300)  # blocks a unit
    penalty = log(max(freedom, 2.0))
    out = []

    def fitted(misfit: float, parameters: float, rate: float, rests_on: float, odds: float = 0.0) -> None:
        weight = -0.5 * (TEMPER * freedom * log(inner + misfit) + parameters * penalty) + odds
        out.append((weight, rate, rests_on, misfit))

    # Sums from the begin on, so that every split is cheap: blocks, units, seconds, and those for the misfit.
    sums = [(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    for b in bins:
        unit = b.units[measure]
        n, u, s, uu, us, ss = sums[-1]
        sums.append(
            (
                n + b.blocks,
                u + unit,
                s + b.seconds,
                uu + unit * unit / b.blocks,
                us + unit * b.seconds / b.blocks,
                ss + b.seconds * b.seconds / b.blocks,
            )
        )

    def part(begin: int, end: int, extra: float) -> tuple[float, float, float]:
        """Blocks, rate and misfit of a stretch that is steady."""
        n, u, s, uu, us, ss = (b - a for a, b in zip(sums[begin], sums[end], strict=True))
        rate = (s + extra / a_unit) / (u + extra / a_unit) if u + extra > 0.0 else 0.0
        return n, rate, max(0.0, ss - 2.0 * rate * us + rate * rate * uu)

    count = len(bins)
    blocks, rate, misfit = part(0, count, prior)
    fitted(misfit, 1.0, rate, blocks)
    if count < 3:
        return out
    odds = CHANGES - log(count - 1.0)
    for split in range(1, count):
        _, _, before = part(0, split, 0.0)
        after, rate, behind = part(split, count, 0.0)
        if after >= LEAST:
            fitted(before + behind, 3.0, rate, after, odds)
    if count >= TREND_FROM:
        fitted(*_trend(bins, measure, ahead), CHANGES)
    return out


def _trend(bins: list[Bin], measure: int, ahead: float) -> tuple[float, float, float, float]:
    """Return misfit, parameters, rate from now on and the blocks that it rests on, of a steady growth or decline."""
    place, points = 0.0, []
    for b in bins:
        points.append((place + b.blocks / 2.0, b.seconds / max(b.units[measure], 1e-300), b.units[measure]))
        place += b.blocks
    weight = sum(w for _, _, w in points)
    x = sum(x * w for x, _, w in points) / weight
    y = sum(y * w for _, y, w in points) / weight
    slope = sum((at - x) * (is_ - y) * w for at, is_, w in points) / sum((at - x) ** 2 * w for at, _, w in points)
    misfit = sum(
        (is_ - y - slope * (at - x)) ** 2 * w * w / b.blocks for (at, is_, w), b in zip(points, bins, strict=True)
    )
    # No growth is believed to go on for longer than it has lasted.
    middle = place + min(ahead, place) / 2.0 if ahead <= place else place + place * (1.0 - place / (2.0 * ahead))
    now = y + slope * (place - x)
    rate = max(y + slope * (middle - x), 0.2 * min(now, y), 0.0)
    return misfit, 2.0, rate, place / 4.0
