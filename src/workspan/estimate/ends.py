"""When the blocks that run, and those behind them, will have ended: arithmetic for the time that is left."""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import erfc, exp, inf, log, sqrt
from typing import NamedTuple

__all__ = ["LATE", "OUTSTANDING", "Stragglers", "finish", "left_of", "range_of", "with_stragglers"]

STRAGGLES = 0.41
"""Of its age, what is left of a block that outlasts all that is known.

Whatever time it takes in the end, over that time the mean absolute error is least with the square root of 2, less 1.
"""

STRAGGLES_LEAST, STRAGGLES_MOST = 0.03, 2.5
"""The same at the ends of the range."""

LATE = (2.5, 4.0)
"""Standard deviations from which on a block may be, and is, a straggler."""

OUTSTANDING = 5.0
"""Times the usual, and above all spread: a straggler."""

STRAGGLERS_SPREAD = 0.4  # log; by how much stragglers differ from each other, as few of them are ever seen
EXACT_WORKERS = 256  # up to here the last rounds are gone through worker by worker
LAST_ROUNDS = 2  # in which it matters which worker takes which block
ROOT_2 = sqrt(2.0)


class Stragglers(NamedTuple):
    """Blocks that took far longer than all others, in an earlier run."""

    blocks: float
    """How many."""
    of: float
    """Of how many blocks."""
    times: float
    """How many times the usual they took."""


def left_of(age: float, usual: float, spread: float, times: float = 0.0) -> tuple[float, float]:
    """Return what is left of a block that has run for *age* s, and how sure it is that it outlasts all others, 0 to 1.

    Its time has a lognormal distribution with mean *usual* and *spread* in logarithms, of which the part below *age* is
    ruled out. Far out in its tail it is taken for one of the stragglers that earlier runs had, which took so many
    *times* the usual; without them nothing is known of it but its age.
    """
    if age <= 0.0 or usual <= 0.0:
        return max(usual, 0.0), 0.0
    late = _late(age, usual, spread)
    straggles = _quantile(age, times * usual, STRAGGLERS_SPREAD, 0.5) if times else STRAGGLES * age
    if late > LATE[1]:
        return straggles, 1.0
    left = usual * erfc((late - spread) / ROOT_2) / erfc(late / ROOT_2) - age
    if late > LATE[0]:
        share = (late - LATE[0]) / (LATE[1] - LATE[0])
        return (1.0 - share) * left + share * straggles, share
    return max(left, 0.0), 0.0


def range_of(age: float, usual: float, spread: float, times: float = 0.0) -> tuple[float, float]:
    """Return between what the rest of such a block is, nine times out of ten."""
    if usual <= 0.0:
        return 0.0, 0.0
    late = _late(age, usual, spread) if age > 0.0 else -inf
    if late > LATE[0] and times:
        return range_of(age, times * usual, STRAGGLERS_SPREAD)
    if late > LATE[1]:
        return STRAGGLES_LEAST * age, STRAGGLES_MOST * age
    low, high = (_quantile(age, usual, spread, share) for share in (0.95, 0.05))
    if late > LATE[0]:
        return min(low, STRAGGLES_LEAST * age), max(high, STRAGGLES_MOST * age)
    return low, high


def _late(age: float, usual: float, spread: float) -> float:
    """Return by how many standard deviations *age* is beyond the middle of what blocks take."""
    return (log(age / usual) + spread * spread / 2.0) / spread


def _quantile(age: float, usual: float, spread: float, share: float) -> float:
    """Return what the rest of such a block exceeds with probability *share*."""
    late = _late(age, usual, spread) if age > 0.0 else -inf
    if late > LATE[1]:
        return STRAGGLES * age
    return max(0.0, usual * exp(-spread * spread / 2.0 + spread * _exceeded(late, share)) - age)


def _exceeded(late: float, share: float) -> float:
    """Return what that *share* of all normal values exceeds which are above *late*."""
    goal = share * (erfc(late / ROOT_2) if late > -inf else 2.0)
    low, high = max(late, -9.0), max(late, 0.0) + 9.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if erfc(middle / ROOT_2) > goal else (low, middle)
    return low


def finish(busy: list[float], waiting: int, a_block: float, workers: int, extra: float, fresh: int) -> float:
    """Return when the last block ends if each that waits is taken by the worker that is free first, in seconds.

    Parameters
    ----------
    busy
        What is left of each block in flight.
    waiting
        How many come behind them.
    a_block
        What each of these takes.
    workers
        How many there are, those of *busy* included.
    extra, fresh
        What the first block of a worker takes longer, and how many workers have not had one.
    """
    longest = max(busy, default=0.0)
    if not waiting:
        return longest
    idle = workers - len(busy)
    cold = min(fresh, idle)
    ends = sorted([*busy, *[extra] * cold, *[0.0] * (idle - cold)])
    # Up to a level that all workers reach it does not matter who takes what; who runs beyond it takes nothing.
    level, under = _level(ends, waiting * a_block)
    if workers > EXACT_WORKERS:
        return max(level + a_block / 2.0, longest)
    if a_block > 0.0 and (bulk := waiting - LAST_ROUNDS * under) > 0:
        level, under = _level(ends, bulk * a_block)
        for number in range(under):
            taken = int((level - ends[number]) / a_block)
            ends[number] += taken * a_block
            waiting -= taken
    elif a_block <= 0.0:
        return longest
    heapify(ends)
    for _ in range(waiting):
        heapreplace(ends, ends[0] + a_block)
    return max(ends)


def _level(ends: list[float], work: float) -> tuple[float, int]:
    """Return up to which moment *work* keeps workers busy that are free at *ends* (sorted), and how many of them."""
    total, under = work, 0
    level = ends[0]
    for end in ends:
        if under and (total / under) <= end:
            break
        total += end
        under += 1
        level = total / under
    return level, under


def with_stragglers(end: float, length: float, expected: float, workers: int, share: float = 0.5) -> float:
    """Return by when a run has ended, with probability *share*, in which stragglers may come.

    The last one decides, if it begins so late that the others do not outlast it: none begins in the last part x of the
    run with probability exp(-x * expected). The others take work from the workers that are left.

    Parameters
    ----------
    end
        When the run would end without any, in seconds.
    length
        What each of them takes longer.
    expected
        How many are expected to come; they begin at any moment alike.
    workers
        Among how many the work is shared.
    """
    spread_out = end + expected * length / workers
    late = -log(share) / expected if expected > 0.0 else inf
    return max(spread_out, length + end * (1.0 - late)) if late < 1.0 else spread_out
