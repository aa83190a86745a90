"""Looking at a running program from another terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.live.outlet import listening, publish, register_snapshot, start, stop, unregister_snapshot

__all__ = [
    "SocketHandler",
    "listening",
    "publish",
    "register_snapshot",
    "set_up",
    "start",
    "stop",
    "unregister_snapshot",
]

if TYPE_CHECKING:
    from workspan.live.handler import SocketHandler, set_up


def __getattr__(name: str) -> Any:
    if name not in ("SocketHandler", "set_up"):
        raise AttributeError(f"module 'workspan.live' has no attribute {name!r}")
    from workspan.live import handler  # loaded when asked for: every run opens its process, few send log records

    return getattr(handler, name)
