"""``map_blocks``: a function of NumPy arrays over the blocks of arrays on disk."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.arrays.block import BlockMapper
from workspan.arrays.image import LEVEL
from workspan.arrays.outputs import PlannedRef, check_same, remember, remembered
from workspan.arrays.refs import Ref, ZarrRef, in_world_units, ref_of
from workspan.arrays.shapes import check_whole_voxels, per_axis
from workspan.arrays.task import ArrayTask, Cut
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run.writes import check_shared, check_stored, kept_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from workspan.grid.layout import Ints
    from workspan.run.writes import Target


def map_blocks(
    function: Callable[..., Any],
    *inputs: Any,
    out: Any,
    block_shape: Any = "chunks",
    halo: Any = 0,
    mode: str = "reflect",
    fill: Any = 0,
    dtype: Any = None,
    out_chunks: Any = None,
    out_shards: Any = None,
    fill_value: Any = None,
    overwrite: bool = False,
    on_shared_chunk: str = "refuse",
    units: str = "voxels",
    roi: Any = None,
    task_id: str | None = None,
    **task_arguments: Any,
) -> MapTask:
    """Make a task that applies *function* to arrays, block by block, and writes what it returns.

    The result is that of the whole array, voxel for voxel, if *halo* is as wide as the function looks around a voxel.
    Nothing is read, written or deleted before the task runs. Each block's time is told apart in the steps ``read``,
    ``compute`` and ``write`` of the report (and ``import``, once a worker).

    Parameters
    ----------
    function
        ``function(array, ...)``, one NumPy array an input, each of the shape of the block with its halo; if it has a
        parameter ``block`` behind them, the block is passed. It returns an array of that shape, or of the block's
        without halo; a tuple of arrays for several outputs.
    *inputs
        Paths or URLs of Zarr arrays, of OME-Zarr images (their full resolution) or of ``.npy`` files; Zarr arrays;
        NumPy arrays and memory maps; or tasks made by this function, which then run before, block by block. All have
        the same shape, in voxels.
    out
        Where to write: a path or URL, which is made by the run; or a writable Zarr array, memory map or NumPy array,
        which is written into. A list for several outputs. If the first input is an OME-Zarr image and this is a path,
        an image is made there, with its metadata and one array, ``"0"``.
    block_shape
        What a block writes, one number or one an axis. ``"chunks"``: the shards or chunks of the output, or else of
        the first input.
    halo
        What a block reads beyond that: one number, one an axis, or ``(lower, upper)`` an axis.
    mode
        What lies beyond the edge of the array, by the names of ``scipy.ndimage``: ``"reflect"``, ``"mirror"``,
        ``"nearest"``, ``"wrap"``, ``"constant"`` (the value *fill*); or ``"clip"``: blocks at the edge are smaller, and
        the function sees the edge itself.
    fill
        The value outside for ``mode="constant"``.
    dtype
        Type of the output that is made; one for all, or a list. ``None``: that of the first input. A result is written
        only if the output holds each of its values.
    out_chunks, out_shards
        Shapes of chunks and shards of the output that is made, in voxels. ``None``: the chunks of the first input where
        blocks are made of whole ones, else one chunk a block; no shards.
    fill_value
        What an output that is made holds where no block has written; ``None``: 0.
    overwrite
        An array or image at the place of *out* is deleted when the run begins. A run that goes on with blocks done
        before deletes nothing.
    on_shared_chunk
        What to do if two blocks could write into one chunk (or shard) at the same time: ``"refuse"``, or ``"order"``
        them in time. Ordered blocks wait for a few neighbours more than necessary, and if one fails for good, those
        that wait for it are orphaned.
    units
        Units of *block_shape*, *halo*, *roi* and of the blocks' ROIs: ``"voxels"``, or ``"world"``: the units of the
        axes of OME-Zarr inputs, whose scale and translation must be whole numbers. Inputs may then differ in
        resolution.
    roi
        The region to write; ``None``: everything.
    task_id
        ``None``: the name of the function.
    **task_arguments
        Further arguments of :class:`workspan.Task`: ``max_workers``, ``tracking_path``, ``resource_tracking``, ...

    Returns
    -------
    MapTask
        A :class:`workspan.Task`; ``run()`` runs it.

    Raises
    ------
    ConfigurationError
        An input is missing, arrays or shapes do not fit each other, or blocks could lose each other's writes.

    Examples
    --------
    >>> import numpy as np, workspan as ws
    >>> out = np.zeros((4, 6), "int64")
    >>> task = ws.map_blocks(np.negative, np.arange(24).reshape(4, 6), out=out, block_shape=3)
    >>> task.run(engine="serial", progress=False, summary=False), int(out[3, 5])
    (True, -23)
    """
    cut = Cut(function, inputs, halo=halo, mode=mode, units=units, roi=roi)
    several = list(out) if isinstance(out, (list, tuple)) else [out]
    dtypes = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype] * len(several)
    if not several or len(dtypes) != len(several):
        raise UsageTypeError(f"out has {len(several)} entries and dtype has {len(dtypes)}: pass one dtype an output")
    handed = [
        None if isinstance(one, (str, os.PathLike)) else ref_of(one, "out" if len(several) == 1 else f"out[{n}]")
        for n, one in enumerate(several)
    ]
    piece = _piece(cut.inputs[0], handed, out_chunks, out_shards)
    block = cut.block_shape(block_shape, piece)
    outputs: list[Ref] = []
    for number, (one, ref, kind) in enumerate(zip(several, handed, dtypes, strict=True)):
        if ref is None:
            name = "out" if len(several) == 1 else f"out[{number}]"
            ref = _plan(name, os.fspath(one), cut, block, kind, out_chunks, out_shards, fill_value)
        else:
            ref = _placed(ref, cut)
        check_whole_voxels("block_shape", block, ref)
        outputs.append(ref)
    reader = BlockMapper(function, cut.inputs, outputs, mode, fill)
    return MapTask(task_id, cut, block, reader, overwrite=overwrite, on_shared_chunk=on_shared_chunk, **task_arguments)


class MapTask(ArrayTask):
    """A task that writes arrays; made by :func:`workspan.map_blocks`.

    Attributes
    ----------
    outputs
        What the blocks write.
    """

    reader: BlockMapper

    def __init__(
        self,
        task_id: str | None,
        cut: Cut,
        block: Ints,
        reader: BlockMapper,
        *,
        overwrite: bool,
        on_shared_chunk: str,
        **task_arguments: Any,
    ) -> None:
        outputs = reader.outputs
        super().__init__(task_id, cut, block, reader, on_shared_chunk=on_shared_chunk, **task_arguments)
        self.outputs = outputs
        self.overwrite = overwrite
        self._to_make: list[tuple[PlannedRef, bool]] = []
        self._tracking: Path | None = None
        read = {ref.identity for ref in self.inputs if ref.identity is not None}
        for ref in outputs:
            if ref.identity in read:
                raise ConfigurationError(
                    f"task {self.task_id!r} reads and writes {ref.name}: a block that is tried again would read its "
                    "own result; write to another array"
                )
        if on_shared_chunk == "order":
            self.layout = replace(self.layout, apart=kept_apart(self.task_id, self.layout, self.targets()))
        check_shared(self.task_id, self.layout, self.targets())

    def targets(self) -> list[Target]:
        """Return the arrays that the blocks write."""
        return super().targets() + [ref.target() for ref in self.outputs]

    def check_outputs(self, done: Any, *, fresh: bool) -> None:
        """Refuse an output that is in the way, or is not what the blocks done before were written to."""
        super().check_outputs(done, fresh=fresh)
        self._to_make = []
        self._tracking = self.resolved_tracking_path() if done is not None else None
        before = [] if fresh or self._tracking is None else remembered(self._tracking)
        known = {entry["array"]: entry for entry in before}
        resumed = done is not None and bool(done.any())
        for ref in self.outputs:
            if isinstance(ref, PlannedRef):
                ours = known.get(ref.identity)
                there = self._there(ref) if ours is not None or resumed else None
                if there is None and not resumed:
                    self._to_make.append((ref, ref.check_free(self.overwrite)))
                    continue
                check_same(self.task_id, ref, ours, there)
            elif resumed:
                check_same(self.task_id, ref, known.get(ref.identity), ref.open())
            if resumed and isinstance(ref, ZarrRef):
                check_stored(self.task_id, self.layout, done, ref.target(), ref.open())

    @staticmethod
    def _there(ref: PlannedRef) -> Any:
        """Return the array that is at the place of an output, or ``None``."""
        return None if ref.found() is None else _opened(ref)

    def make_outputs(self) -> None:
        """Make the outputs that are not there."""
        super().make_outputs()
        if self._tracking is not None:
            remember(self._tracking, self.outputs)
        for ref, overwrite in self._to_make:
            ref.make(overwrite)
        self._to_make = []


def _opened(ref: ZarrRef) -> Any:
    try:
        return ref.open()
    except Exception:  # no array of that name
        return None


def _piece(first: Ref, handed: Sequence[Ref | None], chunks: Any, shards: Any) -> Ints | None:
    """Return what is written, or else read, in one piece, in voxels."""
    for asked, name in ((shards, "out_shards"), (chunks, "out_chunks")):
        if asked is not None:
            return per_axis(name, asked, len(first.shape), least=1)
    found = [ref.shards or ref.chunks for ref in handed if ref is not None]
    return next((piece for piece in found if piece is not None), first.shards or first.chunks)


def _plan(
    name: str, where: str, cut: Cut, block: Ints, dtype: Any, chunks: Any, shards: Any, fill_value: Any
) -> PlannedRef:
    """Return the output that is to be made at *where*."""
    first = cut.inputs[0]
    rank = cut.rank
    own = tuple(max(1, min(b // v, n)) for b, v, n in zip(block, first.voxel_size, first.shape, strict=True))
    outer = None if shards is None else per_axis("out_shards", shards, rank, least=1)
    if chunks is not None:
        inner = per_axis("out_chunks", chunks, rank, least=1)
    else:
        inner = outer or own
        if first.chunks is not None and all(i % c == 0 for i, c in zip(inner, first.chunks, strict=True)):
            inner = first.chunks
    if outer is not None and any(o % i for o, i in zip(outer, inner, strict=True)):
        raise ConfigurationError(f"out_shards={outer} is not made of whole chunks of {inner}: use multiples of them")
    image = first.image
    if image is not None and image.zarr_format == 2 and outer is not None:
        raise ConfigurationError(
            f"out_shards={outer}: an OME-Zarr {image.version} image is Zarr v2, which has no shards"
        )
    # Workers and a later run have another working directory, maybe.
    place = where if "://" in where else os.path.abspath(where)
    return PlannedRef(
        name=f"{name}={where!r}",
        shape=first.shape,
        dtype=first.dtype if dtype is None else np.dtype(dtype),
        chunks=inner,
        shards=outer,
        voxel_size=first.voxel_size,
        offset=first.offset,
        image=None if image is None else replace(image, path=LEVEL),
        follows_block=outer is None and chunks is None,
        is_private=where.startswith("memory:"),
        root=place,
        path="" if image is None else LEVEL,
        fill_value=0 if fill_value is None else fill_value,
        group=place,
    )


def _placed(ref: Ref, cut: Cut) -> Ref:
    """Return an output that was handed in, where it lies; refuse one that cannot be written."""
    first = cut.inputs[0]
    if not ref.is_writable:
        raise ConfigurationError(f"{ref.name} is read-only: open it with mode='r+'")
    if len(ref.shape) != cut.rank:
        raise ConfigurationError(f"{ref.name} has {len(ref.shape)} axes, and {first.name} has {cut.rank}")
    if cut.units == "world":
        ref = in_world_units(ref, first)
    if ref.shape != first.shape and (ref.voxel_size, ref.offset) == (first.voxel_size, first.offset):
        raise ConfigurationError(
            f"{ref.name} has shape {ref.shape}, and {first.name} has {first.shape}: they must agree"
        )
    return ref
