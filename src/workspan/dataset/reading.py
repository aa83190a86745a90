"""How a dataset begins: rows of files, of tables, of Python objects, or numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workspan.dataset import formats
from workspan.dataset.dataset import Dataset
from workspan.dataset.sources import from_tables, items_source, range_source

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["col", "from_arrow", "from_items", "from_pandas", "range", "read_csv", "read_json", "read_parquet"]


def col(name: str) -> Any:
    """Return a column as an expression, for ``filter`` and ``with_column``: it is ``pyarrow.compute.field``.

    Examples
    --------
    >>> import workspan as ws
    >>> ws.range(5).filter(ws.col("id") > 2).take(engine="serial")
    [{'id': 3}, {'id': 4}]
    """
    import pyarrow.compute as pc

    return pc.field(name)


def range(n: int, *, blocks: int | None = None) -> Dataset:
    """Return the whole numbers from 0 to *n* - 1 in a column ``id``.

    Parameters
    ----------
    n
        Number of rows.
    blocks
        Number of blocks, of nearly the same size; ``None``: of at most 65,536 rows.
    """
    return Dataset(range_source(n, blocks))


def from_items(items: Iterable[Any], *, blocks: int | None = None) -> Dataset:
    """Return Python objects as rows: mappings with their keys as columns, anything else in a column ``item``.

    Parameters
    ----------
    items
        The rows; they are turned into Arrow now.
    blocks
        As of :func:`workspan.range`.

    Raises
    ------
    DataError
        Values of a column do not go together.

    Examples
    --------
    >>> import workspan as ws
    >>> ws.from_items(["a", "b"]).take(engine="serial")
    [{'item': 'a'}, {'item': 'b'}]
    """
    return Dataset(items_source(items, blocks))


def from_arrow(tables: Any) -> Dataset:
    """Return the rows of Arrow tables, a block a table.

    Parameters
    ----------
    tables
        A ``pyarrow.Table`` or ``RecordBatch``, or a list of them. Nothing is copied in this process; worker processes
        map a file that is written when a run begins.
    """
    is_one = isinstance(tables, (pa.Table, pa.RecordBatch)) or not isinstance(tables, Iterable)
    listed = [tables] if is_one else list(tables)
    return Dataset(from_tables(listed, "FromArrow", "from_arrow"))


def from_pandas(frames: Any) -> Dataset:
    """Return the rows of pandas frames, a block a frame; their indexes are left out.

    Parameters
    ----------
    frames
        A ``pandas.DataFrame``, or a list of them.
    """
    is_one = hasattr(frames, "columns") or hasattr(frames, "to_frame") or not isinstance(frames, Iterable)
    listed = [frames] if is_one else list(frames)
    return Dataset(from_tables(listed, "FromPandas", "from_pandas"))


def read_parquet(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    filesystem: Any = None,
) -> Dataset:
    """Return the rows of Parquet files.

    The ends of the files are read now, to know their rows; the rest when a run needs it. A file is one task, a large
    one several: its row groups, together up to 128 MiB.

    Parameters
    ----------
    paths
        A file, a folder (all files in it, at any depth, but hidden ones), a pattern with ``*``, ``?``, ``[...]`` or
        ``**/``, a URL of a file system that pyarrow or fsspec knows, or a list of these. Files come in the order of
        their names. Folders below it whose names are ``key=value`` give their files a column each.
    columns
        Only these columns, in this order; ``None``: all.
    filesystem
        A ``pyarrow.fs.FileSystem`` in which the paths are; ``None``: as the paths say.

    Raises
    ------
    DataError
        Nothing is there, a file is unreadable or truncated, or a column is missing; the text names the file.
    """
    return Dataset(formats.parquet_source(paths, formats.listed(columns, "read_parquet"), filesystem))


def read_csv(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    delimiter: str = ",",
    column_types: Mapping[str, Any] | None = None,
    null_values: Sequence[str] | None = None,
    filesystem: Any = None,
) -> Dataset:
    """Return the rows of CSV files with a heading; each is one task, and is read as a stream.

    Parameters
    ----------
    paths, filesystem
        As of :func:`workspan.read_parquet`; ``.gz`` files are unpacked.
    columns
        Only these columns, in this order; ``None``: all.
    delimiter
        Between two fields.
    column_types
        Column -> ``pyarrow.DataType`` or its name; what is not in it is found out from the first 8 MiB.
    null_values
        Texts that mean null, also in columns of text; ``None``: those of pyarrow, and not in columns of text.

    Raises
    ------
    DataError
        Nothing is there.
    """
    options = {"delimiter": delimiter, "column_types": column_types, "null_values": null_values}
    return Dataset(formats.csv_source(paths, formats.listed(columns, "read_csv"), options, filesystem))


def read_json(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, filesystem: Any = None) -> Dataset:
    """Return the rows of files with one JSON object a line; each file is one task and one block.

    Parameters
    ----------
    paths, filesystem
        As of :func:`workspan.read_parquet`; ``.gz`` files are unpacked.

    Raises
    ------
    DataError
        Nothing is there.
    """
    return Dataset(formats.json_source(paths, filesystem))
