"""Where rows come from. A source is a list of pieces, each of which a worker can read by itself."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from workspan.arguments import at_least
from workspan.dataset.blocks import first_rows, from_frame, table_of_rows
from workspan.dataset.columns import from_numpy
from workspan.errors import ConfigurationError, DataError, MissingExtraError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["FilePiece", "MemoryPiece", "Piece", "RangePiece", "Source", "from_tables", "items_source", "range_source"]

DEFAULT_ROWS = 65_536
"""Rows of a block of items or numbers."""


class Piece(Struct, frozen=True):
    """A part of a source: what one read yields as one or several blocks."""

    label: str
    """What it is, for messages: a file, or a number."""
    rows: int | None = None
    """How many rows it has; ``None``: that is not known before it was read."""

    def read(self) -> Iterator[pa.Table]:
        """Read it, block by block."""
        raise NotImplementedError


class RangePiece(Piece, frozen=True):
    """Whole numbers in a column ``id``."""

    begin: int = 0
    end: int = 0

    def read(self) -> Iterator[pa.Table]:
        """Make them."""
        import numpy as np

        yield pa.table({"id": from_numpy(np.arange(self.begin, self.end, dtype=np.int64))})


class MemoryPiece(Piece, frozen=True):
    """A table in the memory of the driver."""

    table: pa.Table = None

    def read(self) -> Iterator[pa.Table]:
        """Return it."""
        yield self.table


class ArrowPiece(Piece, frozen=True):
    """A table in a file of Arrow's own form, which is mapped into memory and not read."""

    path: str = ""
    first: int | None = None
    """Only so many of its rows; ``None``: all."""

    def read(self) -> Iterator[pa.Table]:
        """Map it."""
        table = mapped(self.path)
        yield table if self.first is None else first_rows(table, self.first)


