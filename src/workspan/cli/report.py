"""``workspan report``: the resource panel of a run that is over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from workspan.cli import exits
from workspan.cli.terminal import say
from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.report.task import TaskReport

RUNS = "runs.jsonl"


def run(path: Path) -> int:
    """Print the panel of the newest run below *path*.

    Raises
    ------
    ConfigurationError
        No run is recorded there.
    """
    from workspan.report.task import RunReport
    from workspan.views.panel import render_panel

    found = last_reports(path)
    newest = max(found, key=lambda report: report.started_at)
    tasks = {report.task_id: report for report in sorted(found, key=_order) if report.run_id == newest.run_id}
    panel = render_panel(
        RunReport(
            run_id=newest.run_id,
            started_at=newest.started_at,
            ended_at=newest.ended_at,
            wall_seconds=newest.wall_seconds,
            outcome=newest.outcome,
            tasks=tasks,
        )
    )
    say(panel.rstrip("\n") or f"{', '.join(tasks)}: nothing was measured in run {newest.run_id}")
    older = [report.task_id for report in found if report.task_id not in tasks]
    if older:
        say(f"\nNot part of that run: {', '.join(older)}")
    return exits.DONE


def _order(report: TaskReport) -> tuple[float, str]:
    """Sort key of a task: the order in which tasks came to life, which is that in which workers were numbered."""
    return min((record.id for record in report.workers.records), default=math.inf), report.task_id


def last_reports(path: Path) -> list[TaskReport]:
    """Last report of each task that has one at *path*: a ``runs.jsonl``, its folder, or a folder of such folders.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    from workspan.report.task import TaskReport
    from workspan.store.runs import last_run

    if path.is_file():
        files = [path]
    elif (path / RUNS).is_file():
        files = [path / RUNS]
    else:
        files = sorted([*path.glob(f"*/{RUNS}"), *path.glob(f"tracking/*/{RUNS}")])
    lines = [line for file in files if (line := last_run(file)) is not None]
    if not lines:
        raise ConfigurationError(
            f"{str(path)!r} holds no recorded run: name a tracking folder, which has a {RUNS!r} inside, or the folder "
            "that holds the tracking folders of several tasks"
        )
    return [TaskReport.from_json(line) for line in lines]
