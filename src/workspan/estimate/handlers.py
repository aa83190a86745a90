"""Handlers of log records that need nothing else: a bar for the terminal, a collector of warnings, a counter."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from workspan import config
from workspan.estimate.activation import current
from workspan.estimate.logs import LOGGER, seconds_text

if TYPE_CHECKING:
    from typing import Self

__all__ = ["CountedProgress", "ProgressBarHandler", "WarningCollector"]


class ProgressBarHandler(logging.Handler):
    """Show the running step as a bar, from the extras of its records alone.

    The bar is full when the step is complete and not before; it runs to and fro where nobody can say how long the step
    takes; a failed step empties it. On a stream that is no terminal each record is a line instead. Records of the
    remaining time come from another thread.

    Parameters
    ----------
    stream
        Where to draw; ``None``: stderr, as it is when the record comes.
    width
        Length of the bar, in characters.

    Examples
    --------
    >>> import logging
    >>> logger = logging.getLogger("workspan.progress")
    >>> logger.addHandler(ProgressBarHandler())
    >>> logger.setLevel(logging.INFO)
    """

    def __init__(self, stream: TextIO | None = None, *, width: int = 30, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.stream = stream
        self.width = width
        self._shown = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Draw what a record tells."""
        try:
            state = getattr(record, "workspan", None)
            stream = self.stream if self.stream is not None else sys.stderr
            if not isinstance(state, dict) or stream is None:
                return
            if not stream.isatty():
                stream.write(_ascii(record.getMessage(), stream) + "\n")
            elif not state.get("depth"):
                self._draw(stream, record, state)
            stream.flush()
        except Exception:
            self.handleError(record)

    def _draw(self, stream: TextIO, record: logging.LogRecord, state: dict[str, Any]) -> None:
        fraction, event = state.get("fraction"), state.get("event")
        if fraction is None and event not in ("failed",):
            at = int(4 * (state.get("elapsed") or 0.0)) % max(1, self.width - 3)
            bar = (" " * at + "<=>").ljust(self.width)
        else:
            bar = ("#" * int((fraction or 0.0) * self.width)).ljust(self.width)
        remaining: Any = getattr(record, "dt_rem", None)
        behind = {"complete": f"done in {seconds_text(state.get('elapsed') or 0.0)}", "failed": "failed"}.get(
            str(event), "" if remaining is None or fraction is None else f"{seconds_text(remaining)} left"
        )
        text = _ascii(f"{state.get('label')} [{bar}] {behind}", stream)
        stream.write("\r" + text.ljust(self._shown))
        self._shown = len(text)
        if event in ("complete", "failed"):
            stream.write("\n")
            self._shown = 0


def _ascii(text: str, stream: TextIO) -> str:
    """Return text that the stream has and that steers no terminal."""
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    encoding = getattr(stream, "encoding", None) or "ascii"
    with suppress(LookupError):
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text.encode("ascii", "backslashreplace").decode("ascii")


class CountedProgress:
    """Log how many of a known number of things are done, inside a step or without one.

    Parameters
    ----------
    start, end
        Fraction at the beginning and at the end: parts of a longer whole.
    n
        Number of things.

    Examples
    --------
    >>> counted = CountedProgress(n=2)
    >>> counted.report("first"), counted.report("second")
    (0.0, 0.5)
    """

    def __init__(self, start: float = 0.0, end: float = 1.0, n: int = 1) -> None:
        self._lock = threading.Lock()
        self.reset(start, end, n)

    def reset(self, start: float = 0.0, end: float = 1.0, n: int = 1) -> None:
        """Begin anew with the counter at 0."""
        with self._lock:
            self.start, self.end, self.n, self.count = float(start), float(end), max(int(n), 1), 0

    def report(self, message: str) -> float:
        """Log a message with count and fraction, add 1, and return the fraction that was logged."""
        with self._lock:
            count, n = self.count, self.n
            part = min(count / n, 1.0)
            fraction = self.start + (self.end - self.start) * part
            self.count += 1
        activation = current()
        extra = {
            "key": None if activation is None else activation.key,
            "dt_est": None if activation is None else activation.dt_est,
            "dt_rem": None if activation is None else activation.remaining,
            "workspan": {
                "event": "count",
                "id": None if activation is None else activation.id,
                "label": message,
                "count": count,
                "n": n,
                "fraction": fraction,
                "depth": 0 if activation is None else activation.depth + 1,
            },
        }
        LOGGER.log(
            config.get("logging.level"), "%s (%d of %d, %.0f %%)", message, count, n, 100 * fraction, extra=extra
        )
        return fraction


class WarningCollector(logging.Handler):
    """Keep the warnings of some loggers, so that a program can show them at its end.

    Parameters
    ----------
    *names
        Loggers; none: the root, which sees all that propagate.

    Examples
    --------
    >>> with WarningCollector("my.package") as warnings:
    ...     logging.getLogger("my.package").warning("%d of %d lost", 1, 2)
    >>> warnings.get()
    ['1 of 2 lost']
    """

    def __init__(self, *names: str, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self._messages: list[str] = []
        self._loggers = [logging.getLogger(name) for name in names or ("",)]

    def __enter__(self) -> Self:
        for logger in self._loggers:
            logger.addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of a record."""
        try:
            self._messages.append(record.getMessage())
        except Exception:
            self.handleError(record)

    def has(self) -> bool:
        """Whether there are any."""
        return bool(self._messages)

    def get(self) -> list[str]:
        """Return the messages so far."""
        return list(self._messages)

    def clear(self) -> None:
        """Forget them."""
        self._messages.clear()
