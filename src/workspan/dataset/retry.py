"""When something is tried again, and how long to wait before."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from workspan.errors import UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["back_off", "checked_patterns", "may_retry"]

_LONGEST_SECONDS = 32.0


def checked_patterns(given: Any, name: str) -> bool | tuple[str, ...]:
    """Return which errors are tried again: all, none, or those whose text has one of some patterns.

    Raises
    ------
    UsageTypeError
        A pattern is no text.
    """
    if isinstance(given, bool):
        return given
    listed = (given,) if isinstance(given, (str, type)) or not isinstance(given, Iterable) else tuple(given)
    for pattern in listed:
        if not isinstance(pattern, str):
            shown = pattern.__name__ if isinstance(pattern, type) else "the text of the error"
            raise UsageTypeError(
                f"{name}={given!r}: {pattern!r} is no text: errors are told by a part of their type or text, {shown!r} "
                "for example, or True for all"
            )
    return listed


def may_retry(error: BaseException, patterns: bool | tuple[str, ...]) -> bool:
    """Whether an error is one of those that are tried again."""
    if isinstance(patterns, bool):
        return patterns
    texts = [f"{type(e).__name__}: {e}" for e in (error, error.__cause__) if e is not None]
    return any(_matches(pattern, text) for pattern in patterns for text in texts)


def _matches(pattern: str, text: str) -> bool:
    if pattern in text:
        return True
    with suppress(re.error):
        return re.search(pattern, text) is not None
    return False


def back_off(attempt: int, sleep: Callable[[float], object] = time.sleep) -> None:
    """Wait before another attempt: up to 2, 4, 8, ... 32 s, by chance, so that many tasks do not come back at once.

    Parameters
    ----------
    attempt
        Number of the attempt that failed, from 1.
    sleep
        Waits so many seconds.
    """
    sleep(random.uniform(0.0, min(2.0**attempt, _LONGEST_SECONDS)))
