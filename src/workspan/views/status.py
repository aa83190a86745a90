"""One task of a running pipeline in words: what every progress display shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.views.eta import time_left
from workspan.views.format import clock, count, one_line, percent_done, symbol

if TYPE_CHECKING:
    from workspan.schedule.state import TaskState


class TaskStatus:
    """The last counters of a task and the time that it took and will take.

    Parameters
    ----------
    state
        The first counters.
    now
        Seconds of a monotonic clock.
    """

    def __init__(self, state: TaskState, now: float) -> None:
        self._began_at: float | None = None
        self._ended_at: float | None = None
        self.update(state, now)

    def update(self, state: TaskState, now: float, *, final: bool = False) -> None:
        """Take in the counters of *now*; *final*: the run is over, whether or not the task is done."""
        self.state = state
        self._now = now
        began = state.ready_count or state.processing_count
        waits = not began and state.completed_count + state.failed_count == state.skipped_count
        if self._began_at is None or (waits and not self.ended):
            self._began_at = now
        if self._ended_at is None and (final or state.is_done()):
            self._ended_at = now

    @property
    def name(self) -> str:
        """The task's id, safe to print."""
        return one_line(self.state.task_id)

    @property
    def symbol(self) -> str:
        """Running, done, failed, orphaned, or ended before it was done."""
        return symbol(self.state, unfinished="…" if self.ended else "▶")

    @property
    def numbers(self) -> str:
        """Completed and all blocks: ``"1,204/1,728"``."""
        return f"{self.state.completed_count:,}/{self.state.total_block_count:,}"

    @property
    def percent(self) -> int:
        """How much is completed, rounded down."""
        return percent_done(self.state.completed_count, self.state.total_block_count)

    @property
    def details(self) -> list[str]:
        """What else there is to know, in a few words each; zeros are left out."""
        state = self.state
        # Starts less restarts: how many workers it has been given, each replaced as often as the restarts say.
        workers = state.worker_start_count - state.worker_restart_count
        found = [
            (state.skipped_count, f"{state.skipped_count:,} skipped"),
            (workers, count(workers, "worker")),
            (state.worker_restart_count, count(state.worker_restart_count, "restart")),
            (state.timeout_reclaim_count, count(state.timeout_reclaim_count, "timeout")),
            (state.failed_count, f"{state.failed_count:,} failed"),
            (state.orphaned_count, f"{state.orphaned_count:,} orphaned"),
        ]
        words = [text for number, text in found if number]
        if waits := self._waits():
            words.append(waits)
        return words

    def _waits(self) -> str:
        """For what the task waits, if nothing of it runs."""
        state = self.state
        if self.ended or state.abandoned or state.processing_count:
            return ""
        if not state.ready_count:
            return "waiting for input"
        none_left = 0 < state.worker_start_count <= state.worker_failure_count
        if none_left or state.completed_count == state.skipped_count:
            return f"waiting for workers ({state.worker_start_count} started)"
        return ""

    @property
    def ended(self) -> bool:
        """Whether the task is done, or the run is over."""
        return self._ended_at is not None

    @property
    def elapsed_seconds(self) -> float:
        """From when the task's first block could begin until now, or until its end: the start of workers counts."""
        return max(0.0, (self._now if self._ended_at is None else self._ended_at) - (self._began_at or 0.0))

    @property
    def time(self) -> str:
        """What is left (``"2:04 left (1:50 - 2:20)"``); at the end what it took (``"in 6:21"``, ``"after 6:21"``)."""
        if self.ended:
            return f"{'in' if self.state.is_done() else 'after'} {clock(self.elapsed_seconds)}"
        return time_left(self.state.left)

    @property
    def short_time(self) -> str:
        """The same without the range."""
        left = self.state.left
        return self.time if self.ended or left is None else time_left(left._replace(low=None, high=None))
