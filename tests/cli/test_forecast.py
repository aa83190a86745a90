"""``workspan forecast``: the rest of a tracked run, or a repeat of it, without the script."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workspan as ws
from helpers.runs import line, run
from workspan import config
from workspan.cli import main
from workspan.run import forecasts


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    """A history of its own for each test."""
    config.reset()
    config.configure(timing={"directory": tmp_path / "home"}, log_basedir=tmp_path / "logs")
    yield tmp_path / "home" / "runs"
    config.reset()


def nap(block: ws.Block) -> None:
    """Take 2 ms."""
    time.sleep(0.002)


def half(block: ws.Block) -> None:
    """Take 2 ms, and fail in the second half of the blocks."""
    time.sleep(0.002)
    if block.write_roi.begin[0] >= 100:
        raise ValueError("not this one")


def pipeline(folder: Path, function: object = nap) -> ws.Pipeline:
    """Two tracked tasks, the second one behind the first one."""
    tasks = [
        line(20, function, name, max_workers=3, max_retries=0, resource_tracking=True, tracking_path=folder / name)
        for name in ("a", "b")
    ]
    return tasks[0] + tasks[1]


def test_a_complete_run_is_forecast_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks are done: what a repeat takes, with the edges and workers of the run (D32)."""
    rules: list[Any] = []
    real = forecasts.forecast_planned
    monkeypatch.setattr(forecasts, "forecast_planned", lambda spec, *rest: rules.append(spec) or real(spec, *rest))
    report = run(pipeline(tmp_path / "track"))
    assert main(["forecast", str(tmp_path / "track")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("All blocks are done; this is what it takes to do them again.")
    assert "a  20 blocks on 3 workers, from 20 blocks of 1 run" in text
    assert "whole run" in text
    assert main(["forecast", str(tmp_path / "track"), "--json", "--workers", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["repeat"] is True
    forecast = ws.Forecast.from_json(found)
    assert list(forecast.tasks) == ["a", "b"]
    assert forecast.work_seconds is not None
    assert 0.08 < forecast.work_seconds < 2 * report.work
    assert [spec.edges for spec in rules] == [((0, 1),)] * 2


def test_what_is_left_is_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half is done: the other half counts; --fresh forecasts all (D32, D46)."""
    run(line(20, half, max_retries=0, tracking_path=tmp_path / "track"))
    assert main(["forecast", str(tmp_path / "track" / "runs.jsonl")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("What is left of it:")
    assert "t  10 of 20 blocks on 1 worker" in text
    assert main(["forecast", str(tmp_path / "track"), "--fresh"]) == 0
    assert "t  20 blocks on 1 worker" in capsys.readouterr().out


def test_all_commands_look_in_the_same_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that holds the folder of stores is place enough for each command that reads runs (D32)."""
    run(line(4, nap, tracking_path=tmp_path / "run" / "smooth", resource_tracking=True))
    out = ["--out", str(tmp_path / "t.json")]
    for words in (["forecast"], ["report"], ["trace", *out], ["compare", f"{tmp_path}#0"]):
        assert main([words[0], str(tmp_path), *words[1:]]) == 0
    capsys.readouterr()
    for word in ("forecast", "report", "trace", "compare"):
        assert main([word, str(tmp_path / "none")]) == 2
        assert "name a tracking folder, the folder that holds those of several tasks, or a" in capsys.readouterr().err


def test_a_store_from_elsewhere_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str], home: Path) -> None:
    """Without the home of the run its store is enough; what is assumed is said (D32)."""
    config.configure(timing={"persistent_data": False})
    run(line(20, nap, context=10, tracking_path=tmp_path / "track", resource_tracking=True))
    assert not home.exists()
    assert main(["forecast", str(tmp_path / "track")]) == 0
    text = capsys.readouterr().out
    assert "from 20 blocks of 1 run" in text
    assert "note: t: neighbouring blocks are taken to wait for each other, as is the default" in text


def test_sizes_by_a_function_of_the_script_are_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """n_ref is in the script: blocks are taken to have the usual size, and that is said (E33)."""
    run(line(20, nap, tracking_path=tmp_path / "track", n_ref=lambda block: 1.0 + block.write_roi.begin[0]))
    assert main(["forecast", str(tmp_path / "track")]) == 0
    assert "its n_ref is in the script" in capsys.readouterr().out


def test_a_folder_without_stores_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is tracked there: exit code 2, and what to name instead."""
    assert main(["forecast", str(tmp_path)]) == 2
    assert "holds no tracking store: name a tracking folder" in capsys.readouterr().err
