"""What a notebook shows of forecasts, tasks, pipelines and datasets: small pieces made of rows of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.views.forecast import render_line, workers_rows
from workspan.views.format import count, long_duration
from workspan.views.html.fragment import fragment, safe, table_fragment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workspan.report.forecast import Forecast

__all__ = ["forecast_fragment", "rows_fragment"]


def forecast_fragment(forecast: Forecast) -> str:
    """Return a forecast: the time with its interval, a row a task, and a row for other numbers of workers."""
    rows = [
        (
            task.task_id,
            f"{task.blocks:,} of {count(task.total, 'block')}",
            count(task.workers, "worker"),
            long_duration(task.work_seconds),
            long_duration(task.span_seconds),
            task.basis,
        )
        for task in forecast.tasks.values()
    ]
    parts = [table_fragment(("task", "left", "on", "work", "span", "known from"), rows)]
    if forecast.table:
        head, *rest = workers_rows(forecast)
        parts.append(table_fragment(head, rest))
    parts += [f"<p>{safe(note)}</p>" for note in forecast.notes]
    return fragment("Forecast", parts, note=render_line(forecast))


def rows_fragment(
    title: str,
    rows: Iterable[Sequence[object]],
    *,
    headers: Sequence[object] = (),
    note: str = "",
    after: Iterable[str] = (),
) -> str:
    """Return a table under a title.

    Parameters
    ----------
    title, note
        Heading, and a line below it.
    rows, headers
        As for :func:`workspan.views.html.fragment.table_fragment`.
    after
        Pieces of HTML, already escaped, behind the table.
    """
    return fragment(title, [table_fragment(headers, rows), *after], note=note)
