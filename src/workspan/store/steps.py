"""What each named section of a block cost: the group ``steps``, one array a name.

An array of float32 self seconds, NaN where the section was not executed, comes into being when its name first appears.
It is cut into chunks of 64 Ki cells; a chunk file comes into being, filled with NaN, when its first block does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from contextlib import suppress
from math import isnan, prod
from typing import TYPE_CHECKING, Any

from workspan.grid.layout import unravel
from workspan.store.faults import damaged
from workspan.store.files import CellFile
from workspan.store.meta import (
    NODE_FILE,
    STEP,
    array_metadata,
    array_problem,
    group_metadata,
    read_node,
    step_chunks,
    write_node,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from workspan.grid.layout import Ints
    from workspan.store.files import Cells

__all__ = [
    "FOLDER",
    "LONGEST_NAME",
    "MOST_NAMES",
    "ChunkGrid",
    "StepArrays",
    "check_step",
    "slug",
    "step_folders",
    "step_names",
]

FOLDER = "steps"
MOST_NAMES = 256
"""Names that get an array. A name made up per block would otherwise make as many arrays as there are blocks."""

LONGEST_NAME = 1000
"""Longest name that gets an array, in characters."""

_NAN = b"\x00\x00\xc0\x7f"
_TEMP = ".chunk.partial"
_logger = logging.getLogger("workspan.store")


def slug(name: str, digits: int = 8) -> str:
    """Return a safe folder name for the section *name*.

    Lower-case letters, digits, ``-`` and ``_`` stay. Any other name gets a piece of its hash, so that names which
    differ only in case, accents or punctuation stay apart on every file system.
    """
    safe = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")[:40]
    if safe and safe == name:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{safe or 'step'}-{digest}"


def _is_text(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)  # half a surrogate pair has no UTF-8


def step_names(store: Path, shape: Ints) -> dict[str, str]:
    """Return display name -> array name of the sections that *store* knows, and check their arrays.

    Raises
    ------
    InvalidMetadataError
        An array is not as documented; it is named.
    """
    if os.path.lexists(store / FOLDER) and not os.path.isdir(store / FOLDER):
        raise damaged(store, FOLDER, "it is not a folder")
    names: dict[str, str] = {}
    for folder in step_folders(store):
        name = check_step(store, folder, shape)
        if name is None:
            continue
        if name in names:
            raise damaged(store, f"{FOLDER}/{folder}", f"its attribute 'name' is {name!r}, as in {names[name]!r}")
        names[name] = folder
    # After the arrays, as a run that goes on beside a reader writes it before them.
    node = read_node(store, FOLDER)
    if node is None and names:
        raise damaged(store, f"{FOLDER}/{NODE_FILE}", "it is missing, and the group is not empty")
    if node is not None and node.get("node_type") != "group":
        raise damaged(store, FOLDER, "it is not a Zarr group")
    return names


def step_folders(store: Path) -> list[str]:
    """Return the folders of the group ``steps``, sorted; none if there is no group."""
    try:
        with os.scandir(store / FOLDER) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def check_step(store: Path, folder: str, shape: Ints) -> str | None:
    """Return the name of the section whose array is *folder*; ``None`` if a kill left it half-made, without values.

    Raises
    ------
    InvalidMetadataError
        The array is not as documented.
    """
    part = f"{FOLDER}/{folder}"
    grid = ChunkGrid(shape)
    keys = list(grid.stored(store / part))  # before the metadata, which a run beside a reader writes before them
    node = read_node(store, part)
    if node is None:
        if keys:
            raise damaged(store, f"{part}/{NODE_FILE}", "it is missing, and the array is not empty")
        return None
    attributes = node.get("attributes")
    name = attributes.get("name") if isinstance(attributes, dict) else None
    if not isinstance(name, str):
        raise damaged(store, part, f"its attribute 'name' is {name!r}, expected a text")
    problem = array_problem(node, array_metadata(STEP, shape, name=name))
    if problem is not None:
        raise damaged(store, part, problem.text)
    for key in keys:
        status = grid.file(store / part, key).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != grid.cells * STEP.itemsize:
            raise damaged(store, part, f"a chunk has {status.st_size} bytes, expected {grid.cells * STEP.itemsize}")
    return name


class ChunkGrid:
    """Where the cells of a step's array are.

    Parameters
    ----------
    shape
        Shape of the tracking grid.
    """

    def __init__(self, shape: Ints) -> None:
        self.shape = shape
        self.chunk, axis = step_chunks(shape)
        self.cells = prod(self.chunk)
        """Cells of a chunk."""
        self._run = prod(shape[axis:])
        """Cells that have the axes before the axis of partition in common; each such run starts a new chunk."""
        self._per_run = -(-shape[axis] // self.chunk[axis])
        self.counts = (*shape[:axis], self._per_run, *[1] * (len(shape) - axis - 1))
        """Chunks per axis."""

    def locate(self, number: int) -> tuple[int, int]:
        """Return the number of the chunk with cell *number*, and the cell's offset in it."""
        run, within = divmod(number, self._run)
        chunk, offset = divmod(within, self.cells)
        return run * self._per_run + chunk, offset

    def span(self, key: int) -> tuple[int, int]:
        """Return the numbers of the cells, begin and end, that chunk *key* holds at its start."""
        run, chunk = divmod(key, self._per_run)
        begin = run * self._run + chunk * self.cells
        return begin, min(begin + self.cells, (run + 1) * self._run)

    def keys(self, begin: int, end: int) -> Iterator[int]:
        """Yield the chunks of the cells from *begin* up to *end*."""
        if begin < end:
            yield from range(self.locate(begin)[0], self.locate(end - 1)[0] + 1)

    def file(self, array: Path, key: int) -> Path:
        """Return the file of chunk *key*."""
        return array.joinpath("c", *map(str, unravel(key, self.counts)))

    def stored(self, array: Path) -> Iterator[int]:
        """Yield the chunks of *array* that have a file."""
        pending = [(array / "c", 0, 0)]
        while pending:
            folder, axis, key = pending.pop()
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.isdecimal() or int(entry.name) >= self.counts[axis]:
                        continue
                    at = key * self.counts[axis] + int(entry.name)
                    if axis + 1 == len(self.counts):
                        yield at
                    else:
                        pending.append((folder / entry.name, axis + 1, at))


