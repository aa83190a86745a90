"""Rows through functions: the face of datasets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from workspan.dataset import formats, sinks
from workspan.dataset.batching import checked_size, row_chunks
from workspan.dataset.blocks import concat, rows_of
from workspan.dataset.execute import Execution, RunOptions
from workspan.dataset.functions import UserFunction
from workspan.dataset.ops import (
    Compute,
    Filter,
    FilterRows,
    Limit,
    MapBatches,
    MapRows,
    Project,
    Write,
)
from workspan.dataset.plan import Options, make_plan
from workspan.dataset.results import kept_pieces, tables_of
from workspan.dataset.run import DatasetRun
from workspan.dataset.sources import Source, from_tables, is_local, items_source, range_source, resolve
from workspan.dataset.stream import Iteration, Stream
from workspan.dataset.transform import CHUNK_ROWS
from workspan.errors import ConfigurationError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from workspan.dataset.manifest import Existing
    from workspan.dataset.ops import BatchFormat, BatchSize, Op
    from workspan.dataset.plan import Plan
    from workspan.dataset.stats import DatasetSummary
    from workspan.report.task import RunReport

__all__ = [
    "Dataset",
    "col",
    "from_arrow",
    "from_items",
    "from_pandas",
    "range",
    "read_csv",
    "read_json",
    "read_parquet",
]

_FORMATS = ("numpy", "default", "pandas", "pyarrow", None)


class Dataset:
    """Rows and what is to be done with them: lazy and immutable.

    Every method that adds an operator returns another dataset; nothing runs before one of those that consume it
    (``take``, ``to_arrow``, ``write_parquet`` and so on).
    """

    __slots__ = ("_last", "_ops", "_options", "_source")

    def __init__(self, source: Source, ops: Sequence[Op] = (), options: Options | None = None) -> None:
        self._source = source
        self._ops = tuple(ops)
        self._options = options or Options()
        self._last: DatasetRun | None = None

    def _with(self, op: Op) -> Dataset:
        return Dataset(self._source, (*self._ops, op), self._options)

    # -- operators ----------------------------------------------------------------------------------------------------

    def map(self, function: Any, **compute: Any) -> Dataset:
        """Call a function with each row, a dict; it returns the row that takes its place."""
        user, asked = _function(function, "map", compute)
        return self._with(MapRows(user, compute=asked))

    def flat_map(self, function: Any, **compute: Any) -> Dataset:
        """Call a function with each row; it returns the rows, any number of them, that take its place."""
        user, asked = _function(function, "flat_map", compute)
        return self._with(MapRows(user, flat=True, compute=asked))

    def filter(self, condition: Any, **compute: Any) -> Dataset:
        """Keep the rows for which an expression, or a function of a row, is true."""
        if isinstance(condition, pc.Expression):
            return self._with(Filter(condition, compute=_compute(compute, "filter")))
        user, asked = _function(condition, "filter", compute)
        return self._with(FilterRows(user, compute=asked))

    def map_batches(
        self,
        function: Any,
        *,
        batch_size: BatchSize = None,
        batch_format: BatchFormat = "numpy",
        zero_copy: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
        max_errors: int | None = None,
        **compute: Any,
    ) -> Dataset:
        """Call a function with batches of rows; it returns a batch, or yields several."""
        _check_format(batch_format)
        user, asked = _function(function, "map_batches", compute)
        if on_error not in ("raise", "skip"):
            raise ConfigurationError(f"on_error={on_error!r} is not known: use 'raise' or 'skip'")
        size = checked_size(batch_size)
        op = MapBatches(user, size, batch_format, bool(zero_copy), on_error, max_errors, compute=asked)
        return self._with(op)

    def select(self, *columns: str) -> Dataset:
        """Keep these columns, in this order."""
        return self._with(Project("Select", _names(columns, "select")))

    def drop(self, *columns: str) -> Dataset:
        """Leave these columns out."""
        return self._with(Project("Drop", _names(columns, "drop")))

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Give columns other names, old -> new."""
        return self._with(Project("Rename", names=tuple(dict(names).items())))

    def with_column(self, name: str, expression: Any) -> Dataset:
        """Add a column, or replace it, by an expression of the others."""
        if not isinstance(expression, pc.Expression):
            expression = pc.scalar(expression)
        return self._with(Project("WithColumn", (name,), expression=expression))

    def limit(self, rows: int) -> Dataset:
        """Keep at most so many rows, from the first on."""
        if isinstance(rows, bool) or not hasattr(rows, "__index__"):
            raise UsageTypeError(f"limit({rows!r}): a {type(rows).__name__} is no number of rows")
        if rows < 0:
            raise ConfigurationError(f"limit({rows}): the number of rows is not below 0")
        return self._with(Limit(int(rows)))

    def options(self, **options: Any) -> Dataset:
        """Set how the whole dataset is run; see :class:`workspan.dataset.plan.Options`."""
        from dataclasses import replace

        return Dataset(self._source, self._ops, replace(self._options, **options))

    # -- consuming ----------------------------------------------------------------------------------------------------

    def take(self, rows: int = 20, **run: Any) -> list[dict[str, Any]]:
        """Return the first rows as dicts."""
        found: list[dict[str, Any]] = self.limit(rows)._table(run, rows, owner=self).to_pylist()
        return found

    def count(self, **run: Any) -> int:
        """Return the number of rows."""
        known = self._source.rows
        if known is not None and not any(op.changes_rows or isinstance(op, MapBatches) for op in self._ops):
            return known
        if isinstance(self._ops[-1] if self._ops else None, Limit):
            return int(self._table(run, None, owner=self).num_rows)
        return self._execute(run, "drop").summary.rows

    def to_arrow(self, **run: Any) -> pa.Table:
        """Return all rows as one table."""
        return self._table(run, None, owner=self)

    def to_pandas(self, **run: Any) -> Any:
        """Return all rows as a pandas frame."""
        return self.to_arrow(**run).to_pandas()

    def iter_batches(
        self,
        *,
        batch_size: BatchSize = None,
        batch_format: BatchFormat = "numpy",
        zero_copy: bool = True,
        ordered: bool = True,
        ahead: int | None = None,
        **run: Any,
    ) -> Iterator[Any]:
        """Yield batches while the run goes on."""
        _check_format(batch_format)
        size = checked_size(batch_size)
        return self._iterate(size, batch_format, bool(zero_copy), ordered, ahead, _run_options(run))

    def iter_rows(self, *, ordered: bool = True, **run: Any) -> Iterator[dict[str, Any]]:
        """Yield rows, as dicts, while the run goes on."""
        for table in self.iter_batches(batch_format="pyarrow", ordered=ordered, **run):
            for chunk in row_chunks(table, CHUNK_ROWS):
                yield from rows_of(chunk)

    def _iterate(
        self, size: BatchSize, form: BatchFormat, zero_copy: bool, ordered: bool, ahead: int | None, run: RunOptions
    ) -> Iterator[Any]:
        limit = self._ops[-1].rows if self._ops and isinstance(self._ops[-1], Limit) else None
        execution = Execution(self._plan(), run, "keep")
        stream = Stream(execution, ordered=ordered or limit is not None, ahead=ahead, limit=limit)
        iteration = Iteration(stream.tables(), size, form, zero_copy)
        try:
            yield from iteration.batches()
        finally:
            self._last = DatasetRun(execution, iteration.summary())
            execution.place.remove()

    def write_parquet(
        self,
        folder: str | os.PathLike[str],
        *,
        compression: str = "zstd",
        existing: Existing = "refuse",
        filesystem: Any = None,
        **run: Any,
    ) -> DatasetRun:
        """Write all rows into Parquet files, one a task."""
        options = {"compression": compression}
        return self._write("WriteParquet", folder, ".parquet", sinks.parquet_writer, options, existing, filesystem, run)

    def write_csv(
        self,
        folder: str | os.PathLike[str],
        *,
        delimiter: str = ",",
        existing: Existing = "refuse",
        filesystem: Any = None,
        **run: Any,
    ) -> DatasetRun:
        """Write all rows into CSV files with a heading, one a task."""
        options = {"delimiter": delimiter}
        return self._write("WriteCSV", folder, ".csv", sinks.csv_writer, options, existing, filesystem, run)

    def write_json(
        self,
        folder: str | os.PathLike[str],
        *,
        existing: Existing = "refuse",
        filesystem: Any = None,
        **run: Any,
    ) -> DatasetRun:
        """Write all rows into files with one JSON object a line, one a task."""
        return self._write("WriteJSON", folder, ".jsonl", sinks.JsonWriter, {}, existing, filesystem, run)

    def materialize(self, **run: Any) -> Dataset:
        """Run now, and return a dataset of the result, which other runs read without doing the work again."""
        made = self._execute({"progress": True, **run}, "keep")
        last = made.execution.runs[-1]
        limit = self._ops[-1].rows if self._ops and isinstance(self._ops[-1], Limit) else None
        pieces = kept_pieces(last, limit)
        return Dataset(Source("Materialized", pieces, parent=made), (), self._options)

    def _write(
        self,
        name: str,
        folder: str | os.PathLike[str],
        suffix: str,
        opener: Any,
        options: dict[str, Any],
        existing: Existing,
        filesystem: Any,
        run: dict[str, Any],
    ) -> DatasetRun:
        system, path = resolve(os.fspath(folder)) if filesystem is None else (filesystem, os.fspath(folder))
        sink = sinks.Sink(
            name, path.rstrip("/"), suffix, opener, tuple(options.items()), None if is_local(system) else system
        )
        writing = self._with(Write(sink))
        return writing._execute({"progress": True, **run}, "write", owner=self, existing=existing)

    # -- what it cost -------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """Return what would run, as text; nothing runs."""
        return self._plan().explain()

    def stats(self, *, verbose: bool = False) -> str:
        """Return what the last execution cost, as text; empty before the first."""
        return "" if self._last is None else self._last.stats(verbose=verbose)

    def stats_summary(self) -> DatasetSummary | None:
        """Return what the last execution cost, as values; ``None`` before the first."""
        return None if self._last is None else self._last.stats_summary()

    def report(self) -> RunReport | None:
        """Return the report of the last execution as a blockwise run; ``None`` before the first."""
        return None if self._last is None else self._last.report()

    def __repr__(self) -> str:
        names = "->".join([self._source.name, *(op.name for op in self._ops)])
        return f"Dataset({names})"

    # -- inside -------------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        return make_plan(self._source, self._ops, self._options)

    def _execute(
        self, run: dict[str, Any], mode: Any, owner: Dataset | None = None, existing: Existing = "refuse"
    ) -> DatasetRun:
        execution = Execution(self._plan(), _run_options(run), mode, existing)
        kept = False
        try:
            execution.run()
            kept = mode == "keep"
        finally:
            (owner or self)._last = made = DatasetRun(execution)
            if not kept:
                execution.place.remove()
        return made

    def _table(self, run: dict[str, Any], rows: int | None, owner: Dataset) -> pa.Table:
        made = self._execute(run, "keep", owner)
        last = made.execution.runs[-1]
        limit = self._ops[-1].rows if self._ops and isinstance(self._ops[-1], Limit) else None
        tables: list[pa.Table] = []
        found = 0
        for index in _range(last.count):
            if limit is not None and found >= limit and tables:
                break
            for table in tables_of(last, index, forget=made.execution.tracking is None):
                if limit is not None:
                    table = table.slice(0, max(0, limit - found))
                tables.append(table)
                found += table.num_rows
        made.execution.place.remove()
        with_columns = [table for table in tables if table.num_rows] or tables[:1]
        return concat(with_columns, "to_arrow")


