"""What this process shows to viewers: one server, opened when there is first something to see."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.errors import ConfigurationError
from workspan.live import folder as folders
from workspan.live.server import Server

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    Snapshot = Callable[[], list[dict[str, Any]]]

__all__ = ["LOGGER_NAME", "listening", "publish", "register_snapshot", "start", "stop", "unregister_snapshot"]

LOGGER_NAME = "workspan.live"
FLUSH_SECONDS = 0.5
"""How long the end of the program may wait for viewers; as long again for a snapshot that does not return."""
_FORK_SECONDS = 0.2
_TRIES = 5

logger = logging.getLogger(LOGGER_NAME)


class _Unopened:
    """Stands for the server of a forked child, which opens one of its own when it has something to show."""

    @property
    def watched(self) -> bool:
        _reopen(self)
        return False

    def publish(self, record: dict[str, Any]) -> None:
        _reopen(self)


_server: Server | _Unopened | None = None
_failed = False
_snapshots: list[Snapshot] = []
_repeated: list[Snapshot] = []
_told: set[type[Exception]] = set()
_lock = threading.Lock()


def start() -> None:
    """Let viewers of this user connect to this process. Call it again as often as you like.

    Nothing is raised: if no folder can be used for the socket, one warning says why, and the program goes on unseen.
    A forked child opens a socket of its own when it first has something to show.
    """
    global _server, _failed
    if _is_settled():
        return
    with _lock:
        if _is_settled():
            return
        try:
            if not config.get("live.enabled"):
                return  # and no handlers: setting them up would come back here
            _server = _open()
        except Exception as error:
            _failed = True
            logger.warning("this program cannot be watched: %s", error)
            return
    _set_up_handlers()


def _set_up_handlers() -> None:
    try:
        if config.get("live.handlers") or "workspan.live.handler" in sys.modules:
            from workspan.live.handler import set_up

            set_up()
    except Exception as error:
        logger.warning("the log handlers for viewers cannot be set up: %s", error)


def _is_settled() -> bool:
    return _failed or isinstance(_server, Server)


def stop() -> None:
    """Send what is queued, for half a second at most, disconnect all viewers and close the socket."""
    global _server, _failed
    with _lock:
        server, _server, _failed = _server, None, False
    if isinstance(server, Server):
        server.close(FLUSH_SECONDS)
        folders.leave(server.path.parent)


def listening() -> bool:
    """Whether a viewer is connected. Costs less than a tenth of a microsecond."""
    server = _server
    return server is not None and server.watched


def publish(record: dict[str, Any]) -> None:
    """Show *record* to all viewers; without any it goes nowhere. It is only queued, and must not be changed afterwards.

    Parameters
    ----------
    record
        Plain values. ``kind`` says what it is about: ``"step"`` unless given. Of a step: ``event`` (``start``,
        ``nodata``, ``progress``, ``overdue``, ``complete``, ``failed``), ``id`` and ``parent`` (unique in the process),
        ``depth``, ``label``, ``elapsed``, ``dt_est``, ``dt_rem``, ``low``, ``high`` (seconds, or ``None``),
        ``fraction``, ``N_ref``, ``order``, ``source``. The sender adds ``v``, ``pid``, ``script`` and ``mono``, the
        monotonic clock in seconds at this moment.
    """
    server = _server
    if server is not None and server.watched:
        server.publish(record)


def register_snapshot(snapshot: Snapshot, *, repeat: bool = False) -> None:
    """Have *snapshot* called, in another thread, when a viewer needs the whole state; twice is once.

    Parameters
    ----------
    snapshot
        Returns records as for :func:`publish`, parents before children, one for each thing that goes on now.
    repeat
        Call it a few times a second too, for as long as somebody looks, and tell what it returns: for what changes too
        often to be told of each time.
    """
    if snapshot not in _snapshots:
        _snapshots.append(snapshot)
    if repeat and snapshot not in _repeated:
        _repeated.append(snapshot)


def unregister_snapshot(snapshot: Snapshot) -> None:
    """Call *snapshot* no more."""
    for snapshots in (_snapshots, _repeated):
        if snapshot in snapshots:
            snapshots.remove(snapshot)


def in_sender() -> bool:
    """Whether the calling thread is the one that sends."""
    return isinstance(_server, Server) and _server.is_own_thread()


def script_name() -> str:
    """Return the name of this program as people know it: its script, or the module that ``-m`` was given."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name.removesuffix(".__main__"))
    first = sys.argv[0] if sys.argv else ""
    return "python" if first in ("", "-c", "-") else os.path.basename(first)


def _open() -> Server:
    """Open the socket in the first folder that can be used."""
    script = script_name()
    reasons: list[str] = []
    for place in folders.places():
        try:
            listener, path = _bind(place, script)
        except (OSError, ConfigurationError) as error:
            reasons.append(str(error))
            continue
        hello = {"pid": os.getpid(), "script": script, "began": time.time()}
        server = Server(listener, path, hello, _snapshots, _repeated, report=_report)
        server.start()
        folders.sweep(place, path.name)
        return server
    raise ConfigurationError("; ".join(reasons))


def _bind(place: Path, script: str) -> tuple[socket.socket, Path]:
    for _ in range(_TRIES):
        folders.prepare(place)
        with suppress(FileNotFoundError):  # a program that ended has just removed the folder
            return folders.bind(place, script, os.getpid())
    raise ConfigurationError(f"{str(place)!r} is removed as often as it is made")


def _report(error: Exception) -> None:
    """Tell of a fault once for each type; called in the sender's thread."""
    if type(error) not in _told:
        _told.add(type(error))
        logger.warning("what viewers see is not complete: %s: %s", type(error).__name__, error)


# -- forks and the end -------------------------------------------------------------------------------------------------


def _reopen(stand_in: _Unopened) -> None:
    global _server
    if _server is stand_in:
        _server = None
        start()


def _before_fork() -> None:
    # A thread that runs while its process forks is what Python warns of from 3.12 on.
    if isinstance(_server, Server) and not _server.is_own_thread():
        _server.halt(_FORK_SECONDS)


def _after_fork_in_parent() -> None:
    if isinstance(_server, Server) and not _server.is_own_thread():
        _server.start()


def _after_fork_in_child() -> None:
    global _server, _lock, _failed
    _lock = threading.Lock()
    _failed = False
    if isinstance(_server, Server):
        _server.forget()
        _server = _Unopened()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(stop)
