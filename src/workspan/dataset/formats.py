"""The kinds of files: how each is read in a worker, and what is known of it beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workspan.dataset.batching import BLOCK_BYTES
from workspan.dataset.blocks import no_rows
from workspan.dataset.files import Found, find_files
from workspan.dataset.sources import FilePiece, Source
from workspan.errors import ConfigurationError, DataError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["csv_source", "json_source", "parquet_source"]

_CSV_BYTES = 8 << 20
"""Bytes that are parsed at once."""
_LONGEST_LINE = 1 << 30
"""To which they are increased for a line that does not fit."""


def _opened(path: str, filesystem: Any) -> Any:
    return pa.OSFile(path) if filesystem is None else filesystem.open_input_file(path)


def _piece(file: Found, reader: Callable[..., Iterator[pa.Table]], chosen: list[str] | None, **more: Any) -> FilePiece:
    """Return a piece that is a whole file, but for what *more* says of it."""
    return FilePiece(
        **{"label": file.label, "rows": None, "options": (), **more},
        path=file.path,
        reader=reader,
        filesystem=file.filesystem,
        size_bytes=file.size_bytes,
        modified_ns=file.modified_ns,
        keys=file.keys,
        chosen=None if chosen is None else tuple(chosen),
    )


def _in_file(chosen: list[str] | None, file: Found) -> list[str] | None:
    """Return the columns to be read of a file; the others are told by the names of its folders."""
    if chosen is None or not file.keys:
        return chosen
    told = {name for name, _ in file.keys}
    return [name for name in chosen if name not in told]


def listed(columns: Any, name: str) -> list[str] | None:
    """Return names of columns as a list; one text is one name.

    Raises
    ------
    UsageTypeError
        Something else than a text is among them.
    ConfigurationError
        There is none, or one is there twice.
    """
    if columns is None:
        return None
    found = [columns] if isinstance(columns, str) else list(columns)
    for column in found:
        if not isinstance(column, str):
            raise UsageTypeError(f"{name}: columns={columns!r}: a column is named by text, not by {column!r}")
    if not found or len(set(found)) < len(found):
        raise ConfigurationError(f"{name}: columns={columns!r}: name at least one column, and each once")
    return found


# -- Parquet ---------------------------------------------------------------------------------------------------------


def parquet_source(paths: Any, columns: list[str] | None, filesystem: Any) -> Source:
    """Return the row groups of files, those of one file together up to the size of a block."""
    import pyarrow.parquet as pq

    pieces: list[FilePiece] = []
    for file in find_files(paths, (".parquet", ".pq"), filesystem, "read_parquet"):
        label = file.label
        try:
            with _opened(file.path, file.filesystem) as opened:
                meta = pq.ParquetFile(opened).metadata
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"read_parquet: {label!r} cannot be read: {error}. Is it a complete Parquet file? Leave it "
                "out or write it again"
            ) from error
        names = meta.schema.to_arrow_schema().names
        wanted = None if columns is None else [name for name in columns if name in names or not file.keys]
        _check_columns(columns, [*names, *(name for name, _ in file.keys)], label)
        for groups, rows in _groups(meta):
            whole = len(groups) == meta.num_row_groups
            told = label if whole else f"{label} row groups {groups[0]} to {groups[-1]}"
            options = (("columns", wanted), ("groups", groups))
            pieces.append(_piece(file, _read_parquet, columns, label=told, rows=rows, options=options))
    return Source("ReadParquet", tuple(pieces))


def _check_columns(columns: list[str] | None, names: list[str], label: str) -> None:
    for name in columns or ():
        if name not in names:
            raise DataError(f"read_parquet: {label!r} has no column {name!r}; it has {told_names(names)}")


def told_names(names: list[str]) -> str:
    """Return names for a message, not too many.

    Examples
    --------
    >>> told_names(["a", "b"])
    "'a', 'b'"
    """
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _groups(meta: Any) -> Iterator[tuple[tuple[int, ...], int]]:
    groups: list[int] = []
    size = rows = 0
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        if groups and size + group.total_byte_size > BLOCK_BYTES:
            yield tuple(groups), rows
            groups, size, rows = [], 0, 0
        groups.append(number)
        size += group.total_byte_size
        rows += group.num_rows
    yield tuple(groups), rows


def _read_parquet(
    path: str, filesystem: Any, *, columns: list[str] | None, groups: tuple[int, ...]
) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    # Threads of its own would take the processors of the other workers.
    with _opened(path, filesystem) as file:
        reader = pq.ParquetFile(file, pre_buffer=filesystem is not None)
        yield reader.read_row_groups(list(groups), columns=columns, use_threads=False)


# -- CSV -------------------------------------------------------------------------------------------------------------


def csv_source(paths: Any, columns: list[str] | None, options: dict[str, Any], filesystem: Any) -> Source:
    """Return files, each read as a stream.

    Raises
    ------
    ConfigurationError
        The delimiter is not one sign, or a type is not known.
    UsageTypeError
        An option has the wrong type.
    """
    checked_delimiter(options["delimiter"], "read_csv")
    options = {**options, "column_types": _types(options["column_types"])}
    if options["null_values"] is not None:
        options["null_values"] = _texts(options["null_values"])
    pieces = []
    for file in find_files(paths, (".csv", ".csv.gz", ".tsv"), filesystem, "read_csv"):
        given = (("columns", _in_file(columns, file) or None), *options.items())
        pieces.append(_piece(file, _read_csv, columns, options=given))
    return Source("ReadCSV", tuple(pieces))


def checked_delimiter(delimiter: Any, name: str) -> str:
    """Return what is between two fields.

    Raises
    ------
    ConfigurationError
        It is not one sign.
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '\r\n"':
        raise ConfigurationError(
            f"{name}: delimiter={delimiter!r}: it is one ASCII sign, and neither a quote nor a line end"
        )
    return delimiter


