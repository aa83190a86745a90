"""A task: a function over the blocks of a region."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.arguments import at_least
from workspan.errors import (
    BlockNotFoundError,
    ConfigurationError,
    LayoutMismatchError,
    UsageTypeError,
)
from workspan.grid import Block, Layout, as_roi
from workspan.grid.block import box_roi, index_of
from workspan.run.arguments import (
    check_amounts,
    checked_id,
    checked_tracking,
    deprecated,
    either,
    ints,
    timeout_seconds,
)
from workspan.run.functions import Kind, function_fingerprint, function_kind
from workspan.run.writes import ON_SHARED_CHUNK, check_hand_written, check_shared, kept_apart, target_of
from workspan.schedule.spec import TaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from funlib.geometry import Coordinate, Roi

    from workspan.report.forecast import Forecast
    from workspan.report.task import TaskReport
    from workspan.run.pipeline import Pipeline
    from workspan.run.writes import Target


class Task:
    """A function over the blocks of an n-dimensional region.

    Parameters
    ----------
    task_id
        Name of the task, unique in its pipeline; names its folder of logs and its default tracking folder.
    total_roi
        Region from which blocks read, in integer world units.
    read_roi, write_roi
        What one block reads and writes; only their shapes and relative position matter. The margin of the read ROI
        around the write ROI is the halo (context).
    process_function
        ``f(block)``, called for each block; its return value is ignored. Raising, or setting
        ``block.status = BlockStatus.FAILED``, fails the attempt. Or a worker function, ``f()`` or ``f(*, context)``,
        called once in each worker process: it takes blocks from a ``Client()`` itself or starts a process that does,
        and returns when that has ended. ``None``: no workers are started; the run waits for clients from outside.
    check_function
        ``f(block)`` that says whether the block was done before; an exception means no. A tracking store answers the
        same question faster.
    read_write_conflict
        Blocks whose write ROI overlaps another's read ROI never run at the same time.
    fit
        A partial trailing block is dropped (``"valid"``), kept at full size (``"overhang"``) or clipped
        (``"shrink"``).
    max_workers
        Most workers at the same time.
    max_retries
        A block is attempted at most ``max_retries + 1`` times.
    timeout
        Deadline of one attempt: seconds or a ``timedelta``; ``None`` means 600 s, ``inf`` none.
    tracking_path
        Folder of the tracking store. ``None``: ``<tracking basedir>/<task_id>`` if a basedir is set, else no
        tracking; ``False``: none.
    resource_tracking
        Measure what each block costs and keep it in the store.
    requires
        What one worker takes of the run's ``resources``, name -> amount.
    max_worker_restarts
        Worker starts allowed beyond the first *max_workers*.
    skip_mask
        Array of shape :attr:`block_grid_shape`; blocks where it is nonzero are not run.
    num_workers, upstream_tasks, done_marker_path
        daisy 1.x spellings of *max_workers*, of edges to tasks that this one waits for, and of *tracking_path*.
    init_callback_fn
        Called once in the driver, with a ``Context`` of the task, when the first block of the task is ready and before
        its first worker starts; not in the debug mode. What it raises ends the run.
    writes
        Arrays that the blocks write, as paths or array objects, each with one axis an axis of the ROIs: before anything
        runs, their chunks (or shards) are held against the write ROIs.
    on_shared_chunk
        Two blocks that could write one chunk at the same time are refused (``"refuse"``) or kept apart in time
        (``"order"``; the arrays must exist when the task is made).
    n_ref
        ``f(block)`` that returns what the time of a block depends on, a number above 0; it is called in the driver,
        for forecasts. ``None``: the elements of its write ROI.

    Raises
    ------
    ConfigurationError
        An argument has a value that cannot be used; the text names it. Also a ``ValueError``.
    UsageTypeError
        An argument has the wrong type, or both spellings of it were given. Also a ``TypeError``.
    """

    def __init__(
        self,
        task_id: str,
        total_roi: Roi | Any,
        read_roi: Roi | Any,
        write_roi: Roi | Any,
        process_function: Callable[..., Any] | None = None,
        check_function: Callable[[Block], Any] | None = None,
        read_write_conflict: bool = True,
        fit: str = "valid",
        max_workers: int | None = None,
        max_retries: int = 2,
        timeout: float | timedelta | None = None,
        tracking_path: str | os.PathLike[str] | bool | None = None,
        resource_tracking: bool = False,
        requires: Mapping[str, int] | None = None,
        max_worker_restarts: int = 10,
        skip_mask: Any = None,
        *,
        num_workers: int | None = None,
        upstream_tasks: Iterable[Task] | None = None,
        done_marker_path: str | os.PathLike[str] | bool | None = None,
        init_callback_fn: Callable[[Any], Any] | None = None,
        writes: Iterable[Any] = (),
        on_shared_chunk: str = "refuse",
        n_ref: Callable[[Block], float] | None = None,
    ) -> None:
        if n_ref is not None and not callable(n_ref):
            raise UsageTypeError(f"n_ref={n_ref!r} is not callable: pass a function of one block, or None")
        self.n_ref = n_ref
        if init_callback_fn is not None and not callable(init_callback_fn):
            raise UsageTypeError(f"init_callback_fn={init_callback_fn!r} is not callable: pass a function of a Context")
        self.init_callback_fn = init_callback_fn
        self.task_id = checked_id(task_id)
        self.total_roi = as_roi(total_roi, "total_roi")
        self.read_roi = as_roi(read_roi, "read_roi")
        self.write_roi = as_roi(write_roi, "write_roi")
        self.read_write_conflict = bool(read_write_conflict)
        self.fit = fit
        self.layout = Layout(
            ints(self.total_roi.begin, "total_roi.offset"),
            ints(self.total_roi.shape, "total_roi.shape"),
            ints(self.read_roi.begin, "read_roi.offset"),
            ints(self.read_roi.shape, "read_roi.shape"),
            ints(self.write_roi.begin, "write_roi.offset"),
            ints(self.write_roi.shape, "write_roi.shape"),
            fit,
            self.read_write_conflict,
        )
        max_workers = either("max_workers", max_workers, "num_workers", num_workers)
        tracking_path = either("tracking_path", tracking_path, "done_marker_path", done_marker_path)
        self.max_workers = at_least("max_workers", 1 if max_workers is None else max_workers, 1)
        self.max_retries = at_least("max_retries", max_retries, 0)
        self.max_worker_restarts = at_least("max_worker_restarts", max_worker_restarts, 0)
        self.timeout = timeout
        self.timeout_secs = timeout_seconds(timeout)
        self.tracking_path = checked_tracking(tracking_path)
        self.resource_tracking = bool(resource_tracking)
        check_amounts("requires", requires or {})
        self.requires = {name: amount for name, amount in dict(requires or {}).items() if amount > 0}
        self._skip_mask = self._checked_mask(skip_mask)
        self.process_function = process_function
        self.check_function = check_function
        if upstream_tasks is not None:
            deprecated("upstream_tasks", "Pipeline(tasks, edges) or a + b")
        self.upstream_tasks: list[Task] = list(upstream_tasks or ())
        for other in self.upstream_tasks:
            if not isinstance(other, Task):
                raise UsageTypeError(f"upstream_tasks has {other!r}, which is not a Task")
        self._memory_report: TaskReport | None = None
        if on_shared_chunk not in ON_SHARED_CHUNK:
            raise ConfigurationError(f"on_shared_chunk={on_shared_chunk!r} is not known: use 'refuse' or 'order'")
        if isinstance(writes, (str, os.PathLike)) or not hasattr(writes, "__iter__") or hasattr(writes, "shape"):
            raise UsageTypeError(f"writes={writes!r} is no list: pass a list of arrays, writes=[array]")
        self._writes = list(writes)
        if on_shared_chunk == "order":
            self.layout = replace(self.layout, apart=kept_apart(task_id, self.layout, self.targets()))

    # -- functions -------------------------------------------------------------------------------------------------

    @property
    def process_function(self) -> Callable[..., Any] | None:
        """The block function, or the worker function, or ``None``."""
        return self._process_function

    @process_function.setter
    def process_function(self, function: Callable[..., Any] | None) -> None:
        self.function_kind: Kind = "block" if function is None else function_kind(function)
        self._process_function = function

    @property
    def check_function(self) -> Callable[[Block], Any] | None:
        """``f(block)`` that says whether a block was done before, or ``None``."""
        return self._check_function

    @check_function.setter
    def check_function(self, function: Any) -> None:
        if isinstance(function, tuple) and len(function) == 2:
            function = function[0]  # daisy 1.x: (before, after)
        if function is not None:
            if not callable(function):
                raise UsageTypeError(f"check_function={function!r} is not callable: pass a function of one block")
            warnings.warn(
                "check_function runs in the scheduler for every block; a tracking_path remembers done blocks at no "
                "cost: prefer it",
                UserWarning,
                stacklevel=3,
            )
        self._check_function: Callable[[Block], Any] | None = function

    # -- geometry --------------------------------------------------------------------------------------------------

    @property
    def total_write_roi(self) -> Roi:
        """The total ROI less the context: what the blocks write together."""
        return box_roi(self.layout.covered)

    @property
    def block_grid_shape(self) -> Coordinate:
        """Blocks per axis: the shape of a skip mask."""
        from funlib.geometry import Coordinate

        return Coordinate(self.layout.counts)

    @property
    def skip_mask(self) -> Any:
        """Copy of the skip mask (uint8 array of shape :attr:`block_grid_shape`), or ``None``."""
        return None if self._skip_mask is None else self._skip_mask.copy()

    def mask_cell(self, block: Block) -> tuple[int, ...]:
        """Return where *block* is in arrays of shape :attr:`block_grid_shape`, such as the skip mask.

        Raises
        ------
        ConfigurationError
            It is no block of this task; also for :meth:`tracking_cell`.
        """
        return self.layout.coords(index_of(self.layout, block))

    def tracking_cell(self, block: Block) -> tuple[int, ...]:
        """Return where *block* is in the arrays of the tracking store, as ``report.block(cell)`` takes it."""
        return self.layout.cell(index_of(self.layout, block))

    def block_at(self, *, mask_cell: Sequence[int] | None = None, tracking_cell: Sequence[int] | None = None) -> Block:
        """Return the block at a position of one of the two grids; give exactly one.

        Raises
        ------
        BlockNotFoundError
            No block is there.
        UsageTypeError
            Both positions are given, or none.
        """
        if (mask_cell is None) == (tracking_cell is None):
            raise UsageTypeError("block_at() takes either mask_cell= or tracking_cell=")
        layout = self.layout
        if tracking_cell is not None:
            index = layout.index_of_cell(tracking_cell) if len(tracking_cell) == layout.rank else None
        else:
            assert mask_cell is not None
            inside = len(mask_cell) == layout.rank and layout.contains(mask_cell)
            index = layout.index(mask_cell) if inside else None
        if index is None:
            given = f"tracking_cell={tracking_cell}" if mask_cell is None else f"mask_cell={mask_cell}"
            first = layout.first_cell if mask_cell is None else (0,) * layout.rank
            raise BlockNotFoundError(
                f"task {self.task_id!r} has no block at {given}: there are {layout.counts} blocks, the first at {first}"
            )
        return Block.at(layout, index, self.task_id)

    def _checked_mask(self, mask: Any) -> Any:
        if mask is None:
            return None
        import numpy as np

        array = np.ascontiguousarray(np.asarray(mask) != 0, dtype=np.uint8)
        if array.shape != self.layout.counts:
            raise ConfigurationError(
                f"skip_mask has shape {array.shape} but task {self.task_id!r} has {self.layout.counts} blocks per axis "
                "(block_grid_shape): make one entry a block"
            )
        return array

    # -- tracking --------------------------------------------------------------------------------------------------

    def resolved_tracking_path(self) -> Path | None:
        """Folder of the tracking store of the next run, absolute; ``None`` without tracking."""
        if self.tracking_path is False:
            return None
        if self.tracking_path is not None:
            return Path(self.tracking_path).absolute()
        basedir = config.get("tracking_basedir")
        return None if basedir is None else (basedir / self.task_id).absolute()

    def reset(self) -> Path | None:
        """Delete the tracking store with its run history, so that the next run does everything again.

        Returns
        -------
        Path | None
            The deleted folder, or ``None`` if there is none.

        Raises
        ------
        TrackingError
            The folder is not a tracking store; nothing is deleted.
        StoreLockedError
            A run writes to it.
        """
        path = self.resolved_tracking_path()
        if path is None or not path.is_dir():
            return None
        from workspan.store.repair import delete_store

        return path if delete_store(path) is not None else None

    def failed_blocks(self) -> list[Block]:
        """Blocks that failed and never succeeded, according to the store, level by level; ``[]`` without a store.

        Raises
        ------
        LayoutMismatchError
            The store was made for another layout.
        """
        path = self.resolved_tracking_path()
        if path is None or not (path / "zarr.json").is_file():
            return []
        import numpy as np

        from workspan.store.hash import layout_hash
        from workspan.store.tracking import TrackingStore

        layout, store = self.layout, TrackingStore.peek(path)
        if store.layout_hash not in (None, layout_hash(layout)):
            raise LayoutMismatchError(
                f"{path} was made for another layout of task {self.task_id!r}: use the arguments that made it"
            )
        bad = (store.failures_of(layout) > 0) & (store.done_of(layout) == 0)
        indices = sorted((layout.level_of(layout.coords(i)), i) for i in np.flatnonzero(bad).tolist())
        return [Block.at(layout, index, self.task_id) for _, index in indices]

    def report(self) -> TaskReport | None:
        """Report of the last run of this task, also from an earlier process; ``None`` before any run."""
        from workspan.run.reports import last_report

        return last_report(self)

    def forecast(self, workers: int | None = None, *, fresh: bool = False, **options: Any) -> Forecast:
        """Say what the next run of this task, alone, will take: see :func:`workspan.forecast`."""
        from workspan.run.forecasts import forecast
        from workspan.run.pipeline import Pipeline

        return forecast(Pipeline([self]), workers, fresh=fresh, **options)

    def history_marks(self) -> tuple[str | None, str | None]:
        """Return what tells its function, and its ``n_ref``, from others that history of this task id may hold."""
        function, n_ref = self._process_function, self.n_ref
        return (
            None if function is None else function_fingerprint(function),
            None if n_ref is None else function_fingerprint(n_ref) or "unknown",
        )

    # -- running ---------------------------------------------------------------------------------------------------

    def spec(self) -> TaskSpec:
        """Rules of the task, without functions and paths."""
        return TaskSpec(
            task_id=self.task_id,
            layout=self.layout,
            max_workers=self.max_workers,
            max_retries=self.max_retries,
            timeout=self.timeout_secs,
            max_worker_restarts=self.max_worker_restarts,
            requires=self.requires,
            has_function=self._process_function is not None,
        )

    def targets(self) -> list[Target]:
        """Return the arrays that the blocks write, as far as that was told (``writes``)."""
        return [target_of(array, self.task_id) for array in self._writes]

    def check_run(self, in_process: bool, *, has_upstream: bool = True) -> None:
        """Refuse what could lose data, before anything is opened.

        *in_process*: no worker processes. *has_upstream*: tasks run before it, which may write what it reads.
        """
        check_shared(self.task_id, self.layout, self.targets())

    def check_outputs(self, done: Any, *, fresh: bool) -> None:
        """Look at what an earlier run has left, and refuse it if the chunks of done blocks are gone.

        *done*: flags in the shape of the mask grid; ``None`` without a store. *fresh*: this run made the store.
        """
        if done is not None and done.any():
            check_hand_written(self.task_id, self.layout, done, self._writes)

    def make_outputs(self) -> None:
        """Make what the blocks write into, right before the run; the outputs of all its tasks are checked."""

    def run_blockwise(self, **kwargs: Any) -> Any:
        """Run this task and those it was made to wait for: :func:`workspan.run_blockwise`."""
        from workspan.run.runner import run_blockwise

        return run_blockwise(self, **kwargs)

    run = run_blockwise

    def __deepcopy__(self, memo: dict[int, Any]) -> Task:
        """Copy the task; functions and upstream tasks are shared, since edges are made of the very objects."""
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin.requires, twin.upstream_tasks = dict(self.requires), list(self.upstream_tasks)
        twin._skip_mask = None if self._skip_mask is None else self._skip_mask.copy()
        return twin

    def __add__(self, other: Any) -> Pipeline:
        """Run *other* after this task, block by block."""
        from workspan.run.pipeline import Pipeline

        return Pipeline.from_task(self).__add__(other)

    def __or__(self, other: Any) -> Pipeline:
        """Run *other* beside this task."""
        from workspan.run.pipeline import Pipeline

        return Pipeline.from_task(self).__or__(other)

    def _repr_html_(self) -> str:
        from workspan.run.shown import task_html

        return task_html(self)

    def __repr__(self) -> str:
        return f"Task({self.task_id!r}, {self.layout.num_blocks:,} blocks of {self.layout.write_shape})"
