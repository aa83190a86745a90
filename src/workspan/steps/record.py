"""What a chain cost: one array of self times, and its groupings.

Everything is counted in whole ns and turned into seconds where it is shown, so that parts add up to totals exactly and
the records of all drains add up to the chain's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workspan.measure.sketch import Sketch
from workspan.steps.step import Phase, Step, describe, grid, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["MUCH", "ChainTimes", "Latency", "StepTimes"]


@dataclass(frozen=True, slots=True)
class Latency:
    """How long pulls took that gave an item, upstream included, in seconds; ``None`` where there was no item."""

    n: int = 0
    """Items."""
    min_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None
    sketch: Sketch = field(default_factory=Sketch, repr=False, compare=False)
    """Samples of the pulls, in ns; its ``n`` counts samples and not items."""

    @classmethod
    def of(cls, n: int, sketch: Sketch, low: float | None, high: float | None) -> Latency:
        """Return the figures of a distribution in ns; *low* and *high* are the exact least and greatest."""
        if not n or low is None or high is None:
            return cls(sketch=sketch)
        p50, p90, p99 = (None if ns is None else ns / 1e9 for ns in sketch.quantiles((0.5, 0.9, 0.99)))
        return cls(n, low / 1e9, p50, p90, p99, high / 1e9, sketch)

    def __add__(self, other: Latency) -> Latency:
        return self.sum([self, other])

    @classmethod
    def sum(cls, parts: Iterable[Latency]) -> Latency:
        """Return the figures of all *parts* together."""
        sketch, n = Sketch(), 0
        lows, highs = [], []
        for part in parts:
            sketch.merge(part.sketch)
            n += part.n
            if part.min_s is not None and part.max_s is not None:
                lows.append(part.min_s * 1e9)
                highs.append(part.max_s * 1e9)
        return cls.of(n, sketch, min(lows, default=None), max(highs, default=None))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one step cost."""

    step: Step
    self_ns: int = 0
    """Time in its own work, in ns: its windows less those of the step before that lie within."""
    pulls: int = 0
    """How often it was pulled and the pull has come back, with an item or without."""
    items: int = 0
    """How many items came out of it."""
    first_item_s: float | None = None
    """Time from its first pull to its first item, in seconds; ``None``: there is none yet."""
    latency: Latency = field(default_factory=Latency)
    cpu_ns: int | None = None
    """CPU time of the pulling thread in its own work, in ns; ``None``: not measured."""
    overlapped: bool = False
    """Whether it had the step before pulled by another thread or task, so that both ran at once."""
    busy_ns: int | None = None
    """Of an overlapped step: the part of its time in which it surely was at work itself, in ns; else ``None``.

    That is when its own thread computed, and when none of its upstream was being pulled, whatever it did then.
    """

    rows: int | None = None
    """Rows of the items that came out of it; ``None``: not measured, or no item has had rows so far."""
    nbytes: int | None = None
    """Bytes of the items that came out of it; ``None``: not measured, or no item has had bytes so far."""

    @property
    def self_s(self) -> float:
        """Time in its own work, in seconds."""
        return self.self_ns / 1e9

    @property
    def cpu_s(self) -> float | None:
        """CPU time of the pulling thread in its own work, in seconds; ``None``: not measured."""
        return None if self.cpu_ns is None else self.cpu_ns / 1e9

    @property
    def busy_s(self) -> float | None:
        """Of an overlapped step: the part of its time in which it surely was at work itself, in seconds."""
        return None if self.busy_ns is None else self.busy_ns / 1e9

    @property
    def blocked_s(self) -> float | None:
        """Of an overlapped step: the rest of its time, in which it waited while upstream was at work, in seconds."""
        return None if self.busy_ns is None else (self.self_ns - self.busy_ns) / 1e9

    def __add__(self, other: StepTimes) -> StepTimes:
        return self.sum([self, other])

    @classmethod
    def sum(cls, parts: Sequence[StepTimes]) -> StepTimes:
        """Return what all *parts* of one step cost together, of which there is one at least."""
        return cls(
            parts[0].step,
            sum(part.self_ns for part in parts),
            sum(part.pulls for part in parts),
            sum(part.items for part in parts),
            next((part.first_item_s for part in parts if part.first_item_s is not None), None),
            Latency.sum(part.latency for part in parts),
            _sum(part.cpu_ns for part in parts),
            any(part.overlapped for part in parts),
            _sum(part.busy_ns for part in parts),
            _sum(part.rows for part in parts),
            _sum(part.nbytes for part in parts),
        )


