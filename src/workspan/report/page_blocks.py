"""What a page tells of the single blocks of a task: every block if there are not too many, else bins of them.

The blocks are read in batches, twice: once for how many there are, their extremes and the slowest ones, once for bins
that fit them. Few blocks are kept from the first time. No Python object a block is made in either case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, isqrt, prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from workspan.errors import ConfigurationError
from workspan.grid.layout import Layout
from workspan.report.frames import STEP_PREFIX, known_cells
from workspan.report.page_bins import Busy, CellBins, Histogram, Over, bin_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from workspan.grid.layout import Ints
    from workspan.store.reader import BlockTable

__all__ = ["UNITS", "BlockSource", "Measure", "PageBlocks", "Rows", "Trend", "read_blocks"]

UNITS = {
    "wall_seconds": "s",
    "cpu_seconds": "s",
    "round_trip": "s",
    "peak_rss_bytes": "B",
    "io_read_bytes": "B",
    "io_write_bytes": "B",
    "gpu_util_pct": "%",
    "gpu_mem_bytes": "B",
    "rows": "n",
    "bytes": "B",
    "failures": "n",
}
"""Figures of a block that have a place on the page, in order, with their units; ``n`` is a plain number."""

SLOWEST = 25
MOST_STEPS = 24
MOST_BINS = 20_000
MOST_BINS_AXIS = 512
MOST_LANES = 64
MOST_CELLS = 1 << 53
"""Numbers of cells up to here are whole in the page's own arithmetic."""
_FINE = 4096
_COARSE = 48
_TIMES, _TIMES_BUSY = 120, 400
_ROUNDING = 1e-6
_VALUE_BYTES = 4
_FIXED_BYTES = 8 + 1 + 4 + 4 + 8 + 8


_PLAIN = ("number", "done", "failures", "worker", "sent", "returned", "here")


