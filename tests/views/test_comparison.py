"""Comparisons as text: one line a figure, and nothing from outside steers the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from workspan.report.comparison_values import Comparison, Row, Side
from workspan.views.comparison import render_comparison


def row(metric: str, a: float, b: float, verdict: str, task: str = "smooth", **changes: Any) -> Row:
    """A figure that is known to a hundredth."""
    change = b / a - 1 if a else None
    fields: dict[str, Any] = {
        "unit": "B" if metric in ("memory", "io read", "io write") else "s",
        "a": Side(100, a),
        "b": Side(100, b),
        "change": change,
        "low": None if change is None else change - 0.02,
        "high": None if change is None else change + 0.02,
        "verdict": verdict,
        "regression": False,
        "method": "pairs",
    }
    return Row(task, metric, **{**fields, **changes})


def comparison(*rows: Row, fail_over: float | None = 0.1, **changes: Any) -> Comparison:
    """A comparison of two folders."""
    fields = {"a": "old", "b": "new", "refused": {}, "notes": {}, "confidence": 0.95, "smallest": 0.02}
    return Comparison(rows=rows, fail_over=fail_over, **{**fields, **changes})


def test_the_scene() -> None:
    """A regression shows both means, the change with its interval, and the step that made it (issue 10, scene 5)."""
    text = render_comparison(
        comparison(
            row("wall", 1.7, 1.887, "more", regression=True),
            row("memory", 5e8, 5e8, "same", low=0.0, high=0.0),
            row("steps/filter", 1.0, 1.2, "more"),
            row("steps/read", 0.5, 0.5, "same"),
        )
    )
    assert text.splitlines() == [
        "smooth  wall    1.7 s -> 1.9 s  +11 % (+9 .. +13)  filter 1.0 -> 1.2 s  REGRESSION",
        "smooth  memory  no difference",
        "1 regression of more than 10 %",
    ]


def test_a_narrow_terminal() -> None:
    """Lines fit the terminal: steps go below their task, and long ids are cut in the middle (issue 10)."""
    one = row("wall", 1.7, 1.887, "more", regression=True, task="1 FromItems->MapBatches(a_rather_long_name)->Write")
    step = row("steps/filter", 1.0, 1.2, "more", task=one.task)
    lines = render_comparison(comparison(one, step), columns=80).splitlines()
    assert lines[0].endswith("+11 % (+9 .. +13)  REGRESSION")
    assert lines[0].startswith("1 FromItems->…_name)->Write  wall  1.7 s -> 1.9 s")
    assert lines[1] == "    filter 1.0 -> 1.2 s"
    assert max(map(len, lines)) <= 80
    wide = render_comparison(comparison(one, step), columns=120)
    assert wide == render_comparison(comparison(one, step))


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (row("cpu", 1.0, 1.01, "same"), "no difference  (-1 .. +3)"),
        (row("cpu", 1.0, 1.2, "unclear", low=-0.1, high=0.5), "1.0 s -> 1.2 s  +20 % (-10 .. +50)    cannot tell"),
        (row("cpu", 1.0, 1.2, "unclear", low=None, high=None), "+20 % (spread not known)    cannot tell"),
        (row("cpu", 1.0, 1.2, "unclear", low=-0.5, high=float("inf")), "+20 % (-50 .. >+999)"),
        (row("io read", 0, 2048, "more"), "0.0 B -> 2.0 KB  new"),
        (row("cpu", 1.0, 0.95, "less"), "1.0 s -> 950.0 ms  -5.0 % (-7 .. -3)"),
    ],
)
def test_one_line(one: Row, told: str) -> None:
    """Each verdict has its line (issue 10)."""
    assert told in render_comparison(comparison(one)).splitlines()[0]


def test_a_step_that_is_a_regression_has_its_own_line() -> None:
    """It is told also where the time of the whole block does not differ; --all shows every step (issue 10)."""
    rows = row("wall", 1.0, 1.0, "same"), row("steps/b", 0.1, 0.2, "more", regression=True)
    rows += (row("steps/c", 0.1, 0.1, "same"),)
    assert [line.split()[1] for line in render_comparison(comparison(*rows)).splitlines()[:-1]] == ["wall", "step"]
    everything = render_comparison(comparison(*rows, notes={"smooth": "in pairs"}), everything=True)
    assert "step c" in everything
    assert "smooth: in pairs" in everything


def test_what_was_refused_is_told() -> None:
    """A task that cannot be compared says why, and an empty comparison that it is one (issue 10)."""
    text = render_comparison(comparison(refused={"smooth": "its blocks write 10 and 20 elements"}))
    assert text.splitlines() == [
        "smooth  cannot be compared: its blocks write 10 and 20 elements",
        "nothing could be compared",
    ]


def test_text_from_outside_stays_text() -> None:
    """Control codes in ids and steps are spelled out, long names are cut, and ASCII does for the rest (R50)."""
    text = render_comparison(
        comparison(row("steps/\x1b[2J\n" + "x" * 100, 1.0, 2.0, "more", task="\x1b]0;", regression=True)),
        encoding="ascii",
    )
    assert text.isascii()
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert max(map(len, text.splitlines())) < 160
