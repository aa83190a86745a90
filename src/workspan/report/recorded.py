"""What runs have left in a place that a person names: stores, histories, folders of them, and one run of several.

A place may be followed by ``#`` and a run: ``#-1`` the last, ``#-2`` the one before, ``#0`` the first, or an id, or the
begin of one. ``#`` names a part of a document everywhere else too, and needs no quotes inside a shell's word.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError, InvalidMetadataError
from workspan.report.places import RUNS, nothing_at, task_folders
from workspan.report.task import TaskReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.store.reader import StoreReader

__all__ = ["Place", "RecordedTask", "find", "split"]


@dataclass(frozen=True)
class RecordedTask:
    """One task, as its store and its history tell of it."""

    task_id: str
    folder: Path
    store: StoreReader | None
    """``None``: only a history is left."""
    runs: tuple[TaskReport, ...] = ()
    """Runs that executed something, oldest first."""
    idle: int = 0
    """Runs that found all blocks done before."""
    damaged: int = 0
    """Lines of the history that cannot be read."""


@dataclass(frozen=True)
class Place:
    """What was found where a person pointed."""

    text: str
    """As it was typed."""
    tasks: tuple[RecordedTask, ...]
    run_ids: tuple[str, ...] = field(default=())
    """Runs that executed something, in any task, oldest first."""
    selected: str | None = None
    """Id of the run that was asked for; ``None``: all that is there."""

    def run(self, task: RecordedTask) -> TaskReport | None:
        """Return the report of *task* in the selected run, or in its last one."""
        found = [r for r in task.runs if self.selected is None or r.run_id == self.selected]
        return found[-1] if found else None

    def at(self, number: int) -> Place:
        """Return the place with its run *number* selected, counted as a list is.

        Raises
        ------
        ConfigurationError
            There is no such run.
        """
        try:
            return Place(self.text, self.tasks, self.run_ids, self.run_ids[number])
        except IndexError:
            path, count = split(self.text)[0], len(self.run_ids)
            raise ConfigurationError(
                f"{path!r} holds {count} run{'s' * (count != 1)} that executed something, so there is no run {number}"
            ) from None


def split(text: str) -> tuple[str, str]:
    """Split what a person typed into a path and a run, which may be empty; a path that is there is taken as it is."""
    path, _, selector = (text, "", "") if os.path.exists(text) else text.rpartition("#")
    return (path, selector) if path else (text, "")


def find(where: str | os.PathLike[str]) -> Place:
    """Find what is recorded at *where*: a store, a ``runs.jsonl``, or a folder of these; ``#`` selects a run.

    Raises
    ------
    ConfigurationError
        Nothing is recorded there, or not the run.
    InvalidMetadataError
        A store is damaged.
    """
    text = os.fspath(where)
    path, selector = split(text)
    tasks = tuple(_tasks(Path(path)))
    if not tasks:
        raise ConfigurationError(nothing_at(Path(path), "recorded run"))
    begins: dict[str, float] = {}
    for task in tasks:
        for run in task.runs:
            begins[run.run_id] = min(run.started_at, begins.get(run.run_id, run.started_at))
    place = Place(text, tasks, tuple(sorted(begins, key=lambda run_id: begins[run_id])))
    if not selector and Path(path).is_file():
        selector = "-1"
    return _selected(place, selector) if selector else place


def _selected(place: Place, selector: str) -> Place:
    # Ids begin with a date of eight digits, so a short number counts.
    if selector.lstrip("+-").isascii() and selector.lstrip("+-").isdigit() and len(selector) < 8:
        return place.at(int(selector))
    found = [run_id for run_id in place.run_ids if run_id.startswith(selector)]
    if len(found) != 1:
        told = f"{len(found)} runs begin with" if found else "no run is, or begins with,"
        known = ", ".join(place.run_ids[-5:]) or "none"
        raise ConfigurationError(f"{place.text!r}: {told} {selector!r}; the last ones that executed something: {known}")
    return Place(place.text, place.tasks, place.run_ids, found[0])


def _tasks(path: Path) -> Iterator[RecordedTask]:
    for folder in task_folders(path):
        yield _task(folder, path if path.is_file() else folder / RUNS)


def _task(folder: Path, file: Path) -> RecordedTask:
    from workspan.store.reader import StoreReader
    from workspan.store.runs import iter_runs

    store = StoreReader(folder) if (folder / "done" / "zarr.json").is_file() else None
    runs: list[TaskReport] = []
    idle = damaged = 0
    for line in iter_runs(file):
        try:
            if line is None:
                damaged += 1
            elif _was_idle(line):
                idle += 1
            else:
                runs.append(TaskReport.from_json(line))
        except InvalidMetadataError:
            damaged += 1
    task_id = runs[-1].task_id if runs else _noted_id(store) or folder.name
    return RecordedTask(task_id, folder, store, tuple(runs), idle, damaged)


def _noted_id(store: StoreReader | None) -> str | None:
    ours = None if store is None else store.attributes.get("workspan")
    found = ours.get("task_id") if isinstance(ours, dict) else None
    return found if isinstance(found, str) else None


def _was_idle(line: dict[str, Any]) -> bool:
    """Whether a run executed no block."""
    blocks = line.get("blocks")
    if not isinstance(blocks, dict):
        return False
    return blocks.get("count") == blocks.get("skipped") and not blocks.get("failures")
