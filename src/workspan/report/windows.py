"""The timeline of a run, rebuilt from its store: the window of every block's successful attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workspan.errors import NoStoreError

if TYPE_CHECKING:
    from workspan.store.reader import StoreReader

__all__ = ["Window", "windows"]

_ROUNDING = 1e-6
"""Seconds since the epoch are told apart to a quarter of a microsecond; sums of them to somewhat less."""


class Window(NamedTuple):
    """When a block was away."""

    worker_id: int | None
    """Worker, by its number in the run; ``None``: no managed worker."""
    coord: tuple[int, ...]
    """Position of the block in the tracking grid."""
    sent_at: float
    """When it was sent out, in seconds since the epoch."""
    returned_at: float
    """When it came back, on the same clock."""


def windows(store: StoreReader, started_at: float, ended_at: float) -> list[Window]:
    """Return the windows in *store* that lie between two times, in the order of their begin."""
    from workspan.store.reader import NO_WORKER

    table = store.table()
    if not {"worker_id", "sent_at", "returned_at"} <= table.values.keys():
        raise NoStoreError(
            f"tracking store {store.path} has no stamps, so the timeline is not known: give the task "
            "resource_tracking=True"
        )
    sent, returned = table.values["sent_at"], table.values["returned_at"]
    here = table.executed & (sent >= started_at - _ROUNDING) & (returned <= ended_at + _ROUNDING)
    rows = np.flatnonzero(here)
    rows = rows[np.argsort(sent[rows], kind="stable")]
    return [
        Window(None if worker == NO_WORKER else worker, tuple(cell), begin, end)
        for worker, cell, begin, end in zip(
            table.values["worker_id"][rows].tolist(),
            table.cells[rows].tolist(),
            sent[rows].tolist(),
            returned[rows].tolist(),
            strict=True,
        )
    ]
