"""Two runs side by side, as text: what differs, by how much, and that the rest does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.views.format import count, duration, fit, folded, one_line, shorten, size, table

if TYPE_CHECKING:
    from workspan.report.comparison import Comparison, Row

__all__ = ["render_comparison"]

MOST_STEPS = 3
"""Steps that stand beside the time of their task; those that are regressions have rows of their own."""

_WIDEST = 40
_LEAST = 12


def render_comparison(
    comparison: Comparison, *, everything: bool = False, encoding: str = "utf-8", columns: int | None = None
) -> str:
    """Return the comparison as text without a final line break.

    Parameters
    ----------
    comparison
        What to show.
    everything
        A row for every step, and notes.
    encoding
        Of the stream that it is for.
    columns
        Width of the terminal: where rows are wider, steps stand below their task's time, and long names are cut more.
        ``None``: there is none.
    """
    rows: list[list[str]] = []
    for row in comparison.rows:
        if row.step is None or everything or row.regression:
            rows.append(_line(row, [] if everything else _moved(comparison, row)))
    lines = _table(rows, encoding, columns)
    for task, why in comparison.refused.items():
        lines += folded(f"{_cut(task)}  cannot be compared: {one_line(why)}", columns)
    if everything or not comparison.rows:
        for task, note in comparison.notes.items():
            lines += folded(f"{_cut(task)}: {one_line(note)}", columns)
    lines += folded(_last(comparison), columns)
    return "\n".join(fit(line, encoding) for line in lines)


def _table(rows: list[list[str]], encoding: str, columns: int | None) -> list[str]:
    """Lay out the rows: task, metric, values, change, steps, verdict."""
    if not rows:
        return []
    lines = table(rows, encoding=encoding)
    widest = max(map(len, lines))
    if columns is None or widest <= columns:
        return lines
    bare = [[*row[:4], row[5]] for row in rows]
    lines = table(bare, encoding=encoding)
    over = max(map(len, lines)) - columns
    if over > 0:
        least = max(_LEAST, max(len(row[0]) for row in rows) - over)
        bare = [[shorten(row[0], least), *row[1:]] for row in bare]
        lines = table(bare, encoding=encoding)
    out = []
    for row, line in zip(rows, lines, strict=True):
        out.append(line)
        if row[4]:
            out += folded(f"    {row[4]}", columns, "")
    return out


def _line(row: Row, moved: list[Row]) -> list[str]:
    metric = f"step {_cut(row.step)}" if row.step is not None else row.metric
    if row.verdict == "same":
        return [_cut(row.task), metric, "no difference", _between(row), "", ""]
    steps = "   ".join(f"{_cut(step.step or '')} {_briefly(step)}" for step in moved)
    last = "REGRESSION" if row.regression else "cannot tell" if row.verdict == "unclear" else ""
    return [_cut(row.task), metric, _both(row), f"{_percent(row.change)} {_between(row)}".rstrip(), steps, last]


def _moved(comparison: Comparison, row: Row) -> list[Row]:
    """Return the steps that made the time of a task differ, the largest first."""
    if row.metric != "wall" or row.verdict not in ("more", "less"):
        return []
    steps = [r for r in comparison.rows if r.task == row.task and r.step is not None and r.verdict == row.verdict]
    return sorted(steps, key=lambda step: abs(step.b.mean - step.a.mean), reverse=True)[:MOST_STEPS]


def _both(row: Row) -> str:
    show = duration if row.unit == "s" else size
    return f"{show(row.a.mean)} -> {show(row.b.mean)}"


def _briefly(row: Row) -> str:
    """Return both values with their unit once, where they have the same."""
    before, sign, after = _both(row).partition(" -> ")
    value, _, unit = before.partition(" ")
    return f"{value if after.endswith(f' {unit}') else before}{sign}{after}"


def _percent(change: float | None) -> str:
    if change is None:
        return "new"
    digits = 0 if abs(change) >= 0.095 else 1
    return f"{change * 100:+.{digits}f} %"


def _between(row: Row) -> str:
    if row.low is None or row.high is None:
        return "" if row.change is None or row.verdict == "same" else "(spread not known)"
    if row.verdict == "same" and max(-row.low, row.high) < 0.005:
        return ""
    return f"({_bound(row.low)} .. {_bound(row.high)})"


def _bound(value: float) -> str:
    return f"{round(value * 100):+d}" if value < 10 else ">+999"


def _cut(name: str) -> str:
    return shorten(one_line(name), _WIDEST)


def _last(comparison: Comparison) -> str:
    worse = len(comparison.regressions)
    if comparison.fail_over is not None and worse:
        return f"{count(worse, 'regression')} of more than {comparison.fail_over * 100:g} %"
    sure = f"{comparison.confidence * 100:g} % sure, changes below {comparison.smallest * 100:g} % left aside"
    if comparison.fail_over is not None and comparison.rows:
        return f"no regression of more than {comparison.fail_over * 100:g} % ({sure})"
    return f"({sure})" if comparison.rows else "nothing could be compared"
