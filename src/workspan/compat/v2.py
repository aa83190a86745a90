"""The names of daisy 2 without its 1.x spellings: old keywords are refused.

>>> from workspan import v2
>>> v2.Task("t", None, None, None, num_workers=2)
Traceback (most recent call last):
    ...
workspan.errors.UsageTypeError: Task() takes no num_workers in workspan.v2: use max_workers
"""

from __future__ import annotations

from typing import Any

from workspan.compat import v1_compat
from workspan.compat.v1_compat import *  # noqa: F403
from workspan.errors import UsageTypeError
from workspan.run import task

_OLD = {
    "num_workers": "max_workers",
    "upstream_tasks": "Pipeline(tasks, edges) or a + b",
    "done_marker_path": "tracking_path",
}

__all__ = v1_compat.__all__


class Task(task.Task):  # type: ignore[no-redef]  # replaces the lenient one on purpose
    """A :class:`workspan.Task` that refuses daisy's 1.x keywords.

    Raises
    ------
    UsageTypeError
        ``num_workers``, ``upstream_tasks`` or ``done_marker_path`` was given.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for old, new in _OLD.items():
            if old in kwargs:
                raise UsageTypeError(f"Task() takes no {old} in workspan.v2: use {new}")
        super().__init__(*args, **kwargs)
