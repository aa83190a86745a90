"""A run that is put through the scheduler again and again, with any number of workers: see ``run.forecasts``."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.report.forecast import Forecast, TaskForecast, WorkersForecast
from workspan.run.history import usable_cpus
from workspan.schedule.simulation import EXACT_BLOCKS, Level, Timing, bounds, simulate, with_workers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from workspan.run.past import Past
    from workspan.schedule.spec import PipelineSpec

__all__ = ["Forecaster", "Planned"]

LEVEL = 0.9
WORKERS = (1, 2, 4, 8, 16)
MORE_WORKERS = (32, 64, 128)

FAR = 0.4
"""Beyond measured sizes by so much, in logarithms, is told: by half."""

FACTORS = 4000
"""Draws of how fast a run is as a whole, for the ends of the interval."""


class Budget(NamedTuple):
    """How much is simulated for one number of workers."""

    blocks: int
    """Over all repetitions."""
    least: int
    most: int


BUDGET = Budget(40_000, least=3, most=60)
"""For the number of workers that was asked for."""

TABLE_BUDGET = Budget(10_000, least=1, most=12)
"""For each other number of workers."""

START_SPREAD, START_PRIOR = 0.15, 2.0
"""By what part of it the start of workers is taken to differ between runs before they have shown it, and how many runs
that guess counts."""


@dataclass
class Planned:
    """A task whose next run is to be forecast."""

    past: Past
    sizes: NDArray[Any]
    """N_ref of each block, in the shape of the mask grid; of a huge task, that of some blocks, evenly chosen."""
    flags: NDArray[Any] | None
    """Which blocks need not run, as for :func:`workspan.schedule.resume.skip_known`."""


@dataclass(frozen=True)
class _Outcome:
    """Runs with one number of workers."""

    walls: NDArray[Any]
    work: list[float]
    spans: list[float]
    span: float


class Forecaster:
    """Forecasts one run with any number of workers."""

    def __init__(
        self,
        spec: PipelineSpec,
        planned: Sequence[Planned],
        resources: Mapping[str, int] | None,
        seed: int,
    ) -> None:
        import numpy as np

        self._spec = spec
        self._planned = list(planned)
        self._resources = resources
        self._seed = seed
        self._cpus = usable_cpus()
        self._notes = [note for plan in planned for note in plan.past.notes]
        self._counts: list[int] = []
        self._sizes: list[NDArray[Any]] = []
        for entry, plan in zip(spec.tasks, planned, strict=True):
            total = entry.layout.num_blocks
            self._counts.append(total if plan.flags is None else total - int(np.count_nonzero(plan.flags)))
            sizes = np.asarray(plan.sizes, float).reshape(-1)
            unknown = np.isnan(sizes)
            if unknown.any():
                self._notes.append(
                    f"{entry.task_id}: {int(unknown.sum()):,} blocks have no size: they are taken to be usual ones"
                )
                sizes = np.where(unknown, np.nanmedian(sizes) if not unknown.all() else 1.0, sizes)
            self._sizes.append(sizes)

    def _left(self, number: int) -> NDArray[Any] | slice:
        """Return which entries of a task's sizes are of blocks that would run."""
        import numpy as np

        flags = self._planned[number].flags
        if flags is None or flags.size != self._sizes[number].size:
            return slice(None)
        return np.asarray(flags.reshape(-1) == 0)

    def all(self, workers: int | None) -> Forecast:
        """Return the whole forecast."""
        spec, counts = self._spec, self._counts
        asked = spec if workers is None else with_workers(spec, workers)
        known = all(plan.past.times.count or not n for plan, n in zip(self._planned, counts, strict=True))
        exact = sum(entry.layout.num_blocks for entry in spec.tasks) <= EXACT_BLOCKS
        peak, limit = self._peak(), _memory_limit()
        total = sum(counts)
        source = "none" if not total else "model" if known else "default"
        outcome = self._outcome(asked, BUDGET, exact) if total and known else None
        tasks = {
            entry.task_id: self._task(number, entry.max_workers, outcome) for number, entry in enumerate(asked.tasks)
        }
        wall = low = high = work = span = None
        table: tuple[WorkersForecast, ...] = ()
        if outcome is not None:
            wall, low, high = _interval(outcome.walls)
            work, span = sum(outcome.work), outcome.span
            table = self._table(asked, outcome, exact, peak, limit)
        elif not total:
            wall = low = high = work = span = 0.0
        return Forecast(
            tasks=tasks,
            wall_seconds=wall,
            wall_low=low,
            wall_high=high,
            level=LEVEL,
            work_seconds=work,
            span_seconds=span,
            source=source,
            basis=self._basis(source),
            method="none" if outcome is None else "simulated" if exact else "bounds",
            table=table,
            cpus=self._cpus,
            memory_limit_bytes=limit,
            worker_peak_bytes=peak,
            workers_that_fit=None if not peak or limit is None else limit // peak,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    # -- parts ---------------------------------------------------------------------------------------------------

    def _basis(self, source: str) -> str:
        if source == "none":
            return "nothing to do"
        left = [plan.past.times for plan, n in zip(self._planned, self._counts, strict=True) if n]
        if source == "default":
            return left[0].basis if len(left) == 1 else "default, no data for some tasks"
        blocks, runs = sum(times.count for times in left), max(times.runs for times in left)
        return f"{blocks:,} block{'s' * (blocks != 1)} of {runs:,} run{'s' * (runs != 1)}"

    def _task(self, number: int, workers: int, outcome: _Outcome | None) -> TaskForecast:
        past, count, layout = self._planned[number].past, self._counts[number], self._spec.tasks[number].layout
        times, sizes = past.times, self._sizes[number][self._left(number)]
        default = block = None
        if count and not times.count:
            each = times.predict(float(sizes.mean()))
            default = None if each.value is None else each.value * count
        elif count:
            block = float(times.expected(sizes, workers=workers).mean()) * self._stretch(number, workers)
        return TaskForecast(
            task_id=self._spec.tasks[number].task_id,
            total=layout.num_blocks,
            blocks=count,
            workers=workers,
            source=times.source if count else "none",
            basis=times.basis if count else "nothing to do",
            work_seconds=outcome.work[number] if outcome else (0.0 if not count else None),
            span_seconds=outcome.spans[number] if outcome else (0.0 if not count else None),
            block_seconds=block,
            warm_up_seconds=times.warm_up_seconds if times.count else None,
            startup_seconds=past.startup,
            peak_rss_bytes=self._peak_of(number),
            cpu_share=past.cpu_share,
            steps=past.steps,
            default_seconds=default,
        )

    def _table(
        self, asked: PipelineSpec, outcome: _Outcome, exact: bool, peak: int | None, limit: int | None
    ) -> tuple[WorkersForecast, ...]:
        own = {entry.max_workers for entry in asked.tasks}
        most = max(max(own), self._cpus, WORKERS[-1])
        counts = {*WORKERS, *(n for n in MORE_WORKERS if n <= most)}
        if len(own) == 1:
            counts |= own
        rows = []
        for count in sorted(counts):
            found = outcome if own == {count} else self._outcome(with_workers(self._spec, count), TABLE_BUDGET, exact)
            wall, low, high = _interval(found.walls)
            memory = None if peak is None else peak * min(count, max(self._counts)) * self._side_by_side()
            rows.append(
                WorkersForecast(
                    workers=count,
                    wall_seconds=wall,
                    wall_low=low,
                    wall_high=high,
                    memory_bytes=memory,
                    fits=None if memory is None or limit is None else memory <= limit,
                )
            )
        return tuple(rows)

    def _side_by_side(self) -> int:
        """Tasks whose workers may be alive at the same time: those that have something to do."""
        return max(1, sum(count > 0 for count in self._counts))

    def _peak_of(self, number: int) -> int | None:
        """Return the memory of a task's worker; ``None``: not measured for blocks as large as these."""
        past, sizes = self._planned[number].past, self._sizes[number][self._left(number)]
        if past.peak_rss_bytes is None or not len(sizes) or float(sizes.max()) <= exp(FAR) * past.times.largest:
            return past.peak_rss_bytes
        self._notes.append(
            f"{self._spec.tasks[number].task_id}: its blocks are larger than any that was measured: what memory they "
            "take is not known"
        )
        return None

    def _peak(self) -> int | None:
        """Return the memory of the largest worker; ``None``: it is not known of every task that has something to do."""
        peaks = [self._peak_of(number) for number, count in enumerate(self._counts) if count]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if known and len(known) == len(peaks) else None

    # -- one number of workers -------------------------------------------------------------------------------------

    def _alive(self, spec: PipelineSpec) -> int:
        return sum(min(entry.max_workers, n) for entry, n in zip(spec.tasks, self._counts, strict=True))

    def _share(self, number: int, alive: int) -> float:
        """Processors that a block of a task keeps busy."""
        share = self._planned[number].past.cpu_share
        if share is None and alive > self._cpus:
            self._notes.append(
                f"beyond {self._cpus} workers, the processors there are, blocks are taken to keep one busy each: "
                "resource_tracking=True measures it"
            )
        return 1.0 if share is None else share

    def _beyond(self, number: int) -> float:
        """Return how far a task's blocks are outside of the sizes that were measured, in logarithms."""
        times, sizes = self._planned[number].past.times, self._sizes[number][self._left(number)]
        if not times.count or not len(sizes):
            return 0.0
        beyond = float(times.beyond(sizes).mean())
        if beyond > FAR:
            self._notes.append(
                f"{self._spec.tasks[number].task_id}: its blocks differ in size {exp(beyond):,.3g} times from any that "
                "was measured: how their time goes on is a guess, and the range is wide for it"
            )
        return beyond

    def _stretch(self, number: int, workers: int) -> float:
        """By how much blocks take longer if there are not enough processors for all workers of their task."""
        alive = min(workers, self._counts[number])
        return max(1.0, alive * self._share(number, alive) / self._cpus)

    def _outcome(self, spec: PipelineSpec, budget: Budget, exact: bool) -> _Outcome:
        import numpy as np

        rng = np.random.default_rng(self._seed)
        if exact:
            fixed, makespans, work, spans, span = self._simulated(spec, budget, rng)
        else:
            fixed, makespans, work, spans, span = self._bounded(spec)
        pasts = [plan.past for plan, n in zip(self._planned, self._counts, strict=True) if n]
        lead = max(past.lead for past in pasts)
        tails = rng.normal(0.0, max(past.tail_spread for past in pasts) / 2, FACTORS)
        tail = np.maximum(0.0, max(past.tail for past in pasts) + tails)
        # Of a run as a whole: how fast the machine is today moves all blocks together.
        heavy = int(np.argmax(work))
        times = self._planned[heavy].past.times
        factors = times.run_factors(rng, FACTORS, workers=spec.tasks[heavy].max_workers, beyond=self._beyond(heavy))
        chosen = rng.choice(makespans, FACTORS)
        # Start-up is its own matter: it varies within the makespans.
        walls = lead + fixed + (chosen - fixed) * factors + tail
        return _Outcome(walls=walls, work=work, spans=spans, span=span)

    def _simulated(
        self, spec: PipelineSpec, budget: Budget, rng: np.random.Generator
    ) -> tuple[float, NDArray[Any], list[float], list[float], float]:
        """Return the start-up, makespans of repeated runs, and mean work, spans of the tasks, and span of the whole."""
        import numpy as np

        total = max(1, sum(self._counts))
        repeats = min(budget.most, max(budget.least, budget.blocks // total))
        flags = [plan.flags for plan in self._planned]
        makespans, works, spans, wholes = [], [], [], []
        # Evenly over its distribution, so that few repetitions for each number of workers can be compared.
        days = [NormalDist().inv_cdf((n + 0.5) / repeats) for n in range(repeats)]
        for repeat, today in enumerate(days):
            blocks = []
            for number, entry in enumerate(spec.tasks):
                times = self._planned[number].past.times
                drawn = times.sample(rng, self._sizes[number], workers=entry.max_workers)
                if isinstance(left := self._left(number), np.ndarray):
                    drawn = np.where(left, drawn, 0.0)
                blocks.append(drawn)
            timings = [self._timing(spec, n, blocks[n], today, rng) for n in range(len(blocks))]
            found = simulate(spec, timings, resources=self._resources, flags=flags, cpus=self._cpus)
            makespans.append(found.last_return)
            works.append(
                [w - self._planned[n].past.overhead * self._counts[n] for n, w in enumerate(found.work_seconds)]
            )
            if repeat < 20:
                slowed = [each * self._stretch(n, spec.tasks[n].max_workers) for n, each in enumerate(blocks)]
                own, whole = self._spans(spec, slowed)
                spans.append(own)
                wholes.append(whole)
        work = [max(0.0, float(w)) for w in np.mean(works, axis=0)]
        # A chain cannot take longer than all blocks do.
        own = [min(float(s), w) for s, w in zip(np.median(spans, axis=0), work, strict=True)]
        return self._fixed(spec), np.array(makespans), work, own, min(float(np.median(wholes)), sum(work))

    def _crowd(self, spec: PipelineSpec, number: int) -> float:
        """How many workers of a task start on each processor."""
        return max(1.0, min(spec.tasks[number].max_workers, self._counts[number]) / self._cpus)

    def _fixed(self, spec: PipelineSpec) -> float:
        """Return the start-up that no block hides: of the tasks that wait for none."""
        starts = [
            (plan.past.startup or 0.0) * self._crowd(spec, number)
            for number, plan in enumerate(self._planned)
            if self._counts[number] and not spec.upstream(number)
        ]
        return max(starts, default=0.0)

    def _timing(
        self, spec: PipelineSpec, number: int, blocks: NDArray[Any], today: float, rng: np.random.Generator
    ) -> Timing:
        """Make a task's times for one repetition; *today*: how slow the start of processes is, a standard normal."""
        past = self._planned[number].past
        count = len(past.starts)
        if not count and self._counts[number]:
            self._notes.append(f"{spec.tasks[number].task_id}: the start of a worker was never measured")
        mean = past.startup or 0.0
        between = [start.mean / mean - 1.0 for start in past.starts] if mean else []
        # Starts of one run resemble each other; with few runs they are taken to differ more than was seen.
        usual = ((sum(gap**2 for gap in between) + START_PRIOR * START_SPREAD**2) / (count + START_PRIOR)) ** 0.5
        base = mean * max(0.4, 1.0 + usual * (1.0 + 1.0 / max(1, count)) ** 0.5 * today) * self._crowd(spec, number)
        within = sum(start.spread for start in past.starts) / max(1, count)
        return Timing(
            block=blocks.tolist(),
            startup=lambda: max(0.5 * base, float(rng.normal(base, within))),
            warm_up=lambda: float(past.times.sample_warm_up(rng, 1)[0]),
            gap=past.gap,
            cpu_share=self._share(number, self._alive(spec)),
        )

    def _spans(self, spec: PipelineSpec, blocks: Sequence[NDArray[Any]]) -> tuple[list[float], float]:
        import numpy as np

        from workspan.report.span import critical_paths

        joined = {number for edge in spec.edges for number in edge}
        buffers: list[Any] = []
        for number, (entry, seconds) in enumerate(zip(spec.tasks, blocks, strict=True)):
            needed = number in joined or entry.layout.num_levels > 1
            buffers.append(memoryview(np.ascontiguousarray(seconds, np.float32)) if needed else None)  # type: ignore[arg-type]
        longest = [float(seconds.max(initial=0.0)) for seconds in blocks]
        return critical_paths([entry.layout for entry in spec.tasks], spec.edges, buffers, longest)

    # -- huge runs -------------------------------------------------------------------------------------------------

    def _bounded(self, spec: PipelineSpec) -> tuple[float, NDArray[Any], list[float], list[float], float]:
        import numpy as np

        from workspan.grid.fields import level_slices

        levels: list[list[Level]] = []
        work, spans = [], []
        for number, entry in enumerate(spec.tasks):
            layout, past, flags = entry.layout, self._planned[number].past, self._planned[number].flags
            # Sizes do not depend on the level: each has its share of them.
            seconds = past.times.expected(self._sizes[number][self._left(number)], workers=entry.max_workers)
            seconds *= self._stretch(number, entry.max_workers)
            mean, longest = (float(seconds.mean()), float(seconds.max())) if len(seconds) else (0.0, 0.0)
            own = []
            for level in range(layout.num_levels if layout.num_blocks else 0):
                count = layout.level_size(level)
                if flags is not None:
                    count -= int(np.count_nonzero(flags[level_slices(layout, level)]))
                own.append(Level(count, count * mean, longest if count else 0.0))
            levels.append(own)
            warm = past.times.warm_up_seconds * min(entry.max_workers, self._counts[number])
            whole = self._counts[number] * (mean - past.overhead)
            work.append(max(0.0, whole + warm))
            spans.append(sum(level.longest_seconds for level in own))
        expected, low, high = bounds(levels, spec.edges, [entry.max_workers for entry in spec.tasks])
        warm_ups = [plan.past.times.warm_up_seconds for plan, n in zip(self._planned, self._counts, strict=True) if n]
        fixed = self._fixed(spec) + max(warm_ups, default=0.0)
        # The bounds hold for any order of blocks; where they lie apart they widen the interval.
        makespans = fixed + np.concatenate(
            (np.full(18, expected), [max(low, 0.97 * expected), min(high, 1.06 * expected)])
        )
        span = min(max(spans, default=0.0) if not spec.edges else sum(spans), sum(work))
        return fixed, makespans, work, spans, span


def _interval(walls: NDArray[Any]) -> tuple[float, float, float]:
    import numpy as np

    tail = (1.0 - LEVEL) / 2
    low, middle, high = (float(v) for v in np.quantile(walls, (tail, 0.5, 1.0 - tail)))
    return middle, low, high


def _memory_limit() -> int | None:
    """Return the memory of the machine, or of the container if that has less, in bytes."""
    import os
    from contextlib import suppress

    from workspan.engines.memory import MemoryWatch

    limits = [MemoryWatch().limit_bytes]
    with suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((limit for limit in limits if limit), default=None)