class _StepArray:
    """One section's array: one chunk of it is open at a time, since blocks come roughly in grid order."""

    __slots__ = ("_file", "_grid", "_left", "_mapped", "_path", "cells", "key", "stored")

    def __init__(self, path: Path, grid: ChunkGrid, *, mapped: bool) -> None:
        self._path, self._grid, self._mapped = path, grid, mapped
        self._file: CellFile | None = None
        self.key = -1
        self.cells: Cells = {}
        self.stored = set(grid.stored(path))
        self._left: set[int] = set()
        """Chunks that were written and closed since the last flush."""

    def move_to(self, key: int) -> None:
        """Open chunk *key*; make it if need be."""
        path = self._grid.file(self._path, key)
        if key not in self.stored:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path / _TEMP
            try:
                temporary.write_bytes(_NAN * self._grid.cells)
                os.replace(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            self.stored.add(key)
        if self._file is not None:
            self._left.add(self.key)
        self.close()
        file = CellFile(path, STEP, self._grid.cells, mapped=self._mapped)
        try:
            file.make_real(0, self._grid.cells)
        except OSError:
            file.close()
            raise
        self._file, self.cells, self.key = file, file.cells, key

    def flush(self) -> None:
        while self._left:
            fd = os.open(self._grid.file(self._path, next(iter(self._left))), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._left.pop()
        if self._file is not None:
            self._file.flush()

    def trim(self) -> None:
        if self._file is not None:
            self._file.trim()

    def close(self) -> None:
        self.key = -1
        self.cells = {}
        if self._file is not None:
            self._file.close()
            self._file = None


class StepArrays:
    """The arrays of a store's sections, open for writing.

    Parameters
    ----------
    store
        Folder of the tracking group.
    shape
        Shape of the tracking grid.
    names
        What is there already (see :func:`step_names`).
    mapped
        Store through maps or by system calls.
    added
        Called after an array was made.
    """

    def __init__(
        self, store: Path, shape: Ints, names: Mapping[str, str], *, mapped: bool, added: Callable[[], None]
    ) -> None:
        self._store, self._shape, self._mapped, self._added = store, shape, mapped, added
        self._grid = ChunkGrid(shape)
        self._slugs = set(names.values())
        self._refused = False
        self._arrays: dict[str, _StepArray] = {}
        self.names = self._arrays.keys()
        """Sections that have an array; a live view."""
        for name, folder in names.items():
            (store / FOLDER / folder / _TEMP).unlink(missing_ok=True)
            self._arrays[name] = _StepArray(store / FOLDER / folder, self._grid, mapped=mapped)

    def write(self, number: int, steps: Mapping[str, tuple[float, Any]]) -> None:
        """Store the self seconds of cell *number*; sections that are not in *steps* become NaN."""
        arrays = self._arrays
        if not steps and not arrays:
            return
        key, offset = self._grid.locate(number)
        known = 0
        for name, cost in steps.items():
            array = arrays.get(name) or self._add(name)
            if array is not None:
                known += 1
                if array.key != key:
                    array.move_to(key)
                array.cells[offset] = cost[0]
        if known != len(arrays):
            for name, array in arrays.items():
                if name not in steps and key in array.stored:
                    self._blank(array, key, offset)

    @staticmethod
    def _blank(array: _StepArray, key: int, offset: int) -> None:
        if array.key != key:
            array.move_to(key)
        if not isnan(array.cells[offset]):
            array.cells[offset] = float("nan")

    def _add(self, name: str) -> _StepArray | None:
        if len(self._arrays) >= MOST_NAMES or len(name) > LONGEST_NAME or not _is_text(name):
            if not self._refused:
                self._refused = True
                _logger.warning(
                    "%s: what the section %.100r costs per block is not stored: names are text of at most %d characters"
                    " and a store has at most %d, so they should not depend on the block",
                    self._store,
                    name,
                    LONGEST_NAME,
                    MOST_NAMES,
                )
            return None
        folder = next(text for text in (slug(name), slug(name, 16), slug(name, 64)) if text not in self._slugs)
        group = self._store / FOLDER
        path = group / folder
        path.mkdir(parents=True, exist_ok=True)
        if read_node(self._store, FOLDER) is None:
            write_node(group, group_metadata({}))
        write_node(path, array_metadata(STEP, self._shape, name=name))
        self._slugs.add(folder)
        array = self._arrays[name] = _StepArray(path, self._grid, mapped=self._mapped)
        self._added()
        return array

    def flush(self) -> None:
        """Write everything to the disk."""
        for array in self._arrays.values():
            array.flush()

    def trim(self) -> None:
        """Let go of the pages in memory."""
        for array in self._arrays.values():
            array.trim()

    def close(self) -> None:
        """Let go of all files. Can be repeated."""
        for array in self._arrays.values():
            array.close()
