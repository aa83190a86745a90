"""TCP for workers: which address they dial, and how a connection finds out that its other end is gone."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from ipaddress import ip_address
from threading import Thread

logger = logging.getLogger(__name__)

HOST_VARIABLES = ("WORKSPAN_HOST", "DAISY_HOST")

KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES = 30, 10, 3
"""Seconds of silence before the kernel asks, seconds between its questions, and how many may stay unanswered."""
USER_TIMEOUT_MS = 60_000
"""How long sent data may stay unacknowledged."""
_PROBE_SECONDS = 2.0
_LOOPBACK = "127.0.0.1"


def tune(connection: socket.socket) -> None:
    """Send small messages at once, and notice within a minute that the other machine has vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE),  # macOS
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def host_to_dial(host: str | None, *, from_outside: bool) -> str:
    """Return the address under which workers dial this process.

    Parameters
    ----------
    host
        What the caller asks for, or ``None``.
    from_outside
        Workers may be on other machines, although nobody asked for an address.
    """
    return asked_host(host) or (detected_host() if from_outside else _LOOPBACK)


def asked_host(host: str | None) -> str | None:
    """Return the address that the caller or the environment asks for; ``None``: none."""
    for value in (host, *(os.environ.get(name) for name in HOST_VARIABLES)):
        if value:
            return value
    return None


def detected_host() -> str:
    """Return an address of this machine that other machines can dial.

    The first one of: the IPv4 address of the machine's own name, the source address of the default route. Each is tried
    by connecting to it. If there is none, it is loopback, with a warning.
    """
    for find in (_address_of_own_name, _source_of_default_route):
        with suppress(OSError, ValueError):
            address = find()
            if not is_loopback(address) and answers(address):
                return address
    logger.warning(
        "no address of this machine was found that others can dial: workers on this machine only, at %s; name one with "
        "host= or %s",
        _LOOPBACK,
        HOST_VARIABLES[0],
    )
    return _LOOPBACK


def is_loopback(host: str) -> bool:
    """Whether only this machine can dial *host*."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listening_address(host: str) -> str:
    """Return what to listen on so that *host* can be dialled: loopback for loopback, else all interfaces."""
    if not is_loopback(host):
        return ""
    return _LOOPBACK if host == "localhost" else host


def answers(address: str) -> bool:
    """Whether a listener on *address* can be dialled from here and hears what is said."""
    word = os.urandom(8)
    with socket.socket() as listener, socket.socket() as caller:
        for end in (listener, caller):
            end.settimeout(_PROBE_SECONDS)
        try:
            listener.bind((address, 0))
            listener.listen(1)
            echo = Thread(target=_echo, args=(listener,), daemon=True)
            echo.start()
            caller.connect(listener.getsockname())
            caller.sendall(word)
            heard = caller.recv(len(word))
            echo.join(_PROBE_SECONDS)
        except OSError:
            return False
    return heard == word


def _echo(listener: socket.socket) -> None:
    with suppress(OSError):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_PROBE_SECONDS)
            connection.sendall(connection.recv(64))


def _address_of_own_name() -> str:
    return socket.gethostbyname(socket.gethostname())


def _source_of_default_route() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # a documentation address: the kernel picks a route, nothing is sent
        return str(probe.getsockname()[0])
