"""What an engine tells the scheduler, what the scheduler tells an engine, and what it tells whoever keeps the record.

Events and decisions are plain values: an engine knows no rules, the scheduler knows no processes. All times are
seconds of the driver's monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from workspan.measure.profile import BlockStats  # at run time: msgspec resolves the field types

if TYPE_CHECKING:
    from collections.abc import Sequence

Exit = Literal["clean", "error", "timeout", "interrupted"]
"""How a worker ended: by itself, badly, retired after a block deadline, or alive at an abort."""

Cause = Literal["error", "lost", "timeout"]
"""Why an attempt failed: reported by the worker, lost with it, or over its deadline."""

SkipReason = Literal["done", "mask", "check"]
"""Why a block was not run: its done flag, the task's skip mask, the task's check function."""

Steps = dict[str, tuple[float, int]]
"""Section or step name -> (self seconds, calls)."""


# -- events: from an engine ------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The worker can take a block."""

    worker: int
    on_demand: bool = False
    """It takes one block and asks again for the next one, with another of these; it is never granted one ahead. Else
    this event comes once, and each result is a request."""


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The worker has finished a block it was sent, and can take the next one."""

    worker: int
    index: int
    ok: bool
    error: str | None = None
    """Text of the failure, the traceback from the user's first line on; ``None`` when *ok*."""
    stats: BlockStats | None = None
    """What the block cost, if it was measured."""
    steps: Steps | None = None
    """Self time of the sections that the block opened, if any."""
    final: bool = False
    """It failed, and another attempt would fail in the same way."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The worker is gone; what it held is lost. The last event of a worker."""

    worker: int
    clean: bool
    """It left by itself with exit code 0 and held nothing."""
    reason: str
    """How it ended, in words: ``"exit code 1"``, ``"killed by SIGKILL"``."""
    exit_code: int | None = None
    stderr_tail: str = ""
    """The last lines that it wrote to its error stream."""
    unstarted: tuple[int, ...] = ()
    """Blocks that it was sent and never began: no attempts."""
    withdrawn: bool = False
    """Its place was taken away in good order (a cluster shrinks, or gives the place to another task): the start that
    replaces it is not counted against the task."""


class Dropped(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The worker's connection is gone, though the call that started it goes on: what it held is lost. It may return."""

    worker: int
    reason: str


class TakenBack(msgspec.Struct, frozen=True, tag=True):
    """The answer to :class:`TakeBack`: blocks that the worker had not begun and will not run."""

    worker: int
    indices: tuple[int, ...]


class Joined(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Somebody from outside, whom the scheduler did not start, wants to work for a task."""

    guest: int
    """The engine's number for it, until it is admitted."""
    task: int


class Checked(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An answer of a task's check function has come in; it says nothing of a worker."""

    task: int


Event = Ready | Returned | Ended | Dropped | TakenBack | Joined | Checked


# -- decisions: to an engine -----------------------------------------------------------------------------------------


class StartWorker(msgspec.Struct, frozen=True, gc=False):
    """Start a worker for a task."""

    worker: int
    task: int


class Send(msgspec.Struct, frozen=True, gc=False):
    """Give a block to a worker."""

    worker: int
    index: int


class StopWorker(msgspec.Struct, frozen=True, gc=False):
    """Let a worker end after what it holds."""

    worker: int


class KillWorker(msgspec.Struct, frozen=True, gc=False):
    """End a worker now."""

    worker: int
    why: str


class TakeBack(msgspec.Struct, frozen=True, gc=False):
    """Take back from a worker the blocks that it has not begun."""

    worker: int


class Admit(msgspec.Struct, frozen=True, gc=False):
    """Let a guest work, under the number of a worker; without one, send it away."""

    guest: int
    worker: int | None


Decision = StartWorker | Send | StopWorker | KillWorker | TakeBack | Admit


# -- the record ------------------------------------------------------------------------------------------------------


class Recorder(Protocol):
    """Keeps the record of a run.

    It is called by the scheduler before the decisions that follow from an event are acted on, so that what was
    acknowledged is always recorded.
    """

    def worker_started(self, worker: int, task: int, now: float) -> None:
        """Note that a worker was asked for."""

    def guest_joined(self, worker: int, task: int) -> None:
        """Note a worker that the scheduler did not start; nothing but its blocks is reported of it."""

    def worker_ready(self, worker: int, now: float) -> None:
        """Note the first request of a worker: its start-up is over."""

    def block_sent(self, task: int, index: int, worker: int, sent_at: float, idle_seconds: float) -> None:
        """Note that a block began on a worker which had waited *idle_seconds* for it.

        A block that was granted ahead begins when the worker returned the one before.
        """

    def block_granted(self, task: int, index: int, worker: int) -> None:
        """Note that a block is about to leave for a worker."""

    def block_given_back(self, task: int, index: int) -> None:
        """Note that a block is no longer granted to anybody, although it was not attempted or its run ends."""

    def block_done(
        self,
        task: int,
        index: int,
        worker: int,
        sent_at: float,
        returned_at: float,
        stats: BlockStats | None,
        steps: Steps | None,
    ) -> None:
        """Record a completed block."""

    def attempt_failed(
        self,
        task: int,
        index: int,
        worker: int,
        sent_at: float,
        returned_at: float | None,
        cause: Cause,
        error: str,
        final: bool,
    ) -> None:
        """Record a failed attempt; *returned_at* is ``None`` if nothing came back."""

    def blocks_skipped(self, task: int, indices: Sequence[int] | Any, reason: SkipReason) -> None:
        """Record blocks that were not run; *indices* is a sequence or an integer array."""

    def worker_stopping(self, worker: int, now: float) -> None:
        """Note that a worker was told to end."""

    def worker_ended(self, worker: int, now: float, exit: Exit, text: str) -> None:
        """Note that a worker is gone."""
