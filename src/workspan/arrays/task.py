"""Tasks over arrays: what :func:`map_blocks` and :func:`reduce_blocks` have in common."""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workspan.arrays.edges import MODES
from workspan.arrays.refs import MOST_VALUE_BYTES, Ref, in_world_units, ref_of, value_bytes
from workspan.arrays.shapes import block_bytes, check_inputs, check_whole_voxels, halo_of, per_axis, region_of
from workspan.arrays.tiles import KEPT_BYTES, plan_tiles
from workspan.engines.memory import MemoryWatch
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.report.places import RUNS
from workspan.report.task import TaskReport
from workspan.run.functions import function_name
from workspan.run.task import Task
from workspan.store.runs import last_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from funlib.geometry import Roi

    from workspan.arrays.block import BlockReader
    from workspan.arrays.shapes import Halo
    from workspan.arrays.tiles import TilePlan
    from workspan.grid.layout import Box, Ints
    from workspan.measure.stats import Stat

WORKER_BYTES = 150_000_000
"""What a worker needs besides its block: the interpreter, NumPy and Zarr."""

FIRST_BLOCKS = 3
"""So many blocks tell what one takes."""

logger = logging.getLogger(__name__)

UNITS = ("voxels", "world")


class Cut:
    """How arrays are cut into blocks; everything is checked.

    Parameters
    ----------
    function, inputs, block_shape, halo, mode, units, roi
        As for :func:`workspan.map_blocks`.
    """

    def __init__(self, function: Any, inputs: Sequence[Any], *, halo: Any, mode: str, units: str, roi: Any) -> None:
        if not callable(function):
            raise UsageTypeError(f"function={function!r} is not callable: pass a function of NumPy arrays")
        if not inputs:
            raise UsageTypeError("there is no input: pass at least one array after the function")
        if mode not in MODES:
            raise ConfigurationError(f"mode={mode!r} is not known: use one of {', '.join(map(repr, MODES))}")
        if units not in UNITS:
            raise ConfigurationError(f"units={units!r} is not known: use 'voxels' or 'world'")
        self.upstream = [what for what in inputs if isinstance(what, Task)]
        refs: list[Ref] = []
        for number, what in enumerate(inputs):
            name = "input" if len(inputs) == 1 else f"inputs[{number}]"
            ref = output_of(what, name) if isinstance(what, Task) else ref_of(what, name)
            refs.append(ref if units == "voxels" else in_world_units(ref, refs[0] if refs else None))
        check_inputs(refs)
        self.inputs, self.mode, self.units = refs, mode, units
        self.region: Box = region_of(roi, refs[0].whole)
        self.halo: Halo = halo_of(halo, self.rank)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.inputs[0].shape)

    def block_shape(self, asked: Any, piece: Ints | None) -> Ints:
        """Return the write shape of a block, in the units of the blocks.

        Parameters
        ----------
        asked
            What was passed as *block_shape*.
        piece
            Shape of what is written, or read, in one piece, in voxels of the first input; ``None``: none is known.
        """
        if not (isinstance(asked, str) and asked == "chunks"):
            return per_axis("block_shape", asked, self.rank, least=1)
        if piece is None:
            raise ConfigurationError(
                f"block_shape='chunks', and {self.inputs[0].name} has no chunks: pass the shape of a block"
            )
        return tuple(n * v for n, v in zip(piece, self.inputs[0].voxel_size, strict=True))

    def rois(self, block: Ints) -> tuple[Roi, Roi, Roi]:
        """Return total, read and write ROI: the blocks write the region, no voxel less."""
        from funlib.geometry import Roi

        low = tuple(h[0] for h in self.halo)
        high = tuple(h[1] for h in self.halo)
        for ref in self.inputs:
            check_whole_voxels("block_shape", block, ref)
            check_whole_voxels("halo", [*low], ref)
            check_whole_voxels("halo", [*high], ref)
            check_whole_voxels("begin", [b - o for b, o in zip(self.region[0], ref.offset, strict=True)], ref)
        begin, end = self.region
        total = Roi(begin, tuple(e - b for b, e in zip(begin, end, strict=True))).grow(low, high)
        write = Roi((0,) * self.rank, block)
        return total, write.grow(low, high), write


