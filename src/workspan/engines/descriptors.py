"""How many files and sockets this process may have open."""

from __future__ import annotations

from contextlib import suppress
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

SPARE = 100
"""Descriptors left for everything else in this program."""


def make_room(wanted: int) -> bool:
    """Raise the limit of open files if it does not reach to *wanted* and the operating system allows it.

    Returns
    -------
    bool
        Whether it was raised.
    """
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft in (RLIM_INFINITY, hard) or soft >= wanted:
        return False
    with suppress(OSError, ValueError):
        setrlimit(RLIMIT_NOFILE, (hard if hard != RLIM_INFINITY else 2 * wanted, hard))
        return True
    return False
