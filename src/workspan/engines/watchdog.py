"""Ends this process when a block is not finished in time, whatever the process is doing."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from math import inf
from time import monotonic

EXIT_CODE = 87
"""Exit code of a worker that ended itself because its block was over its deadline."""
BACKSTOP_SECONDS = 1.0
"""How much later the process is killed by SIGALRM if it does not let the watchdog's thread run."""
_STDERR = 2
_LONGEST_SECONDS = 1e6
"""A longer deadline is left to the run, which has one of its own."""


class Watchdog:
    """A deadline that is moved from block to block.

    A thread watches it. If a C call keeps the interpreter from running threads, the kernel's alarm clock ends the
    process a little later, by SIGALRM, after ``faulthandler`` has written where every thread was. The alarm clock is
    left alone in a program that handles SIGALRM itself. A process that is forked meanwhile has no deadline.

    Parameters
    ----------
    end
        Ends the process with an exit code.
    """

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        self._end = end
        self._changed = threading.Condition()
        self._deadline = inf
        self._waits_until = inf
        self._text = ""
        self._thread: threading.Thread | None = None
        self._has_alarm = False
        self._is_registered = False
        self._is_closed = False

    def arm(self, seconds: float | None, what: str) -> None:
        """Give the process *seconds* from now on (``None``: any time) for *what*, which is named in its last words."""
        if seconds is None or seconds > _LONGEST_SECONDS:
            return
        with self._changed:
            self._text = f"{what} was not finished within its timeout of {seconds:g} s: this worker ends\n"
            self._deadline = monotonic() + seconds
            if self._thread is None:
                self._start()
            elif self._deadline < self._waits_until:
                self._changed.notify()
        self._has_alarm = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, seconds + BACKSTOP_SECONDS)

    def disarm(self) -> None:
        """Let the process live."""
        self._deadline = inf
        if self._has_alarm:
            self._has_alarm = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _start(self) -> None:
        # In C, without the interpreter: the threads' stacks are written, then the signal does what it does by default.
        faulthandler.register(signal.SIGALRM, file=_STDERR, all_threads=True, chain=True)
        if not self._is_registered:
            self._is_registered = True
            os.register_at_fork(after_in_child=self._forget)
        self._thread = threading.Thread(target=self._watch, name="workspan-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the process live, and end the thread."""
        self.disarm()
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._deadline = self._waits_until = inf
        self._thread = None
        self._has_alarm = False

    def _watch(self) -> None:
        with self._changed:
            while (left := self._deadline - monotonic()) > 0:
                if self._is_closed:  # maybe before this thread was running
                    return
                self._waits_until = self._deadline
                self._changed.wait(None if left == inf else left)
            os.write(_STDERR, self._text.encode(errors="backslashreplace"))
            self._end(EXIT_CODE)
