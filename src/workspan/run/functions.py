"""What kind of callable a task was given, and whether it still is the same."""

from __future__ import annotations

import inspect
import sys
from functools import partial
from hashlib import blake2b
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.store.meta import VERSION_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Kind = Literal["block", "worker"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def function_kind(function: Callable[..., Any]) -> Kind:
    """Tell a block function ``f(block)`` from a worker function ``f()``.

    Positional parameters are counted after binding, those with a default included; ``*args``, ``**kwargs`` and
    keyword-only parameters are not. A callable whose signature cannot be read is a block function.

    Raises
    ------
    UsageTypeError
        *function* is not callable.
    ConfigurationError
        It needs more than one positional argument.
    """
    if not callable(function):
        raise UsageTypeError(f"process_function={function!r} is not callable: pass a function of one block")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "block"
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = [p.name for p in positional if p.default is inspect.Parameter.empty]
    if len(required) > 1:
        raise ConfigurationError(
            f"process_function {function_name(function)!r} needs {len(required)} arguments ({', '.join(required)}): a "
            "block function takes one, the block; bind the others with functools.partial or give them defaults"
        )
    return "block" if positional else "worker"


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a worker function wants the context of its client, as the keyword-only parameter ``context``."""
    try:
        parameter = inspect.signature(function).parameters.get("context")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY


def function_name(function: Callable[..., Any]) -> str:
    """Return a name for messages, whatever kind of callable it is."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__


def function_fingerprint(function: Callable[..., Any]) -> str | None:
    """Return a short text that stays the same as long as a function does, in this version of Python.

    It is the name, a hash and the version. The hash is over the code with its constants, names and inner functions,
    over default values and what the function was bound to (closures, ``functools.partial``, the fields of a callable
    object), so that a changed parameter counts as well. Neither addresses nor line numbers go in, nor the name of the
    source file. What a run may change (lists, dicts, arrays) or nobody can compare (open files) counts with its type
    alone. Functions that it calls by name are not looked at.

    Parameters
    ----------
    function
        Any callable.

    Returns
    -------
    str | None
        ``None``: the object does not let itself be looked at.
    """
    try:
        name, digest = function_name(function), _digest(function, [], has_fields=True)
    except Exception:  # properties of user objects may raise whatever they like
        return None
    return f"{name} {digest.hex()[:16]}{VERSION_MARK}{sys.implementation.cache_tag}"


_MOST_ITEMS = 10_000
_CODE = ("co_code", "co_consts", "co_names", "co_exceptiontable", "co_flags", "co_argcount", "co_kwonlyargcount")


def _digest(value: Any, path: list[int], *, has_fields: bool = False) -> bytes:
    """Hash *value*, to which *path* leads; the fields of an object count if it *has fields* to look at."""
    if id(value) in path:  # a function whose closure holds itself
        return _hash("again", len(path) - path.index(id(value)))
    path = [*path, id(value)]
    kind = type(value)

    def all_of(parts: Iterable[Any]) -> list[bytes]:
        return [_digest(part, path) for part in parts]

    if isinstance(value, bytes):
        return _hash("bytes", value)
    if value is None or value is Ellipsis or kind in (bool, int, float, complex, str):
        return _hash(kind.__name__, repr(value))
    if kind in (tuple, frozenset):
        if len(value) > _MOST_ITEMS:
            return _hash(kind.__name__, len(value))
        parts = all_of(value)  # sorted, since the order of a set is that of hashes, which no two processes share
        return _hash(kind.__name__, *(parts if kind is tuple else sorted(parts)))
    if isinstance(value, CodeType):
        return _hash("code", *all_of(getattr(value, name) for name in _CODE), len(value.co_freevars))
    if isinstance(value, FunctionType):
        bound = [value.__defaults__, *map(_content, value.__closure__ or ())]
        return _hash(
            "function", value.__qualname__, *all_of([value.__code__, *bound]), _named(value.__kwdefaults__, path)
        )
    if isinstance(value, MethodType):
        return _hash("method", _digest(value.__func__, path), _digest(value.__self__, path, has_fields=True))
    if isinstance(value, partial):
        return _hash("partial", *all_of([value.func, value.args]), _named(value.keywords, path))
    if callable(wrapped := getattr(value, "__wrapped__", None)):  # functools.cache and the like
        return _hash("wrapper", kind.__qualname__, _digest(wrapped, path))
    if isinstance(value, PurePath):
        return _hash("path", str(value))
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    call = inspect.getattr_static(kind, "__call__", None)
    code = _digest(call, path) if isinstance(call, FunctionType) else b""
    return _hash(
        "object", kind.__qualname__, str(name), code, _named(getattr(value, "__dict__", None), path, has_fields)
    )


def _named(values: Mapping[str, Any] | None, path: list[int], is_told: bool = True) -> bytes:
    """Hash values by name, whatever their order."""
    items = sorted(values.items()) if values and is_told else []
    return _hash("named", *(part for name, value in items for part in (name, _digest(value, path))))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return None


def _hash(kind: str, *parts: str | bytes | int) -> bytes:
    """Hash a tagged sequence; parts are told apart by their length."""
    out = blake2b(kind.encode(), digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        out.update(len(data).to_bytes(8, "little") + data)
    return out.digest()
