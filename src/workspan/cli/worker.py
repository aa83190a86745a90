"""``workspan worker``: join a run from outside."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from workspan.cli import exits
from workspan.engines.client import Client
from workspan.engines.context import Context
from workspan.errors import ConfigurationError


def run(path: Path) -> int:
    """Work for the task whose context is in *path* until there is no more work; return the exit code.

    Raises
    ------
    ConfigurationError
        The context cannot be used.
    EngineError, WireError
        The run refuses this worker, or the connection broke.
    """
    from workspan.engines.payload import load_function, restore_logging, restore_traceback_style
    from workspan.engines.vault import read_function, read_secret

    context = Context.from_file(path)
    if "task_id" not in context:
        raise ConfigurationError(f"{str(path)!r} is no context of a run: it names no task")
    file = context.get("function_file")
    if not file:
        raise ConfigurationError(
            f"task {context.get('task_id')!r} has no block function that could run here: start a program of your own "
            "that makes a Client(Context.from_file(...)) and takes blocks from it"
        )
    client = Client(context)
    if not client.connected:  # it has said so
        return exits.DONE
    settings, packed = read_function(file, read_secret(context["secret_file"]))
    sys.path[:] = settings["sys_path"]
    if settings["cwd"] is not None:
        with suppress(OSError):  # another machine may not have the folder
            os.chdir(settings["cwd"])
    restore_logging(settings["logging"])
    restore_traceback_style(settings["traceback_style"])
    try:
        client.run(load_function(packed))
    finally:
        client.close()
    return exits.DONE
