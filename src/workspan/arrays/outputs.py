"""Outputs of a task: planned when the task is made, checked and made when it runs, the same when it is resumed.

A chunk that is present does not say that its block is done, and by default Zarr stores no chunk of fill values at all
(KF-20). So what is done is known from the tracking store alone; and workers store every chunk, so that one that is
missing although its block is done is damage, and is told.

Which outputs a tracking store belongs to is remembered in a file beside it, ``.workspan/<task>.outputs.json``: a run
that was killed before its first block goes on with the output that it made, and takes no other for its own.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.arrays.image import LEVEL
from workspan.arrays.refs import Ref, ZarrRef
from workspan.errors import ConfigurationError, TrackingError
from workspan.store.lock import beside

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def _listed(values: Any) -> list[int] | None:
    return None if values is None else list(values)
