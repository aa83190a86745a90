"""Arrow blocks, and rows and batches made of them and turned into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from workspan.dataset.columns import array_of, column_of, is_nested, is_same
from workspan.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Given",
    "batch_of",
    "certain",
    "concat",
    "digest",
    "first_rows",
    "from_frame",
    "guess",
    "hand_over",
    "has_dictionary",
    "is_guess",
    "no_rows",
    "rows_in",
    "rows_of",
    "table_of_batch",
    "table_of_rows",
    "whole",
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
    """Whether of a table without rows the columns are not known, or only guessed."""
    if table.num_rows:
        return False
    return not table.num_columns or _GUESS.items() <= (table.schema.metadata or {}).items()


def certain(table: pa.Table) -> pa.Table:
    """Return the table without the mark of a guess."""
    if not is_guess(table):
        return table
    left = {name: value for name, value in (table.schema.metadata or {}).items() if name not in _GUESS}
    return table.replace_schema_metadata(left or None)


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return a table without rows; ``schema.empty_table()`` imports pandas first."""
    return pa.Table.from_batches([], schema)


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


def has_dictionary(schema: pa.Schema) -> bool:
    """Whether a column has a dictionary, or something within one."""

    def within(kind: pa.DataType) -> bool:
        return pa.types.is_dictionary(kind) or any(within(kind.field(number).type) for number in range(kind.num_fields))

    return any(within(field.type) for field in schema)


def whole(table: pa.Table) -> pa.Table:
    """Return a table with one dictionary a column, as a file of Arrow's has it."""
    return table.unify_dictionaries() if has_dictionary(table.schema) else table


