"""Ends a wait on a selector from another thread or a signal handler."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress

__all__ = ["Waker"]


class Waker:
    """A socket pair of which one end is watched.

    Parameters
    ----------
    selector
        What is to be woken. Its data is a function of the mask, as everywhere in the engines.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)
        self.woken = False
        """Whether it was woken since this was last set back."""
        selector.register(self._ends[0], selectors.EVENT_READ, self._take)

    def wake(self) -> None:
        """Make the wait that goes on, or else the next one, end at once."""
        with suppress(OSError):  # full: it will be woken; closed: there is nobody to wake
            self._ends[1].send(b"\0")

    def close(self) -> None:
        """Give the sockets back; :meth:`wake` does nothing from now on."""
        for end in self._ends:
            end.close()

    def _take(self, mask: int) -> None:
        with suppress(OSError):
            while self._ends[0].recv(4096):
                pass
        self.woken = True
