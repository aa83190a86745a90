"""What a page tells beside the blocks: earlier runs of a task, and the ends of its workers' logs."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.errors import InvalidMetadataError, WorkspanError
from workspan.report.task import TaskReport
from workspan.store.runs import iter_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LogTail", "Past", "log_tails", "past_runs"]

MOST_RUNS = 60
TAIL_BYTES = 3000
_SEPARATOR = b"---- "


@dataclass(frozen=True, slots=True)
class Past:
    """The runs of a task."""

    runs: tuple[TaskReport, ...] = ()
    """The newest ones, oldest first."""
    older: int = 0
    """Runs before those."""
    damaged: int = 0
    """Lines that could not be read."""


def past_runs(path: Path) -> Past:
    """Read the newest runs from a task's ``runs.jsonl``; no runs if there is none."""
    runs: deque[TaskReport] = deque(maxlen=MOST_RUNS)
    count = damaged = 0
    try:
        for line in iter_runs(path):
            try:
                if line is None:
                    raise InvalidMetadataError("not JSON")
                runs.append(TaskReport.from_json(line))
                count += 1
            except InvalidMetadataError:
                damaged += 1
    except WorkspanError:  # of the file system: the page can do without
        return Past()
    return Past(tuple(runs), count - len(runs), damaged)


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of what a worker wrote."""

    worker: int
    name: str
    """Of the file."""
    text: str
    cut: bool
    """There is more before it."""


def log_tails(folders: Sequence[Path], task_id: str, workers: Sequence[int], since: float) -> list[LogTail]:
    """Read the ends of the logs of some workers.

    Files that were last written before the run began are not its logs, and files that are empty have nothing to say.

    Parameters
    ----------
    folders
        Log folders, each with a folder a task; the first that has a log of the worker counts.
    task_id
        The task.
    workers
        Numbers of the workers in the run.
    since
        Begin of the run, in seconds since the epoch.
    """
    out = []
    for worker in workers:
        for folder in folders:
            found = [_tail(folder / task_id / f"worker_{worker}.{end}", worker, since) for end in ("err", "out")]
            if any(tail is not None for tail in found):
                out += [tail for tail in found if tail is not None and tail.text]
                break
    return out


def _tail(path: Path, worker: int, since: float) -> LogTail | None:
    """Return the end of a file; ``None`` if it is none of this run's."""
    try:
        with open(path, "rb", opener=_plainly) as file:
            status = os.fstat(file.fileno())
            if status.st_mtime < since - 1:
                return None
            begin = max(0, status.st_size - TAIL_BYTES)
            file.seek(begin)
            data = file.read(TAIL_BYTES)
    except OSError:
        return None
    cut = begin > 0
    at = data.rfind(b"\n" + _SEPARATOR)
    if data.startswith(_SEPARATOR) and begin == 0 and at < 0:
        at = 0
    if at >= 0:  # an earlier run wrote what stands before
        data, cut = data[at:].lstrip(b"\n").partition(b"\n")[2], False
    elif cut:
        data = data.partition(b"\n")[2] or data
    return LogTail(worker, path.name, data.decode("utf-8", "replace").rstrip(), cut)


def _plainly(path: str, flags: int) -> int:
    """Open without waiting, were it a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
