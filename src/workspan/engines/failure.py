"""The text of a failure: what a person reads of an exception, whatever the exception is made of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspan.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from traceback import TracebackException
    from types import TracebackType

MAX_BYTES = 8192
"""Longest text, in bytes of UTF-8."""

_NOTE_BYTES = 64
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class TracebackStyle:
    """How failures are told of. The numbers are checked by :func:`workspan.logging.set_traceback_style`."""

    name: str = "plain"
    """``"plain"``, as Python does it, or ``"rich"``, with source lines around each frame."""
    show_locals: bool = False
    """``"rich"`` only: show the local variables of each frame."""
    width: int = 100
    """``"rich"`` only: of the text, in characters."""
    extra_lines: int = 3
    """``"rich"`` only: source lines before and after the one that failed."""


_style = TracebackStyle()


def use_style(style: TracebackStyle) -> None:
    """Tell failures in this process in *style* from now on."""
    global _style
    _style = style


def style_in_use() -> TracebackStyle:
    """Return the style of this process."""
    return _style


def failure_text(error: BaseException) -> str:
    """Return the traceback of *error* from the user's first frame on, in the style in use, cut to ``MAX_BYTES``.

    A refusal (:func:`is_refusal`) is told in one line, as no frame adds to it. Never raises for an exception that
    cannot be printed: then the text says what could be found out. The last lines survive a cut, since they name the
    error.
    """
    try:
        if is_refusal(error):
            return cut([f"{_name(type(error))}: {error}\n"])
        # Imported here: a worker whose blocks succeed does without these modules.
        from traceback import TracebackException

        traceback = user_traceback(error.__traceback__)
        told = TracebackException(type(error), error, traceback, compact=True, max_group_depth=5)
        # A group is a tree of tracebacks, which the standard library draws better.
        if _style.name == "rich" and not isinstance(error, BaseExceptionGroup):
            text = _rich_text(told, error, traceback)
            if text is not None:
                return text
        return cut(told.format())
    except BaseException as problem:  # the exception's own code runs while it is printed
        return cut([f"{_name(type(error))}: <its text cannot be formatted: {_name(type(problem))}>\n"])


def _rich_text(told: TracebackException, error: BaseException, traceback: TracebackType | None) -> str | None:
    """Return the text in the rich style, or ``None`` if it cannot be made: then the plain one is."""
    try:
        from workspan.engines.pretty import pretty_lines

        return cut(pretty_lines(told, error, traceback, _style))
    except BaseException:  # rich is missing or broken, or was interrupted by what it prints
        return None


def failure_line(error: BaseException) -> str:
    """Return type and message of *error* in one line of at most 300 characters."""
    try:
        text = str(error)
    except BaseException:
        text = "<its text cannot be formatted>"
    line = " ".join(text[:2000].split())
    line = f"{_name(type(error))}: {line}" if line else _name(type(error))
    return _printable(line if len(line) <= 300 else f"{line[:297]}...")


def is_refusal(error: BaseException | None) -> bool:
    """Whether this package has refused what user code gave it, with a ``DataError`` that says all that there is to say.

    The same input gives the same refusal: it is not worth another attempt. One that user code was in between of, as it
    used this package itself, is none.
    """
    if not isinstance(error, DataError):
        return False
    traceback = error.__traceback__
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback is None


def user_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this package that lead to user code.

    A function of this package that is itself the user's function (as in the demo) keeps its frames.
    """
    first = traceback
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback if traceback is not None else _without_engine(first)


def cut(lines: Iterable[str], limit: int = MAX_BYTES) -> str:
    """Join *lines* (each with its line end) into a text of at most *limit* bytes that any stream can print.

    A single huge line keeps its beginning and its end; of many lines the last ones stay.
    """
    kept: deque[tuple[str, int]] = deque()
    room = limit - _NOTE_BYTES
    size = dropped = 0
    for line in lines:
        text = _shorten(line, room)
        kept.append((text, len(text.encode())))
        size += kept[-1][1]
        while size > room and len(kept) > 1:  # at once: a chain of causes may be endless
            gone, gone_bytes = kept.popleft()
            size -= gone_bytes
            dropped += max(1, gone.count("\n"))
    text = "".join(text for text, _ in kept).rstrip("\n")
    return f"... (the first {dropped:,} lines were cut)\n{text}" if dropped else text


def _shorten(text: str, limit: int) -> str:
    """Make *text* printable and cut its middle out if it takes more than *limit* bytes."""
    end = "\n" if text.endswith("\n") else ""
    for chars in (limit // 2, limit // 16):  # a character may take 8 bytes as an escape
        short = text
        if len(text) > chars:
            head = chars // 4
            tail = chars - head
            note = f" ... ({len(text) - chars:,} characters were cut) ... "
            short = text[:head] + note + text[len(text) - tail :].rstrip("\n") + end
        short = _printable(short)
        if len(short.encode()) <= limit:
            break
    return short


def _printable(text: str) -> str:
    """Replace lone surrogates by their escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _is_ours(traceback: TracebackType) -> bool:
    module = traceback.tb_frame.f_globals.get("__name__")
    return isinstance(module, str) and (module == _PACKAGE or module.startswith(f"{_PACKAGE}."))


def _without_engine(traceback: TracebackType | None) -> TracebackType | None:
    engines = __name__.rpartition(".")[0]
    while traceback is not None and str(traceback.tb_frame.f_globals.get("__name__")).startswith(f"{engines}."):
        traceback = traceback.tb_next
    return traceback


def _name(kind: type) -> str:
    try:
        return str(kind.__qualname__)
    except Exception:
        return "exception"
