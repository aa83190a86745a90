"""Where the output of worker processes goes: two files a worker, appended run after run."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workspan.errors import EngineError

TAIL_LINES = 50
_TAIL_BYTES = 1 << 16


@dataclass(slots=True)
class WorkerLog:
    """The two open files of one worker, as long as the worker needs them to be born, and what it wrote later."""

    out: int
    err: int
    err_path: Path
    out_start: int
    """Size of the file before this worker wrote to it, in bytes."""
    err_start: int

    def separate(self, pid: int) -> None:
        """Begin this worker's part of a file that has an earlier part."""
        line = f"---- {time.strftime('%Y-%m-%d %H:%M:%S')} pid {pid} ----\n".encode()
        for descriptor, start in ((self.out, self.out_start), (self.err, self.err_start)):
            if start:
                with suppress(OSError):  # a full disk must not keep a worker from starting
                    os.write(descriptor, line)

    def close(self) -> None:
        """Close the driver's descriptors; the worker has its own."""
        os.close(self.out)
        os.close(self.err)

    def tail(self) -> str:
        """Return the last lines that this worker wrote to its error stream, without those of earlier runs."""
        try:
            with self.err_path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = max(self.err_start, size - _TAIL_BYTES)
                file.seek(begin)
                data = file.read(_TAIL_BYTES)
        except OSError:
            return ""
        lines = data.decode(errors="replace").splitlines()
        if lines and self.err_start and begin == self.err_start and lines[0].startswith("---- "):
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
    err_path = base.with_name(f"{base.name}.err")
    out = os.open(f"{base}.out", flags, 0o666)
    try:
        err = os.open(err_path, flags, 0o666)
    except OSError:
        os.close(out)
        raise
    return WorkerLog(out, err, err_path, os.fstat(out).st_size, os.fstat(err).st_size)
