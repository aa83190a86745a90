"""What engines have in common: one job at a time, closing, clients or none, and waiting on a selector."""

from __future__ import annotations

from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Self

from workspan.errors import EngineError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from types import TracebackType

    from workspan.engines.base import Job
    from workspan.engines.context import Context
    from workspan.engines.gate import Gate
    from workspan.engines.waker import Waker
    from workspan.schedule.events import Event

__all__ = ["GateEngine", "NoClients", "OneJob", "SelectorEngine", "wait_for"]

CONNECT_LOOK_SECONDS = 0.02
"""How often it is looked whether a cluster has answered."""


class OneJob:
    """An engine that runs one job at a time and is closed at the end of a ``with`` block."""

    _job: Job | None = None

    def _require_job(self) -> Job:
        if self._job is None:
            raise EngineError("the engine is not open: call open(job) first")
        return self._job

    def give_up(self) -> None:
        """Make an ``open`` that waits for somebody's answer fail: here it waits for nobody."""

    def close(self, grace: float = 0.0) -> list[Event]:
        """Give back all that the engine holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def wait_for(done: Callable[[], bool], given_up: threading.Event, seconds: float, whom: str) -> None:
    """Wait until *done*, or for some seconds; in the main thread, where signals are noticed meanwhile.

    Raises
    ------
    EngineError
        *given_up* was set before.
    """
    end = monotonic() + seconds
    while not done() and monotonic() < end:
        if given_up.wait(CONNECT_LOOK_SECONDS):
            raise EngineError(f"the run was to end before {whom} had answered")


class NoClients:
    """An engine to which nobody can connect."""

    name: str
    has_clients = False
    address = None
    refused_messages = 0

    def admit(self, guest: int, worker: int | None) -> None:
        """Refuse: nobody can join from outside.

        Raises
        ------
        EngineError
            Always; also from :meth:`context` and :meth:`context_file`.
        """
        raise self._no_clients()

    def context(self, task: int, worker: int | None = None) -> Context:
        """Refuse: there is nothing to connect to."""
        raise self._no_clients()

    def context_file(self, task: int) -> Path:
        """Refuse: there is nothing to connect to."""
        raise self._no_clients()

    def _no_clients(self) -> EngineError:
        return EngineError(f"no client can connect to the {self.name} engine: run with engine='processes'")


class SelectorEngine(OneJob):
    """An engine that waits on one selector, with what it has to tell in a list."""

    _events: list[Event]
    _waker: Waker | None = None

    def _look(self, end: float) -> None:
        """Wait for the kernel until *end* (monotonic clock) at most, and deal with what it reports."""
        raise NotImplementedError

    @property
    def _hurries(self) -> bool:
        """Whether there is something to tell, so that nothing is to be waited for."""
        return bool(self._events) or (self._waker is not None and self._waker.woken)

    def poll(self, timeout: float | None) -> list[Event]:
        """Send what is queued, then wait until something happened, at most *timeout* seconds, and return it."""
        self._require_job()
        end = inf if timeout is None else monotonic() + timeout
        while True:
            self._look(end)
            if self._hurries or monotonic() >= end:
                break
        if self._waker is not None:
            self._waker.woken = False
        events, self._events = self._events, []
        return events

    def wake(self) -> None:
        """Make the ``poll`` that waits, or else the next one, return. Safe in other threads and signal handlers."""
        waker = self._waker
        if waker is not None:
            waker.wake()


class GateEngine(SelectorEngine):
    """An engine to which clients connect, by a gate that is there while it listens."""

    _gate: Gate | None = None
    _refused = 0
    """Messages that gates of earlier runs could not accept."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that clients dial, or ``None``."""
        return None if self._gate is None else (self._gate.host, self._gate.port)

    @property
    def refused_messages(self) -> int:
        """Messages of clients that could not be accepted, in this run or the last one."""
        return self._refused if self._gate is None else self._gate.refused_messages

    def context(self, task: int, worker: int | None = None) -> Context:
        """Return what a client needs to work for task number *task*: that of *worker*, or without one a guest.

        Raises
        ------
        EngineError
            Nothing listens for clients; also for :meth:`context_file`.
        """
        return self._require_gate().context(task, worker)

    def context_file(self, task: int) -> Path:
        """Return a file with the context of guests of task number *task*, which only its owner can read."""
        return self._require_gate().context_file(task)

    def admit(self, guest: int, worker: int | None) -> None:
        """Let a guest work as *worker*, or send it away."""
        if self._gate is not None:
            self._gate.admit(guest, worker)

    def _require_gate(self) -> Gate:
        self._require_job()
        if self._gate is None:
            raise EngineError("this run does not listen for clients: ask for it with host= or with a Server")
        return self._gate

    def _close_gate(self) -> None:
        if self._gate is not None:
            self._gate.close()
            self._refused = self._gate.refused_messages
