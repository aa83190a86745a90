"""The one place where steps meet those who watch them from other processes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from workspan.estimate.notices import guarded

__all__ = ["asked", "publish", "start"]

_live: Any = None


def _nobody() -> bool:
    return False


asked: Callable[[], bool] = _nobody
"""Whether anybody looks; read as an attribute of this module, as it changes with :func:`start`."""


def start(snapshot: Callable[[], list[dict[str, Any]]]) -> None:
    """Let viewers of this user look at the steps of this process; once per process, and never an error.

    Parameters
    ----------
    snapshot
        Returns the states of the steps that are active now, for a viewer that comes late.
    """
    global _live, asked
    if _live is None:
        with guarded("opening the process to viewers", "live"):
            live = import_module("workspan.live")
            live.register_snapshot(snapshot)
            live.start()
            _live, asked = live, live.listening


def publish(state: dict[str, Any]) -> None:
    """Send the state of a step to whoever looks."""
    with guarded("telling a viewer of a step", "publish"):
        _live.publish(state)
