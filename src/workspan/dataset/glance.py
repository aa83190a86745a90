"""What a person looks at first: the columns of a dataset, its first rows, and where that is which it has not."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from workspan.dataset.blocks import concat, no_rows, rows_of
from workspan.dataset.expressions import filtered, projected
from workspan.dataset.ops import Filter, MapBatches, MapRows, Project
from workspan.dataset.sources import FilePiece, MemoryPiece

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workspan.dataset.ops import Op
    from workspan.dataset.sources import Piece, Source

__all__ = ["missing", "rendered", "schema_of"]

_CELL = 40
"""Characters of a value that are shown."""


def schema_of(source: Source, ops: Sequence[Op]) -> pa.Schema | None:
    """Return the schema of what comes out, without calling any function; ``None``: a function of the user's decides.

    Parameters
    ----------
    source
        Of files, the first one with columns is looked into: of Parquet the footer is read, of others the first block.
    ops
        They are applied to a table without rows.

    Raises
    ------
    DataError
        An operator asks for a column that is not there, or tables have types that do not go together.
    """
    if any(isinstance(op, (MapRows, MapBatches)) for op in ops):
        return None
    table = _begin(source)
    for op in ops:
        if isinstance(op, Project):
            table = projected(op, source.name, table)
        elif isinstance(op, Filter):
            table = filtered(op, source.name, table)
    return table.schema


def _begin(source: Source) -> pa.Table:
    """Return a table without rows that has the columns of the source."""
    if all(isinstance(piece, MemoryPiece) for piece in source.pieces):
        known = [piece.table for piece in source.pieces if isinstance(piece, MemoryPiece)]
        known = [table for table in known if table.num_columns] or known[:1]
        return concat([no_rows(table.schema) for table in known], source.name)
    table = _empty(source.pieces[0])
    for piece in source.pieces[1:]:
        if table.num_columns:
            break
        table = _empty(piece)
    return table


def _empty(piece: Piece) -> pa.Table:
    if isinstance(piece, FilePiece) and "groups" in dict(piece.options):  # no row group of a Parquet file
        piece = replace(piece, options=tuple({**dict(piece.options), "groups": ()}.items()))
    return no_rows(next(piece.read()).schema)


def rendered(table: pa.Table, *, encoding: str, columns: int | None) -> str:
    """Return rows as text that cannot steer a terminal, a row a line under the names of the columns.

    Parameters
    ----------
    columns
        Width of the terminal in characters: what does not fit is named and left out. ``None``: any width will do.
    """
    from workspan.views.format import one_line, shorten
    from workspan.views.format import table as laid_out

    names = table.column_names
    if not names:
        return "no rows"
    right = [number for number, field in enumerate(table.schema) if _is_number(field.type)]
    lines = [[shorten(one_line(name), _CELL) for name in names]]
    lines += [[_cell(value) for value in row.values()] for row in rows_of(table)]
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    shown = len(names)
    while columns is not None and shown > 1 and sum(widths[:shown]) - 2 > columns:
        shown -= 1
    text = laid_out([line[:shown] for line in lines], encoding=encoding, right=right)
    if not table.num_rows:
        text.append("no rows")
    if shown < len(names):
        left = ", ".join(lines[0][shown : shown + 8]) + (", ..." if len(names) > shown + 8 else "")
        text.append(f"and {len(names) - shown} more columns: {left}")
    return "\n".join(text)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cell(value: Any) -> str:
    from workspan.views.format import one_line, shorten

    if value is None:
        return "null"
    text = value if isinstance(value, str) else " ".join(str(value).split())
    return shorten(one_line(text if len(text) <= 4 * _CELL else f"{text[: 2 * _CELL]}...{text[-2 * _CELL :]}"), _CELL)


# -- what a dataset has not ------------------------------------------------------------------------------------------

_MOVES_ROWS = {
    "aggregate": "table.select(polars.col('x').mean())",
    "distinct": "table.unique()",
    "drop_duplicates": "table.unique()",
    "group_by": "table.group_by('key').agg(polars.col('x').mean())",
    "groupby": "table.group_by('key').agg(polars.col('x').mean())",
    "join": "table.join(other, on='key')",
    "max": "table['x'].max()",
    "mean": "table['x'].mean()",
    "merge": "table.join(other, on='key')",
    "min": "table['x'].min()",
    "quantile": "table['x'].quantile(0.5)",
    "random_sample": "table.sample(fraction=0.1)",
    "random_shuffle": "table.sample(fraction=1.0, shuffle=True)",
    "randomize_block_order": "table.sample(fraction=1.0, shuffle=True)",
    "sample": "table.sample(fraction=0.1)",
    "sort": "table.sort('x')",
    "sort_values": "table.sort('x')",
    "std": "table['x'].std()",
    "sum": "table['x'].sum()",
    "train_test_split": "table.sample(fraction=1.0, shuffle=True)",
    "union": "polars.concat([table, other])",
    "unique": "table['x'].unique()",
    "value_counts": "table['x'].value_counts()",
    "var": "table['x'].var()",
    "zip": "polars.concat([table, other], how='horizontal')",
}
"""What needs rows of several blocks at once -> the same in Polars."""

_OTHERWISE = {
    "add_column": "with_column(name, expression), or map_batches",
    "apply": "map for rows, map_batches for batches",
    "assign": "with_column(name, expression)",
    "collect": "to_arrow() or to_pandas()",
    "compute": "materialize(), to_arrow() or to_pandas()",
    "drop_columns": "drop(*names)",
    "dtypes": "schema()",
    "head": "take(rows), or show(rows)",
    "iter_torch_batches": "iter_batches(), whose arrays torch.from_numpy takes",
    "map_partitions": "map_batches(function, batch_size=None)",
    "num_rows": "count()",
    "query": "filter(ws.col('x') > 1)",
    "rename_columns": "rename({old: new})",
    "repartition": "blocks= of the source, or options(block_rows=...)",
    "coalesce": "blocks= of the source, or options(block_rows=...)",
    "select_columns": "select(*names)",
    "shape": "count(), and columns()",
    "take_all": "list(iter_rows()), or to_arrow()",
    "take_batch": "limit(rows).to_arrow()",
    "to_csv": "write_csv(folder)",
    "to_json": "write_json(folder)",
    "to_parquet": "write_parquet(folder)",
    "where": "filter(ws.col('x') > 1)",
}
"""What goes by another name here -> by which."""


def missing(name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for an attribute that a dataset has not: it says where that is, or what was meant.

    Parameters
    ----------
    known
        Public names of a dataset.
    """
    told = f"'Dataset' object has no attribute {name!r}"
    if name in _MOVES_ROWS:
        told += (
            ": datasets are map-only on purpose, and no row meets those of other blocks. Hand the rows over with "
            "to_arrow(), which copies none: to Polars (table = polars.from_arrow(ds.to_arrow()); "
            f"{_MOVES_ROWS[name]}), DuckDB (table = ds.to_arrow(); duckdb.sql('select ... from table')) or Ray Data "
            "(ray.data.from_arrow(ds.to_arrow()))"
        )
    elif name in _OTHERWISE:
        told += f": use {_OTHERWISE[name]}"
    elif not name.startswith("_"):
        close = get_close_matches(name, [*known, *_MOVES_ROWS, *_OTHERWISE], n=1)
        told += f": did you mean {close[0]!r}?" if close else ""
    # With a name and no object Python does not make guesses of its own on top of that.
    return AttributeError(told, name=name)
