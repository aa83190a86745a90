"""The life of a worker process: take an index, run the block, say what became of it, until told to stop.

A worker imports as little as it can: `measure`, the block and the wire. It never sees a rule of the scheduler, and it
does not outlive its driver: the kernel ends it, with all that it started, when the driver is gone (Linux), and the end
of the connection does it in any case.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from workspan.engines.block import run_block
from workspan.engines.failure import failure_text
from workspan.engines.payload import load_function, load_layout, restore_logging
from workspan.engines.wire import (
    VERSION,
    Broken,
    Bye,
    Hello,
    Result,
    Started,
    Stop,
    pack_stats,
    worker_ends,
)
from workspan.errors import WireError
from workspan.grid.block import Block, BlockStatus
from workspan.measure.profile import Profile
from workspan.measure.sections import Collector

if TYPE_CHECKING:
    from workspan.engines.base import BlockFunction
    from workspan.engines.block import Outcome
    from workspan.engines.wire import Message, ToWorker
    from workspan.grid.layout import Layout

STDIN, STDERR = 0, 2
EXIT_BROKEN = 1
"""Exit code of a worker that cannot start or cannot go on."""

_READ_BYTES = 4096
_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10


class DriverGoneError(Exception):
    """The connection has ended: there is nobody to work for."""


class Connection:
    """The worker's end of the wire. Blocking; belongs to the process that made it and to none that it forks.

    Parameters
    ----------
    descriptor
        Of the inherited socket.
    secret
        Of this connection.
    """

    def __init__(self, descriptor: int, secret: bytes) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._sealer, self._opener = worker_ends(secret)
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=self._leave_to_parent)

    @property
    def is_own(self) -> bool:
        """Whether this process is the worker, and not a fork of it."""
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
                frame = frame[os.write(self._descriptor, frame) :]
        except OSError:
            raise DriverGoneError from None

    def receive(self) -> list[ToWorker]:
        """Wait for messages; at least one.

        Raises
        ------
        WireError
            The driver did not send this.
        DriverGoneError
            The connection has ended.
        """
        messages: list[ToWorker] = []
        while not messages:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise DriverGoneError
            messages.extend(self._opener.feed(data))
        return messages

    def _leave_to_parent(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1


def run_worker(settings: dict[str, Any], packed_function: bytes) -> int:
    """Be a worker until the end.

    Parameters
    ----------
    settings
        What ``payload.driver_settings`` and ``task_settings`` collected, with ``secret`` and ``descriptor`` of the
        connection and the worker's number.
    packed_function
        The task's block function.

    Returns
    -------
    int
        The process's exit code.
    """
    _settle(settings["driver_pid"])
    connection = Connection(settings["descriptor"], settings["secret"])
    worker = settings["worker"]
    try:
        connection.send(Hello(VERSION))
        try:
            sys.argv[:] = settings["argv"]
            if settings["cwd"] is not None:
                os.chdir(settings["cwd"])
            restore_logging(settings["logging"])
            layout = load_layout(settings["layout"])
            function = load_function(packed_function)
            profile = Profile() if settings["resource_tracking"] else None
        except BaseException as error:
            text = failure_text(error)
            _log(f"worker {worker} of task {settings['task_id']!r} cannot start\n{text}")
            connection.send(Broken(text))
            return EXIT_BROKEN
        connection.send(Started())
        with Collector() as collector:
            _serve(connection, function, layout, settings["task_id"], profile, collector)
        return 0
    except DriverGoneError:
        if connection.is_own:
            _end_with_group()
        return EXIT_BROKEN
    except WireError as error:
        _log(f"worker {worker}: {error}")
        return EXIT_BROKEN


def _serve(
    connection: Connection,
    function: BlockFunction,
    layout: Layout,
    task_id: str,
    profile: Profile | None,
    collector: Collector,
) -> None:
    queue: deque[ToWorker] = deque()
    while True:
        if not queue:
            queue.extend(connection.receive())
        message = queue.popleft()
        if isinstance(message, Stop):
            connection.send(Bye())
            return
        index = message.index
        if index >= layout.num_blocks:
            raise WireError(f"block {index} was granted, but task {task_id!r} has {layout.num_blocks} blocks")
        block = Block.at(layout, index, task_id, BlockStatus.PROCESSING)
        outcome = run_block(function, block, profile, collector)
        if not connection.is_own:
            _log(f"a process forked in block {block.block_id} came back from the block function: it ends here")
            os._exit(0 if outcome.ok else EXIT_BROKEN)
        if outcome.error is not None:
            _log(f"block {block.block_id} failed\n{outcome.error}")
        _report(connection, index, outcome)
        del block, outcome  # they hold the function's frames: nothing of a block outlives it


def _report(connection: Connection, index: int, outcome: Outcome) -> None:
    stats = None if outcome.stats is None else pack_stats(outcome.stats)
    try:
        connection.send(Result(index, outcome.ok, outcome.error, stats, outcome.steps))
    except WireError as error:
        # Nothing but the sections' names can be at fault: thousands of them, or names that are not text.
        _log(f"the sections of block {index} are left out of the report: {error}")
        connection.send(Result(index, outcome.ok, outcome.error, stats))


# -- the process -----------------------------------------------------------------------------------------------------


def _settle(driver_pid: int) -> None:
    """Make this process a worker: its signals, its streams, its bond to the driver."""
    import faulthandler

    # A worker has no terminal, but whoever signals the whole machine's Pythons must not get tracebacks from workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        _bind_to_driver(driver_pid)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # None if the driver has none either
            # A line at a time, for `tail -f`; and no text, however odd, makes a print fail.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable()


def _bind_to_driver(driver_pid: int) -> None:
    """Have the kernel kill this process when the driver dies, even while it is in a C call.

    Two bonds, since each has a gap: a process that the driver forked keeps the lifeline open, and the parent-death
    signal reaches this process only, not what user code started.
    """
    _tie_lifeline()
    _ask_for_death_signal()
    # The driver may have gone before the bonds were made.
    if os.getppid() != driver_pid:
        _end_with_group()


def _tie_lifeline() -> None:
    """Have the whole process group killed when the other end of the pipe of standard input closes.

    Only the driver holds that end. The kernel sends the signal of asynchronous I/O, which is made SIGKILL.
    """
    import fcntl

    lifeline = os.dup(STDIN)
    leads_group = os.getpgrp() == os.getpid()  # else the group is somebody else's
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid() if leads_group else os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _ask_for_death_signal() -> None:
    """Have this process killed when the thread that started it ends."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_with_group() -> None:
    """End this process and what user code started in its group."""
    with suppress(OSError):
        os.killpg(os.getpid(), signal.SIGKILL)  # the group that this process leads, if it does
    os._exit(EXIT_BROKEN)


def _log(text: str) -> None:
    """Write to the worker's error stream, past whatever user code made of ``sys.stderr``."""
    with suppress(OSError):
        os.write(STDERR, f"{text}\n".encode(errors="backslashreplace"))
