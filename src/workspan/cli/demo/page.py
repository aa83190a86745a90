"""The page at the end of the demo: the newest run of the brain and of the flights on one page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from workspan.cli.report import find_extras, find_run
from workspan.report.parts import TaskPlace
from workspan.report.task import RunReport
from workspan.views.html.page import write_page

if TYPE_CHECKING:
    from workspan.cli.demo.folder import Folder
    from workspan.report.page import Extra
    from workspan.report.task import TaskReport


def write(folder: Folder) -> int | None:
    """Write the page; return its size in bytes, ``None`` if there is no run.

    The second run is shown where there is one, else the first one. The brain and the flights ran one after the other,
    so the longest chain of blocks that wait for each other is that of the one and then that of the other.
    """
    reports: list[RunReport] = []
    extras: dict[str, Extra] = {}
    for name in ("brain", "flights"):
        for place in (folder.second, folder):
            tracking = place.tracking / name if name == "flights" else place.tracking
            pattern = "*/runs.jsonl"
            if not any(tracking.glob(pattern)):
                continue
            found = find_run(str(tracking))
            known = find_extras(found)
            if name == "flights":  # its operators as one name would fill the page
                (task_id,) = found.report.tasks
                found = replace(found, report=replace(found.report, tasks={name: _named(found.report[task_id], name)}))
                known = {name: known[task_id]}
            reports.append(found.report)
            extras |= known
            break
    if not reports:
        return None
    return write_page(_joined(reports), folder.page, extras=extras)


def _named(task: TaskReport, name: str) -> TaskReport:
    return replace(task, task_id=name)


def _joined(reports: list[RunReport]) -> RunReport:
    if len(reports) == 1:
        return reports[0]
    started, ended = min(r.started_at for r in reports), max(r.ended_at for r in reports)
    tasks = {task_id: task for report in reports for task_id, task in report.tasks.items()}
    spans = [report.span_seconds for report in reports if report.span_seconds is not None]
    span = sum(spans) if len(spans) == len(reports) else None
    return RunReport(
        run_id=" + ".join(report.run_id for report in reports),
        started_at=started,
        ended_at=ended,
        wall_seconds=sum(report.wall_seconds for report in reports),
        outcome=next((report.outcome for report in reports if report.outcome != "completed"), "completed"),
        tasks={
            task_id: replace(task, place=TaskPlace(position, len(tasks), span))
            for position, (task_id, task) in enumerate(tasks.items())
        },
        span_seconds=span,
    )
