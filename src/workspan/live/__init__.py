"""Looking at a running program from another terminal."""

from workspan.live.handler import SocketHandler
from workspan.live.outlet import listening, publish, register_snapshot, start, stop, unregister_snapshot

__all__ = [
    "SocketHandler",
    "listening",
    "publish",
    "register_snapshot",
    "start",
    "stop",
    "unregister_snapshot",
]
