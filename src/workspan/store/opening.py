"""What is checked and made when a run opens a tracking store; nothing is half-written when it is refused.

Order of writing: chunk file, then the array's metadata, then the group's. A run that is killed between leaves a folder
that the next start completes, since an array without metadata counts only as long as nothing is in it.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from workspan.errors import LayoutMismatchError, TrackingError, WorkspanError
from workspan.store.faults import damaged, disk_error
from workspan.store.files import create_sparse, read_cells, read_range
from workspan.store.hash import layout_hash
from workspan.store.lock import beside
from workspan.store.meta import (
    ALWAYS,
    ARRAYS,
    NODE_FILE,
    SCHEMA,
    TEMP_FILE,
    TRACKED,
    VERSION_MARK,
    Node,
    array_metadata,
    array_problem,
    chunk_file,
    group_metadata,
    layout_fields,
    read_node,
    write_node,
)
from workspan.store.steps import FOLDER, step_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from workspan.grid.layout import Ints, Layout

__all__ = [
    "HASH_KEY",
    "LAYOUT_FIELDS",
    "STAMPS",
    "WORKSPAN_KEY",
    "Opened",
    "check_layout",
    "open_group",
    "prepare_folder",
    "remove_empty",
    "settle_moves",
    "write_group",
    "wrong_stamps",
]

HASH_KEY = "daisy_task_hash"
WORKSPAN_KEY = "workspan"
STAMPS = ("sent_at", "returned_at")
LAYOUT_FIELDS = ("total_roi", "read_roi", "write_roi", "fit")
_STAMP_CHUNK_CELLS = 1 << 20
_logger = logging.getLogger("workspan.store")


@dataclass(slots=True)
class Opened:
    """A group that was found or made, checked and complete."""

    attributes: Node
    """Attributes of the group, as they are on the disk."""
    owned: bool
    """Whether the group is tied to a layout by its hash; else a caller made it, and it is trusted by its format."""
    done: NDArray[np.uint8]
    failures: NDArray[np.uint32]
    step_names: dict[str, str] = field(default_factory=dict)
    """Display name -> array name."""
    created: list[str] = field(default_factory=list)
    """Arrays that were made just now; they are not yet safe from a power cut."""


@dataclass(frozen=True, slots=True)
class _Found:
    """One array as it was found."""

    state: Literal["absent", "no chunk", "whole", "other form"]
    values: NDArray[Any] | None = None
    """Its cells, flat, where only zarr could read them."""


def prepare_folder(path: Path | str) -> tuple[Path, list[Path]]:
    """Return the real path of a store, and the parents that were made for it, outermost first.

    Raises
    ------
    TrackingError
        The path cannot be a folder; the text names path and reason.
    """
    group = Path(os.path.realpath(path))
    made: list[Path] = []
    try:
        with suppress(FileNotFoundError):
            if not os.path.isdir(group) and os.stat(group):
                raise TrackingError(f"tracking store {group} is a file: use another tracking_path or move the file")
        missing = [parent for parent in group.parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            made.append(parent)
    except OSError as error:
        remove_empty(made)
        raise disk_error(error, group, "looking for the tracking store") from error
    return group, made


def remove_empty(folders: list[Path]) -> None:
    """Remove those of *folders*, outermost first, that are empty."""
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()


def check_layout(layout: Layout) -> str:
    """Return the hash of *layout*, after a check that its blocks have cells.

    Raises
    ------
    TrackingError
        Blocks lie outside the tracking grid.
    """
    ends = [first + count for first, count in zip(layout.first_cell, layout.counts, strict=True)]
    if layout.num_blocks and (
        min(layout.first_cell) < 0 or any(e > c for e, c in zip(ends, layout.cell_counts, strict=True))
    ):
        raise TrackingError(
            "blocks lie outside total_roi, where a tracking store has no cells, because read_roi does not contain "
            "write_roi: enlarge read_roi or switch tracking off (tracking_path=False)"
        )
    return layout_hash(layout)


def open_group(group: Path, layout: Layout, *, tracked: bool, task_id: str | None, function: str | None) -> Opened:
    """Check the store at *group* and complete it, or make it. The caller holds the lock.

    Raises
    ------
    LayoutMismatchError, InvalidMetadataError
        The store is for another layout, or is damaged; nothing was changed.
    StoreFullError, TrackingError
        The disk refused; a new store is taken away again.
    """
    existed = group.exists()
    try:
        settle_moves(group)
        return _open_or_create(group, layout, tracked, task_id, function)
    except OSError as error:
        if not isinstance(error, WorkspanError):
            _undo(group, existed)
            raise disk_error(error, group, "opening the tracking store") from error
        raise
    except BaseException:
        _undo(group, existed)
        raise


def _undo(group: Path, existed: bool) -> None:
    if not existed:
        shutil.rmtree(group, ignore_errors=True)


def _open_or_create(group: Path, layout: Layout, tracked: bool, task_id: str | None, function: str | None) -> Opened:
    digest = check_layout(layout)
    node = read_node(group)
    if node is None and ((group / ".zgroup").exists() or (group / ".zarray").exists()):
        raise damaged(group, NODE_FILE, "it is missing, and the folder is a Zarr v2 node")
    attributes, owned = ({HASH_KEY: digest}, True) if node is None else _checked_group(group, node, layout, digest)
    shape = layout.cell_counts
    found = {name: _check_array(group, name, shape, owned=owned) for name in ARRAYS}
    steps = step_names(group, shape)
    done, failures = check_cells(group, shape, found)
    if node is None and (done.any() or failures.any()):
        # The flags may be those of another layout: used by number they would skip the wrong regions.
        raise damaged(group, NODE_FILE, "it is missing, so nobody can tell for which layout the blocks are done")

    # Nothing was written up to here; only the disk can refuse from here on.
    created = [name for name in ((*ALWAYS, *TRACKED) if tracked else ALWAYS) if found[name].state == "absent"]
    try:
        for name, array in found.items():
            if name in created:
                _create_array(group, name, shape)
            elif array.state == "no chunk":
                if owned:
                    _logger.warning("tracking store %s: %r has lost its chunk: all its cells count as 0", group, name)
                create_sparse(chunk_file(group / name, len(shape)), prod(shape) * ARRAYS[name].itemsize)
            elif array.values is not None:
                _rewrite(group, name, array.values)
        if owned:
            _warn_of_function(group, attributes, function)
            attributes = {**attributes, WORKSPAN_KEY: _workspan_attribute(attributes, layout, task_id, function)}
        write_group(group, attributes, owned=owned, before=node)
    except OSError:
        for name in created:
            shutil.rmtree(group / name, ignore_errors=True)
        raise
    return Opened(attributes, owned, done, failures, steps, created)


def write_group(group: Path, attributes: Node, *, owned: bool, before: Node | None = None) -> None:
    """Bring the metadata of the group up to date, unless it is; keys of others stay.

    Its members are listed in it when it is *owned*, or when its owner had them listed *before*.
    """
    before = before if before is not None else read_node(group)
    listed = owned or (before is not None and "consolidated_metadata" in before)
    after = {**(before or {}), **group_metadata(attributes, members(group) if listed else None)}
    if after != before:
        write_node(group, after, durable=before is not None)


# -- the group -----------------------------------------------------------------------------------------------------


def _checked_group(group: Path, node: Node, layout: Layout, digest: str) -> tuple[Node, bool]:
    is_group = type(node.get("zarr_format")) is int and node["zarr_format"] == 3 and node.get("node_type") == "group"
    attributes = node.get("attributes", {})
    if not isinstance(attributes, dict):
        raise damaged(group, NODE_FILE, "its attributes are not an object")
    stored, ours = attributes.get(HASH_KEY), attributes.get(WORKSPAN_KEY, {})
    if not isinstance(ours, dict):
        raise damaged(group, NODE_FILE, f"its attribute {WORKSPAN_KEY!r} is not an object")
    unmeasured = ours.get("unmeasured", [])
    if not isinstance(unmeasured, list) or any(type(n) is not str or n not in TRACKED for n in unmeasured):
        raise damaged(group, NODE_FILE, f"its list of unmeasured arrays is {unmeasured!r}")
    if stored is None:
        if not is_group:
            raise damaged(group, NODE_FILE, f"it is not a Zarr v3 group but {node.get('node_type')!r}")
        if ours.keys() & set(LAYOUT_FIELDS):
            raise damaged(group, NODE_FILE, f"its attribute {HASH_KEY!r} was lost")
        return attributes, False
    schema = ours.get("schema", SCHEMA)
    fields = layout_fields(layout)
    if is_group and stored != digest and fields.items() <= ours.items():
        raise damaged(group, NODE_FILE, f"its layout is that of the task, and its {HASH_KEY} is another one's")
    if stored != digest or not is_group or type(schema) is not int or schema != SCHEMA:
        raise _mismatch(group, stored, digest, ours, layout, is_group)
    wrong = [name for name in LAYOUT_FIELDS if name in ours and ours[name] != fields[name]]
    if wrong:
        raise damaged(group, NODE_FILE, f"its {', '.join(wrong)} and its {HASH_KEY} contradict each other")
    return attributes, True


def _mismatch(
    group: Path, stored: object, digest: str, ours: Node, layout: Layout, is_group: bool
) -> LayoutMismatchError:
    fields = {"schema": SCHEMA, **layout_fields(layout)}
    changes = [f"  {n}: {_told(ours[n])} -> {_told(new)}" for n, new in fields.items() if n in ours and ours[n] != new]
    if not is_group:
        changes.append("  node: not a Zarr v3 group -> group")
    elif not changes:
        changes.append("  (what differs is not known: the store was made by daisy, which keeps only the hash)")
    return LayoutMismatchError(
        f"tracking store {group} was made for another layout of the task:\n"
        + "\n".join(changes)
        + f"\n  {HASH_KEY}: {stored} -> {digest}\n"
        "Nothing was changed. Use another tracking_path, or start fresh with task.reset() or\n"
        f"  rm -rf {shlex.quote(str(group))}"
    )


def _told(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"offset", "shape"}:
        return f"offset {value['offset']}, shape {value['shape']}"
    return repr(value)


def _workspan_attribute(attributes: Node, layout: Layout, task_id: str | None, function: str | None) -> Node:
    ours = {"schema": SCHEMA, "unmeasured": [], **attributes.get(WORKSPAN_KEY, {}), **layout_fields(layout)}
    for key, value in (("task_id", task_id), ("function", function)):
        if value is not None:
            ours[key] = value
    return ours


def _warn_of_function(group: Path, attributes: Node, function: str | None) -> None:
    before = attributes.get(WORKSPAN_KEY, {}).get("function")
    if not isinstance(before, str) or function is None or before == function:
        return
    if before.partition(VERSION_MARK)[2] == function.partition(VERSION_MARK)[2]:  # else nobody can tell
        _logger.warning(
            "tracking store %s: the function of the task has changed (%s -> %s); blocks that are done stay done. Call "
            "task.reset() to run them again",
            group,
            before,
            function,
        )


def members(group: Path) -> dict[str, Node]:
    """Return path -> metadata of all Zarr nodes below *group*."""
    return dict(_walk(group, ""))


def _walk(group: Path, part: str) -> Iterator[tuple[str, Node]]:
    for entry in sorted(os.scandir(group / part), key=lambda entry: entry.name):
        if entry.is_dir():
            path = f"{part}/{entry.name}" if part else entry.name
            try:
                node = read_node(group, path)
            except WorkspanError:
                continue  # not ours, or it has been refused already
            if node is not None:
                yield path, node
                if node.get("node_type") == "group":
                    yield from _walk(group, path)


# -- the arrays ----------------------------------------------------------------------------------------------------


def _create_array(group: Path, name: str, shape: Ints) -> None:
    spec = ARRAYS[name]
    create_sparse(chunk_file(group / name, len(shape)), prod(shape) * spec.itemsize)
    write_node(group / name, array_metadata(spec, shape), durable=False)


def _check_array(group: Path, name: str, shape: Ints, *, owned: bool) -> _Found:
    spec, count = ARRAYS[name], prod(shape)
    chunk = chunk_file(group / name, len(shape))
    if os.path.lexists(group / name) and not os.path.isdir(group / name):
        raise damaged(group, name, "it is not a folder")
    node = read_node(group, name)
    if node is None:
        # What a killed run had not finished holds nothing; anything else has lost its metadata.
        if chunk.exists() and (chunk.stat().st_size != count * spec.itemsize or read_cells(chunk, spec, count).any()):
            raise damaged(group, f"{name}/{NODE_FILE}", "it is missing, and the array is not empty")
        return _Found("absent")
    problem = array_problem(node, array_metadata(spec, shape))
    if problem is not None:
        if problem.kind == "storage" and not owned:
            return _Found("other form", _decoded(group, name, shape))
        raise damaged(group, name, problem.text)
    try:
        status = chunk.stat()
    except FileNotFoundError:
        # A chunk that equals the fill value need not be stored, and zarr drops that of `done` when a user zeroes it.
        # For measurements it would be a lie: 0 where the value was lost.
        if owned and name in TRACKED:
            raise damaged(group, name, "its chunk is missing") from None
        return _Found("no chunk")
    if not stat.S_ISREG(status.st_mode) or status.st_size != count * spec.itemsize:
        raise damaged(group, name, f"its chunk has {status.st_size} bytes, expected {count * spec.itemsize}")
    return _Found("whole")


def _decoded(group: Path, name: str, shape: Ints) -> NDArray[Any]:
    """Read an array of a caller's own making, compressed or in many chunks."""
    import zarr

    try:
        values = np.asarray(zarr.open_array(group / name, mode="r")[...])
        if values.shape != shape:
            raise ValueError(f"zarr reads the shape {values.shape}")
        return np.ascontiguousarray(values.astype(ARRAYS[name].dtype, casting="equiv")).reshape(-1)
    except Exception as error:  # whatever a codec makes of the bytes
        raise damaged(group, name, f"zarr cannot decode it ({type(error).__name__}: {error})") from error


