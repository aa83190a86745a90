"""Outputs of a task: planned when the task is made, checked and made when it runs, the same when it is resumed.

A chunk that is present does not say that its block is done, and by default Zarr stores no chunk of fill values at all
(KF-20). So what is done is known from the tracking store alone; and workers store every chunk, so that one that is
missing although its block is done is damage, and is told.

Which outputs a tracking store belongs to is remembered in a file beside it, ``.workspan/<task>.outputs.json``: a run
that was killed before its first block goes on with the output that it made, and takes no other for its own.
"""

from __future__ import annotations

import json
import operator
import os
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.arrays.image import LEVEL
from workspan.arrays.refs import Ref, ZarrRef
from workspan.errors import ConfigurationError, TrackingError
from workspan.grid import Block
from workspan.store.lock import beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from workspan.grid.layout import Layout


@dataclass(frozen=True, kw_only=True)
class PlannedRef(ZarrRef):
    """An array that a task will make."""

    fill_value: Any = None
    group: str
    """What is made: the array, or the OME-Zarr image around it."""

    def make(self, overwrite: bool) -> None:
        """Make the empty array; what was there is deleted if *overwrite*."""
        import zarr

        image = self.image
        how: dict[str, Any] = {"shape": self.shape, "dtype": self.dtype, "chunks": self.chunks, "shards": self.shards}
        how["fill_value"] = self.fill_value
        if image is None:
            zarr.create_array(self.group, overwrite=overwrite, **how)
            return
        name = re.split(r"[/\\]", self.group.rstrip("/\\"))[-1]
        version = image.zarr_format
        attributes = image.attributes(name)
        if version == 2:
            how["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
        else:
            how["dimension_names"] = image.axis_names
        group = zarr.create_group(self.group, zarr_format=version, attributes=attributes, overwrite=overwrite)
        group.create_array(LEVEL, **how)

    def found(self) -> Any:
        """Return what is at its place: a Zarr array or group, or ``None``.

        Raises
        ------
        ConfigurationError
            Something else is there; nothing is ever written over that.
        """
        import zarr

        try:
            return zarr.open(self.group, mode="r")
        except FileNotFoundError:
            pass
        except Exception as error:
            raise ConfigurationError(
                f"{self.name} cannot be looked at ({type(error).__name__}: {error}): use another place"
            ) from error
        if os.path.isfile(self.group) or (os.path.isdir(self.group) and os.listdir(self.group)):
            raise ConfigurationError(f"{self.name} is in the way: it is no Zarr array. Use another place")
        return None

    def check_free(self, overwrite: bool) -> bool:
        """Tell whether something must be deleted first; refuse if it may not be."""
        import zarr

        node = self.found()
        if node is None:
            return False
        if not overwrite:
            raise ConfigurationError(
                f"{self.name} exists: pass overwrite=True to delete what is there, the opened array to write into it, "
                "or use another place"
            )
        strangers = sorted({*node.keys()} - {LEVEL}) if isinstance(node, zarr.Group) else []
        if strangers:
            raise ConfigurationError(
                f"{self.name} is a group that holds {', '.join(map(repr, strangers[:5]))}: overwrite=True deletes "
                "arrays and images of one level only. Delete it yourself, or use another place"
            )
        return True


def record_file(tracking: Path) -> Path:
    """Where the outputs of the task are remembered."""
    return beside(Path(os.path.realpath(tracking)), ".outputs.json")


def told(ref: Ref) -> dict[str, Any]:
    """Return what of an output must stay what it is while blocks are added to it."""
    return {
        "array": ref.identity,
        "shape": list(ref.shape),
        "dtype": str(ref.dtype),
        "chunks": ref.chunks and list(ref.chunks),
        "shards": ref.shards and list(ref.shards),
    }


def remember(tracking: Path, outputs: Sequence[Ref]) -> None:
    """Write down which outputs belong to a tracking store, whole or not at all."""
    file = record_file(tracking)
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps({"schema": 1, "outputs": [told(ref) for ref in outputs]}))
    os.replace(part, file)


def remembered(tracking: Path) -> list[dict[str, Any]]:
    """Read which outputs belong to a tracking store; none if nothing is known."""
    try:
        found: list[dict[str, Any]] = json.loads(record_file(tracking).read_text())["outputs"]
        return found
    except (OSError, ValueError, KeyError, TypeError):
        return []


