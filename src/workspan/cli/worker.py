"""``workspan worker``: join a run from outside."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.cli import exits
from workspan.engines.client import Client, cluster_job
from workspan.engines.context import Context
from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from types import FrameType


def run(path: Path, dial: str | None = None) -> int:
    """Work for the task whose context is in *path* until there is no more work; return the exit code.

    Parameters
    ----------
    path
        The context.
    dial
        ``host:port`` to dial instead of the run's, as where a tunnel leads there.

    Raises
    ------
    ConfigurationError
        The context cannot be used, or *dial* is no address.
    EngineError, WireError
        Workspan or Python differ from the run's, the run refuses this worker, or the connection broke.
    """
    from workspan.engines.payload import load_function, restore_logging, restore_traceback_style
    from workspan.engines.remote import check_match
    from workspan.engines.vault import read_function, read_secret

    context = Context.from_file(path)
    if "task_id" not in context:
        raise ConfigurationError(f"{str(path)!r} is no context of a run: it names no task")
    if dial is not None:
        context["hostname"], context["port"] = _address(dial)
    file = context.get("function_file")
    if not file:
        raise ConfigurationError(
            f"task {context.get('task_id')!r} has no block function that could run here: start a program of your own "
            "that makes a Client(Context.from_file(...)) and takes blocks from it"
        )
    # All that can go wrong here does so before the run hears of this worker, whose job's end then has a reason.
    try:
        settings, packed = read_function(file, read_secret(context["secret_file"]))
    except (OSError, ConfigurationError):
        if not Client(context).connected:  # the run is over, and it has said so
            return exits.DONE
        raise
    check_match(settings)
    sys.path[:] = settings["sys_path"]
    if settings["cwd"] is not None:
        with suppress(OSError):  # another machine may not have the folder
            os.chdir(settings["cwd"])
    restore_logging(settings["logging"])
    restore_traceback_style(settings["traceback_style"])
    function = load_function(packed)
    client = Client(context)
    if not client.connected:  # it has said so
        return exits.DONE
    try:
        with _leaving_in_time(client):
            client.run(function)
    finally:
        client.close()
    return exits.DONE


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(f"--dial {text!r} is no HOST:PORT: give one such as localhost:40001 or [::1]:40001")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextmanager
def _leaving_in_time(client: Client) -> Iterator[None]:
    """In a job of Slurm's, let its signals end the work in good order: the limit is near, or the job is preempted."""
    if cluster_job() is None:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        for each in before:  # a second signal is not for finishing anything
            signal.signal(each, signal.SIG_DFL)
        client.leave()

    before = {each: signal.signal(each, leave) for each in (signal.SIGUSR1, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
