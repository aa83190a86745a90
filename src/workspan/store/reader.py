"""Reading a tracking store, also while a run writes to it: any layout, no lock, no trace.

The flags are read before the measurements, as the writer stores them after: what reads as done has its measurements.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.errors import BlockNotFoundError, ConfigurationError, NoStoreError, TrackingError
from workspan.store.faults import damaged, disk_error
from workspan.store.files import read_cells, read_range
from workspan.store.meta import (
    ARRAYS,
    MEASURED,
    NODE_FILE,
    STAMPED,
    STEP,
    TRACKED,
    Node,
    array_metadata,
    array_problem,
    chunk_file,
    read_node,
)
from workspan.store.records import BlockRecord
from workspan.store.steps import FOLDER, ChunkGrid, step_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from workspan.grid.layout import Ints, Layout

__all__ = ["NO_WORKER", "BlockTable", "StoreReader", "mask_grid"]

NO_WORKER = 2**32 - 1
"""What ``worker_id`` holds for a block of no managed worker."""
_BATCH = 1 << 20
_MOST_AXES = 64


def mask_grid(layout: Layout) -> tuple[slice, ...]:
    """Return where the blocks of *layout* are in its tracking grid."""
    if not layout.num_blocks:
        return tuple(slice(0, n) for n in layout.counts)
    return tuple(slice(f, f + n) for f, n in zip(layout.first_cell, layout.counts, strict=True))


@dataclass(frozen=True)
class BlockTable:
    """All recorded blocks as columns, one entry a block, in grid (C) order."""

    cells: NDArray[np.int64]
    """Positions in the tracking grid, shape (blocks, axes)."""
    done: NDArray[np.bool_]
    failures: NDArray[np.uint32]
    executed: NDArray[np.bool_]
    """Where the columns of *values* mean something."""
    values: dict[str, NDArray[Any]]
    """Array name -> cells, for the arrays that the store has; seconds, bytes, worker ids, epoch seconds."""
    steps: dict[str, NDArray[np.float32]]
    """Section name -> self seconds, NaN where it was not executed."""
    unmeasured: frozenset[str]

    def measured(self, name: str) -> NDArray[np.bool_]:
        """Return where column *name* of *values* was measured."""
        here = self.executed
        return here & (self.values[name] != 0) if name in self.unmeasured else here


class StoreReader:
    """A tracking store that is open for reading.

    Holds no file open; every question reads the disk anew.

    Parameters
    ----------
    path
        Folder of the group.

    Raises
    ------
    NoStoreError
        There is none.
    InvalidMetadataError
        It is damaged, or is not a tracking store.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(os.path.realpath(path))
        try:
            node = read_node(self.path)
        except OSError as error:
            raise disk_error(error, self.path, "reading the tracking store") from error
        if node is None:
            why = f"its {NODE_FILE} is missing" if (self.path / "done").exists() else "nothing has been tracked there"
            raise NoStoreError(f"there is no tracking store at {self.path}: {why}")
        attributes = node.get("attributes", {})
        if node.get("node_type") != "group" or not isinstance(attributes, dict):
            raise damaged(self.path, NODE_FILE, "it is not a Zarr v3 group")
        self.attributes: Node = attributes
        """Attributes of the group."""
        self.cell_counts: Ints = self._shape()
        """Shape of the tracking grid."""
        self._count = prod(self.cell_counts)
        self.arrays: tuple[str, ...] = tuple(name for name in ARRAYS if self._has(name))
        """Names of the arrays it has."""
        ours = attributes.get("workspan")
        listed = ours.get("unmeasured") if isinstance(ours, dict) else None
        self.unmeasured: frozenset[str] = frozenset(
            name for name in (listed if isinstance(listed, list) else ()) if isinstance(name, str)
        )
        """Arrays in which 0 means that the platform could not measure."""

    def _shape(self) -> Ints:
        node = read_node(self.path, "done")
        shape = None if node is None else node.get("shape")
        if (
            not isinstance(shape, list)
            or not 0 < len(shape) <= _MOST_AXES
            or any(type(extent) is not int or extent < 1 for extent in shape)
        ):
            raise damaged(self.path, "done", f"its shape is {shape!r}")
        return tuple(shape)

    def _has(self, name: str) -> bool:
        node = read_node(self.path, name)
        if node is None:
            return False
        problem = array_problem(node, array_metadata(ARRAYS[name], self.cell_counts))
        if problem is not None:
            raise damaged(self.path, name, problem.text)
        return True

    @property
    def resource_tracking(self) -> bool:
        """Whether it has measurements."""
        return "wall_seconds" in self.arrays

    @property
    def layout_hash(self) -> str | None:
        """Hash of the layout it was made for, or ``None`` for a caller's own group."""
        stored = self.attributes.get("daisy_task_hash")
        return stored if isinstance(stored, str) else None

    @cached_property
    def _steps(self) -> dict[str, str]:
        return step_names(self.path, self.cell_counts)

    @property
    def step_names(self) -> tuple[str, ...]:
        """Names of the sections whose cost is stored."""
        return tuple(self._steps)

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing is held open."""

    # -- whole arrays ----------------------------------------------------------------------------------------------

    def array(self, name: str) -> NDArray[Any]:
        """Return array *name* in the shape of the tracking grid; a section's with ``steps/`` before its name.

        Raises
        ------
        NoStoreError
            The store has no such array.
        """
        if name.startswith(f"{FOLDER}/"):
            values: NDArray[Any] = self._step_range(name.removeprefix(f"{FOLDER}/"), 0, self._count)
        elif name in self.arrays:
            values = self._zeros(name, self._count) if self._is_blank(name) else self._guarded(read_cells, name)
        else:
            raise NoStoreError(f"tracking store {self.path} has no array {name!r}: it has {', '.join(self.arrays)}")
        return values.reshape(self.cell_counts)

    def part(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Return the cells *begin* to *end*, in C order, of an array, which is named as in :meth:`array`.

        Raises
        ------
        NoStoreError
            The store has no such section. Other arrays that it does not have are 0.
        """
        if name.startswith(f"{FOLDER}/"):
            return self._step_range(name.removeprefix(f"{FOLDER}/"), begin, end)
        return self._range(name, begin, end)

    @property
    def done(self) -> NDArray[np.uint8]:
        """1 where a block is done, in the shape of the tracking grid; read anew each time."""
        return self.array("done")

    @property
    def failures(self) -> NDArray[np.uint32]:
        """Started attempts that did not succeed, in the shape of the tracking grid; read anew each time."""
        return self.array("failures")

    def done_of(self, layout: Layout) -> NDArray[np.uint8]:
        """Return which blocks of *layout* are done, in the shape of its mask grid."""
        return self._blocks_of(layout, "done")

    def failures_of(self, layout: Layout) -> NDArray[np.uint32]:
        """Return the failures of each block of *layout*, in the shape of its mask grid."""
        return self._blocks_of(layout, "failures")

    def _blocks_of(self, layout: Layout, name: str) -> NDArray[Any]:
        if layout.cell_counts != self.cell_counts:
            raise TrackingError(
                f"tracking store {self.path} has the cells {self.cell_counts}, the task {layout.cell_counts}: it was "
                "made for another layout"
            )
        return self.array(name)[mask_grid(layout)]

    # -- blocks ----------------------------------------------------------------------------------------------------

    def block(self, coord: Sequence[int]) -> BlockRecord | None:
        """Return the record of the block at tracking-grid position *coord*, or ``None`` if it was never executed.

        Raises
        ------
        BlockNotFoundError
            *coord* is outside the tracking grid.
        """
        at = tuple(int(c) for c in coord)
        if len(at) != len(self.cell_counts) or any(not 0 <= c < n for c, n in zip(at, self.cell_counts, strict=True)):
            raise BlockNotFoundError(f"block {at} is outside the tracking grid, which has the shape {self.cell_counts}")
        number = int(np.ravel_multi_index(at, self.cell_counts))
        return next(self._records(number, number + 1), None)

    def block_records(self) -> Iterator[BlockRecord]:
        """Yield every recorded block, in grid (C) order."""
        for begin in range(0, self._count, _BATCH):
            yield from self._records(begin, min(begin + _BATCH, self._count))

    def table(self) -> BlockTable:
        """Return every recorded block, as columns."""
        tables = list(self.tables())
        return BlockTable(
            cells=np.concatenate([t.cells for t in tables]),
            done=np.concatenate([t.done for t in tables]),
            failures=np.concatenate([t.failures for t in tables]),
            executed=np.concatenate([t.executed for t in tables]),
            values={name: np.concatenate([t.values[name] for t in tables]) for name in tables[0].values},
            steps={name: np.concatenate([t.steps[name] for t in tables]) for name in tables[0].steps},
            unmeasured=self.unmeasured,
        )

    def empty_table(self) -> BlockTable:
        """Return the columns that :meth:`table` has, without blocks."""
        return self._table(0, 0)

    def tables(self) -> Iterator[BlockTable]:
        """Yield every recorded block, as columns, in grid (C) order: a table for each million cells of the grid."""
        for begin in range(0, self._count, _BATCH):
            yield self._table(begin, min(begin + _BATCH, self._count))

    def _table(self, begin: int, end: int) -> BlockTable:
        done = self._range("done", begin, end)
        if done.size and done.max() > 1:
            at = np.unravel_index(begin + int(np.argmax(done > 1)), self.cell_counts)
            raise damaged(self.path, "done", f"cell {tuple(map(int, at))} is {done.max()}, expected 0 or 1")
        failures = self._range("failures", begin, end)
        values = {name: self._range(name, begin, end) for name in TRACKED if name in self.arrays}
        executed = values["returned_at"] > 0 if "returned_at" in values else done == 1
        if not values:
            executed = np.zeros(end - begin, np.bool_)
        rows = np.flatnonzero((done == 1) | (failures > 0) | executed)
        steps = {name: self._step_range(name, begin, end)[rows] for name in self._steps} if len(rows) else {}
        if not len(rows):
            steps = {name: np.empty(0, np.float32) for name in self._steps}
        return BlockTable(
            cells=np.stack(np.unravel_index(rows + begin, self.cell_counts), axis=1).astype(np.int64, copy=False),
            done=done[rows] == 1,
            failures=failures[rows],
            executed=executed[rows],
            values={name: cells[rows] for name, cells in values.items()},
            steps=steps,
            unmeasured=self.unmeasured,
        )

    def _records(self, begin: int, end: int) -> Iterator[BlockRecord]:
        from workspan.measure.profile import BlockStats

        table = self._table(begin, end)
        measures = []
        for name in MEASURED if self.resource_tracking else ():
            column = table.values[name].tolist()
            if name in table.unmeasured:
                column = [value or None for value in column]
            measures.append(column)
        stamped = all(name in table.values for name in STAMPED)
        stamps = [table.values[name].tolist() for name in STAMPED] if stamped else []
        step_columns = [(name, column.tolist()) for name, column in table.steps.items()]
        rows = zip(
            map(tuple, table.cells.tolist()),
            table.done.tolist(),
            table.failures.tolist(),
            table.executed.tolist(),
            strict=True,
        )
        for row, (coord, done, failures, executed) in enumerate(rows):
            if not executed:
                yield BlockRecord(coord=coord, done=done, failures=failures)
                continue
            worker, sent, returned = (column[row] for column in stamps) if stamps else (NO_WORKER, None, None)
            yield BlockRecord(
                coord=coord,
                done=done,
                failures=failures,
                stats=BlockStats(*(column[row] for column in measures)),
                worker_id=None if worker == NO_WORKER else worker,
                sent_at=sent,
                returned_at=returned,
                steps={name: cost for name, column in step_columns if (cost := column[row]) == cost},
            )

    # -- cells -----------------------------------------------------------------------------------------------------

    def _chunk(self, name: str) -> Path:
        return chunk_file(self.path / name, len(self.cell_counts))

    def _zeros(self, name: str, count: int) -> NDArray[Any]:
        return np.zeros(count, ARRAYS[name].dtype)

    def _is_blank(self, name: str) -> bool:
        """Whether the array has no chunk because all cells are 0; lost measurements are never taken for that."""
        return (name not in TRACKED or self.layout_hash is None) and not self._chunk(name).exists()

    def _range(self, name: str, begin: int, end: int) -> NDArray[Any]:
        if name not in self.arrays or self._is_blank(name):
            return self._zeros(name, end - begin)
        return self._guarded(read_range, name, begin, end)

    def _guarded(self, read: Any, name: str, *span: int) -> NDArray[Any]:
        try:
            values: NDArray[Any] = read(self._chunk(name), ARRAYS[name], self._count, *span)
        except ConfigurationError as error:
            raise damaged(self.path, name, str(error)) from None
        except FileNotFoundError:
            raise damaged(self.path, name, "its chunk is missing") from None
        except OSError as error:
            raise disk_error(error, self.path, f"reading {name!r}") from error
        return values

    def _step_range(self, name: str, begin: int, end: int) -> NDArray[np.float32]:
        if name not in self._steps:
            raise NoStoreError(f"tracking store {self.path} has no section {name!r}: it has {', '.join(self._steps)}")
        array = self.path / FOLDER / self._steps[name]
        grid = ChunkGrid(self.cell_counts)
        out = np.full(end - begin, np.nan, np.float32)
        for key in grid.keys(begin, end):
            first, stop = grid.span(key)
            low, high = max(first, begin), min(stop, end)
            try:
                out[low - begin : high - begin] = read_range(
                    grid.file(array, key), STEP, grid.cells, low - first, high - first
                )
            except FileNotFoundError:
                continue  # none of its blocks has executed the section
            except OSError as error:
                raise disk_error(error, self.path, f"reading the section {name!r}") from error
        return out