_range = range


def _run_options(run: dict[str, Any]) -> RunOptions:
    try:
        return RunOptions(**run)
    except TypeError:
        known = ", ".join(RunOptions.__slots__)
        bad = next(iter(set(run) - set(RunOptions.__slots__)))
        raise UsageTypeError(f"{bad}= is not known here: how a dataset is executed is told by {known}") from None


def _check_format(batch_format: Any) -> None:
    if batch_format not in _FORMATS:
        raise ConfigurationError(
            f"batch_format={batch_format!r} is not known: use 'numpy', 'pandas', 'pyarrow' or None (Arrow)"
        )


def _compute(given: dict[str, Any], operator: str) -> Compute:
    concurrency = given.pop("concurrency", None)
    requires = given.pop("requires", None) or {}
    retries = given.pop("retries", 0)
    retry_on = given.pop("retry_on", bool(retries))
    timing = given.pop("timing", None)
    if given:
        raise UsageTypeError(f"{operator}({next(iter(given))}=...) is not known")
    if concurrency is not None and (isinstance(concurrency, bool) or not hasattr(concurrency, "__index__")):
        raise UsageTypeError(f"{operator}(concurrency={concurrency!r}): a number of workers is an integer")
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"{operator}(concurrency={concurrency}): use 1 or more")
    patterns = retry_on if isinstance(retry_on, bool) else tuple([retry_on] if isinstance(retry_on, str) else retry_on)
    return Compute(concurrency, tuple(sorted(dict(requires).items())), int(retries), patterns, timing)


