"""Looking at a running program from another terminal."""

from workspan.live.handler import SocketHandler, set_up
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
