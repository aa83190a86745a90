"""Runs as lanes of slices: which worker did which block when, as far as stores and histories tell.

Stores keep the window of each block's successful attempt; the length of start-up and end of each worker, and which
blocks failed, are in the history without a time. What had to be placed says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workspan.errors import ConfigurationError
from workspan.store.meta import MEASURED
from workspan.store.reader import NO_WORKER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.report.recorded import Place, RecordedTask
    from workspan.report.task import TaskReport
    from workspan.store.reader import StoreReader

__all__ = ["Lane", "Phase", "Trace", "TraceBlock", "TraceTask", "read_trace"]

_BATCH = 1 << 12
_ROUNDING = 1e-6
_STAMPS = {"sent_at", "returned_at", "worker_id"}

PLACED_START = "its end is taken for the begin of the worker's first block; only its length is recorded"
PLACED_END = "placed behind the worker's last block and its final wait; only its length is recorded"
PLACED_FAILURE = "placed at the end of the run; its time is not recorded"


class TraceBlock(NamedTuple):
    """A block on its lane. Times are in µs since the origin of the trace; ``None`` is not measured."""

    lane: int
    """Position in :attr:`TraceTask.lanes`."""
    cell: tuple[int, ...]
    """Position in the tracking grid."""
    begin: int
    end: int
    run: int
    """Position in :attr:`TraceTask.runs`; -1: no history tells."""
    failures: int
    """Attempts before it that did not succeed."""
    steps: tuple[tuple[int, float], ...]
    """Position in :attr:`TraceTask.steps` and self seconds of each step that it entered; in which order, and when, is
    not recorded."""
    wall_seconds: float | None
    cpu_seconds: float | None
    peak_rss_bytes: int | None
    io_read_bytes: int | None
    io_write_bytes: int | None
    gpu_util_pct: float | None
    gpu_mem_bytes: int | None


@dataclass(frozen=True, slots=True)
class Lane:
    """A worker, or clients that were not started by the run."""

    name: str
    worker: int | None


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that is not a block, on a lane."""

    lane: int | None
    """``None``: on that of the task."""
    name: str
    begin: int
    """In µs since the origin."""
    end: int | None
    """``None``: it is a moment."""
    told: dict[str, Any]


