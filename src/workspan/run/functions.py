"""What kind of callable a task was given."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

from workspan.errors import ConfigurationError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

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
