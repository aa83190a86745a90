"""What a task's arguments must be."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from datetime import timedelta
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "check_amounts",
    "checked_id",
    "checked_tracking",
    "deprecated",
    "either",
    "ints",
    "timeout_seconds",
]

DEFAULT_TIMEOUT_SECONDS = 600.0
_SEPARATORS = ("/", "\\", "\0", "\n", "\r")
_LONGEST_ID = 200


def checked_id(task_id: Any) -> str:
    """Return *task_id* if it can name a folder."""
    if not isinstance(task_id, str):
        raise UsageTypeError(f"task_id={task_id!r} is a {type(task_id).__name__}: pass a string")
    rule = None
    if not task_id.strip() or task_id in (".", ".."):
        rule = "it must not be empty, '.' or '..'"
    elif any(c in task_id for c in _SEPARATORS) or any(ord(c) < 32 or ord(c) == 127 for c in task_id):
        rule = "it must not contain '/', '\\' or control characters"
    elif len(task_id.encode("utf-8", "replace")) > _LONGEST_ID:
        rule = f"it must not be longer than {_LONGEST_ID} bytes"
    elif any(0xD800 <= ord(c) <= 0xDFFF for c in task_id):
        rule = "it must be encodable as UTF-8"
    if rule:
        raise ConfigurationError(f"task_id={task_id[:40]!r} cannot name a folder: {rule}")
    return task_id


def ints(values: Iterable[Any], name: str) -> tuple[int, ...]:
    """Return *values* as whole numbers; *name* is the argument."""
    out = []
    for value in values:
        if value is None or int(value) != value:
            raise ConfigurationError(f"{name}={tuple(values)} is not a tuple of integers: give a bounded ROI")
        out.append(int(value))
    return tuple(out)


def either(name: str, value: Any, old_name: str, old: Any) -> Any:
    """Return the value of an argument that has a name of daisy 1.x too."""
    if old is None:
        return value
    if value is not None:
        raise UsageTypeError(f"{name}={value!r} and {old_name}={old!r} are the same argument: pass {name} only")
    deprecated(old_name, name)
    return old


def deprecated(old: str, new: str) -> None:
    """Warn, at the line that made the task, that *old* is daisy 1.x's name of *new*."""
    # Points at the line that made the task: this function, __init__ or its helper, the caller.
    warnings.warn(
        f"{old} is daisy 1.x's spelling; use {new}",
        DeprecationWarning,
        stacklevel=4 if old != "upstream_tasks" else 3,
    )


def check_amounts(name: str, amounts: Any) -> None:
    """Refuse what is no mapping of names to whole numbers; *name* is the argument.

    Raises
    ------
    UsageTypeError
        Naming the argument and the value.
    """
    if not isinstance(amounts, Mapping):
        raise UsageTypeError(f"{name}={amounts!r} is a {type(amounts).__name__}: pass a dict, name -> amount")
    for key, amount in amounts.items():
        if isinstance(amount, bool) or not hasattr(amount, "__index__"):
            raise UsageTypeError(f"{name}[{key!r}]={amount!r} is a {type(amount).__name__}: pass a whole number")


def timeout_seconds(timeout: Any) -> float:
    """Return a deadline in seconds."""
    if timeout is None:
        return DEFAULT_TIMEOUT_SECONDS
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise UsageTypeError(f"timeout={timeout!r} is a {type(timeout).__name__}: pass seconds or a timedelta")
    if isnan(timeout) or timeout <= 0:
        raise ConfigurationError(f"timeout={timeout} is not positive: pass seconds, or inf for no deadline")
    return inf if timeout == inf else float(timeout)


def checked_tracking(path: Any) -> Any:
    """Return *path* as a path, ``None`` or ``False``."""
    if path is None or path is False:
        return path
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    raise UsageTypeError(f"tracking_path={path!r} is a {type(path).__name__}: pass a folder, None or False")
