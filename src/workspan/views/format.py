"""Numbers and foreign text as people read them: the one place where units are chosen and control codes die."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from workspan.measure.stats import Stat
    from workspan.schedule.state import TaskState

MISSING = "-"
"""What stands where nothing was measured."""

_TIME_UNITS = ((1e6, "µs", 999.95e-6), (1e3, "ms", 999.95e-3), (1.0, "s", math.inf))
"""Factor, name, and the number of seconds from which rounding would print 1000.0 of it."""

_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB")

_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"  # line separators, and marks that reorder what is seen
    "\ud800-\udfff]"  # surrogates, which no stream can encode
)

_KEPT = "\ue000"
"""Stands for a space at which no line is broken."""

_PLAIN = str.maketrans(
    {
        "±": "+-",
        "∠": "/",
        "µ": "u",
        "✔": "ok",
        "✗": "failed",
        "∅": "orphaned",
        "▶": ">",
        "…": "...",
        "–": "-",
        "×": "x",
    }
)


# -- numbers ---------------------------------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """Return a time in µs, ms or s, to one decimal.

    Examples
    --------
    >>> duration(0.0123), duration(75), duration(None)
    ('12.3 ms', '75.0 s', '-')
    """
    seconds = _known(seconds)
    if seconds is None:
        return MISSING
    factor, unit = _time_unit(seconds)
    return f"{seconds * factor:.1f} {unit}"


def long_duration(seconds: float | None) -> str:
    """Return a time as :func:`duration` does, but minutes and hours as such.

    Examples
    --------
    >>> long_duration(59.94), long_duration(381), long_duration(7384)
    ('59.9 s', '6 min 21 s', '2 h 3 min')
    """
    seconds = _known(seconds)
    if seconds is None or seconds < 59.95:
        return duration(seconds)
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def clock(seconds: float) -> str:
    """Return a time as on a clock.

    Examples
    --------
    >>> clock(4.2), clock(124), clock(3724)
    ('0:04', '2:04', '1:02:04')
    """
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(number: float | None) -> str:
    """Return a number of bytes, scaled by 1024, to one decimal.

    Examples
    --------
    >>> size(0), size(1536), size(5 * 2**40)
    ('0.0 B', '1.5 KB', '5.0 TB')
    """
    number = _known(number)
    if number is None:
        return MISSING
    power = 0
    while abs(number) >= 1023.95 and power < len(_SIZE_UNITS) - 1:
        number /= 1024
        power += 1
    return f"{number:.1f} {_SIZE_UNITS[power]}"


def duration_pair(stat: Stat | None) -> str:
    """Return mean ± standard deviation of times, both in the unit of the mean."""
    if stat is None or stat.n == 0:
        return MISSING
    factor, unit = _time_unit(stat.mean)
    return f"{stat.mean * factor:.1f} {unit} ± {stat.std * factor:.1f} {unit}"


def size_pair(stat: Stat | None) -> str:
    """Return mean ± standard deviation of bytes, each in a unit of its own."""
    return MISSING if stat is None or stat.n == 0 else f"{size(stat.mean)} ± {size(stat.std)}"


def percent_pair(stat: Stat | None) -> str:
    """Return mean ± standard deviation of percentages.

    Examples
    --------
    >>> percent_pair(None)
    '-'
    """
    return MISSING if stat is None or stat.n == 0 else f"{stat.mean:.1f} % ± {stat.std:.1f} %"


def slope(ms_per_block: float | None) -> str:
    """Return a trend, signed, to four decimals."""
    ms_per_block = _known(ms_per_block)
    return MISSING if ms_per_block is None else f"∠ {ms_per_block:+.4f} ms/block"


def share(fraction: float | None) -> str:
    """Return a part of a whole in percent; what is there but rounds to nothing is not shown as nothing."""
    fraction = _known(fraction)
    if fraction is None:
        return MISSING
    return "<1 %" if 0 < fraction < 0.005 else f"{fraction * 100:.0f} %"


def percent_done(done: int, total: int) -> int:
    """Return how much is done in percent, rounded down: 100 only when all is, and never more."""
    return 100 if done >= total else max(0, 100 * done // total)


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "block"), count(1728, "block")
    ('1 block', '1,728 blocks')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _time_unit(seconds: float) -> tuple[float, str]:
    return next((factor, unit) for factor, unit, limit in _TIME_UNITS if abs(seconds) < limit)


# -- text ------------------------------------------------------------------------------------------------------------


def one_line(text: str) -> str:
    r"""Return text from outside so that it stays on one line and cannot steer a terminal.

    Examples
    --------
    >>> one_line("a\x1b[2Jb\r\nc")
    'a\\x1b[2Jb\\r\\nc'
    """
    return _CONTROL.sub(_escape, text)


def many_lines(text: str) -> str:
    """Return text from outside with its line breaks and tabs, but nothing else that steers a terminal."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in "\n\t" else _escape(match), text)


