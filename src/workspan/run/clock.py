"""The run's clock: monotonic durations, and labels for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RunClock:
    """Seconds of a monotonic clock, and the epoch time that belongs to them.

    The wall clock is read once, so that stamps of one run never go backwards when it is set.

    Parameters
    ----------
    monotonic, epoch
        Sources of the time, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, epoch: Callable[[], float] = time.time) -> None:
        self.now = monotonic
        self.start = monotonic()
        self._anchor = epoch() - self.start

    def at(self, now: float) -> float:
        """Seconds since the epoch at the monotonic time *now*."""
        return self._anchor + now
