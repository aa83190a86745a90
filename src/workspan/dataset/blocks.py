"""Arrow blocks, and rows and batches made of them and turned into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from workspan.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "batch_of",
    "certain",
    "concat",
    "first_rows",
    "from_frame",
    "from_numpy",
    "guess",
    "hand_over",
    "is_guess",
    "rows_in",
    "rows_of",
    "table_of_batch",
    "table_of_rows",
]


def hand_over(box: list[Any]) -> Iterator[Any]:
    """Yield what is in *box*, holding no reference to what was yielded."""
    while box:
        yield box.pop(0)


_GUESS = {b"workspan": b"guessed"}


def guess(schema: pa.Schema) -> pa.Schema:
    """Mark a schema as that of what would have come out of a function which was not called, as no row came.

    The columns that the function would have made are not in it, so that what follows must not insist on them.
    """
    return schema.with_metadata({**(schema.metadata or {}), **_GUESS})


def is_guess(table: pa.Table) -> bool:
    """Whether a table without rows has a schema that is only guessed."""
    return not table.num_rows and _GUESS.items() <= (table.schema.metadata or {}).items()


def certain(table: pa.Table) -> pa.Table:
    """Return the table without the mark of a guess."""
    if not is_guess(table):
        return table
    left = {name: value for name, value in table.schema.metadata.items() if name not in _GUESS}
    return table.replace_schema_metadata(left or None)


def first_rows(table: pa.Table, rows: int) -> pa.Table:
    """Return at most so many rows; a table without columns, which Arrow would give rows, as it is."""
    return table if rows >= table.num_rows else table.slice(0, rows)


def concat(tables: Sequence[pa.Table], where: str) -> pa.Table:
    """Put tables below each other; columns that one lacks are null in its rows.

    Raises
    ------
    DataError
        A column has types that have nothing in common.
    """
    if len(tables) == 1:
        return tables[0]
    if len({table.schema for table in tables}) == 1:
        return pa.concat_tables(tables)
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{where}: {clash(tables)}") from error


def clash(tables: Iterable[pa.Table]) -> str:
    """Say which column has which types, and what to do."""
    types: dict[str, dict[str, None]] = {}
    for table in tables:
        for column in table.schema:
            types.setdefault(column.name, {})[str(column.type)] = None
    bad = {name: found for name, found in types.items() if len(found) > 1}
    told = "; ".join(f"column {name!r} is {' and '.join(found)}" for name, found in list(bad.items())[:5])
    return f"blocks with different schemas do not go together: {told}. Give the column one type in every block"


# -- rows ------------------------------------------------------------------------------------------------------------


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dicts of Python values, tensors as arrays."""
    tensors = [
        name for name in table.column_names if isinstance(table.schema.field(name).type, pa.FixedShapeTensorType)
    ]
    rows: list[dict[str, Any]] = table.to_pylist()
    for name in tensors:
        for row, value in zip(rows, _array_of(table.column(name)), strict=True):
            row[name] = value
    return rows


def table_of_rows(rows: Sequence[Mapping[str, Any]], where: str) -> pa.Table:
    """Build a table of rows; a name that a row lacks is null in it.

    Raises
    ------
    DataError
        Values of one column have types that do not go together, or none that Arrow knows.
    """
    columns = _equal_columns(rows)
    if columns is None:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
    if not columns:
        raise DataError(f"{where}: the rows have no columns; return a dict with at least one")
    return pa.table({str(name): _column(str(name), values, where) for name, values in columns.items()})


def _equal_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    """Return the columns of rows that all have the same names; ``None``: they have not.

    A row that has all names, and no more of them than there are, has no other.
    """
    names = rows[0].keys()
    if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(names)}:
        return None
    try:
        return {name: list(map(itemgetter(name), rows)) for name in names}
    except KeyError:
        return None


