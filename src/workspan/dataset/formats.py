"""The kinds of files: how each is read in a worker, and what is known of it beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workspan.dataset.batching import BLOCK_BYTES
from workspan.dataset.blocks import no_rows
from workspan.dataset.sources import FilePiece, Source, find_files
from workspan.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["csv_source", "json_source", "parquet_source"]

_CSV_BYTES = 8 << 20
"""Bytes that are parsed at once."""
_LONGEST_LINE = 1 << 30
"""To which they are increased for a line that does not fit."""


def _opened(path: str, filesystem: Any) -> Any:
    return pa.OSFile(path) if filesystem is None else filesystem.open_input_file(path)


# -- Parquet ---------------------------------------------------------------------------------------------------------


def parquet_source(paths: Any, columns: list[str] | None, filesystem: Any) -> Source:
    """Return the row groups of files, those of one file together up to the size of a block."""
    import pyarrow.parquet as pq

    pieces: list[FilePiece] = []
    for label, path, size, system in find_files(paths, (".parquet", ".pq"), filesystem, "read_parquet"):
        try:
            with _opened(path, system) as file:
                meta = pq.ParquetFile(file).metadata
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"read_parquet: {label!r} cannot be read: {error}. Is it a complete Parquet file? Leave it "
                "out or write it again"
            ) from error
        _check_columns(columns, meta.schema.to_arrow_schema(), label)
        for groups, rows in _groups(meta):
            whole = len(groups) == meta.num_row_groups
            told = label if whole else f"{label} row groups {groups[0]} to {groups[-1]}"
            options = (("columns", None if columns is None else list(columns)), ("groups", groups))
            pieces.append(FilePiece(told, rows, path, _read_parquet, options, system, size))
    return Source("ReadParquet", tuple(pieces))


def _check_columns(columns: list[str] | None, schema: pa.Schema, label: str) -> None:
    for name in columns or ():
        if name not in schema.names:
            raise DataError(f"read_parquet: {label!r} has no column {name!r}; it has {told_names(schema.names)}")


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
    """Return files, each read as a stream."""
    given = (("columns", columns), *options.items())
    return Source(
        "ReadCSV",
        tuple(
            FilePiece(label, None, path, _read_csv, given, system, size)
            for label, path, size, system in find_files(paths, (".csv", ".csv.gz", ".tsv"), filesystem, "read_csv")
        ),
    )


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
    size, given, schema = _CSV_BYTES, 0, None
    while True:
        try:
            with _stream(path, filesystem) as file:
                reader = csv.open_csv(
                    file,
                    read_options=csv.ReadOptions(block_size=size, use_threads=False, **reading),
                    parse_options=csv.ParseOptions(delimiter=delimiter),
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
            if not _is_too_long(error, size):
                raise
        size = min(size * 8, _LONGEST_LINE)
        if schema is not None:  # what was read so far had these types, and so has what follows
            convert["column_types"] = {field.name: field.type for field in schema}


def _stream(path: str, filesystem: Any) -> Any:
    return pa.input_stream(path) if filesystem is None else filesystem.open_input_stream(path)


# -- lines of JSON ---------------------------------------------------------------------------------------------------


def json_source(paths: Any, filesystem: Any) -> Source:
    """Return files with one object a line."""
    suffixes = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz")
    return Source(
        "ReadJSON",
        tuple(
            FilePiece(label, None, path, _read_json, (), system, size)
            for label, path, size, system in find_files(paths, suffixes, filesystem, "read_json")
        ),
    )


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
