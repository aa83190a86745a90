"""The tracking store of a task while it runs: which blocks are done, how often they failed, and what they cost.

Only the driver writes. The cells of a block are stored into shared maps (see ``files``), so they outlive the process
from the moment they are stored, also one that is killed; ``done`` comes last, so a block that is done has all its
measurements. :meth:`TrackingStore.flush` makes them outlive the machine.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.errors import TrackingError, WorkspanError
from workspan.store.columns import FLAGS, FOREVER, STATS, Columns, cell_terms, fresh, in_order
from workspan.store.faults import disk_error, is_full
from workspan.store.files import STEP_BITS, can_map
from workspan.store.lock import StoreLock, beside
from workspan.store.meta import TRACKED
from workspan.store.opening import WORKSPAN_KEY, check_layout, open_group, prepare_folder, remove_empty, write_group
from workspan.store.reader import NO_WORKER, StoreReader, mask_grid
from workspan.store.slots import InFlight, SlotFile, read_slots
from workspan.store.steps import StepArrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from workspan.grid.layout import Layout
    from workspan.measure.profile import BlockStats
    from workspan.store.records import BlockRecord

__all__ = ["TrackingStore"]

_MOST_FAILURES = 2**32 - 1
_TRIM_MASK = (1 << 14) - 1
_BATCH = 1 << 20
_FEW = 8


class TrackingStore:
    """A tracking store that is open for writing; made by :meth:`open`.

    Not safe for use by several threads at once. Other processes may read the group at any time.

    Attributes
    ----------
    path
        Folder of the group; symbolic links are resolved.
    layout
        The tiling whose blocks it tracks.
    resource_tracking
        Whether measurements are stored.
    done
        1 where a block is done, in the shape of the tracking grid; a live view.
    failures
        Started attempts that did not succeed, in the shape of the tracking grid; a live view.
    was_in_flight
        Blocks that were granted when the last run was killed, and are not done.
    newly_done
        Cells that became done through this object.
    """

    def __init__(self, path: Path, layout: Layout, *, resource_tracking: bool, lock: StoreLock) -> None:
        self.path, self.layout, self.resource_tracking, self._lock = path, layout, resource_tracking, lock
        self.newly_done = 0
        self.was_in_flight: tuple[InFlight, ...] = ()
        self._base, self._terms = cell_terms(layout)
        self._num_blocks = layout.num_blocks
        self._columns: Columns | None = None
        self._steps: StepArrays | None = None
        self._slots: SlotFile | None = None
        self._closed = False
        self._pid = os.getpid()
        # Why the store takes nothing more: a disk that failed once is not believed again.
        self._fault: WorkspanError | None = None
        self._written = 0
        self._dirty = False

    @classmethod
    def open(
        cls,
        path: Path | str,
        layout: Layout,
        *,
        resource_tracking: bool = False,
        task_id: str | None = None,
        function: str | None = None,
    ) -> TrackingStore:
        """Open the store at *path* for a run, or make it.

        Parameters
        ----------
        path
            Folder of the group; parents are made as well.
        layout
            The task's tiling.
        resource_tracking
            Store measurements; a store without them is given the arrays.
        task_id
            Noted in the group's attributes.
        function
            Fingerprint of the block function. One that differs from the last run's is warned of.

        Raises
        ------
        StoreLockedError
            Another run writes to it.
        LayoutMismatchError, InvalidMetadataError
            It is for another layout, or it is damaged; nothing was changed.
        StoreFullError
            There is no room for it.
        TrackingError
            The path cannot be used; the text names path and reason.
        """
        digest = check_layout(layout)
        group, parents = prepare_folder(path)
        try:
            lock = StoreLock(group)
        except WorkspanError:
            remove_empty(parents)
            raise
        existed = group.exists()
        store = cls(group, layout, resource_tracking=resource_tracking, lock=lock)
        try:
            store._open(digest, task_id, function, existed)
        except BaseException as error:
            store._release(orderly=not existed)
            remove_empty(parents)
            if isinstance(error, OSError) and not isinstance(error, WorkspanError):
                raise disk_error(error, group, "opening the tracking store") from error
            raise
        return store

    @staticmethod
    def peek(path: Path | str) -> StoreReader:
        """Open the store at *path* for reading: any layout, no lock, nothing changed."""
        return StoreReader(path)

    def _open(self, digest: str, task_id: str | None, function: str | None, existed: bool) -> None:
        layout, tracked = self.layout, self.resource_tracking
        opened = open_group(self.path, layout, tracked=tracked, task_id=task_id, function=function)
        self._attributes, self._owned = opened.attributes, opened.owned
        self._dirty = bool(opened.created)
        mapped = can_map(self.path)
        self._columns = Columns(self.path, layout, tracked=tracked, created=opened.created, mapped=mapped)
        files = self._columns.files
        self._real, self._failures_real = self._columns.real, self._columns.failures_real
        self._done_cells, self._failure_cells = files["done"].cells, files["failures"].cells
        self._need = FLAGS | STATS if tracked else FLAGS
        self._stat_cells = tuple(files[name].cells for name in TRACKED) if tracked else None
        if tracked:
            self._steps = StepArrays(
                self.path, layout.cell_counts, opened.step_names, mapped=mapped, added=self._write_group
            )
        self._flags, self._counts = opened.done, opened.failures
        self._flag_cells = memoryview(self._flags.data)
        self.done = _read_only(self._flags, layout)
        self.failures = _read_only(self._counts, layout)

        slots = beside(self.path, ".slots")
        if existed:
            self.was_in_flight = tuple(
                block
                for block in read_slots(slots, digest)
                if block.index < layout.num_blocks and not self._flags[self._number(block.index)]
            )
        self._slots = SlotFile(slots, digest, mapped=mapped)

    # -- asking ----------------------------------------------------------------------------------------------------

    def done_blocks(self) -> NDArray[np.uint8]:
        """Return which blocks are done, in the shape of the mask grid (``layout.counts``); a live view."""
        return self.done[mask_grid(self.layout)]

    def failures_of_blocks(self) -> NDArray[np.uint32]:
        """Return the failures of each block, in the shape of the mask grid; a live view."""
        return self.failures[mask_grid(self.layout)]

    def block(self, coord: Sequence[int]) -> BlockRecord | None:
        """Return the record of the block at tracking-grid position *coord*, or ``None`` if it was never executed.

        Raises
        ------
        BlockNotFoundError
            *coord* is outside the tracking grid.
        """
        return self.peek(self.path).block(coord)

    def block_records(self) -> Iterator[BlockRecord]:
        """Yield every recorded block, in grid (C) order."""
        return StoreReader(self.path).block_records()

    # -- recording -------------------------------------------------------------------------------------------------

    def grant(self, index: int, worker: int | None) -> None:
        """Remember that block *index* is in flight, should this process be killed."""
        if self._slots is not None:
            try:
                self._slots.grant(index, worker)
            except OSError as error:
                raise self._failed(error, "noting a granted block") from error

    def ungrant(self, index: int) -> None:
        """Block *index* came back unstarted: it is no longer in flight."""
        if self._slots is not None:
            try:
                self._slots.strike(index)
            except OSError as error:
                raise self._failed(error, "noting a block that was given back") from error

    def record_done(
        self,
        index: int,
        stats: BlockStats | None,
        worker: int | None,
        sent_at: float,
        returned_at: float,
        steps: Mapping[str, tuple[float, int]] | None = None,
    ) -> None:
        """Record that block *index* succeeded.

        Parameters
        ----------
        index
            Block, by its number in the mask grid.
        stats
            What its worker measured; ``None`` stores neither measurements nor stamps.
        worker
            Who did it; ``None``: no managed worker.
        sent_at, returned_at
            When the attempt went out and came back, in seconds since the UNIX epoch.
        steps
            Section name -> (self seconds, calls).

        Raises
        ------
        StoreFullError
            There is no room on the disk. The block is not done; what was recorded before is intact.
        TrackingError
            The disk has failed, or the store is closed.
        """
        if not 0 <= index < self._num_blocks:
            raise IndexError(f"block {index} of {self._num_blocks}")
        number = index + self._base
        for stride, weight in self._terms:
            number += index // stride * weight
        try:
            if self._real[number >> STEP_BITS] != self._need:
                self._checked().make_real(number >> STEP_BITS, self._need)
            if self._stat_cells is not None:
                wall, cpu, peak_rss, io_read, io_write, gpu_util, gpu_mem, worker_id, sent, returned = self._stat_cells
                if returned[number]:  # an older record: no reader may see parts of both
                    self._done_cells[number] = 0
                    returned[number] = 0.0
                if stats is not None:
                    try:
                        wall[number] = stats.wall_seconds
                        cpu[number] = stats.cpu_seconds
                        peak_rss[number] = stats.peak_rss_bytes
                        io_read[number] = stats.io_read_bytes
                        io_write[number] = stats.io_write_bytes
                        gpu_util[number] = stats.gpu_util_pct
                        gpu_mem[number] = stats.gpu_mem_bytes
                    except (TypeError, ValueError, OverflowError):
                        self._write_unusual(number, stats)
                    if self._steps is not None and (steps or self._steps.names):
                        self._steps.write(number, steps or {})
                    worker_id[number] = NO_WORKER if worker is None else worker
                    if not 0 < sent_at <= returned_at < FOREVER:
                        sent_at, returned_at = in_order(sent_at, returned_at)
                    sent[number] = sent_at
                    returned[number] = returned_at
            self._done_cells[number] = 1
        except OSError as error:
            raise self._failed(error, "recording a block") from error
        if not self._flag_cells[number]:
            self._flag_cells[number] = 1
            self.newly_done += 1
        if self._slots is not None:
            self._slots.release(index)
        self._dirty = True
        self._written += 1
        if not self._written & _TRIM_MASK:
            self._trim()

    def record_failure(self, index: int) -> None:
        """Count a started attempt of block *index* that did not succeed, whoever says so and whatever follows.

        Raises
        ------
        StoreFullError, TrackingError
            As for :meth:`record_done`.
        """
        number = self._number(index)
        try:
            if not self._failures_real[number >> STEP_BITS]:
                self._checked().make_failures_real(number >> STEP_BITS)
            count = int(self._counts[number])
            if count < _MOST_FAILURES:
                self._failure_cells[number] = count + 1
                self._counts[number] = count + 1
            self._dirty = True
            if self._slots is not None:
                self._slots.strike(index)
        except OSError as error:
            raise self._failed(error, "recording a failed attempt") from error

    def mark_done(self, indices: int | Sequence[int] | NDArray[Any]) -> int:
        """Set the done flag of blocks that need not run, and nothing else.

        Parameters
        ----------
        indices
            A block's number in the mask grid, or many.

        Returns
        -------
        int
            How many of them were not done before.

        Raises
        ------
        StoreFullError, TrackingError
            As for :meth:`record_done`; blocks of earlier ranges may have been marked.
        """
        before = self.newly_done
        if isinstance(indices, int) or (isinstance(indices, (list, tuple)) and len(indices) < _FEW):
            for index in (indices,) if isinstance(indices, int) else indices:
                self._mark_one(index)
            return self.newly_done - before
        many = np.atleast_1d(np.asarray(indices)).reshape(-1)
        many = many.astype(np.int64, casting="same_kind", copy=False) if many.size else many
        if many.size and not (many.min() >= 0 and many.max() < self._num_blocks):
            raise IndexError(f"blocks {many.min()} to {many.max()} of {self._num_blocks}")
        for begin in range(0, len(many), _BATCH):
            self._mark(many[begin : begin + _BATCH])
        return self.newly_done - before

    def _mark_one(self, index: int) -> None:
        number = self._number(index)
        try:
            if not self._real[number >> STEP_BITS] & FLAGS:
                self._checked().make_real(number >> STEP_BITS, FLAGS)
            if not self._flag_cells[number]:
                self._done_cells[number] = 1
                self._flag_cells[number] = 1
                self.newly_done += 1
                self._dirty = True
        except OSError as error:
            raise self._failed(error, "marking a block as done") from error

    def _mark(self, indices: NDArray[np.int64]) -> None:
        columns = self._checked()
        numbers = indices + self._base
        for stride, weight in self._terms:
            numbers += indices // stride * weight
        numbers = fresh(numbers, self._flags)
        try:
            for step in np.flatnonzero(np.bincount(numbers >> STEP_BITS)).tolist():
                if not self._real[step] & FLAGS:
                    columns.make_real(step, FLAGS)
            columns.files["done"].set_ones(numbers)
        except OSError as error:
            raise self._failed(error, "marking blocks as done") from error
        self._flags[numbers] = 1
        self.newly_done += len(numbers)
        self._dirty = True

    def _number(self, index: int) -> int:
        """C-order number of the cell of block *index*."""
        if not 0 <= index < self._num_blocks:
            raise IndexError(f"block {index} of {self._num_blocks}")
        return index + self._base + sum(index // stride * weight for stride, weight in self._terms)

    def _checked(self) -> Columns:
        """Return the columns, if they may be written. Every first store into a range comes by here."""
        if self._closed or self._columns is None:
            raise TrackingError(f"tracking store {self.path} is closed")
        if self._fault is not None:
            raise self._fault
        return self._columns

    def _write_unusual(self, number: int, stats: BlockStats) -> None:
        """Store measurements of which some were not taken; the group says which arrays have cells without value."""
        lacking = self._checked().write_unusual(number, stats)
        ours = self._attributes.get(WORKSPAN_KEY, {"schema": 1})
        known = set(ours.get("unmeasured", []))
        if lacking - known:
            unmeasured = [name for name in TRACKED if name in known | lacking]
            self._attributes = {**self._attributes, WORKSPAN_KEY: {**ours, "unmeasured": unmeasured}}
            self._write_group()

    def _write_group(self) -> None:
        write_group(self.path, self._attributes, owned=self._owned)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def _failed(self, error: OSError, doing: str) -> WorkspanError:
        """Return what to raise for *error*. A full disk may get room again; any other fault ends the store."""
        told = disk_error(error, self.path, doing)
        if not is_full(error):
            self._end(told)
        return told

    def _end(self, fault: WorkspanError) -> None:
        self._fault = fault
        if self._columns is not None:
            self._columns.distrust()

    def _trim(self) -> None:
        if self._columns is not None:
            self._columns.trim()
        if self._steps is not None:
            self._steps.trim()

    def flush(self) -> None:
        """Make everything recorded so far outlive the machine; call it at least every 30 s and at the end.

        Measurements go before the flags. Costs a few hundred microseconds per array on a solid-state disk, and nothing
        if nothing was recorded.

        Raises
        ------
        StoreLockedError
            Another run has taken the store over (file systems without locks only). It takes nothing more.
        TrackingError
            The disk has lost something. The store takes nothing more.
        """
        columns = self._checked()
        try:
            self._lock.refresh()
        except WorkspanError as error:
            self._end(error)
            raise
        if not self._dirty:
            return
        try:
            if self._steps is not None:
                self._steps.flush()
            columns.flush()
        except OSError as error:
            told = disk_error(error, self.path, "flushing the tracking store")
            self._end(told)
            raise told from error
        self._dirty = False
        self._trim()

    def close(self) -> None:
        """Flush, let go of all files and give the store free. Can be repeated.

        Raises
        ------
        TrackingError
            The disk lost something at the last flush; the store is closed all the same.
        """
        if self._closed:
            return
        try:
            if self._fault is None:
                self.flush()
        finally:
            self._release(orderly=os.getpid() == self._pid)  # a forked copy leaves the slot file alone

    def _release(self, *, orderly: bool) -> None:
        self._closed = True
        self._stat_cells = None
        if self._steps is not None:
            self._steps.close()
        if self._columns is not None:
            self._columns.distrust()
            self._columns.close()
        if self._slots is not None:
            self._slots.close(remove=orderly)
            self._slots = None
        self._lock.release()

    def __enter__(self) -> TrackingStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            self.close()
        else:
            with suppress(WorkspanError):  # the error on its way is the one to tell
                self.close()

    def __repr__(self) -> str:
        tracked = ", resource tracking" if self.resource_tracking else ""
        return f"TrackingStore({str(self.path)!r}, cells {self.layout.cell_counts}{tracked})"


def _read_only(cells: NDArray[Any], layout: Layout) -> NDArray[Any]:
    view = cells.reshape(layout.cell_counts)
    view.flags.writeable = False
    return view