def digest(table: pa.Table) -> bytes:
    """Return a fingerprint of the rows: equal ones have the same, however they are cut."""
    from hashlib import blake2b

    found = blake2b(digest_size=16)
    with pa.ipc.new_stream(pa.PythonFile(_Hashed(found), "w"), table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return found.digest()


class _Hashed:
    """A file whose content goes into a hash and nowhere else."""

    closed = False

    def __init__(self, found: Any) -> None:
        self._found = found

    def write(self, data: Any) -> int:
        self._found.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing."""


# -- rows ------------------------------------------------------------------------------------------------------------


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dicts of Python values, tensors as arrays."""
    tensors = [
        name for name in table.column_names if isinstance(table.schema.field(name).type, pa.FixedShapeTensorType)
    ]
    rows: list[dict[str, Any]] = table.to_pylist()
    for name in tensors:
        for row, value in zip(rows, array_of(table.column(name)), strict=True):
            row[name] = value
    return rows


def table_of_rows(rows: Sequence[Mapping[str, Any]], where: str, hints: pa.Schema | None = None) -> pa.Table:
    """Build a table of rows; a name that a row lacks is null in it.

    Parameters
    ----------
    hints
        Types to try for columns of these names where none can be found out from the values.

    Raises
    ------
    DataError
        Values of one column have types that do not go together, or none that Arrow knows.
    """
    columns: dict[Any, list[Any]] | None = _equal_columns(rows)
    if columns is None:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
    if not columns:
        raise DataError(f"{where}: the rows have no columns; return a dict with at least one")
    named = {str(name): values for name, values in columns.items()}
    if len(named) < len(columns):
        twice = next(name for name in columns if not isinstance(name, str) and str(name) in columns)
        raise DataError(f"{where}: rows have two columns of the name {str(twice)!r}: rename one of them")
    return pa.table({name: column_of(name, values, where, _hint(hints, name)) for name, values in named.items()})


def _hint(schema: pa.Schema | None, name: str) -> pa.DataType | None:
    place = -1 if schema is None else schema.get_field_index(name)
    return None if schema is None or place < 0 else schema.field(place).type


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
        Arrays may be views of the block, and are read-only. Else they are writable and the batch's own.
    """
    if form == "pandas":
        frame = table.to_pandas()
        return frame if zero_copy else frame.copy(deep=True)
    if form is None or form == "pyarrow":
        return table if zero_copy else _private(table)
    return {name: array_of(table.column(name), zero_copy) for name in table.column_names}


def rows_in(batch: Any) -> int:
    """Return the number of rows of a batch of any form."""
    if isinstance(batch, pa.Table):
        return int(batch.num_rows)
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)


class Given:
    """A batch that a function is given, and the columns of which its arrays were made.

    An array that the function returns as it was given needs not be made into a column again: the column is there, with
    its nulls and its very type, which the array may not have had room for.
    """

    __slots__ = ("_arrays", "_table", "value")

    def __init__(self, table: pa.Table, form: str | None, zero_copy: bool) -> None:
        self.value: Any = batch_of(table, form, zero_copy)
        self._table = table
        arrays = self.value.items() if isinstance(self.value, dict) else ()
        self._arrays = {id(array): (array, name) for name, array in arrays}

    def take(self) -> Any:
        """Return the batch, and forget it."""
        value, self.value = self.value, None
        return value

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        return self._table.schema

    def column(self, values: Any) -> Any:
        """Return the column of an array that was given; ``None``: it was not, or may have been changed."""
        array, name = self._arrays.get(id(values), (None, ""))
        if array is None or array is not values or array.flags.writeable:
            return None
        column = self._table.column(name)
        # Values that are objects may have been changed all the same.
        if is_nested(column.type) and not (pa.types.is_nested(column.type) and is_same(array, array_of(column))):
            return None
        if column.num_chunks == 1:
            return column
        # Of numbers the array is in one piece already.
        return None if array.dtype.kind in "iufb" and not column.null_count else column.combine_chunks()

    def hint(self, name: str, values: Any) -> pa.DataType | None:
        """Return the type to try for a column of the function."""
        _, given = self._arrays.get(id(values), (None, name))
        return _hint(self.schema, given)


def _private(table: pa.Table) -> pa.Table:
    """Copy a table: the new one shares no memory with it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def table_of_batch(value: Any, operator: str, where: str, given: Given | None = None) -> pa.Table:
    """Build a table of what a batch function returned.

    Parameters
    ----------
    given
        What it was called with.

    Raises
    ------
    DataError
        It is nothing that rows can be made of.
    """
    table = _table_of(value, f"{operator}, {where}", given)
    if not table.num_columns:
        raise DataError(
            f"{operator}, {where}: the function returned a {type(value).__name__} without columns, and the rows of the "
            "batch would be gone without a word: to leave them out return its columns without values, for example "
            "{name: values[:0] for name, values in batch.items()}"
        )
    return table


def _table_of(value: Any, where: str, given: Given | None) -> pa.Table:
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, Mapping):
        return _table_of_columns(value, where, given)
    if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns"):
        return from_frame(value, where, None if given is None else given.schema)
    raise DataError(f"{where}: {_refusal(value)}")


def _table_of_columns(value: Mapping[Any, Any], where: str, given: Given | None) -> pa.Table:
    columns: dict[str, Any] = {}
    for key, values in value.items():
        name = str(key)
        if name in columns:
            raise DataError(f"{where}: two of the columns returned have the name {name!r}: rename one of them")
        column = None if given is None else given.column(values)
        if column is None:
            column = column_of(name, values, where, None if given is None else given.hint(name, values))
        columns[name] = column
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {n:,}" for name, n in list(lengths.items())[:6])
        raise DataError(f"{where}: the columns returned differ in length: {told}. Make them equally long")
    return pa.table(columns)


def from_frame(frame: Any, where: str, schema: pa.Schema | None = None) -> pa.Table:
    """Return a pandas frame as a table, without its index, and without notes on pandas that would differ by block.

    Parameters
    ----------
    schema
        Types to try for columns of these names where none can be found out from the values.

    Raises
    ------
    DataError
        Two columns have one name, or values have types that do not go together, or none that Arrow knows.
    """
    names = list(map(str, frame.columns))
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise DataError(f"{where}: the frame has {names.count(twice)} columns of the name {twice!r}: rename them")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.table({str(name): _from_series(str(name), frame[name], where, schema) for name in frame.columns})


def _from_series(name: str, series: Any, where: str, schema: pa.Schema | None) -> Any:
    """Return one column of a frame: by itself, so that an error names it."""
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return column_of(name, series.tolist(), where, _hint(schema, name))


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
