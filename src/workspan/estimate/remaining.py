"""How long the rest of a task will take, told from its run so far and from what earlier runs have shown.

Nothing is kept of a block. Whoever shows the time takes a look at the run now and then (:class:`Look`): sums over the
blocks that are done, and the age of each that runs. From one look to the next a *bin* is filled; there are never more
than :data:`MOST_BINS`, as neighbours are joined.

1. What a block takes. Several descriptions compete for the bins: all blocks alike, or in proportion to their size, or
   as earlier runs say; and each of them steady, or changed once, or growing. They are weighed by how well they fit and
   how much they assume (BIC), so that an estimate moves over to what has become likely and does not jump. The first
   block of each worker is set apart: it compiles, imports and fills caches.
2. How many run at a time: the time that blocks took, over the time that workers were there. The age of blocks in
   flight counts, so that workers in step, which return their blocks in bursts, do not disturb it.
3. When the last one ends: blocks in flight by what is left of them given their age, the others behind them, on workers
   as they become free. A block that has run much longer than any before is expected to run on: by a quarter of its
   age; once it is done it is left out, since another one is as hard to foresee.
"""

from __future__ import annotations

from math import hypot, isfinite, log, sqrt
from typing import TYPE_CHECKING, NamedTuple

from workspan.estimate.ends import LATE, OUTSTANDING, finish, left_of, range_of, with_stragglers
from workspan.estimate.pace import ALIKE, USUAL_SPREAD, Bin, Pace, weigh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.estimate.ends import Stragglers

__all__ = ["Left", "Look", "Remaining", "Running"]

MOST_BINS = 48
RANGE_FROM = 5  # measured blocks, as for every other interval
PRIOR_OFF = 0.15  # by how much a run as a whole misses what earlier ones have shown
PRIOR_FREEDOM = 3.0  # degrees of freedom of that
PRIOR_COUNTS = 6.0  # most blocks that earlier runs count for
Z = 1.645
DRIFTS = 0.1  # by how much the pace to come differs from what it was, though nothing tells of it
SURPRISES = 1.3  # of the range that lies above the estimate: what happens to a run makes it longer
START_SPREAD = 0.15  # by what part of it the start of workers differs between runs
EXTRA_OFF = 0.5  # by what part of it the warm-up of first blocks differs between runs
LONG = 30.0  # seconds of a first block beside which a warm-up is small
CONFIRMED = 0.3  # of the time of a first block: when the next one has taken so long, it was no mere warm-up


class Left(NamedTuple):
    """The time until a task ends. Immutable."""

    value: float
    """Seconds, at least 0."""
    low: float | None = None
    """Lower end of the range that should hold it nine times out of ten, in seconds; ``None``: too little is known."""
    high: float | None = None
    """Upper end."""
    source: str = "run"
    """``"run"``: from this run's blocks; ``"history"``: from earlier runs, since none of this one is done."""


class Running(NamedTuple):
    """A block in flight."""

    age: float
    """Seconds since it began."""
    units: tuple[float, ...] = (1.0,)
    """Its size by each measure of :attr:`Look.done`."""
    is_first: bool = False
    """It is the first one of its worker."""


class Look(NamedTuple):
    """A task at one moment: sums since the begin of the run."""

    at: float
    """Seconds of a monotonic clock."""
    blocks: int
    """Blocks executed and completed."""
    seconds: float
    """Their times together."""
    squares: float
    """The squares of their times together."""
    left: int
    """Blocks that will have to run, those in flight included."""
    running: Sequence[Running] = ()
    workers: int = 1
    """Workers that take blocks, or will soon."""
    ready_workers: int = 1
    """Those of them that have started up."""
    starting: float = 0.0
    """Seconds until the first of them will have, where none has and it is known."""
    firsts: int = 0
    """How many of *blocks* were the first of their worker."""
    first_seconds: float = 0.0
    """The time of these."""
    first_squares: float = 0.0
    """The squares of these times."""
    first_units: tuple[float, ...] | None = None
    """The size of these by each measure; ``None``: they are like those to come."""
    longest: float = 0.0
    """The longest of the times of *blocks*; 0: not known."""
    done: tuple[float, ...] | None = None
    """The size of *blocks*, without the firsts, by each measure; ``None``: they are counted."""
    rest: tuple[float, ...] | None = None
    """The size of the blocks that have not begun, by each measure."""
    skipped: int = 0
    """Blocks that turned out, one by one, not to need running."""
    largest: tuple[int, tuple[float, ...]] | None = None
    """The largest block that has not begun: how many come before it, and its size by each measure."""
    chain: int = 1
    """Blocks that must run one after another, at least: levels that are left."""
    upstream: float = 0.0
    """Seconds until all that this task waits for is there."""


