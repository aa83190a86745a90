"""Faults that must not stop the timed code: told once per cause, on the logger ``workspan.estimate``."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from workspan import config

__all__ = ["LOGGER", "forget", "guarded", "warn_once"]

LOGGER = logging.getLogger("workspan.estimate")

_told: set[Hashable] = set()


def warn_once(cause: Hashable, message: str, *values: object) -> None:
    """Log a warning, unless one of the same cause was logged by this process before."""
    if cause in _told:
        return
    _told.add(cause)
    try:
        LOGGER.warning(message, *values)
    except Exception:
        if strict():
            raise


def forget() -> None:
    """Tell everything again, for tests."""
    _told.clear()


def strict() -> bool:
    """Whether faults are to be raised."""
    return bool(config.get("timing.strict"))


@contextmanager
def guarded(what: str, cause: Hashable) -> Iterator[None]:
    """Keep any exception of the block from the timed code, and tell of it once; with ``timing.strict`` raise it."""
    try:
        yield
    except Exception as error:
        if strict():
            raise
        warn_once((cause, type(error)), "%s failed: %s: %s", what, type(error).__name__, error)
