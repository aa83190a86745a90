"""One page about one run, in one file: no network, no dependency, the same figures as the panel.

What does not change is HTML and SVG made here, so that the page says everything without its script too; the script adds
the map, the timeline and the distributions. Text from outside is escaped by the template; the page's policy allows its
own script and style by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import os
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from workspan.report.page import build_page
from workspan.report.unrecorded import is_unrecorded
from workspan.report.whole import whole_file
from workspan.views.format import long_duration, many_lines, one_line, shorten
from workspan.views.html.data import page_json
from workspan.views.html.tables import speedup_section, task_section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

    from workspan.report.page import Extra, Page
    from workspan.report.task import RunReport, TaskReport

__all__ = ["render_page", "write_html", "write_page"]

_LONGEST_OF_SOME = 32
"""Characters of each task's id in the title of a page about several."""

_SCRIPTS = ("base.js", "map.js", "gantt.js", "charts.js", "app.js")


def write_html(report: RunReport | TaskReport, path: str | os.PathLike[str]) -> None:
    """Write a report as one HTML page that needs nothing but itself.

    The stores of its tasks, the history beside them and the logs of their workers are read, as they are now, for what
    the report does not hold: single blocks, earlier runs, what workers wrote. What is gone is said to be.

    Parameters
    ----------
    report
        A run, or one task of it.
    path
        File to write, or to replace.

    Raises
    ------
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import workspan as ws
    >>> ws.write_html(task.report(), "report.html")  # doctest: +SKIP
    """
    write_page(report, Path(path))


def write_page(report: RunReport | TaskReport, path: Path, *, extras: Mapping[str, Extra] | None = None) -> int:
    """Write the page, with what else is known of its tasks; return its size in bytes."""
    from workspan.config import get

    logs: Path | None = get("log_basedir")
    page = build_page(report, extras=extras, log_folders=() if logs is None else (logs,))
    data = render_page(page).encode()
    with whole_file(path) as file:
        file.write_bytes(data)
    return len(data)


def render_page(page: Page) -> str:
    """Return the page as HTML."""
    report = page.report
    tasks = [task_section(task, alone=len(page.tasks) == 1) for task in page.tasks]
    started = datetime.fromtimestamp(report.started_at, UTC)
    script, css = _script(), _static("page.css")
    whole = len(tasks) > 1 and page.is_whole and report.work and report.span
    return _template().render(
        policy=_policy(script, css),
        css=Markup(css),
        script=Markup(script),
        data=Markup(page_json(page)),
        title=_title(page),
        outcome=one_line(report.outcome),
        run_id=one_line(report.run_id),
        started=started.astimezone().strftime("%-d %B %Y, %H:%M:%S %Z"),
        started_iso=started.isoformat(timespec="seconds"),
        noun=_noun(page),
        facts=_facts(page),
        notes=_notes(page),
        has_failures=any(task.report.blocks.failures for task in page.tasks),
        timeline=any(task.blocks is not None and task.blocks.here for task in page.tasks),
        task_table=_task_table(page),
        speedup=speedup_section(report, wall=report.wall_seconds, workers=None) if whole else None,
        tasks=tasks,
    )


def _title(page: Page) -> str:
    names = [one_line(task.report.task_id) for task in page.tasks]
    if len(names) > 1:
        names = [shorten(name, _LONGEST_OF_SOME) for name in names]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _noun(page: Page) -> str:
    nouns = {task.extra.block_noun for task in page.tasks}
    return nouns.pop() if len(nouns) == 1 else "block"


def _facts(page: Page) -> list[tuple[str, str, str]]:
    report = page.report
    tasks = [task.report for task in page.tasks]
    blocks = [task.blocks for task in tasks]
    executed = sum(b.count - b.skipped for b in blocks)
    noun = _noun(page)
    skipped, failures = sum(b.skipped for b in blocks), sum(b.failures for b in blocks)
    lost = sum(b.failed for b in blocks) + sum(b.orphaned for b in blocks)
    told = [f"{skipped:,} skipped"] * bool(skipped) + [f"{lost:,} not done"] * bool(lost)
    until = "from its first block to its last" if is_unrecorded(report) else "until all workers had ended"
    facts = [
        ("wall", long_duration(report.wall_seconds), until),
        (f"{noun}s done", f"{executed + skipped:,}", ", ".join([f"of {sum(b.total for b in blocks):,}", *told])),
    ]
    if page.is_whole and report.work is not None:
        basis = {"round trip": "from round trips", "call": "from calls", "mixed": "partly from round trips"}
        facts.append(("work", long_duration(report.work), basis.get(report.work_basis or "", f"time of all {noun}s")))
        facts.append(("span", long_duration(report.span), "the longest chain that had to run in order"))
        parallel = report.parallelism
        facts.append(("parallelism", "-" if parallel is None else f"{parallel:,.1f}", "work over span"))
    workers = sum(task.workers.count for task in tasks)
    if workers:
        known = sum(n for task in tasks for n in task.workers.exits.values())
        ends = known - sum(task.workers.exits.get("clean", 0) for task in tasks)
        how = f"{ends:,} not ended cleanly" if ends else "all ended cleanly"
        facts.append(("workers", f"{workers:,}", how if known else "how they ended is not known"))
    if failures or not is_unrecorded(report):
        facts.append(("failed attempts", f"{failures:,}", ""))
    return facts


def _notes(page: Page) -> list[str]:
    out = []
    if not page.is_whole:
        out.append("Not all tasks of the run are here, so its work and span are not shown.")
    report = page.report
    if is_unrecorded(report):
        out.append(
            "This run goes on: the page tells what its store held when it was made."
            if report.outcome == "running"
            else "This run left no report, as a run that is killed does: the page tells what its store holds, "
            "and counts a step once a block."
        )
    for name, number in (("stale results", report.stale_results), ("refused messages", report.refused_messages)):
        if number:
            out.append(f"{number:,} {name}.")
    return out


def _task_table(page: Page) -> list[list[str]]:
    rows = [["task", "blocks", "completed", "skipped", "failed", "orphaned", "work", "span", "workers"]]
    for task in page.tasks:
        report, blocks = task.report, task.report.blocks
        numbers = (blocks.total, blocks.count, blocks.skipped, blocks.failed, blocks.orphaned)
        rows.append(
            [
                one_line(report.task_id),
                *(f"{number:,}" for number in numbers),
                long_duration(report.work),
                long_duration(report.span),
                f"{report.workers.count:,}",
            ]
        )
    return rows


# -- the file --------------------------------------------------------------------------------------------------------


def _policy(script: str, css: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(css)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _static(name: str) -> str:
    return (files("workspan.views.html") / "static" / name).read_text("utf-8")


@cache
def _script() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(map(_static, _SCRIPTS)) + "\n})();\n"


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["lines"] = many_lines
    return environment.from_string(_static("page.html.j2"))
