"""How notebooks show tasks, pipelines and what is said of their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.errors import WorkspanError
from workspan.report import _value as values
from workspan.report.task import RunReport, TaskReport

if TYPE_CHECKING:
    from workspan.run.pipeline import Pipeline
    from workspan.run.task import Task

__all__ = ["RunReport", "TaskReport", "pipeline_html", "task_html"]


def task_html(task: Task) -> str:
    """Return what a task does, how far it is, and how its last run went."""
    from workspan.run.functions import function_name
    from workspan.views.format import count, long_duration
    from workspan.views.html.notebook import rows_fragment

    layout = task.layout
    halo = [
        (w - r, (r + rs) - (w + ws))
        for w, ws, r, rs in zip(
            layout.write_begin, layout.write_shape, layout.read_begin, layout.read_shape, strict=True
        )
    ]
    rows: list[tuple[object, object]] = [
        ("blocks", f"{layout.num_blocks:,} of {_times(layout.write_shape)}, in a grid of {_times(layout.counts)}")
    ]
    if any(map(any, halo)):
        rows.append(("halo", ", ".join(str(low) if low == high else f"{low} + {high}" for low, high in halo)))
    function = task.process_function
    rows.append(("function", "none: workers come from outside" if function is None else function_name(function)))
    rows.append(
        ("workers", f"at most {task.max_workers}, {count(task.max_retries, 'retry')}".replace("retrys", "retries"))
    )
    rows += _progress(task)
    try:
        last = task.report()
    except (WorkspanError, OSError):
        last = None  # asking for it tells why
    if last is not None:
        rows.append(("last run", f"{last.outcome}, {long_duration(last.wall_seconds)} wall"))
    return rows_fragment(f"Task {task.task_id}", rows)


def _progress(task: Task) -> list[tuple[object, object]]:
    """Return the row of the tracking store, if the task has one."""
    from workspan.store.tracking import TrackingStore

    path = task.resolved_tracking_path()
    if path is None:
        return [("tracking", "none: every run does all blocks")]
    if not (path / "zarr.json").is_file():
        return [("tracking", f"{path}, not begun")]
    try:
        done = int(TrackingStore.peek(path).done_of(task.layout).sum())
    except (WorkspanError, OSError) as error:
        return [("tracking", f"{path}: {error}")]
    return [("tracking", f"{path}, {done:,} of {task.layout.num_blocks:,} done")]


def pipeline_html(pipeline: Pipeline) -> str:
    """Return the tasks of a pipeline, and what each waits for."""
    from workspan.views.format import count
    from workspan.views.html.notebook import rows_fragment

    rows = [
        (
            task.task_id,
            f"{task.layout.num_blocks:,}",
            _times(task.layout.write_shape),
            task.max_workers,
            ", ".join(up.task_id for up, down in pipeline.edges if down is task),
        )
        for task in pipeline.tasks
    ]
    title = f"Pipeline of {count(len(rows), 'task')}"
    return rows_fragment(title, rows, headers=("task", "blocks", "of", "workers", "after"))


def _times(numbers: Any) -> str:
    return " × ".join(f"{number:,}" for number in numbers)


def _value_html(value: values.Value) -> str | None:
    from workspan.report.forecast import Forecast

    if isinstance(value, (TaskReport, RunReport)):
        from workspan.views.html.fragment import report_fragment

        return report_fragment(value)
    if isinstance(value, Forecast):
        from workspan.views.html.notebook import forecast_fragment

        return forecast_fragment(value)
    return None


values.as_html = _value_html
