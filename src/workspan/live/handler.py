"""Log records for viewers."""

from __future__ import annotations

import logging
import re
from typing import Any

from workspan import config
from workspan.errors import ConfigurationError
from workspan.live import outlet

__all__ = ["SocketHandler", "line_of", "set_up"]

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
_FIELD = re.compile(r"%\([A-Za-z_]+\)[-#0 +]{0,5}\d{0,3}(\.\d{1,3})?[sdfrxX]|%%|[^%]")
_MOST_FORMAT = 1000


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
        if not outlet.listening() or str(record.name).startswith(outlet.LOGGER_NAME) or outlet.in_sender():
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


def line_of(frame: dict[str, Any], fmt: object, datefmt: object) -> str:
    """Return the text of a log frame as a handler's format wants it.

    A format is data from another process like the rest: one that is not plain, or that does not suit the record, gives
    way to the message alone.

    Parameters
    ----------
    frame
        Of the kind ``log``.
    fmt, datefmt
        From a frame of the kind ``handler``, or ``None``.
    """
    sent = frame.get("record")
    sent = sent if isinstance(sent, dict) else {}
    extra = frame.get("extra")
    fields = {name: value for name, value in sent.items() if name in _SENT and isinstance(value, (str, int, float))}
    message = str(sent.get("message", ""))
    if isinstance(extra, dict):
        fields = {**{name: value for name, value in extra.items() if name not in _STANDARD}, **fields}
    record = logging.makeLogRecord({**fields, "msg": message, "args": None})
    for name in ("exc_text", "stack_info"):
        text = sent.get(name)
        setattr(record, name, text if isinstance(text, str) else None)
    try:
        return _format(fmt, datefmt).format(record)
    except Exception:
        return message


def _format(fmt: object, datefmt: object) -> logging.Formatter:
    if not isinstance(fmt, str) or len(fmt) > _MOST_FORMAT or _FIELD.sub("", fmt):
        fmt = "%(message)s"
    return logging.Formatter(fmt, datefmt if isinstance(datefmt, str) and len(datefmt) <= _MOST_FORMAT else None)


_set_up: dict[str, tuple[dict[str, Any], SocketHandler]] = {}


def set_up() -> None:
    """Attach the log handlers of the setting ``live.handlers`` to their loggers, and let viewers connect.

    Once is enough; after a change of the setting another call brings the handlers in line with it.

    Raises
    ------
    ConfigurationError
        A level is not known.
    """
    wanted: dict[str, dict[str, Any]] = config.get("live.handlers")
    for name, (options, handler) in list(_set_up.items()):
        if wanted.get(name) != options:
            for logger in options["loggers"]:
                logging.getLogger(logger).removeHandler(handler)
            handler.close()
            del _set_up[name]
    for name, options in wanted.items():
        if name in _set_up:
            continue
        try:
            handler = SocketHandler(name, options["level"], fmt=options["format"], datefmt=options["datefmt"])
        except ValueError as error:
            raise ConfigurationError(f"live.handlers: {name!r} has no level that logging knows: {error}") from None
        for logger in options["loggers"]:
            logging.getLogger(logger).addHandler(handler)
        _set_up[name] = options, handler
    outlet.start()
