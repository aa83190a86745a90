"""Lines to stdout and stderr that never stop a command.

A reader that went away (``| head``), a closed stdout and a terminal that knows only ASCII are ordinary: a line that
nobody can read is dropped, a character that the terminal lacks is spelled in others.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from workspan.views.format import folded, many_lines
from workspan.views.terminal import columns_of, emit


def say(text: str = "") -> None:
    """Print a line, or some, to stdout."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Print a line, or some, to stderr; a line alone is broken at spaces where the terminal ends."""
    if "\n" not in text:
        text = "\n".join(folded(text, columns_of(sys.stderr)))
    _write(sys.stderr, text)


def remark(text: str) -> None:
    """Print a sentence to stdout, broken at spaces where the terminal ends."""
    say("\n".join(folded(text, columns_of(sys.stdout))))


def finish() -> None:
    """Flush both streams, so that the interpreter has nothing left to fail on when it ends."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                _mute(stream)


def _write(stream: TextIO | None, text: str) -> None:
    # Lines quote what a user typed: control characters in it must not steer the terminal.
    if not emit(many_lines(text), stream) and stream is not None:
        _mute(stream)


def _mute(stream: TextIO) -> None:
    """Send what is still buffered in *stream*, and everything after, to nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
    except (OSError, ValueError):
        pass
