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

from workspan.engines import _start, wire
from workspan.engines.line import Line
from workspan.engines.payload import pack
from workspan.errors import WireError
from workspan.measure.notes import bring_home
from workspan.schedule.events import Ended, Ready, Returned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.engines.fork_server import Born, ForkServer
    from workspan.engines.gate import Peer
    from workspan.engines.logs import WorkerLog
    from workspan.engines.memory import MemoryWatch
    from workspan.schedule.events import Event

_UNREAD_BYTES = 1 << 16
"""More than all grants that a worker can hold."""


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
    server
        Forks it; ``None``, or one that cannot: the process is a fresh interpreter.

    Raises
    ------
    OSError
        The process cannot be started; nothing is left of it.
    """

    def __init__(
        self,
        worker: int,
        settings: dict[str, Any],
        function: bytes,
        log: WorkerLog | None,
        server: ForkServer | None = None,
    ) -> None:
        self.worker = worker
        self.task_id: str = settings["task_id"]
        self.is_spawn: bool = settings["kind"] == "worker"
        """It runs a worker function: blocks go to the client that this function, or what it starts, makes."""
        self.peer: Peer | None = None
        """The connection of that client."""
        self.was_met = False
        """Such a client has connected."""
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
        self.peak_rss_bytes = 0
        """The most memory that it had, in bytes, since its last measured block began; known when it has ended."""

        secret = wire.new_secret()
        with ExitStack() as ours, ExitStack() as theirs:
            # What the process inherits is closed here in any case, the driver's own ends only if it does not start.
            if log is not None:
                theirs.callback(log.close)
            results, their_results = socket.socketpair()
            ours.callback(results.close)
            theirs.callback(their_results.close)
            # Of the grants both ends stay here, to read back what the worker has not read.
            grants, self._unread = socket.socketpair()
            ours.callback(grants.close)
            ours.callback(self._unread.close)
            results.setblocking(False)
            grants.setblocking(False)
            self.line = Line(results, grants, *wire.driver_ends(secret, packets=True))
            stdin, self.lifeline = os.pipe()
            ours.callback(os.close, self.lifeline)
            theirs.callback(os.close, stdin)
            os.set_blocking(self.lifeline, False)
            descriptors = (self._unread.fileno(), their_results.fileno())
            settings = {**settings, "worker": worker, "secret": secret, "descriptors": descriptors}
            if settings["cwd"] is None:  # only a process that is started here can be where no folder is
                server = None
            if server is not None:
                settings["environment"] = dict(os.environb)
            self.payload = deque(pack(settings, function))
            streams = (stdin, 1, 2) if log is None else (stdin, log.out, log.err)
            # Those of the connection in the order in which they are numbered here.
            born = None if server is None else server.fork((*streams, *reversed(descriptors)))
            self._process: Born | subprocess.Popen[bytes] = born or subprocess.Popen(
                command("workspan-worker", str(worker), settings["task_id"]),
                stdin=stdin,
                stdout=None if log is None else log.out,
                stderr=None if log is None else log.err,
                pass_fds=descriptors,
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

    def take(self, data: bytes) -> Iterator[Event]:
        """Turn bytes that the process sent into events.

        Raises
        ------
        WireError
            No worker of this run would have sent them.
        """
        for message in self.line.opener.feed(data):
            if type(message) is wire.Result:
                yield self._take_result(message)
            elif isinstance(message, wire.Started) and self.greeted and not self.started:
                self.started = True
                if not self.is_spawn:
                    yield Ready(self.worker)
            else:
                self._take_other(message)

    def _take_result(self, result: wire.Result) -> Returned:
        if not self.held or self.held[0] != result.index:
            raise WireError(f"it returned block {result.index}, which is not the one that it runs")
        self.held.popleft()
        stats = None if result.stats is None else wire.unpack_stats(result.stats)
        bring_home(result.notes)
        return Returned(self.worker, result.index, result.ok, result.error, stats, result.steps, result.final)

    def _take_other(self, message: wire.ToDriver) -> None:
        if isinstance(message, wire.Hello) and not self.greeted:
            self.greeted = True
            if message.version != wire.VERSION:
                raise WireError(
                    f"it speaks version {message.version}, this process version {wire.VERSION}: the installation was "
                    "changed while this process ran; start it again"
                )
        elif isinstance(message, wire.Broken) and self.greeted and (self.is_spawn or not self.started):
            self.broken = message.error
        elif isinstance(message, wire.Bye) and (self.is_spawn or (self.stop_sent and not self.held)):
            self.said_bye = True
        else:
            raise WireError(f"a {type(message).__name__} message came out of turn")

    @property
    def is_leaving(self) -> bool:
        """Whether it has said that it ends."""
        return self.said_bye or self.broken is not None

    def take_back(self, *, all_of_them: bool = False) -> tuple[int, ...]:
        """Read back the grants that the process has not read and return their blocks, in order.

        One read takes them all, and the process reads one at a time, so what comes back is always what was sent last.

        Parameters
        ----------
        all_of_them
            False: the process keeps the first block that it holds, begun or not.
        """
        self.line.flush()
        try:
            unread = len(self._unread.recv(_UNREAD_BYTES, socket.MSG_DONTWAIT)) // wire.PACKET_BYTES
        except BlockingIOError:
            return ()
        if self.stop_sent:
            unread -= 1  # the last packet, which holds for what stays there
        back = [self.held.pop() for _ in range(unread)]
        if back and not self.held and not all_of_them:
            self.held.append(back.pop())
            self.line.queue(wire.Grant(self.held[0]))
        if self.stop_sent:
            self.line.queue(wire.Stop())
        self.line.flush()
        return tuple(reversed(back))

    # -- ending ----------------------------------------------------------------------------------------------------

    def press(self, now: float, kill_after: float, first: int = signal.SIGTERM) -> None:
        """Signal the process and all it started: with *first*, and *kill_after* seconds later with SIGKILL."""
        if not self.is_signalled:
            self._signal(first)
            self._signal(signal.SIGCONT)  # a stopped process gets the first one only when it goes on
            self.is_signalled = True
            self.due = now + kill_after
        else:
            self.kill()

    def give_up(self, now: float, kill_after: float, *, start_seconds: float) -> None:
        """End a process that has not started in time, such that it writes where it is."""
        self.fault = (
            f"did not start within {start_seconds:g} s: the imports of its function hang or take longer; its log says "
            "where it was, Processes(start_seconds=...) gives it more time"
        )
        self.press(now, kill_after, signal.SIGABRT)

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
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # SIGCHLD is ignored in this program, or somebody else took it
            self._process.returncode = 0
        else:
            if not pid:
                return False
            self.exit_code = self._process.returncode = os.waitstatus_to_exitcode(status)
            self.peak_rss_bytes = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)
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
        self.line.close()
        self._unread.close()
        os.close(self.lifeline)
        if self.pidfd is not None:
            os.close(self.pidfd)

    def _signal(self, number: int) -> None:
        if not self._is_reaped:  # afterwards the number may belong to somebody else
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def note_memory(self, memory: MemoryWatch) -> None:
        """Say that the kernel killed the process for lack of memory, if that is so."""
        if memory.took_one():
            limit = memory.limit_bytes
            of = f" of {limit / 2**20:,.0f} MiB that all workers and this program may use" if limit is not None else ""
            self.fault = (
                f"out of memory: the kernel killed it; its peak was {self.peak_rss_bytes / 2**20:,.0f} MiB{of}: use "
                "fewer workers or smaller blocks"
            )

    # -- telling ---------------------------------------------------------------------------------------------------

    def ended(self) -> Ended:
        """Return the last event of this worker."""
        unstarted = self.take_back(all_of_them=True)
        clean = self.exit_code == 0 and (self.said_bye or self.is_spawn) and self.fault is None
        tail = "" if self.log is None else self.log.tail()
        return Ended(self.worker, clean, self._reason(), self.exit_code, tail or self.broken or "", unstarted)

    def _reason(self) -> str:
        how = exit_words(self.exit_code)
        if self.broken is not None:
            last = self.broken.rstrip().rpartition("\n")[2]
            return f"{'its function raised' if self.started else 'could not start'} ({how}): {last}"
        if self.fault is not None:
            return f"{self.fault} ({how})" if self.exit_code is not None else self.fault
        if self.exit_code == 0 and self.held:
            return f"{how} in the middle of a block"
        if self.exit_code == 0 and not self.said_bye and not self.is_spawn:
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


def command(*words: str) -> list[str]:
    """Return the command line of an interpreter like this one that runs `_start`; *words* are read by people only."""
    # The interpreter's own flags (-W, -X, -O, -I, ...), found as multiprocessing finds them.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, _start.__file__, *words]
