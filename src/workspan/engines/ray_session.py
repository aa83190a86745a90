"""The connection of this program to Ray: one that is there, a new one to a running cluster, or a cluster of our own."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from workspan.engines.common import wait_for
from workspan.errors import EngineError

PROBE_SECONDS = 5.0
"""Time in which a head must take a connection before Ray, which would try for a long time, is told to connect."""
INIT_SECONDS = 60.0
"""Time in which Ray must have connected; by itself it may try for many minutes."""
SHUTDOWN_SECONDS = 15.0
"""Longest time for giving a connection back."""
OBJECT_STORE_BYTES = 80 * 2**20
"""Of a cluster of our own: results do not travel through it."""
LONGEST_FOLDER = 40
"""Characters of a folder in which Ray's sockets still have names that the system takes."""

_lock = threading.Lock()
_users = 0
"""Runs of this program that use the connection that the first of them made."""
_is_ours = False
_is_local = False
_folder: str | None = None
_address: str | None = None


class Session:
    """A connection for one run; what was made for it ends with the last run that uses it.

    Parameters
    ----------
    address
        As of ``Ray``.
    cpus
        Of a cluster of our own.
    resources
        Custom resources of it.
    given_up
        Set when nobody waits any more for the cluster to answer.

    Raises
    ------
    EngineError
        No connection can be made, with the reason and a way out.
    """

    def __init__(self, address: str | None, cpus: int, resources: dict[str, int], given_up: threading.Event) -> None:
        global _users, _is_ours, _is_local
        import ray

        self._ray = ray
        self._is_open = True
        address = address or os.environ.get("RAY_ADDRESS") or None
        with _lock:
            if ray.is_initialized():
                self._check_same(address)
            else:
                _is_local = address in (None, "local")
                if _is_local:
                    _start_local(ray, cpus, resources)
                else:
                    assert address is not None
                    _connect(ray, address, given_up)
                _is_ours = True
            _users += 1
            self.is_local = _is_ours and _is_local
            self.head = _head(ray, address)
            self.where = "on this machine" if self.is_local else _name_of(self.head, address)

    def _check_same(self, address: str | None) -> None:
        """Refuse another cluster than the one that this program is connected to: Ray allows one at a time."""
        if address in (None, "auto") or (address == "local" and _is_ours and _is_local):
            return
        assert address is not None
        head = _head(self._ray, _address)
        there = _parse(address)
        if address == _address or (head is not None and there is not None and _same(head, there)):
            return
        raise EngineError(
            f"this program is connected to another Ray already ({_name_of(head, _address)}), and can be to one at a "
            f"time: pass Ray() to use that one, or call ray.shutdown() before a run at {address}"
        )

    def close(self, *, is_lost: bool) -> None:
        """Give the connection back; the last run that uses one that we made ends it, with the cluster that we made.

        Parameters
        ----------
        is_lost
            The head is gone, and nothing will answer.
        """
        global _users, _is_ours, _is_local
        if not self._is_open:
            return
        self._is_open = False
        with _lock:
            _users -= 1
            if _users or not _is_ours:
                return
            _is_ours = _is_local = False
            _shut_down(self._ray, is_lost=is_lost)


def _start_local(ray: Any, cpus: int, resources: dict[str, int]) -> None:
    """Start a cluster on this machine, in a folder of its own: other ones are not found, and do not find it."""
    global _folder, _address
    base = tempfile.gettempdir()
    _folder = tempfile.mkdtemp(prefix="ws-ray-", dir=base if len(base) <= LONGEST_FOLDER - 16 else "/tmp")
    _address = None
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    environment = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0")}
    try:
        with _environment(environment), _quiet():
            ray.init(
                address="local",
                num_cpus=cpus,
                resources=resources or None,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=_folder,
            )
    except BaseException as error:
        _shut_down(ray, is_lost=False)
        if not isinstance(error, Exception):
            raise
        raise EngineError(f"Ray could not be started on this machine: {_explain(error)}") from error


def _connect(ray: Any, address: str, given_up: threading.Event) -> None:
    """Connect to a running cluster."""
    global _address
    head = _parse(address)
    if head is None and address.startswith("ray://"):
        raise EngineError(f"Ray({address!r}) has no port: Ray's own default for clients is 'ray://host:10001'")
    if head is not None:
        try:
            socket.create_connection(head, PROBE_SECONDS).close()
        except OSError as error:
            raise EngineError(
                f"the head of the Ray cluster at {address} does not answer: {error}; is it running, and can it be "
                "reached from here?"
            ) from error
    try:
        _initialize(ray, address, given_up)
    except EngineError:
        raise
    except Exception as error:
        _shut_down(ray, is_lost=False)
        raise EngineError(f"the Ray cluster at {address} cannot be used: {_explain(error)}") from error
    _address = address


