"""Frozen values that are written as strict JSON and read back unchanged.

The fields of a value, in order, are the keys of its JSON object, so that the object a run returns and the line that it
leaves on disk cannot drift apart. ``null`` stands for what was not measured and for NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from workspan.errors import InvalidMetadataError
from workspan.measure.stats import Stat

_Layout = tuple[tuple[str, str, Any, bool], ...]


class Value:
    """Base of frozen dataclasses with a JSON form. A field's key is its name, or ``metadata["key"]``."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain objects that ``json.dumps(..., allow_nan=False)`` accepts."""
        return {key: _encode(getattr(self, name)) for name, key, _, _ in _layout(type(self))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild the value from :meth:`to_json`'s result; unknown keys are ignored.

        Raises
        ------
        InvalidMetadataError
            A key is missing or holds something else than it should.
        """
        return _decode(cls, data, cls.__name__)  # type: ignore[no-any-return]

    def _repr_html_(self) -> str | None:
        return as_html(self)


def _no_html(value: Value) -> str | None:
    return None


as_html: Callable[[Value], str | None] = _no_html
"""Shows a value in a notebook; ``None``: as text. The rooms behind this one put their views here."""

_layouts: dict[type[Value], _Layout] = {}


def _layout(cls: type[Value]) -> _Layout:
    """Name, key, type and optionality of the fields of *cls*."""
    found = _layouts.get(cls)
    if found is None:
        hints = get_type_hints(cls)
        found = _layouts[cls] = tuple(
            (
                field.name,
                field.metadata.get("key", field.name),
                hints[field.name],
                field.default is not MISSING or field.default_factory is not MISSING,
            )
            for field in fields(cls)  # type: ignore[arg-type]
        )
    return found


def _encode(value: Any) -> Any:
    if isinstance(value, Value | Stat):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _decode(kind: Any, value: Any, where: str) -> Any:
    """Return *value* as a *kind*; *where* names its place for the error."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None:
            return None
        (kind,) = (arg for arg in args if arg is not NoneType)
        return _decode(kind, value, where)
    if origin is tuple:
        return tuple(_decode(args[0], item, f"{where}[{n}]") for n, item in enumerate(check(value, list, where)))
    if origin is dict:
        return {key: _decode(args[1], item, f"{where}[{key!r}]") for key, item in check(value, dict, where).items()}
    if issubclass(kind, Value):
        return _decode_fields(kind, check(value, dict, where), where)
    if kind is Stat:
        try:
            return Stat.from_json(check(value, dict, where))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidMetadataError(f"{where} is not a Stat: {value!r}") from error
    if kind is float and type(value) is int:
        return float(value)
    return check(value, kind, where)


def _decode_fields(cls: type[Value], data: Mapping[str, Any], where: str) -> Value:
    found = {}
    for name, key, kind, optional in _layout(cls):
        if key in data:
            found[name] = _decode(kind, data[key], f"{where}.{key}")
        elif not optional:
            raise InvalidMetadataError(f"{where} has no key {key!r}: it was not written by Workspan, or is damaged")
    return cls(**found)


def check(value: Any, kind: type, where: str) -> Any:
    """Return *value* if it is a *kind*; bool is no int here, and no subclass will do."""
    if type(value) is not kind:
        raise InvalidMetadataError(f"{where} should be of type {kind.__name__}, not {value!r:.80}")
    return value
