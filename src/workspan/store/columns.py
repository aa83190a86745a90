"""The arrays of a store as its one writer holds them: open files, and what of them has its place on the disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from workspan.store.files import STEP_BITS, CellFile
from workspan.store.meta import ALWAYS, ARRAYS, MEASURED, NODE_FILE, TRACKED, chunk_file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from workspan.grid.layout import Layout
    from workspan.measure.profile import BlockStats

__all__ = ["FLAGS", "FOREVER", "STATS", "Columns", "cell_terms", "fresh", "in_order"]

FOREVER = float("inf")
FLAGS, STATS = 1, 2
"""Bits of :attr:`Columns.real`: the range of ``done`` is real, those of the measurements are."""


class Columns:
    """The chunk files of all arrays but those of the steps.

    Parameters
    ----------
    group
        Folder of the store.
    layout
        The task's tiling.
    tracked
        Open the arrays of measurements as well.
    created
        Arrays that were made just now.
    mapped
        Store through maps or by system calls.
    """

    def __init__(self, group: Path, layout: Layout, *, tracked: bool, created: list[str], mapped: bool) -> None:
        self._group, self._created = group, created
        shape = layout.cell_counts
        count = 1
        for extent in shape:
            count *= extent
        self.files: dict[str, CellFile] = {}
        """Array name -> its file."""
        try:
            for name in (*ALWAYS, *TRACKED) if tracked else ALWAYS:
                path = chunk_file(group / name, len(shape))
                self.files[name] = CellFile(path, ARRAYS[name], count, mapped=mapped)
        except OSError:
            self.close()
            raise
        steps = (count >> STEP_BITS) + 1
        self.real = bytearray(steps)
        """Per step of cells: which arrays have their place on the disk there (:data:`FLAGS`, :data:`STATS`)."""
        self.failures_real = bytearray(steps)
        """The same for ``failures``: 0 or 1."""

    def make_real(self, step: int, need: int) -> None:
        """Give the arrays of *need* their place in *step*."""
        first, stop = step << STEP_BITS, (step + 1) << STEP_BITS
        missing = need & ~self.real[step]
        for name, file in self.files.items():
            if missing & (FLAGS if name == "done" else STATS if name in TRACKED else 0):
                file.make_real(first, stop)
        self.real[step] |= need

    def make_failures_real(self, step: int) -> None:
        """Give ``failures`` its place in *step*."""
        self.files["failures"].make_real(step << STEP_BITS, (step + 1) << STEP_BITS)
        self.failures_real[step] = 1

    def write_unusual(self, number: int, stats: BlockStats) -> set[str]:
        """Store measurements of which some were not taken, or lie outside what a cell holds; return those not taken."""
        lacking = set()
        for name in MEASURED:
            value = getattr(stats, name)
            cells = self.files[name].cells
            if value is None:
                lacking.add(name)
                cells[number] = ARRAYS[name].fill
            elif ARRAYS[name].data_type == "float32":
                cells[number] = float(value)
            else:
                cells[number] = min(max(int(value), 0), 2**64 - 1)
        return lacking

    def distrust(self) -> None:
        """Count no range as real any more, so that the next store is asked again."""
        self.real[:] = bytes(len(self.real))
        self.failures_real[:] = bytes(len(self.failures_real))

    def flush(self) -> None:
        """Write everything to the disk, ``done`` last."""
        if self._created:
            self._sync_new()
        for name, file in self.files.items():
            if name != "done":
                file.flush()
        self.files["done"].flush()

    def _sync_new(self) -> None:
        nodes = [self._group / name / NODE_FILE for name in self._created]
        folders = [file.path.parent for name, file in self.files.items() if name in self._created]
        for path in (*nodes, *folders, self._group / NODE_FILE, self._group, self._group.parent):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._created = []

    def trim(self) -> None:
        """Let go of the pages in memory."""
        for file in self.files.values():
            file.trim()

    def close(self) -> None:
        """Let go of all files. Can be repeated."""
        for file in self.files.values():
            file.close()


def fresh(numbers: NDArray[np.int64], flags: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return those cells of *numbers* whose flag is 0, each once, sorted."""
    numbers = np.sort(numbers[flags[numbers] == 0])
    once: NDArray[np.int64] = numbers[np.diff(numbers, prepend=-1) != 0]  # np.unique hashes: twenty times as slow
    return once


def in_order(sent_at: float, returned_at: float) -> tuple[float, float]:
    """Return stamps that no reader takes for damage, whatever a clock says."""
    stamps = [stamp for stamp in (sent_at, returned_at) if 0 < stamp < FOREVER] or [1e-6]
    return stamps[0], max(stamps)


def cell_terms(layout: Layout) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return *base* and terms (stride, weight), so that a block's cell is index + base + sum(index // stride * weight).

    The cell is the sum over the axes of ``(first_cell + coord) * cell stride``; written with
    ``coord[a] = index // stride[a] - count[a] * (index // stride[a - 1])`` it needs one division per axis but the last,
    and none for axes on which both grids have the same extent. Works on arrays of indices as well.
    """
    cell_strides = [1]
    for extent in layout.cell_counts[:0:-1]:
        cell_strides.insert(0, cell_strides[0] * extent)
    base = sum(first * stride for first, stride in zip(layout.first_cell, cell_strides, strict=True))
    weights = [cell_strides[axis] - layout.counts[axis + 1] * cell_strides[axis + 1] for axis in range(layout.rank - 1)]
    return base, tuple((stride, weight) for stride, weight in zip(layout.strides[:-1], weights, strict=True) if weight)
