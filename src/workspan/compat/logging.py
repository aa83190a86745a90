"""Where workers write what they print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan import config
from workspan.engines.logs import worker_log_basename

if TYPE_CHECKING:
    import os
    from pathlib import Path


def set_log_basedir(path: str | os.PathLike[str] | None) -> None:
    """Write worker logs to ``path/<task_id>/worker_<id>.out`` and ``.err``; ``None``: no log files."""
    config.configure(log_basedir=path)


def get_log_basedir() -> Path | None:
    """Return the folder of the worker logs, or ``None``."""
    path: Path | None = config.get("log_basedir")
    return path


def set_log_mode(mode: str) -> None:
    """Write worker output to files (``"file"``), to the driver's streams (``"console"``), or ``"both"``."""
    config.configure(log_mode=mode)


def get_log_mode() -> str:
    """Return the log mode: ``"console"`` if there is no log folder."""
    return "console" if get_log_basedir() is None else str(config.get("log_mode"))


def get_worker_log_basename(worker_id: int, task_id: str | None = None) -> Path | None:
    """Return the path of a worker's log files without their suffix, or ``None`` without a log folder."""
    basedir = get_log_basedir()
    return None if basedir is None else worker_log_basename(basedir, worker_id, task_id)