def mapped(path: str | Path) -> pa.Table:
    """Return the table in an Arrow file, mapped: its pages are read when they are looked at."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


class FilePiece(Piece, frozen=True):
    """A file, or some row groups of it."""

    path: str = ""
    reader: Callable[..., Iterator[pa.Table]] = None  # type: ignore[assignment]
    options: tuple[tuple[str, Any], ...] = ()
    filesystem: Any = None
    size_bytes: int | None = None
    """Size of the file when the dataset was made; a resumed run looks whether it is still the same."""

    def read(self) -> Iterator[pa.Table]:
        """Open and decode it.

        Raises
        ------
        DataError
            The file is unreadable; the text names it.
        """
        try:
            yield from self.reader(self.path, self.filesystem, **dict(self.options))
        except (pa.ArrowException, OSError, EOFError) as error:
            if isinstance(error, KeyError):
                raise
            raise DataError(
                f"{self.label} cannot be read: {error}. Is it complete, and of the kind that was asked for?"
            ) from error


class Source(Struct, frozen=True):
    """A named list of pieces."""

    name: str
    """What it is called in plans and reports, ``ReadParquet`` for example."""
    pieces: tuple[Piece, ...]
    parent: Any = None
    """The run that made the pieces, of a dataset that was materialised."""

    @property
    def rows(self) -> int | None:
        """Rows of all pieces; ``None``: not known before they are read."""
        counts = [piece.rows for piece in self.pieces]
        return None if None in counts else sum(count for count in counts if count is not None)


# -- memory ----------------------------------------------------------------------------------------------------------


def blocks_of(rows: int, blocks: Any, name: str) -> list[tuple[int, int]]:
    """Return the bounds of *rows* rows in *blocks* nearly equal parts; ``None``: as many as are sensible."""
    if blocks is None:
        blocks = max(1, -(-rows // DEFAULT_ROWS))
    count = max(1, min(at_least(f"{name}: blocks", blocks, 1), rows))
    edges = [rows * number // count for number in range(count + 1)]
    return list(pairwise(edges))


def range_source(n: int, blocks: int | None) -> Source:
    """Return the numbers from 0 to *n* - 1."""
    bounds = blocks_of(at_least("range: n", n, 0), blocks, "range")
    return Source("ReadRange", tuple(RangePiece(f"rows {b:,} to {e:,}", e - b, b, e) for b, e in bounds))


def items_source(items: Iterable[Any], blocks: int | None) -> Source:
    """Return items as rows: mappings as they are, anything else in a column ``item``."""
    from collections.abc import Mapping

    rows = [item if isinstance(item, Mapping) else {"item": item} for item in items]
    pieces = []
    for begin, end in blocks_of(len(rows), blocks, "from_items"):
        table = table_of_rows(rows[begin:end], "from_items") if end > begin else pa.table({})
        pieces.append(MemoryPiece(f"items {begin:,} to {end:,}", end - begin, table))
    return Source("FromItems", tuple(pieces))


def from_tables(tables: Sequence[Any], name: str, argument: str) -> Source:
    """Return one block a table.

    Raises
    ------
    UsageTypeError
        Something else is among them.
    """
    pieces = []
    for number, table in enumerate(tables):
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        elif type(table).__module__.partition(".")[0] == "pandas" and hasattr(table, "columns"):
            table = from_frame(table)
        if not isinstance(table, pa.Table):
            raise UsageTypeError(f"{argument}({table!r}): a {type(table).__name__} is no table")
        pieces.append(MemoryPiece(f"table {number}", table.num_rows, table))
    if not pieces:
        raise ConfigurationError(f"{argument}([]): there is no table; pass at least one, it may have no rows")
    return Source(name, tuple(pieces))


# -- files -----------------------------------------------------------------------------------------------------------


def find_files(
    paths: Any, suffixes: tuple[str, ...], filesystem: Any, name: str
) -> list[tuple[str, str, int | None, Any]]:
    """Return (what to call it, path, size in bytes, file system) of each file, sorted by path within each entry.

    A folder stands for all files in it, at any depth, but for those whose name (or folder) begins with ``.`` or ``_``.

    Raises
    ------
    DataError
        Nothing is there.
    """
    import pyarrow.fs as fs

    if isinstance(paths, bytes) or not (isinstance(paths, (str, os.PathLike)) or hasattr(paths, "__iter__")):
        raise UsageTypeError(f"{name}({paths!r}): a {type(paths).__name__} is no path")
    entries = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not entries:
        raise ConfigurationError(f"{name}([]): there is no path; pass a file, a folder, a pattern or a list of them")
    found: list[tuple[str, str, int | None, Any]] = []
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike)):
            raise UsageTypeError(f"{name}({entry!r}): a {type(entry).__name__} is no path")
        text = os.fspath(entry)
        system, path = (filesystem, text) if filesystem is not None else resolve(text)
        if any(sign in path for sign in "*?["):
            matches = _glob(system, path)
        else:
            info = system.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                raise DataError(f"{name}: {text!r} is not there: pass a file, a folder or a pattern")
            matches = _within(system, path, suffixes) if info.type == fs.FileType.Directory else [info]
        if not matches:
            told = " or ".join(suffixes)
            raise DataError(f"{name}: {text!r} has no files in it (looked for {told}): check the path")
        for info in sorted(matches, key=lambda info: info.path):
            label = text if len(matches) == 1 and info.path == path else info.path
            found.append((label, info.path, info.size, None if isinstance(system, fs.LocalFileSystem) else system))
    return found


def resolve(text: str) -> tuple[Any, str]:
    """Return the file system and the path in it; a URL of any scheme that pyarrow or fsspec knows."""
    import pyarrow.fs as fs

    if "://" not in text:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))
    try:
        system, path = fs.FileSystem.from_uri(text)
        return system, path
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        try:
            import fsspec
        except ImportError:
            scheme = text.partition("://")[0]
            raise MissingExtraError(
                f"{text!r}: pyarrow has no file system for {scheme}://, and fsspec, which may have one, is not "
                "installed: pip install fsspec"
            ) from None
        other, path = fsspec.core.url_to_fs(text)
        return fs.PyFileSystem(fs.FSSpecHandler(other)), path


def is_local(system: Any) -> bool:
    """Whether a file system is that of this machine."""
    import pyarrow.fs as fs

    return isinstance(system, fs.LocalFileSystem)


def _visible(path: str, base: str) -> bool:
    return not any(part.startswith((".", "_")) for part in path[len(base) :].strip("/").split("/"))


def _within(system: Any, path: str, suffixes: tuple[str, ...]) -> list[Any]:
    import pyarrow.fs as fs

    infos = system.get_file_info(fs.FileSelector(path, recursive=True))
    files = [info for info in infos if info.type == fs.FileType.File and _visible(info.path, path)]
    fitting = [info for info in files if info.path.endswith(suffixes)]
    return fitting or files


def _glob(system: Any, pattern: str) -> list[Any]:
    import re

    import pyarrow.fs as fs

    fixed = pattern[: min(pattern.index(sign) for sign in "*?[" if sign in pattern)].rpartition("/")[0] or "/"
    if system.get_file_info(fixed).type != fs.FileType.Directory:
        return []
    rule = re.compile(_pattern(pattern))
    infos = system.get_file_info(fs.FileSelector(fixed, recursive=True))
    files = [info for info in infos if info.type == fs.FileType.File and rule.fullmatch(info.path)]
    asked = not _visible(pattern, fixed)  # the pattern itself names what is hidden
    return [info for info in files if asked or _visible(info.path, fixed)]


def _pattern(pattern: str) -> str:
    r"""Turn a pattern of paths into a regular expression; only ``**`` goes over ``/``.

    Examples
    --------
    >>> _pattern("a/*.csv"), _pattern("a/**/b?.csv")
    ('a/[^/]*\\.csv', 'a/(?:.*/)?b[^/]\\.csv')
    """
    import re

    out = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif pattern[at] == "?":
            out, at = out + "[^/]", at + 1
        elif pattern[at] == "[" and "]" in pattern[at:]:
            end = pattern.index("]", at)
            out, at = out + pattern[at : end + 1], end + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    return out
