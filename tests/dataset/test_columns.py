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
