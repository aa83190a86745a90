"""Lines to stdout and stderr that never stop a command.

A reader that went away (``| head``), a closed stdout and a terminal that knows only ASCII are ordinary: a line that
nobody can read is dropped, a character that the terminal lacks is spelled in others.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

from workspan.views.format import folded, many_lines
from workspan.views.terminal import columns_of, write_line


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


def finish() -> bool:
    """Flush both streams, so that the interpreter has nothing left to fail on when it ends.

    Returns
    -------
    bool
        False if a disk was too full for something that was printed.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                _lost(stream, error)
    lost, _full[:] = list(_full), []
    return not lost


_full: list[OSError] = []
"""What a full disk said about lines of this command."""


def _write(stream: TextIO | None, text: str) -> None:
    # Lines quote what a user typed: control characters in it must not steer the terminal.
    if stream is not None:
        try:
            write_line(many_lines(text), stream)
        except (OSError, ValueError) as error:
            _lost(stream, error)


def _lost(stream: TextIO, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _full.append(error)
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