def _column(name: str, values: Any, where: str) -> Any:
    """Return a column of Arrow from whatever it is given as."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise DataError(
            f"{where}: column {name!r} is one value, {str(values)[:60]!r} of type {kind}: give one value a row, for "
            "example numpy.full(rows, value)"
        )
    try:
        if isinstance(values, np.ndarray):
            return from_numpy(values)
        values = list(values)
        first = next((value for value in values if value is not None), None)
        if isinstance(first, np.ndarray) and first.ndim:
            if all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values):
                return from_numpy(np.stack(values))
            values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        return _from_list(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        kinds = sorted({type(value).__name__ for value in values})[:5]
        raise DataError(
            f"{where}: column {name!r} cannot be made into an Arrow column of its values of type "
            f"{', '.join(kinds)}: {error}. Return values of one type that Arrow knows"
        ) from error


def _from_list(values: list[Any]) -> Any:
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= _PLAIN:
        with suppress(OverflowError):
            return from_numpy(np.array(values, _PLAIN_TYPES[kinds.pop()]))
    return pa.array(values)


_PLAIN_TYPES = {int: np.int64, float: np.float64, bool: np.bool_}
_PLAIN = set(_PLAIN_TYPES)


def from_numpy(values: np.ndarray[Any, Any]) -> Any:
    """Return an array as a column; one of several axes as a column of tensors."""
    if values.ndim == 0:
        raise ValueError("it is a single number, not one value a row")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if isinstance(values, np.ma.MaskedArray):
        if values.ndim > 1 and np.ma.is_masked(values):
            raise ValueError("values of an array of several axes are masked, and a tensor has no place for nulls")
        if np.ma.is_masked(values):
            return pa.array(values.tolist(), None if values.dtype.kind in "OUS" else pa.from_numpy_dtype(values.dtype))
        values = values.data
    if values.ndim == 1:
        kind = values.dtype.kind
        if kind in "iuf" and values.dtype.isnative:
            # As pyarrow.array does, but that imports pandas first, which takes a second of every new worker.
            buffer = pa.py_buffer(np.ascontiguousarray(values))
            return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])
        if kind == "b":
            bits = pa.py_buffer(np.packbits(values, bitorder="little"))
            return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
        return pa.array(values.tolist()) if kind in "OUS" else pa.array(values)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))


# -- batches ---------------------------------------------------------------------------------------------------------


def batch_of(table: pa.Table, form: str | None, zero_copy: bool) -> Any:
    """Return the rows in the form in which a function takes a batch.

    Parameters
    ----------
    table
        At least one row.
    form
        ``"numpy"``: dict of arrays; ``"pandas"``: a frame; ``"pyarrow"`` or ``None``: a table.
    zero_copy
        Arrays may be read-only views of the block. Else they are writable and the batch's own.
    """
    if form == "pandas":
        frame = table.to_pandas()
        return frame if zero_copy else frame.copy(deep=True)
    if form is None or form == "pyarrow":
        return table if zero_copy else _private(table)
    return {name: _array_of(table.column(name), zero_copy) for name in table.column_names}


def rows_in(batch: Any) -> int:
    """Return the number of rows of a batch of any form."""
    if isinstance(batch, pa.Table):
        return int(batch.num_rows)
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)


def _array_of(column: pa.ChunkedArray, zero_copy: bool = True) -> np.ndarray[Any, Any]:
    if isinstance(column.type, pa.FixedShapeTensorType):
        parts = [chunk.to_numpy_ndarray() for chunk in column.chunks]
        array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    else:
        parts = list(map(_view, column.chunks))
        array = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else column.to_numpy()
    return array if zero_copy else np.array(array)


def _view(chunk: pa.Array) -> np.ndarray[Any, Any]:
    """Return the values; plain numbers without nulls as a read-only view."""
    kind = chunk.type
    if len(chunk) and chunk.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        # As pyarrow does, but that imports pandas first, which takes a second of every new worker.
        values: np.ndarray[Any, Any] = np.frombuffer(
            chunk.buffers()[1], kind.to_pandas_dtype(), chunk.offset + len(chunk)
        )
        values = values[chunk.offset :]
        values.flags.writeable = False  # the memory is the block's, also where NumPy made it
        return values
    if chunk.null_count == 0 and len(chunk) and pa.types.is_boolean(kind):
        bits = np.unpackbits(np.frombuffer(chunk.buffers()[1], np.uint8), bitorder="little")
        return bits[chunk.offset : chunk.offset + len(chunk)].view(np.bool_)
    found: np.ndarray[Any, Any] = chunk.to_numpy(zero_copy_only=False)
    return found


def _private(table: pa.Table) -> pa.Table:
    """Copy a table: the new one shares no memory with it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def table_of_batch(value: Any, operator: str, where: str) -> pa.Table:
    """Build a table of what a batch function returned.

    Raises
    ------
    DataError
        It is nothing that rows can be made of.
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, Mapping):
        columns = {str(name): _column(str(name), values, f"{operator}, {where}") for name, values in value.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name!r} has {n:,}" for name, n in list(lengths.items())[:6])
            raise DataError(
                f"{operator}, {where}: the columns returned differ in length: {told}. Make them equally long"
            )
        return pa.table(columns)
    if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns"):
        return from_frame(value)
    raise DataError(f"{operator}, {where}: {_refusal(value)}")


def from_frame(frame: Any) -> pa.Table:
    """Return a pandas frame as a table, without its index, and without notes on pandas that would differ by block."""
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)


def _refusal(value: Any) -> str:
    kind = type(value).__name__
    example = 'return {"x": ' + ("values" if isinstance(value, (list, tuple)) else "array") + "}"
    if isinstance(value, np.ndarray):
        return f"the function returned a bare array of shape {value.shape}: name its column, {example}"
    if isinstance(value, (list, tuple)):
        return f"the function returned a {kind} of {len(value)}: name the columns, {example}"
    if value is None:
        return "the function returned None: return the batch (it may be empty), a table or a frame"
    return f"the function returned a {kind}: return a dict of columns, a pyarrow.Table or a pandas.DataFrame"
