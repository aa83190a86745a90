"""The inside of a fork server: a process with one thread that has loaded what workers need and forks them.

Each fork is made a child of the *driver*, not of the server: the driver is told of its end, its exit status and its use
of resources by the kernel, and it is bound to the driver's life, as if the driver had started it. Nothing of a worker
depends on the server once it is there. That takes a system call which the C library does not offer for forks, so the
two things that the library does in a fork's first moment, and that concern a process with one thread, are done here.

Like `_start`, this runs in a process that shall load little: of libraries only what the driver asks for.
"""

from __future__ import annotations

import _socket
import ctypes
import gc
import os
import signal
import sys
from contextlib import suppress
from errno import EMFILE
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from time import monotonic, sleep
from typing import Any

NAME = "workspan-fork-server"
"""What a server is called in the output of ps."""
NAME_WIDTH = 80
"""Characters of the word behind that: room for the name of a worker."""

UP = b"up"
"""The server's first word, if it can fork."""
REFUSED = b"!"
"""What its first word begins with if it cannot; the reason follows."""
FORKED, BORN, FAILED = b"f", b"b", b"x"
"""What answers begin with: the server's and the worker's own, with the worker's number; why there is none."""

ROBUST_LIST_CALLS = {"x86_64": (273, 274), "aarch64": (99, 100)}
"""Machine -> numbers of the system calls that set and get the list of robust locks."""

_STREAMS = (0, 1, 2)
_DESCRIPTORS = 5
_ANCILLARY_BYTES = 256
_THREADS_SECONDS = 0.2
_CLONE3 = 435
_CLONE_PARENT = 0x8000
_CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x200000, 0x1000000
_PR_SET_PDEATHSIG, _PR_GET_TID_ADDRESS = 1, 40
_LOOPS_OF_ARROW = "JE_ARROW_MALLOC_CONF"


class _CloneArguments(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ]


