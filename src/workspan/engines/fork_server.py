"""Fork servers as their driver sees them: started, asked for workers, and done without where there is none.

A fork server is a process of one thread that has loaded what workers need (`fork_home`). It is started as a fresh
interpreter, so nothing of the driver is in it, and it has loaded no code of the user's unless it was asked to. A worker
that it forks is a child of the driver and needs it no more.

A server is used as long as the driver is what it was when the server started: environment variables that libraries
read when they are loaded, limits, priority, processors, user, control group. Otherwise another one is started. All
other variables, the working folder and the import path are the driver's at the moment of each fork.
"""

from __future__ import annotations

import atexit
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from errno import EBADF
from typing import TYPE_CHECKING, Any

from workspan.engines.child import command
from workspan.engines.fork_home import BORN, FAILED, FORKED, NAME, NAME_WIDTH, REFUSED, ROBUST_LIST_CALLS, UP
from workspan.engines.payload import import_path, pack

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

__all__ = ["Born", "ForkServer", "server_for", "stop_all"]

logger = logging.getLogger(__name__)

BOOT_SECONDS = 10.0
"""Longest time in which a run waits for a server that starts."""
REPLY_SECONDS = 5.0
"""Time in which a server must have forked."""
IDLE_SECONDS = 900.0
"""Time without a request after which a server ends."""
STUCK_SECONDS = 5.0
"""Time in which SIGKILL must have worked."""
MOST_SERVERS = 3
"""Kept by one driver; the one that was not used for longest goes first."""

PRELOAD = ("workspan.engines.worker", "workspan.engines.context", "cloudpickle", "faulthandler", "logging")
"""Loaded by every server: what each worker loads, or loads sooner or later."""

READ_AT_LOAD = (
    "PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "TMP", "TEMP", "HOME", "WORKSPAN_PURE_PYTHON",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "NPY_", "NUMPY_",
    "ARROW_", "JE_", "MIMALLOC_", "ACERO_", "PARQUET_", "AWS_", "ZARR_", "NUMCODECS_", "BLOSC_", "COVERAGE_",
)  # fmt: skip
"""Beginnings of the names of variables that the interpreter, the C library or a preloaded library reads only once."""

MARKS = (
    b"Umask:",
    b"SigIgn:",
    b"Uid:",
    b"Gid:",
    b"Groups:",
    b"Cap",
    b"NoNewPrivs:",
    b"Cpus_allowed:",
    b"Mems_allowed:",
)
"""Beginnings of the lines of ``/proc/thread-self/status`` that tell what is handed down to a child."""

_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