def check_same(task_id: str, ref: Ref, before: dict[str, Any] | None, array: Any) -> None:
    """Refuse an output that is not what the blocks done so far were written to.

    Parameters
    ----------
    task_id
        For messages.
    ref
        What the task is to write now.
    before
        What was remembered of it; ``None``: nothing.
    array
        What is there; ``None``: nothing.

    Raises
    ------
    TrackingError
        Naming what differs.
    """
    cure = f"give it back, or call reset() of task {task_id!r} to do everything again"
    if array is None:
        raise TrackingError(f"{ref.name} is gone although blocks of task {task_id!r} are recorded as done: {cure}")
    now = told(ref)
    there = {
        "shape": list(array.shape),
        "dtype": str(np.dtype(array.dtype)),
        "chunks": None if ref.chunks is None else list(array.chunks),
        "shards": None if ref.shards is None and getattr(array, "shards", None) is None else _listed(array.shards),
    }
    for key, value in there.items():
        wanted = now[key] if before is None else before[key]
        if value != wanted:
            raise TrackingError(
                f"{ref.name} has {key} {value} where task {task_id!r} wrote blocks to one with {key} {wanted}: {cure}"
            )
        if now[key] != wanted:
            raise TrackingError(
                f"{ref.name} was made with {key} {wanted}, and {key} {now[key]} was asked for now: use the former, "
                f"another output and tracking folder, or call reset() of task {task_id!r}"
            )


def check_chunks(task_id: str, layout: Layout, done: NDArray[Any], ref: ZarrRef) -> None:
    """Refuse an output of which a chunk is missing that a done block wrote (KF-20, KF-25).

    Parameters
    ----------
    task_id
        For messages.
    layout
        The blocks.
    done
        Which of them are done, in the shape of the mask grid.
    ref
        The output.

    Raises
    ------
    TrackingError
        Naming a chunk and its block.
    """
    size = ref.shards or ref.chunks
    assert size is not None
    counts = tuple(-(-n // s) for n, s in zip(ref.shape, size, strict=True))
    stored = stored_chunks(ref)
    known = {cell for cell in stored if len(cell) == len(counts) and all(map(operator.lt, cell, counts))}
    if len(known) == prod(counts):
        return
    missing = np.ones(counts, np.int32)
    if known:
        missing[tuple(np.array(sorted(known)).T)] = 0
    # Missing chunks per block, one axis after the other: sums up to an end less sums up to a begin.
    sums = missing
    for axis, count in enumerate(counts):
        begin = layout.covered[0][axis] + np.arange(layout.counts[axis]) * layout.write_shape[axis]
        end = np.minimum(begin + layout.write_shape[axis], layout.covered[1][axis])
        first = ((begin - ref.offset[axis]) // ref.voxel_size[axis] // size[axis]).clip(0, count)
        last = (-((ref.offset[axis] - end) // ref.voxel_size[axis] // size[axis])).clip(first, count)
        sums = np.insert(sums.cumsum(axis=axis), 0, 0, axis=axis)
        sums = sums.take(last, axis=axis) - sums.take(first, axis=axis)
    bad = np.flatnonzero((sums > 0) & (done != 0))
    if len(bad):
        block = Block.at(layout, int(bad[0]), task_id)
        raise TrackingError(
            f"{ref.name} lacks chunks although their blocks are recorded as done: {len(bad)} blocks, the first is "
            f"{block.block_id}, which wrote {block.write_roi}. Somebody removed them: call reset() of task "
            f"{task_id!r} to do everything again, or give the chunks back"
        )


def stored_chunks(ref: ZarrRef) -> list[tuple[int, ...]]:
    """List the grid positions of the chunks (or shards) that are stored."""
    from zarr.core.sync import sync

    array = ref.open()
    prefix = f"{array.path}/" if array.path else ""

    async def keys() -> list[str]:
        return [key async for key in array.store.list_prefix(prefix)]

    out = []
    for key in sync(keys()):
        name = key.removeprefix(prefix)
        if re.fullmatch(r"(c[/.])?\d+([/.]\d+)*", name):
            out.append(tuple(map(int, re.findall(r"\d+", name))))
    return out


def _listed(values: Any) -> list[int] | None:
    return None if values is None else list(values)
