"""What a worker wrote down of an exception, as the exception that the caller gets. Nothing is unpickled."""

from __future__ import annotations

from typing import Any

from workspan.errors import DataError, MapError

__all__ = ["map_error"]

_KINDS: dict[type, type[MapError]] = {}


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
