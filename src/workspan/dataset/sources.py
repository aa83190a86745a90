"""Where rows come from. A source is a list of pieces, each of which a worker can read by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from workspan.arguments import at_least
from workspan.dataset.blocks import first_rows, from_frame, table_of_rows
from workspan.dataset.columns import column_of, from_numpy
from workspan.errors import ConfigurationError, DataError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    modified_ns: int | None = None
    """When the file was last written, in ns since the epoch."""
    keys: tuple[tuple[str, int | str | None], ...] = ()
    """Columns of one value, which the names of its folders tell; one that is in the file too is that of the file."""
    chosen: tuple[str, ...] | None = None
    """Columns of the blocks, in this order; ``None``: those of the file, and the keys."""

    def read(self) -> Iterator[pa.Table]:
        """Open and decode it.

        Raises
        ------
        DataError
            The file is unreadable; the text names it.
        """
        try:
            yield from map(self._whole, self.reader(self.path, self.filesystem, **dict(self.options)))
        except (pa.ArrowException, OSError, EOFError) as error:
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise DataError(
                f"{self.label} cannot be read: {text}. Is it complete, and of the kind that was asked for?"
            ) from error

    def _whole(self, table: pa.Table) -> pa.Table:
        for name, value in self.keys:
            if name not in table.column_names and (self.chosen is None or name in self.chosen):
                one = pa.nulls(1) if value is None else column_of(name, [value], self.label)
                table = table.append_column(name, pa.repeat(one[0], table.num_rows))
        return table if self.chosen is None else table.select(list(self.chosen))


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
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise UsageTypeError(f"from_items({items!r}): a {type(items).__name__} is no list of items")
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
            table = from_frame(table, f"{argument}, table {number}")
        if not isinstance(table, pa.Table):
            raise UsageTypeError(f"{argument}({table!r}): a {type(table).__name__} is no table")
        pieces.append(MemoryPiece(f"table {number}", table.num_rows, table))
    if not pieces:
        raise ConfigurationError(f"{argument}([]): there is no table; pass at least one, it may have no rows")
    return Source(name, tuple(pieces))