def raised_line(error: str) -> str:
    r"""Return the line of a traceback that says what was raised; of other text the last line.

    Examples
    --------
    >>> raised_line('Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: one\ntwo')
    'ValueError: one'
    """
    lines = error.strip("\n").rstrip().split("\n")
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    below = lines[frames[-1] + 1 :] if frames else []
    return next((line for line in below if line and not line.startswith(" ")), lines[-1])


def shorten(text: str, width: int) -> str:
    """Return *text* in at most *width* characters: begin and end of it, as names tend to differ at either.

    Examples
    --------
    >>> shorten("MapBatches(features) output build", 20)
    'MapBatches…put build'
    """
    if len(text) <= width:
        return text
    end = max(0, width - 1) // 2
    return text[: max(0, width - 1 - end)] + "…" + text[len(text) - end :]


def folded(text: str, columns: int | None, indent: str = "  ") -> list[str]:
    """Return a line as lines of at most *columns* characters, broken at spaces, the second and later ones indented.

    What is between backquotes stays together, to be copied from the terminal. ``None``: there is no limit.

    Examples
    --------
    >>> folded("it is gone: use `rm -rf old`", 20)
    ['it is gone: use', '  `rm -rf old`']
    """
    if columns is None or len(text) <= columns:
        return [text]
    from textwrap import wrap

    begin = text[: len(text) - len(text.lstrip(" "))]
    joined = re.sub("`[^`]*`", lambda match: match[0].replace(" ", _KEPT), text)
    lines = wrap(
        joined, max(columns, 20), subsequent_indent=begin + indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_KEPT, " ") for line in lines]


def listed(parts: Sequence[str], separator: str, columns: int | None, indent: str) -> list[str]:
    """Join *parts*, in lines of at most *columns* characters that are broken between them; *indent* begins each line.

    Examples
    --------
    >>> listed(["one", "two", "three"], ", ", 12, "  ")
    ['  one, two,', '  three']
    """
    lines: list[str] = []
    for number, part in enumerate(parts):
        text = part if number == len(parts) - 1 else part + separator
        if lines and (columns is None or len(lines[-1]) + len(text.rstrip()) <= columns):
            lines[-1] += text
        else:
            lines.append(indent + text)
    return [line.rstrip() for line in lines]


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def fit(text: str, encoding: str) -> str:
    r"""Return *text* in characters that *encoding* has: our signs in plain words, others escaped.

    Examples
    --------
    >>> fit("3.1 µs ± 0.2 µs ✔ ü", "ascii")
    '3.1 us +- 0.2 us ok \\xfc'
    """
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:  # a stream with an encoding that Python does not know
        return fit(text, "ascii")


def symbol(state: TaskState, *, unfinished: str) -> str:
    """Return the sign of a task: all done, failed, orphaned, or *unfinished*."""
    if state.failed_count:
        return "✗"
    if state.orphaned_count or state.abandoned:
        return "∅"
    return "✔" if state.is_done() else unfinished


def table(rows: Sequence[Sequence[str]], *, encoding: str, right: Iterable[int] = ()) -> list[str]:
    """Lay out *rows*, the first of them the heading, in columns two spaces apart; columns *right* are right-aligned."""
    cells = [[fit(cell, encoding) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    align: list[Callable[[str, int], str]] = [str.rjust if n in set(right) else str.ljust for n in range(len(widths))]
    return [
        "  ".join(put(cell, width) for put, cell, width in zip(align, row, widths, strict=True)).rstrip()
        for row in cells
    ]


def titled(title: str, lines: Iterable[str]) -> list[str]:
    """Put an underlined heading above *lines*."""
    return [title, "-" * len(title), *lines]
