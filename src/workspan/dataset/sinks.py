"""Where rows go: files, one a task, that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from workspan.dataset.blocks import certain, clash, is_guess, no_rows
from workspan.dataset.files import is_local, resolve
from workspan.dataset.formats import told_names
from workspan.errors import ConfigurationError, DataError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Part", "Sink", "Written", "commit", "made", "prepare", "write", "write_empty"]


class Sink(Struct, frozen=True):
    """A folder of files of one kind."""

    name: str
    """``WriteParquet`` and the like."""
    folder: str
    """Path in the file system."""
    suffix: str
    opener: Callable[..., Any]
    """``opener(file, schema, **options)`` returns a writer with ``write_table`` and ``close``."""
    options: tuple[tuple[str, Any], ...] = ()
    filesystem: Any = None
    """``None``: the local one."""
    reader: Callable[[Any], Iterator[pa.Table]] | None = None
    """Reads an open file of this kind again, piece by piece; ``None``: its types are lost in writing."""

    def part(self, index: int) -> str:
        """Return the name of the file of a task."""
        return f"part-{index:06d}{self.suffix}"


class Part(Struct):
    """A file that is being written: what the steps of a sink tell each other."""

    sink: Sink
    index: int
    where: str
    temporary: str = ""
    rows: int = 0
    size_bytes: int | None = None
    written: bool = False
    schema: pa.Schema | None = None
    """Of the file; where there were no rows and so no file, of what would have been in it, perhaps a guess."""

    @property
    def path(self) -> str:
        """Where the file will appear."""
        return f"{self.sink.folder}/{self.sink.part(self.index)}"

    @property
    def narrow(self) -> str:
        """Where its beginning lies while it is written anew."""
        return f"{self.temporary.removesuffix('.tmp')}.narrow.tmp"

    def disk(self) -> Any:
        """Note on errors of the disk which file was written."""
        return disk(
            f"{self.path} was written for {self.sink.name}, {self.where}",
            "write to another disk; with a tracking_path the same call goes on where this one ended",
        )


class Written(Struct, frozen=True):
    """A file that is there."""

    name: str
    rows: int
    size_bytes: int | None


@contextmanager
def disk(doing: str, remedy: str) -> Iterator[None]:
    """Note on an error of the disk what was being written there, and if it is full what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        error.add_note(f"while {doing}" + (f": make room, or {remedy}" if full else ""))
        raise


def prepare(part: Part, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Choose where to write before any row comes, and remove what an attempt before has left there."""
    part.temporary = f"{part.sink.folder}/.{part.sink.part(part.index)}.tmp"
    part.rows, part.written = 0, False
    _remove(part)
    yield from tables


def write(part: Part, tables: Iterable[pa.Table]) -> Iterator[Part]:
    """Write all rows into the temporary file, and then say that it is written."""
    writer, file, schema = None, None, None
    try:
        for table in tables:
            if writer is None:
                if table.num_rows and not len(table.schema):
                    raise DataError(
                        f"{part.sink.name}, {part.where}: {table.num_rows:,} rows have no columns, and no file can "
                        "hold such: keep one column at least"
                    )
                if not len(table.schema) or is_guess(table) or (part.index and not table.num_rows):
                    # A file without rows is of use only for its columns, and one is enough.
                    if part.schema is None and len(table.schema) and not table.num_rows:
                        part.schema = table.schema
                    continue
                if part.temporary == "":
                    raise DataError(f"{part.sink.name}, {part.where}: nothing was prepared for the write")
                part.schema = schema = table.schema
                with part.disk():
                    file = _output(part)
                    writer = _opened(part, file, schema)
            elif is_guess(table):
                continue
            elif table.schema != schema:
                wider = _widened(table, schema, part)
                if wider is not schema:
                    writer, file = _with_room(part, writer, file, wider)
                    part.schema = schema = wider
                table = _fitted(table, schema)
            with part.disk(), _held(part, schema):
                writer.write_table(table)
            part.rows += table.num_rows
            table = None
        if writer is not None:
            done, writer = writer, None
            with part.disk():
                done.close()
                if file is not None:
                    file.close()
            part.written = True
    finally:
        if writer is not None:
            with suppress(Exception):  # what ended the write is raised, and not that its file has no end
                writer.close()
        if file is not None:
            file.close()
    yield part


def _opened(part: Part, file: Any, schema: pa.Schema) -> Any:
    with _held(part, schema):
        return part.sink.opener(file, schema, **dict(part.sink.options))


@contextmanager
def _held(part: Part, schema: pa.Schema) -> Iterator[None]:
    """Tell of what a file cannot hold."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise DataError(
            f"{part.sink.name}, {part.where}: {error}. The columns are {columns}: drop or convert those that "
            "such a file cannot hold"
        ) from error


