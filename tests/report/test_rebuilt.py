"""The report of a run that left none, from the blocks in its store."""

from __future__ import annotations

import os
from pathlib import Path
from socket import gethostname

import pytest

import workspan as ws
from helpers.runs import line, run
from workspan.cli import main
from workspan.report.task import TaskReport
from workspan.report.unrecorded import unrecorded
from workspan.run.history import history_file
from workspan.store.lock import StoreLock
from workspan.store.runs import last_run


def _work(block: ws.Block) -> None:
    with ws.section("read"):
        sum(range(500))


@pytest.fixture
def recorded(tmp_path: Path) -> TaskReport:
    """A run whose line is taken away, as if it had been killed before it wrote one."""
    path = tmp_path / "run" / "smooth"
    report = run(line(12, _work, "smooth", tracking_path=path, resource_tracking=True))
    (path / "runs.jsonl").unlink()
    return report["smooth"]


class TestUnrecorded:
    def test_it_is_what_the_run_would_have_said(self, recorded: TaskReport) -> None:
        """Blocks, work and steps are those that the run itself counted; what only the driver knew is absent (R25)."""
        found = unrecorded(Path(str(recorded.tracking_path)), after=0.0)
        assert found is not None
        assert found.task_id == "smooth"
        assert found.outcome == "interrupted"
        ours, theirs = found.blocks, recorded.blocks
        assert (ours.count, ours.total, ours.skipped) == (theirs.count, theirs.total, 0)
        assert ours.wall is not None
        assert theirs.wall is not None
        for name in ("n", "mean", "std", "min", "max", "total"):
            assert getattr(ours.wall, name) == pytest.approx(getattr(theirs.wall, name), rel=1e-5)
        assert ours.trend == pytest.approx(theirs.trend, rel=1e-3, abs=1e-6)
        assert found.steps["read"].share == pytest.approx(recorded.steps["read"].share, rel=1e-4)
        assert found.work == pytest.approx(recorded.work, rel=1e-5)
        assert found.span is None
        assert found.workers.startup.n == 0

    def test_what_was_recorded_is_left_out(self, recorded: TaskReport) -> None:
        """Blocks of a run that wrote its end are not told again, nor are they looked at if none is newer (R25)."""
        path = Path(str(recorded.tracking_path))
        assert unrecorded(path, after=recorded.ended_at) is None
        for file in (path / "returned_at").glob("c/**/*"):
            os.utime(file, (1.0, 1.0))
        assert unrecorded(path, after=2.0) is None

    def test_a_run_that_goes_on(self, recorded: TaskReport) -> None:
        """While somebody holds the store, its run is not called interrupted."""
        path = Path(str(recorded.tracking_path))
        with StoreLock(path):
            found = unrecorded(path, after=0.0)
        assert found is not None
        assert found.outcome == "running"

    def test_a_damaged_store_tells_nothing(self, recorded: TaskReport) -> None:
        """A store that cannot be read is no reason to fail: its reader says what is wrong (R28)."""
        path = Path(str(recorded.tracking_path))
        os.truncate(path / "zarr.json", 10)
        assert unrecorded(path, after=0.0) is None


class TestCommands:
    def test_report(self, recorded: TaskReport, capsys: pytest.CaptureFixture[str]) -> None:
        """After kill -9 the report is there and says whence (issue 10, experience 2)."""
        assert main(["report", str(Path(str(recorded.tracking_path)).parent)]) == 0
        out = capsys.readouterr().out
        assert "It left no report, as a run that is killed does." in out
        assert "smooth   12 blocks" in out

    def test_a_run_that_has_done_nothing_yet(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Before the first block is done, it is said that a run goes on, and not that it needs another (issue 10)."""
        path = tmp_path / "run" / "smooth"
        (path / "done").mkdir(parents=True)
        (path / "done" / "zarr.json").write_text("{}")
        with StoreLock(path):
            assert main(["report", str(tmp_path / "run")]) == 2
        assert f"a run goes on there (host {gethostname()}, pid {os.getpid()}" in capsys.readouterr().err
        assert main(["report", str(tmp_path / "run")]) == 2
        assert "no run has written its end; run it again" in capsys.readouterr().err

    def test_forecast(self, recorded: TaskReport, capsys: pytest.CaptureFixture[str]) -> None:
        """After kill -9 the blocks that were done say how long the others take (D32)."""
        history = history_file("smooth")
        assert history is not None
        history.unlink()  # a killed run leaves no summary either
        path = Path(str(recorded.tracking_path))
        assert main(["forecast", str(path), "--fresh"]) == 0
        assert "from 12 blocks of 1 run" in capsys.readouterr().out

    def test_a_line_of_a_later_version(self, recorded: TaskReport, capsys: pytest.CaptureFixture[str]) -> None:
        """Which file it is that cannot be read is said (R28)."""
        file = Path(str(recorded.tracking_path)) / "runs.jsonl"
        file.write_text('{"schema": 99}\n')
        assert last_run(file) == {"schema": 99}
        assert main(["report", str(file)]) == 3
        assert f"{file}: a TaskReport of schema 99" in capsys.readouterr().err