def _function(function: Any, operator: str, given: dict[str, Any]) -> tuple[UserFunction, Compute]:
    arguments = given.pop("constructor_args", ())
    keywords = given.pop("constructor_kwargs", None)
    return UserFunction(function, operator, arguments, keywords), _compute(given, operator)


def _names(columns: Sequence[Any], operator: str) -> tuple[str, ...]:
    if len(columns) == 1 and isinstance(columns[0], (list, tuple)):
        columns = columns[0]
    for name in columns:
        if not isinstance(name, str):
            raise UsageTypeError(f"{operator}({name!r}): a column is named by text, not by a {type(name).__name__}")
    return tuple(columns)


# -- sources ---------------------------------------------------------------------------------------------------------


def col(name: str) -> Any:
    """Return the expression of a column, for ``filter`` and ``with_column``: ``pyarrow.compute.field``."""
    return pc.field(name)


def range(n: int, *, blocks: int | None = None) -> Dataset:
    """Return the numbers from 0 to *n* - 1 in a column ``id``."""
    return Dataset(range_source(n, blocks))


def from_items(items: Iterable[Any], *, blocks: int | None = None) -> Dataset:
    """Return items as rows: mappings as they are, anything else in a column ``item``."""
    return Dataset(items_source(items, blocks))


def from_arrow(tables: Any) -> Dataset:
    """Return Arrow tables as rows, a block a table."""
    listed = [tables] if isinstance(tables, (pa.Table, pa.RecordBatch)) else list(tables)
    return Dataset(from_tables(listed, "FromArrow", "from_arrow"))


def from_pandas(frames: Any) -> Dataset:
    """Return pandas frames as rows, a block a frame."""
    listed = [frames] if hasattr(frames, "columns") else list(frames)
    return Dataset(from_tables(listed, "FromPandas", "from_pandas"))


def read_parquet(paths: Any, *, columns: list[str] | None = None, filesystem: Any = None) -> Dataset:
    """Return the rows of Parquet files."""
    return Dataset(formats.parquet_source(paths, columns, filesystem))


def read_csv(paths: Any, *, columns: list[str] | None = None, filesystem: Any = None, **options: Any) -> Dataset:
    """Return the rows of CSV files."""
    return Dataset(formats.csv_source(paths, columns, options, filesystem))


def read_json(paths: Any, *, filesystem: Any = None) -> Dataset:
    """Return the rows of files with one JSON object a line."""
    return Dataset(formats.json_source(paths, filesystem))