def commit(part: Part, parts: Iterable[Part]) -> Iterator[Written]:
    """Let the file appear under its name, once all was written."""
    for _ in parts:  # drained before the state is looked at
        pass
    if not part.written:
        return
    sink = part.sink
    if sink.filesystem is None:
        part.size_bytes = os.stat(part.temporary).st_size
        os.replace(part.temporary, part.path)
    else:
        part.size_bytes = sink.filesystem.get_file_info(part.temporary).size
        sink.filesystem.move(part.temporary, part.path)
    yield Written(sink.part(part.index), part.rows, part.size_bytes)


def write_empty(sink: Sink, schema: pa.Schema) -> Written:
    """Write a file without rows under the name of the first task's, so that the columns are not lost with the rows."""
    part = Part(sink, 0, "no rows at all")
    (written,) = commit(part, write(part, prepare(part, [certain(no_rows(schema))])))
    return written


def discard(part: Part) -> None:
    """Remove what was not committed."""
    if part.temporary:
        _remove(part)


def _remove(part: Part) -> None:
    for path in (part.temporary, part.narrow):
        with suppress(OSError):
            if part.sink.filesystem is None:
                os.unlink(path)
            else:
                part.sink.filesystem.delete_file(path)


def _output(part: Part) -> Any:
    system = part.sink.filesystem
    return pa.OSFile(part.temporary, "wb") if system is None else system.open_output_stream(part.temporary)


