"""What the blocks of a task cost, folded as they finish: the memory does not grow with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from workspan.measure.stats import Stat, Trend, Welford
from workspan.measure.ticks import push_each
from workspan.report.parts import BlockFailure, BlocksSummary, StepSummary, TaskPlace, WorkersSummary
from workspan.report.task import TaskReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workspan.measure.profile import BlockStats

WorkBasis = Literal["wall", "round trip", "call"]
"""Which time of a block was summed: the worker's own, the driver's, or that of the call in the driver's process."""

FAILURES_KEPT = 10
"""Failed blocks that a report describes; it counts all."""

STEPS_KEPT = 200
"""Names that are told apart; a name made from a block's number must not grow the report without bound."""

OTHER_STEPS = "(other steps)"
"""Collects the time of names beyond :data:`STEPS_KEPT`."""


class _StepFold:
    __slots__ = ("calls", "seconds")

    def __init__(self) -> None:
        self.seconds = Welford()
        self.calls = 0


class TaskAggregate:
    """The running fold of one task's run.

    Parameters
    ----------
    total
        Blocks of the task.
    resource_tracking
        Executed blocks come back measured.
    has_workers
        Blocks travel to workers and back; without, :meth:`done` is given the time of the call and there are no round
        trips.

    Attributes
    ----------
    failed_blocks
        The first blocks that failed, at most :data:`FAILURES_KEPT`.
    skip_reasons
        Reason (``"done"``, ``"mask"``, ``"check"``) -> number of blocks that were not run because of it.
    """

    def __init__(self, total: int, *, resource_tracking: bool, has_workers: bool = True) -> None:
        self._total = total
        self._tracked = resource_tracking
        self._has_workers = has_workers
        self.failed_blocks: list[BlockFailure] = []
        self.skip_reasons: dict[str, int] = {}
        self._failed = 0
        self._failures = 0
        self._elapsed = Welford()
        self._wall = Welford()
        self._trend = Trend()
        self._cpu = Welford()
        self._peak_rss = Welford()
        self._io_read = Welford()
        self._io_write = Welford()
        self._overhead = Welford()
        self._gpu_util = Welford()
        self._gpu_mem = Welford()
        self._measured = (
            self._elapsed,
            self._wall,
            self._cpu,
            self._peak_rss,
            self._io_read,
            self._io_write,
            self._gpu_util,
            self._gpu_mem,
            self._overhead,
        )
        """What takes in a measured block, in the order in which :meth:`done` gives the samples."""
        self._steps: dict[str, _StepFold] = {}

    @property
    def peak_rss(self) -> Stat:
        """Peaks of the blocks so far, in bytes."""
        return self._peak_rss.stat()

    @property
    def elapsed(self) -> Stat:
        """Times of the blocks that were executed, in seconds: round trips, or calls where there are no workers."""
        return self._elapsed.stat()

    def done(
        self,
        elapsed_seconds: float,
        stats: BlockStats | None = None,
        steps: Mapping[str, tuple[float, int]] | None = None,
    ) -> None:
        """Take in a block that was executed and completed.

        Parameters
        ----------
        elapsed_seconds
            From sending the block to its return; without workers, the time of the call.
        stats
            What the worker measured.
        steps
            Name -> (self seconds, calls) of the steps that the block ran.
        """
        if elapsed_seconds < 0:
            elapsed_seconds = 0.0
        if stats is None or not self._tracked:
            self._elapsed.push(elapsed_seconds)
        else:
            wall = stats.wall_seconds
            push_each(  # None and NaN are no samples
                self._measured,
                (
                    elapsed_seconds,
                    wall,
                    stats.cpu_seconds,
                    stats.peak_rss_bytes,
                    stats.io_read_bytes,
                    stats.io_write_bytes,
                    stats.gpu_util_pct,
                    stats.gpu_mem_bytes or None,  # who is on a device holds some of its memory
                    (elapsed_seconds - wall if elapsed_seconds > wall else 0.0) if self._has_workers else None,
                ),
            )
            self._trend.push(wall * 1e3)
        if steps:
            self._stepped(steps)

    def _stepped(self, steps: Mapping[str, tuple[float, int]]) -> None:
        known = self._steps
        other_seconds, other_calls = 0.0, 0
        for name, (seconds, calls) in steps.items():
            fold = known.get(name)
            if fold is None:
                if len(known) >= STEPS_KEPT:
                    other_seconds, other_calls = other_seconds + seconds, other_calls + calls
                    continue
                fold = known[name] = _StepFold()
            fold.seconds.push(seconds)
            fold.calls += calls
        if other_calls:
            fold = known.setdefault(OTHER_STEPS, _StepFold())
            fold.seconds.push(other_seconds)
            fold.calls += other_calls

    def failed(self, failure: BlockFailure | None = None) -> None:
        """Take in an attempt that failed; *failure* describes the block if that was its last one."""
        self._failures += 1
        if failure is not None:
            self._failed += 1
            if len(self.failed_blocks) < FAILURES_KEPT:
                self.failed_blocks.append(failure)

    def skipped(self, number: int, reason: str) -> None:
        """Take in *number* blocks that need not run."""
        self.skip_reasons[reason] = self.skip_reasons.get(reason, 0) + number

    def blocks(self, *, orphaned: int) -> BlocksSummary:
        """Return the report's section about blocks; *orphaned* is the scheduler's count."""
        skipped = sum(self.skip_reasons.values())
        return BlocksSummary(
            count=self._elapsed.n + skipped,
            total=self._total,
            skipped=skipped,
            failed=self._failed,
            orphaned=orphaned,
            failures=self._failures,
            round_trip=self._elapsed.stat() if self._has_workers else Stat(),
            wall=self._metric(self._wall),
            cpu=self._metric(self._cpu),
            peak_rss=self._metric(self._peak_rss),
            io_read=self._metric(self._io_read),
            io_write=self._metric(self._io_write),
            overhead=self._metric(self._overhead),
            trend=self._trend.slope if self._tracked else None,
            gpu_util=self._gpu_util.stat() if self._gpu_util.n else None,
            gpu_mem=self._gpu_mem.stat() if self._gpu_mem.n else None,
        )

    def _metric(self, fold: Welford) -> Stat | None:
        """Nothing ran: no samples. Blocks ran and none had the figure: it was not measured."""
        return fold.stat() if self._tracked and (fold.n or not self._elapsed.n) else None

    def work(self) -> tuple[float, WorkBasis] | tuple[None, None]:
        """Return the sum of the executed blocks' time in seconds and which time that is; None if nothing ran."""
        if not self._elapsed.n:
            return None, None
        if self._wall.n == self._elapsed.n:
            return self._wall.stat().total, "wall"
        return self._elapsed.stat().total, "round trip" if self._has_workers else "call"

    def longest(self) -> float:
        """Return the time of the longest block in seconds, of the basis of :meth:`work`; 0 if nothing ran."""
        fold = self._wall if self._wall.n == self._elapsed.n else self._elapsed
        return fold.stat().max if fold.n else 0.0

    def steps(self) -> dict[str, StepSummary]:
        """Return the cost of every step, in the order in which they were first seen."""
        work, _ = self.work()
        out = {}
        for name, fold in self._steps.items():
            stat = fold.seconds.stat()
            out[name] = StepSummary(stat, fold.calls, stat.total / work if work else None)
        return out

    def report(
        self,
        *,
        run_id: str,
        task_id: str,
        started_at: float,
        ended_at: float,
        wall_seconds: float,
        outcome: str,
        tracking_path: str | None,
        orphaned: int,
        workers: WorkersSummary,
        span_seconds: float | None = None,
        place: TaskPlace | None = None,
    ) -> TaskReport:
        """Close the fold: the task's report, from this and from what the run knows besides.

        Parameters are the fields of :class:`TaskReport`; *orphaned* is the scheduler's count.
        """
        work_seconds, work_basis = self.work()
        return TaskReport(
            run_id=run_id,
            task_id=task_id,
            started_at=started_at,
            ended_at=ended_at,
            wall_seconds=wall_seconds,
            outcome=outcome,
            resource_tracking=self._tracked,
            tracking_path=tracking_path,
            blocks=self.blocks(orphaned=orphaned),
            workers=workers,
            steps=self.steps(),
            work_seconds=work_seconds,
            work_basis=work_basis,
            failed_blocks=tuple(self.failed_blocks),
            span_seconds=span_seconds,
            place=place,
        )
