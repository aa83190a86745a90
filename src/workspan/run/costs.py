"""What the blocks of a task cost beside each other, for the time that is left: by their size, or as the last run says.

Everything here is cheap enough for the begin of a run: of earlier runs the last line is read, and nothing heavy loaded.
"""

from __future__ import annotations

import logging
from itertools import pairwise, product
from math import exp, isfinite, log, prod, sqrt
from typing import TYPE_CHECKING, NamedTuple

from workspan.errors import WorkspanError
from workspan.estimate.ends import LATE, OUTSTANDING, Stragglers
from workspan.estimate.pace import ALIKE
from workspan.run.sizes import sizes_of, write_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workspan.grid import Layout
    from workspan.report.history import SizeTimes
    from workspan.run.task import Task

__all__ = ["BlockCosts", "Earlier", "KnownCosts", "LayoutCosts", "costs_of", "earlier"]

logger = logging.getLogger(__name__)

MOST_ASKED = 2000
"""Blocks up to which a task's ``n_ref`` is asked for the size of each."""

PLACES_FROM = 0.5
"""Part of how far stretches of a task differ that neighbours must have in common, for it to be used."""

STRAGGLERS_FROM = 20
"""Blocks of about one size from which on it can be told which ones are not like the others."""


class Earlier(NamedTuple):
    """What the last run of a task says about blocks. Times are seconds."""

    points: tuple[tuple[float, float], ...]
    """(Size, mean time), by size; at least one."""
    spread: float
    """Relative standard deviation of single blocks around that."""
    first_extra: float
    """What the first block of a worker took longer."""
    startup: float = 0.0
    """What a worker took to start; 0: there were none, or it is not known."""
    stragglers: Stragglers | None = None
    """Blocks that took far longer than all others, and are not in the other figures; ``None``: there were none."""
    places: tuple[float, ...] = ()
    """How many times as long as all blocks those took in each of so many stretches of the task; empty: all alike."""

    def without_places(self) -> Earlier:
        """Return the same for blocks of which it is not known where they are."""
        if not self.places:
            return self
        apart = sum((factor - 1.0) ** 2 for factor in self.places) / len(self.places)
        return self._replace(places=(), spread=sqrt(self.spread**2 + apart))

    def seconds(self, size: float) -> float:
        """Return what a block of *size* took, or would have: between two sizes, and in proportion beyond them."""
        points = self.points
        if size <= points[0][0]:
            return points[0][1] * size / points[0][0]
        for (n, t), (m, u) in pairwise(points):
            if size <= m:
                return exp(log(t) + (log(u) - log(t)) * (log(size) - log(n)) / (log(m) - log(n)))
        return points[-1][1] * size / points[-1][0]


def earlier(task: Task) -> Earlier | None:
    """Return what the last run of *task* says; ``None``: it never ran, or was another function. Raises nothing."""
    from workspan.run.history import history_file

    try:
        path = history_file(task.task_id)
        if path is None or not path.is_file():
            return None
        return _read(task, path)
    except (OSError, WorkspanError, ValueError, TypeError, LookupError) as error:
        logger.info("the history of task %r is not used for the time that is left: %s", task.task_id, error)
        return None


def _read(task: Task, path: object) -> Earlier | None:
    from workspan.report.history import LayoutFields, RunSummary
    from workspan.store.runs import last_run

    line = last_run(path)  # type: ignore[arg-type]
    if line is None:
        return None
    summary = RunSummary.from_json(line)
    if (summary.function, summary.n_ref) != tuple(task.history_marks()):
        return None
    is_same = summary.layout == LayoutFields.of(task.layout) and not summary.skipped
    found = said(summary.later, summary.first, summary.places if is_same else ())
    startup = summary.startup
    return found if found is None or not startup.n else found._replace(startup=startup.mean)


def said(later: Sequence[SizeTimes], first: Sequence[SizeTimes], places: Sequence[float] = ()) -> Earlier | None:
    """Return what a run says whose blocks took so long: the *first* of each worker, those *later*, and by *places*."""
    entries = [e for e in later or first if e.size > 0 and e.seconds.n and e.seconds.mean > 0]
    if not entries:
        return None
    parts = [_without_stragglers(e) for e in sorted(entries, key=lambda e: e.size)]
    blocks = sum(part.blocks for part in parts)
    spread = sqrt(sum(part.blocks * (part.std / part.mean) ** 2 for part in parts) / blocks)
    factors, spread = _factors(places, parts, spread)
    found = Earlier(_pooled(parts, spread), spread, 0.0, 0.0, _stragglers(parts), factors)
    firsts = [e for e in first if e.seconds.n and e.size > 0] if later else []
    extra = sum(e.seconds.total - e.seconds.n * found.seconds(e.size) for e in firsts)
    count = sum(e.seconds.n for e in firsts)
    return found._replace(first_extra=max(0.0, extra / count) if count else 0.0)


