"""What was measured is kept on disk, within limits, and is there the next time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from helpers.timings import KEY, count, documents, step
from workspan import config
from workspan.estimate import files, knowledge
from workspan.estimate.files import TimingFolder
from workspan.estimate.forecast import Forecast
from workspan.estimate.keys import Key
from workspan.estimate.measurements import Measurement, StepHistory, trim
from workspan.estimate.recorder import ProgressRecorder


def test_what_was_measured_is_there_next_time(recorder: ProgressRecorder, home: Path, clock: Any, again: Any) -> None:
    """One document with owner-only rights; the next process estimates from it at once (E53, E59, E64, E67)."""
    assert not home.exists()
    for n in (1.0, 2.0, 3.0, 4.0):
        step(n, clock.work)
    fresh = again()
    (document,) = documents(home)
    assert home.stat().st_mode & 0o777 == 0o700
    assert document.stat().st_mode & 0o777 == 0o600
    content = json.loads(document.read_text())
    (item,) = content["steps"]
    assert item["details"]["key"] == list(KEY)
    assert item["details"]["order"] == "O_N"
    assert len(item["details"]["N_ref_hash"]) == 16
    assert {"dt", "dt_est", "N_ref", "id", "start", "n_ref_fp", "overlap", "substep"} <= item["measurements"][0].keys()
    assert [m["dt"] for m in item["measurements"]] == [1.0, 2.0, 3.0, 4.0]
    assert datetime.fromisoformat(item["measurements"][0]["start"]).tzinfo is not None
    assert item["estimate"]["count"] == [4, 4]
    assert fresh.estimate(KEY, 2.5).value == pytest.approx(2.5, rel=0.01)
    assert list(home.glob("fragment_*")) == []


def test_importing_and_decorating_touch_no_file(tmp_path: Path) -> None:
    """No file is opened for writing, no socket made, no timing folder looked at (E21)."""
    code = """
import sys
seen = []
import workspan
def hook(event, args):
    if event.startswith("socket") or event == "os.mkdir" or event == "open" and "timing" in str(args[0]):
        seen.append((event, args))
sys.addaudithook(hook)
from workspan.estimate import WallClockTime
@WallClockTime(N_ref=lambda x: x)
def f(x): pass
@WallClockTime(method="g")
class A:
    def g(self): pass
assert not seen, seen
"""
    environment = {**os.environ, "WORKSPAN_TIMING_DIRECTORY": str(tmp_path / "timing")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_max_files_are_kept(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Each save writes a new document and deletes the oldest; other names stay (E60, E69)."""
    config.configure(timing={"max_files": 2})
    home.mkdir()
    (home / "notes.json").write_text("mine")
    for n in range(4):
        step(n)
        again()
    assert len(documents(home)) == 2
    assert (home / "notes.json").read_text() == "mine"
    assert count(again()) == 4


