"""Keeps operators that run side by side from running ahead of each other, and tells what deciding that costs.

A result lies on disk until the next operator has used it. While there are enough, the workers of the operator that
makes them are held, by a file that they look at before each task. They are held only while the next operator has a live
worker: whatever happens to it (it died, it waits for resources that held workers have), they go on, and no run stands
still.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workspan.dataset.task import HOLD
from workspan.schedule.events import Ended

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workspan.dataset.figures import Tally
    from workspan.dataset.inputs import Inputs
    from workspan.engines.base import Engine
    from workspan.schedule.events import Event

__all__ = ["Hold", "Pace", "Paced"]


class Hold:
    """A file that is there while workers are to wait.

    Parameters
    ----------
    folder
        That of their operator.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / HOLD
        self._since: float | None = None
        """Since when they wait; ``None``: they do not."""
        self._before = 0.0

    def set(self, wanted: bool) -> None:
        """Let them wait, or go on."""
        if wanted and self._since is None:
            self._file.touch()
            self._since = time.perf_counter()
        elif self._since is not None and not wanted:
            self._file.unlink(missing_ok=True)
            self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """For how long they have been told to wait."""
        since = self._since
        return self._before + (0.0 if since is None else time.perf_counter() - since)


class Pace:
    """Counts the results that lie between operators.

    Parameters
    ----------
    folders
        Of the operators, in order.
    most
        Results of each but the last that may lie there before its workers are held; the last one's are the consumer's
        affair.
    """

    def __init__(self, folders: Sequence[Path], most: Sequence[float]) -> None:
        self._holds = [Hold(folder) for folder in folders]
        self._most = list(most)
        self._waiting = [0] * len(folders)
        self.longest = [0] * len(folders)
        """Most results of each operator that ever lay there."""

    def came(self, number: int) -> None:
        """Take note of a result of an operator."""
        self._waiting[number] += 1
        self.longest[number] = max(self.longest[number], self._waiting[number])

    def went(self, number: int) -> None:
        """Take note of a result of an operator that has been used, or that nobody can use any more."""
        self._waiting[number] -= 1

    def waiting(self, number: int) -> int:
        """Return how many results of an operator the next one has not used yet; none of the last one."""
        return self._waiting[number] if number < len(self._waiting) - 1 else 0

    def held(self, number: int) -> float:
        """Return for how long the workers of an operator have been told to wait, in seconds."""
        return self._holds[number].seconds

    def settle(self, live: Sequence[int]) -> None:
        """Hold those who are ahead, and let go the others.

        Parameters
        ----------
        live
            Live workers of each operator.
        """
        for number, hold in enumerate(self._holds[:-1]):
            hold.set(self._waiting[number] >= self._most[number] and live[number + 1] > 0)

    def close(self) -> None:
        """Hold nobody any more."""
        self.settle([0] * len(self._holds))


class Paced:
    """An engine whose workers are counted, so that they can be paced, and between whose polls the time is taken.

    What workers read from files of the driver is written after they were started, and before they are sent the task.

    Parameters
    ----------
    engine
        Does the work.
    pace
        Is told how many workers are live.
    scheduling
        Takes the seconds from the end of one poll to the next: what the driver does about the events of one, but for
        writing inputs.
    inputs
        Of the first operator.
    """

    def __init__(self, engine: Engine, pace: Pace, scheduling: Tally, inputs: Inputs) -> None:
        self._engine, self._pace, self._scheduling, self._inputs = engine, pace, scheduling, inputs
        self._written = 0.0
        self._goes_on = True
        self._live: list[int] = []
        self._task_of: dict[int, int] = {}
        self._left: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def open(self, job: Any) -> None:
        """Get ready to run."""
        self._live = [0] * len(job.tasks)
        self._engine.open(job)

    def start_worker(self, worker: int, task: int) -> None:
        """Start a worker."""
        self._task_of[worker] = task
        self._live[task] += 1
        self._engine.start_worker(worker, task)

    def send(self, worker: int, index: int) -> None:
        """Send a task, when what it reads is there."""
        if self._inputs and self._task_of.get(worker, 0) == 0:
            self._inputs.write_for(index)
        self._engine.send(worker, index)

    def stop_worker(self, worker: int) -> None:
        """Let a worker end: the run ends, or there is less to do than workers, so nothing more is written ahead."""
        self._goes_on = False
        self._engine.stop_worker(worker)

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait until something happened and return it."""
        self._pace.settle(self._live)
        if self._left is not None:
            self._scheduling.add(time.perf_counter() - self._left - (self._inputs.seconds - self._written))
        if self._inputs and self._goes_on:
            events = self._engine.poll(0)
            if not events:
                self._inputs.write_next()
        else:
            events = self._engine.poll(timeout)
        self._left, self._written = time.perf_counter(), self._inputs.seconds
        for event in events:
            if isinstance(event, Ended) and (task := self._task_of.pop(event.worker, None)) is not None:
                self._live[task] -= 1
        return events