def _widened(table: pa.Table, schema: pa.Schema, part: Part) -> pa.Schema:
    """Return a schema that has room for the blocks before and this one: *schema* itself, if it has."""
    try:
        wider = pa.unify_schemas([schema, table.schema], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise DataError(f"{part.sink.name}, {part.where}: {clash([no_rows(schema), table])}") from None
    return schema if wider.equals(schema) else wider


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns and types of its file."""
    columns = {
        column.name: table.column(column.name).cast(column.type)
        if column.name in table.column_names
        else pa.nulls(table.num_rows, column.type)
        for column in schema
    }
    return pa.table(columns, schema=schema)


def _with_room(part: Part, writer: Any, file: Any, schema: pa.Schema) -> tuple[Any, Any]:
    """Return writer and file for what is wider than the blocks before were: what they have written comes along.

    Raises
    ------
    DataError
        A file of this kind cannot be widened in this way.
    """
    widen = getattr(writer, "widen", None)
    if widen is not None and widen(schema):
        return writer, file
    if part.sink.reader is None:
        heading = () if part.schema is None else part.schema.names
        more = told_names([name for name in schema.names if name not in heading])
        raise DataError(
            f"{part.sink.name}, {part.where}: {more} is not in the blocks before, whose heading is written: give each "
            "block the same columns"
        )
    system, narrow = part.sink.filesystem, part.narrow
    with part.disk():
        writer.close()
        file.close()
        if system is None:
            os.replace(part.temporary, narrow)
        else:
            system.move(part.temporary, narrow)
        file = _output(part)
        writer = _opened(part, file, schema)
        source = pa.OSFile(narrow) if system is None else system.open_input_file(narrow)
        with source:
            for written in part.sink.reader(source):
                writer.write_table(_fitted(written, schema))
        if system is None:
            os.unlink(narrow)
        else:
            system.delete_file(narrow)
    return writer, file


# -- kinds -----------------------------------------------------------------------------------------------------------


def checked_compression(name: Any) -> Any:
    """Return how Parquet files are compressed.

    Raises
    ------
    ConfigurationError
        There is no such way, or not here.
    """
    for codec in name.values() if isinstance(name, dict) else [name]:
        try:
            known = codec is None or str(codec).lower() == "none" or pa.Codec.is_available(str(codec).lower())
        except ValueError:
            known = False
        if not known:
            raise ConfigurationError(f"compression={name!r} is not known here: use 'zstd', 'snappy', 'gzip' or 'none'")
    return name


def parquet_writer(file: Any, schema: pa.Schema, **options: Any) -> Any:
    """Return a writer of Parquet."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(file, schema, **options)


def parquet_pieces(file: Any) -> Iterator[pa.Table]:
    """Yield what is in a file of Parquet, a row group at a time."""
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(file)
    for number in range(reader.num_row_groups):
        yield reader.read_row_group(number, use_threads=False)


class CsvWriter:
    """Writes a heading, and one line a row."""

    def __init__(self, file: Any, schema: pa.Schema, **options: Any) -> None:
        from pyarrow import csv

        self._csv, self._file, self._options, self._names = csv, file, options, schema.names
        self._writer = csv.CSVWriter(file, schema, write_options=csv.WriteOptions(**options))

    def write_table(self, table: pa.Table) -> None:
        """Write the rows."""
        if table.num_columns > 1 or not table.column(0).null_count:
            self._writer.write_table(table)
            return
        # A null alone would be an empty line, which readers pass over, and the row would be gone: it has to be quoted.
        texts = table.column(0).cast(pa.string()).fill_null("")
        quoted = self._csv.WriteOptions(**self._options, include_header=False, quoting_style="all_valid")
        self._csv.write_csv(pa.table({"": texts}), self._file, quoted)

    def widen(self, schema: pa.Schema) -> bool:
        """Go on with other types, which text does not tell; ``False``: the heading is another one."""
        if schema.names != self._names:
            return False
        options = self._csv.WriteOptions(**self._options, include_header=False)
        self._writer = self._csv.CSVWriter(self._file, schema, write_options=options)
        return True

    def close(self) -> None:
        """End the file."""
        self._writer.close()


class JsonWriter:
    """Writes one object a line."""

    def __init__(self, file: Any, schema: pa.Schema, **options: Any) -> None:
        self._file = file
        self._options = {"ensure_ascii": False, "default": _plain, **options}

    def write_table(self, table: pa.Table) -> None:
        """Write the rows."""
        import json

        for batch in table.to_batches(max_chunksize=4096):
            lines = [json.dumps(row, **self._options) for row in batch.to_pylist()]
            self._file.write(("\n".join(lines) + "\n").encode() if lines else b"")

    def widen(self, schema: pa.Schema) -> bool:
        """Go on: each line names its values."""
        return True

    def close(self) -> None:
        """Do nothing: the file is closed by whoever opened it."""


def _plain(value: Any) -> Any:
    """Return a value that JSON does not know in a form that it knows: times in ISO 8601, bytes as text."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


Kind = tuple[str, str, Any, Any]
"""Name of the operator, suffix of its files, what opens them, and what reads an open one again, if anything does."""

PARQUET: Kind = ("WriteParquet", ".parquet", parquet_writer, parquet_pieces)
CSV: Kind = ("WriteCSV", ".csv", CsvWriter, None)
JSON: Kind = ("WriteJSON", ".jsonl", JsonWriter, None)


def made(
    kind: Kind,
    folder: str | os.PathLike[str],
    options: dict[str, Any],
    existing: str,
    filesystem: Any,
) -> Sink:
    """Return the sink that the caller of a ``write_...`` asks for.

    Parameters
    ----------
    kind
        Of files.

    Raises
    ------
    ConfigurationError, UsageTypeError
        Nothing can be written so.
    """
    if existing not in ("refuse", "overwrite"):
        raise ConfigurationError(f"existing={existing!r} is not known: use 'refuse' or 'overwrite'")
    if not isinstance(folder, (str, os.PathLike)):
        raise UsageTypeError(f"write_...({folder!r}): a {type(folder).__name__} is no path")
    if not os.fspath(folder):
        raise ConfigurationError("write_...(''): that is no path")
    name, suffix, opener, reader = kind
    system, path = resolve(os.fspath(folder)) if filesystem is None else (filesystem, os.fspath(folder))
    remote = None if is_local(system) else system
    return Sink(name, path.rstrip("/"), suffix, opener, tuple(options.items()), remote, reader)