class ArrayTask(Task):
    """A task whose blocks read arrays.

    Attributes
    ----------
    inputs
        What the blocks read.
    """

    outputs: tuple[Ref, ...] = ()

    def __init__(self, task_id: str | None, cut: Cut, block: Ints, reader: BlockReader, **task_arguments: Any) -> None:
        for name in ("total_roi", "read_roi", "write_roi", "process_function", "fit", "read_write_conflict"):
            if name in task_arguments:
                raise UsageTypeError(f"{name}= follows from the arrays: use roi=, block_shape= and halo=")
        name = task_id if task_id is not None else function_name(reader.func).split(".")[-1].strip("<>")
        total, read, write = cut.rois(block)
        function: Any = reader
        super().__init__(name, total, read, write, function, read_write_conflict=False, fit="shrink", **task_arguments)
        self.inputs: tuple[Ref, ...] = tuple(cut.inputs)
        self.halo: Halo = cut.halo
        self.reader = reader
        self.upstream_tasks += [task for task in cut.upstream if task not in self.upstream_tasks]

    def check_run(self, in_process: bool, *, has_upstream: bool = True) -> None:
        """Refuse arrays that workers cannot reach, and warn of blocks that will not fit into memory."""
        super().check_run(in_process, has_upstream=has_upstream)
        for ref in self.inputs:
            if value_bytes(ref) > MOST_VALUE_BYTES and not in_process:
                raise ConfigurationError(
                    f"{ref.name} has {value_bytes(ref):,} bytes, and arrays above {MOST_VALUE_BYTES:,} do not travel "
                    "to workers by value: save it (numpy.save, or as Zarr) and pass the path, or use engine='serial'"
                )
            if ref.is_private and not value_bytes(ref) and not in_process and all(ref.shape):
                raise self._private(ref, "read")
        for ref in self.outputs:
            if ref.is_private and not in_process:
                raise self._private(ref, "write to")
        # What is kept of an input must not change meanwhile, and goes when a worker ends.
        self.reader.plans = () if in_process or has_upstream else tuple(map(self._tiles, self.inputs))
        self._check_memory(1 if in_process else self.max_workers)

    def _tiles(self, ref: Ref) -> TilePlan | None:
        """Decide how an input is read."""
        if ref.chunks is None or not any(map(any, self.halo)):
            return None
        layout, voxel = self.layout, ref.voxel_size
        if any(s % v for s, v in zip(layout.write_shape, voxel, strict=True)):
            return None
        return plan_tiles(
            ref.shape,
            ref.chunks,
            ref.dtype.itemsize,
            origin=ref.voxels(layout.covered)[0],
            size=tuple(s // v for s, v in zip(layout.write_shape, voxel, strict=True)),
            halo=tuple((low // v, high // v) for (low, high), v in zip(self.halo, voxel, strict=True)),
            most_bytes=KEPT_BYTES // len(self.inputs),
        )

    def _private(self, ref: Ref, doing: str) -> ConfigurationError:
        return ConfigurationError(
            f"task {self.task_id!r}: {ref.name} is in the memory of this process, and worker processes cannot {doing} "
            "it: use a file or an object store, or run with engine='serial'"
        )

    def predicted_bytes(self) -> int:
        """Return what one block holds at its peak by arithmetic (inputs and outputs with their halo), in bytes."""
        return block_bytes(self.inputs, self.outputs, self.layout.write_shape, self.halo)

    def measured_bytes(self) -> int | None:
        """Return the largest peak of a block in the last run of these blocks, its worker included, in bytes.

        ``None``: nothing was measured (``resource_tracking``).
        """
        tracking = self.resolved_tracking_path()
        # Of this folder alone, which takes no other blocks: another task of the same name may have run elsewhere.
        line = None if tracking is None or not (tracking / RUNS).is_file() else last_run(tracking / RUNS)
        peak = None if line is None else TaskReport.from_json(line).blocks.peak_rss
        return None if peak is None or peak.max is None else int(peak.max)

    def _check_memory(self, workers: int) -> None:
        predicted, measured = self.predicted_bytes() + self._worker_bytes(), self.measured_bytes() or 0
        source = "inputs and outputs with their halo, and the worker" if predicted >= measured else ""
        told = self._too_much(workers, max(predicted, measured), source or "measured in the last run")
        if told is not None:
            warnings.warn(told, UserWarning, stacklevel=2)

    def judge_memory(self, peaks: Stat) -> bool:
        """Hold what the first blocks took against the prediction and the limit; log it, once a run.

        Parameters
        ----------
        peaks
            Peaks of workers in the blocks so far, in bytes.

        Returns
        -------
        bool
            There were enough.
        """
        if peaks.n < min(FIRST_BLOCKS, self.layout.num_blocks) or peaks.max is None:
            return False
        predicted = self.predicted_bytes() + self._worker_bytes()
        logger.info(
            "task %r: the first %d blocks took up to %.2g GB each, worker included: %.2f times what was predicted",
            self.task_id,
            peaks.n,
            peaks.max / 1e9,
            peaks.max / predicted,
        )
        told = self._too_much(self.max_workers, int(peaks.max), f"measured in the first {peaks.n}")
        if told is not None:
            logger.warning("%s", told)
        return True

    def _worker_bytes(self) -> int:
        """Return what a worker holds besides its block, in bytes: libraries, and what it keeps of its inputs."""
        return WORKER_BYTES + sum(plan.most_bytes for plan in self.reader.plans if plan is not None)

    def _too_much(self, workers: int, need: int, source: str) -> str | None:
        """Return what to say if blocks of *need* bytes, worker included, are more than there is."""
        limit, predicted, beside = memory_limit_bytes(), self.predicted_bytes(), self._worker_bytes()
        if limit is None or workers * need <= limit:
            return None
        # What the function itself needs grows with the block as well.
        factor = max(1.0, (need - beside) / max(predicted, 1))
        shape = self._fitting(int((limit // workers - beside) / factor))
        cure = f"use block_shape={shape}, or fewer workers" if shape is not None else "use fewer workers"
        return (
            f"task {self.task_id!r}: blocks of {self.layout.write_shape} take about {need / 1e9:.2g} GB each "
            f"({source}); {workers} workers then {workers * need / 1e9:.2g} GB of {limit / 1e9:.2g} GB: {cure}"
        )

    def _fitting(self, room: int) -> Ints | None:
        """Halve the longest axis, in whole chunks, until a block fits into *room* bytes."""
        steps = [1] * self.layout.rank
        for ref in self.outputs or self.inputs:
            # A chunk that was made after the block gets smaller with it.
            piece = ref.shards or ref.chunks if not ref.follows_block else self.inputs[0].chunks
            if piece is not None:
                steps = [max(s, p * v) for s, p, v in zip(steps, piece, ref.voxel_size, strict=True)]
        shape = list(self.layout.write_shape)
        while block_bytes(self.inputs, self.outputs, tuple(shape), self.halo) > room:
            able = [a for a, (n, s) in enumerate(zip(shape, steps, strict=True)) if n > s]
            if not able:
                return None
            axis = max(able, key=lambda a: shape[a] / steps[a])
            shape[axis] = max(steps[axis], shape[axis] // 2 // steps[axis] * steps[axis])
        return tuple(shape)

    def make_outputs(self) -> None:
        """Have the arrays opened anew."""
        self.reader.forget()


def output_of(task: Task, name: str) -> Ref:
    """Return the array that *task* makes.

    Raises
    ------
    UsageTypeError
        It makes none, or several.
    """
    outputs: tuple[Ref, ...] = getattr(task, "outputs", ())
    if len(outputs) != 1:
        made = f"makes {len(outputs)} arrays" if outputs else "makes no array"
        raise UsageTypeError(f"{name} is task {task.task_id!r}, which {made}: pass a task of one output, or a path")
    ref = outputs[0]
    rank = len(ref.shape)
    return replace(ref, voxel_size=(1,) * rank, offset=(0,) * rank)


def memory_limit_bytes() -> int | None:
    """Return how much memory this container, or else this machine, has, in bytes; ``None`` if it cannot be told."""
    found = [MemoryWatch().limit_bytes]
    with suppress(ValueError, OSError):  # a system without these names
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((limit for limit in found if limit), default=None)
