"""Small pieces of HTML for notebooks: a heading, a table, a drawing. All text is escaped, all colours are the page's.

A piece carries its style with it and nothing else: no script, nothing that is loaded. Lines and letters take the colour
of the text around them, so that it reads on light and on dark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from workspan.views.format import count, long_duration, many_lines, share
from workspan.views.panel import block_rows, is_distributed, step_rows, work_line, worker_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workspan.report.parts import StepSummary
    from workspan.report.task import RunReport, TaskReport

__all__ = ["folded", "fragment", "report_fragment", "safe", "share_bar", "table_fragment"]

_STYLE = (
    "<style>"
    ".workspan{font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:70em}"
    ".workspan h4{font-size:1.05em;margin:.6em 0 .2em}"
    ".workspan p{margin:.2em 0;opacity:.75}"
    ".workspan table{border-collapse:collapse;margin:.3em 0 .6em;font-variant-numeric:tabular-nums}"
    ".workspan th,.workspan td{text-align:left;padding:.12em 1.1em .12em 0;border:0;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 18%,transparent);background:none}"
    ".workspan thead th{opacity:.7;font-weight:600}"
    ".workspan tbody th{font-weight:400;opacity:.75}"
    ".workspan svg{display:block;max-width:100%}"
    "</style>"
)

_MOST_FAILURES = 3
"""Blocks whose error is shown."""

_MOST_PARTS = 6
"""Parts of a bar; the rest is drawn as one."""


def safe(text: object) -> Markup:
    """Return any text as HTML that shows it: markup escaped, control codes spelled out."""
    return escape(many_lines(str(text)))


def table_fragment(headers: Sequence[object], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Return a table as HTML.

    Parameters
    ----------
    headers
        Heading of each column; empty: no heading.
    rows
        Cells as text; the first of each row is its heading.
    caption
        What the table is about, for whoever cannot see where it stands.
    """
    out = ["<table>"]
    if caption:
        out.append(f"<caption>{safe(caption)}</caption>")
    if headers:
        out.append("<thead><tr>" + "".join(f'<th scope="col">{safe(cell)}</th>' for cell in headers) + "</tr></thead>")
    out.append("<tbody>")
    for first, *rest in rows:
        out.append(f'<tr><th scope="row">{safe(first)}</th>' + "".join(f"<td>{safe(cell)}</td>" for cell in rest))
        out.append("</tr>")
    out.append("</tbody></table>")
    return "".join(out)


def share_bar(parts: Mapping[str, float], *, label: str) -> str:
    """Return a bar, as SVG, of the parts that a whole has, each with its name below if there is room.

    Parameters
    ----------
    parts
        Name -> part of the whole, 0 to 1. What they leave is drawn empty.
    label
        What the bar shows, in words.
    """
    parts = {name: part for name, part in parts.items() if part and part > 0}
    if not parts:
        return ""
    width, at = 560.0, 0.0
    shown = dict(sorted(parts.items(), key=lambda item: -item[1])[:_MOST_PARTS])
    spoken = f"{label}: " + ", ".join(f"{name} {share(part)}" for name, part in parts.items())
    out = [
        f'<svg role="img" aria-label="{safe(spoken)}" viewBox="0 0 560 34" width="560" height="34">'
        '<rect x="0.5" y="0.5" width="559" height="14" rx="2" fill="none" stroke="currentColor" stroke-opacity=".3"/>'
    ]
    scale = width / max(1.0, sum(parts.values()))
    rest = [name for name in parts if name not in shown]
    drawn = {name: part for name, part in parts.items() if name in shown}
    if rest:
        drawn[f"{len(rest)} more"] = sum(parts[name] for name in rest)
    for number, (name, part) in enumerate(drawn.items()):
        wide = part * scale
        opacity = 0.75 - 0.09 * number
        out.append(
            f'<rect x="{at:.1f}" y="1" width="{max(wide - 1, 0.5):.1f}" height="13" fill="currentColor" '
            f'fill-opacity="{opacity:.2f}"><title>{safe(name)} {safe(share(part))}</title></rect>'
        )
        room = int(wide / 6.4)
        if room >= 4:
            text = name if len(name) <= room else name[: room - 1] + "…"
            out.append(f'<text x="{at + 1:.1f}" y="28" font-size="11" fill="currentColor">{safe(text)}</text>')
        at += wide
    return "".join(out) + "</svg>"


def folded(title: str, text: str) -> str:
    """Return text that is shown, as it is laid out, when its title is clicked; "" for no text."""
    return f"<details><summary>{safe(title)}</summary><pre>{safe(text)}</pre></details>" if text else ""


def fragment(title: str, parts: Iterable[str], *, note: str = "") -> str:
    """Put pieces of HTML, already escaped, under a heading into one block with a style of its own."""
    told = f"<p>{safe(note)}</p>" if note else ""
    return f'{_STYLE}<div class="workspan"><h4>{safe(title)}</h4>{told}{"".join(parts)}</div>'


def report_fragment(report: TaskReport | RunReport) -> str:
    """Return a report as a small piece of HTML: what the panel says, and a bar of the steps."""
    tasks = list(getattr(report, "tasks", {"": report}).values())
    parts = [_task(task, with_name=len(tasks) > 1) for task in tasks]
    if len(tasks) == 1:
        title = f"{tasks[0].task_id}: {tasks[0].outcome}"
    else:
        title = f"{count(len(tasks), 'task')}: {report.outcome}"
        if whole := work_line(report):
            parts.append(f"<p>all {safe(count(len(tasks), 'task'))}: {safe(whole)}</p>")
    return fragment(title, parts, note=f"run {report.run_id}, {long_duration(report.wall_seconds)} wall")


def _task(task: TaskReport, *, with_name: bool) -> str:
    blocks = task.blocks
    head = f"{blocks.count:,} of {count(blocks.total, 'block')}"
    head += f", {blocks.skipped:,} skipped" if blocks.skipped else ""
    head += f", {blocks.failed:,} failed" if blocks.failed else ""
    head += f", {blocks.orphaned:,} orphaned" if blocks.orphaned else ""
    head += f", {count(task.workers.count, 'worker')}" if task.workers.count else ""
    out = [f"<h4>{safe(task.task_id)}</h4>" if with_name else "", f"<p>{safe(head)}</p>"]
    rows = block_rows(blocks, distributed=is_distributed(task)) + worker_rows(task.workers)
    if work := work_line(task):
        rows.append(("work", work.removeprefix("work ")))
    out.append(table_fragment((), rows))
    if task.steps:
        out.append(share_bar(step_shares(task.steps), label="Steps, part of the work"))
        out.append(table_fragment(("step", "part and self time a block"), step_rows(task.steps)))
    for failure in task.failed_blocks[:_MOST_FAILURES]:
        title = f"block {failure.block_id} failed ({failure.cause}, {count(failure.attempts, 'attempt')})"
        out.append(folded(title, failure.error))
    return "".join(out)


def step_shares(steps: Mapping[str, StepSummary]) -> dict[str, float]:
    """Return the part of the work that each step took, of those of which it is known."""
    return {name: step.share for name, step in steps.items() if step.share is not None}
