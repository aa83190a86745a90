"""Send this process's two output streams to files, for Python, for C code and for child processes."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_STREAMS = (("stdout", 1, "out"), ("stderr", 2, "err"))


def redirect(basename: Path, *, empty: bool) -> None:
    """Send descriptors 1 and 2, and ``sys.stdout`` and ``sys.stderr``, to ``<basename>.out`` and ``.err``.

    Parameters
    ----------
    basename
        Path of the files without their suffix. Its folder is made.
    empty
        Whether the files are emptied first.

    Raises
    ------
    OSError
        A file cannot be opened; nothing is redirected then.
    """
    basename.parent.mkdir(parents=True, exist_ok=True)
    for name, _, _ in _STREAMS:
        with suppress(Exception):  # what is not written yet belongs to where it was printed
            getattr(sys, name).flush()
    opened: list[int] = []
    try:
        for _, _, suffix in _STREAMS:
            opened.append(_open(basename.with_name(f"{basename.name}.{suffix}"), os.O_TRUNC if empty else 0))
        for (name, target, _), descriptor in zip(_STREAMS, opened, strict=True):
            os.dup2(descriptor, target)
            _attach(name, target)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open(path: Path, flags: int) -> int:
    # Appending, even to a file that was emptied: several processes may share it.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
    if descriptor > 2:
        return descriptor
    try:  # one of the streams is closed; its number is not for us to keep
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def _attach(name: str, target: int) -> None:
    """Have ``sys.<name>`` write to descriptor *target*, a line at a time."""
    stream = getattr(sys, name)
    try:
        if isinstance(stream, TextIOWrapper) and stream.fileno() == target:
            stream.reconfigure(line_buffering=True)
            return
    except (OSError, ValueError):  # a stand-in without a descriptor, or closed
        pass
    setattr(sys, name, os.fdopen(target, "w", buffering=1, errors="backslashreplace", closefd=False))
