"""``workspan report``: the resource panel of a run that is over."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from workspan.cli import exits
from workspan.cli.terminal import say
from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.report.task import TaskReport

RUNS = "runs.jsonl"


def run(path: Path) -> int:
    """Print the panel of the newest run below *path* that had something to do.

    Raises
    ------
    ConfigurationError
        No run is recorded there.
    """
    from workspan.report.task import RunReport
    from workspan.views.panel import render_panel
    from workspan.views.terminal import encoding_of

    found, idle = last_reports(path)
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
            # Beside the work of some of its tasks the span of the whole run would mislead.
            span_seconds=newest.place.span_seconds if newest.place and newest.place.tasks == len(tasks) else None,
        ),
        encoding=encoding_of(sys.stdout),
    )
    say(panel or f"{', '.join(tasks)}: nothing was measured in run {newest.run_id} ({newest.outcome})")
    if idle:
        say("\nThe newest run found every block done before; this is the last one that had something to do.")
    other = [report.task_id for report in found if report.task_id not in tasks]
    if other:
        say(f"\nNot part of that run: {', '.join(other)}")
    return exits.DONE


def _order(report: TaskReport) -> tuple[float, float, str]:
    """Sort key of a task: its place in the run; in lines that do not tell it, the order in which workers came to it."""
    place = math.inf if report.place is None else report.place.position
    return place, min((record.id for record in report.workers.records), default=math.inf), report.task_id


def last_reports(path: Path) -> tuple[list[TaskReport], bool]:
    """Last report that is worth showing of each task at *path*, and whether newer ones had nothing to do.

    Parameters
    ----------
    path
        A ``runs.jsonl``, its folder, or a folder of such folders.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    from workspan.report.task import TaskReport
    from workspan.store.runs import iter_runs

    if path.is_file():
        files = [path]
    elif (path / RUNS).is_file():
        files = [path / RUNS]
    else:
        files = sorted([*path.glob(f"*/{RUNS}"), *path.glob(f"tracking/*/{RUNS}")])
    shown: list[dict[str, Any]] = []
    newest: list[dict[str, Any]] = []
    for file in files:
        last = busy = None
        for line in iter_runs(file):
            if line is not None:
                last = line
                busy = busy if _was_idle(line) else line
        if last is not None:
            newest.append(last)
            shown.append(busy or last)
    if not shown:
        raise ConfigurationError(
            f"{str(path)!r} holds no recorded run: name a tracking folder, which has a {RUNS!r} inside, or the folder "
            "that holds the tracking folders of several tasks"
        )
    idle = all(map(_was_idle, newest)) and not all(map(_was_idle, shown))
    return [TaskReport.from_json(line) for line in shown], idle


def _was_idle(line: dict[str, Any]) -> bool:
    """Whether a run skipped every block."""
    blocks = line.get("blocks")
    return isinstance(blocks, dict) and blocks.get("count") == blocks.get("skipped") == blocks.get("total")
