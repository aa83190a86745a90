"""Columns are what pyarrow makes of the same values, without the import of pandas that this begins with there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import workspan as ws
from workspan.dataset.columns import array_of, column_of

LISTS: list[list[Any]] = [
    ["a", "ü", "", None, "😀"],
    ["plain", "text"],
    [b"\xff", None, b""],
    [1, None, 3],
    [1.5, None, float("nan")],
    [True, None, False],
    [None, None],
    [np.float32(1.5), np.float32(2)],
    [np.int8(1), np.int8(2)],
    [1, 2.5],
    [[1], None],
    [{"a": 1}, {"a": None}],
    [],
]


@pytest.mark.parametrize("values", LISTS, ids=str)
def test_lists_become_what_pyarrow_makes_of_them(values: list[Any]) -> None:
    """Type, values and nulls agree (M52)."""
    mine, theirs = column_of("x", values, "here"), pa.array(values)
    assert mine.type == theirs.type
    assert repr(mine.to_pylist()) == repr(theirs.to_pylist())
    assert mine.null_count == theirs.null_count
    mine.validate(full=True)


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2020-01-01", "NaT"], f"datetime64[{unit}]") for unit in ("D", "s", "ms", "us", "ns")
    ] + [np.array([1, "NaT"], "m8[s]"), np.array(["a", "b"]), np.array([b"a"]), np.array([1, None], object),
         np.array([1.5], np.float16), np.arange(6)[::2], np.array([True, False])],
    ids=str,
)  # fmt: skip
def test_arrays_become_what_pyarrow_makes_of_them(values: np.ndarray[Any, Any]) -> None:
    """Type, values and nulls agree (M52)."""
    mine = column_of("x", values, "here")
    theirs = pa.array(values.tolist() if values.dtype.kind in "US" else values)
    assert mine.equals(theirs)
    mine.validate(full=True)


@pytest.mark.parametrize(
    "column",
    [pa.array(values) for values in LISTS[:6]]
    + [pa.array([1, None, 3], kind) for kind in (pa.int8(), pa.timestamp("ms"), pa.duration("s"), pa.date32())]
    + [pa.array(["a", None, "ü"], pa.large_string()), pa.array(["a", None], pa.string_view()), pa.array([1.5, None])],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 1])
def test_columns_become_the_arrays_of_pyarrow(column: Any, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices too; texts are decoded here only while pandas is not there (M52)."""
    column = column.slice(start)
    theirs = column.to_numpy(zero_copy_only=False)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    mine = array_of(pa.chunked_array([column]))
    assert mine.dtype == theirs.dtype
    assert repr(mine.tolist()) == repr(theirs.tolist())
    assert not mine.flags.writeable


PIPELINE = """
import sys
import numpy as np
import workspan as ws
data = ws.from_items([{"s": "a" if n % 3 else None, "k": n, "five": 5} for n in range(20)])
data = data.map_batches(lambda b: {**b, "t": [s and s.upper() for s in b["s"]]}).filter(lambda row: row["k"] % 2)
data = data.map(lambda row: {**row, "z": row["t"]}).filter(ws.col("k") > ws.col("five"))
data = data.with_column("q", ws.col("k") + ws.col("k"))
assert data.filter(ws.col("k") < ws.col("five")).count(engine="serial") == 0
data.write_csv(sys.argv[1], engine="serial", progress=False)
data.write_parquet(sys.argv[1] + "p", engine="serial", progress=False)
assert ws.read_csv(sys.argv[1]).count(engine="serial") == 7
print("pandas" in sys.modules)
"""


def test_texts_and_expressions_do_without_pandas(tmp_path: Path) -> None:
    """A worker does not wait for the imports of a library that nothing uses.

    (``col("k") > 4`` imports pandas where it is written, in ``pyarrow.scalar``, but not where it is evaluated.)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(ws.__file__).parents[1])}
    command = [sys.executable, "-c", PIPELINE, str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert (done.stderr, done.stdout) == ("", "False\n")


TYPES = [
    pa.array([1577836800000000001, None, 3], pa.timestamp("ns")),
    pa.array([1577836800000000001, None, 3], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([1, None, 3], pa.duration("ns")),
    pa.array([[1], None, [3, None]], pa.list_(pa.timestamp("ns"))),
    pa.array([{"t": 1, "n": 1}, None, {"t": None, "n": 2}], pa.struct({"t": pa.duration("ns"), "n": pa.int64()})),
]


@pytest.mark.parametrize("column", TYPES, ids=lambda column: str(column.type))
def test_times_in_ns_keep_them_through_rows(column: Any) -> None:
    """Python's own times have no ns: rows have those of pandas, and nothing is cut off on the way back (M52, M54)."""
    pytest.importorskip("pandas")
    for same in (lambda row: row, lambda row: dict(row.items())):
        found = ws.from_arrow(pa.table({"t": column})).map(same).to_arrow(engine="serial").column("t")
        assert found.type == column.type
        assert found.to_pylist() == column.to_pylist()


