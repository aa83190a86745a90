"""Arrow expressions over blocks: rows that are kept, columns that are chosen or computed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workspan.dataset.blocks import guess, is_guess, no_rows
from workspan.dataset.columns import column_of
from workspan.dataset.formats import told_names
from workspan.errors import DataError, UsageTypeError

if TYPE_CHECKING:
    from workspan.dataset.ops import Filter, Project

__all__ = ["constant", "filtered", "is_expression", "nodes", "projected"]


def is_expression(value: Any) -> bool:
    """Whether a value is an expression of Arrow: there is none before its library was imported, which takes long."""
    library = sys.modules.get("pyarrow._compute")
    return library is not None and isinstance(value, library.Expression)


def constant(value: Any) -> Any:
    """Return one value as an expression, without pandas where Arrow would import it.

    Raises
    ------
    UsageTypeError
        It is several values, or one that Arrow does not know.
    """
    import pyarrow.compute as pc

    kind = type(value).__name__
    if callable(value):
        raise UsageTypeError(f"with_column({value!r}): a {kind} is no value: call it with map or map_batches")
    if hasattr(value, "__len__") and not isinstance(value, (str, bytes, Mapping)):
        raise UsageTypeError(
            f"with_column(..., {str(value)[:60]}): a {kind} is not one value: compute a column of an expression of the "
            "others or with map_batches, or wrap it in pyarrow.compute.scalar if each row is to have all of it"
        )
    if type(value) in (bool, int, float, str, bytes):
        value = column_of("value", [value], "with_column")[0]
    try:
        return pc.scalar(value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageTypeError(f"with_column(..., {str(value)[:60]}): {error}") from error


def filtered(op: Filter, where: str, table: pa.Table) -> pa.Table:
    """Return the rows for which the expression is true.

    Raises
    ------
    DataError
        The table has no such column, or one of another type.
    """
    if is_guess(table):
        return table
    try:
        return _run(table, "filter", op.expression)
    except (pa.ArrowException, KeyError) as error:
        raise _fault(op.name, where, table, error) from error


def projected(op: Project, where: str, table: pa.Table) -> pa.Table:
    """Return the columns that the operator asks for.

    Raises
    ------
    DataError
        A column is not there, or the expression cannot be evaluated.
    """
    if is_guess(table):
        return _guessed(op, table)
    names = table.column_names
    for name in (*op.columns, *op.renames):
        if op.kind != "WithColumn" and name not in names:
            raise DataError(
                f"{op.kind.lower()}({name!r}) in {op.name}, {where}: there is no column {name!r}; there are "
                f"{told_names(names)}"
            )
    if op.kind == "Select":
        return table.select(list(op.columns))
    if op.kind == "Drop":
        return table.drop_columns(list(op.columns))
    if op.kind == "Rename":
        renamed = [op.renames.get(name, name) for name in names]
        twice = next((name for name in op.renames.values() if renamed.count(name) > 1), None)
        if twice is not None:
            raise DataError(
                f"rename in {op.name}, {where}: two columns would have the name {twice!r}; drop or rename one of them"
            )
        return table.rename_columns(renamed)
    try:
        values = _evaluated(op.expression, table)
    except (pa.ArrowException, KeyError) as error:
        raise _fault(f"with_column({op.columns[0]!r})", where, table, error) from error
    if op.columns[0] in names:
        return table.set_column(names.index(op.columns[0]), op.columns[0], values)
    return table.append_column(op.columns[0], values)


def _guessed(op: Project, table: pa.Table) -> pa.Table:
    """Do with a guess what can be done with it; it stays one."""
    names = table.column_names
    if op.kind == "Select":
        table = table.select([name for name in op.columns if name in names])
    elif op.kind == "Drop":
        table = table.drop_columns([name for name in op.columns if name in names])
    elif op.kind == "Rename":
        table = table.rename_columns([op.renames.get(name, name) for name in names])
    return no_rows(guess(table.schema))


def _evaluated(expression: Any, table: pa.Table) -> Any:
    return _run(table, "project", expression).column("value")


def _run(table: pa.Table, kind: str, expression: Any) -> pa.Table:
    """Run one node over a table: in this thread, since the other processors have workers of their own."""
    acero = nodes()
    if kind == "filter":
        options = acero.FilterNodeOptions(expression)
    else:
        options = acero.ProjectNodeOptions([expression], ["value"])
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    return acero.Declaration.from_sequence([source, acero.Declaration(kind, options)]).to_table(use_threads=False)


def nodes() -> Any:
    """Return the module of nodes: imported where it is needed, and without pandas, which its public face drags in."""
    try:
        return import_module("pyarrow._acero")
    except ImportError:
        return import_module("pyarrow.acero")


def _fault(what: str, where: str, table: pa.Table, error: BaseException) -> DataError:
    text = str(error).splitlines()[0]
    columns = told_names([f"{field.name}: {field.type}" for field in table.schema])
    return DataError(f"{what}, {where}: {text}. The columns are {columns}")
