"""The counters of one task, as people see them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workspan.estimate.remaining import Left


@dataclass
class TaskState:
    """Counters of one task of a run: a snapshot.

    At all times ``total = ready + processing + completed + failed + orphaned + pending``, each of them >= 0.
    """

    task_id: str = ""
    started: bool = False
    """A block was handed out or skipped, or a worker was started."""
    total_block_count: int = 0
    ready_count: int = 0
    """All inputs are there; not handed out."""
    processing_count: int = 0
    completed_count: int = 0
    """Done in this run or skipped."""
    skipped_count: int = 0
    """Completed without running: done before, masked, or found done by the check function."""
    failed_count: int = 0
    """Given up after the last retry."""
    orphaned_count: int = 0
    """Cannot run, since a block that they need failed or their task was abandoned."""
    worker_start_count: int = 0
    worker_failure_count: int = 0
    """Workers that did not end cleanly."""
    worker_restart_count: int = 0
    """Starts beyond the first *max_workers*."""
    timeout_reclaim_count: int = 0
    """Blocks taken back because their deadline had passed."""
    timeout_secs: float | None = None
    """Deadline of one attempt, in seconds; ``None``: no deadline."""
    first_worker_error: str | None = None
    last_worker_error: str | None = None
    abandoned: bool = False
    abandon_reason: str | None = None
    left: Left | None = field(default=None, compare=False, repr=False)
    """What the rest will take, as far as a display has asked for it; ``None``: not known."""

    @property
    def pending_count(self) -> int:
        """Blocks that wait for others."""
        return (
            self.total_block_count
            - self.ready_count
            - self.processing_count
            - self.completed_count
            - self.failed_count
            - self.orphaned_count
        )

    def is_done(self) -> bool:
        """Whether every block is completed, failed or orphaned."""
        return self.completed_count + self.failed_count + self.orphaned_count == self.total_block_count

    def __str__(self) -> str:
        lines = [f"{f.name}: {getattr(self, f.name)}" for f in fields(self) if f.repr]
        return "\n".join([*lines, f"pending_count: {self.pending_count}"])
