"""When workers came up, waited, computed and went away: phases between events that the driver sees anyway.

Every time is in seconds of the driver's monotonic clock and an argument. A worker can be told to end while it still
starts, or while it holds a block: its final wait is then zero and its teardown counts from the moment it was free, so
that no phase overlaps another and none is negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.measure.stats import Stat, Welford
from workspan.report.parts import EXITS, WorkerRecord, WorkersSummary

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_TEXT = 2000
"""Characters that are kept of what is known of a worker's end."""


class WorkerTimeline:
    """The life of one worker, phase by phase.

    Parameters
    ----------
    worker
        Number of the worker in the run.
    started_at
        When it was asked for.
    """

    __slots__ = (
        "_blocks",
        "_ended_at",
        "_exit",
        "_failed",
        "_free_at",
        "_ready_at",
        "_started_at",
        "_stopping_at",
        "_text",
        "_worker",
        "compute",
        "idle",
    )

    def __init__(self, worker: int, started_at: float) -> None:
        self._worker = worker
        self._started_at = started_at
        self._ready_at: float | None = None
        self._free_at: float | None = None
        """Its last return, or its first request if nothing came back yet."""
        self._stopping_at: float | None = None
        self._ended_at: float | None = None
        self._exit: str | None = None
        self._text: str | None = None
        self._blocks = 0
        self._failed = 0
        self.idle = Welford()
        self.compute = Welford()

    def ready(self, now: float) -> None:
        """Note the first request for a block; later ones change nothing."""
        if self._ready_at is None:
            self._ready_at = self._free_at = now

    def sent(self, idle_seconds: float) -> None:
        """Note a block for which the worker had waited *idle_seconds*."""
        self.idle.push(max(0.0, idle_seconds))

    def returned(self, sent_at: float, returned_at: float, *, ok: bool = True) -> None:
        """Note that a block came back, completed or failed."""
        self.compute.push(max(0.0, returned_at - sent_at))
        self._free_at = returned_at
        if ok:
            self._blocks += 1
        else:
            self._failed += 1

    def lost(self) -> None:
        """Note an attempt of which nothing came back: lost with the worker, or over its deadline."""
        self._failed += 1

    def stopping(self, now: float) -> None:
        """Note that the worker was told to end, or that the run began to; the first time counts.

        Nobody can tell a worker to end that is gone: its end was its own.
        """
        if self._stopping_at is None and self._exit is None:
            self._stopping_at = now

    def ended(self, now: float, exit: str, text: str = "") -> None:
        """Close the timeline; the first closure wins. *text* is kept of ends that were not clean."""
        if self._exit is None:
            self._ended_at = now
            self._exit = exit
            if exit != "clean":
                self._text = text[:LONGEST_TEXT] or None

    def record(self) -> WorkerRecord:
        """Return what is known of the worker so far."""
        stopping_at, free_at = self._stopping_at, self._free_at
        final_wait = teardown = None
        if stopping_at is not None:
            final_wait = _between(free_at, stopping_at)
            if self._exit == "clean":
                last = stopping_at if free_at is None else max(stopping_at, free_at)
                teardown = _between(last, self._ended_at)
        return WorkerRecord(
            id=self._worker,
            startup=_between(self._started_at, self._ready_at),
            blocks=self._blocks,
            blocks_failed=self._failed,
            idle=self.idle.stat(),
            compute=self.compute.stat(),
            final_wait=final_wait,
            teardown=teardown,
            exit=self._exit,
            text=self._text,
        )


class TaskTimeline:
    """The workers of one task. Events of workers that it does not know (unmanaged clients) are ignored."""

    def __init__(self) -> None:
        self._workers: dict[int, WorkerTimeline] = {}
        self._unmanaged = 0

    def started(self, worker: int, now: float) -> None:
        """Note that a worker was asked for."""
        self._workers[worker] = WorkerTimeline(worker, now)

    def ready(self, worker: int, now: float) -> None:
        """Note the first request of a worker."""
        if timeline := self._workers.get(worker):
            timeline.ready(now)

    def sent(self, worker: int, idle_seconds: float) -> None:
        """Note a block that a worker began after *idle_seconds* of waiting."""
        if timeline := self._workers.get(worker):
            timeline.sent(idle_seconds)

    def returned(self, worker: int, sent_at: float, returned_at: float | None, *, ok: bool) -> None:
        """Note the end of an attempt; *returned_at* is ``None`` if nothing came back."""
        if timeline := self._workers.get(worker):
            if returned_at is None:
                timeline.lost()
            else:
                timeline.returned(sent_at, returned_at, ok=ok)

    def stopping(self, worker: int, now: float) -> None:
        """Note that a worker was told to end."""
        if timeline := self._workers.get(worker):
            timeline.stopping(now)

    def ended(self, worker: int, now: float, exit: str, text: str = "") -> None:
        """Note that a worker is gone, or retired, and what is known of it."""
        if timeline := self._workers.get(worker):
            timeline.ended(now, exit, text)

    def unmanaged(self) -> None:
        """Count a connection of a client that was not started by the run."""
        self._unmanaged += 1

    def shut_down(self, now: float) -> None:
        """Note the begin of the run's shutdown: workers that were not told to end before are ending from now on."""
        for timeline in self._workers.values():
            timeline.stopping(now)

    def interrupt(self, now: float) -> None:
        """Close, as interrupted, every worker that is still there."""
        for timeline in self._workers.values():
            timeline.ended(now, "interrupted")

    def ends(self) -> tuple[float | None, float | None]:
        """Return when the first worker was asked for, and when the last block came back; ``None``: never."""
        begins = [timeline._started_at for timeline in self._workers.values()]
        returns = [t._free_at for t in self._workers.values() if t.compute.n and t._free_at is not None]
        return min(begins, default=None), max(returns, default=None)

    def summary(self) -> WorkersSummary:
        """Fold the workers into the report's section."""
        timelines = [self._workers[worker] for worker in sorted(self._workers)]
        records = tuple(timeline.record() for timeline in timelines)
        found = [record.exit for record in records]
        return WorkersSummary(
            count=len(records),
            startup=_over(record.startup for record in records),
            idle=_merged(timeline.idle for timeline in timelines),
            compute=_merged(timeline.compute for timeline in timelines),
            final_wait=_over(record.final_wait for record in records),
            teardown=_over(record.teardown for record in records),
            exits={kind: found.count(kind) for kind in EXITS if kind in found},
            unmanaged_clients=self._unmanaged,
            records=records,
        )


def _between(begin: float | None, end: float | None) -> float | None:
    """Return the seconds from *begin* to *end*, never below 0; ``None`` if either did not happen."""
    return None if begin is None or end is None else max(0.0, end - begin)


def _over(values: Iterable[float | None]) -> Stat:
    out = Welford()
    out.extend(values)
    return out.stat()


def _merged(parts: Iterable[Welford]) -> Stat:
    out = Welford()
    for part in parts:
        out.merge(part)
    return out.stat()
