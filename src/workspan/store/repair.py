"""Mending and deleting tracking stores.

A repair takes from a damaged store what can be trusted and resets the rest to "not done"; what it changes it first
copies to a folder beside the store. It never makes a block done.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import suppress
from datetime import datetime
from itertools import count as count_from
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from workspan.errors import InvalidMetadataError, NoStoreError, TrackingError, WorkspanError
from workspan.grid.layout import Layout
from workspan.store.faults import damaged, disk_error
from workspan.store.files import create_sparse, read_cells
from workspan.store.hash import layout_hash
from workspan.store.lock import StoreLock, beside
from workspan.store.meta import (
    ARRAYS,
    NODE_FILE,
    SCHEMA,
    TEMP_FILE,
    TRACKED,
    Node,
    array_metadata,
    array_problem,
    chunk_file,
    group_metadata,
    read_node,
    write_node,
)
from workspan.store.opening import (
    HASH_KEY,
    LAYOUT_FIELDS,
    STAMPS,
    WORKSPAN_KEY,
    settle_moves,
    write_group,
    wrong_stamps,
)
from workspan.store.steps import FOLDER, check_step, step_folders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.grid.layout import Ints

__all__ = ["Fix", "RepairReport", "delete_store", "repair"]

_BATCH = 1 << 20
_KNOWN = {NODE_FILE, TEMP_FILE, "runs.jsonl", FOLDER, *ARRAYS}


class Fix(msgspec.Struct, frozen=True):
    """One thing that a repair put right."""

    part: str
    """Array, or file of the group."""
    what: str
    """What was wrong and what was done about it."""


class RepairReport(msgspec.Struct, frozen=True):
    """What a repair did, or would do. True if the store needs none."""

    path: Path
    """Folder of the store."""
    fixes: tuple[Fix, ...]
    """What was put right, in order."""
    reset: int
    """Cells of ``done`` that were reset, so that their blocks run again. What a flag that is lost said is not known,
    so an array that is made anew adds nothing."""
    backup: Path | None
    """Folder with the changed files as they were before; ``None`` if nothing was changed."""

    def __bool__(self) -> bool:
        return not self.fixes


def repair(path: Path | str, *, dry_run: bool = False) -> RepairReport:
    """Mend the tracking store at *path* as far as it can be trusted.

    Cells of ``done`` that are neither 0 nor 1 are reset; so are done cells whose stamps are those of no attempt, and
    those whose measurements were lost. Chunks of a wrong size are cut or filled with zeros. Metadata of arrays are
    written anew where the shape is known and the size of the bytes agrees. Sections whose arrays are damaged are taken
    out.

    Parameters
    ----------
    path
        Folder of the group.
    dry_run
        Only find out what a repair would do: nothing is changed, except that a move which a kill interrupted is ended.

    Raises
    ------
    NoStoreError
        There is no store.
    InvalidMetadataError
        The metadata of the group are lost, so that nobody can tell which blocks the cells mean. Nothing was changed.
    StoreLockedError
        A run writes to it.
    StoreFullError, TrackingError
        The disk refused.
    """
    group = Path(os.path.realpath(path))
    if not group.is_dir():
        raise NoStoreError(f"there is no tracking store at {group}")
    with StoreLock(group):
        settle_moves(group)
        try:
            return _Repair(group, dry_run=dry_run).run()
        except OSError as error:
            if isinstance(error, WorkspanError):
                raise
            raise disk_error(error, group, "repairing the tracking store") from error


def delete_store(path: Path | str) -> Path | None:
    """Delete the tracking store at *path* with its run history, and what lies beside it.

    Returns
    -------
    Path | None
        The folder that is gone, or ``None`` if there was none.

    Raises
    ------
    StoreLockedError
        A run writes to it.
    TrackingError
        The folder holds something else, or cannot be deleted. Nothing was deleted.
    """
    group = Path(os.path.realpath(path))
    if not group.is_dir():
        return None
    with StoreLock(group):
        strangers = sorted(set(os.listdir(group)) - _KNOWN)
        if strangers and not _is_store(group):
            raise TrackingError(
                f"{group} is not a tracking store: it holds {strangers[0]!r} and {len(strangers) - 1} others. Nothing "
                "was deleted; look at it and delete it yourself"
            )
        moved = beside(group, ".deleted")
        try:
            # Out of the way in one step: a kill while deleting leaves no half of a store.
            shutil.rmtree(moved, ignore_errors=True)
            try:
                os.rename(group, moved)
            except OSError:  # the root of a file system, say
                moved = group
            shutil.rmtree(moved)
            beside(group, ".slots").unlink(missing_ok=True)
            beside(group, ".outputs.json").unlink(missing_ok=True)
            shutil.rmtree(beside(group, ".results"), ignore_errors=True)
        except OSError as error:
            raise disk_error(error, group, "deleting the tracking store") from error
    return group


def _is_store(group: Path) -> bool:
    try:
        attributes = (read_node(group) or {}).get("attributes")
    except WorkspanError:
        return False
    return isinstance(attributes, dict) and HASH_KEY in attributes


def _hash_of(fields: Node) -> str | None:
    try:
        total, read, write = (
            (tuple(fields[key]["offset"]), tuple(fields[key]["shape"]))
            for key in ("total_roi", "read_roi", "write_roi")
        )
        return layout_hash(Layout(*total, *read, *write, fields["fit"], False))
    except Exception:  # whatever is wrong with what is written there
        return None


class _Repair:
    """One repair; the caller holds the lock."""

    def __init__(self, group: Path, *, dry_run: bool) -> None:
        self.group, self.dry_run = group, dry_run
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        # Two repairs within a second keep apart what they found.
        names = (f"{group.name}.repair-{stamp}" + (f"-{n}" if n else "") for n in count_from())
        self.backup = next(path for path in map(group.with_name, names) if not path.exists())
        self.fixes: list[Fix] = []
        self.lost: list[tuple[int, int]] = []
        """Ranges of cells whose measurements were lost."""
        self.reset = 0
        self.mended: set[str] = set()
        """Arrays whose metadata or chunk were put right; in a dry run they only count as such."""
        self.emptied: set[str] = set()
        """Arrays that were made anew."""

    def run(self) -> RepairReport:
        node = read_node(self.group)
        attributes = {} if node is None else node.get("attributes")
        if node is None or node.get("node_type") != "group" or not isinstance(attributes, dict):
            raise InvalidMetadataError(
                f"tracking store {self.group}: {NODE_FILE} does not tell which layout it was made for, so nobody can "
                "say which blocks its cells mean; restore that file or delete the store"
            )
        attributes = self._attributes(attributes)
        owned = HASH_KEY in attributes
        shape = self._shape(attributes)
        for name in ARRAYS:
            if os.path.isdir(self.group / name):
                self._array(name, shape, owned=owned)
            elif os.path.lexists(self.group / name):
                self._take_out(name)
                self._fixed(name, "it was not a folder: taken out")
        self._cells(shape)
        self._steps(shape)
        if self.fixes:
            self._keep(NODE_FILE)
            if not self.dry_run:
                write_group(self.group, attributes, owned=owned)
        backup = self.backup if self.backup.exists() else None
        return RepairReport(self.group, tuple(self.fixes), self.reset, backup)

    def _fixed(self, part: str, what: str) -> None:
        self.fixes.append(Fix(part, what))

    def _keep(self, part: str) -> None:
        """Copy a file of the group to the backup, as it is before the repair."""
        source, target = self.group / part, self.backup / part
        if source.is_file() and not target.exists() and not self.dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def _clear_node(self, part: str) -> None:
        """Keep the metadata of *part*, which are about to be written anew."""
        if (self.group / part / NODE_FILE).is_dir():
            self._take_out(f"{part}/{NODE_FILE}")
        else:
            self._keep(f"{part}/{NODE_FILE}")

    def _take_out(self, part: str) -> None:
        """Move a file or folder of the group to the backup."""
        if self.dry_run:
            return
        target = self.backup / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(self.group / part, target)

    def _write_node(self, part: str, node: Node) -> None:
        if not self.dry_run:
            write_node(self.group / part, node)

    # -- metadata --------------------------------------------------------------------------------------------------

    def _shape(self, attributes: Node) -> Ints:
        """Shape of the tracking grid: from the layout in the attributes, else what most arrays say."""
        with suppress(Exception):  # whatever is wrong with what is written there
            ours = attributes[WORKSPAN_KEY]
            total, block = ours["total_roi"]["shape"], ours["write_roi"]["shape"]
            return tuple(max(1, -(-int(t) // int(w))) for t, w in zip(total, block, strict=True))
        said: Counter[Ints] = Counter()
        for name, spec in ARRAYS.items():
            with suppress(WorkspanError):
                node = read_node(self.group, name) or {}
                shape = node.get("shape")
                if isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape):
                    problem = array_problem(node, array_metadata(spec, tuple(shape)))
                    if problem is None or problem.kind == "storage":
                        said[tuple(shape)] += 1
        if not said:
            raise InvalidMetadataError(
                f"tracking store {self.group}: no array tells the shape of the tracking grid; delete the store"
            )
        return said.most_common(1)[0][0]

    def _attributes(self, attributes: Node) -> Node:
        """Make the attributes agree with each other; the hash is the one that counts."""
        ours = attributes.get(WORKSPAN_KEY, {})
        stored = attributes.get(HASH_KEY)
        if not isinstance(ours, dict):
            ours = {"schema": SCHEMA}
            self._fixed(NODE_FILE, f"its attribute {WORKSPAN_KEY!r} was no object: emptied")
        listed = ours.get("unmeasured", [])
        if not isinstance(listed, list) or any(not isinstance(name, str) or name not in TRACKED for name in listed):
            ours = {**ours, "unmeasured": []}
            self._fixed(NODE_FILE, "the list of unmeasured arrays was damaged: emptied")
        if ours.keys() & set(LAYOUT_FIELDS):
            digest = _hash_of(ours)
            if digest is not None and stored is None:
                self._fixed(NODE_FILE, f"its attribute {HASH_KEY!r} was lost: computed from the layout")
                stored = digest
            elif digest is None or digest != stored:
                ours = {key: value for key, value in ours.items() if key not in LAYOUT_FIELDS}
                self._fixed(NODE_FILE, f"the layout in it is not that of {HASH_KEY}: taken out")
        changed = dict(attributes)
        if WORKSPAN_KEY in attributes or ours:
            changed[WORKSPAN_KEY] = ours
        if stored is not None:
            changed[HASH_KEY] = stored
        return changed

    # -- arrays ----------------------------------------------------------------------------------------------------

    def _array(self, name: str, shape: Ints, *, owned: bool) -> None:
        spec, count = ARRAYS[name], prod(shape)
        size = count * spec.itemsize
        chunk = chunk_file(self.group / name, len(shape))
        found = chunk.stat().st_size if chunk.is_file() else None
        problem = None
        try:
            node = read_node(self.group, name)
        except InvalidMetadataError:
            problem = "it could not be read"
        else:
            if node is None:
                if found is None or (found == size and not read_cells(chunk, spec, count).any()):
                    return  # made half by a killed run; the next one completes it
                problem = "it was missing"
            elif (told := array_problem(node, array_metadata(spec, shape))) is not None:
                if told.kind == "storage" and not owned:
                    return  # a caller's own form, which the next run rewrites
                problem = told.text
        if problem is not None and found == size:
            # As many bytes as the documented form has: what they say is checked below.
            self._clear_node(name)
            self._write_node(name, array_metadata(spec, shape))
            self.mended.add(name)
            self._fixed(f"{name}/{NODE_FILE}", f"{problem}: written anew")
        elif problem is not None or (found is None and (chunk.exists() or (owned and name in TRACKED))):
            self._take_out(name)
            if not self.dry_run:
                create_sparse(chunk, size)
            self._write_node(name, array_metadata(spec, shape))
            self.mended.add(name)
            self.emptied.add(name)
            self._lose(name, 0, count)
            self._fixed(name, f"{problem or 'its chunk was missing'}: made anew, all cells are 0")
        elif found is not None and found != size:
            self._keep(str(chunk.relative_to(self.group)))
            whole = min(found, size) // spec.itemsize
            if not self.dry_run:
                os.truncate(chunk, whole * spec.itemsize)  # a part of a cell goes, too
                os.truncate(chunk, size)
            self.mended.add(name)
            self._lose(name, whole, count)
            self._fixed(name, f"its chunk had {found} bytes, not {size}: {'cut' if found > size else 'filled with 0'}")

    def _lose(self, name: str, begin: int, end: int) -> None:
        if name in TRACKED and begin < end:
            self.lost.append((begin, end))

    # -- cells -----------------------------------------------------------------------------------------------------

    def _cells(self, shape: Ints) -> None:
        """Reset what may not count as done, and its stamps with it."""
        files = {name: chunk_file(self.group / name, len(shape)) for name in ("done", *STAMPS)}
        count = prod(shape)
        if "done" not in self.mended and (not files["done"].exists() or files["done"].stat().st_size != count):
            return  # nothing is done, or a caller's own form
        if not all(files[name].exists() and self._is_plain(name, shape) for name in STAMPS if name not in self.mended):
            del files["sent_at"], files["returned_at"]
        numbers = {"garbage": 0, "odd": 0, "lost": 0}
        for begin in range(0, count, _BATCH):
            end = min(begin + _BATCH, count)
            cells = {name: self._cells_of(name, path, begin, end) for name, path in files.items()}
            done = cells["done"]
            bad = {"garbage": done > 1}
            if "returned_at" in cells:
                bad["odd"] = wrong_stamps(done, cells["sent_at"], cells["returned_at"])
                gone = np.zeros(end - begin, np.bool_)
                for first, stop in self.lost:
                    gone[max(0, first - begin) : max(0, stop - begin)] = True
                bad["lost"] = (done == 1) & gone & (cells["returned_at"] > 0) & ~bad["odd"]
            clear = np.logical_or.reduce(list(bad.values()))
            for kind, where in bad.items():
                numbers[kind] += int(where.sum())
            if clear.any():
                self._zero(files, cells, clear, begin)
        self.reset = sum(numbers.values())
        for kind, what in (
            ("garbage", "were neither 0 nor 1"),
            ("odd", "were done with stamps that no attempt leaves"),
            ("lost", "were done, but some of their measurements were lost"),
        ):
            if numbers[kind]:
                self._fixed("done", f"{numbers[kind]} cells {what}: reset to not done")

    def _cells_of(self, name: str, path: Path, begin: int, end: int) -> NDArray[Any]:
        """Read cells as they are once the array is mended: what is missing is 0."""
        spec = ARRAYS[name]
        out = np.zeros(end - begin, spec.dtype)
        if name not in self.emptied:
            found = np.fromfile(path, spec.dtype, end - begin, offset=begin * spec.itemsize)
            out[: len(found)] = found
        return out

    def _is_plain(self, name: str, shape: Ints) -> bool:
        node = read_node(self.group, name)
        return node is not None and array_problem(node, array_metadata(ARRAYS[name], shape)) is None

    def _zero(self, files: dict[str, Path], cells: dict[str, NDArray[Any]], where: NDArray[np.bool_], at: int) -> None:
        for name, path in files.items():
            self._keep(str(path.relative_to(self.group)))
            cells[name][where] = 0
            if self.dry_run:
                continue
            with open(path, "r+b") as file:
                file.seek(at * ARRAYS[name].itemsize)
                file.write(cells[name].tobytes())
                file.flush()
                os.fsync(file.fileno())

    # -- steps -----------------------------------------------------------------------------------------------------

    def _steps(self, shape: Ints) -> None:
        """Take out the sections whose arrays are damaged: what a block spent in them is unknown then."""
        folder = self.group / FOLDER
        if not folder.exists():
            return
        if not folder.is_dir():
            self._take_out(FOLDER)
            self._fixed(FOLDER, "it was not a folder: taken out")
            return
        try:
            node = read_node(self.group, FOLDER)
            whole = not step_folders(self.group) if node is None else node.get("node_type") == "group"
        except InvalidMetadataError:
            whole = False
        if not whole:
            self._clear_node(FOLDER)
            self._write_node(FOLDER, group_metadata({}))
            self._fixed(f"{FOLDER}/{NODE_FILE}", "it was damaged: written anew")
        names: set[str | None] = {None}
        for part in step_folders(self.group):
            try:
                name = check_step(self.group, part, shape)
                if name is not None and name in names:
                    raise damaged(self.group, part, "its name is taken")
                names.add(name)
            except InvalidMetadataError:
                self._take_out(f"{FOLDER}/{part}")
                self._fixed(f"{FOLDER}/{part}", "it was damaged: taken out")
