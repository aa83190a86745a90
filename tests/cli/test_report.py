"""``workspan report``: the panel of a run that is over, put together from its tasks' lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workspan.cli import main
from workspan.measure.stats import Stat
from workspan.report.parts import BlockFailure, BlocksSummary, TaskPlace, WorkerRecord, WorkersSummary
from workspan.report.task import TaskReport
from workspan.store.runs import append_run

NONE = Stat()


def report(task_id: str, position: int | None, worker: int, *, tasks: int = 3) -> TaskReport:
    """A task's report of one block of 2 s on one worker."""
    record = WorkerRecord(worker, 0.1, 1, 0, NONE, NONE, 0.1, 0.02, "clean")
    return TaskReport(
        run_id="r1",
        task_id=task_id,
        started_at=1000.0,
        ended_at=1009.0,
        wall_seconds=9.0,
        outcome="completed",
        resource_tracking=False,
        tracking_path=None,
        blocks=BlocksSummary(1, 1, 0, 0, 0, 0, Stat(1, 2.0, 0.0, 2.0, 2.0, 2.0)),
        workers=WorkersSummary(1, NONE, NONE, NONE, NONE, NONE, {"clean": 1}, 0, (record,)),
        work_seconds=2.0,
        work_basis="round trip",
        span_seconds=2.0,
        place=None if position is None else TaskPlace(position, tasks, 6.0),
    )


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *reports: TaskReport) -> tuple[list[str], str]:
    """Write the reports where runs keep them; return the tasks in the order of the panel, and the panel's last line."""
    for one in reports:
        append_run(folder / one.task_id / "runs.jsonl", one.to_json())
    assert main(["report", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.split()[0] for line in lines if "1 block," in line], lines[-1]


def test_tasks_stand_in_the_order_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The order is the recorded one, whoever's worker came up first; the last line is that of the run (B155)."""
    tasks, last = shown(tmp_path, capsys, report("a", 2, 0), report("b", 0, 2), report("c", 1, 1))
    assert tasks == ["b", "c", "a"]
    assert last == "all 3 tasks   work 6.0 s   span 6.0 s   parallelism 1.0   (from round trips)"


def test_a_run_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``#`` selects a run for the report as it does for compare and trace; what is not there is said (B156)."""
    old, new = replace(report("a", 0, 0), run_id="r0", started_at=900.0), report("a", 0, 0)
    other = report("b", 1, 1)
    shown(tmp_path, capsys, replace(old, wall_seconds=7.0), new, other)
    assert main(["report", f"{tmp_path}#-2"]) == 0
    text = capsys.readouterr().out
    assert "a   1 block, 1 worker, 7.0 s wall" in text
    assert text.endswith("\nNot part of that run: b\n")
    assert main(["report", f"{tmp_path}/a/runs.jsonl#r0"]) == 0
    assert "7.0 s wall" in capsys.readouterr().out
    assert main(["report", f"{tmp_path}/a#5"]) == 2
    assert f"'{tmp_path}/a' holds 2 runs that executed something, so there is no run 5" in capsys.readouterr().err


def test_older_lines_go_by_their_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines without a place are still read, in the order in which workers came up."""
    tasks, last = shown(tmp_path, capsys, report("a", None, 2), report("b", None, 0), report("c", None, 1))
    assert tasks == ["b", "c", "a"]
    assert not last.startswith("all ")


def test_part_of_a_run_has_no_span_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a task's line is missing, the work of the others is not set beside the span of all."""
    one, two = report("a", 0, 0), report("b", 1, 1)
    _, last = shown(tmp_path, capsys, one, replace(two, place=replace(two.place, position=2)))
    assert not last.startswith("all ")


def test_failures_are_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report begins as the end of the run did: which run, how far it came, the first failed block (issue 10)."""
    failure = BlockFailure(
        (3,), 3, (30,), (10,), (30,), (10,), 2, "error", "ValueError: odd", 0, "/logs/a/worker_0.err"
    )
    blocks = BlocksSummary(1, 4, 0, 2, 1, 4, Stat(1, 2.0, 0.0, 2.0, 2.0, 2.0))
    one = replace(
        report("a", 0, 0, tasks=1), outcome="incomplete", blocks=blocks, failed_blocks=(failure,), tracking_path="run/a"
    )
    append_run(tmp_path / "runs.jsonl", one.to_json())
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run r1 of ")
    assert ": incomplete\n" in out
    assert "  a ✗        4          1        0       2         1\n" in out
    assert "a: block (3,) failed after 2 attempts\n" in out
    assert "    ValueError: odd\n" in out
    assert "logs of a: /logs/a\n" in out
    assert "a rerun does only the 3 missing blocks\n" in out


@pytest.mark.parametrize(
    ("name", "told"),
    [("nowhere", "does not exist: name"), ("text", "is a file that holds no run that can be read: name")],
)
def test_what_is_there_instead(name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A place without a run is told apart by why there is none (R50)."""
    (tmp_path / "text").write_text("no run\n")
    assert main(["report", str(tmp_path / name)]) == 2
    assert f"'{tmp_path / name}' {told} a tracking folder" in capsys.readouterr().err