class TraceTask:
    """One task.

    Attributes
    ----------
    task_id
        Its id.
    lanes
        Of its workers, by id, then of clients from outside.
    steps
        Names of its steps.
    runs
        Those in which its blocks were executed, oldest first.
    phases
        Runs, and what the history tells of workers and failures.
    """

    def __init__(self, task: RecordedTask, runs: tuple[TaskReport, ...], chosen: _Chosen, origin: float) -> None:
        self.task_id = task.task_id
        self.runs = runs
        self._store, self._chosen, self._origin = task.store, chosen, origin
        self.steps: tuple[str, ...] = () if task.store is None else task.store.step_names
        self._run_of = np.searchsorted(
            np.array([run.started_at for run in runs]), chosen.sent + _ROUNDING, side="right"
        ).astype(np.int32)
        self._run_of -= 1
        self.lanes, self._lane_of = _lanes(chosen, runs, origin)
        self.phases = tuple(self._phases())

    @property
    def count(self) -> int:
        """Blocks that are in the trace."""
        return len(self._chosen.rows)

    @property
    def window(self) -> tuple[int, int] | None:
        """Begin of the first block and end of the last one, in µs since the origin; ``None``: there is none."""
        sent, returned = self._chosen.sent, self._chosen.returned
        return (self._at(sent[0]), self._at(returned.max())) if len(sent) else None

    def blocks(self) -> Iterator[TraceBlock]:
        """Yield the blocks in the order in which they were begun; some thousands are held at a time."""
        store = self._store
        if store is None:
            return
        for begin in range(0, self.count, _BATCH):
            yield from self._batch(store, slice(begin, min(begin + _BATCH, self.count)))

    def _batch(self, store: StoreReader, here: slice) -> Iterator[TraceBlock]:
        rows = self._chosen.rows[here]
        low, high = int(rows.min()), int(rows.max()) + 1
        cells = np.stack(np.unravel_index(rows, store.cell_counts), axis=1)
        measures: list[list[Any]] = []
        for name in MEASURED:
            column = store.part(name, low, high)[rows - low]
            # Who is on a device holds some of its memory, so 0 is not measured there.
            gaps = (column == 0) if name in store.unmeasured or name == "gpu_mem_bytes" else (column != column)
            known: list[Any] = column.tolist()
            for gap in np.flatnonzero(gaps).tolist():
                known[gap] = None
            measures.append(known)
        steps: list[list[tuple[int, float]]] = [[] for _ in range(len(rows))]
        for number, name in enumerate(self.steps):
            own = store.part(f"steps/{name}", low, high)[rows - low]
            for row in np.flatnonzero(own == own).tolist():
                steps[row].append((number, float(own[row])))
        for lane, cell, sent, returned, run, failures, entered, measured in zip(
            self._lane_of[here].tolist(),
            map(tuple, cells.tolist()),
            micros(self._chosen.sent[here], self._origin).tolist(),
            micros(self._chosen.returned[here], self._origin).tolist(),
            self._run_of[here].tolist(),
            store.part("failures", low, high)[rows - low].tolist(),
            steps,
            zip(*measures, strict=True),
            strict=True,
        ):
            yield TraceBlock(lane, cell, sent, max(sent, returned), run, failures, tuple(entered), *measured)

    # -- what the history tells ------------------------------------------------------------------------------------

    def _phases(self) -> Iterator[Phase]:
        position = {lane.worker: number for number, lane in enumerate(self.lanes) if lane.worker is not None}
        for number, run in enumerate(self.runs):
            begin, end = self._at(run.started_at), self._at(run.ended_at)
            told = {"run": run.run_id, "outcome": run.outcome, "skipped": run.blocks.skipped}
            yield Phase(None, f"run {run.run_id}", begin, end, told)
            spans = self._spans(number)
            for record in run.workers.records:
                lane = position[record.id]
                first, last = spans.get(lane, (None, None))
                if record.startup is not None:
                    length = round(record.startup * 1e6)
                    stop = min(begin + length, end) if first is None else first
                    yield Phase(lane, "startup", max(begin, stop - length), stop, {"placed": PLACED_START})
                if record.teardown is not None and record.final_wait is not None and not self._chosen.is_capped:
                    length = round(record.teardown * 1e6)
                    start = end - length
                    if last is not None:
                        start = max(last, min(last + round(record.final_wait * 1e6), start))
                    yield Phase(lane, "teardown", start, min(start + length, end), {"placed": PLACED_END})
                if record.exit not in (None, "clean"):
                    told = {"exit": record.exit, "text": record.text, "placed": PLACED_FAILURE}
                    yield Phase(lane, f"worker ended: {record.exit}", end, None, told)
            for failure in run.failed_blocks:
                told = {"cause": failure.cause, "attempts": failure.attempts, "error": failure.error}
                worker = None if failure.worker is None else position.get(failure.worker)
                name = f"failed: block {_cell(failure.cell)}"
                yield Phase(worker, name, end, None, {**told, "placed": PLACED_FAILURE})

    def _spans(self, run: int) -> dict[int, tuple[int, int]]:
        """Begin of the first and end of the last block of each lane in a run."""
        here = np.flatnonzero(self._run_of == run)
        lanes = self._lane_of[here]
        firsts = np.full(len(self.lanes), np.inf)
        lasts = np.full(len(self.lanes), -np.inf)
        np.minimum.at(firsts, lanes, self._chosen.sent[here])
        np.maximum.at(lasts, lanes, self._chosen.returned[here])
        return {lane: (self._at(firsts[lane]), self._at(lasts[lane])) for lane in np.unique(lanes).tolist()}

    def _at(self, seconds: float) -> int:
        return round((seconds - self._origin) * 1e6)


@dataclass(frozen=True, slots=True)
class Trace:
    """What is to be drawn."""

    origin: float
    """Where the times count from, in seconds since the epoch."""
    tasks: tuple[TraceTask, ...]
    total: int
    """Blocks that are recorded, also those beyond the limit."""
    notes: tuple[str, ...]

    @property
    def count(self) -> int:
        """Blocks that are in the trace."""
        return sum(task.count for task in self.tasks)


@dataclass(frozen=True)
class _Chosen:
    """Blocks of one task in the order in which they were begun."""

    rows: NDArray[np.int64]
    sent: NDArray[np.float64]
    returned: NDArray[np.float64]
    workers: NDArray[np.uint32]
    is_capped: bool


