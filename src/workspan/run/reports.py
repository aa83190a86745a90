"""Where reports of runs are kept, and how the last one is found again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from workspan import config
from workspan.errors import WorkspanError
from workspan.report.places import RUNS
from workspan.report.task import TaskReport
from workspan.run import shown as _shown  # noqa: F401  # notebooks show reports from here on

if TYPE_CHECKING:
    from workspan.report.task import RunReport
    from workspan.run.session import Session
    from workspan.run.task import Task

logger = logging.getLogger(__name__)


def keep_report(report: RunReport, session: Session) -> None:
    """Append each task's report to its ``runs.jsonl``, and keep it with the task.

    The file lies in the tracking store if the task has one in this run, else in its log folder if logs are written. A
    file that cannot be written costs the line, not the run: it is logged.
    """
    from workspan.store.runs import append_run

    for task in session.tasks:
        own = report[task.task_id]
        task._memory_report = own
        if own.tracking_path is not None:
            path = Path(own.tracking_path) / RUNS
        elif session.log_dir is not None:
            path = session.log_dir / task.task_id / RUNS
        else:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            append_run(path, own.to_json())
        except (OSError, WorkspanError) as error:
            logger.error("task %r: its report could not be appended to %s: %s", task.task_id, path, error)


def last_report(task: Task) -> TaskReport | None:
    """Return the report of the last run of *task*: from its files, or from this process; ``None`` if there is none.

    A run without a store writes beside its logs, and one without either is remembered only, so the newest one counts.
    """
    from workspan.store.runs import last_run

    tracking = task.resolved_tracking_path()
    logs: Path | None = config.get("log_basedir")
    files = [] if tracking is None else [tracking / RUNS]
    files += [] if logs is None else [logs.absolute() / task.task_id / RUNS]
    lines = [last_run(path) for path in files if path.is_file()]
    found = [TaskReport.from_json(line) for line in lines if line is not None]
    if task._memory_report is not None:
        found.append(task._memory_report)
    return max(found, key=lambda report: report.started_at, default=None)
