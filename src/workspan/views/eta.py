"""How long a task will still take, from how fast its last blocks went.

Blocks come in batches: eight workers that started together return eight blocks at almost the same moment. So speed is
taken over two batches at least. It is taken over the later half of what was executed: a slow first block, which
compiles and fills caches, is soon forgotten, and so is a speed that has changed since. Skipped blocks are no speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workspan.schedule.state import TaskState

_MOST_SAMPLES = 64


class Eta:
    """The remaining time of one task. All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []
        """When how many blocks had been executed: the last look before any was begun, then each change."""
        self._batch = 1
        self._left = 0

    @property
    def began_at(self) -> float:
        """When the task began, as far as was seen."""
        return self._samples[0][0]

    def update(self, state: TaskState, now: float) -> None:
        """Take in the counters of *now*."""
        executed = state.completed_count - state.skipped_count + state.failed_count
        self._left = state.total_block_count - state.completed_count - state.failed_count - state.orphaned_count
        self._batch = max(self._batch, state.processing_count)
        samples = self._samples
        if not samples or (not executed and not state.processing_count):
            self._samples = [(now, executed)]
        elif executed > samples[-1][1]:
            samples.append((now, executed))
            if len(samples) > _MOST_SAMPLES:
                self._samples = [samples[0], *samples[2:-1:2], samples[-1]]

    def seconds(self, now: float) -> float | None:
        """Return the time left, in seconds and never below 0; ``None`` before the first block is done."""
        if not self._left:
            return 0.0
        if len(self._samples) < 2:
            return None
        last_at, executed = self._samples[-1]
        within = executed - max(2 * self._batch, executed / 2)
        begin, before = next((s for s in reversed(self._samples) if s[1] <= within), self._samples[0])
        a_block = max(0.0, last_at - begin) / (executed - before)
        # Since the last return the blocks in flight have come closer to their end; those behind them have not.
        return max(self._left * a_block - max(0.0, now - last_at), (self._left - self._batch) * a_block, 0.0)