def _sum(parts: Iterable[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ChainTimes:
    """What a chain cost between two drains; ``None`` is not measured, and never 0.

    Records of one chain may be added.
    """

    steps: tuple[StepTimes, ...] = ()
    """One for each step."""
    clamped_ns: int = 0
    """Time by which windows of a step exceeded those of its consumer, in ns: 0 unless a step breaks the rules."""
    overhead_s: float | None = 0.0
    """What the timers themselves are estimated to have cost, in seconds; it is part of the self times."""
    measured: bool = True
    """Whether there were timers at all."""

    @property
    def total_ns(self) -> int | None:
        """Time in all steps but the input fetch, in ns."""
        return sum(times.self_ns for times in self._inner()) if self.measured else None

    @property
    def total_s(self) -> float | None:
        """Time in all steps but the input fetch ("Transform time"), in seconds; 0.0 before there is a chain."""
        return None if self.total_ns is None else self.total_ns / 1e9

    @property
    def input_prep_s(self) -> float | None:
        """Time in input preparation, in seconds; ``None`` if no step of the chain carries any of the phases."""
        return self._phase(Phase.INPUT_PREP)

    @property
    def function_body_s(self) -> float | None:
        """Time in function bodies, the user's and built-in ones, in seconds."""
        return self._phase(Phase.FUNCTION_BODY)

    @property
    def output_build_s(self) -> float | None:
        """Time in building output, in seconds."""
        return self._phase(Phase.OUTPUT_BUILD)

    @property
    def unsplit_s(self) -> float | None:
        """Time in steps that span several phases, in seconds: what the three phases lack to the total."""
        return self._seconds(times for times in self._inner() if times.step.bucket is None)

    @property
    def input_fetch_s(self) -> float | None:
        """Time in getting the input, in seconds; not part of the total. ``None``: the chain has no such step."""
        fetch = [times for times in self.steps if times.step.bucket is Phase.INPUT_FETCH]
        return self._seconds(fetch) if fetch else None

    @property
    def user_s(self) -> float | None:
        """Time in the user's functions, in seconds; see :attr:`approximate`."""
        return self._bodies(user=True)

    @property
    def built_in_s(self) -> float | None:
        """Time in built-in bodies, in seconds; see :attr:`approximate`."""
        return self._bodies(user=False)

    @property
    def approximate(self) -> bool:
        """Whether folded stages are in :attr:`user_s` and :attr:`built_in_s`, with all their phases."""
        return any(times.step.bucket is None for times in self.steps)

    @property
    def stage_s(self) -> tuple[float, ...] | None:
        """Time of each stage, in seconds; one without steps has 0.0."""
        inner = self._inner()
        stages = [times.step.stage for times in inner]
        if not stages or None in stages:
            return None
        found = [0] * (max(stage for stage in stages if stage is not None) + 1)
        for times in inner:
            found[times.step.stage or 0] += times.self_ns
        return tuple(ns / 1e9 for ns in found)

    @property
    def step_s(self) -> tuple[float, ...] | None:
        """Self time of each step, in seconds."""
        return tuple(times.self_s for times in self.steps) if self.steps else None

    @property
    def step_ns(self) -> tuple[int, ...]:
        """Self time of each step, in ns."""
        return tuple(times.self_ns for times in self.steps)

    @property
    def operator_s(self) -> dict[str, float]:
        """Operator -> time, in seconds; of operators that share a step only the sum is known, under both names."""
        found: dict[str, int] = {}
        for times in self._inner():
            found[times.step.operator] = found.get(times.step.operator, 0) + times.self_ns
        return {operator: ns / 1e9 for operator, ns in found.items()}

    @property
    def clamped_s(self) -> float:
        """Time that was taken away from no step because its consumer had less, in seconds; 0.0 up to 1 µs."""
        return self.clamped_ns / 1e9 if self.clamped_ns > 1000 else 0.0

    def table(self) -> str:
        """Return the figures of all steps as a table."""
        if not self.steps:
            return "no step was timed"
        total = sum(times.self_ns for times in self.steps) or 1
        more = [name for name, shown in _MORE.items() if any(shown(times) != "-" for times in self.steps)]
        rows = [("#", "stage", "phase", "code", "step", "self", "share", "items", *more, "p50", "p99")]
        for index, times in enumerate(self.steps):
            mark = " (overlapped)" if times.overlapped else ""
            rows.append(
                (
                    str(index),
                    *describe(times.step),
                    short(times.step.label) + mark,
                    duration(times.self_s),
                    f"{100 * times.self_ns / total:.0f} %",
                    str(times.items),
                    *(_MORE[name](times) for name in more),
                    duration(times.latency.p50_s),
                    duration(times.latency.p99_s),
                )
            )
        right = (0, 1, *range(5, len(rows[0])))
        lines = [grid(rows, right=right), f"transform time {duration(self.total_s)}"]
        parts = [("input prep", self.input_prep_s), ("function body", self.function_body_s)]
        parts += [("output build", self.output_build_s), ("unsplit", self.unsplit_s or None)]
        parts += [("user functions", self.user_s), ("input fetch", self.input_fetch_s or None)]
        lines += [f"  {name:<15}{duration(seconds)}" for name, seconds in parts if seconds is not None]
        if self.clamped_s:
            lines.append(f"  {'clamped':<15}{duration(self.clamped_s)}")
        if self.overhead_s:
            told = f"  {'timers':<15}{duration(self.overhead_s)}, estimated, in the times above"
            if self.overhead_s * 1e9 > MUCH * total:
                told += f': {100e9 * self.overhead_s / total:.0f} %; timing="stages" or "total" costs less'
            lines.append(told)
        return "\n".join(lines)

    def __add__(self, other: ChainTimes) -> ChainTimes:
        return self.sum([self, other])

    @classmethod
    def sum(cls, records: Sequence[ChainTimes]) -> ChainTimes:
        """Return all *records* of one chain as one; those of before it was there are left out."""
        found = [record for record in records if record.steps]
        if not found:
            return records[0] if records else cls()
        return cls(
            tuple(map(StepTimes.sum, zip(*(record.steps for record in found), strict=True))),
            sum(record.clamped_ns for record in found),
            sum(record.overhead_s or 0.0 for record in found),
        )

    def _inner(self) -> Sequence[StepTimes]:
        return [times for times in self.steps if times.step.bucket is not Phase.INPUT_FETCH]

    def _phase(self, phase: Phase) -> float | None:
        if all(times.step.bucket is None for times in self._inner()):
            return None
        return sum(times.self_ns for times in self.steps if times.step.bucket is phase) / 1e9

    def _bodies(self, *, user: bool) -> float | None:
        if not self._inner() or any(times.step.stage is None for times in self._inner()):
            return None
        bodies = (times for times in self.steps if times.step.bucket in (Phase.FUNCTION_BODY, None))
        return sum(times.self_ns for times in bodies if times.step.user == user) / 1e9

    def _seconds(self, chosen: Iterable[StepTimes]) -> float | None:
        if not self.steps:
            return None
        return sum(times.self_ns for times in chosen) / 1e9


MUCH = 0.02
"""Share of the timers in all times from which on it is said how to lower it."""

_MORE: dict[str, Callable[[StepTimes], str]] = {
    "busy": lambda times: duration(times.busy_s),
    "blocked": lambda times: duration(times.blocked_s),
    "cpu": lambda times: duration(times.cpu_s),
    "rows": lambda times: "-" if times.rows is None else str(times.rows),
    "bytes": lambda times: size(times.nbytes),
}


def size(nbytes: int | None) -> str:
    """Return a number of bytes as text, scaled by 1024."""
    if nbytes is None:
        return "-"
    number = float(nbytes)
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1023.95:
            return f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def duration(seconds: float | None) -> str:
    """Return a time as text: above 1 s in s, above 1 ms in ms, else in µs."""
    if seconds is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e6:.2f} µs"
