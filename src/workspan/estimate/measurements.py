"""What is known of a step: its measurements, which of them count, and what must be kept when there are too many."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from operator import itemgetter
from typing import Any

import msgspec

from workspan.estimate.fingerprint import comparable
from workspan.estimate.keys import Key

__all__ = ["Measurement", "Series", "StepHistory", "merge", "trim"]


class Measurement(msgspec.Struct):
    """One time that a step took."""

    dt: float
    """Wall-clock time, in seconds, of a monotonic clock."""
    N_ref: float | None
    """Size of the work; ``None`` in imported data that has none."""
    dt_est: float | None = None
    """What was expected at its start, in seconds."""
    id: str = ""
    """Tells it from every other one."""
    start: float | None = None
    """When it began, in seconds since 1970; a label, never subtracted."""
    fingerprint: str | None = None
    """Of N_ref at that time."""
    overlap: int = 1
    """How many activations of the step ran at once, itself included."""
    substep: bool = False
    """Whether it ran inside another step."""
    software: str | None = None
    """Version of the application."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of a file that are not ours, kept as they are."""


class Series:
    """Measurements of one step in one variant, in the order of their start.

    New ones are kept as tuples until somebody looks at them: that costs a tenth.
    """

    __slots__ = ("_measurements", "estimate", "new", "total", "variant")

    def __init__(self, variant: str | None = None) -> None:
        self.variant = variant
        self._measurements: list[Measurement] = []
        self.new: deque[tuple[Any, ...]] = deque()
        """Fields of a measurement up to ``software`` without its id, then the two parts of the id."""
        self.total = 0
        """How many there have been, also those that were trimmed."""
        self.estimate: dict[str, Any] | None = None
        """The estimator as it was stored, with ``count`` and ``tck``."""

    @property
    def measurements(self) -> list[Measurement]:
        """All of them."""
        while self.new:
            with suppress(IndexError):  # another thread looks, too
                m = self.new.popleft()
                self._measurements.append(_measurement(*m))
        return self._measurements

    @measurements.setter
    def measurements(self, measurements: list[Measurement]) -> None:
        self.new.clear()
        self._measurements = measurements

    def last_start(self) -> float:
        """Return when the newest began, in seconds since 1970; 0 if nobody knows."""
        with suppress(IndexError):
            return self.new[-1][3] or 0.0
        with suppress(IndexError):
            return self._measurements[-1].start or 0.0
        return 0.0

    def thin(self, limit: int) -> None:
        """Let those go that :func:`trim` would, of the new ones alone."""
        taken: list[tuple[Any, ...]] = []
        with suppress(IndexError):  # until it is empty: another thread may take some, too
            for each in iter(self.new.popleft, None):
                taken.append(each)
        if not taken:
            return
        recent = dict(zip(map(itemgetter(1), taken), range(len(taken)), strict=True))  # a size is never None here
        ends = {recent[min(recent)], recent[max(recent)]}
        near = {*range(max(0, len(taken) - limit), len(taken)), *sorted(recent.values())[-limit:], *ends}
        self.new.extend(kept.fields for kept in trim([_Sized(taken[at][1], taken[at]) for at in sorted(near)], limit))


def _measurement(dt: float, size: float, expected: float | None, *others: Any) -> Measurement:
    *fields, source, line = others
    return Measurement(dt, size, expected, f"{source}-{line}", *fields)


class _Sized(msgspec.Struct):
    N_ref: float | None
    fields: tuple[Any, ...]


