"""The script of a job, and Slurm's way to write times."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from math import ceil, isfinite
from typing import TYPE_CHECKING

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["leave_seconds", "limit_seconds", "limit_text", "script"]

MOST_LEAVE_SECONDS = 120
SHARE = 0.1
"""Of the time limit, that a worker leaves before."""

_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?\Z")


def limit_seconds(time: str | float | timedelta | None) -> float | None:
    """Return a time limit in seconds; ``None`` without one.

    Parameters
    ----------
    time
        Slurm's spellings (``"90"`` and 90 are minutes, ``"1:30"`` minutes and seconds, ``"1:30:00"``, ``"1-12"``,
        ``"1-12:30"``, ``"1-12:30:00"``), ``"UNLIMITED"``, or a ``timedelta``.

    Raises
    ------
    ConfigurationError
        It is none of these, or not above 0.
    """
    if time is None:
        return None
    seconds: float | None = None
    if isinstance(time, timedelta):
        seconds = time.total_seconds()
    elif isinstance(time, str):
        if time.strip().upper() in ("UNLIMITED", "INFINITE"):
            return None
        found = _LIMIT.match(time.strip())
        if found is not None:
            parts = [int(part) for part in found.group("first", "second", "third") if part is not None]
            if found["days"] is not None:
                hours, minutes, rest = [*parts, 0, 0][:3]
                seconds = ((int(found["days"]) * 24 + hours) * 60 + minutes) * 60 + rest
            elif len(parts) == 3:
                seconds = (parts[0] * 60 + parts[1]) * 60 + parts[2]
            else:
                seconds = parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)
    elif type(time) in (int, float):
        seconds = time * 60.0
    if seconds is None or not isfinite(seconds) or seconds <= 0:
        raise ConfigurationError(f"time={time!r} is no time limit: use '01:00:00', minutes as a number, or a timedelta")
    return seconds


def limit_text(time: str | float | timedelta | None) -> str | None:
    """Return a time limit as ``sbatch`` takes it."""
    seconds = limit_seconds(time)
    if isinstance(time, str):
        return time.strip()
    if seconds is None:
        return None
    minutes, rest = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"


def leave_seconds(time: str | float | timedelta | None, asked: float | None) -> int:
    """Return how many seconds before its limit a worker is told to leave; 0: it is not told.

    Raises
    ------
    ConfigurationError
        *asked* is negative, no number, or not below the limit.
    """
    limit = limit_seconds(time)
    if asked is None:
        return 0 if limit is None else min(MOST_LEAVE_SECONDS, ceil(SHARE * limit))
    if type(asked) not in (int, float) or not isfinite(asked) or asked < 0:
        raise ConfigurationError(f"leave_seconds={asked!r} is not a number of seconds from 0 on")
    if limit is not None and asked >= limit:
        raise ConfigurationError(f"leave_seconds={asked!r} is not below the time limit of {limit:g} s")
    return ceil(asked)


def script(python: str, context: Path, setup: str) -> str:
    """Return the script of a job.

    The worker replaces the shell, so that Slurm's signals reach it. The secret is not in here: Slurm shows scripts to
    others.
    """
    lines = ["#!/bin/bash", *([setup.rstrip("\n")] if setup.strip() else [])]
    lines.append(f"exec {shlex.quote(python)} -m workspan worker --context {shlex.quote(str(context))}")
    return "\n".join(lines) + "\n"
