"""Results on their way to the driver: files that are mapped and not copied, in order or as they come.

Nothing is pickled. A task's blocks are one Arrow file (another one whenever the schema changes); the driver maps it and
removes its name, and the pages are gone when the last table that looks at them is.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from workspan.dataset.blocks import certain, concat, first_rows, is_guess, no_rows
from workspan.dataset.manifest import unusable
from workspan.dataset.record import TaskRecord, unpack
from workspan.dataset.sources import ArrowPiece, mapped
from workspan.dataset.task import result_pieces
from workspan.errors import DataError

if TYPE_CHECKING:
    from workspan.dataset.runs import OperatorRun

__all__ = ["Place", "drop_result", "joined", "kept_pieces", "read_record", "read_tables", "tables_of", "whole_table"]


class Place:
    """The folder of one execution: records and results of its tasks.

    Parameters
    ----------
    path
        Where it is; ``None``: a temporary folder, which goes when this object does.
    """

    def __init__(self, path: Path | None) -> None:
        self.temporary = path is None
        self.path = Path(tempfile.mkdtemp(prefix="workspan-dataset-")) if path is None else path
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(self.path, error) from error
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.path, True) if self.temporary else None

    def folder(self, name: str) -> Path:
        """Return a folder in it, which is there."""
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def remove(self) -> None:
        """Remove it, if it is temporary."""
        if self._finalizer is not None:
            self._finalizer()


def read_record(folder: Path, index: int) -> TaskRecord | None:
    """Return the record of a task; ``None``: it has not finished."""
    try:
        return unpack((folder / f"{index}.record").read_bytes())
    except FileNotFoundError:
        return None


def read_tables(folder: Path, record: TaskRecord, *, forget: bool) -> list[pa.Table]:
    """Return the blocks of a task, mapped.

    Parameters
    ----------
    folder
        Of the operator.
    record
        Of the task.
    forget
        Remove the files, whose pages stay as long as the tables do.
    """
    tables: list[pa.Table] = []
    blocks = list(record.blocks)
    for piece in result_pieces(folder, record.index):
        whole = next(piece.read())
        if forget:
            Path(piece.path).unlink(missing_ok=True)
        start = 0
        while blocks and (start < whole.num_rows or (whole.num_rows == 0 and start == 0)):
            rows = blocks.pop(0).rows
            tables.append(whole.slice(start, rows))
            start += rows
            if not whole.num_rows:
                break
    return tables


def tables_of(run: OperatorRun, index: int, *, forget: bool) -> list[pa.Table]:
    """Return the blocks that a task has made; an empty list if it has not finished."""
    record = read_record(run.folder, index)
    return [] if record is None else read_tables(run.folder, record, forget=forget)


def joined(tables: list[pa.Table], indices: list[int], run: OperatorRun) -> pa.Table:
    """Return the blocks of all tasks as one table.

    Parameters
    ----------
    indices
        Which task made each.

    Raises
    ------
    DataError
        They have columns of types that do not go together; the text names the tasks.
    """
    try:
        return concat(tables, run.operator.name)
    except DataError as error:
        for table, index in zip(tables, indices, strict=True):
            try:
                concat([no_rows(tables[0].schema), no_rows(table.schema)], "")
            except DataError:
                first, other = (run.function.where(number) for number in (indices[0], index))
                raise DataError(f"{error} (it is one in {first}, and another in {other})") from error
        raise


def whole_table(run: OperatorRun, limit: int | None, *, forget: bool) -> pa.Table:
    """Return the results of all tasks, or their first *limit* rows, as one table.

    Parameters
    ----------
    forget
        Remove the files, whose pages stay as long as the table does.

    Raises
    ------
    DataError
        Blocks have columns of types that do not go together.
    """
    left, found = limit, []
    for index in range(run.count):
        for table in tables_of(run, index, forget=forget):
            found.append((table if left is None else first_rows(table, left), index))
            left = None if left is None else left - found[-1][0].num_rows
        if left == 0 and found:
            break
    found = found or [(pa.table({}), 0)]
    known = [one for one in found if not is_guess(one[0])] or found[:1]
    known = [one for one in known if one[0].num_rows] or known[:1]
    return certain(joined([table for table, _ in known], [index for _, index in known], run))


def drop_result(folder: Path, index: int) -> None:
    """Remove the result of a task; its record stays."""
    for piece in list(result_pieces(folder, index)):
        Path(piece.path).unlink(missing_ok=True)


def kept_pieces(run: OperatorRun, limit: int | None) -> tuple[ArrowPiece, ...]:
    """Return the results of all tasks, or their first *limit* rows, as pieces of a source."""
    pieces: list[ArrowPiece] = []
    left = limit
    for index in range(run.count):
        for piece in result_pieces(run.folder, index):
            rows = mapped(piece.path).num_rows
            if left is not None:
                rows = min(rows, left)
                left -= rows
            if rows or not pieces:
                pieces.append(ArrowPiece(f"result {index}", rows, piece.path, rows))
    return tuple(pieces)