def _rewrite(group: Path, name: str, values: NDArray[Any]) -> None:
    """Bring a caller's array into the documented form.

    Steps: the new array is made beside the group; the old one is moved out, the new one moved in, the old one deleted.
    :func:`settle_moves` brings the old one back if a kill comes between the moves.
    """
    node = read_node(group, name) or {}
    shape = tuple(node["shape"])
    new, old = beside(group, f".{name}.new"), beside(group, f".{name}.old")
    shutil.rmtree(new, ignore_errors=True)
    chunk = chunk_file(new, len(shape))
    chunk.parent.mkdir(parents=True)
    with open(chunk, "wb") as file:
        file.write(values.tobytes())
        file.flush()
        os.fsync(file.fileno())
    write_node(new, {**array_metadata(ARRAYS[name], shape), "attributes": node.get("attributes", {})})
    os.rename(group / name, old)
    os.rename(new, group / name)
    shutil.rmtree(old)


def settle_moves(group: Path) -> None:
    """Finish or take back what a killed run was moving, and sweep what it left behind."""
    companions = beside(group, "").parent
    left = {name for name in os.listdir(companions) if name.startswith(f"{group.name}.")}
    for name in ARRAYS:
        old = f"{group.name}.{name}.old"
        if old in left and group.exists() and not (group / name).exists():
            os.rename(companions / old, group / name)
        for leftover in {old, f"{group.name}.{name}.new"} & left:
            shutil.rmtree(companions / leftover, ignore_errors=True)
    if f"{group.name}.deleted" in left:
        shutil.rmtree(beside(group, ".deleted"), ignore_errors=True)
    for part in ("", FOLDER, *ARRAYS):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(group, part, TEMP_FILE))


