"""How late the machine is, for limits on times that are to hold on a busy one as well."""

from __future__ import annotations

import threading
import time
from types import TracebackType

TICK_SECONDS = 0.01


class Lateness:
    """Measures, while it is entered, how much later than asked a thread that sleeps is woken, in all.

    On an idle machine that is next to nothing, so that a limit which is raised by it is as strict as without.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        """Time by which the thread was woken too late, so far."""
        self._begin = 0.0
        self._end: float | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        due = time.monotonic() + TICK_SECONDS
        while not self._done.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            self.seconds += now - due
            due = now + TICK_SECONDS

    def __enter__(self) -> Lateness:
        self._thread.start()
        self._begin = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end = time.monotonic()
        self._done.set()
        self._thread.join()

    @property
    def elapsed(self) -> float:
        """Seconds between entry and exit, less those by which the machine was late; negative ones are none."""
        assert self._end is not None, "still measuring"
        return max(0.0, self._end - self._begin - self.seconds)
