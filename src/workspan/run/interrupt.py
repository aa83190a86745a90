"""Ctrl-C and SIGTERM during a run."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

_A = TypeVar("_A")
_R = TypeVar("_R")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Catches SIGINT and SIGTERM while a run is on; outside the main thread it touches nothing.

    Parameters
    ----------
    wake
        Called from the signal handler, so that a loop which waits notices at once.

    Attributes
    ----------
    received
        The first signal, or ``None``.
    count
        How many came: the second one means at once.
    armed
        Set while a block runs in this thread: then the signal raises ``KeyboardInterrupt`` in it. Elsewhere it only
        leaves a note, so that it cannot tear what is being recorded.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.received: signal.Signals | None = None
        self.count = 0
        self._wake = wake
        self.armed = False
        self._previous: dict[signal.Signals, Any] = {}
        self._own: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # A handler that ignores the signal was chosen on purpose (nohup and the like): leave it.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    handler = self._previous[number] = signal.signal(number, self._handle)
                    if callable(handler) and handler is not signal.default_int_handler:
                        self._own[number] = handler
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous.clear()

    def call_previous(self) -> None:
        """Hand the signal that came on to the program's own handler, if it has one besides Python's."""
        if self.received is not None and self.received in self._own:
            self._own[self.received](self.received, None)

    def around(self, function: Callable[[_A], _R]) -> Callable[[_A], _R]:
        """Return *function* such that a signal ends it: ``KeyboardInterrupt`` is raised in it, or before it."""

        def interruptible(argument: _A) -> _R:
            if self.received is not None:
                raise KeyboardInterrupt
            self.armed = True
            try:
                return function(argument)
            finally:
                self.armed = False

        return interruptible

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        self.count += 1
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        self._wake()
