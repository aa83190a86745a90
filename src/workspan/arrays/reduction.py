"""``reduce_blocks``: one value from arrays, by blocks: a histogram, a sum, counts of labels, a bounding box."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.arrays.block import BlockReader
from workspan.arrays.results import combine_as_tree, indices_in, read_result, write_result
from workspan.arrays.task import ArrayTask, Cut
from workspan.errors import ConfigurationError, TrackingError
from workspan.measure.sections import section
from workspan.store.lock import beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.grid import Block
    from workspan.grid.layout import Ints


def reduce_blocks(
    function: Callable[..., Any],
    *inputs: Any,
    combine: Callable[[Any, Any], Any] = np.add,
    block_shape: Any = "chunks",
    halo: Any = 0,
    mode: str = "clip",
    fill: Any = 0,
    units: str = "voxels",
    roi: Any = None,
    task_id: str | None = None,
    **task_arguments: Any,
) -> ReduceTask:
    """Make a task that computes a value of each block, and one value of them all.

    What a block gave is kept in a file beside the tracking store, so a run that goes on computes no block again. The
    values are combined as a tree, in the order of the blocks, when :meth:`ReduceTask.result` is called.

    Parameters
    ----------
    function
        ``function(array, ...)``, and ``block`` if it has a parameter of that name. It returns a number, a NumPy array,
        a table (pyarrow or pandas, kept as Parquet and combined as pyarrow tables), or ``None``: the block has nothing
        to add.
    *inputs, block_shape, halo, mode, fill, units, roi, task_id
        As for :func:`workspan.map_blocks`. With a halo blocks see voxels of their neighbours too, and with the mode
        ``"clip"`` nothing beyond the edge.
    combine
        ``combine(one, other)`` of two values; associative. By default they are added.
    **task_arguments
        Further arguments of :class:`workspan.Task`.

    Returns
    -------
    ReduceTask
        A :class:`workspan.Task` with :meth:`~ReduceTask.result`.

    Raises
    ------
    ConfigurationError
        An input is missing, or arrays and shapes do not fit each other.

    Examples
    --------
    >>> import numpy as np, workspan as ws
    >>> task = ws.reduce_blocks(np.max, np.arange(24).reshape(4, 6), combine=max, block_shape=3)
    >>> task.run(engine="serial", progress=False, summary=False), int(task.result())
    (True, 23)
    """
    cut = Cut(function, inputs, halo=halo, mode=mode, units=units, roi=roi)
    first = cut.inputs[0]
    block = cut.block_shape(block_shape, first.shards or first.chunks)
    return ReduceTask(task_id, cut, block, BlockReducer(function, cut.inputs, mode, fill), combine, **task_arguments)


class BlockReducer(BlockReader):
    """Keeps what the function returns."""

    folder: Path | None = None

    def __call__(self, block: Block) -> None:
        """Process one block."""
        value = self.compute(block)
        assert self.folder is not None
        assert block.index is not None
        with section("write"):
            write_result(self.folder, block.index, value)


class ReduceTask(ArrayTask):
    """A task that computes one value; made by :func:`workspan.reduce_blocks`."""

    reader: BlockReducer

    def __init__(
        self,
        task_id: str | None,
        cut: Cut,
        block: Ints,
        reader: BlockReducer,
        combine: Callable[[Any, Any], Any],
        **task_arguments: Any,
    ) -> None:
        super().__init__(task_id, cut, block, reader, **task_arguments)
        self.combine = combine
        self._is_kept = False

    def results_folder(self) -> Path | None:
        """Return the folder of the blocks' values: beside the tracking store, or temporary; ``None`` before a run."""
        tracking = self.resolved_tracking_path()
        if tracking is not None and (self._is_kept or self.reader.folder is None):
            return beside(Path(os.path.realpath(tracking)), ".results")
        return self.reader.folder

    def check_outputs(self, done: Any, *, fresh: bool) -> None:
        """Refuse to go on where values of done blocks are missing."""
        super().check_outputs(done, fresh=fresh)
        tracking = self.resolved_tracking_path() if done is not None else None
        self._is_kept = tracking is not None
        if tracking is None:
            self.reader.folder = Path(tempfile.mkdtemp(prefix="workspan-results-"))
            weakref.finalize(self, shutil.rmtree, self.reader.folder, ignore_errors=True)
            return
        folder = self.reader.folder = beside(Path(os.path.realpath(tracking)), ".results")
        if fresh or not done.any():
            shutil.rmtree(folder, ignore_errors=True)
        missing = sorted(set(np.flatnonzero(done).tolist()) - indices_in(folder))
        if missing:
            raise TrackingError(
                f"{len(missing)} blocks of task {self.task_id!r} are recorded as done and have no value in "
                f"{str(folder)!r} (the first is block {missing[0]}): give the files back, or call its reset() to do "
                "everything again"
            )
        folder.mkdir(parents=True, exist_ok=True)

    def result(self) -> Any:
        """Return the value of all blocks; also in a later process, if the task has a tracking store.

        Blocks that a skip mask leaves out add nothing.

        Returns
        -------
        Any
            ``None`` if no block had anything to add.

        Raises
        ------
        ConfigurationError
            The task has not run, or blocks are missing: the value would be that of a part.
        """
        folder = self.results_folder()
        wanted = np.arange(self.layout.num_blocks)
        mask = self.skip_mask
        if mask is not None:
            wanted = wanted[mask.reshape(-1) == 0]
        there = set() if folder is None else indices_in(folder)
        missing = [index for index in wanted.tolist() if index not in there]
        if missing:
            raise ConfigurationError(
                f"task {self.task_id!r} has values of {len(wanted) - len(missing)} of {len(wanted)} blocks, so there "
                "is no result yet: run it, until every block is done"
            )
        assert folder is not None
        return combine_as_tree((read_result(folder, index) for index in wanted.tolist()), self.combine)
