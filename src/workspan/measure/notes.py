"""Measurements of steps that are made in a worker and travel home with the block, so that workers keep no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["Note", "bring_home", "take"]

MOST = 1000
"""Notes of one block that travel; those beyond are lost, as a step keeps far fewer anyway."""


class Note(NamedTuple):
    """One measurement of a step."""

    key: tuple[str | None, str | None, str | None]
    order: str
    variant: str | None
    fingerprint: str | None
    N_ref: float
    dt: float
    """Wall-clock time, in seconds."""
    start: float
    """When it began, in seconds since 1970."""
    overlap: int
    substep: bool


away: list[Note] | None = None
"""Notes of this worker since its last block; ``None``: this process is no worker and keeps its measurements itself."""

home: Callable[[Sequence[Note]], None] | None = None
"""Takes the notes that come from workers, in the driver."""


def leave() -> None:
    """Be a worker from now on."""
    global away
    away = []


def take() -> list[Note] | None:
    """Return the notes since the last call, ``None`` if there are none."""
    global away
    if not away:
        return None
    taken, away = away, []
    return taken[:MOST]


def bring_home(notes: Sequence[Note] | None) -> None:
    """Give notes that came with a block to whoever keeps them."""
    if notes and home is not None:
        home(notes)
