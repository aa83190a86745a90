"""Where runs have left something below a path that a person names: the same search for all commands."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["EXPECTED", "RUNS", "nothing_at", "task_folders"]

RUNS = "runs.jsonl"

EXPECTED = f"name a tracking folder, the folder that holds those of several tasks, or a {RUNS!r}"
"""What to do about a path at which nothing is."""

_LEVELS = (("*", "tracking/*"), ("*/*",), ("*/*/*",))
"""Where tasks are looked for in a folder; the next ones only if the ones before find none."""


def nothing_at(path: Path, what: str) -> str:
    """Say that *what* ("recorded run") is not at *path*, why, and what to name instead."""
    if not os.path.lexists(path):
        return f"{str(path)!r} does not exist: {EXPECTED}"
    if path.is_file():
        return f"{str(path)!r} is a file that holds no {what}: {EXPECTED}"
    stores = [folder for folder in task_folders(path) if not (folder / RUNS).is_file()]
    if stores:
        from workspan.store.lock import holder_of

        if (holder := holder_of(stores[0])) is not None:
            return f"{str(path)!r} holds no {what} yet: a run goes on there ({holder}), and no block of it is done"
        return (
            f"{str(path)!r} holds no {what}: the tracking store {str(stores[0])!r} is there, but no run has "
            "written its end; run it again to finish it"
        )
    return f"{str(path)!r} holds no {what}: {EXPECTED}"


def task_folders(path: Path) -> list[Path]:
    """Return the folder of each task that left its history or its store at *path*, by name; empty if none did.

    Parameters
    ----------
    path
        Such a folder, its ``runs.jsonl``, or a folder that holds some.
    """
    if path.is_file():
        return [path.parent]
    if _is_recorded(path):
        return [path]
    for patterns in _LEVELS:
        if found := sorted(folder for pattern in patterns for folder in path.glob(pattern) if _is_recorded(folder)):
            return found
    return []


def _is_recorded(folder: Path) -> bool:
    return (folder / RUNS).is_file() or (folder / "done" / "zarr.json").is_file()
