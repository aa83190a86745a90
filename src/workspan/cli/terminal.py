"""Lines to stdout and stderr that never stop a run.

A reader that went away (``| head``), a closed stdout and a terminal that knows only ASCII are ordinary: a line that
nobody can read is dropped, a character that the terminal lacks is replaced.
"""

from __future__ import annotations

import os
import sys
from typing import IO

_ASCII = str.maketrans(
    {"±": "+/-", "µ": "u", "∠": "/", "✔": "ok", "✗": "x", "∅": "-", "…": "...", "–": "-", "·": "-", "×": "x"}
)


def say(text: str = "") -> None:
    """Print a line to stdout."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Print a line to stderr."""
    _write(sys.stderr, text)


def finish() -> None:
    """Flush both streams, so that the interpreter has nothing left to fail on when it ends."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                _mute(stream)


def printable(text: str, encoding: str) -> str:
    """Replace what *encoding* cannot express in *text*."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def _write(stream: IO[str] | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(printable(text, getattr(stream, "encoding", None) or "utf-8") + "\n")
        stream.flush()
    except (OSError, ValueError):
        _mute(stream)


def _mute(stream: IO[str]) -> None:
    """Send what is still buffered in *stream*, and everything after, to nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
    except (OSError, ValueError):
        pass
