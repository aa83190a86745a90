"""What is kept of a run for forecasts of later ones, when its tracking store is long gone: a few kilobytes a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isclose, isfinite, sqrt
from typing import TYPE_CHECKING, Any, Self

from workspan.errors import InvalidMetadataError
from workspan.grid.layout import Layout
from workspan.measure.stats import Stat, Welford
from workspan.report._value import Value, check

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BlockSamples", "LayoutFields", "RunSummary", "SizeTimes", "by_place", "by_size"]

SCHEMA = 1
"""Version of the JSON form. 1: the first one."""

MOST_SAMPLES = 1024
"""Blocks of a run whose times are kept while it runs: every one, every second one, every fourth one, ..."""

MOST_FIRST = 256
"""First blocks of workers that are kept."""

MOST_SIZES = 12
"""Sizes that are told apart in a summary."""

MOST_PLACES, PLACE_FROM = 32, 8
"""Stretches of a task that are told apart in a summary, and blocks of each, on the average, that this takes."""

PLACE_MOST = 5.0
"""Times the middle block of a stretch, beyond which a block counts for no more."""

MOST_SECONDS, MOST_SIZE = 1e10, 1e100
"""Beyond them nothing is believed: 300 years, and a number of elements that no array has."""

SLICES = (*(n / 20 for n in range(1, 19)), 0.92, 0.94, 0.96, 0.975, 0.985, 0.99, 0.995, 1.0)
"""Where the sorted times of blocks are cut; the slow end, where stragglers are, is cut more finely."""


class BlockSamples:
    """Times of the blocks of a running task, in bounded memory: an even choice of them, and the first of each worker.

    Who counts many blocks passes over those that would not be kept without a call: a block of one of :attr:`workers`
    while :attr:`wait` is not 0 only takes 1 from that.
    """

    __slots__ = ("_gap", "_kept_to", "first", "later", "wait", "workers")

    def __init__(self) -> None:
        self.first: list[tuple[int, float]] = []
        """Index and seconds of the first block of each worker."""
        self.later: list[tuple[int, float]] = []
        """Index and seconds of blocks that are not."""
        self.workers: set[int] = set()
        """Workers of which a block is done."""
        self.wait = 0
        """How many blocks that are not the first of their worker come before the next one that is kept."""
        self._gap = 0
        self._kept_to = 0

    @property
    def later_count(self) -> int:
        """Number of blocks that were not the first of their worker; :attr:`later` is an even choice of them."""
        return self._kept_to + self._gap - self.wait

    def add(self, index: int, seconds: float, worker: int) -> None:
        """Take in a block that was done."""
        if worker not in self.workers:
            self.workers.add(worker)
            if len(self.first) < MOST_FIRST:
                self.first.append((index, seconds))
            return
        if self.wait:
            self.wait -= 1
            return
        self._kept_to += self._gap + 1
        self.wait = self._gap
        self.later.append((index, seconds))
        if len(self.later) >= 2 * MOST_SAMPLES:
            del self.later[1::2]
            # The next one comes as soon as it would have; from there on the gaps are wider.
            self._kept_to -= self._gap + 1
            self._gap = 2 * self._gap + 1


@dataclass(frozen=True, slots=True)
class SizeTimes(Value):
    """Times of the blocks of about one size."""

    size: float
    """N_ref: their mean."""
    blocks: int
    """How many blocks of the run this stands for."""
    seconds: Stat
    """Of the blocks that were looked at."""
    p50: float
    p90: float
    p99: float
    means: tuple[float, ...]
    """The times in order, cut into slices: mean of each, in seconds."""
    counts: tuple[int, ...]
    """Number of blocks in each slice."""

    @classmethod
    def of(cls, sizes: Sequence[float], seconds: Sequence[float], blocks: int) -> Self:
        """Summarise blocks, at least one."""
        times, stat = sorted(seconds), Welford()
        stat.extend(times)
        count, at, means, counts = len(times), 0, [], []
        for cut in SLICES:
            stop = round(cut * count)
            if stop > at:
                means.append(sum(times[at:stop]) / (stop - at))
                counts.append(stop - at)
                at = stop
        p50, p90, p99 = (times[min(count - 1, int(q * count))] for q in (0.5, 0.9, 0.99))
        return cls(sum(sizes) / count, blocks, stat.stat(), p50, p90, p99, tuple(means), tuple(counts))

    def _is_possible(self) -> bool:
        """Whether it can be of blocks: what is read may have been damaged, or written by anybody."""
        if not (
            self.blocks > 0 and 1 / MOST_SIZE <= self.size <= MOST_SIZE and _is_possible(self.seconds, MOST_SECONDS)
        ):
            return False
        if len(self.means) != len(self.counts) or sum(self.counts) != self.seconds.n or min(self.counts) < 1:
            return False
        quantiles = (self.p50, self.p90, self.p99, *self.means)
        if not all(0 <= value <= MOST_SECONDS for value in quantiles):
            return False
        total = sum(mean * count for mean, count in zip(self.means, self.counts, strict=True))
        return isclose(total, self.seconds.n * self.seconds.mean, rel_tol=1e-6, abs_tol=1e-12)


def by_size(sizes: Sequence[float], seconds: Sequence[float], blocks: int) -> tuple[SizeTimes, ...]:
    """Summarise *blocks* blocks by size from some of them; those without a size are left out.

    More than :data:`MOST_SIZES` sizes are put together with their neighbours.
    """
    rows = sorted((n, t) for n, t in zip(sizes, seconds, strict=True) if isfinite(n) and n > 0)
    if not rows:
        return ()
    distinct = len({n for n, _ in rows})
    groups: list[list[tuple[float, float]]] = [rows] if distinct == 1 else []
    for number, row in enumerate(() if groups else rows):
        same = groups and groups[-1][-1][0] == row[0]
        full = distinct > MOST_SIZES and groups and len(groups) * len(rows) > number * MOST_SIZES
        if same or full:
            groups[-1].append(row)
        else:
            groups.append([row])
    share = blocks / len(rows)
    return tuple(
        SizeTimes.of([n for n, _ in group], [t for _, t in group], max(1, round(share * len(group))))
        for group in groups
    )


def by_place(indices: Sequence[int], seconds: Sequence[float], total: int) -> tuple[float, ...]:
    """Return the mean time of blocks in stretches of equal length, from the first of *total* blocks to the last.

    None if too few are known of any: a run that went on where another one had ended knows nothing of the blocks before.
    One straggler in a stretch is no sign of it: no block counts for more than some times the middle one.
    """
    count = min(MOST_PLACES, len(indices) // PLACE_FROM)
    if count < 2:
        return ()
    places: list[list[float]] = [[] for _ in range(count)]
    for index, each in zip(indices, seconds, strict=True):
        places[index * count // total].append(each)
    means = []
    for times in places:
        if len(times) < PLACE_FROM // 2:
            return ()
        most = PLACE_MOST * sorted(times)[len(times) // 2]
        means.append(sum(min(each, most) for each in times) / len(times))
    return tuple(means)


@dataclass(frozen=True, slots=True)
class LayoutFields(Value):
    """The layout of a task, as plain numbers."""

    total_begin: tuple[int, ...]
    total_shape: tuple[int, ...]
    read_begin: tuple[int, ...]
    read_shape: tuple[int, ...]
    write_begin: tuple[int, ...]
    write_shape: tuple[int, ...]
    fit: str
    read_write_conflict: bool
    apart: tuple[int, ...] = ()

    @classmethod
    def of(cls, layout: Layout) -> Self:
        """Take them from *layout*."""
        names = ("total_begin", "total_shape", "read_begin", "read_shape", "write_begin", "write_shape", "fit")
        return cls(*(getattr(layout, name) for name in (*names, "read_write_conflict", "apart")))

    def layout(self) -> Layout:
        """Return the layout.

        Raises
        ------
        ConfigurationError
            The numbers are no layout.
        """
        return Layout(
            self.total_begin,
            self.total_shape,
            self.read_begin,
            self.read_shape,
            self.write_begin,
            self.write_shape,
            self.fit,
            self.read_write_conflict,
            self.apart,
        )


@dataclass(frozen=True, slots=True)
class RunSummary(Value):
    """What one run of a task says about the next one. Times are seconds, memory is bytes; ``None``: not measured."""

    run_id: str
    task_id: str
    started_at: float
    """In seconds since the epoch."""
    wall_seconds: float
    outcome: str
    layout: LayoutFields
    total: int
    """Blocks of the task."""
    executed: int
    skipped: int
    failed: int
    failures: int
    """Attempts that did not succeed."""
    max_workers: int
    workers: int
    """Workers that were started, replacements included; 0: the blocks ran in the driver."""
    cpus: int
    """Processors that the driver was allowed to use."""
    basis: str
    """What the times of blocks are: ``"round trip"``, or ``"call"`` where there were no workers."""
    later: tuple[SizeTimes, ...]
    """Blocks that were not the first of their worker, by size."""
    first: tuple[SizeTimes, ...]
    """First blocks of workers, which warm up in them, by size."""
    startup: Stat
    teardown: Stat
    gap_seconds: float | None
    """From a return to the next block of the same worker, where one was ready: the first quartile."""
    lead_seconds: float | None
    """From the begin of the run until its first worker was asked for."""
    tail_seconds: float | None
    """From the last return of the run until its end."""
    overhead_seconds: float | None
    """Round trip less the block's own time: mean."""
    cpu_share: float | None
    """CPU seconds of the blocks in one second of theirs."""
    peak_rss: Stat | None
    steps: dict[str, float] = field(default_factory=dict)
    """Name -> part of the work that the step took, 0 to 1."""
    work_seconds: float | None = None
    span_seconds: float | None = None
    function: str | None = None
    """Fingerprint of the block function."""
    n_ref: str | None = None
    """Fingerprint of the function that gave the sizes; ``None``: the elements of the write ROI."""
    tracking_path: str | None = None
    upstream: tuple[str, ...] = ()
    """Tasks for which it waited."""
    requires: dict[str, int] = field(default_factory=dict)
    tasks: int = 1
    """Tasks of the run."""
    places: tuple[float, ...] = ()
    """Mean time of blocks along the task, see :func:`by_place`; empty: not known, or their sizes differ anyhow."""

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain objects, with the version of their form."""
        return {"schema": SCHEMA, **Value.to_json(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild the value from :meth:`to_json`'s result; unknown keys are ignored.

        Raises
        ------
        InvalidMetadataError
            It is something else, of a later version, or holds figures that no run has.
        """
        schema = check(data, dict, cls.__name__).get("schema")
        if type(schema) is not int or not 1 <= schema <= SCHEMA:
            raise InvalidMetadataError(f"not a summary of a run: 'schema' is {schema!r}, known is up to {SCHEMA}")
        made: Self = super(RunSummary, cls).from_json(data)
        for wrong in made._wrong_figures():
            raise InvalidMetadataError(f"not a summary of a run: {wrong} is not possible")
        return made

    def _wrong_figures(self) -> Iterator[str]:
        """Yield what no run can have; whoever computes with the rest divides by nothing and gets finite times."""
        for name in ("max_workers", "cpus"):
            if getattr(self, name) < 1:
                yield f"{name} = {getattr(self, name)}"
        if self.workers < 0:
            yield f"workers = {self.workers}"
        for name in ("gap_seconds", "lead_seconds", "tail_seconds", "overhead_seconds", "cpu_share"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= MOST_SECONDS:
                yield f"{name} = {value}"
        for name, value in self.steps.items():
            if not 0 <= value <= 1 + 1e-6:
                yield f"a share {value} of step {name!r}"
        if not all(0 <= value <= MOST_SECONDS for value in self.places):
            yield f"places = {self.places}"
        for name in ("startup", "teardown", "peak_rss"):
            stat = getattr(self, name)
            most = inf if name == "peak_rss" else MOST_SECONDS
            if stat is not None and stat.n and not _is_possible(stat, most):
                yield f"{name} of {stat.mean} on the average"
        for name in ("later", "first"):
            for entry in getattr(self, name):
                if not entry._is_possible():
                    yield f"an entry of {name!r}, of size {entry.size},"


def _is_possible(stat: Stat, most: float) -> bool:
    return stat.n > 0 and 0 <= stat.min <= stat.max <= most and 0 <= stat.mean <= most and 0 <= stat.std <= most


def spread_rows(stat: Stat) -> Iterable[tuple[float, float]]:
    """Return values and their weights that have the number, mean, spread and ends of *stat*.

    Used where nothing else is known of the samples: two values for most of them, at the mean plus and minus the spread.
    """
    if not stat.n:
        return ()
    if stat.n < 4 or not stat.std > 0:
        return ((stat.mean, float(stat.n)),)
    inner = stat.n - 2
    mean = (stat.mean * stat.n - stat.min - stat.max) / inner
    square = stat.std**2 * (stat.n - 1) + stat.mean**2 * stat.n - stat.min**2 - stat.max**2
    off = sqrt(max(0.0, square / inner - mean**2))
    low, high = max(stat.min, mean - off), min(stat.max, mean + off)
    if not low < mean < high:
        return ((stat.min, 1.0), (mean, float(inner)), (stat.max, 1.0))
    upper = inner * (mean - low) / (high - low)
    return ((stat.min, 1.0), (low, inner - upper), (high, upper), (stat.max, 1.0))
