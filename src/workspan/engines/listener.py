"""Listens for connections and checks who they are.

A connection is a stranger until it has proved that it knows the run's secret (`login`). Until then it may say a few
bytes, within a few seconds, and learns nothing; there are never many of them, and their noise does not fill the log.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic

from workspan.engines.descriptors import SPARE, make_room
from workspan.engines.login import DRIVER, HELLO_BYTES, MAGIC, PROOF_BYTES, Login
from workspan.engines.tcp import listening_address
from workspan.errors import EngineError, WireError

logger = logging.getLogger(__name__)

LOGIN_SECONDS = 5.0
"""Time from a connection to its first message."""
MOST_STRANGERS = 64
"""Connections that have not logged in. One more waits until the oldest has had its chance, then it takes that place."""
CHANCE_SECONDS = 1.0
"""Time that a stranger has in any case: a hundred workers that start at once get in one after the other."""
LOG_SECONDS = 60.0
"""How often one machine may have a line in the log for being turned away, and a lack of descriptors."""
_MOST_ACCEPTED = 16
"""Connections accepted in a row, before workers are looked after again."""
_FLOOD_SHARE = 0.05
"""Part of the driver's time that connections may take which are good for nothing."""
_PAUSE_SECONDS = 1.0
"""How long nobody is accepted after the operating system had no descriptor left."""
_BACKLOG = 1024
_MOST_LOGGED = 1000


class Stranger:
    """A connection that has not proved anything yet."""

    __slots__ = ("address", "data", "due", "greeted", "login", "socket")

    def __init__(self, connection: socket.socket, address: str, login: Login, due: float) -> None:
        self.socket = connection
        self.address = address
        self.login = login
        self.due = due
        self.data = b""
        self.greeted = False