class StepHistory(msgspec.Struct):
    """What is stored of one step."""

    key: Key
    order: str | None = None
    n_ref_hash: str | None = None
    """Hash of N_ref in an imported file; kept, and never compared."""
    fingerprint: str | None = None
    """Of N_ref when the step last ran."""
    accepted: list[str] = []
    """Fingerprints whose measurements count although N_ref has changed since."""
    discarded: float | None = None
    """Measurements that began before this time (seconds since 1970) were thrown away."""
    dropped: dict[str, float] = {}
    """The same for those with one fingerprint of N_ref, by that."""
    used: float = 0.0
    """When it was last recorded, in seconds since 1970."""
    series: dict[str | None, Series] = {}
    extra: dict[str, Any] = {}
    """Fields of a file that are not ours."""

    def variant(self, variant: str | None) -> Series:
        """Return the series of a variant, made if need be."""
        found = self.series.get(variant)
        if found is None:
            found = self.series[variant] = Series(variant)
        return found

    def last_use(self) -> float:
        """Return when it was last recorded, in this process too, in seconds since 1970."""
        return max([self.used, *(series.last_start() for series in self.series.values())])

    @property
    def count(self) -> int:
        """Number of stored measurements of all variants."""
        return sum(len(series.measurements) for series in self.series.values())

    def is_thrown_away(self, measurement: Measurement) -> bool:
        """Whether a measurement is from before its like was discarded."""
        until = max(self.discarded or 0.0, self.dropped.get(measurement.fingerprint or "", 0.0))
        return until > 0.0 and (measurement.start is None or measurement.start < until)

    def counts(self, measurement: Measurement, current: str | None) -> bool:
        """Whether a measurement was made with the N_ref that is current, or with one that cannot be told from it."""
        fingerprint = measurement.fingerprint
        return fingerprint == current or not comparable(fingerprint, current) or fingerprint in self.accepted


def usable(value: Any) -> float | None:
    """Return a stored number as a float, or ``None`` if it is not a finite one from 0 on.

    Examples
    --------
    >>> usable(3), usable(-1), usable(float("nan")), usable("3"), usable(True)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def trim(measurements: list[Any], limit: int) -> list[Any]:
    """Return at most *limit* of them: the newest half, the least and greatest N_ref, a recent one of each N_ref.

    What room is then left goes to the newest. The order stays.
    """
    if len(measurements) <= limit:
        return measurements
    count = len(measurements)
    kept = set(range(count - (limit + 1) // 2, count))
    recent: dict[float | None, int] = {}
    for at, measurement in enumerate(measurements):
        recent[measurement.N_ref] = at
    sized = [at for n_ref, at in recent.items() if n_ref is not None]
    ends: list[int] = []
    if sized:
        ends = [min(sized, key=lambda at: measurements[at].N_ref or 0.0)]
        ends.append(max(sized, key=lambda at: measurements[at].N_ref or 0.0))
    for at in (*ends, *sorted(recent.values(), reverse=True), *range(count - 1, -1, -1)):
        if len(kept) >= limit:
            break
        kept.add(at)
    return [measurements[at] for at in sorted(kept)]


def merge(into: StepHistory, other: StepHistory, limit: int) -> bool:
    """Add to *into* what *other* knows of the same step; return whether that changed its measurements."""
    changed = False
    into.accepted += [fingerprint for fingerprint in other.accepted if fingerprint not in into.accepted]
    if other.used >= into.used:
        into.order = other.order or into.order
        into.fingerprint = other.fingerprint or into.fingerprint
    into.used = max(into.used, other.used)
    into.n_ref_hash = into.n_ref_hash or other.n_ref_hash
    into.extra = {**into.extra, **other.extra}
    into.discarded = max(into.discarded or 0.0, other.discarded or 0.0) or None
    for fingerprint, at in other.dropped.items():
        into.dropped[fingerprint] = max(at, into.dropped.get(fingerprint, 0.0))
    for variant, theirs in other.series.items():
        mine = into.variant(variant)
        known = {measurement.id for measurement in mine.measurements}
        new = [measurement for measurement in theirs.measurements if measurement.id not in known]
        if new:
            mine.measurements = in_order([*mine.measurements, *new])
            changed = True
        mine.total = max(mine.total, theirs.total, len(mine.measurements))
        if mine.estimate is None:
            mine.estimate = theirs.estimate
    for mine in into.series.values():
        before = len(mine.measurements)
        mine.measurements = [m for m in mine.measurements if not into.is_thrown_away(m)]
        mine.measurements = trim(mine.measurements, limit)
        changed = changed or len(mine.measurements) != before
    return changed


def in_order(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Sort by start; those without one come first, as they were."""
    return sorted(measurements, key=lambda m: -math.inf if m.start is None else m.start)
