"""What the views of running programs share: numbers from outside, times that go on, bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.estimate.logs import seconds_text
from workspan.views.format import one_line

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["BAR_WIDTH", "Line", "bar", "bar_width", "number", "rough", "text_of", "whole"]

BAR_WIDTH = 20


class Line(NamedTuple):
    """A line of a picture, and what it is about."""

    text: Text
    key: str = ""
    """Stays the same from picture to picture; empty for a line that only goes on with the one above."""
    about: object = None


def number(frame: dict[str, Any], name: str) -> float | None:
    """Return a number that another process has sent, if it is one that can be a time."""
    value = frame.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        return None
    return float(value)


def whole(frame: dict[str, Any], name: str) -> int:
    """Return a count that another process has sent; 0 if there is none."""
    return int(number(frame, name) or 0)


def text_of(frame: dict[str, Any], name: str, most: int) -> str:
    """Return a text that another process has sent, on one line and no longer than *most* characters."""
    value = frame.get(name)
    return one_line(value[:most]) if isinstance(value, str) else ""


def rough(seconds: float) -> str:
    """Return a time that goes on, in steps that do not flicker.

    Examples
    --------
    >>> [rough(s) for s in (0.04, 2.14, 38.2, 381)]
    ['0.0 s', '2.1 s', '38 s', '6 min 21 s']
    """
    return f"{seconds:.1f} s" if seconds < 1.0 else seconds_text(seconds)


def bar_width(columns: int) -> int:
    """Return how many columns of a terminal are for a bar: figures come first."""
    return max(0, min(BAR_WIDTH, columns // 2 - 20))


def bar(fraction: float | None, width: int, ascii_only: bool) -> list[tuple[str, str]]:
    """Return a bar as texts with their styles; *fraction* is ``None`` where nobody can say."""
    full, half, rest = ("#", "#", ".") if ascii_only else ("━", "╸", "─")
    if fraction is None:
        return [(("." if ascii_only else "╌") * width, "dim")]
    halves = int(fraction * width * 2)
    done = full * (halves // 2) + half * (halves % 2)
    return [(done, "green"), (rest * (width - len(done)), "bright_black")]
