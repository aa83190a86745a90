"""Rows through functions: the face of datasets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pyarrow as pa

from workspan.arguments import at_least
from workspan.dataset import sinks
from workspan.dataset.batching import checked_size, row_chunks
from workspan.dataset.blocks import rows_of
from workspan.dataset.execute import Execution
from workspan.dataset.expressions import constant, is_expression
from workspan.dataset.formats import checked_delimiter
from workspan.dataset.keywords import check_format, column_names, compute_of, function_of, run_options
from workspan.dataset.ops import Filter, FilterRows, Limit, MapBatches, MapRows, Project, Write
from workspan.dataset.plan import Options, make_plan
from workspan.dataset.results import kept_pieces, whole_table
from workspan.dataset.run import DatasetRun
from workspan.dataset.sources import MemoryPiece, Source
from workspan.dataset.stream import Iteration, Stream
from workspan.dataset.transform import CHUNK_ROWS
from workspan.errors import ConfigurationError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workspan.dataset.keywords import ComputeKeywords, RunKeywords
    from workspan.dataset.manifest import Existing
    from workspan.dataset.ops import BatchFormat, BatchSize, Op
    from workspan.dataset.plan import Plan
    from workspan.dataset.stats import DatasetSummary, OperatorMetrics
    from workspan.dataset.task import Mode
    from workspan.report.forecast import Forecast
    from workspan.report.task import RunReport

__all__ = ["Dataset"]


class Dataset:
    """Rows, and what is to be done with them: lazy and immutable.

    It begins with :func:`workspan.read_parquet` and its like. Each method that adds an operator returns another
    dataset. Nothing runs before a method that consumes the rows: ``take``, ``show``, ``count``, ``to_arrow``,
    ``to_pandas``, ``iter_batches``, ``iter_rows``, ``materialize`` and ``write_...``.

    Operators with a function also take ``constructor_args``, ``constructor_kwargs``, ``concurrency``, ``requires``,
    ``retries``, ``retry_on`` and ``timing``: see :class:`workspan.dataset.keywords.ComputeKeywords`. Methods that
    consume take ``engine``, ``max_workers``, ``tracking_path``, ``resource_tracking``, ``progress``, ``resources`` and
    ``timeout``: see :class:`workspan.dataset.keywords.RunKeywords`.

    Notes
    -----
    A class in place of a function is made once in each worker, and its instances are called. What a function of the
    user's raises is raised as it is where it ran in this process; from a worker it comes as a ``MapError`` that is also
    an instance of the builtin type.

    Examples
    --------
    >>> import workspan as ws
    >>> squares = ws.range(4).map(lambda row: {"square": row["id"] ** 2})
    >>> squares.take(2, engine="serial")
    [{'square': 0}, {'square': 1}]
    """

    __slots__ = ("_last", "_ops", "_options", "_running", "_source")

    def __init__(self, source: Source, ops: Sequence[Op] = (), options: Options | None = None) -> None:
        self._source = source
        self._ops = tuple(ops)
        self._options = options or Options()
        self._last: DatasetRun | None = None
        self._running: Execution | None = None

    def _with(self, op: Op) -> Dataset:
        return Dataset(self._source, (*self._ops, op), self._options)

    # -- operators ---------------------------------------------------------------------------------------------------

    def map(self, function: Any, **compute: Unpack[ComputeKeywords]) -> Dataset:
        """Call a function with each row, a dict; the dict that it returns takes the row's place."""
        user, asked = function_of(function, "map", compute)
        return self._with(MapRows(user, compute=asked))

    def flat_map(self, function: Any, **compute: Unpack[ComputeKeywords]) -> Dataset:
        """Call a function with each row; the rows that it returns, any number of them, take its place."""
        user, asked = function_of(function, "flat_map", compute)
        return self._with(MapRows(user, flat=True, compute=asked))

    def filter(self, condition: Any, **compute: Unpack[ComputeKeywords]) -> Dataset:
        """Keep the rows for which a condition holds.

        Parameters
        ----------
        condition
            An expression of columns (``ws.col("x") > 1``), which Arrow evaluates, or a function of a row.
        """
        if is_expression(condition):
            return self._with(Filter(condition, compute=compute_of(dict(compute), "filter")))
        user, asked = function_of(condition, "filter", compute)
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
        **compute: Unpack[ComputeKeywords],
    ) -> Dataset:
        """Call a function with batches of rows.

        Parameters
        ----------
        function
            Returns a batch: a dict of arrays or lists, a table or a frame, of any number of rows; or yields several.
            Never called without rows.
        batch_size
            Rows of a batch: exactly so many, filled over the edges of blocks within a task, the last batch of a task
            may be smaller. ``None``: a batch a block. ``"auto"``: as many rows as take 16 MiB.
        batch_format
            ``"numpy"``: a dict of arrays. ``"pandas"``: a frame. ``"pyarrow"`` or ``None``: a table.
        zero_copy
            Batches may be read-only views of the block. ``False``: writable, and nobody else's.
        on_error, max_errors
            ``"skip"``: a batch whose function raises is left out and counted, and more than *max_errors* in all tasks
            end the run; ``None``: any number is left out.
        """
        check_format(batch_format)
        user, asked = function_of(function, "map_batches", compute)
        if on_error not in ("raise", "skip"):
            raise ConfigurationError(f"on_error={on_error!r} is not known: use 'raise' or 'skip'")
        if max_errors is not None:
            at_least("map_batches: max_errors", max_errors, 0)
            if on_error == "raise":
                raise ConfigurationError(
                    f"max_errors={max_errors} without on_error='skip': the first error ends the run"
                )
        size = checked_size(batch_size)
        return self._with(MapBatches(user, size, batch_format, bool(zero_copy), on_error, max_errors, compute=asked))

    def select(self, *columns: str) -> Dataset:
        """Keep these columns, in this order."""
        chosen = column_names(columns, "select")
        twice = next((name for name in chosen if chosen.count(name) > 1), None)
        if twice is not None or not chosen:
            told = "name one column at least" if twice is None else f"{twice!r} is there {chosen.count(twice)} times"
            raise ConfigurationError(f"select{chosen!r}: {told}")
        return self._with(Project("Select", chosen))

    def drop(self, *columns: str) -> Dataset:
        """Leave these columns out."""
        return self._with(Project("Drop", column_names(columns, "drop")))

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Give columns other names, old -> new."""
        if not isinstance(names, Mapping):
            raise UsageTypeError(f"rename({names!r}): a {type(names).__name__} is no dict, old -> new name")
        column_names([*names, *names.values()], "rename")
        return self._with(Project("Rename", names=tuple(dict(names).items())))

    def with_column(self, name: str, expression: Any) -> Dataset:
        """Add a column, or replace it, by an expression of the others (``ws.col("a") + 1``) or one value for all."""
        column_names([name], "with_column")
        if not is_expression(expression):
            expression = constant(expression)
        return self._with(Project("WithColumn", (name,), expression=expression))

    def limit(self, rows: int) -> Dataset:
        """Keep at most so many rows, from the first on; tasks that are not needed for them do not run."""
        return self._with(Limit(at_least("limit: rows", rows, 0)))

    def options(self, **options: Any) -> Dataset:
        """Set how the dataset as a whole is run: the fields of :class:`workspan.dataset.plan.Options`."""
        return Dataset(self._source, self._ops, self._options.changed(options))

    # -- consuming ---------------------------------------------------------------------------------------------------

    def take(self, rows: int = 20, **run: Unpack[RunKeywords]) -> list[dict[str, Any]]:
        """Return the first rows, as dicts."""
        return rows_of(self._with(Limit(at_least("take: rows", rows, 0)))._table(run, owner=self))

    def show(self, rows: int = 20, **run: Unpack[RunKeywords]) -> None:
        """Print the first rows as a table to standard output; text in them cannot steer the terminal."""
        from workspan.dataset.glance import rendered
        from workspan.views.terminal import columns_of, emit, encoding_of

        table = self._with(Limit(at_least("show: rows", rows, 0)))._table(run, owner=self)
        emit(rendered(table, encoding=encoding_of(sys.stdout), columns=columns_of(sys.stdout)), sys.stdout)

    def schema(self, **run: Unpack[RunKeywords]) -> pa.Schema:
        """Return names and types of the columns, as a ``pyarrow.Schema``; without a run, where no function decides.

        The source is looked at (the footer of the first Parquet file, the first block of other files), and expressions
        and choices of columns are followed from there. Functions of ``map``, ``flat_map`` and ``map_batches`` decide by
        running: then the dataset is run for its first row, as ``take(1)`` would, and only then *run* counts. Later
        blocks may differ, and where no row comes out at all the columns are those that the first function was given.

        Raises
        ------
        DataError
            An operator asks for a column that is not there.
        """
        from workspan.dataset.glance import schema_of

        run_options(run)
        found = schema_of(self._source, self._ops)
        return self._with(Limit(1))._table(run, owner=self).schema if found is None else found

    def columns(self, **run: Unpack[RunKeywords]) -> list[str]:
        """Return the names of the columns; found out as by :meth:`schema`."""
        return list(self.schema(**run).names)

    def count(self, **run: Unpack[RunKeywords]) -> int:
        """Return the number of rows; without a run, where it is known beforehand."""
        run_options(run)
        known = self._source.rows
        if known is not None and not any(op.changes_rows or isinstance(op, MapBatches) for op in self._ops):
            return known
        if self._last_limit() is not None:
            return int(self._table(run, owner=self).num_rows)
        return self._execute(run, "drop").summary.rows

    def to_arrow(self, **run: Unpack[RunKeywords]) -> pa.Table:
        """Return all rows as one table, which is mapped and not in the memory of this process.

        Raises
        ------
        DataError
            Blocks have columns of types that do not go together.
        """
        return self._table(run, owner=self)

    def to_pandas(self, **run: Unpack[RunKeywords]) -> Any:
        """Return all rows as a ``pandas.DataFrame``."""
        return self.to_arrow(**run).to_pandas()

    def iter_batches(
        self,
        *,
        batch_size: BatchSize = None,
        batch_format: BatchFormat = "numpy",
        zero_copy: bool = True,
        ordered: bool = True,
        ahead: int | None = None,
        **run: Unpack[RunKeywords],
    ) -> Iterator[Any]:
        """Yield batches while the run goes on; closing the iterator ends it.

        Parameters
        ----------
        batch_size, batch_format, zero_copy
            As of :meth:`map_batches`; batches are filled over the edges of tasks too.
        ordered
            In the order of the rows; ``False``: as tasks finish.
        ahead
            Finished tasks that may wait for the consumer before workers pause; ``None``: twice the workers, and two.
        """
        check_format(batch_format)
        form, size = batch_format, checked_size(batch_size)
        if ahead is not None:
            at_least("iter_batches: ahead", ahead, 0)
        execution = self._running = Execution(self._plan(), run_options(run), "keep")
        return self._iterate(execution, size, form, bool(zero_copy), ordered, ahead)

    def iter_rows(self, *, ordered: bool = True, **run: Unpack[RunKeywords]) -> Iterator[dict[str, Any]]:
        """Yield rows, as dicts, while the run goes on."""
        for table in self.iter_batches(batch_format="pyarrow", ordered=ordered, **run):
            for chunk in row_chunks(table, CHUNK_ROWS):
                yield from rows_of(chunk)

    def write_parquet(
        self,
        folder: str | os.PathLike[str],
        *,
        compression: str = "zstd",
        existing: Existing = "refuse",
        filesystem: Any = None,
        **run: Unpack[RunKeywords],
    ) -> DatasetRun:
        """Write all rows into Parquet files, ``part-000000.parquet`` and so on, one a task.

        A file appears when it is whole. With a *tracking_path*, a run that was killed is gone on with by the same call:
        no row is lost or there twice. ``_manifest.jsonl`` in the folder says which task made which file.

        Parameters
        ----------
        folder
            Path or URL; made if it is not there.
        compression
            As of ``pyarrow.parquet``.
        existing
            What happens to files that are there and not of this write: ``"refuse"``, or ``"overwrite"``, which removes
            those that an earlier write has made, and refuses others too.
        filesystem
            A ``pyarrow.fs.FileSystem`` in which the folder is; ``None``: as the path says.

        Raises
        ------
        ConfigurationError
            The folder has other files, or cannot be written to.
        LayoutMismatchError
            Another dataset was run with this *tracking_path*.
        """
        options = {"compression": sinks.checked_compression(compression)}
        return self._write(sinks.PARQUET, folder, options, existing, filesystem, run)

    def write_csv(
        self,
        folder: str | os.PathLike[str],
        *,
        delimiter: str = ",",
        existing: Existing = "refuse",
        filesystem: Any = None,
        **run: Unpack[RunKeywords],
    ) -> DatasetRun:
        """Write all rows into CSV files with a heading, one a task; see :meth:`write_parquet`."""
        options = {"delimiter": checked_delimiter(delimiter, "write_csv")}
        return self._write(sinks.CSV, folder, options, existing, filesystem, run)

    def write_json(
        self,
        folder: str | os.PathLike[str],
        *,
        existing: Existing = "refuse",
        filesystem: Any = None,
        **run: Unpack[RunKeywords],
    ) -> DatasetRun:
        """Write all rows into files with one JSON object a line, one a task; see :meth:`write_parquet`."""
        return self._write(sinks.JSON, folder, {}, existing, filesystem, run)

    def materialize(self, **run: Unpack[RunKeywords]) -> Dataset:
        """Run now, and return a dataset of the result, which later runs read without doing the work again.

        The result is in temporary files, which go with the dataset.
        """
        made = self._execute(run, "keep", progress=True)
        kept = kept_pieces(made.execution.runs[-1], self._last_limit())
        pieces = kept or (MemoryPiece("no rows", 0, pa.table({})),)
        return Dataset(Source("Materialized", pieces, parent=made), (), self._options)

    # -- what it cost ------------------------------------------------------------------------------------------------

    def forecast(
        self,
        workers: int | None = None,
        *,
        writes: Literal["parquet", "csv", "json"] | None = None,
        **run: Unpack[RunKeywords],
    ) -> Forecast:
        """Say what an execution will take, from what its operators took in earlier ones. Nothing runs.

        Parameters
        ----------
        workers
            Workers of each operator; ``None``: as the run would have them.
        writes
            That its rows are written, and how; ``None``: they are not.
        **run
            As for the run: with its *tracking_path* the tasks that are done are left out.

        Raises
        ------
        ConfigurationError
            There is a limit in the middle of the dataset.
        """
        from workspan.dataset.forecast import forecast_plan

        what = self
        if writes is not None:
            kinds = {"parquet": sinks.PARQUET, "csv": sinks.CSV, "json": sinks.JSON}
            if writes not in kinds:
                raise ConfigurationError(f"writes={writes!r} is not known: use 'parquet', 'csv' or 'json'")
            name, suffix, opener, _ = kinds[writes]
            what = self._with(Write(sinks.Sink(name, "", suffix, opener)))
        options = run_options(run)
        return forecast_plan(
            what._plan(), options.workers, workers, tracking=options.tracking_path, resources=options.resources
        )

    def explain(self) -> str:
        """Return what would run, as text: operators, why they are not fused, tasks, batches, steps. Nothing runs."""
        return self._plan().explain()

    def stats(self, *, verbose: bool = False) -> str:
        """Return what the last execution of this very dataset cost, as text; empty before the first.

        Parameters
        ----------
        verbose
            Add each step, and where the time of the run went.
        """
        return "" if self._last is None else self._last.stats(verbose=verbose)

    def stats_summary(self) -> DatasetSummary | None:
        """Return what the last execution cost, as values; ``None`` before the first."""
        return None if self._last is None else self._last.stats_summary()

    def metrics(self) -> tuple[OperatorMetrics, ...]:
        """Return the operators of the execution that goes on, or else of the last one, as far as they have come.

        May be called from another thread, or between two batches. Before the first execution there are none. At the end
        the figures are those of :meth:`stats_summary`.
        """
        return () if self._running is None else self._running.metrics()

    def report(self) -> RunReport | None:
        """Return the report of the last execution as a blockwise run; ``None`` before the first."""
        return None if self._last is None else self._last.report()

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            from workspan.dataset.glance import missing

            raise missing(name, [known for known in dir(type(self)) if not known.startswith("_")])

    def _repr_html_(self) -> str:
        from workspan.dataset.shown import dataset_html

        return dataset_html(self, self._plan)

    def __repr__(self) -> str:
        names = "->".join([self._source.name, *(op.name for op in self._ops)])
        return f"Dataset({names})"

    # -- inside ------------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        return make_plan(self._source, self._ops, self._options)

    def _last_limit(self) -> int | None:
        """Return the limit with which the dataset ends, if it does."""
        last = self._ops[-1] if self._ops else None
        return last.rows if isinstance(last, Limit) else None

    def _execute(
        self,
        run: Mapping[str, Any],
        mode: Mode,
        owner: Dataset | None = None,
        existing: Existing = "refuse",
        **defaults: Any,
    ) -> DatasetRun:
        """Run; the results are kept only where they were asked for and nothing failed."""
        execution = Execution(self._plan(), run_options(run, **defaults), mode, existing)
        (owner or self)._running = execution
        kept = False
        try:
            execution.run()
            kept = mode == "keep"
        finally:
            (owner or self)._last = made = DatasetRun(execution)
            if not kept:
                execution.place.remove()
        return made

    def _table(self, run: Mapping[str, Any], owner: Dataset) -> pa.Table:
        made = self._execute(run, "keep", owner)
        table = whole_table(made.execution.runs[-1], self._last_limit(), forget=made.execution.tracking is None)
        made.execution.place.remove()
        return table

    def _iterate(
        self,
        execution: Execution,
        size: BatchSize,
        form: BatchFormat,
        zero_copy: bool,
        ordered: bool,
        ahead: int | None,
    ) -> Iterator[Any]:
        limit = self._last_limit()
        stream = Stream(execution, ordered=ordered or limit is not None, ahead=ahead, limit=limit)
        iteration = Iteration(stream.tables(), size, form, zero_copy)
        try:
            yield from iteration.batches()
        finally:
            self._last = DatasetRun(execution, iteration.summary(stream))
            execution.place.remove()

    def _write(
        self,
        kind: sinks.Kind,
        folder: str | os.PathLike[str],
        options: dict[str, Any],
        existing: Existing,
        filesystem: Any,
        run: Mapping[str, Any],
    ) -> DatasetRun:
        sink = sinks.made(kind, folder, options, existing, filesystem)
        return self._with(Write(sink))._execute(run, "write", self, existing, progress=True)
