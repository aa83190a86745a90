"""Where runs have left something below a path that a person names: the same search for all commands."""

from __future__ import annotations

from pathlib import Path

__all__ = ["EXPECTED", "RUNS", "task_folders"]

RUNS = "runs.jsonl"

EXPECTED = f"name a tracking folder, the folder that holds those of several tasks, or a {RUNS!r}"
"""What to do about a path at which nothing is."""

_LEVELS = (("*", "tracking/*"), ("*/*",), ("*/*/*",))
"""Where tasks are looked for in a folder; the next ones only if the ones before find none."""


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