def _texts(values: Any) -> list[str]:
    found = [values] if isinstance(values, str) else list(values)
    for value in found:
        if not isinstance(value, str):
            raise UsageTypeError(f"read_csv: null_values: {value!r} is a {type(value).__name__}: pass texts")
    return found


def _types(given: Any) -> dict[str, pa.DataType] | None:
    """Return the types of columns, some of which may be given by their names."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UsageTypeError(
            f"read_csv: column_types={given!r} is a {type(given).__name__}: pass a dict, column -> type"
        )
    found = {}
    for name, kind in given.items():
        try:
            found[str(name)] = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(str(kind))
        except ValueError:
            raise ConfigurationError(
                f"read_csv: column_types: {kind!r} of column {name!r} is not known: use a pyarrow.DataType, or the "
                "name of one, 'int64' for example"
            ) from None
    return found


def _read_csv(
    path: str,
    filesystem: Any,
    *,
    columns: list[str] | None,
    delimiter: str = ",",
    column_types: Any = None,
    null_values: Any = None,
    **reading: Any,
) -> Iterator[pa.Table]:
    from pyarrow import csv

    convert: dict[str, Any] = {"include_columns": columns, "column_types": column_types}
    if null_values is not None:
        convert |= {"null_values": null_values, "strings_can_be_null": True}
    size, given, schema, newlines = _CSV_BYTES, 0, None, False
    while True:
        try:
            with _stream(path, filesystem) as file:
                reader = csv.open_csv(
                    file,
                    read_options=csv.ReadOptions(block_size=size, use_threads=False, **reading),
                    parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=newlines),
                    convert_options=csv.ConvertOptions(
                        **{n: value for n, value in convert.items() if value is not None}
                    ),
                )
                skip = given
                for batch in reader:
                    schema = batch.schema
                    fresh = batch.slice(min(skip, batch.num_rows))
                    skip -= batch.num_rows - fresh.num_rows
                    given += fresh.num_rows
                    if fresh.num_rows:
                        yield pa.Table.from_batches([fresh])
                if not given:
                    yield no_rows(reader.schema)
                return
        except pa.ArrowInvalid as error:
            if not newlines and "out of sync" in str(error):  # a quoted line end where a piece ends: that costs more
                newlines = True
            elif _is_too_long(error, size):
                size = min(size * 8, _LONGEST_LINE)
            elif "conversion error" in str(error) and (column_types is None or given):
                raise DataError(
                    f"{path} cannot be read: {error}. The types of columns were found out from its first "
                    f"{_CSV_BYTES >> 20} MiB: give that of this one, column_types={{name: type}}"
                ) from error
            else:
                raise
        if schema is not None:  # what was read so far had these types, and so has what follows
            convert["column_types"] = {field.name: field.type for field in schema}


def _stream(path: str, filesystem: Any) -> Any:
    return pa.input_stream(path) if filesystem is None else filesystem.open_input_stream(path)


# -- lines of JSON ---------------------------------------------------------------------------------------------------


def json_source(paths: Any, filesystem: Any) -> Source:
    """Return files with one object a line."""
    suffixes = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz")
    found = find_files(paths, suffixes, filesystem, "read_json")
    return Source("ReadJSON", tuple(_piece(file, _read_json, None) for file in found))


def _read_json(path: str, filesystem: Any) -> Iterator[pa.Table]:
    from pyarrow import json

    size = _CSV_BYTES
    while True:
        with _stream(path, filesystem) as file:
            try:
                found = json.read_json(file, read_options=json.ReadOptions(use_threads=False, block_size=size))
                break
            except pa.ArrowInvalid as error:
                if "Empty JSON file" in str(error):  # no line is no row, and so write_json writes it
                    found = pa.table({})
                    break
                if not _is_too_long(error, size):
                    raise
        size = min(size * 8, _LONGEST_LINE)
    yield found


def _is_too_long(error: pa.ArrowInvalid, size: int) -> bool:
    """Whether a line did not fit into the pieces in which a file is parsed, and there may be larger ones."""
    return "straddl" in str(error) and size < _LONGEST_LINE