def _factors(places: Sequence[float], parts: Sequence[_Part], spread: float) -> tuple[tuple[float, ...], float]:
    """Return how much longer blocks take along the task, and their spread beside that; none if it may be chance.

    Neighbours differ by chance, and by little else: what stretches differ beyond that is kept (von Neumann).
    """
    if len(places) < 2 or not sum(places) > 0 or len(parts) != 1:
        return (), spread
    mean = sum(places) / len(places)
    off = [place / mean - 1.0 for place in places]
    between = sum(each * each for each in off) / len(off)
    common = between - sum((a - b) ** 2 for a, b in pairwise(off)) / (2.0 * (len(off) - 1))
    if common <= max(PLACES_FROM * between, ALIKE**2):
        return (), spread
    return tuple(1.0 + common / between * each for each in off), sqrt(max(spread**2 - common, ALIKE**2))


class _Part(NamedTuple):
    """Blocks of about one size, those left out that took far longer than all others."""

    size: float
    blocks: float
    sampled: int
    mean: float
    std: float
    out: float
    """How many blocks were left out."""
    times: float
    """How many times the mean these took."""


def _without_stragglers(entry: SizeTimes) -> _Part:
    seconds, count = entry.seconds, entry.seconds.n
    whole = _Part(entry.size, entry.blocks, count, seconds.mean, seconds.std, 0.0, 0.0)
    if count < STRAGGLERS_FROM or len(entry.means) < 2 or not entry.p50 > 0 or seconds.max <= OUTSTANDING * entry.p50:
        return whole
    last, beside = entry.counts[-1], entry.means[-2]
    out = min(last, max(1, round(last * (entry.means[-1] - beside) / (seconds.max - beside))))
    rest, total = count - out, seconds.total - out * seconds.max
    square = (count - 1) * seconds.std**2 + count * seconds.mean**2 - out * seconds.max**2
    mean = total / rest
    std = sqrt(max(0.0, square / rest - mean * mean))
    if mean <= 0 or log(seconds.max / mean) <= LATE[1] * sqrt(log(1.0 + (std / mean) ** 2 + ALIKE**2)):
        return whole
    share = entry.blocks / count
    return _Part(entry.size, share * rest, rest, mean, std, share * out, seconds.max / mean)


def _stragglers(parts: Sequence[_Part]) -> Stragglers | None:
    out = sum(part.out for part in parts)
    if not out:
        return None
    times = sum(part.out * part.times for part in parts) / out
    return Stragglers(out, out + sum(part.blocks for part in parts), times)


def _pooled(parts: Sequence[_Part], spread: float) -> tuple[tuple[float, float], ...]:
    """Return size and mean time of each part; what differs by chance alone from being in proportion is so.

    Of a size of which few blocks are known the mean is as uncertain as a block. How far sizes differ beyond that is
    estimated from all of them (DerSimonian and Laird), and each goes towards the common pace as far as it is chance.
    """
    if len(parts) < 2 or not spread > 0:
        return tuple((part.size, part.mean) for part in parts)
    logs = [log(part.mean / part.size) for part in parts]
    errors = [(spread**2 + ALIKE**2) / part.sampled for part in parts]
    weights = [1.0 / error for error in errors]
    whole = sum(weights)
    middle = sum(w * x for w, x in zip(weights, logs, strict=True)) / whole
    apart = sum(w * (x - middle) ** 2 for w, x in zip(weights, logs, strict=True)) - (len(parts) - 1)
    between = max(0.0, apart / (whole - sum(w * w for w in weights) / whole))
    weights = [1.0 / (error + between) for error in errors]
    middle = sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights)
    kept = [between / (between + error) for error in errors]
    return tuple(
        (part.size, part.size * exp(middle + keep * (x - middle)))
        for part, keep, x in zip(parts, kept, logs, strict=True)
    )


