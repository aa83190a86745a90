"""Log records for viewers."""

from __future__ import annotations

import logging
from typing import Any

from workspan.live import outlet

__all__ = ["SocketHandler"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_SENT = (
    "name",
    "levelno",
    "levelname",
    "pathname",
    "filename",
    "module",
    "lineno",
    "funcName",
    "created",
    "msecs",
    "relativeCreated",
    "thread",
    "threadName",
    "process",
    "processName",
    "taskName",
)
_formatter = logging.Formatter()


class SocketHandler(logging.Handler):
    """Shows log records to viewers, which apply the format.

    A record is only queued, and only while somebody looks. Records of Workspan's own sending are left out.

    Parameters
    ----------
    name
        Name of the handler, by which ``workspan watch -n`` finds it.
    level
        Least level that is shown.
    fmt, datefmt
        Format of a line and of its time, as for ``logging.Formatter`` with ``%`` style.
    """

    def __init__(
        self,
        name: str = "log",
        level: int | str = logging.INFO,
        *,
        fmt: str = "%(asctime)s %(message)s",
        datefmt: str = "%Y-%m-%d %H:%M:%S",
    ) -> None:
        super().__init__(level)
        self.name = name
        self.fmt = fmt
        self.datefmt = datefmt
        outlet.register_snapshot(self._describe)

    def close(self) -> None:
        """Tell viewers no more of this handler."""
        outlet.unregister_snapshot(self._describe)
        super().close()

    def _describe(self) -> list[dict[str, Any]]:
        return [{"kind": "handler", "handler": self.name, "fmt": self.fmt, "datefmt": self.datefmt}]

    def emit(self, record: logging.LogRecord) -> None:
        """Queue *record*."""
        if not outlet.listening() or record.name.startswith(outlet.LOGGER_NAME) or outlet.in_sender():
            return
        try:
            sent: dict[str, Any] = {name: getattr(record, name, None) for name in _SENT}
            sent["message"] = record.getMessage()
            sent["exc_text"] = record.exc_text
            if record.exc_info and not record.exc_text:
                sent["exc_text"] = _formatter.formatException(record.exc_info)
            sent["stack_info"] = record.stack_info
            extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
            outlet.publish({"kind": "log", "handler": self.name, "record": sent, "extra": extra})
        except Exception:
            self.handleError(record)
