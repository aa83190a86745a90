"""The user's functions of a dataset: what they are called, how they travel, and that a class is made once a worker."""

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from workspan.engines.payload import load_function, pack_function
from workspan.errors import UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UserFunction", "name_of"]


def name_of(function: Any) -> str:
    """Return a name for people that is the same in every process: never one with an address.

    Examples
    --------
    >>> name_of(len), name_of("".join), name_of(partial(sorted, reverse=True)), name_of(str)
    ('len', 'str.join', 'sorted', 'str')
    """
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", None)
    if owner is not None and name is not None and type(owner).__name__ != "module":
        return f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{name}"
    return str(name if name is not None else type(function).__name__)


class UserFunction:
    """A function of the user's, or a class whose instances are called.

    Parameters
    ----------
    function
        A callable, or a class.
    operator
        Name of the method that it was given to, for messages.
    arguments, keywords
        What the class is constructed with.

    Notes
    -----
    An instance is made at the first use in each process, and is not sent: what a class loads, it loads once a worker.
    """

    def __init__(
        self,
        function: Any,
        operator: str,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> None:
        if not callable(function):
            raise UsageTypeError(
                f"{operator}({function!r}): a {type(function).__name__} is not callable; pass a function or a class"
            )
        called = function.__call__ if isinstance(function, type) else function
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise UsageTypeError(
                f"{operator}({name_of(function)}): it is asynchronous, and nobody would await it: pass a function that "
                "calls asyncio.run"
            )
        self.function = function
        self.operator = operator
        self.arguments = tuple(arguments)
        self.keywords = dict(keywords or {})
        self.stateful = isinstance(function, type)
        if not self.stateful and (self.arguments or self.keywords):
            raise UsageTypeError(
                f"{operator}({self.name}, constructor_args=...): only a class is constructed; bind the arguments of a "
                "function with functools.partial"
            )
        if self.stateful and "__call__" not in dir(function):
            raise UsageTypeError(
                f"{operator}({self.name}): instances of {self.name} are not callable: give it __call__"
            )
        self.setup_seconds: float | None = None
        """What constructing the instance of this process took, in seconds; ``None``: it was not, or is no class."""
        self._ready: Callable[..., Any] | None = None if self.stateful else function

    @property
    def name(self) -> str:
        """What it is called."""
        return name_of(self.function)

    def ready(self) -> Callable[..., Any]:
        """Return what is called, constructed if it has to be."""
        if self._ready is None:
            begin = time.perf_counter()
            self._ready = self.function(*self.arguments, **self.keywords)
            self.setup_seconds = time.perf_counter() - begin
        assert self._ready is not None
        return self._ready

    def forget(self) -> None:
        """Drop the instance: the next run makes its own."""
        if self.stateful:
            self._ready = None
            self.setup_seconds = None

    def __reduce__(self) -> Any:
        # Each by itself: when a task is packed, only the home of its outermost callable is looked at.
        rest = partial(_parts, self.arguments, self.keywords)
        return _rebuilt, (
            pack_function(self.operator, self.function),
            self.operator,
            pack_function(self.operator, rest),
        )


def _parts(*parts: Any) -> tuple[Any, ...]:
    return parts


def _rebuilt(function: bytes, operator: str, rest: bytes) -> UserFunction:
    return UserFunction(load_function(function), operator, *load_function(rest)())