class Born:
    """A process that a server forked, as far as ``subprocess.Popen`` is needed for one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


class ForkServer:
    """One server. Safe in all threads of its driver.

    Parameters
    ----------
    preload
        Names of the modules that it loads, besides :data:`PRELOAD`.

    Raises
    ------
    OSError
        It cannot be started.
    """

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._is_up = False
        self.is_refused = False
        """It has said that it can fork nothing here: another one would say the same."""
        self._is_closed = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "sys_path": import_path(),
            "preload": (*PRELOAD, *preload),
            "channel": theirs.fileno(),
            "driver_pid": os.getpid(),
            "idle_seconds": IDLE_SECONDS,
        }
        try:
            stdin = os.memfd_create("workspan")
            try:
                for part in pack(settings, b""):
                    os.write(stdin, part)
                os.lseek(stdin, 0, os.SEEK_SET)
                self._process = subprocess.Popen(
                    command(NAME, f"of {os.getpid()}".ljust(NAME_WIDTH)),
                    stdin=stdin,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            finally:
                os.close(stdin)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it forks no more, and another one would be of use."""
        return not self.is_refused and (self._is_closed or self._process.poll() is not None)

    def wait(self, seconds: float = BOOT_SECONDS) -> bool:
        """Wait until the server is up, at most so long; whether it is."""
        with self._lock:
            if self._is_up or self._is_closed:
                return self._is_up
            word = b""
            try:
                self._channel.settimeout(seconds)
                word = self._channel.recv(2000)
            except (TimeoutError, BlockingIOError):
                return False
            except OSError as error:
                logger.info("fork server %d: %s", self.pid, error)
            self._is_up = word == UP
            if not self._is_up:
                self.is_refused = word.startswith(REFUSED)
                if self.is_refused:
                    reason = word[len(REFUSED) :].decode(errors="replace")
                    logger.warning("no fork server, workers are started one by one: %s", reason)
                self._close()
            return self._is_up

    def fork(self, descriptors: Sequence[int]) -> Born | None:
        """Fork a worker.

        Parameters
        ----------
        descriptors
            Its three standard streams and those that it writes to and reads from.

        Returns
        -------
        Born or None
            A child of this process, which leads a session of its own; ``None`` if there is none.
        """
        if not self.wait(0.0):
            return None
        with self._lock:
            if self._is_closed:
                return None
            pid, words = 0, set[bytes]()
            try:
                self._channel.settimeout(REPLY_SECONDS)
                socket.send_fds(self._channel, [b"f"], list(descriptors))
                while words != {FORKED, BORN} and (word := self._channel.recv(100)):
                    if word[:1] == FAILED:
                        logger.info("fork server %d cannot fork: %s", self.pid, os.strerror(int(word[1:])))
                        return None
                    words.add(word[:1])
                    pid = int(word[1:])
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno == EBADF:
                    return None  # one of this program's streams is closed, and so must the worker's be
                logger.info("fork server %d does not answer: %s", self.pid, error)
            except BaseException:
                self._close()  # what it still says would be taken for the answer to the next request
                raise
            if words != {FORKED, BORN}:
                self._close()
            if BORN in words:
                return Born(pid)
            if pid:
                _end(pid)
            return None

    def close(self) -> None:
        """End the server; what it forked goes on."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._is_up = False
            self._channel.close()
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STUCK_SECONDS)

    def forget(self) -> None:
        """Close what a forked copy of the driver has of the server."""
        self._lock = threading.Lock()
        self._is_closed = True
        self._is_up = False
        self._channel.close()
        self._process.returncode = 0  # it is no child of this process


# -- the servers of this process -------------------------------------------------------------------------------------

_servers: dict[Hashable, ForkServer] = {}
_servers_lock = threading.Lock()
_is_registered = False


def is_possible() -> bool:
    """Whether servers are known to work on such a system; each of them looks whether it does on this very one."""
    return sys.platform == "linux" and os.uname().machine in ROBUST_LIST_CALLS


def server_for(functions: Iterable[Any], preload: Sequence[str] = ()) -> ForkServer | None:
    """Return the server for the functions of a run: one that is there, or a new one that is not up yet.

    Parameters
    ----------
    functions
        Block functions. One of Workspan's own may have ``worker_modules``, the names of what it makes its worker load.
    preload
        Names of more modules, the user's own for example: servers do not see later changes of them.

    Returns
    -------
    ForkServer or None
        ``None`` where there can be no server.
    """
    global _is_registered
    if not is_possible():
        return None
    modules = [*preload]
    for function in functions:
        if type(function).__module__.startswith("workspan."):
            modules += getattr(function, "worker_modules", ())
    names = tuple(dict.fromkeys(modules))
    try:
        surroundings = (names, _surroundings(everything=bool(preload)))
        with _servers_lock:
            if not _is_registered:
                _is_registered = True
                atexit.register(stop_all)
                os.register_at_fork(after_in_child=_forget)
            for key in [key for key, server in _servers.items() if server.is_over]:
                _servers.pop(key).close()
            # The kernel ties a server, and what it forks, to the thread that started it. One of the main thread
            # lives as long as the program.
            here = threading.get_native_id()
            key = next((key for key in ((os.getpid(), surroundings), (here, surroundings)) if key in _servers), None)
            server = ForkServer(names) if key is None else _servers.pop(key)
            _servers[here if key is None else key[0], surroundings] = server
            while len(_servers) > MOST_SERVERS:
                _servers.pop(next(iter(_servers))).close()
    except OSError as error:
        logger.info("no fork server can be started: %s", error)
        return None
    return server


def stop_all() -> None:
    """End all fork servers of this process. The next run that wants one starts another."""
    with _servers_lock:
        while _servers:
            _servers.popitem()[1].close()


def _forget() -> None:
    global _servers_lock
    _servers_lock = threading.Lock()
    while _servers:
        _servers.popitem()[1].forget()


def _surroundings(*, everything: bool) -> Hashable:
    """Return what a process has of the one that starts it and a fork of an older one would not have."""
    environment = [item for item in os.environ.items() if everything or item[0].startswith(READ_AT_LOAD)]
    with open("/proc/thread-self/status", "rb") as status:
        marks = [line for line in status if line.startswith(MARKS)]
    for name in ("cgroup", "oom_score_adj"):
        with suppress(OSError), open(f"/proc/self/{name}", "rb") as file:
            marks.append(file.read())
    return (
        tuple(command()),
        tuple(sorted(environment)),
        tuple(marks),
        tuple(resource.getrlimit(limit) for limit in _LIMITS),
        os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
    )


def _end(pid: int) -> None:
    """End a child that was forked and is of no use."""
    with suppress(OSError):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
