"""How blocks become batches, and how what came out becomes blocks again. Exact: the tests list every vector."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from workspan.arguments import at_least
from workspan.dataset.blocks import concat, no_rows
from workspan.errors import ConfigurationError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from workspan.dataset.ops import BatchSize

__all__ = ["BATCH_BYTES", "BLOCK_BYTES", "Shape", "auto_rows", "batches", "checked_size", "shaped"]

BATCH_BYTES = 16 << 20
"""What a batch of size ``"auto"`` should take, in bytes."""

BLOCK_BYTES = 128 << 20
"""What a block should take at most, in bytes."""


def checked_size(size: Any, name: str = "batch_size") -> BatchSize:
    """Return a batch size, an integer as such.

    Raises
    ------
    ConfigurationError
        It is below 1, or some other text than "auto".
    UsageTypeError
        It is nothing of the kind.
    """
    if size is None:
        return None
    if isinstance(size, str):
        if size == "auto":
            return "auto"
        raise ConfigurationError(f'{name}={size!r} is not known: use a number of rows, None or "auto"')
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise UsageTypeError(f'{name}={size!r} is a {type(size).__name__}: use a number of rows, None or "auto"')
    if size < 1:
        raise ConfigurationError(f'{name}={size} is too small: use 1 or more, None (a batch a block) or "auto"')
    return int(size)


def auto_rows(rows: int, size_bytes: int, target_bytes: int) -> int | None:
    """Return how many rows of a block like this take *target_bytes*; ``None``: it cannot be told.

    Examples
    --------
    >>> auto_rows(10, 80, 800), auto_rows(10, 80, 1), auto_rows(0, 0, 800)
    (100, 1, None)
    """
    return max(1, target_bytes * rows // size_bytes) if rows > 0 and size_bytes > 0 else None


def batches(
    tables: Iterable[pa.Table], size: BatchSize, *, target_bytes: int = BATCH_BYTES, where: str = ""
) -> Iterator[pa.Table]:
    """Yield batches of blocks; empty blocks become none.

    Parameters
    ----------
    tables
        The blocks, pulled as they are needed.
    size
        ``None``: one batch a block. A number: exactly so many rows, filled over the edges of blocks; only the last
        batch may be smaller. ``"auto"``: so many rows as take *target_bytes* at the size of the rows of the first
        block.
    """
    stream = iter(tables)
    if size == "auto":
        skipped: list[pa.Table] = []
        size = None
        for table in stream:
            skipped.append(table)
            size = auto_rows(table.num_rows, table.nbytes, target_bytes)
            if size is not None:
                break
        table = None
        stream = chain(_emptied(skipped), stream)
    if size is None:
        return filter(_has_rows, stream)
    return _filled(stream, int(size), where)


def _has_rows(table: pa.Table) -> bool:
    return bool(table.num_rows)


def _emptied(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield what is in the list, and forget it."""
    while tables:
        yield tables.pop(0)


def _filled(tables: Iterator[pa.Table], size: int, where: str) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    rows = 0
    for table in filter(_has_rows, tables):
        held.append(table)
        rows += table.num_rows
        table = None
        if rows < size:
            continue
        box = [concat(held, where)]  # once, however many batches it gives
        held.clear()
        start = 0
        while rows - start >= size:
            last = rows - start == size
            yield box.pop() if last and start == 0 else _cut(box, start, size, last)
            start += size
        if start < rows:
            held.append(box.pop().slice(start))
        rows -= start
    if held:
        box = [concat(held, where)]
        held.clear()
        yield box.pop()


def _cut(box: list[pa.Table], start: int, size: int, last: bool) -> pa.Table:
    return (box.pop() if last else box[0]).slice(start, size)


class Shape(Struct, frozen=True):
    """How large the blocks are that leave an operator."""

    by: Literal["bytes", "rows", "off"] = "bytes"
    target: int = BLOCK_BYTES
    """Bytes or rows of a block."""

    @classmethod
    def of(cls, block_rows: int | None, block_bytes: int | None) -> Shape:
        """Return the shape that these ask for; if both do, rows win."""
        for name, value in (("block_rows", block_rows), ("block_bytes", block_bytes)):
            if value is not None:
                at_least(name, value, 1)
        if block_rows is not None:
            return cls("rows", int(block_rows))
        return cls() if block_bytes is None else cls("bytes", int(block_bytes))

    def overridden(self, target_bytes: int) -> Shape:
        """Return the shape with another target.

        Raises
        ------
        ConfigurationError
            It is not by bytes, so that there is nothing to override.
        """
        if self.by != "bytes":
            raise ConfigurationError(
                f"a target of {target_bytes} bytes for an operator whose blocks are shaped by {self.by!r}: only those "
                "shaped by bytes have one"
            )
        return Shape("bytes", target_bytes)


def shaped(
    tables: Iterable[pa.Table], shape: Shape, *, where: str = "", schema: Callable[[], pa.Schema | None] | None = None
) -> Iterator[pa.Table]:
    """Yield blocks of the asked shape; rows and their order stay.

    Without any row it is one empty block: with the schema of the first table, or else with what *schema* returns, or
    else without columns. With shaping off the tables pass as they are.
    """
    return iter(tables) if shape.by == "off" else _shaped(iter(tables), shape, where, schema)


def _shaped(
    tables: Iterator[pa.Table], shape: Shape, where: str, schema: Callable[[], pa.Schema | None] | None
) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    known = None
    amount, given = 0, False
    measure = _rows if shape.by == "rows" else _bytes
    for table in tables:
        if known is None or not len(known):
            known = table.schema
        if not table.num_rows:
            continue
        held.append(table)
        amount += measure(table)
        table = None
        if amount <= shape.target:
            continue
        box = [concat(held, where)]
        held.clear()
        given = True
        yield from _pieces(box, shape)
        held += box
        amount = sum(map(measure, held))
    if held:
        given = True
        box = [concat(held, where)]
        held.clear()
        yield box.pop()
    if not given:
        yield _empty(known if known is not None and len(known) else schema() if schema is not None else None)


def _rows(table: pa.Table) -> int:
    return int(table.num_rows)


def _bytes(table: pa.Table) -> int:
    return int(table.nbytes)


def _pieces(box: list[pa.Table], shape: Shape) -> Iterator[pa.Table]:
    """Yield what is cut off the table in *box*; what is not too large any more stays there."""
    start, rows = 0, box[0].num_rows
    while rows > start:
        left = rows - start
        if shape.by == "rows":
            if left <= shape.target:
                break
            size = shape.target
        else:
            left_bytes = box[0].slice(start).nbytes
            if left_bytes <= shape.target:
                break
            size = left if 2 * left_bytes < 3 * shape.target else min(left, -(-shape.target * left // left_bytes))
        yield _cut(box, start, size, size == left)
        start += size
    if box:
        box[0] = box[0].slice(start)


def _empty(schema: pa.Schema | None) -> pa.Table:
    import pyarrow as pa

    return pa.table({}) if schema is None else no_rows(schema)


def row_chunks(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Yield the table in slices of at most *rows* rows."""
    return map(partial(_slice_at, table, rows), range(0, table.num_rows, rows))


def _slice_at(table: pa.Table, rows: int, start: int) -> pa.Table:
    return table.slice(start, rows)