def read_trace(place: Place, *, limit: int) -> Trace:
    """Collect what is recorded at *place*: the selected run, or all runs whose blocks are in the stores.

    Holds about 40 bytes a block in the trace, and 8 for each other one.

    Parameters
    ----------
    place
        Where, see :func:`workspan.report.recorded.find`.
    limit
        Most blocks, at least 1; those that were begun first are kept.

    Raises
    ------
    ConfigurationError
        No block's times are recorded there.
    """
    tasks = []
    for task in place.tasks:
        runs = tuple(r for r in task.runs if place.selected is None or r.run_id == place.selected)
        if runs or place.selected is None:
            tasks.append((task, runs, _rows(task, runs if place.selected is not None else None)))
    tasks = [found for found in tasks if found[1] or len(found[2][0])]
    # Beside tracked tasks, histories that lie with logs, of runs that tracked nothing, are no part of it.
    tasks = [found for found in tasks if found[0].store is not None] or tasks
    tasks.sort(key=lambda found: _order(found[0], found[1]))
    total = sum(len(rows) for _, _, (rows, _) in tasks)
    if not total:
        raise ConfigurationError(
            f"{place.text!r} has no block whose times are recorded, so there is no trace: give the tasks a "
            "tracking_path and resource_tracking=True"
        )
    until = _until([sent for _, _, (_, sent) in tasks], limit) if total > limit else np.inf
    notes = [
        "Slices are the round trips of the attempts that succeeded, to 1 µs, on the driver's clock.",
        "Of steps only the self time in a block is recorded: they are laid end to end, in no particular order.",
    ]
    if total > limit:
        notes.append(f"Only the {limit:,} blocks that were begun first are here, of {total:,}: raise the limit.")
    for task, _, (rows, _) in tasks:
        if not len(rows):
            notes.append(f"Task {task.task_id!r}: no block's times are recorded (resource_tracking=True records them).")
        if task.damaged:
            lines = "1 line" if task.damaged == 1 else f"{task.damaged:,} lines"
            notes.append(f"Task {task.task_id!r}: {lines} of its history cannot be read.")
    left = limit
    chosen = []
    for task, _, (rows, sent) in tasks:
        own = _chosen(task, rows, sent, until, left, total > limit)
        left -= len(own.rows)
        chosen.append(own)
    begins = [run.started_at for _, runs, _ in tasks for run in runs]
    begins += [float(own.sent[0]) for own in chosen if len(own.sent)]
    origin = min(begins)
    found = (TraceTask(task, runs, own, origin) for (task, runs, _), own in zip(tasks, chosen, strict=True))
    return Trace(origin, tuple(found), total, tuple(notes))


def micros(seconds: NDArray[np.float64], origin: float) -> NDArray[np.int64]:
    """Return times as whole µs since *origin*; rounding keeps their order, so windows that met do not overlap."""
    return np.rint((seconds - origin) * 1e6).astype(np.int64)


def _rows(task: RecordedTask, runs: tuple[TaskReport, ...] | None) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of the blocks that are recorded, in any or in these runs, and when they were begun."""
    store = task.store
    if store is None or not set(store.arrays) >= _STAMPS:
        return np.empty(0, np.int64), np.empty(0)
    returned = store.array("returned_at").ravel()
    sent = store.array("sent_at").ravel()
    here = returned > 0
    if runs is not None:
        inside = np.zeros(len(here), np.bool_)
        for run in runs:
            inside |= (sent >= run.started_at - _ROUNDING) & (returned <= run.ended_at + _ROUNDING)
        here &= inside
    rows = np.flatnonzero(here)
    return rows, sent[rows]


def _until(begins: list[NDArray[np.float64]], limit: int) -> float:
    """Return when the last of the first *limit* blocks was begun."""
    joined = np.concatenate(begins)
    joined.partition(limit - 1)
    return float(joined[limit - 1])


def _chosen(
    task: RecordedTask, rows: NDArray[np.int64], sent: NDArray[np.float64], until: float, most: int, capped: bool
) -> _Chosen:
    kept = np.flatnonzero(sent <= until)
    kept = kept[np.argsort(sent[kept], kind="stable")][:most]
    rows, sent = rows[kept], sent[kept]
    if task.store is None or not len(rows):
        return _Chosen(rows, sent, np.empty(0), np.empty(0, np.uint32), capped)
    returned = task.store.array("returned_at").ravel()[rows]
    workers = task.store.array("worker_id").ravel()[rows]
    return _Chosen(rows, sent, returned, workers, capped)


def _lanes(chosen: _Chosen, runs: tuple[TaskReport, ...], origin: float) -> tuple[tuple[Lane, ...], NDArray[np.int32]]:
    """Return the lanes, and that of each block."""
    known = {record.id for run in runs for record in run.workers.records}
    managed = sorted(known | set(np.unique(chosen.workers[chosen.workers != NO_WORKER]).tolist()))
    lanes = [Lane(f"worker {worker}", worker) for worker in managed]
    lane_of = np.searchsorted(np.array(managed, np.int64), chosen.workers.astype(np.int64)).astype(np.int32)
    guests = np.flatnonzero(chosen.workers == NO_WORKER)
    if len(guests):
        own = _apart(micros(chosen.sent[guests], origin).tolist(), micros(chosen.returned[guests], origin).tolist())
        lane_of[guests] = len(lanes) + np.array(own, np.int32)
        most = max(own) + 1
        name = "this process" if not managed and most == 1 else "unmanaged"
        lanes += [Lane(name if most == 1 else f"{name} {number}", None) for number in range(most)]
    return tuple(lanes), lane_of


def _apart(begins: list[int], ends: list[int]) -> list[int]:
    """Return a lane for each window, in order of their begin, so that none overlap; as few as that takes."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    out = []
    lanes = 0
    for begin, end in zip(begins, ends, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heapq.heappush(busy, (end, lane))
        out.append(lane)
    return out


def _order(task: RecordedTask, runs: tuple[TaskReport, ...]) -> tuple[float, str]:
    place = runs[-1].place if runs else None
    return (np.inf if place is None else place.position), task.task_id


def _cell(cell: tuple[int, ...]) -> str:
    return ", ".join(map(str, cell))