# -- the cells -----------------------------------------------------------------------------------------------------


def check_cells(group: Path, shape: Ints, found: dict[str, _Found]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return the cells of ``done`` and ``failures``, flat, after a check of what counts as done.

    Raises
    ------
    InvalidMetadataError
        A flag is neither 0 nor 1, or the stamps of a done block are not those of an attempt.
    """
    count = prod(shape)
    done: NDArray[np.uint8] = _cells(group, "done", shape, found["done"])
    failures: NDArray[np.uint32] = _cells(group, "failures", shape, found["failures"])
    stamped = all(found[name].state in ("whole", "other form") for name in STAMPS)
    for begin in range(0, count, _STAMP_CHUNK_CELLS):
        flags = done[begin : begin + _STAMP_CHUNK_CELLS]
        if not flags.any():
            continue
        if flags.max() > 1:
            at = begin + int(np.argmax(flags > 1))
            raise damaged(group, "done", f"cell {_cell(at, shape)} is {done[at]}, expected 0 or 1")
        if stamped:
            end = begin + len(flags)
            sent, returned = (_cells(group, name, shape, found[name], begin, end) for name in STAMPS)
            bad = wrong_stamps(flags, sent, returned)
            if bad.any():
                at = int(np.argmax(bad))
                told = f"done, sent at {sent[at]} and returned at {returned[at]}"
                raise damaged(group, "returned_at", f"cell {_cell(begin + at, shape)} is {told}")
    return done, failures


def _cells(group: Path, name: str, shape: Ints, found: _Found, begin: int = 0, end: int | None = None) -> NDArray[Any]:
    spec, count = ARRAYS[name], prod(shape)
    if found.values is not None:
        return found.values[begin:end]
    if found.state != "whole":
        return np.zeros((count if end is None else end) - begin, spec.dtype)
    path = chunk_file(group / name, len(shape))
    return read_cells(path, spec, count) if end is None else read_range(path, spec, count, begin, end)


def wrong_stamps(
    done: NDArray[np.uint8], sent: NDArray[np.float64], returned: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which cells are done but have stamps that no attempt leaves: neither both zero nor in order."""
    executed = (sent != 0) | (returned != 0)
    in_order = (sent > 0) & (returned >= sent) & np.isfinite(returned)
    bad: NDArray[np.bool_] = (done == 1) & executed & ~in_order
    return bad


def _cell(number: int, shape: Ints) -> str:
    return str(tuple(map(int, np.unravel_index(number, shape))))