def test_without_persistent_data_nothing_is_written(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """It is read, and never written (E64)."""
    step(1)
    again()
    config.configure(timing={"persistent_data": False})
    step(2)
    before = documents(home)
    assert count(again()) == 1
    assert documents(home) == before
    assert list(home.glob("fragment*")) == []


def test_saved_in_the_background(home: Path, recorder: ProgressRecorder) -> None:
    """After save_interval the next measurement starts a save off the timed thread (E67)."""
    config.configure(timing={"save_interval": 0.0})
    real = ProgressRecorder()
    real.stop(real.record("s"))
    assert real._saver is not None
    real._saver.join(10)
    assert len(documents(home)) == 1
    real.close()


def test_a_save_in_a_hurry_fits_nothing(
    recorder: ProgressRecorder, clock: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a program does not wait for curves that nobody asked for; the measurements are saved (E67)."""
    for _ in range(4):
        activation = recorder.record(("m", "f", None), N_ref=2.0, order="O_N")
        clock.work(1.0)
        recorder.stop(activation)
    recorder.forecast(("m", "f", None)).renew()
    monkeypatch.setattr(knowledge, "RENEWING_SECONDS", -1.0)
    monkeypatch.setattr(Forecast, "_build", lambda self: pytest.fail("a curve was fitted"))
    assert recorder.flush()
    (kept,) = TimingFolder(home).load().values()
    assert kept.count == 4


def test_without_a_home(recorder: ProgressRecorder, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """No HOME at all: memory only, told once (R60)."""
    import platformdirs

    config.configure(timing={"directory": None})
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *a, **k: "~/share")
    step(1)
    assert count(recorder) == 1
    assert "there is no home directory" in caplog.text


def test_where_timings_are_kept(recorder: ProgressRecorder, tmp_path: Path) -> None:
    """The folder as configured, or workflows_data/timing below the user's data home (E59)."""
    config.configure(timing={"directory": None}, user_data_home=tmp_path)
    assert files.timing_directory() == tmp_path / "workflows_data" / "timing"
    config.configure(user_data_home=None)
    found = files.timing_directory()
    assert found is not None
    assert found.parts[-3:] == ("workspan", "workflows_data", "timing")


def test_the_store_may_be_deleted_meanwhile(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Files that are gone are no error (E69)."""
    step(1)
    for path in home.iterdir():
        path.unlink()
    home.rmdir()
    step(2)
    assert count(again()) == 2


def test_histories_of_no_use_are_dropped() -> None:
    """A folder that does not exist is an empty store (E64)."""
    assert TimingFolder(Path("nowhere")).load() == {}
    assert StepHistory(Key("m", "q")).count == 0


def test_limits_on_steps_and_bytes(recorder: ProgressRecorder, home: Path, clock: Any) -> None:
    """The least recently used steps go first (E69)."""
    config.configure(timing={"max_steps": 3})
    for name in "abcde":
        recorder.stop(recorder.record(name))
        clock.work(1)
    recorder.flush()
    names = [item["details"]["key"][2] for item in json.loads(documents(home)[-1].read_text())["steps"]]
    assert sorted(names) == ["c", "d", "e"]
    config.configure(timing={"max_file_bytes": 1500})
    recorder.stop(recorder.record("f"))
    recorder.flush()
    last = documents(home)[-1]
    assert last.stat().st_size <= 1500
    assert "f" in [item["details"]["key"][2] for item in json.loads(last.read_text())["steps"]]


def test_trimming_keeps_the_ends_and_one_of_each_size() -> None:
    """Newest half, extreme sizes, one recent of each size; equal runs never erase the others (E58)."""
    sizes = [1.0, 1000.0, *[float(n) for n in range(2, 22)], *[5.0] * 200]
    measured = [Measurement(1.0, n, start=float(at)) for at, n in enumerate(sizes)]
    kept = trim(measured, 50)
    assert len(kept) == 50
    assert [m.start for m in kept] == sorted(m.start for m in kept)  # type: ignore[type-var]
    assert {m.N_ref for m in kept} == {*sizes}
    assert [m.start for m in kept[-25:]] == [float(at) for at in range(len(sizes) - 25, len(sizes))]
    assert trim(measured[:3], 50) == measured[:3]
    assert len(trim(measured, 1)) == 1


def test_a_step_that_runs_often_stays_small(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """At most max_measurements are written, of thousands, with all few sizes among them; the total is told (E58)."""
    config.configure(timing={"max_measurements": 20})
    for n in range(1500):
        step(n % 3)
    fresh = again()
    (item,) = json.loads(documents(home)[-1].read_text())["steps"]
    assert len(item["measurements"]) == 20
    assert {m["N_ref"] for m in item["measurements"]} == {0.0, 1.0, 2.0}
    assert item["totals"] == {"": 1500}
    step(1)
    assert fresh.forecast(KEY).series.total == 1501


def test_one_run_is_no_curve(recorder: ProgressRecorder, clock: Any, again: Any) -> None:
    """Until there are runs enough the next process says, as this one does, that it assumes a default (E84)."""
    step(1e6, clock.work)
    before = recorder.estimate(KEY, 1e6)
    assert before.source == "default"
    assert again().estimate(KEY, 1e6) == before
