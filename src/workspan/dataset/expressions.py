"""Arrow expressions over blocks: rows that are kept, columns that are chosen or computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import acero

from workspan.dataset.formats import told_names
from workspan.errors import DataError

if TYPE_CHECKING:
    from workspan.dataset.ops import Filter, Project

__all__ = ["filtered", "projected"]


def filtered(op: Filter, where: str, table: pa.Table) -> pa.Table:
    """Return the rows for which the expression is true.

    Raises
    ------
    DataError
        The table has no such column, or one of another type.
    """
    try:
        return _run(table, acero.Declaration("filter", acero.FilterNodeOptions(op.expression)))
    except (pa.ArrowException, KeyError) as error:
        raise _fault(op.name, where, table, error) from error


def projected(op: Project, where: str, table: pa.Table) -> pa.Table:
    """Return the columns that the operator asks for.

    Raises
    ------
    DataError
        A column is not there, or the expression cannot be evaluated.
    """
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
        return table.rename_columns([op.renames.get(name, name) for name in names])
    try:
        values = _evaluated(op.expression, table)
    except (pa.ArrowException, KeyError) as error:
        raise _fault(f"with_column({op.columns[0]!r})", where, table, error) from error
    if op.columns[0] in names:
        return table.set_column(names.index(op.columns[0]), op.columns[0], values)
    return table.append_column(op.columns[0], values)


def _evaluated(expression: Any, table: pa.Table) -> Any:
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
    return _run(table, project).column("value")


def _run(table: pa.Table, node: Any) -> pa.Table:
    """Run one node over a table: in this thread, since the other processors have workers of their own."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    return acero.Declaration.from_sequence([source, node]).to_table(use_threads=False)


def _fault(what: str, where: str, table: pa.Table, error: BaseException) -> DataError:
    text = str(error).splitlines()[0]
    columns = told_names([f"{field.name}: {field.type}" for field in table.schema])
    return DataError(f"{what}, {where}: {text}. The columns are {columns}")
