"""What the demo says at its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan.cli.demo.evaluate import Cost, as_lines, cost_of, dice, shown
from workspan.cli.demo.folder import Result
from workspan.measure.stats import Stat
from workspan.report.parts import BlocksSummary, StepSummary, WorkersSummary
from workspan.report.task import RunReport, TaskReport

NONE = Stat(0, float("nan"), float("nan"), float("nan"), float("nan"), 0.0)


def total(seconds: float, n: int = 2) -> Stat:
    """Samples that sum to *seconds*."""
    return Stat(n, seconds / n, 0.0, seconds / n, seconds / n, seconds)


def task(name: str, *, workers: int, imports: float | None, wall: float | None = 3.0) -> TaskReport:
    """Report of a task whose workers took 1 s to start, 0.5 s to wait, 4 s to compute, 0.25 s and 0.25 s to end."""
    times = (total(1.0), total(0.5), total(4.0), total(0.25), total(0.25)) if workers else (NONE,) * 5
    return TaskReport(
        run_id="r",
        task_id=name,
        started_at=0.0,
        ended_at=1.0,
        wall_seconds=1.0,
        outcome="completed",
        resource_tracking=True,
        tracking_path=None,
        blocks=BlocksSummary(2, 2, 0, 0, 0, 0, NONE, wall=None if wall is None else total(wall)),
        workers=WorkersSummary(workers, *times, {"clean": workers}, 0, ()),
        steps={} if imports is None else {"import": StepSummary(total(imports), 2, None)},
    )


def report(*tasks: TaskReport) -> RunReport:
    """Report of a run of *tasks*."""
    return RunReport("r", 0.0, 1.0, 1.0, "completed", {t.task_id: t for t in tasks})


def test_dice_of_the_same() -> None:
    """A region overlaps itself fully, and its complement not at all."""
    region = np.array([True, False, True])
    assert dice(region, region) == 1.0
    assert dice(region, ~region) == 0.0


def test_dice_of_nothing() -> None:
    """Two empty regions have no overlap to speak of, neither 0 nor 1."""
    assert np.isnan(dice(np.zeros(3, bool), np.zeros(3, bool)))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_dice_by_counting(pairs: list[tuple[bool, bool]]) -> None:
    """The definition, counted voxel by voxel."""
    a, b = np.array(pairs, bool).T
    size = sum(x for x, _ in pairs) + sum(y for _, y in pairs)
    if size:
        assert dice(a, b) == 2 * sum(x and y for x, y in pairs) / size
        assert dice(a, b) == dice(b, a)


def test_cost_with_workers() -> None:
    """Start-up and imports of all tasks over the whole life of all workers."""
    cost = cost_of(report(task("a", workers=2, imports=2.0), task("b", workers=1, imports=None)))
    assert cost == Cost(total=12.0, startup=2.0, imports=2.0)
    assert cost.share == pytest.approx(4 / 12)


def test_cost_without_workers() -> None:
    """In one process: imports over the wall time of the blocks."""
    cost = cost_of(report(task("a", workers=0, imports=1.5)))
    assert cost == Cost(total=3.0, startup=0.0, imports=1.5)
    assert cost.share == 0.5


@pytest.mark.parametrize("tasks", [(), (task("a", workers=0, imports=None, wall=None),)], ids=["none", "skipped"])
def test_cost_of_nothing(tasks: tuple[TaskReport, ...]) -> None:
    """A run that executed nothing cost nothing that could be shared out."""
    assert cost_of(report(*tasks)) is None


def test_lines_show_what_was_computed() -> None:
    """Every figure of the result is printed, none else."""
    result = Result((139.0, 189.0), (6788.75, 264.186, 912.857, 709.496), (1079.599, 632.004), (0.90218, 0.93252), 1)
    text = "\n".join(as_lines(result))
    for figure in ("139", "189", "264.2 ml", "912.9 ml", "709.5 ml", "1,079.6 ml", "632.0 ml", "0.902", "0.933"):
        assert figure in text


def test_paths_are_shown_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the working directory a path is relative, elsewhere absolute."""
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b") == "a/b"
    assert shown(Path("a") / "b") == "a/b"
    assert shown(Path("/elsewhere/b")) == "/elsewhere/b"
