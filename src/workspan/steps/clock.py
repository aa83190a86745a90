"""The clock of one run of a chain: it wraps each step in a timer and turns what they saw into self times.

Timers only add up windows. Everything else happens in :meth:`TransformClock.drain`: step k's own time is its windows
less those of step k - 1 that lie within, and phases, stages and operators are groupings of these figures.
"""

from __future__ import annotations

import threading
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar

from workspan.errors import UsageTypeError
from workspan.measure import ticks, timers
from workspan.measure.windows import Reading, Windows, unstarted
from workspan.steps.asynchronous import AsyncTimer, unstarted_async
from workspan.steps.record import ChainTimes, Latency, StepTimes
from workspan.steps.sizes import Counted, Tally, sizes_of
from workspan.steps.step import Step, identity, listed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from types import ModuleType

    from workspan.measure.sketch import Sketch
    from workspan.steps.sizes import Sizes

__all__ = ["TransformClock"]

_PULLS = 2000
_KEPT = 256  # records that are not summed yet

_overheads: dict[tuple[str, str, bool], float] = {}


class TransformClock:
    """Times one run of a chain of steps; each task needs its own.

    Any thread may drain while another pulls. A chain that runs inside a collection of sections (in a block function,
    for example) also opens a section with the step's label in every pull, so that steps and sections are one tree.

    Parameters
    ----------
    clock
        Monotonic clock, in ns; ``None``: the processor's counter or the machine's monotonic clock, whichever is better.
    cpu
        Whether to measure each step's CPU time too, for the price of two system calls a pull. Not in chains of
        asynchronous steps.
    sizes
        Whether to add up rows and bytes of the items that come out of each step. ``True``: their ``num_rows`` and
        ``nbytes``, where they have them. A function: what it returns for an item, ``(rows, bytes)``, each of them
        ``None`` where there are none. Counting is part of the step's time.

    Examples
    --------
    >>> from workspan import Phase, Step
    >>> steps = [
    ...     Step("Map(double) body", Phase.FUNCTION_BODY, 0, lambda items: (2 * item for item in items), user=True),
    ...     Step("Map(double) output build", Phase.OUTPUT_BUILD, 0, lambda items: ([item] for item in items)),
    ... ]
    >>> clock = TransformClock()
    >>> list(clock.chain(steps, [1, 2]))
    [[2], [4]]
    >>> times = clock.drain()
    >>> times.total_ns == sum(times.step_ns), times.input_prep_s
    (True, 0.0)
    """

    __slots__ = (
        "_before",
        "_clock",
        "_counted",
        "_cpu",
        "_drained",
        "_each",
        "_lock",
        "_off",
        "_sizes",
        "_start",
        "_steps",
        "_tallies",
        "_windows",
    )

    _timers: ClassVar[ModuleType] = timers.implementation
    _source: ClassVar[str | None] = None  # of the clocks there are; None: the best

    def __init__(
        self, *, clock: Callable[[], int] | None = None, cpu: bool = False, sizes: Sizes | bool = False
    ) -> None:
        if clock is not None and not callable(clock):
            raise UsageTypeError(f"clock={clock!r}: it is called for the time, in ns")
        if not isinstance(sizes, bool) and not callable(sizes):
            raise UsageTypeError(f"sizes={sizes!r}: it is True, False or a function: item -> (rows, bytes)")
        self._clock = clock
        self._cpu = cpu
        self._sizes: Sizes | None = sizes_of if sizes is True else sizes or None
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._steps: tuple[Step, ...] = ()
        self._windows: Windows | None = None
        self._before: list[Reading] = []
        self._tallies: list[Tally] = []
        self._counted: list[tuple[int | None, int | None]] = []
        self._drained: list[ChainTimes] = []  # summed when somebody asks: it costs more than a drain
        self._start = (0, 0)
        self._off = False
        self._each = 0.0  # cost of a pull, in ns

    def chain(self, steps: Iterable[Step], items: Any, *, timed: bool = True) -> Any:
        """Return the iterator of the steps over *items*; nothing runs before its first pull.

        The clock starts anew: a chain that it made before does not count any more. The iterator has ``close()`` (in an
        asynchronous chain ``aclose()``), which closes the steps from the last to the first, so that suspended
        generators run their cleanup; what that takes is the time of their own step. Dropping the iterator closes it.

        Parameters
        ----------
        steps
            The steps, from the first to the last.
        items
            The input: an iterable, or an asynchronous one, and then so must be what the steps take and return. It is
            not closed with the chain.
        timed
            ``False``: without timers, so that nothing is measured.

        Raises
        ------
        UsageTypeError
            *items* is not iterable, or *steps* has something else than steps in it.
        """
        chained = listed(steps)
        awaited = hasattr(items, "__aiter__")
        if not awaited and not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
            raise UsageTypeError(f"the input of a chain is iterable, which {type(items).__name__} is not")
        with self._lock:
            self._forget()
            if not timed:
                self._off = True
                return _untimed_async(chained, items) if awaited else _untimed(chained, items)
            now, name = self._now()
            self._each = self.overhead_ns(self._timers, name, cpu=self._cpu and not awaited)
            self._steps = chained
            windows = self._windows = Windows(
                [self._timers.Cell() for _ in chained],
                now,
                cpu=self._cpu and not awaited,
                labels=[step.label for step in chained],
            )
            self._before = [Reading(0, 0, 0, 0, 0, 0, 0, 0)] * len(chained)
            applies = [step.apply for step in chained]
            if self._sizes is not None:
                self._tallies = [Tally(self._sizes) for _ in chained]
                self._counted = [(None, None)] * len(chained)
                applies = [Counted(apply, tally) for apply, tally in zip(applies, self._tallies, strict=True)]
            self._start = self._anchor(now)
        timer = AsyncTimer if awaited else self._timers.Timer
        if not chained:
            return unstarted_async(items) if awaited else unstarted(items)
        data = items
        for index, (step, apply) in enumerate(zip(chained, applies, strict=True)):
            data = timer(windows, index, apply, data, ticks.Section(step.label))
        return data

    def drain(self) -> ChainTimes:
        """Return what has accumulated since the last drain, and begin anew.

        Windows that are open are split at the moment of the call: what they had so far is in this record, the rest in
        the next. Before there is a chain the total is 0.0 and nothing else is measured.
        """
        with self._lock:
            found = self._drain()
            self._drained.append(found)
            if len(self._drained) == _KEPT:
                self._drained = [ChainTimes.sum(self._drained)]
            return found

    def total(self) -> ChainTimes:
        """Return all that the chain has cost so far, drained or not."""
        with self._lock:
            self.drain()
            self._drained = [ChainTimes.sum(self._drained)]
            return self._drained[0]

    def table(self) -> str:
        """Return all that the chain has cost so far as a table."""
        times = self.total()
        return times.table() if times.measured else "timing is off"

    def _drain(self) -> ChainTimes:
        windows = self._windows
        if windows is None or not self._steps:
            if not self._off:
                return ChainTimes()
            return ChainTimes(measured=False, overhead_s=None)
        _, readings = windows.read()
        tick, ns = self._anchor(windows.now)
        passed = tick - self._start[0]
        scale = (ns - self._start[1]) / passed if passed > 0 else 1.0
        before, self._before = self._before, readings
        spans = [
            Reading(*(new - old for new, old in zip(after, former, strict=True)))
            for after, former in zip(readings, before, strict=True)
        ]
        steps, clamped = [], 0
        nested = cpu_nested = 0
        for step, cell, span, (rows, nbytes) in zip(self._steps, windows.cells, spans, self._sized(), strict=True):
            own = _ns(span.inclusive, scale) - nested
            clamped += max(0, -own)
            own = max(0, own)
            nested = _ns(span.inclusive - span.apart, scale)
            cpu = max(0, span.cpu - cpu_nested)
            cpu_nested = span.cpu - span.cpu_apart
            busy = None
            if cell.overlapped:  # it computed, or nothing was on its way that it could have waited for
                computed = _ns(span.unwatched, scale) + cpu if cell.watched else 0
                busy = min(own, max(computed, own - _ns(max(0, span.beside), scale)))
            steps.append(
                StepTimes(
                    step,
                    own,
                    span.pulls,
                    span.items,
                    None if cell.first < 0 else cell.first * scale / 1e9,
                    _latency(cell.harvest(), scale),
                    cpu if windows.cpu else None,
                    cell.overlapped,
                    busy,
                    rows,
                    nbytes,
                )
            )
        pulls = sum(span.pulls for span in spans)
        return ChainTimes(tuple(steps), clamped, pulls * self._each / 1e9)

    def _sized(self) -> list[tuple[int | None, int | None]]:
        """Return rows and bytes of each step since the last call."""
        if not self._tallies:
            return [(None, None)] * len(self._steps)
        now = [(tally.rows, tally.nbytes) for tally in self._tallies]
        before, self._counted = self._counted, now
        return [(_less(a, c), _less(b, d)) for (a, b), (c, d) in zip(now, before, strict=True)]

    def _now(self) -> tuple[Callable[[], int], str]:
        name = self._source or timers.default_clock()
        clocks = self._timers.CLOCKS
        name = name if name in clocks else "monotonic"
        return (clocks[name], name) if self._clock is None else (self._clock, name)

    def _anchor(self, now: Callable[[], int]) -> tuple[int, int]:
        """Return one moment on the clock of the windows, and on the monotonic one in ns."""
        monotonic = self._timers.CLOCKS["monotonic"]
        if self._clock is not None or now is monotonic:
            return 0, 0
        best: tuple[int, int, int] | None = None
        for _ in range(5):  # the reading that was least disturbed
            early, ns, late = now(), monotonic(), now()
            if best is None or late - early < best[0]:
                best = late - early, (early + late) // 2, ns
        assert best is not None
        return best[1], best[2]

    @staticmethod
    def overhead_ns(implementation: ModuleType, name: str, *, cpu: bool = False) -> float:
        """Return what one pull through a timer costs, in ns; measured once per process."""
        key = implementation.__name__, name, cpu
        found = _overheads.get(key)
        if found is None:
            monotonic = implementation.CLOCKS["monotonic"]
            timed, bare = [], []
            for _ in range(3):
                windows = Windows([implementation.Cell()], implementation.CLOCKS[name], cpu=cpu)
                timer = implementation.Timer(windows, 0, identity, repeat(None, _PULLS))
                begin = monotonic()
                for _ in timer:
                    pass
                middle = monotonic()
                for _ in repeat(None, _PULLS):
                    pass
                bare.append(monotonic() - middle)
                timed.append(middle - begin)
            # Each by itself: a disturbance of the bare loop is no time that the timer saves.
            found = _overheads[key] = max(0.0, (min(timed) - min(bare)) / _PULLS)
        return found

    def __reduce__(self) -> Any:
        raise UsageTypeError("a clock belongs to one run of a chain and cannot be pickled; send the steps instead")


def _ns(span: int, scale: float) -> int:
    return span if scale == 1.0 else round(span * scale)


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)


def _latency(harvest: tuple[int, Sketch, int, int], scale: float) -> Latency:
    items, sketch, low, high = harvest
    if scale != 1.0:
        sketch = sketch.scaled(scale)
    return Latency.of(items, sketch, *(None if value < 0 else value * scale for value in (low, high)))


def _untimed(steps: tuple[Step, ...], items: Iterable[Any]) -> Iterator[Any]:
    for step in steps:
        items = step.apply(items)
    yield from items


async def _untimed_async(steps: tuple[Step, ...], items: Any) -> AsyncIterator[Any]:
    for step in steps:
        items = step.apply(items)
    async for item in items:
        yield item
