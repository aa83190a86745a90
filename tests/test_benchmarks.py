"""The benchmarks run, and what they write is what they measured."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.once

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the common code of the benchmarks."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("harness")


def test_sides_alternate_and_the_best_round_counts(harness: ModuleType) -> None:
    """Ours and the peer's are measured in turn, first one then the other first; best over best is the ratio."""
    order: list[str] = []

    def side(name: str, values: list[float]) -> float:
        order.append(name)
        return values.pop()

    ours, peer = [5.0, 3.0, 4.0], [6.0, 9.0, 12.0]
    row = harness.compare("x", lambda: side("o", ours), lambda: side("p", peer), unit="us", rounds=3, target=0.5)
    assert "".join(order) == "oppoop"
    assert (row.ours, row.peer, row.ours_median, row.peer_median) == (3.0, 6.0, 4.0, 9.0)
    assert (row.ratio, row.met) == (0.5, True)


def test_the_table_shows_each_saved_row(harness: ModuleType, tmp_path: Path) -> None:
    """RESULTS.md names the figures, their ratio, the target, whether it was met, and the machine."""
    rows = [harness.Row("a", "us", 1.0, 4.0, 1.0, 4.0, 0.5), harness.Row("b", "us", 3.0, 4.0, 3.0, 4.0, 0.5)]
    harness.save("sample", "other 1.2", rows, tmp_path)
    text = harness.table(tmp_path)
    assert "| what | unit | ours | other 1.2 | ratio | target | met? |" in text
    assert "| a | us | 1.0 | 4.0 | 0.25 | <= 0.5 | yes |" in text
    assert "| b | us | 3.0 | 4.0 | 0.75 | <= 0.5 | **no** |" in text
    assert harness.machine()["cpu"] in text


def test_the_block_benchmark_runs_small(tmp_path: Path) -> None:
    """The side-by-side benchmark completes all its layouts and writes a row for each."""
    sizes = ["--side", "3", "--conflict-side", "3", "--process-blocks", "6", "--rounds", "1"]
    command = [sys.executable, FOLDER / "bench_blocks.py", *sizes, "--out", tmp_path]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=50)
    record = json.loads((tmp_path / "blocks.json").read_text())
    assert len(record["rows"]) == 4
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in record["rows"])


def test_the_report_benchmark_runs_small(tmp_path: Path) -> None:
    """Both libraries run tracked, and ours is read back against the limit of one second (D27)."""
    command = [sys.executable, FOLDER / "bench_report.py", "--side", "4", "--rounds", "1", "--out", tmp_path]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=50)
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [row["unit"] for row in rows] == ["us/block", "MB", "ms"]
    assert [row["target"] for row in rows] == [0.35, 1.0, 1.0]
    assert all(row["ours"] > 0 for row in (rows[0], rows[2]))
    assert rows[2]["peer"] == 1000.0


def test_the_array_benchmark_runs_small(tmp_path: Path) -> None:
    """Loop, Workspan and Dask give the same voxels, and each row has a figure of both sides."""
    pytest.importorskip("dask.array")
    sizes = ["--side", "40", "--block", "20", "--rounds", "1"]
    subprocess.run(
        [sys.executable, FOLDER / "bench_arrays.py", *sizes, "--out", tmp_path], check=True, cwd=tmp_path, timeout=55
    )
    rows = json.loads((tmp_path / "arrays.json").read_text())["rows"]
    assert len(rows) >= 6
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows)
    assert {row["unit"] for row in rows} == {"s", "MB"}


def test_the_dataset_benchmark_runs_small(tmp_path: Path) -> None:
    """The job gives all its rows by hand, in this process and in workers, and so do the row functions."""
    sizes = ["--rows", "400", "--files", "2", "--items", "60", "--rounds", "1", "--only", "loop", "rows"]
    subprocess.run(
        [sys.executable, FOLDER / "bench_dataset.py", *sizes, "--out", tmp_path], check=True, cwd=tmp_path, timeout=50
    )
    rows = [json.loads((tmp_path / f"{name}.json").read_text())["rows"] for name in ("dataset", "dataset_rows")]
    assert [len(part) for part in rows] == [5, 1]
    assert all(row["ours"] > 0 and row["peer"] > 0 for part in rows for row in part)


def test_the_step_benchmark_runs_small(tmp_path: Path) -> None:
    """The benchmark of step timers completes, with Ray or without, and writes a row for each case."""
    command = [sys.executable, FOLDER / "bench_steps.py", "--items", "400", "--rounds", "1", "--out", tmp_path]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=50)
    record = json.loads((tmp_path / "steps.json").read_text())
    assert len(record["rows"]) == (9 if record["peer"].startswith("Ray") else 5)
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in record["rows"])


def test_the_recorder_benchmark_runs_small(tmp_path: Path) -> None:
    """Timing a step is measured enabled and disabled, against the limits of 5 and 0.5 us a call (E19)."""
    command = [sys.executable, FOLDER / "bench_recorder.py", "--calls", "300", "--rounds", "1", "--out", tmp_path]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=50, env={**os.environ, "WORKSPAN_LIVE_ENABLED": "0"})
    rows = json.loads((tmp_path / "recorder.json").read_text())["rows"]
    assert [row["peer"] for row in rows] == [5.0, 5.0, 10.0, 0.5]
    assert all(row["ours"] > 0 for row in rows)


def test_the_estimator_benchmark_runs_small(tmp_path: Path) -> None:
    """Every mode has its three errors and every cost its time, beside the best of the simple methods or the limit."""
    sizes = ["--stride", "25", "--rounds", "1", "--out", tmp_path]
    subprocess.run([sys.executable, FOLDER / "bench_estimator.py", *sizes], check=True, cwd=tmp_path, timeout=55)
    rows = json.loads((tmp_path / "estimator.json").read_text())["rows"]
    assert [row["unit"] for row in rows] == ["%"] * 12 + ["ms", "us", "us"]
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows if not row["what"].startswith("bad"))


def test_the_forecast_benchmark_runs_small(tmp_path: Path) -> None:
    """One load, run twice, is forecast once; the figures and every pair of forecast and outcome are kept (D32)."""
    options = ["--runs", "2", "--attempts", "1", "--loads", "even", "--demo"]
    options += ["--out", str(tmp_path), "--keep", str(tmp_path / "pairs.json")]
    subprocess.run([sys.executable, FOLDER / "bench_forecast.py", *options], check=True, cwd=tmp_path, timeout=50)
    rows = json.loads((tmp_path / "forecast.json").read_text())["rows"]
    (pair,) = json.loads((tmp_path / "pairs.json").read_text())
    assert [row["unit"] for row in rows] == ["%", "%"]
    assert rows[0]["ours"] == pytest.approx(abs(pair["middle"] / pair["took"] - 1) * 100)


def test_the_eta_benchmark_runs_small(tmp_path: Path) -> None:
    """A run is replayed through ours, both peers and the best possible, without and with history, and another run."""
    pytest.importorskip("tqdm")
    command = [sys.executable, FOLDER / "bench_eta.py", "--seeds", "1", "--only", "long blocks", "--out", tmp_path]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=50)
    rows = json.loads((tmp_path / "eta.json").read_text())["rows"]
    assert [row["unit"] for row in rows] == ["s", "%", "%", "%", "%"] * 2
    for row in rows:
        if row["unit"] == "s":
            assert 0 < row["best"] < 1
            assert 0 < row["again"] < 1
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows if row["unit"] == "s")
    assert [row["met"] for row in rows if row["unit"] == "s"] == [True, True]