class BlockCosts:
    """Costs of blocks and their sum over those that are done. Nothing is kept of a block but its part of the sum.

    Attributes
    ----------
    mean
        Over all blocks.
    done
        Over those that are done, all together.
    """

    def __init__(self, mean: float) -> None:
        self.mean = mean
        self.done = 0.0

    def cost(self, index: int) -> float:
        """Return what a block costs."""
        return self.mean

    def take(self, index: int) -> None:
        """Count a block that is done."""
        self.done += self.cost(index)

    def largest(self, begun: int) -> tuple[int, float] | None:
        """Return how many blocks come before the dearest one behind the first *begun*, and its cost, if it matters."""
        return None


class LayoutCosts(BlockCosts):
    """Costs of blocks by the size of what they write, where those at the edge of the region are clipped."""

    def __init__(self, layout: Layout, cost: Callable[[float], float]) -> None:
        self._axes = []
        """Stride and count of blocks, and the size of the last one, of each axis where it is clipped."""
        whole = float(prod(layout.write_shape))
        begin, end = layout.covered
        for b, e, w, stride, count in zip(begin, end, layout.write_shape, layout.strides, layout.counts, strict=True):
            if over := (e - b) % w:
                self._axes.append((stride, count, over / w))
        self._costs, mean = {}, 0.0
        for key in product((False, True), repeat=len(self._axes)):
            pairs = list(zip(key, self._axes, strict=True))
            self._costs[key] = cost(whole * prod(last if clipped else 1.0 for clipped, (_, _, last) in pairs))
            share = prod(1 / count if clipped else 1 - 1 / count for clipped, (_, count, _) in pairs)
            mean += share * self._costs[key]
        super().__init__(mean)

    def cost(self, index: int) -> float:
        """Return what a block costs."""
        return self._costs[tuple([index // stride % count == count - 1 for stride, count, _ in self._axes])]


class PlacedCosts(BlockCosts):
    """Costs of blocks of one size by where in the task they are."""

    def __init__(self, mean: float, factors: Sequence[float], blocks: int) -> None:
        super().__init__(mean)
        self._costs = [mean * factor for factor in factors]
        self._blocks = blocks

    def cost(self, index: int) -> float:
        """Return what a block costs."""
        return self._costs[index * len(self._costs) // self._blocks]


class KnownCosts(BlockCosts):
    """Costs of blocks that are given one by one, in the order in which blocks are handed out."""

    def __init__(self, costs: Sequence[float]) -> None:
        super().__init__(sum(costs) / len(costs))
        self._costs = costs
        self._later: list[int] = []
        best = len(costs) - 1
        for index in range(best, -1, -1):
            best = index if costs[index] >= costs[best] else best
            self._later.append(best)
        self._later.reverse()

    def cost(self, index: int) -> float:
        """Return what a block costs."""
        return self._costs[index]

    def largest(self, begun: int) -> tuple[int, float] | None:
        """Return how many blocks come before the dearest one behind the first *begun*, and its cost."""
        if begun >= len(self._costs):
            return None
        index = self._later[begun]
        return index - begun, self._costs[index]


def costs_of(task: Task, layout: Layout, known: Earlier | None) -> BlockCosts | None:
    """Return the costs of the blocks of *task*: seconds, if *known* says so, else their sizes; ``None``: all are alike.

    With *known* there are always some.
    """
    cost = known.seconds if known is not None else lambda size: size
    if not layout.num_blocks:
        return None
    if task.n_ref is not None:
        if layout.num_blocks > MOST_ASKED or layout.num_levels > 1:
            return None
        try:
            sizes = sizes_of(layout, range(layout.num_blocks), task.n_ref, task.task_id)
        except Exception as error:  # whatever a user's function raises
            logger.info("n_ref of task %r is not used for the time that is left: %s", task.task_id, error)
            return None
        good = [size for size in sizes if isfinite(size)]
        if not good:
            return None
        middle = sum(good) / len(good)
        if min(good) < max(good):
            return KnownCosts([cost(size if isfinite(size) else middle) for size in sizes])
        return None if known is None else _alike(layout, known, cost(middle))
    clipped = any((e - b) % w for b, e, w in zip(*layout.covered, layout.write_shape, strict=True))
    if layout.fit == "shrink" and clipped:
        return LayoutCosts(layout, cost)
    if known is None:
        return None
    return _alike(layout, known, cost(float(write_elements(layout, 0))))


def _alike(layout: Layout, known: Earlier, mean: float) -> BlockCosts:
    return PlacedCosts(mean, known.places, layout.num_blocks) if known.places else BlockCosts(mean)