def serve(settings: dict[str, Any]) -> tuple[int, int]:
    """Be a fork server until the driver is gone. Returns in workers only, once in each.

    Parameters
    ----------
    settings
        ``channel``: the descriptor on which requests come; ``preload``: names of modules; ``driver_pid``;
        ``idle_seconds``: time without a request after which this process ends.

    Returns
    -------
    tuple of int
        The descriptors of the worker's connection. Its standard streams are in place.
    """
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, settings["channel"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forker = _Forker(settings["driver_pid"])
        _load(settings["preload"])
        os.chdir("/")  # no folder is kept from being removed
    except BaseException as error:
        channel.send(REFUSED + f"{type(error).__name__}: {error}".encode(errors="backslashreplace")[:1000])
        os._exit(1)
    gc.collect()
    gc.freeze()
    channel.send(UP)
    channel.settimeout(settings["idle_seconds"])
    while True:
        try:
            request, ancillary, _, _ = channel.recvmsg(1, _ANCILLARY_BYTES, _socket.MSG_CMSG_CLOEXEC)
        except OSError:  # in vain for so long, too
            request = b""
        if not request:
            os._exit(0)
        descriptors = [
            int.from_bytes(data[at : at + 4], sys.byteorder)
            for _, _, data in ancillary
            for at in range(0, len(data), 4)
        ]
        pid = forker.fork() if len(descriptors) == _DESCRIPTORS else -EMFILE
        if not pid:
            return _settle(channel, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            channel.send(b"%b%d" % ((FORKED, pid) if pid > 0 else (FAILED, -pid)))
        except OSError:
            os._exit(0)


def take_over(environment: dict[bytes, bytes], *words: str) -> None:
    """Make this process, fresh from the fork, what a fresh interpreter with *environment* would be.

    *words* are what people see of it in the output of ps.
    """
    with suppress(OSError, ValueError, IndexError):
        _show("\0".join(words).encode(errors="backslashreplace"))
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        _reopen(name, descriptor)
    if os.environb != environment:
        os.environb.clear()
        os.environb.update(environment)
    # What was found on the import path may have changed since: no mark of time is fine enough to tell.
    sys.path_importer_cache.clear()
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def _settle(channel: Any, descriptors: list[int]) -> tuple[int, int]:
    """Be on one's own: a session, the streams, and word to the driver that signals arrive from now on."""
    os.setsid()
    for number, descriptor in zip(_STREAMS, descriptors, strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    channel.send(b"%b%d" % (BORN, os.getpid()))
    channel.close()
    outgoing, incoming = descriptors[len(_STREAMS) :]
    return incoming, outgoing


def _reopen(name: str, descriptor: int) -> None:
    """Make the stream ``sys.<name>`` anew: the old one believes to know what kind of file it writes to."""
    old = getattr(sys, name)
    raw = FileIO(descriptor, "w", closefd=False)
    raw.name = f"<{name}>"
    buffer: Any = raw if isinstance(old.buffer, FileIO) else BufferedWriter(raw)
    new = TextIOWrapper(buffer, old.encoding, old.errors, "\n", old.line_buffering, old.write_through)
    new.mode = "w"  # type: ignore[misc]
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


def _show(text: bytes) -> None:
    """Put *text* in the place of the server's name and what follows that, in this process's arguments."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    offset = ctypes.string_at(begin, end - begin).index(NAME.encode())
    room = end - begin - offset
    ctypes.memmove(begin + offset, text[: room - 1].ljust(room, b"\0"), room)


def _load(names: tuple[str, ...]) -> None:
    """Import modules, and see that no thread is left of it: it would not be in the forks.

    Raises
    ------
    ImportError
        A module cannot be imported.
    RuntimeError
        One of them keeps a thread.
    """
    # Arrow's second allocator, which it does not use by default, gives memory back in a thread of its own.
    quiet = _LOOPS_OF_ARROW not in os.environ and os.environ.get("ARROW_DEFAULT_MEMORY_POOL") != "jemalloc"
    if quiet:
        os.environ[_LOOPS_OF_ARROW] = "background_thread:false"
    try:
        for name in names:
            import_module(name)
    finally:
        if quiet:
            del os.environ[_LOOPS_OF_ARROW]
    if _threads() > 1:
        # Libraries of linear algebra end their threads before a fork of the usual kind, and make new ones when needed.
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
    end = monotonic() + _THREADS_SECONDS
    while _threads() > 1:
        if monotonic() > end:
            raise RuntimeError(f"{_threads()} threads run when {', '.join(names)} are imported")
        sleep(0.001)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


class _Forker:
    """Forks this process into children of its own parent.

    Raises
    ------
    OSError, KeyError
        It cannot be done here, or the driver is gone.
    """

    def __init__(self, driver_pid: int) -> None:
        self._set_robust, get_robust = ROBUST_LIST_CALLS[os.uname().machine]
        # Not CDLL, which would let the interpreter go meanwhile: the fork would have to win it back.
        self._c = ctypes.PyDLL(None, use_errno=True)
        self._check(self._c.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if os.getppid() != driver_pid:
            raise ProcessLookupError("the driver is gone")
        # Where the C library keeps the number of its thread, which a fork writes anew.
        address = ctypes.c_uint64()
        self._check(self._c.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0))
        if ctypes.c_int.from_address(address.value).value != os.getpid():
            raise OSError("this C library keeps its thread's number elsewhere")
        self._arguments = _CloneArguments(
            flags=_CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID, child_tid=address.value
        )
        self._robust, self._robust_bytes = ctypes.c_void_p(), ctypes.c_size_t()
        self._check(self._c.syscall(get_robust, 0, ctypes.byref(self._robust), ctypes.byref(self._robust_bytes)))

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fork(self) -> int:
        """Return 0 in the child; here its number, or the negative number of the error."""
        python = ctypes.pythonapi
        python.PyOS_BeforeFork()
        pid: int = self._c.syscall(_CLONE3, ctypes.byref(self._arguments), ctypes.sizeof(self._arguments))
        number = ctypes.get_errno()
        if pid:
            python.PyOS_AfterFork_Parent()
            return pid if pid > 0 else -number
        self._c.syscall(self._set_robust, self._robust, self._robust_bytes)
        python.PyOS_AfterFork_Child()
        return 0