class Remaining:
    """Estimates the time that a task will still take. Not safe to use from several threads at once.

    Parameters
    ----------
    measures
        Ways to measure blocks: by number, by size, by what earlier runs say. Each has its place in
        :attr:`Look.done`, :attr:`Look.rest` and :attr:`Running.units`.
    history
        Number of the measure whose units are seconds that earlier runs predict; ``None``: there are none.
    history_spread
        Relative standard deviation of single blocks around it, or ``None``.
    first_extra
        What the first block of a worker takes longer, in seconds, as earlier runs say.
    stragglers
        Blocks that took far longer than all others in earlier runs; *history* does not count them.

    Examples
    --------
    Ten of a hundred blocks of 2 s are done on one worker, the next one has just begun:

    >>> remaining = Remaining()
    >>> remaining.look(Look(at=0.0, blocks=0, seconds=0.0, squares=0.0, left=100, running=[Running(0.0)]))
    >>> remaining.look(Look(at=20.0, blocks=10, seconds=20.0, squares=40.0, left=90, running=[Running(0.0)]))
    >>> round(remaining.left(20.0).value), round(remaining.left(21.0).value)
    (180, 179)
    """

    def __init__(
        self,
        measures: int = 1,
        *,
        history: int | None = None,
        history_spread: float | None = None,
        first_extra: float = 0.0,
        stragglers: Stragglers | None = None,
    ) -> None:
        self._measures = measures
        self._history = history
        self._history_spread = history_spread
        self._first_extra = first_extra
        self._stragglers = stragglers
        self._straggled = 0
        self._bins: list[Bin] = []
        self._open = Bin(measures)
        self._last: Look | None = None
        self._left: Left | None = None
        self._left_at = 0.0

    # -- looking ---------------------------------------------------------------------------------------------------

    def look(self, look: Look) -> None:
        """Take in the state of the task at ``look.at``, which is not before that of the last look."""
        self._fill(look)
        self._last = look
        self._left = self._estimate(look)
        self._left_at = look.at

    def left(self, now: float) -> Left | None:
        """Return what is left at *now*; ``None``: nothing is known yet. It falls from one look to the next."""
        if self._left is None:
            return None
        gone = max(0.0, now - self._left_at)
        value, low, high, source = self._left
        if low is None or high is None:
            return Left(max(0.0, value - gone), None, None, source)
        return Left(max(0.0, value - gone), max(0.0, low - gone), max(0.0, high - gone), source)

    def _fill(self, look: Look) -> None:
        last = self._last or Look(look.at, 0, 0.0, 0.0, look.left)
        first = look.first_seconds - last.first_seconds
        firsts = look.firsts - last.firsts
        part = self._open
        blocks = look.blocks - last.blocks - firsts
        part.blocks += blocks
        part.seconds += look.seconds - last.seconds - first
        part.squares += look.squares - last.squares - (look.first_squares - last.first_squares)
        done = look.done or (float(look.blocks - look.firsts),) * self._measures
        before = (
            (last.done or (float(last.blocks - last.firsts),) * self._measures) if self._last else (0.0,) * len(done)
        )
        part.units = [u + a - b for u, a, b in zip(part.units, done, before, strict=True)]
        part.busy += look.seconds - last.seconds + _ages(look) - _ages(last)
        part.there += (look.at - last.at) * max(look.ready_workers, len(look.running))
        part.skipped += look.skipped - last.skipped
        if look.longest > last.longest and firsts == 0 and self._is_straggler(part, look.longest):
            part.blocks -= 1
            part.seconds -= look.longest
            part.squares -= look.longest**2
            self._straggled += 1
        if part.blocks <= 0:
            return
        part.seconds = max(part.seconds, 0.0)
        part.squares = max(part.squares, part.seconds**2 / part.blocks)
        self._bins.append(part)
        self._open = Bin(self._measures)
        if len(self._bins) > MOST_BINS:
            joined = []
            for one, other in zip(self._bins[::2], self._bins[1::2], strict=False):
                one.take(other)
                joined.append(one)
            if len(self._bins) % 2:
                joined.append(self._bins[-1])
            self._bins = joined

    def _is_straggler(self, part: Bin, seconds: float) -> bool:
        """Whether a block of *part* that took *seconds* is not like those before."""
        blocks = sum(b.blocks for b in self._bins)
        if blocks < 2 * RANGE_FROM:
            return False
        mean = sum(b.seconds for b in self._bins) / blocks
        inner = max(0.0, sum(b.squares for b in self._bins) / blocks - mean * mean)
        spread = sqrt(log(1.0 + (inner / mean**2 if mean**2 else 0.0) + ALIKE**2))
        if seconds <= OUTSTANDING * mean or log(seconds / max(mean, 1e-300)) <= LATE[1] * spread:
            return False
        expected = mean / max(sum(b.units[-1] for b in self._bins) / blocks, 1e-300) * part.units[-1]
        return self._measures == 1 or seconds > OUTSTANDING * expected

    # -- estimating ------------------------------------------------------------------------------------------------

    def _estimate(self, look: Look) -> Left | None:
        if look.left <= 0:
            return Left(0.0, 0.0, 0.0)
        pace = self._pace(look)
        if pace is None:
            return None
        waiting = max(0, look.left - len(look.running))
        rest = look.rest or (float(waiting),) * self._measures
        work = _mean(pace, rest)
        a_block = work / waiting if waiting else _mean(pace, look.running[0].units if look.running else (1.0,) * 9)
        if look.skipped:
            share = self._run_share()
            waiting = round(waiting * share)
            work *= share
        first_extra = self._extra(look, a_block)
        log_spread = sqrt(log(1.0 + pace.spread**2))
        times = self._stragglers.times if self._stragglers else 0.0
        residuals: list[float] = []
        expected, longest = 0.0, (0.0, 0.0)
        for block in look.running:
            usual = _mean(pace, block.units) + (first_extra if block.is_first else 0.0)
            left, overdue = left_of(block.age, usual, log_spread, times)
            if left >= max(residuals, default=0.0):
                longest = block.age, usual
            residuals.append(left)
            expected += (1.0 - overdue) * max(0.0, block.age - usual)
        if waiting and expected:
            # Blocks that still run are longer than those that are done: what comes after them is like both.
            more = 1.0 + expected / (a_block * (pace.counted + len(look.running)))
            work, a_block = work * more, a_block * more
        workers = max(look.workers, len(residuals), 1)
        share = self._busy_share(look)
        fresh = max(0, workers - look.ready_workers)

        def end(most: float) -> float:
            """Return when the last block ends if that which runs on for the longest takes *most* more."""
            others = sorted(residuals)[:-1]
            return finish([*others, most] if residuals else [], waiting, a_block / share, workers, first_extra, fresh)

        most = max(residuals, default=0.0)
        value = end(most)
        ends = min(workers, waiting + len(residuals))
        if ends > 1 and value > most:
            value += 0.5 * pace.spread * a_block * sqrt(2.0 * log(ends)) * min(1.0, waiting / workers)
        off = [0.0, 0.0]
        if residuals:
            off = [abs(end(each) - end(most)) for each in range_of(*longest, log_spread, times)]
        if self._stragglers is not None and waiting:
            low, value, high = self._with_stragglers(look, value, waiting, a_block, workers)
            off = [max(off[0], value - low), max(off[1], high - value)]
        chain = (look.chain - (1 if residuals else 0)) * a_block + min(residuals, default=0.0)
        if look.largest is not None and waiting:
            before, units = look.largest
            its = _mean(pace, units)
            others = (work - its) / (waiting - 1) if waiting > 1 else 0.0
            at_last = before * others / (share * workers) + its
            if at_last > value:
                value, off = at_last, [max(each, Z * pace.spread * its) for each in off]
        value = max(value, chain if waiting else 0.0, look.upstream + a_block if look.upstream else 0.0)
        value += look.starting
        if not isfinite(value):
            return None
        source = "run" if pace.counted > self._prior_counts() else "history"
        if look.blocks - look.firsts < RANGE_FROM and self._history_spread is None:
            return Left(value, None, None, source)
        return self._range(look, pace, value, work, a_block, workers * share, off, source)

    def _range(
        self,
        look: Look,
        pace: Pace,
        value: float,
        work: float,
        a_block: float,
        at_a_time: float,
        off: Sequence[float],
        source: str,
    ) -> Left:
        """Put what may happen otherwise around *value*; *off*: what the block that runs on for longest may change."""
        waiting = max(0, look.left - len(look.running))
        mean = work / at_a_time
        noise = pace.spread * a_block * sqrt(pace.clumps * waiting + len(look.running)) / at_a_time
        end = a_block * (0.25 * min(1.0, waiting / at_a_time) + 0.5 * pace.spread)
        drift = DRIFTS * mean * min(1.0, sqrt(waiting / max(pace.counted, 1.0)))
        start = START_SPREAD * look.starting
        others = Z * sqrt((pace.doubt * mean) ** 2 + noise**2 + end**2 + drift**2 + start**2)
        low, high = hypot(others, off[0]), hypot(others * SURPRISES, off[1])
        return Left(value, max(0.0, value - low), value + high, source)

    def _with_stragglers(
        self, look: Look, value: float, waiting: int, a_block: float, workers: int
    ) -> tuple[float, float, float]:
        """Return low end, middle and high end of what is left if as many stragglers come as earlier runs had."""
        assert self._stragglers is not None
        known = self._stragglers
        length = (known.times - 1.0) * a_block
        expected = waiting * (known.blocks + self._straggled) / (known.of + look.blocks)
        return (
            value,
            with_stragglers(value, length, expected, workers),
            with_stragglers(value, length, expected, workers, 0.95),
        )

    def _prior_counts(self) -> float:
        """For how many blocks earlier runs count."""
        if self._history is None:
            return 0.0
        spread = USUAL_SPREAD if self._history_spread is None else self._history_spread
        return min(PRIOR_COUNTS, (spread / PRIOR_OFF) ** 2)

    def _pace(self, look: Look) -> Pace | None:
        bins = self._bins
        if not bins:
            return self._first_pace(look)
        blocks, seconds = sum(b.blocks for b in bins), sum(b.seconds for b in bins)
        if self._measures == 1 and look.firsts and look.first_seconds * blocks < seconds * look.firsts:
            # A warm-up makes first blocks longer. These are shorter: they are blocks like all others.
            begin = Bin(self._measures)
            begin.blocks, begin.seconds, begin.squares = look.firsts, look.first_seconds, look.first_squares
            begin.units = [sum(b.units[0] for b in bins) * look.firsts / blocks]
            bins = [begin, *bins]
        waiting = max(1.0, look.left - len(look.running))
        return weigh(bins, waiting, self._history, self._prior_counts() * self._trust(bins), self._usual_spread(look))

    def _trust(self, bins: list[Bin]) -> float:
        """Return how much earlier runs count beside blocks that are done, 0 to 1: less the more these differ from them.

        By how much runs differ is taken to have a t distribution: where one is far off it is no longer asked.
        """
        if self._history is None:
            return 0.0
        blocks, seconds = sum(b.blocks for b in bins), sum(b.seconds for b in bins)
        units = sum(b.units[self._history] for b in bins)
        if not (seconds > 0.0 and units > 0.0):
            return 1.0
        spread = USUAL_SPREAD if self._history_spread is None else self._history_spread
        off = log(seconds / units) / hypot(PRIOR_OFF, spread / sqrt(blocks))
        return min(1.0, (PRIOR_FREEDOM + 1.0) / (PRIOR_FREEDOM + off * off))

    def _first_pace(self, look: Look) -> Pace | None:
        """No block is done but first ones, or none at all."""
        counts = self._prior_counts()
        if self._history is not None:
            spread = self._history_spread or USUAL_SPREAD
            rate, doubt = self._first_rate(look, spread)
            shares = [1.0 if n == self._history else 0.0 for n in range(self._measures)]
            return Pace([rate] * self._measures, shares, spread, doubt, counts)
        if not look.firsts:
            return None
        mean = look.first_seconds / look.firsts
        if not self._is_confirmed(look, mean):
            return None
        waiting = max(0, look.left - len(look.running))
        rest = look.rest or (float(waiting),) * self._measures
        rates = [mean * waiting / unit if waiting and unit > 0.0 else mean for unit in rest]
        return Pace(rates, [1.0] + [0.0] * (self._measures - 1), self._usual_spread(look), 1.0, min(1.0, look.firsts))

    def _first_rate(self, look: Look, spread: float) -> tuple[float, float]:
        """Return how many times as long as in earlier runs blocks take, by the first ones of workers, and its error.

        How much longer these take is known from earlier runs, though not well: the more that is the less they say.
        """
        waiting = look.left - len(look.running)
        units = look.first_units
        if units is None and look.rest is not None and waiting > 0:
            units = tuple(unit / waiting * look.firsts for unit in look.rest)
        if not look.firsts or self._history is None or units is None or not units[self._history] > 0.0:
            return 1.0, PRIOR_OFF
        extra = self._first_extra * look.firsts
        whole = units[self._history] + extra
        ratio = look.first_seconds / whole
        error = hypot(spread / sqrt(look.firsts), EXTRA_OFF * extra / whole)
        share = PRIOR_OFF**2 / (PRIOR_OFF**2 + error**2)
        off = log(max(ratio, 1e-9)) / hypot(PRIOR_OFF, error)
        # Far shorter ones can only be a faster machine; far longer ones may be a warm-up that was not there before.
        believed = share * (min(1.0, (PRIOR_FREEDOM + 1.0) / (PRIOR_FREEDOM + off * off)) if off > 0.0 else 1.0)
        return 1.0 + believed * (ratio - 1.0), PRIOR_OFF * sqrt(1.0 - believed)

    def _usual_spread(self, look: Look) -> float:
        """Return the relative deviation of blocks that have not shown any: of earlier runs, or of first blocks."""
        if self._history_spread is not None:
            return self._history_spread
        if look.firsts < 2 or not look.first_seconds:
            return USUAL_SPREAD
        mean = look.first_seconds / look.firsts
        apart = max(0.0, look.first_squares / look.firsts / mean**2 - 1.0) * look.firsts
        return sqrt((USUAL_SPREAD**2 + apart) / look.firsts)

    def _is_confirmed(self, look: Look, mean: float) -> bool:
        """Whether the first blocks are likely to be like those after them, as far as that can be told.

        Most of a short one may be a warm-up; then the next ones are back soon.
        """
        oldest = max((block.age for block in look.running if not block.is_first), default=0.0)
        return mean >= LONG or oldest >= CONFIRMED * mean or not look.running

    def _extra(self, look: Look, a_block: float) -> float:
        """Return what a worker's first block takes longer, in seconds."""
        if not look.firsts or not self._bins:
            return self._first_extra
        seen = look.first_seconds / look.firsts - a_block
        return max(
            0.0, (seen * look.firsts + self._first_extra) / (look.firsts + 1.0 if self._first_extra else look.firsts)
        )

    def _run_share(self) -> float:
        """Which share of the blocks to come will have to run: what half of the bins have seen or more."""
        shares = sorted((b.blocks / (b.blocks + b.skipped), b.blocks) for b in self._bins)
        half = sum(blocks for _, blocks in shares) / 2.0
        for share, blocks in reversed(shares):
            half -= blocks
            if half <= 0.0:
                return share
        return 1.0

    def _busy_share(self, look: Look) -> float:
        """Return which part of their time workers had a block, of late."""
        if not self._bins:
            return 1.0
        busy, there = self._open.busy, self._open.there
        wanted = sum(b.blocks for b in self._bins) / 2.0
        for part in reversed(self._bins):
            busy, there = busy + part.busy, there + part.there
            wanted -= part.blocks
            if wanted <= 0.0:
                break
        a_block = self._bins[-1].seconds / self._bins[-1].blocks
        return min(1.0, max(1e-3, (busy + a_block) / (there + a_block))) if there > 0.0 else 1.0


# -- arithmetic ------------------------------------------------------------------------------------------------------


def _ages(look: Look) -> float:
    return sum(block.age for block in look.running)


def _mean(pace: Pace, units: Sequence[float]) -> float:
    """Return the seconds that *units* of each measure take."""
    return sum(share * rate * unit for share, rate, unit in zip(pace.shares, pace.rates, units, strict=False))
