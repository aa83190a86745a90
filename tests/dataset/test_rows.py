"""Rows become columns whatever names and kinds they have, also where all of them look alike."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workspan as ws
from workspan.dataset.blocks import rows_of, table_of_batch, table_of_rows
from workspan.errors import DataError, MapError

ROWS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(-(2**62), 2**62)), min_size=1),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_a_name_that_a_row_lacks_is_null_in_it(rows: list[dict[str, Any]]) -> None:
    """Columns come in the order in which names are first seen; what is not there is null (M33, KF-03)."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = table_of_rows(rows, "here")
    assert table.column_names == names
    assert rows_of(table) == [{name: row.get(name) for name in names} for row in rows]


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType, lambda row: defaultdict(int, row)])
def test_rows_of_every_kind_of_mapping_become_columns(kind: Any) -> None:
    """As many names, but others: also where a mapping would make up what it lacks (M54)."""
    rows = [kind({"a": 1, "b": 2}), kind({"a": 3, "c": 4})]
    assert table_of_rows(rows, "here").to_pydict() == {"a": [1, 3], "b": [2, None], "c": [None, 4]}
    assert [dict(row) for row in rows] == [{"a": 1, "b": 2}, {"a": 3, "c": 4}]


def stops(_: Any) -> Any:
    """What a careless call of next() does."""
    return next(iter(()))


def stopping(_: Any) -> Any:
    """The same, to a class."""
    raise StopIteration


STOPPING = type("Stopping", (), {"__init__": stopping, "__call__": lambda self, batch: batch})


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data.map(stops),
        lambda data: data.flat_map(stops),
        lambda data: data.filter(stops),
        lambda data: data.map_batches(stops),
        lambda data: data.map_batches(STOPPING),
    ],
    ids=["map", "flat_map", "filter", "map_batches", "class"],
)
def test_a_function_that_raises_stopiteration_does_not_end_the_rows(make: Any) -> None:
    """It is an error as any other: rows are never left out without a word (M23)."""
    with pytest.raises(RuntimeError, match=r", block 0 \(rows 0 to 4\): the function raised StopIteration"):
        make(ws.range(4, blocks=1)).to_arrow(engine="serial")


def test_a_batch_whose_function_raises_stopiteration_can_be_left_out() -> None:
    """Where failures are tolerated it is one of them."""
    data = ws.range(4, blocks=2).map_batches(lambda b: b if b["id"][0] else stops(b), on_error="skip")
    assert data.to_arrow(engine="serial").column("id").to_pylist() == [2, 3]


@pytest.mark.parametrize("value", [5, np.float64(5), "abc", {"a": 1}, None])
def test_one_value_is_no_column(value: Any) -> None:
    """It is refused, with column, value and what to return instead (M52)."""
    with pytest.raises(DataError, match=re.escape(f"column 'c' is one value, {str(value)!r} of type ")):
        table_of_batch({"c": value}, "f", "block 0")


def test_masked_values_are_null() -> None:
    """A mask is not dropped: what it hides is not in the table (M52)."""
    numbers = np.ma.masked_equal(np.arange(4, dtype=np.int16), 2)
    floats = np.ma.masked_greater(np.arange(4.0), 2)
    table = table_of_batch({"n": numbers, "f": floats, "all": np.ma.masked_array(np.arange(4))}, "f", "block 0")
    assert table.column("n").to_pylist() == [0, 1, None, 3]
    assert table.column("f").to_pylist() == [0.0, 1.0, 2.0, None]
    assert table.column("all").to_pylist() == [0, 1, 2, 3]
    assert [str(column.type) for column in table.schema] == ["int16", "double", "int64"]
    with pytest.raises(DataError, match="masked"):
        table_of_batch({"t": np.ma.masked_equal(np.arange(4).reshape(2, 2), 2)}, "f", "block 0")


def test_bytes_in_the_other_order_are_swapped() -> None:
    """Arrays read from other machines' files become columns too (M52)."""
    assert table_of_batch({"x": np.array([1, 258], ">i4")}, "f", "block 0").column("x").to_pylist() == [1, 258]


def test_a_task_that_ended_without_a_result_is_named() -> None:
    """The message says which block it was, as its input is numbered (M67)."""

    def second(batch: Any) -> Any:
        return sys.exit(3) if batch["id"][0] == 2 else batch

    with pytest.raises(MapError, match=r"block 1 \(rows 2 to 4\)"):
        ws.range(4, blocks=2).map_batches(second).to_arrow(engine="serial")


def test_a_wrong_column_of_an_expression_lists_those_that_are_there() -> None:
    """With their types (M67)."""
    with pytest.raises(DataError, match=r"The columns are 'id: int64'$"):
        ws.range(4, blocks=1).filter(ws.col("x") > 1).to_arrow(engine="serial")


@pytest.mark.parametrize("fuse", [True, False])
def test_a_task_without_rows_does_not_miss_the_columns_that_a_function_makes(fuse: bool, tmp_path: Path) -> None:
    """All rows of a block are filtered out before the function that makes a column: other blocks go on (M58)."""
    data = (
        ws.range(6, blocks=3)
        .options(fuse=fuse)
        .filter(ws.col("id") >= 4)
        .map(lambda row: {"x": row["id"] * 10, "y": 0})
        .filter(ws.col("x") < 1000)
        .with_column("z", ws.col("x"))
        .drop("y")
        .rename({"z": "w"})
        .select("w")
    )
    assert data.to_arrow(engine="serial").to_pydict() == {"w": [40, 50]}
    data.write_parquet(tmp_path / "out", engine="serial", progress=False)
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert [pq.read_table(path).to_pydict() for path in files] == [{"w": [40, 50]}]
    with pytest.raises(DataError, match="there is no column 'v'"):
        data.select("v").to_arrow(engine="serial")


def test_what_is_guessed_is_not_told_as_known() -> None:
    """Without any row the columns are those before the function, and nothing is left of the mark (M58)."""
    found = ws.range(6, blocks=3).filter(ws.col("id") > 9).map(lambda row: {"x": 1}).to_arrow(engine="serial")
    assert (found.num_rows, found.column_names, found.schema.metadata) == (0, ["id"], None)


class _Silent(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("half \ud800"), r"half \ud800"), (_Silent(), r"its text could not be made: OSError")],
)
def test_an_exception_without_a_text_that_can_be_written_is_told(error: Exception, text: str) -> None:
    """It comes home with its type, whatever its text does (M67, D19)."""
    from workspan.dataset.failures import map_error, written_down

    error.add_note("in Map(f), block 3")
    try:
        raise error
    except Exception as raised:
        told = map_error(written_down(raised), 1)
    assert told.type_name == type(error).__name__
    assert text in str(told)
    assert "in Map(f), block 3" in str(told)
    assert isinstance(told, ValueError) == isinstance(error, ValueError)
