"""The Zarr v3 metadata of a tracking group: what is written, what is accepted, how it is replaced.

Written and checked by hand, since importing zarr costs more than most runs take to start, and so that nothing but the
documented layout is ever taken for flags.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from workspan.store.faults import damaged, disk_error

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.grid.layout import Ints, Layout

__all__ = [
    "ALWAYS",
    "ARRAYS",
    "MEASURED",
    "NODE_FILE",
    "SCHEMA",
    "STAMPED",
    "STEP",
    "TEMP_FILE",
    "TRACKED",
    "VERSION_MARK",
    "ArraySpec",
    "Node",
    "Problem",
    "array_metadata",
    "array_problem",
    "chunk_file",
    "group_metadata",
    "layout_fields",
    "read_node",
    "step_chunks",
    "write_node",
]

Node = dict[str, Any]
"""The content of a ``zarr.json``."""

SCHEMA = 1
"""Version of the group's attribute ``workspan``. 1: layout fields, ``task_id``, ``function``, ``unmeasured``."""

VERSION_MARK = " py:"
"""Before the version of Python in the fingerprint of a function: code of two versions cannot be compared."""

NODE_FILE = "zarr.json"
TEMP_FILE = ".zarr.json.partial"
"""Where new metadata is written before it is moved; one name, as only the holder of the lock writes."""

_LARGEST_NODE_BYTES = 64 << 20
_STEP_CHUNK_CELLS = 65536


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of the store: its name, Zarr data type, and code of its cells in ``struct`` and ``memoryview``."""

    name: str
    data_type: str
    code: str

    @property
    def itemsize(self) -> int:
        """Size of a cell, in bytes."""
        return int(self.dtype[2:])

    @property
    def dtype(self) -> str:
        """NumPy spelling of the data type, little-endian."""
        return _DTYPES[self.data_type]

    @property
    def fill(self) -> int | float:
        """Value of a cell that was never written."""
        return 0.0 if self.data_type.startswith("float") else 0


_DTYPES = {"uint8": "<u1", "uint32": "<u4", "uint64": "<u8", "float32": "<f4", "float64": "<f8"}

ALWAYS = ("done", "failures")
TRACKED = {
    spec.name: spec
    for spec in (
        ArraySpec("wall_seconds", "float32", "f"),
        ArraySpec("cpu_seconds", "float32", "f"),
        ArraySpec("peak_rss_bytes", "uint64", "Q"),
        ArraySpec("io_read_bytes", "uint64", "Q"),
        ArraySpec("io_write_bytes", "uint64", "Q"),
        ArraySpec("gpu_util_pct", "float32", "f"),
        ArraySpec("gpu_mem_bytes", "uint64", "Q"),
        ArraySpec("worker_id", "uint32", "I"),
        ArraySpec("sent_at", "float64", "d"),
        ArraySpec("returned_at", "float64", "d"),
    )
}
"""Arrays that are there with resource tracking, in the order in which a block's cells are written."""
STAMPED = ("worker_id", "sent_at", "returned_at")
"""Arrays of who did a block, and when."""
MEASURED = tuple(name for name in TRACKED if name not in STAMPED)
"""Arrays of what workers measure: the fields of ``BlockStats``."""
ARRAYS = {"done": ArraySpec("done", "uint8", "B"), "failures": ArraySpec("failures", "uint32", "I"), **TRACKED}
"""Every array of the group's first level. Those of the group ``steps`` are all :data:`STEP`."""
STEP = ArraySpec("steps", "float32", "f")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an array is not as it should be.

    ``"shape"``: it means something else (shape or type). ``"storage"``: its bytes are kept in another way, so that
    only zarr can read them.
    """

    kind: Literal["shape", "storage"]
    text: str


# -- building ------------------------------------------------------------------------------------------------------


def array_metadata(spec: ArraySpec, shape: Ints, *, name: str | None = None) -> Node:
    """Return the metadata of an array of *shape*; for a step's array give its display *name*."""
    chunk = shape if name is None else step_chunks(shape)[0]
    return {
        "attributes": {} if name is None else {"name": name},
        "chunk_grid": {"configuration": {"chunk_shape": list(chunk)}, "name": "regular"},
        "chunk_key_encoding": {"configuration": {"separator": "/"}, "name": "default"},
        "codecs": [{"configuration": {"endian": "little"}, "name": "bytes"}],
        "data_type": spec.data_type,
        "fill_value": spec.fill if name is None else "NaN",
        "node_type": "array",
        "shape": list(shape),
        "storage_transformers": [],
        "zarr_format": 3,
    }