def _initialize(ray: Any, address: str, given_up: threading.Event) -> None:
    """Let Ray connect, in a thread: where something else than a head answers it waits long, and hears no Ctrl-C."""
    failures: list[BaseException] = []
    done, nobody_waits = threading.Event(), threading.Event()

    def connect() -> None:
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            if nobody_waits.is_set():
                ray.shutdown()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    with _quiet():
        threading.Thread(target=connect, name="workspan-ray-connect", daemon=True).start()
        try:
            wait_for(done.is_set, given_up, INIT_SECONDS, f"the Ray cluster at {address}")
            if not done.is_set():
                raise EngineError(
                    f"the Ray cluster at {address} cannot be used: Ray has not connected in {INIT_SECONDS:g} s; is it "
                    "the port of a head, does the head run, and is the same version of Ray there?"
                )
        except BaseException:
            nobody_waits.set()
            if done.is_set() and not failures:
                ray.shutdown()  # it has connected just now, and not seen that nobody waits
            raise
    if failures:
        raise failures[0]


def _shut_down(ray: Any, *, is_lost: bool) -> None:
    """End our connection, and the processes of a cluster of our own, in bounded time."""
    global _folder
    if is_lost:
        _let_errors_be_seen(ray)
    with _quiet():
        # In another thread: without a head it may take a minute, and no second Ctrl-C may leave processes behind.
        ending = threading.Thread(target=_end, args=(ray,), name="workspan-ray-end", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS / 3 if is_lost else SHUTDOWN_SECONDS)
    folder, _folder = _folder, None
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _end(ray: Any) -> None:
    started: list[Any] = []
    with suppress(Exception):  # Ray kills its processes, and leaves them as zombies until this program ends
        node = ray._private.worker._global_node
        started = [info.process for infos in node.all_processes.values() for info in infos]
    with suppress(Exception):
        ray.shutdown()
    for process in started:
        with suppress(Exception):
            process.wait(SHUTDOWN_SECONDS)


def _let_errors_be_seen(ray: Any) -> None:
    """Take Ray's exception hook away: it tells the head first, which is gone, and the user would see nothing."""
    with suppress(AttributeError):
        worker = ray._private.worker
        if sys.excepthook is worker.custom_excepthook:
            sys.excepthook = worker.normal_excepthook


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray from greeting and from taking over what SIGTERM does."""
    logger = logging.getLogger("ray")
    level = logger.level
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if is_main else None
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _head(ray: Any, address: str | None) -> tuple[str, int] | None:
    """Return host and port by which the head can be reached from here."""
    if address is not None and address.startswith("ray://"):
        return _parse(address)
    with suppress(Exception):
        return _parse(ray.get_runtime_context().gcs_address)
    return None


def _parse(address: str) -> tuple[str, int] | None:
    """Return host and port of an address, or ``None`` for a word such as ``auto``."""
    host, _, port = address.rpartition("://")[2].partition("?")[0].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _same(one: tuple[str, int], other: tuple[str, int]) -> bool:
    def addresses(host: str) -> set[Any]:
        with suppress(OSError):
            return {entry[4][0] for entry in socket.getaddrinfo(host, None)}
        return {host}

    return one[1] == other[1] and bool(addresses(one[0]) & addresses(other[0]))


def _name_of(head: tuple[str, int] | None, address: str | None) -> str:
    if address not in (None, "auto"):
        return str(address)
    return "that this program is connected to" if head is None else f"{head[0]}:{head[1]}"


def _explain(error: BaseException) -> str:
    """Return what Ray says, and what to do about it where that is known."""
    text, cause = " ".join(str(error).split()), error.__cause__
    while cause is not None:
        text, cause = f"{text}: {' '.join(str(cause).split())}", cause.__cause__
    if type(error).__name__ == "AuthenticationError" or "AUTHENTICAT" in text.upper():
        return (
            f"it asks for a token, and there is none here or a wrong one: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
            f"or ~/.ray/auth_token to the cluster's token ({text[:300]})"
        )
    return f"{type(error).__name__}: {text[:500]}"
