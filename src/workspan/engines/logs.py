"""Where the output of worker processes goes: two files a worker, appended run after run."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.engines.trim import LogPart
from workspan.errors import EngineError

if TYPE_CHECKING:
    from workspan.engines.trim import Cut

logger = logging.getLogger(__name__)

TAIL_LINES = 50
_TAIL_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class WorkerLog:
    """The two open files of one worker, as long as the worker needs them to be born, and what it wrote later."""

    out: int
    err: int
    out_part: LogPart
    err_part: LogPart
    separator: bytes = b""
    """What stands before this worker's output where a file has an earlier part."""
    _is_stuck: bool = False

    @property
    def err_path(self) -> Path:
        """The file of the worker's error stream."""
        return self.err_part.path

    def separate(self, pid: int) -> None:
        """Begin this worker's part of a file that has an earlier part."""
        self.separator = f"---- {time.strftime('%Y-%m-%d %H:%M:%S')} pid {pid} ----\n".encode()
        for descriptor, part in ((self.out, self.out_part), (self.err, self.err_part)):
            if part.start:
                with suppress(OSError):  # a full disk must not keep a worker from starting
                    os.write(descriptor, self.separator)

    def trim(self) -> tuple[Cut | None, Cut | None]:
        """Cut what this worker wrote, to either file, to its beginning and its end if it is more than 64 MB.

        To be called about once a second while the worker lives, and once when it has ended. A file that cannot be
        cut is told of once, as a warning, and is no error. See :meth:`LogPart.cut` for what a worker that writes
        meanwhile may lose.

        Returns
        -------
        tuple
            What was done to the file of standard output and to that of standard error.
        """
        return self._cut(self.out_part), self._cut(self.err_part)

    def _cut(self, part: LogPart) -> Cut | None:
        try:
            return part.cut()
        except FileNotFoundError:  # removed, or replaced
            return None
        except OSError as error:
            if not self._is_stuck:
                logger.warning("the log %s is too long and cannot be cut: %s", part.path, error)
            self._is_stuck = True
            return None

    def close(self) -> None:
        """Close the driver's descriptors; the worker has its own."""
        os.close(self.out)
        os.close(self.err)

    def tail(self) -> str:
        """Return the last lines that this worker wrote to its error stream, without those of earlier runs."""
        try:
            with self.err_path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = self.err_part.start
                begin = max(start, size - _TAIL_BYTES)
                file.seek(begin)
                data = file.read(_TAIL_BYTES)
        except OSError:
            return ""
        lines = data.decode(errors="replace").splitlines()
        if lines and start and begin == start and lines[0].startswith("---- "):
            del lines[0]
        return "\n".join(lines[-TAIL_LINES:])


def worker_log_basename(log_dir: Path, worker: int, task_id: str | None = None) -> Path:
    """Return the path of a worker's log files without their suffix, ``.out`` or ``.err``."""
    folder = log_dir if task_id is None else log_dir / task_id
    return folder / f"worker_{worker}"


def prepare_folder(log_dir: Path, task_id: str) -> Path:
    """Make the folder of a task's worker logs and return its absolute path.

    Raises
    ------
    EngineError
        It cannot be made, or the id is not the name of a folder.
    """
    base = Path(os.path.abspath(log_dir))
    if task_id in ("", ".", "..") or "/" in task_id or "\0" in task_id:
        raise EngineError(f"task id {task_id!r} cannot be the name of a log folder: leave out '/', '.' and NUL")
    folder = base / task_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(
            f"the folder {str(folder)!r} for the workers' logs cannot be made ({error.strerror or error}): "
            "choose another one or log to the console"
        ) from error
    return folder


def open_log(folder: Path, worker: int) -> WorkerLog:
    """Open the files of worker number *worker* for appending."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    base = worker_log_basename(folder, worker)
    out_path, err_path = (base.with_name(f"{base.name}.{end}") for end in ("out", "err"))
    out = os.open(out_path, flags, 0o666)
    try:
        err = os.open(err_path, flags, 0o666)
    except OSError:
        os.close(out)
        raise
    return WorkerLog(out, err, _part(out_path, out), _part(err_path, err))


def _part(path: Path, descriptor: int) -> LogPart:
    stat = os.fstat(descriptor)
    return LogPart(path, stat.st_size, (stat.st_dev, stat.st_ino))