class Listener:
    """Accepts connections, and passes on those that know the secret.

    Parameters
    ----------
    secret, run_id
        Of the run.
    host
        Address that others dial. All interfaces are listened on unless it is loopback.
    selector
        Watches the sockets; what it is given as data are functions of the mask.
    let_in
        Called with the socket, the finished login, the peer's address and when it connected.

    Raises
    ------
    EngineError
        Nothing can listen there.
    """

    def __init__(
        self,
        secret: bytes,
        run_id: str,
        host: str,
        selector: selectors.BaseSelector,
        let_in: Callable[[socket.socket, Login, str, float], None],
    ) -> None:
        self._secret = secret
        self._run_id = run_id
        self._selector = selector
        self._admit = let_in
        self._strangers: dict[Stranger, None] = {}
        self._logged: dict[str, tuple[float, int]] = {}
        self._resume_at = inf
        self._told_at = -inf
        """When it was last logged that nobody can connect."""
        address = listening_address(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind((address, 0))
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise EngineError(f"this process cannot listen for workers ({error}): leave out host=") from error
        self.port: int = self._socket.getsockname()[1]
        selector.register(self._socket, selectors.EVENT_READ, self._accept)
        logger.info("listening for workers on %s port %d", address or "all interfaces", self.port)

    @property
    def due(self) -> float:
        """When :meth:`expire` is to be called next, on the monotonic clock."""
        first = next(iter(self._strangers), None)
        return min(self._resume_at, first.due) if first else self._resume_at

    def expire(self, now: float) -> None:
        """Close connections that did not log in in time, and listen again after a pause."""
        if now >= self._resume_at:
            self._resume()
        for stranger in [s for s in self._strangers if s.due <= now]:
            self._turn_away(stranger, f"it did not log in within {LOGIN_SECONDS:g} s")

    def close(self) -> None:
        """Close all that has not logged in, and listen no more."""
        for stranger in list(self._strangers):
            self._close_stranger(stranger)
        if self._resume_at == inf:
            self._selector.unregister(self._socket)
        self._socket.close()

    # -- the door --------------------------------------------------------------------------------------------------

    def _accept(self, mask: int) -> None:
        began = monotonic()
        useless = 0
        for _ in range(_MOST_ACCEPTED):
            oldest = next(iter(self._strangers)) if len(self._strangers) >= MOST_STRANGERS else None
            if oldest is not None and (chance_until := oldest.due - LOGIN_SECONDS + CHANCE_SECONDS) > began:
                self._pause(chance_until)
                return
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:  # no descriptor or no memory left
                if began - self._told_at >= LOG_SECONDS:
                    self._told_at = began
                    logger.warning("a worker cannot connect: %s; raise the limit of open files (ulimit -n)", error)
                self._pause(began + _PAUSE_SECONDS)
                return
            if oldest is not None:
                self._turn_away(oldest, f"{MOST_STRANGERS} others have not logged in either")
            useless += not self._take_in(connection, str(address[0]))
        if useless:
            now = monotonic()
            self._pause(now + (now - began) * useless / _MOST_ACCEPTED / _FLOOD_SHARE)

    def _take_in(self, connection: socket.socket, address: str) -> bool:
        """Make a stranger of a connection, unless it is over already; whether it was worth it."""
        connection.setblocking(False)
        try:
            data = connection.recv(HELLO_BYTES)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        if data == b"":
            connection.close()
            self._note(address, "it hung up")
            return False
        make_room(connection.fileno() + SPARE)
        stranger = Stranger(connection, address, Login(self._secret, self._run_id, DRIVER), monotonic() + LOGIN_SECONDS)
        self._strangers[stranger] = None
        self._selector.register(connection, selectors.EVENT_READ, partial(self._hear, stranger))
        if data is not None:
            self._hear(stranger, selectors.EVENT_READ, data)
        return stranger in self._strangers

    def _pause(self, until: float) -> None:
        """Accept nobody until then: they wait in the operating system's queue."""
        if self._resume_at == inf:
            self._selector.unregister(self._socket)
        self._resume_at = until

    def _resume(self) -> None:
        if self._resume_at != inf:
            self._resume_at = inf
            self._selector.register(self._socket, selectors.EVENT_READ, self._accept)

    # -- strangers -------------------------------------------------------------------------------------------------

    def _hear(self, stranger: Stranger, mask: int, data: bytes = b"") -> None:
        try:
            while stranger in self._strangers:
                if not data:
                    need = (PROOF_BYTES if stranger.greeted else HELLO_BYTES) - len(stranger.data)
                    data = stranger.socket.recv(need)
                if not data:
                    raise WireError("it hung up")
                stranger.data += data
                data = b""
                self._answer(stranger)
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._turn_away(stranger, str(error))

    def _answer(self, stranger: Stranger) -> None:
        data, login = stranger.data, stranger.login
        if stranger.greeted:
            if len(data) == PROOF_BYTES:
                login.check_proof(data)
                self._let_in(stranger)
            return
        try:
            login.take_hello(data)
        except WireError:
            if data.startswith(MAGIC):  # another version: let it say so to its user
                stranger.socket.send(login.hello())
            raise
        if len(data) == HELLO_BYTES:
            stranger.socket.send(login.hello())
            stranger.greeted = True
            stranger.data = b""

    def _let_in(self, stranger: Stranger) -> None:
        connection, login = stranger.socket, stranger.login
        connection.send(login.proof())
        is_full = len(self._strangers) >= MOST_STRANGERS
        del self._strangers[stranger]
        self._selector.unregister(connection)
        if is_full:
            self._resume()
        self._admit(connection, login, stranger.address, stranger.due - LOGIN_SECONDS)

    def _turn_away(self, stranger: Stranger, reason: str) -> None:
        self._close_stranger(stranger)
        self._note(stranger.address, reason)

    def _note(self, address: str, reason: str) -> None:
        """Log that somebody was turned away, once a minute and machine."""
        now = monotonic()
        last, count = self._logged.get(address, (-inf, 0))
        if now - last < LOG_SECONDS:
            self._logged[address] = (last, count + 1)
            return
        if len(self._logged) >= _MOST_LOGGED:
            self._logged.clear()
        self._logged[address] = (now, 0)
        more = f"; so were {count:,} more since the last line about it" if count else ""
        logger.warning("a connection from %s was turned away: %s%s", address, reason, more)

    def _close_stranger(self, stranger: Stranger) -> None:
        if self._strangers.pop(stranger, stranger) is None:  # else it was let in, and is broken all the same
            self._selector.unregister(stranger.socket)
        stranger.socket.close()
