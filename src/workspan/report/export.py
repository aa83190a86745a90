"""The blocks of a run's tasks as files of rows: CSV for people and spreadsheets, Parquet for programs.

Batch by batch: a run of any size goes through in bounded memory. What was not measured is empty or null.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from workspan.errors import NoStoreError
from workspan.grid.layout import pyramid_number
from workspan.report.frames import STEP_PREFIX, block_frame
from workspan.report.whole import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from workspan.report.page_blocks import BlockSource
    from workspan.report.task import TaskReport
    from workspan.store.reader import BlockTable

    Sources = Mapping[str, BlockSource]

__all__ = ["plain_text", "write_csv", "write_parquet"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def plain_text(text: str) -> str:
    """Return text that a spreadsheet takes for text: what would begin a formula gets an apostrophe before it.

    Examples
    --------
    >>> plain_text("smooth"), plain_text("=1+1")
    ('smooth', "'=1+1")
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def write_csv(reports: Sequence[TaskReport], to: IO[bytes], sources: Sources | None = None) -> int:
    """Write a row a block: the task, then the columns of :meth:`TaskReport.to_frame`.

    Parameters
    ----------
    reports
        Tasks; those without a store have no rows.
    to
        Where the bytes go, as UTF-8.
    sources
        Task id -> where its blocks are, if not in its store. Their workers are no workers of the run and are left out.

    Returns
    -------
    int
        Number of rows.

    Raises
    ------
    NoStoreError
        None of the tasks has a store.
    """
    import pyarrow as pa
    import pyarrow.csv

    schema, batches = _batches(reports, sources or {})
    names = [plain_text(name) for name in schema.names]
    head = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
    rows = 0
    with pyarrow.csv.CSVWriter(to, head) as writer:
        for batch in batches:
            columns = [_spelled(batch.column(name)) for name in schema.names]
            writer.write_table(pa.table(columns, schema=head))
            rows += batch.num_rows
    return rows


def write_parquet(reports: Sequence[TaskReport], path: Path, sources: Sources | None = None) -> int:
    """Write a row a block to a file, as :func:`write_csv` does; return the number of rows.

    Raises
    ------
    NoStoreError
        None of the tasks has a store.
    """
    import pyarrow.parquet

    schema, batches = _batches(reports, sources or {})
    rows = 0
    with whole_file(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_table(batch)
            rows += batch.num_rows
    return rows


def _batches(reports: Sequence[TaskReport], sources: Sources) -> tuple[Any, Iterator[Any]]:
    """Return the columns of all tasks together, and their rows; a task that lacks a column has nulls there."""
    import pyarrow as pa

    stores: list[tuple[str, BlockSource]] = []
    reason = None
    for report in reports:
        try:
            stores.append((report.task_id, sources.get(report.task_id) or report.open_store()))
        except NoStoreError as error:
            reason = reason or error
    if not stores:
        raise reason or NoStoreError("there are no tasks, so there are no blocks")
    wide = any(_has_wide_ids(store) for _, store in stores)
    fields: dict[str, Any] = {"task": pa.field("task", pa.string())}
    for _, store in stores:
        for field in _frame(store, store.empty_table()).schema:
            kind = pa.string() if field.name == "block_id" and wide else field.type
            fields.setdefault(field.name, field.with_type(kind))
    cells = sorted((name for name in fields if name.startswith("cell_")), key=lambda name: int(name[5:]))
    steps = [name for name in fields if name.startswith(STEP_PREFIX)]
    rest = [name for name in fields if name not in {"task", "block_id", *cells, *steps}]
    schema = pa.schema([fields[name] for name in ("task", "block_id", *cells, *rest, *steps)])
    return schema, _rows(stores, schema)


def _rows(stores: Sequence[tuple[str, BlockSource]], schema: Any) -> Iterator[Any]:
    import pyarrow as pa

    for task_id, store in stores:
        for table in store.tables():
            frame = _frame(store, table)
            if not frame.num_rows:
                continue
            columns = []
            for field in schema:
                if field.name == "task":
                    columns.append(pa.repeat(task_id, frame.num_rows))
                elif field.name in frame.column_names:
                    columns.append(frame.column(field.name).cast(field.type))
                else:
                    columns.append(pa.nulls(frame.num_rows, field.type))
            yield pa.table(columns, schema=schema)


def _frame(store: BlockSource, table: BlockTable) -> Any:
    """Return the rows of a batch; of a dataset's tasks with their rows and bytes, and without its processes."""
    import pyarrow as pa

    frame = block_frame(table, len(store.cell_counts), "arrow")
    if "rows" in table.values:
        at = frame.column_names.index("worker_id")
        frame = frame.set_column(at, "worker_id", pa.nulls(frame.num_rows, pa.uint32()))
        for name in ("rows", "bytes"):
            column = pa.array(table.values[name].astype("int64"), mask=~table.executed)
            frame = frame.append_column(name, column)
    return frame


def _has_wide_ids(store: BlockSource) -> bool:
    rank = len(store.cell_counts)
    return pyramid_number([n - 1 for n in store.cell_counts]) * (rank + 1) >= 2**63


def _spelled(column: Any) -> Any:
    """Return a column of text without formulas; others as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type != pa.string():
        return column
    starts = pc.is_in(pc.utf8_slice_codeunits(column, 0, 1), value_set=pa.array(list(_FORMULA)))
    return pc.if_else(starts, pc.binary_join_element_wise("'", column, ""), column)