class BlockSource(Protocol):
    """Where the blocks come from: a store, or the records of a dataset's tasks."""

    @property
    def cell_counts(self) -> Ints:
        """Shape of the grid."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """As of a store; the layout is under ``"workspan"``."""

    def tables(self) -> Iterator[BlockTable]:
        """Yield the blocks in grid order."""

    def empty_table(self) -> BlockTable:
        """Return the columns without blocks."""


@dataclass(slots=True)
class Measure:
    """One figure of the blocks, over all of them."""

    name: str
    unit: str
    n: int = 0
    total: float = 0.0
    min: float = np.inf
    max: float = -np.inf
    quantiles: tuple[float, float, float] | None = None
    """Median, 90 % and 99 %."""
    edges: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Of the bins of the distribution."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    is_log: bool = False

    @property
    def mean(self) -> float | None:
        """``None``: of no block."""
        return self.total / self.n if self.n else None

    def add(self, values: NDArray[np.float64]) -> None:
        """Take in the figure of some blocks."""
        if len(values):
            self.n += len(values)
            self.total += float(values.sum())
            self.min = min(self.min, float(values.min()))
            self.max = max(self.max, float(values.max()))


@dataclass(slots=True)
class Rows:
    """Some blocks, each with all its figures: columns, one entry a block. NaN: not measured."""

    number: NDArray[np.float64]
    """C-order number of the cell in the tracking grid."""
    done: NDArray[np.bool_]
    failures: NDArray[np.uint32]
    worker: NDArray[np.int32]
    """-1: not known."""
    sent: NDArray[np.float64]
    """Seconds since the begin of the run; before 0: in an earlier run."""
    returned: NDArray[np.float64]
    here: NDArray[np.bool_]
    """Whether the run on the page did it."""
    values: dict[str, NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.number)

    def take(self, rows: NDArray[Any]) -> Rows:
        """Return some of the blocks."""
        plain: dict[str, Any] = {name: getattr(self, name)[rows] for name in _PLAIN}
        return Rows(**plain, values={name: column[rows] for name, column in self.values.items()})

    @classmethod
    def join(cls, parts: list[Rows]) -> Rows:
        """Return the blocks of all parts."""
        plain: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _PLAIN}
        return cls(**plain, values={n: np.concatenate([part.values[n] for part in parts]) for n in parts[0].values})


@dataclass(slots=True)
class Trend:
    """How long blocks took over the run, where there are too many to draw each."""

    end: float
    counts: NDArray[np.int64]
    """Shape (bins of time, bins of values)."""
    edges: NDArray[np.float64]
    is_log: bool
    mean: NDArray[np.float64]


@dataclass(slots=True)
class PageBlocks:
    """What the page knows of a task's blocks."""

    counts: Ints
    """Shape of the tracking grid."""
    origin: Ints | None
    """Where the write ROI of cell 0 would begin, in world units; ``None``: not known."""
    step: Ints | None
    """Shape of a write ROI."""
    limit: Ints | None
    """End of the region that is written, where blocks at the edge are clipped to it."""
    n: int
    """Blocks of which something is recorded."""
    done: int
    here: int
    """Blocks that the run on the page did."""
    measures: list[Measure]
    main: str | None
    """Name of the figure that says how long a block took; ``None``: nothing does."""
    slowest: Rows
    rows: Rows | None
    """All of them; ``None``: they are in bins."""
    sizes: Ints
    """Cells of a bin along each axis; all 1 with *rows*."""
    bins_done: NDArray[np.int64] | None = None
    """Done blocks of each bin, in C order."""
    bins_known: NDArray[np.int64] | None = None
    """Recorded blocks of each bin."""
    bins: dict[str, CellBins] = field(default_factory=dict)
    trend: Trend | None = None
    lanes: list[tuple[int, int]] = field(default_factory=list)
    """First and last worker of each lane of :attr:`busy`."""
    busy: NDArray[np.float64] | None = None
    """How busy each lane was in each part of the run, 0 to 1."""

    @property
    def bin_counts(self) -> Ints:
        """Bins along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.counts, self.sizes, strict=True))


def read_blocks(source: BlockSource, started_at: float, ended_at: float, *, room_bytes: int) -> PageBlocks:
    """Read the blocks of a task for a page.

    Parameters
    ----------
    source
        Where they are.
    started_at, ended_at
        The run on the page, in seconds since the epoch.
    room_bytes
        What the blocks may take on the page, before they are spelled in text.
    """
    counts = tuple(source.cell_counts)
    origin, step, limit = _layout(source)
    first = _First(counts, started_at, ended_at, room_bytes)
    for table in source.tables():
        first.add(table)
    measures = [m for m in first.measures.values() if m.n and not (m.name == "failures" and m.max == 0)]
    names = {m.name for m in measures}
    out = PageBlocks(
        counts=counts,
        origin=origin,
        step=step,
        limit=limit,
        n=first.n,
        done=first.done,
        here=first.here,
        measures=measures,
        main=next((name for name in ("wall_seconds", "round_trip") if name in names), None),
        slowest=first.slowest or _no_rows(),
        rows=None,
        sizes=(1,) * len(counts),
    )
    batches: Iterator[Rows]
    if first.kept is not None:
        out.rows = Rows.join(first.kept) if first.kept else _no_rows()
        out.rows.values = {name: column for name, column in out.rows.values.items() if name in names}
        batches = iter((out.rows,))
    else:
        most = min(MOST_BINS, room_bytes // (8 + 2 * _VALUE_BYTES * max(1, len(measures))))
        out.sizes = bin_sizes(counts, max(most, 64), MOST_BINS_AXIS)
        batches = (rows_of(table, counts, started_at, ended_at) for table in source.tables())
    _second(out, batches, ended_at - started_at, first.workers)
    return out


class _First:
    """The first time through the blocks."""

    def __init__(self, counts: Ints, started_at: float, ended_at: float, room_bytes: int) -> None:
        self.n = self.done = self.here = 0
        self.measures: dict[str, Measure] = {}
        self.slowest: Rows | None = None
        self.kept: list[Rows] | None = []
        self.workers = -1
        self._counts = counts
        self._run = started_at, ended_at
        self._room = room_bytes
        several = sum(n > 1 for n in counts) > 1
        if prod(counts) > MOST_CELLS or (several and max(counts) > MOST_BINS_AXIS):
            self.kept = None

    def add(self, table: BlockTable) -> None:
        if not len(table.cells):
            return
        rows = rows_of(table, self._counts, *self._run)
        self.n += len(rows)
        self.done += int(rows.done.sum())
        self.here += int(rows.here.sum())
        self.workers = max(self.workers, int(rows.worker.max()))
        for name, column in rows.values.items():
            unit = UNITS.get(name, "s")
            self.measures.setdefault(name, Measure(name, unit)).add(column[~np.isnan(column)])
        main = rows.values.get("wall_seconds", rows.values.get("round_trip"))
        if main is not None:
            parts = [_slowest(rows, main)] + ([] if self.slowest is None else [self.slowest])
            both = Rows.join(parts)
            self.slowest = _slowest(both, both.values.get("wall_seconds", both.values.get("round_trip", main)))
        if self.kept is not None:
            self.kept.append(rows)
            wide = sum(2 if UNITS.get(name) == "B" else 1 for name in rows.values)
            if self.n * (_FIXED_BYTES + _VALUE_BYTES * wide) > self._room:
                self.kept = None


def _second(out: PageBlocks, batches: Iterator[Rows], length: float, last_worker: int) -> None:
    """Go through the blocks again: for distributions, and for bins if they are needed."""
    fine = {m.name: Histogram(m.min, m.max, _FINE) for m in out.measures}
    binned = out.rows is None
    if binned:
        size = prod(out.bin_counts)
        out.bins_done, out.bins_known = np.zeros(size, np.int64), np.zeros(size, np.int64)
        out.bins = {m.name: CellBins(size) for m in out.measures}
    over = busy = None
    per_lane = max(1, ceil((last_worker + 1) / MOST_LANES))
    if binned and out.main is not None and out.here:
        known = next(m for m in out.measures if m.name == out.main)
        over = Over(length, _TIMES, Histogram(known.min, known.max, _COARSE))
        if last_worker >= 0:
            busy = Busy(length, _TIMES_BUSY, last_worker // per_lane + 1)
    for rows in batches:
        for name, histogram in fine.items():
            values = rows.values[name]
            histogram.add(values[~np.isnan(values)])
        if not binned or out.bins_done is None or out.bins_known is None:
            continue
        place = _bin_numbers(rows.number, out)
        out.bins_known += np.bincount(place, minlength=len(out.bins_known))
        out.bins_done += np.bincount(place[rows.done], minlength=len(out.bins_done))
        for name, bins in out.bins.items():
            there = ~np.isnan(rows.values[name])
            bins.add(place[there], rows.values[name][there])
        here = rows.here
        if over is not None and out.main is not None:
            there = here & ~np.isnan(rows.values[out.main])
            over.add(rows.returned[there], rows.values[out.main][there])
        if busy is not None:
            there = here & (rows.worker >= 0)
            busy.add(rows.worker[there].astype(np.int64) // per_lane, rows.sent[there], rows.returned[there])
    for measure in out.measures:
        histogram = fine[measure.name]
        measure.is_log = histogram.is_log
        measure.edges, measure.counts = histogram.coarse(min(_COARSE, max(8, 2 * isqrt(measure.n))))
        low, middle, high = (histogram.quantile(q) for q in (0.5, 0.9, 0.99))
        measure.quantiles = low, middle, high
        if out.rows is not None:
            values = out.rows.values[measure.name]
            half, most, nearly = np.quantile(values[~np.isnan(values)], (0.5, 0.9, 0.99)).tolist()
            measure.quantiles = half, most, nearly
    if over is not None:
        out.trend = Trend(length, over.counts, over.values.edges, over.values.is_log, over.mean)
    if busy is not None:
        lanes = range(busy.lanes)
        out.lanes = [(lane * per_lane, min(last_worker, (lane + 1) * per_lane - 1)) for lane in lanes]
        out.busy = busy.parts_busy(np.array([last - begin + 1 for begin, last in out.lanes]))


def rows_of(table: BlockTable, counts: Ints, started_at: float, ended_at: float) -> Rows:
    """Return a batch of blocks with every figure that the page shows, NaN where it was not measured."""
    size = len(table.cells)
    number = np.zeros(size)
    for axis, extent in enumerate(counts):
        number = number * extent + table.cells[:, axis]
    known = known_cells(table)
    nothing = np.full(size, np.nan)
    stamps = {}
    for name in ("sent_at", "returned_at"):
        there = known.get(name)
        stamps[name] = nothing if there is None else np.where(there, table.values[name] - started_at, np.nan)
    sent, returned = stamps["sent_at"], stamps["returned_at"]
    here = (sent >= -_ROUNDING) & (returned <= ended_at - started_at + _ROUNDING)
    worker = np.full(size, -1, np.int32)
    if "worker_id" in known:
        numbers = np.asarray(table.values["worker_id"], np.int64)
        worker = np.where(known["worker_id"] & (numbers < 2**31), numbers, -1).astype(np.int32)
    values = {}
    for name in UNITS:
        if name in table.values:
            values[name] = np.where(known[name], table.values[name].astype(np.float64), np.nan)
        elif name == "round_trip" and "sent_at" in known:
            values[name] = returned - sent
        elif name == "failures":
            values[name] = table.failures.astype(np.float64)
    for name in list(table.steps)[:MOST_STEPS]:
        values[STEP_PREFIX + name] = table.steps[name].astype(np.float64)
    for column in values.values():
        column[~np.isfinite(column)] = np.nan  # whoever wrote that measured nothing
    return Rows(number, table.done, table.failures, worker, sent, returned, here, values)


def _no_rows() -> Rows:
    empty = np.empty(0)
    none = np.empty(0, np.bool_)
    return Rows(empty, none, np.empty(0, np.uint32), np.empty(0, np.int32), empty, empty, none, {})


def _slowest(rows: Rows, main: NDArray[np.float64]) -> Rows:
    known = np.flatnonzero(~np.isnan(main))
    if len(known) > SLOWEST:
        known = known[np.argpartition(-main[known], SLOWEST)[:SLOWEST]]
    return rows.take(known[np.argsort(-main[known], kind="stable")])


def _bin_numbers(number: NDArray[np.float64], out: PageBlocks) -> NDArray[np.int64]:
    cells = np.unravel_index(number.astype(np.int64), out.counts)
    place = np.zeros(len(number), np.int64)
    for cell, size, bins in zip(cells, out.sizes, out.bin_counts, strict=True):
        place = place * bins + cell // size
    return place


def _layout(source: BlockSource) -> tuple[Ints | None, Ints | None, Ints | None]:
    """Return origin and shape of the write ROIs, and what they are clipped to, as far as the store tells."""
    told = source.attributes.get("workspan")
    try:
        box = {name: told[name] for name in ("total_roi", "read_roi", "write_roi")}  # type: ignore[index]
        ints = {(n, k): tuple(int(i) for i in box[n][k]) for n in box for k in ("offset", "shape")}
        layout = Layout(
            ints["total_roi", "offset"],
            ints["total_roi", "shape"],
            ints["read_roi", "offset"],
            ints["read_roi", "shape"],
            ints["write_roi", "offset"],
            ints["write_roi", "shape"],
            fit=str(told["fit"]),  # type: ignore[index]
            read_write_conflict=False,
        )
    except (ConfigurationError, KeyError, TypeError, ValueError):
        return None, None, None
    if layout.cell_counts != tuple(source.cell_counts):
        return None, None, None
    low, high = layout.covered
    origin = tuple(b - f * w for b, f, w in zip(low, layout.first_cell, layout.write_shape, strict=True))
    return origin, layout.write_shape, high if layout.fit == "shrink" else None