def group_metadata(attributes: Node, members: dict[str, Node] | None = None) -> Node:
    """Return the metadata of a group.

    With *members* (path below the group -> metadata) they are listed in the form that zarr-python calls consolidated
    metadata: it then lists the members without looking into the folder, where ``runs.jsonl`` would make it warn.
    Readers that do not know the key are told to pass over it.
    """
    node: Node = {"attributes": attributes, "node_type": "group", "zarr_format": 3}
    if members is not None:
        node["consolidated_metadata"] = {"kind": "inline", "metadata": members, "must_understand": False}
    return node


def layout_fields(layout: Layout) -> Node:
    """Return the fields of *layout* that enter its hash, as they are kept in the attribute ``workspan``."""
    return {
        "total_roi": {"offset": list(layout.total_begin), "shape": list(layout.total_shape)},
        "read_roi": {"offset": list(layout.read_begin), "shape": list(layout.read_shape)},
        "write_roi": {"offset": list(layout.write_begin), "shape": list(layout.write_shape)},
        "fit": layout.fit,
    }


def chunk_file(array: Path, rank: int) -> Path:
    """Return the file of the only chunk of *array*."""
    return array.joinpath("c", *["0"] * rank)


def step_chunks(shape: Ints) -> tuple[Ints, int]:
    """Return the chunk shape of a step's array, and its axis of partition.

    A chunk is one run of at most 64 Ki cells in C order: all axes behind the axis of partition are whole, all before
    it have extent 1. So a cell's number leads to chunk and offset without its coordinates.
    """
    axis = next(a for a in range(len(shape)) if a == len(shape) - 1 or prod(shape[a + 1 :]) <= _STEP_CHUNK_CELLS)
    extent = max(1, min(shape[axis], _STEP_CHUNK_CELLS // prod(shape[axis + 1 :])))
    return (1,) * axis + (extent,) + shape[axis + 1 :], axis


# -- checking ------------------------------------------------------------------------------------------------------


def array_problem(node: Node, expected: Node) -> Problem | None:
    """Return what keeps an array with metadata *node* from being the *expected* one; ``None``: nothing.

    Attributes, dimension names and what has no influence on the bytes are the owner's business.
    """
    if not (_same(node.get("zarr_format"), 3) and node.get("node_type") == "array"):
        told = f"zarr_format {node.get('zarr_format')!r}, node_type {node.get('node_type')!r}"
        return Problem("shape", f"it is not a Zarr v3 array ({told})")
    for key, title in (("shape", "shape"), ("data_type", "dtype")):
        if not _same(node.get(key), expected[key]):
            return Problem("shape", f"stored {title} {node.get(key)!r}, expected {expected[key]!r}")
    for key in ("chunk_grid", "chunk_key_encoding", "codecs", "fill_value", "storage_transformers"):
        value = node.get(key, [] if key == "storage_transformers" else None)
        if key == "chunk_key_encoding" and value == {"name": "default"}:
            continue  # the separator "/" is what it means
        if key == "codecs" and expected["data_type"] == "uint8" and _same(value, [{"name": "bytes"}]):
            continue  # single bytes have no order
        if not _same(value, expected[key]):
            return Problem("storage", f"stored {key} {value!r}, expected {expected[key]!r}")
    return None


def _same(value: object, expected: object) -> bool:
    """Whether two JSON values are equal, where 0 and 0.0 are and 1 and true are not."""
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, list):
        return isinstance(value, list) and len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(_same(value[key], expected[key]) for key in expected)
        )
    return value == expected


def read_node(store: Path, part: str = "") -> Node | None:
    """Return the metadata of the group *store*, or of its array or group *part*; ``None`` if there is none.

    Raises
    ------
    InvalidMetadataError
        It is not the JSON of an object.
    TrackingError
        It cannot be read.
    """
    path = store / part / NODE_FILE
    told = f"{part}/{NODE_FILE}" if part else NODE_FILE
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST_NODE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise damaged(store, told, "it is a folder") from None
    except OSError as error:
        raise disk_error(error, path, "reading the metadata") from error
    if len(raw) > _LARGEST_NODE_BYTES:
        raise damaged(store, told, f"it has more than {_LARGEST_NODE_BYTES} bytes")
    try:
        node = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(store, told, f"it is not JSON ({error})") from None
    if not isinstance(node, dict):
        raise damaged(store, told, f"it holds {type(node).__name__}, not an object")
    return node


def write_node(folder: Path, node: Node, *, durable: bool = True) -> None:
    """Put *node* in place as the metadata of *folder*; a reader sees the old or the new one, never a part.

    With *durable* it survives a power cut from here on.
    """
    temporary = folder / TEMP_FILE
    data = json.dumps(node, indent=2, sort_keys=True).encode()
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, folder / NODE_FILE)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
