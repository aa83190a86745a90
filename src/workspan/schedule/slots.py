"""Workers as the dispatcher sees them, and what it keeps of each task besides its blocks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workspan.schedule.ledger import TaskBlocks

MOST_AHEAD = 8
"""Most blocks that one worker holds."""

WIRE_SHARE = 0.02
"""Part of a block's time from which on it matters how long a message of a slow wire takes."""


@dataclass(slots=True)
class Slot:
    """One worker, from the decision to start it until its end."""

    worker: int
    task: int
    held: deque[int] = field(default_factory=deque)
    """Blocks granted and not returned; the first one runs."""
    is_guest: bool = False
    """The dispatcher did not start it: it costs no resources and no start."""
    on_demand: bool = False
    """It asks for each block."""
    has_asked: bool = False
    ready: bool = False
    parked: bool = False
    """It asked for a block when none was ready."""
    stopping: bool = False
    gone: bool = False
    """Its end has been reported and is about to be handled: what it were granted now would never begin."""
    retired: bool = False
    """Taken out of service; it counts as dead although its process may still be there."""
    free_since: float = 0.0
    """When it returned its last block, or first asked."""
    began_at: float = 0.0
    """When the block that it runs began: the later of its grant and the return before it."""
    deadline: float = inf


@dataclass(slots=True)
class TaskSlots:
    """What the dispatcher knows of one task besides its blocks."""

    blocks: TaskBlocks
    live: int = 0
    guests: int = 0
    starts: int = 0
    parked: deque[Slot] = field(default_factory=deque)
    ahead: int = 1
    """How many blocks a worker may hold."""
    mean_seconds: float | None = None
    """Recent time a block, exponentially weighted."""

    @property
    def starts_left(self) -> int:
        """How many workers may still be started."""
        spec = self.blocks.spec
        return spec.max_workers + spec.max_worker_restarts - self.starts

    def learn(self, seconds: float, ahead_seconds: float, wire_seconds: float) -> None:
        """Keep a running mean of the time a block, and set from it how far grants may run ahead.

        Parameters
        ----------
        seconds
            What the last block took.
        ahead_seconds
            How much work grants run ahead by, where blocks take no longer.
        wire_seconds
            How long a message takes, where that is worth hiding behind longer blocks too.
        """
        mean = seconds if self.mean_seconds is None else self.mean_seconds + 0.2 * (seconds - self.mean_seconds)
        self.mean_seconds = mean
        if mean <= ahead_seconds:
            self.ahead = min(MOST_AHEAD, 1 + int((ahead_seconds + wire_seconds) / max(mean, 1e-6)))
        elif wire_seconds > WIRE_SHARE * mean:
            self.ahead = min(MOST_AHEAD, 2 + int(wire_seconds / mean))
        else:
            self.ahead = 1
