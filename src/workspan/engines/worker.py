"""The life of a worker process: take an index, run the block, say what became of it, until told to stop.

A worker imports as little as it can: `measure`, the block and the wire. It never sees a rule of the scheduler, and it
does not outlive its driver: the kernel ends it, with all that it started, when the driver is gone (Linux), and the end
of the connection does it in any case.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from workspan.engines.block import run_block
from workspan.engines.connection import Connection, DriverGoneError, log
from workspan.engines.failure import failure_text
from workspan.engines.payload import load_function, load_layout, restore_logging, restore_traceback_style
from workspan.engines.wire import PACKET_BYTES, VERSION, Broken, Bye, Grant, Hello, Started, Stop, worker_ends
from workspan.errors import WireError
from workspan.grid.block import Block, BlockStatus
from workspan.measure import notes
from workspan.measure.profile import Profile
from workspan.measure.sections import Collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.engines.base import BlockFunction
    from workspan.grid.layout import Layout

STDIN = 0
EXIT_BROKEN = 1
"""Exit code of a worker that cannot start or cannot go on."""

_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10


def run_worker(settings: dict[str, Any], packed_function: bytes) -> int:
    """Be a worker until the end.

    Parameters
    ----------
    settings
        What ``payload.driver_settings`` and ``task_settings`` collected, with ``secret`` and ``descriptors`` of the
        connection and the worker's number; for a worker function also the ``context`` of its client.
    packed_function
        The task's function.

    Returns
    -------
    int
        The process's exit code.
    """
    _settle(settings["driver_pid"])
    incoming, outgoing = settings["descriptors"]
    ends = worker_ends(settings["secret"], packets=True)
    connection = Connection(incoming, outgoing, *ends, read_bytes=PACKET_BYTES)
    notes.leave()
    worker = settings["worker"]
    try:
        connection.send(Hello(VERSION))
        try:
            sys.argv[:] = settings["argv"]
            if settings["cwd"] is not None:
                os.chdir(settings["cwd"])
            restore_logging(settings["logging"])
            restore_traceback_style(settings["traceback_style"])
            layout = load_layout(settings["layout"])
            function = load_function(packed_function)
            profile = Profile() if settings["resource_tracking"] else None
        except BaseException as error:
            text = failure_text(error)
            log(f"worker {worker} of task {settings['task_id']!r} cannot start\n{text}")
            connection.send(Broken(text))
            return EXIT_BROKEN
        # The libraries stay until the end: nobody need look among them for garbage again, at the end least of all.
        gc.freeze()
        connection.send(Started())
        if settings["kind"] == "worker":
            return _call(connection, function, settings)
        with Collector() as collector:
            _serve(connection, function, layout, settings["task_id"], profile, collector)
        return 0
    except DriverGoneError:
        if connection.is_own:
            _end_with_group()
        return EXIT_BROKEN
    except WireError as error:
        log(f"worker {worker}: {error}")
        return EXIT_BROKEN


def _serve(
    connection: Connection,
    function: BlockFunction,
    layout: Layout,
    task_id: str,
    profile: Profile | None,
    collector: Collector,
) -> None:
    while True:
        message = connection.receive()
        if isinstance(message, Stop):
            connection.send(Bye())
            return
        if not isinstance(message, Grant) or message.index >= layout.num_blocks:
            raise WireError(f"{message} was sent, but task {task_id!r} has {layout.num_blocks} blocks")
        index = message.index
        block = Block.at(layout, index, task_id, BlockStatus.PROCESSING)
        outcome = run_block(function, block, profile, collector)
        if not connection.is_own:
            log(f"a process forked in block {block.block_id} came back from the block function: it ends here")
            os._exit(0 if outcome.ok else EXIT_BROKEN)
        if outcome.error is not None:
            log(f"block {block.block_id} failed\n{outcome.error}")
        connection.report(index, outcome)
        del block, outcome  # they hold the function's frames: nothing of a block outlives it


def _call(connection: Connection, function: Callable[..., Any], settings: dict[str, Any]) -> int:
    """Call a worker function, which makes a client itself or starts a process that does."""
    from workspan.engines.context import VARIABLES, Context

    text = settings["context"]
    os.environ.update(dict.fromkeys(VARIABLES, text))
    try:
        function(**({"context": Context.from_env_string(text)} if settings["takes_context"] else {}))
    except SystemExit as error:
        if error.code not in (None, 0):
            log(f"worker function left with SystemExit({error.code!r})")
            return error.code if type(error.code) is int else EXIT_BROKEN
    except BaseException as error:
        report = failure_text(error)
        log(f"worker function failed\n{report}")
        connection.send(Broken(report))
        return EXIT_BROKEN
    connection.send(Bye())
    return 0


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
