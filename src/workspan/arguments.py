"""Checks of arguments that several rooms share, so that they refuse in the same words."""

from __future__ import annotations

from typing import Any

from workspan.errors import ConfigurationError, UsageTypeError

__all__ = ["at_least"]


def at_least(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least *least*; *name* is the argument, for messages.

    Raises
    ------
    UsageTypeError
        It is no integer; a boolean is none.
    ConfigurationError
        It is smaller.

    Examples
    --------
    >>> at_least("max_workers", 2, 1)
    2
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageTypeError(f"{name}={value!r} is a {type(value).__name__}: pass an integer")
    if value < least:
        raise ConfigurationError(f"{name}={value} is too small: use {least} or more")
    return int(value)
