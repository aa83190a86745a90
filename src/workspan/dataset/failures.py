"""What a worker writes down of an exception, and the exception that the caller gets of that. Nothing is pickled."""

from __future__ import annotations

from typing import Any

from workspan.engines.failure import failure_text, is_refusal
from workspan.errors import DataError, MapError

__all__ = ["map_error", "written_down"]

_KINDS: dict[type, type[MapError]] = {}


def written_down(error: BaseException) -> bytes:
    """Return type, text, traceback and builtin bases of an exception: whatever it is, it does not get in the way."""
    import msgspec

    text = _text(error)
    notes = "; ".join(map(str, getattr(error, "__notes__", ())))
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    if isinstance(error, DataError):
        kinds.insert(0, "DataError")
    trace = "" if is_refusal(error) else failure_text(error)
    parts = (type(error).__name__, f"{text} ({notes})" if notes else text, trace)
    return msgspec.msgpack.encode((*map(_writable, parts), kinds))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:
        return f"<its text could not be made: {type(other).__name__}>"


def _writable(text: str) -> str:
    """Return a text without the halves of signs that no file can hold."""
    return text.encode(errors="backslashreplace").decode()


def map_error(data: bytes, count: int) -> MapError:
    """Return the error that a worker wrote down; it is also an instance of the builtin type that was raised."""
    import builtins

    import msgspec

    type_name, text, told, kinds = msgspec.msgpack.decode(data)
    more = f" ({count - 1} other tasks failed too)" if count > 1 else ""
    for name in kinds:
        kind = DataError if name == "DataError" else getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (Exception, RuntimeError):
            return _kind_of(kind)(type_name, text + more, told)
    return MapError(type_name, text + more, told)


def _kind_of(kind: type[Exception]) -> type[MapError]:
    found = _KINDS.get(kind)
    if found is None:
        try:
            found = type(
                "MapError",
                (MapError, kind),
                {"__module__": MapError.__module__, "__str__": MapError.__str__, "__reduce__": _reduced},
            )
            found("", "", "")
        except TypeError:  # layouts that do not go together, or a constructor that wants other arguments
            found = MapError
        _KINDS[kind] = found
    return found


def _reduced(self: MapError) -> Any:
    kind = next(base for base in type(self).__bases__ if base is not MapError)
    return _rebuilt, (kind, self.type_name, self.text, self.traceback_text)


def _rebuilt(kind: type[Exception], type_name: str, text: str, told: str) -> MapError:
    return _kind_of(kind)(type_name, text, told)
