"""What a task writes, held against the chunks of the arrays: two blocks in one chunk would lose data without a word.

An array with chunks is written chunk by chunk: a block that owns half of one reads, changes and writes all of it. Two
workers that do so at the same time keep the half of one of them only.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.errors import ConfigurationError, TrackingError, UsageTypeError
from workspan.grid import Block
from workspan.grid.chunks import ChunkGrid, blocks_apart, blocks_lacking, fitting_shapes, shared_axes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from workspan.grid.layout import Box, Ints, Layout
    from workspan.run.task import Task

ON_SHARED_CHUNK = ("refuse", "order")


@dataclass(frozen=True, slots=True)
class Target:
    """An array that a task writes."""

    name: str
    """For messages."""
    identity: str | None
    """Equal for two targets that are the same array; ``None``: cannot be told."""
    chunk: Ints | None
    """Shape of what is written in one piece (a chunk, or a shard), in voxels; ``None``: every voxel by itself."""
    offset: Ints
    """Where voxel 0 lies, in the world units of the blocks."""
    voxel_size: Ints
    """Extent of a voxel, in the world units of the blocks."""

    @property
    def chunks(self) -> ChunkGrid | None:
        """The chunks in the world units of the blocks."""
        if self.chunk is None:
            return None
        size = tuple(c * v for c, v in zip(self.chunk, self.voxel_size, strict=True))
        return ChunkGrid(self.offset, size)


def target_of(array: Any, task_id: str) -> Target:
    """Describe *array*: a path or URL that Zarr opens, or an object with ``shape`` and ``chunks`` (or ``shards``).

    Attributes ``offset`` and ``voxel_size``, in world units, are honoured where an array has them.

    Raises
    ------
    ConfigurationError
        There is no array.
    UsageTypeError
        It is something else.
    """
    if isinstance(array, Target):
        return array
    if isinstance(array, (str, os.PathLike)):
        import zarr

        try:
            array = zarr.open_array(os.fspath(array), mode="r")
        except Exception as error:  # each store has errors of its own
            raise ConfigurationError(
                f"writes of task {task_id!r}: {os.fspath(array)!r} is no array that can be opened "
                f"({type(error).__name__}: {error}): make it before the run, or name the array inside the group"
            ) from error
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple):
        raise UsageTypeError(f"writes of task {task_id!r} has {array!r}: pass a path or an array with shape and chunks")
    rank = len(shape)
    chunk = next((found for name in ("shards", "chunks", "chunk_shape") if (found := getattr(array, name, None))), None)
    return Target(
        name=name_of(array),
        identity=identity_of(array),
        chunk=None if chunk is None else tuple(int(c) for c in chunk),
        offset=tuple(int(o) for o in getattr(array, "offset", None) or (0,) * rank),
        voxel_size=tuple(int(v) for v in getattr(array, "voxel_size", None) or (1,) * rank),
    )


def name_of(array: Any) -> str:
    """Return the name of an array for messages: where it is, as far as it says so."""
    place = getattr(array, "store_path", None)
    if place is None:
        return f"a {type(array).__name__} of shape {array.shape}"
    return repr(str(place).removeprefix("file://"))


def identity_of(array: Any) -> str | None:
    """Return what is equal for two objects that are one array on disk; ``None``: cannot be told."""
    place = getattr(array, "store_path", None)
    if place is None:
        return None
    text = str(place)
    return os.path.realpath(text.removeprefix("file://")) if text.startswith("file://") else text


def kept_apart(task_id: str, layout: Layout, targets: Iterable[Target]) -> Ints:
    """Return how far apart two blocks must be to run at the same time, in blocks per axis; ``()`` without need."""
    reach = (0,) * layout.rank
    for target in targets:
        check_rank(task_id, layout, target)
        if target.chunks is not None:
            reach = tuple(map(max, reach, blocks_apart(layout, target.chunks)))
    return reach if any(reach) else ()


def check_rank(task_id: str, layout: Layout, target: Target) -> None:
    """Refuse an array with other axes than the blocks have."""
    rank = len(target.offset)
    if rank != layout.rank:
        raise ConfigurationError(
            f"task {task_id!r} has blocks of {layout.rank} axes and writes {target.name}, which has {rank}: ROIs need "
            "one entry for each axis of the array"
        )


def check_shared(task_id: str, layout: Layout, targets: Iterable[Target]) -> None:
    """Refuse blocks that could write one chunk at the same time.

    Raises
    ------
    ConfigurationError
        Naming the array, its chunks, the blocks, and what would fit.
    """
    for target in targets:
        check_rank(task_id, layout, target)
        chunks = target.chunks
        if chunks is None or not (axes := shared_axes(layout, chunks)):
            continue
        reach = layout.apart or (0,) * layout.rank
        if all(need <= have for need, have in zip(blocks_apart(layout, chunks), reach, strict=True)):
            continue
        shapes = " or ".join(map(str, fitting_shapes(layout, chunks)))
        begin = layout.covered[0]
        shifted = [a for a in axes if (begin[a] - chunks.origin[a]) % chunks.size[a]]
        moved = tuple(b - (b - o) % s for b, o, s in zip(begin, chunks.origin, chunks.size, strict=True))
        begins = f" with what is written beginning at {moved}, where a chunk does, not at {begin}" if shifted else ""
        raise ConfigurationError(
            f"task {task_id!r}: its blocks of {layout.write_shape} do not fit the chunks of {chunks.size} of "
            f"{target.name} on axis {axes[0]}: two workers could write into one chunk at the same time, and what one "
            f"of them wrote would be lost. Use blocks of {shapes}{begins}, or chunks that divide the blocks, or "
            "on_shared_chunk='order', which keeps such blocks apart in time"
        )


def check_stored(task_id: str, layout: Layout, done: NDArray[Any], target: Target, array: Any) -> None:
    """Refuse a Zarr array of which a chunk is missing that a done block wrote (KF-20, KF-25).

    Parameters
    ----------
    task_id
        For messages.
    layout
        The blocks.
    done
        Which of them are done, in the shape of the mask grid.
    target
        What they write.
    array
        The opened array; its writers store chunks of fill values, too.

    Raises
    ------
    TrackingError
        Naming a block.
    """
    chunks, size = target.chunks, target.chunk
    assert chunks is not None
    assert size is not None
    counts = tuple(-(-n // s) for n, s in zip(array.shape, size, strict=True))
    lacking = blocks_lacking(layout, chunks, counts, stored_chunks(array))
    bad = [] if lacking is None else np.flatnonzero(lacking & (done != 0)).tolist()
    if bad:
        block = Block.at(layout, bad[0], task_id)
        raise TrackingError(
            f"{target.name} lacks chunks although their blocks are recorded as done: {len(bad)} blocks, the first is "
            f"{block.block_id}, which wrote {block.write_roi}. Somebody removed them: call reset() of task "
            f"{task_id!r} to do everything again, or give the chunks back"
        )


def check_hand_written(task_id: str, layout: Layout, done: NDArray[Any], arrays: Iterable[Any]) -> None:
    """Look for the chunks of done blocks in what a block function of somebody else writes (``writes``).

    Zarr leaves chunks of fill values out unless it is told otherwise, so a missing chunk proves nothing by itself: only
    arrays that were opened with ``write_empty_chunks`` are looked at chunk by chunk. Of others there must be a chunk
    at all, or people are warned.

    Raises
    ------
    TrackingError
        As :func:`check_stored`.
    """
    for array in arrays:
        target = target_of(array, task_id)
        if isinstance(array, (str, os.PathLike)):
            import zarr

            array = zarr.open_array(os.fspath(array), mode="r")
        if target.chunk is None or not _is_zarr(array):
            continue
        if getattr(array.config, "write_empty_chunks", False):
            check_stored(task_id, layout, done, target, array)
        elif not stored_chunks(array):
            warnings.warn(
                f"{target.name} has no chunk, and {int((done != 0).sum())} blocks of task {task_id!r}, which write it, "
                "are recorded as done and will be skipped: if they wrote more than fill values, call its reset(). Of "
                "an array that was opened with config={'write_empty_chunks': True} every chunk is looked for",
                UserWarning,
                stacklevel=2,
            )


def _is_zarr(array: Any) -> bool:
    return type(array).__module__.startswith("zarr.")


def stored_chunks(array: Any) -> list[tuple[int, ...]]:
    """List the grid positions of the chunks (or shards) of a Zarr array that are stored."""
    from zarr.core.sync import sync

    prefix = f"{array.path}/" if array.path else ""

    async def keys() -> list[str]:
        return [key async for key in array.store.list_prefix(prefix)]

    out = []
    for key in sync(keys()):
        name = key.removeprefix(prefix)
        if re.fullmatch(r"(c[/.])?\d+([/.]\d+)*", name):
            out.append(tuple(map(int, re.findall(r"\d+", name))))
    return out


def check_between(tasks: Sequence[Task], edges: Iterable[tuple[Task, Task]]) -> None:
    """Refuse two tasks that could write one chunk of one array at the same time.

    Raises
    ------
    ConfigurationError
        Naming both tasks and the array.
    """
    pairs = [(id(up), id(down)) for up, down in edges]
    writers = [(task, target) for task in tasks for target in task.targets() if target.identity is not None]
    for at, (task, target) in enumerate(writers):
        for other, theirs in writers[:at]:
            if theirs.identity != target.identity:
                continue
            if other is task:
                raise ConfigurationError(f"task {task.task_id!r} writes {target.name} twice: give each output its own")
            if not _meet(_written(task, target), _written(other, theirs)):
                continue
            if _leads(pairs, id(task), id(other)) or _leads(pairs, id(other), id(task)):
                continue
            raise ConfigurationError(
                f"tasks {other.task_id!r} and {task.task_id!r} write the same chunks of {target.name}, and nothing "
                "orders them: let one wait for the other (first + second), or write to different arrays"
            )


def _written(task: Task, target: Target) -> Box:
    """Region of *target* that the task's writes touch, in whole chunks."""
    begin, end = task.layout.covered
    chunks = target.chunks
    if chunks is None:
        return begin, end
    grid = list(zip(chunks.origin, chunks.size, strict=True))
    low = tuple(b - (b - o) % s for b, (o, s) in zip(begin, grid, strict=True))
    return low, tuple(e + (o - e) % s for e, (o, s) in zip(end, grid, strict=True))


def _meet(one: Box, other: Box) -> bool:
    return all(max(a, c) < min(b, d) for a, b, c, d in zip(*one, *other, strict=True))


def _leads(pairs: list[tuple[int, int]], first: int, last: int) -> bool:
    todo, seen = [first], {first}
    while todo:
        here = todo.pop()
        if here == last:
            return True
        todo += [down for up, down in pairs if up == here and down not in seen]
        seen.update(todo)
    return False
