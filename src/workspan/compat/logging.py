"""Where workers write what they print, how failures are told of, and what the package itself logs.

Settings hold for this process and for the workers of runs that begin later. The package logs through the logger
``"workspan"`` and those below it, and installs no handler: that is the program's business.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from workspan import config
from workspan.engines import redirect
from workspan.engines.failure import TracebackStyle, style_in_use, use_style
from workspan.engines.logs import worker_log_basename
from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "clear_logs",
    "get_log_basedir",
    "get_log_level",
    "get_log_mode",
    "get_traceback_style",
    "get_worker_log_basename",
    "redirect_stdouterr",
    "set_log_basedir",
    "set_log_level",
    "set_log_mode",
    "set_traceback_style",
]

_STYLES = ("plain", "rich")
_MIN_WIDTH = 40
_WORKER_LOG = re.compile(r"worker_[0-9]+\.(out|err)")


def set_log_basedir(path: str | os.PathLike[str] | None) -> None:
    """Set the folder of the worker logs.

    Parameters
    ----------
    path
        Workers write to ``path/<task_id>/worker_<id>.out`` and ``.err``. ``None``: no log files, so that workers write
        to the driver's streams.

    Raises
    ------
    ConfigurationError
        It is not a path.
    """
    config.configure(log_basedir=path)


def get_log_basedir() -> Path | None:
    """Return the folder of the worker logs, or ``None`` if there are no log files."""
    path: Path | None = config.get("log_basedir")
    return path


def set_log_mode(mode: str) -> None:
    """Choose where workers write.

    Parameters
    ----------
    mode
        ``"file"``, the default: to the files of :func:`get_worker_log_basename`. ``"console"``: to the driver's
        streams. ``"both"``: to the files, and what is appended there is shown on the driver's ``sys.stdout`` and
        ``sys.stderr``, in whole lines, a fraction of a second later.

    Raises
    ------
    ConfigurationError
        Another mode; it is a ``ValueError`` too.
    """
    config.configure(log_mode=mode)


def get_log_mode() -> str:
    """Return the log mode; ``"console"`` if there is no log folder."""
    return "console" if get_log_basedir() is None else str(config.get("log_mode"))


def set_log_level(level: int | str) -> None:
    """Set the level of the logger ``"workspan"``, here and in the workers of later runs.

    Parameters
    ----------
    level
        As ``logging`` has it: ``logging.DEBUG`` or ``"DEBUG"``. The default is ``logging.NOTSET``: the root logger's
        level counts.

    Raises
    ------
    ConfigurationError
        There is no such level; it is a ``ValueError`` too.
    """
    try:
        logging.getLogger("workspan").setLevel(level)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"level={level!r} is not a level of logging: use logging.INFO, 'INFO', ...") from error


def get_log_level() -> int:
    """Return the level of the logger ``"workspan"``; 0, ``logging.NOTSET``, if it was not set."""
    return logging.getLogger("workspan").level


def get_worker_log_basename(worker_id: int, task_id: str | None = None) -> Path | None:
    """Return the path of a worker's log files without their suffix.

    Parameters
    ----------
    worker_id
        The worker's number, as reports and tracking stores have it.
    task_id
        The task whose folder the files are in; ``None``: the log folder itself.

    Returns
    -------
    pathlib.Path or None
        ``<basedir>/<task_id>/worker_<worker_id>``; ``None`` without a log folder.
    """
    basedir = get_log_basedir()
    return None if basedir is None else worker_log_basename(basedir, worker_id, task_id)


def clear_logs(task_id: str | None = None) -> Path | None:
    """Remove worker logs, so that the next run begins with empty files.

    Only files named as workers' logs are removed, from the tasks' folders, and then those folders if nothing else is
    in them. Links are neither followed nor removed. Do not call it while a run writes there.

    Parameters
    ----------
    task_id
        The task whose logs are removed; ``None``: those of all tasks.

    Returns
    -------
    pathlib.Path or None
        The folder that was looked at; ``None`` without a log folder.

    Raises
    ------
    ConfigurationError
        The id cannot be the name of a task's folder.
    OSError
        A file cannot be removed.
    """
    basedir = get_log_basedir()
    if basedir is None:
        return None
    if task_id is None:
        for name in _folders(basedir):
            _clear(basedir / name)
        return basedir
    if task_id in ("", ".", "..") or "/" in task_id or "\0" in task_id:
        raise ConfigurationError(f"task_id={task_id!r} is not the name of a log folder")
    _clear(basedir / task_id)
    return basedir / task_id


def _folders(basedir: Path) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(basedir) as entries:
        yield from [entry.name for entry in entries if entry.is_dir()]


def _clear(folder: Path) -> None:
    """Remove the worker logs of *folder*, and the folder if that empties it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        if folder.is_symlink():
            return
        raise
    try:
        # By the open folder: what takes its name meanwhile is safe.
        logs = [name for name in os.listdir(descriptor) if _WORKER_LOG.fullmatch(name)]
        logs = [n for n in logs if stat.S_ISREG(os.stat(n, dir_fd=descriptor, follow_symlinks=False).st_mode)]
        for name in logs:
            os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    if logs:
        with suppress(OSError):  # something else is in it, reports for example
            folder.rmdir()


def set_traceback_style(
    style: str, *, show_locals: bool = False, width: int | None = None, extra_lines: int = 3
) -> None:
    """Choose how failures of blocks are told of, in logs and reports.

    Parameters
    ----------
    style
        ``"plain"``, the default: as Python does it. ``"rich"``: source lines around each frame, in a box, without
        colour. That takes some hundredths of a second a failure, and its text is cut to 8 KiB as any other, so fewer
        frames fit. Exception groups are always told of in the plain style.
    show_locals
        Rich style: show each frame's local variables too, shortened. This calls their ``repr``.
    width
        Rich style: width in characters, at least 40. ``None``: 100.
    extra_lines
        Rich style: source lines before and after the one that failed.

    Raises
    ------
    ConfigurationError
        A style that is not known, or a number out of range; it is a ``ValueError`` too.
    """
    if style not in _STYLES:
        raise ConfigurationError(f"style={style!r} is not known: use one of {', '.join(map(repr, _STYLES))}")
    width = TracebackStyle().width if width is None else width
    for name, value, least in (("width", width, _MIN_WIDTH), ("extra_lines", extra_lines, 0)):
        if type(value) is not int or value < least:
            raise ConfigurationError(f"{name}={value!r} must be a whole number, {least} or more")
    use_style(TracebackStyle(style, bool(show_locals), width, extra_lines))


def get_traceback_style() -> str:
    """Return how failures are told of: ``"plain"`` or ``"rich"``."""
    return style_in_use().name


def redirect_stdouterr(basename: str | os.PathLike[str], mode: str = "w") -> None:
    """Send all that this process prints from now on to two files, ``<basename>.out`` and ``<basename>.err``.

    The redirection is that of the operating system, so it holds for libraries in C and for processes started later
    too. There is no way back. Folders are made as needed; lines are written as soon as they are complete.

    Parameters
    ----------
    basename
        Path of the files without their suffix, as :func:`get_worker_log_basename` returns it.
    mode
        ``"w"``: empty the files first. ``"a"``: append to them.

    Raises
    ------
    ConfigurationError
        Another mode; it is a ``ValueError`` too.
    OSError
        A file cannot be opened; nothing is redirected then.
    """
    if mode not in ("w", "a"):
        raise ConfigurationError(f"mode={mode!r} is not known: use 'w' or 'a'")
    redirect.redirect(Path(basename), empty=mode == "w")
