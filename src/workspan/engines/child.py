"""One worker process as its driver sees it: started, written to, signalled, reaped, and told of in words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import ExitStack, suppress
from math import inf
from typing import TYPE_CHECKING, Any

from workspan.engines import _start
from workspan.engines.payload import pack
from workspan.engines.wire import driver_ends, new_secret
from workspan.schedule.events import Ended

if TYPE_CHECKING:
    from workspan.engines.logs import WorkerLog
    from workspan.engines.wire import Message

_READ_BYTES = 1 << 16
_MOST_DRAINED = 1 << 22
"""Most bytes read from a connection after its process has died: more than a socket holds."""


class Child:
    """A worker process and the driver's ends of its connection, its payload pipe and its log.

    Parameters
    ----------
    worker
        Its number.
    settings
        What it is told at birth, besides the secret.
    function
        The packed block function.
    log
        Where its output goes; ``None``: to the driver's streams. Closed here.

    Raises
    ------
    OSError
        The process cannot be started; nothing is left of it.
    """

    def __init__(self, worker: int, settings: dict[str, Any], function: bytes, log: WorkerLog | None) -> None:
        self.worker = worker
        self.log = log
        self.held: deque[int] = deque()
        """Indices sent and not returned, in order."""
        self.greeted = False
        self.started = False
        self.stop_sent = False
        self.said_bye = False
        self.broken: str | None = None
        """Why it could not start, in its own words."""
        self.fault: str | None = None
        """Why the driver gave it up."""
        self.is_over = False
        self.due = inf
        """When :meth:`press` is to be called next, on the monotonic clock."""
        self.is_signalled = False
        self._is_reaped = False
        self.exit_code: int | None = None
        self.out = bytearray()

        secret = new_secret()
        self.sealer, self.opener = driver_ends(secret)
        with ExitStack() as ours, ExitStack() as theirs:
            # What the process inherits is closed here in any case, the driver's own ends only if it does not start.
            if log is not None:
                theirs.callback(log.close)
            self.socket, peer = socket.socketpair()
            ours.callback(self.socket.close)
            theirs.callback(peer.close)
            self.socket.setblocking(False)
            stdin, self.lifeline = os.pipe()
            ours.callback(os.close, self.lifeline)
            theirs.callback(os.close, stdin)
            os.set_blocking(self.lifeline, False)
            settings = {**settings, "worker": worker, "secret": secret, "descriptor": peer.fileno()}
            self.payload = deque(pack(settings, function))
            self._process = subprocess.Popen(
                _command(worker, settings["task_id"]),
                stdin=stdin,
                stdout=None if log is None else log.out,
                stderr=None if log is None else log.err,
                pass_fds=(peer.fileno(),),
                start_new_session=True,
            )
            self.pid = self._process.pid
            if log is not None:
                log.separate(self.pid)
            ours.pop_all()
        try:
            self.pidfd: int | None = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
            self.pidfd = None

    # -- talking ---------------------------------------------------------------------------------------------------

    def queue(self, message: Message) -> bool:
        """Add *message* to what :meth:`flush` sends; whether there was nothing before."""
        was_empty = not self.out
        self.out += self.sealer.seal(message)
        return was_empty

    def flush(self) -> bool:
        """Send what is queued; whether all of it is gone. A connection that is broken swallows it."""
        try:
            sent = self.socket.send(self.out)
        except BlockingIOError:
            return False
        except OSError:
            sent = len(self.out)
        if sent == len(self.out):
            self.out.clear()
            return True
        del self.out[:sent]
        return False

    def feed_payload(self) -> bool:
        """Write to the process's standard input what fits; whether all of it is written, or nobody reads it."""
        payload = self.payload
        try:
            while payload:
                written = os.write(self.lifeline, payload[0])
                if written == len(payload[0]):
                    payload.popleft()
                else:
                    payload[0] = payload[0][written:]
        except BlockingIOError:
            return False
        except OSError:
            payload.clear()
        return True

    def read(self) -> bytes | None:
        """Return what has arrived, empty at the end of the connection, ``None`` if nothing is there now."""
        try:
            return self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def read_rest(self) -> bytes:
        """Return all that a dead process left in the connection."""
        parts = []
        size = 0
        while size < _MOST_DRAINED and (part := self.read()):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    # -- ending ----------------------------------------------------------------------------------------------------

    def press(self, now: float, kill_after: float) -> None:
        """Signal the process and all it started: first SIGTERM, and SIGKILL *kill_after* seconds later."""
        if not self.is_signalled:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process gets the first one only when it goes on
            self.is_signalled = True
            self.due = now + kill_after
        else:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the process and all it started."""
        self._signal(signal.SIGKILL)
        self.is_signalled = True
        self.due = inf

    def reap(self) -> bool:
        """Take the exit status if the process has ended; whether it has. What it left running is killed."""
        # Before the status is taken: until then nobody else can get this number.
        if self.pidfd is not None:
            self._signal(signal.SIGKILL)
        try:
            pid, status, _ = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # SIGCHLD is ignored in this program, or somebody else took it
            self._process.returncode = 0
        else:
            if not pid:
                return False
            self.exit_code = self._process.returncode = os.waitstatus_to_exitcode(status)
        if self.pidfd is None:
            self._signal(signal.SIGKILL)
        self._is_reaped = True
        return True

    def abandon(self) -> None:
        """Give up a process that SIGKILL does not end; the kernel keeps it until it leaves its system call."""
        self.fault = "did not end after SIGKILL: it is stuck in the kernel, for example in a file system that hangs"
        self._process.returncode = -signal.SIGKILL

    def close(self) -> None:
        """Close the driver's ends; a process that still runs in the group is killed by the kernel."""
        self.is_over = True
        self.payload.clear()
        self.socket.close()
        os.close(self.lifeline)
        if self.pidfd is not None:
            os.close(self.pidfd)

    def _signal(self, number: int) -> None:
        if not self._is_reaped:  # afterwards the number may belong to somebody else
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    # -- telling ---------------------------------------------------------------------------------------------------

    def ended(self) -> Ended:
        """Return the last event of this worker."""
        clean = self.exit_code == 0 and self.said_bye and self.fault is None
        tail = "" if self.log is None else self.log.tail()
        return Ended(self.worker, clean, self._reason(), self.exit_code, tail or self.broken or "")

    def _reason(self) -> str:
        how = exit_words(self.exit_code)
        if self.broken is not None:
            last = self.broken.rstrip().rpartition("\n")[2]
            return f"could not start ({how}): {last}"
        if self.fault is not None:
            return f"{self.fault} ({how})" if self.exit_code is not None else self.fault
        if self.exit_code == 0 and self.held:
            return f"{how} in the middle of a block"
        if self.exit_code == 0 and not self.said_bye:
            return f"{how} before it was told to stop"
        return how


def exit_words(code: int | None) -> str:
    """Say how a process ended: ``"exit code 3"``, ``"killed by SIGKILL"``."""
    if code is None:
        return "ended; its exit status was lost, because this program ignores SIGCHLD or waits for all its children"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _command(worker: int, task_id: str) -> list[str]:
    # The interpreter's own flags (-W, -X, -O, -I, ...), found as multiprocessing finds them.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # The rest is read by people only, in the output of ps.
    return [sys.executable, *flags, _start.__file__, "workspan-worker", str(worker), task_id]