def test_what_a_struct_has_no_field_for_is_not_passed_over() -> None:
    """The type of the block is only taken where nothing of the values is lost (M52)."""
    pytest.importorskip("pandas")
    table = pa.table({"s": pa.array([{"t": 1000}], pa.struct({"t": pa.duration("ns")}))})
    found = ws.from_arrow(table).map(lambda row: {"s": {**row["s"], "more": 1}}).take(engine="serial")
    assert found[0]["s"]["more"] == 1


def test_no_time_of_pandas_is_null() -> None:
    """NaT among times, or alone (M52)."""
    pd = pytest.importorskip("pandas")
    rows = ws.range(2).map(lambda row: {"t": pd.NaT if row["id"] else pd.Timestamp("2026-01-01"), "n": pd.NaT})
    found = rows.to_arrow(engine="serial")
    assert found.column("t").null_count == 1
    assert pa.types.is_timestamp(found.schema.field("t").type)
    assert found.column("n").null_count == 2


NESTED = [
    pa.array([[1, 2], None, [], [None]], pa.list_(pa.int64())),
    pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
    pa.array([{"p": 1, "q": "x"}, None, {"p": None, "q": None}, {}], pa.struct({"p": pa.int8(), "q": pa.string()})),
    pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int64())),
    pa.array([[{"a": 1}], None, [], [{"a": None}]], pa.list_(pa.struct({"a": pa.int16()}))),
]


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("column", NESTED, ids=lambda column: str(column.type))
def test_nested_values_that_are_handed_on_stay_as_they_are(column: Any, size: Any) -> None:
    """A null in a list of numbers is no NaN for having been looked at (M52, M53)."""
    data = ws.from_arrow(pa.table({"x": column})).map_batches(lambda batch: batch, batch_size=size)
    found = data.to_arrow(engine="serial").column("x")
    assert found.type == column.type
    assert found.to_pylist() == column.to_pylist()


def test_nested_values_that_were_changed_in_place_are_taken() -> None:
    """A batch is read-only, and what lies within its values is not (M53)."""

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"][0]["p"] = 7
        return batch

    table = pa.table({"x": pa.array([{"p": 1}, {"p": 2}])})
    found = ws.from_arrow(table).map_batches(change).to_arrow(engine="serial").column("x").to_pylist()
    assert found == [{"p": 7}, {"p": 2}]
    assert table.column("x").to_pylist() == [{"p": 1}, {"p": 2}]


@pytest.mark.parametrize("fuse", [True, False])
def test_blocks_with_other_dictionaries_go_on_in_one_task(fuse: bool) -> None:
    """A file of Arrow's has one dictionary a column, and the blocks of a task each their own (M45, M59)."""
    blocks = [pa.table({"c": pa.array(list(text)).dictionary_encode()}) for text in ("ab", "xya")]
    joined = pa.concat_tables(blocks)

    def several(batch: Any) -> Any:
        yield from blocks
        yield joined

    data = ws.range(1).options(shape_blocks=False, fuse=fuse).map_batches(several)
    data = data.map_batches(lambda table: table, batch_format="pyarrow")
    found = data.to_arrow(engine="serial").column("c")
    assert pa.types.is_dictionary(found.type)
    assert found.to_pylist() == list("abxyaabxya")


def test_tables_with_several_dictionaries_reach_workers(tmp_path: Any) -> None:
    """What lies in memory is written for them with one dictionary a column (M45, M105)."""
    from workspan.dataset.inputs import Inputs
    from workspan.dataset.sources import MemoryPiece

    blocks = [pa.table({"c": pa.array(list(text)).dictionary_encode()}) for text in ("ab", "xya")]
    inputs = Inputs(tmp_path / "input")
    piece = inputs.promise("0", MemoryPiece("table 0", 5, pa.concat_tables(blocks)))
    inputs.write_next()
    (table,) = piece.read()
    assert table.column("c").to_pylist() == list("abxya")
