"""The worker's end of a connection: blocking, and of one process only."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from workspan.engines.wire import Result, pack_stats
from workspan.errors import WireError

if TYPE_CHECKING:
    from workspan.engines.block import Outcome
    from workspan.engines.wire import Message, Opener, Sealer, ToWorker

_READ_BYTES = 4096
_STDERR = 2


class DriverGoneError(Exception):
    """The connection has ended: there is nobody to work for.

    Parameters
    ----------
    cause
        What the operating system said; ``None``: the driver closed the connection in the ordinary way.
    """

    def __init__(self, cause: OSError | None = None) -> None:
        super().__init__(cause)
        self.cause = cause


class Connection:
    """The worker's end of the wire. It belongs to the process that made it and to none that it forks.

    Parameters
    ----------
    incoming, outgoing
        Descriptors to read from and to write to; they may be one. Closed here.
    sealer, opener
        The connection's framing, as ``wire.worker_ends`` makes it.
    read_bytes
        Most that is read at once: one packet, where the driver may take unread ones back.
    """

    def __init__(
        self,
        incoming: int,
        outgoing: int,
        sealer: Sealer,
        opener: Opener[ToWorker],
        *,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._sealer = sealer
        self._opener = opener
        self._read_bytes = read_bytes
        self._received: deque[ToWorker] = deque()
        self._pid = os.getpid()
        for descriptor in {incoming, outgoing}:
            os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=self.close)

    @property
    def is_own(self) -> bool:
        """Whether this process is the one that made the connection, and not a fork of it."""
        return os.getpid() == self._pid

    def send(self, message: Message) -> None:
        """Send *message*.

        Raises
        ------
        WireError
            It cannot be sent; others can.
        DriverGoneError
            Nobody is there to read it.
        """
        if not self.is_own:
            raise DriverGoneError
        frame = self._sealer.seal(message)
        try:
            while frame:
                frame = frame[os.write(self._outgoing, frame) :]
        except OSError as error:
            raise DriverGoneError(error) from None

    def receive(self) -> ToWorker:
        """Wait for the next message.

        Raises
        ------
        WireError
            The driver did not send this.
        DriverGoneError
            The connection has ended.
        """
        received = self._received
        while not received:
            try:
                data = os.read(self._incoming, self._read_bytes)
            except OSError as error:
                raise DriverGoneError(error) from None
            if not data:
                raise DriverGoneError
            received.extend(self._opener.feed(data))
        return received.popleft()

    def is_readable(self) -> bool:
        """Whether :meth:`receive` need not wait: there is a message, a part of one, or the end."""
        import select

        if self._received or not self.is_own:
            return True
        poll = select.poll()  # unlike select(), it knows no largest descriptor
        poll.register(self._incoming, select.POLLIN)
        return bool(poll.poll(0))

    def report(self, index: int, outcome: Outcome) -> None:
        """Send what became of block *index*.

        Raises
        ------
        DriverGoneError
            Nobody is there to read it.
        """
        stats = None if outcome.stats is None else pack_stats(outcome.stats)
        try:
            self.send(Result(index, outcome.ok, outcome.error, stats, outcome.steps, outcome.notes, outcome.final))
        except WireError as error:
            # Nothing but the names of sections and steps can be at fault: thousands of them, or names that are no text.
            log(f"the sections of block {index} are left out of the report: {error}")
            self.send(Result(index, outcome.ok, outcome.error, stats, final=outcome.final))

    def close(self) -> None:
        """Close the descriptors; what is sent afterwards finds nobody."""
        for descriptor in {self._incoming, self._outgoing}:
            with suppress(OSError):
                os.close(descriptor)
        self._incoming = self._outgoing = -1


def log(text: str) -> None:
    """Write to this process's error stream, past whatever user code made of ``sys.stderr``."""
    with suppress(OSError):
        os.write(_STDERR, f"{text}\n".encode(errors="backslashreplace"))
