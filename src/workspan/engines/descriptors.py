"""The operating system's limit of open files."""

from __future__ import annotations

from contextlib import suppress
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit


def make_room(wanted: int) -> None:
    """Raise this process's limit of open files to *wanted*, or as far as that is allowed, if it is lower."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft == RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):
        setrlimit(RLIMIT_NOFILE, (wanted if hard == RLIM_INFINITY else min(wanted, hard), hard))
