"""daisy's name for a command-line monitor; progress is an argument of the run now."""

from __future__ import annotations

from typing import Any


class CLMonitor:
    """Holds its server, and does nothing else.

    Parameters
    ----------
    server
        Kept as :attr:`server`.
    """

    def __init__(self, server: Any, *args: Any, **kwargs: Any) -> None:
        self.server = server
