"""The ``"rich"`` style of a failure's text: source lines around each frame and, if asked for, the local variables.

Loaded only when a failure is told of in this style. ``rich`` draws the frames; chains of causes and the exceptions' own
texts come from the standard library, which copes with cycles and with exceptions that cannot be printed.
"""

from __future__ import annotations

from io import StringIO
from itertools import islice
from reprlib import Repr
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.pretty import Node
from rich.traceback import Frame, Stack, Trace, Traceback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from traceback import TracebackException
    from types import TracebackType

    from workspan.engines.failure import TracebackStyle

MAX_FRAMES = 20
"""Most frames of one exception: the first and the last ones."""
MAX_CAUSES = 8
"""Most causes; those next to the error."""
MAX_LOCALS = 20
"""Most local variables of one frame."""

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def pretty_lines(
    told: TracebackException, error: BaseException, traceback: TracebackType | None, style: TracebackStyle
) -> Iterator[str]:
    """Yield the lines of a failure, each with its line end, in plain text without colour.

    Parameters
    ----------
    told
        What the standard library makes of *error*.
    error
        The exception.
    traceback
        Its frames, from the first that is to be shown.
    style
        Width in characters, source lines around each frame, and whether to show local variables.
    """
    chain: list[tuple[TracebackException, TracebackType | None, str]] = []
    link = ""
    while len(chain) <= MAX_CAUSES:
        chain.append((told, traceback if style.show_locals else None, link))
        # The same order of things as in TracebackException.format
        if told.__cause__ is not None and error.__cause__ is not None:
            told, error, link = told.__cause__, error.__cause__, _CAUSE
        elif told.__context__ is not None and not told.__suppress_context__ and error.__context__ is not None:
            told, error, link = told.__context__, error.__context__, _CONTEXT
        else:
            break
        traceback = error.__traceback__
    else:
        yield f"... (only the last {MAX_CAUSES} causes are shown)\n"
    for told, traceback, link in reversed(chain):
        if told.stack:
            yield from _drawn(_frames(told, traceback), style)
        yield from told.format_exception_only()
        if link:
            yield link


def _frames(told: TracebackException, traceback: TracebackType | None) -> list[Frame]:
    frames = [Frame(entry.filename, entry.lineno or 0, entry.name) for entry in told.stack]
    half = MAX_FRAMES // 2
    for number, frame in enumerate(frames):
        if traceback is None:
            break
        if number < half or number >= len(frames) - half:
            frame.locals = _locals(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next
    return frames


def _locals(values: Any) -> dict[str, Node]:
    names = [name for name in list(values) if not (name.startswith("__") and name.endswith("__"))]
    shown = {name: Node(value_repr=_short(values[name])) for name in islice(names, MAX_LOCALS)}
    if len(names) > MAX_LOCALS:
        shown["..."] = Node(value_repr=f"and {len(names) - MAX_LOCALS:,} more")
    return shown


def _short(value: object) -> str:
    """Return a text of *value* in one line, whatever its class does when it is asked."""
    short = Repr()
    short.maxlevel = 3
    short.maxstring = short.maxother = short.maxlong = 200
    try:
        return " ".join(short.repr(value).split())
    except BaseException as problem:
        return f"<cannot be shown: {type(problem).__name__}>"


def _drawn(frames: list[Frame], style: TracebackStyle) -> list[str]:
    """Return the box of the frames, line by line."""
    file = StringIO()
    # Whatever terminal, notebook or variable there is: nothing but text, as wide as was asked.
    console = Console(file=file, width=style.width, color_system=None, force_terminal=False, force_jupyter=False)
    trace = Trace([Stack("", "", frames=frames)])
    console.print(
        Traceback(
            trace,
            width=style.width,
            extra_lines=style.extra_lines,
            show_locals=style.show_locals,
            max_frames=MAX_FRAMES,
            word_wrap=True,
        )
    )
    text = file.getvalue().rstrip()  # the last line is that of the exception, which is empty
    return [f"{line}\n" for line in text.split("\n")]
