"""What kind of stream this is, and writing to it whatever happens to it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from workspan.views.format import fit

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIGNS = "━✔✗∅▶±µ"
_DUMB = ("", "dumb", "unknown")


def encoding_of(stream: TextIO | None) -> str:
    """Return the encoding of a stream; ASCII if it does not say."""
    return getattr(stream, "encoding", None) or "ascii"


def emit(text: str, stream: TextIO | None) -> bool:
    """Write *text* and a line break, in characters that the stream has.

    Returns
    -------
    bool
        False if nobody reads it any more: the stream is missing, closed, or its reader is gone. That is no error.
    """
    if stream is None:
        return False
    try:
        write_line(text, stream)
    except (OSError, ValueError):  # ValueError: closed
        return False
    return True


def write_line(text: str, stream: TextIO) -> None:
    """Write *text* and a line break, in characters that the stream has, and see that they arrive."""
    stream.write(fit(text, encoding_of(stream)) + "\n")
    stream.flush()


def is_terminal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether *stream* is a terminal that can move its cursor and has the signs of a progress bar."""
    try:
        if stream is None or not stream.isatty() or environ.get("TERM", "").lower() in _DUMB:
            return False
        _SIGNS.encode(encoding_of(stream))
    except (AttributeError, ValueError, LookupError):  # no isatty, closed, cannot encode, unknown encoding
        return False
    return True


def columns_of(stream: TextIO | None) -> int | None:
    """Return the width of a terminal, in characters; ``None``: *stream* is none, and lines may be of any length."""
    try:
        if stream is None or not stream.isatty():
            return None
    except (AttributeError, ValueError):
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def in_notebook() -> bool:
    """Whether this is a notebook that can show a display which changes; loads nothing to find out."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if type(shell).__name__ != "ZMQInteractiveShell":
        return False
    from importlib.util import find_spec

    # Without it rich warns at every change.
    return find_spec("ipywidgets") is not None
