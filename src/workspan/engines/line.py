"""The driver's end of a connection: what is queued for the peer, and what has come from it. It never blocks."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from workspan.engines.wire import Message, Opener, Sealer, ToDriver

Handler = Callable[[int], Any]
"""Called with the selector's mask when a descriptor is ready."""

_READ_BYTES = 1 << 16
_MOST_DRAINED = 1 << 22
"""Most bytes read from a connection whose peer is gone: more than a socket holds."""


class Line:
    """One connection.

    Parameters
    ----------
    incoming, outgoing
        Non-blocking sockets to read from and to write to; they may be one. Closed here.
    sealer, opener
        The connection's framing, as ``wire.driver_ends`` makes it.
    """

    __slots__ = ("_blocked", "_handler", "_selector", "incoming", "opener", "out", "outgoing", "sealer")

    def __init__(
        self, incoming: socket.socket, outgoing: socket.socket, sealer: Sealer, opener: Opener[ToDriver]
    ) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.sealer = sealer
        self.opener = opener
        self.out = bytearray()
        self._selector: selectors.BaseSelector | None = None
        self._handler: Handler | None = None
        self._blocked = False

    def watch(self, selector: selectors.BaseSelector, handler: Handler) -> None:
        """Have *handler* called when something can be read, or when what is queued can be sent."""
        self._selector = selector
        self._handler = handler
        selector.register(self.incoming, selectors.EVENT_READ, handler)

    def queue(self, message: Message) -> bool:
        """Add *message* to what :meth:`flush` sends; whether there was nothing before."""
        was_empty = not self.out
        self.out += self.sealer.seal(message)
        return was_empty

    def flush(self) -> None:
        """Send what is queued, as far as that can be done now. A connection that is broken swallows it."""
        try:
            sent = self.outgoing.send(self.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self.out)
        if sent == len(self.out):
            self.out.clear()
        else:
            del self.out[:sent]
        if bool(self.out) is not self._blocked:
            self._watch_room(bool(self.out))

    def read(self) -> bytes | None:
        """Return what has arrived, empty at the end of the connection, ``None`` if nothing is there now."""
        try:
            return self.incoming.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def read_rest(self) -> bytes:
        """Return all that a peer left behind."""
        parts = []
        size = 0
        while size < _MOST_DRAINED and (part := self.read()):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Watch nothing any more and close the sockets; again, do nothing."""
        for end in (self.incoming, self.outgoing):
            if self._selector is not None:
                with suppress(KeyError, ValueError):  # not registered, or closed before
                    self._selector.unregister(end)
            with suppress(OSError):
                end.close()

    def _watch_room(self, wanted: bool) -> None:
        """Be called, or no longer, when the socket can take more."""
        self._blocked = wanted
        if self._selector is None:
            return
        with suppress(KeyError, ValueError):  # closed
            if self.incoming is self.outgoing:
                mask = selectors.EVENT_READ | selectors.EVENT_WRITE if wanted else selectors.EVENT_READ
                self._selector.modify(self.incoming, mask, self._handler)
            elif wanted:
                self._selector.register(self.outgoing, selectors.EVENT_WRITE, self._handler)
            else:
                self._selector.unregister(self.outgoing)
