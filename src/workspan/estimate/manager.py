"""``WallClockTime``: the one way to time a function, a method of a class or a stretch of code."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from workspan.errors import UsageError
from workspan.estimate import recorder as recorders
from workspan.estimate.activation import INERT
from workspan.estimate.keys import Key, Place, checked_name, claim, declared_module, key_of_frame, note_section
from workspan.estimate.steps import Declaration, check_order, check_size_function, kind_of, without_size
from workspan.estimate.wrappers import STEPS, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.estimate.activation import Activation

__all__ = ["WallClockTime", "time_subclasses"]

Target = TypeVar("Target")

_NO_ARGS: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
_sound: dict[int, Any] = {}  # N_refs of managers that were looked at, by the id of their code, which they keep alive


class WallClockTime:
    """Time a step, expect how long it takes from how long it took, and log how much is left.

    One object is a decorator of a function or class, or a context manager, also an asynchronous one.

    - ``@WallClockTime`` or ``@WallClockTime(N_ref=..., order="O_N")`` above a function or method of any kind: coroutine
      functions are timed from their first step to their end, generators while they run themselves.
    - ``@WallClockTime(method="cook", N_ref=...)`` above a class times that method, own or inherited.
    - ``with WallClockTime("load", N_ref=...):`` times the block, ``async with`` likewise. Each passes once.

    Nothing of it alters what the timed code returns or raises; faults of N_ref, of files and of log handlers are logged
    once and the work goes on. Where the setting ``timing.enabled`` is false, nothing is done at all.

    Parameters
    ----------
    step_name
        Name of the step; needed by a ``with`` block, and by the second of two timed methods of one class.
    method
        Name of the method to time, where a class is decorated.
    N_ref
        What the time depends on: a function that is called with the arguments of the call, before it, and returns a
        number from 0 on, or ``None`` where this run should be neither estimated nor recorded; for a class also the name
        of one of its methods; or a number. ``None``: the constant 1, which makes *order* ``"O_0"``.
    N_ref_args
        Arguments of *N_ref* for a ``with`` block: a tuple and a dict.
    N_ref_version
        Mixed into the fingerprint of *N_ref*: change it when the meaning of *N_ref* changes invisibly.
    order
        Computational order in which the time grows with *N_ref*: ``"O_0"``, ``"O_LOG_N"``, ``"O_N"``, ``"O_N_LOG_N"``,
        ``"O_N_2"``, ``"O_N_3"``, a function of a float, or ``"auto"``.
    enable_logging
        Whether the step is logged; ``None``: if the setting ``logging.roots`` names it. It is recorded in any case.
    variant
        Function of the arguments of *N_ref* that returns a short text or ``None``; each has measurements of its own.
    stacklevel
        1: the calling function names the step of a ``with`` block, 2: its caller, and so on.

    Raises
    ------
    UsageError
        The declaration cannot mean anything: at the decorated place or where the manager is made or entered.

    Examples
    --------
    >>> @WallClockTime(N_ref=len, order="O_N")
    ... def total(numbers):
    ...     with WallClockTime("sum", N_ref=len(numbers), order="O_N"):
    ...         return sum(numbers)
    """

    __slots__ = (
        "N_ref", "N_ref_args", "N_ref_version", "_activation", "_declaration", "_entered", "_place", "enable_logging",
        "key", "method", "order", "step_name", "variant",
    )  # fmt: skip

    def __new__(cls, step_name: Any = None, **options: Any) -> Any:
        """Make one, or decorate at once where it is used without brackets."""
        if step_name is None or isinstance(step_name, str):
            return super().__new__(cls)
        if callable(step_name) or isinstance(step_name, (staticmethod, classmethod)) or inspect.ismodule(step_name):
            return cls(None, **{"stacklevel": 2, **options})(step_name)
        raise UsageError(f"WallClockTime({step_name!r}): a step is named by text")

    def __init__(
        self,
        step_name: str | None = None,
        *,
        method: str | None = None,
        N_ref: Callable[..., Any] | str | float | None = None,
        N_ref_args: tuple[tuple[Any, ...], dict[str, Any]] = _NO_ARGS,
        N_ref_version: str | None = None,
        order: Any = "O_0",
        enable_logging: bool | None = None,
        variant: Callable[..., str | None] | None = None,
        stacklevel: int = 1,
    ) -> None:
        frame = sys._getframe(stacklevel)
        self._place = (frame.f_code.co_filename, frame.f_lineno)
        self.key = key_of_frame(frame, None if step_name is None else checked_name(step_name, "WallClockTime"))
        self.step_name = self.key.step_name
        self.method = method
        self.N_ref = N_ref
        self.N_ref_args = N_ref_args
        self.N_ref_version = N_ref_version
        self.order = check_order(order)
        self.enable_logging = enable_logging
        self.variant = variant
        self._entered = False
        self._activation: Any = None
        self._declaration: Declaration | None = None
        if variant is not None and not callable(variant):
            raise UsageError(f"{self}: variant={variant!r} is not callable")
        if N_ref is None:
            self.order = without_size(self.order, self)
        elif type(N_ref) is not float and type(N_ref) is not int:
            self._check(N_ref, method)

    def _check(self, N_ref: Any, method: str | None) -> None:
        if isinstance(N_ref, str):
            if method is None:
                raise UsageError(
                    f"{self}: N_ref={N_ref!r} names a method, which is for decorated classes with method=; "
                    "give the function itself"
                )
            return
        code = getattr(N_ref, "__code__", None)
        if code is None or _sound.get(id(code)) is not code:
            check_size_function(N_ref, str(self))
            if code is not None:
                _sound[id(code)] = code

    def __repr__(self) -> str:
        return f"WallClockTime({'' if self.step_name is None else repr(self.step_name)}) at {Place(*self._place)}"

    # -- as a context manager --

    def __enter__(self) -> Activation:
        """Begin the step."""
        if self._entered or self._declaration is not None:
            used = "entered before" if self._entered else "used as a decorator before"
            raise UsageError(f"{self} was {used}: make a new one for each pass")
        if self.step_name is None:
            raise UsageError(f"{self}: a with block needs a step name, as the function it is in may have several")
        if self.method is not None:
            raise UsageError(f"{self}: method={self.method!r} is for a decorated class, not for a with block")
        self._entered = True
        recorder = recorders._default or recorders.default_recorder()
        if not recorder.enabled:
            return INERT  # type: ignore[return-value]  # it answers the same questions
        note_section(self.key, self._place)
        declaration = Declaration(
            self.key, self.order, self.N_ref, self.N_ref_version, self.enable_logging, self.variant, is_section=True
        )
        args, kwargs = self.N_ref_args
        activation: Activation = recorder.begin(declaration, args, kwargs)
        self._activation = activation
        return activation

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """End the step; it is measured if the block ended well."""
        activation, self._activation = self._activation, None
        if activation is not None:
            activation.recorder.end(activation, error)

    async def __aenter__(self) -> Activation:
        """Begin the step."""
        return self.__enter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """End the step."""
        self.__exit__(kind, error, traceback)

    # -- as a decorator --

    def __call__(self, target: Target) -> Target:
        """Decorate a function, a method of any kind, or a class."""
        if self._entered:
            raise UsageError(f"{self} was entered before: make a new one to decorate {target!r}")
        if self.N_ref_args is not _NO_ARGS and self.N_ref_args != _NO_ARGS:
            raise UsageError(f"{self}: N_ref_args are for a with block; a decorated call has its own arguments")
        kind = kind_of(target)
        if kind == "class":
            decorated: Target = self._decorate_class(target)
            return decorated
        if kind not in ("function", "staticmethod", "classmethod"):
            raise UsageError(f"{self}: a {kind} cannot be timed; decorate a function, a method or a class")
        if self.method is not None:
            raise UsageError(f"{self}: method={self.method!r} is for a decorated class, and this is a {kind}")
        function: Any = getattr(target, "__func__", target)
        key = Key(declared_module(function), function.__qualname__, self.step_name)
        _refuse_timed(function, key, str(self))
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = Place(*self._place) if code is None else Place(code.co_filename, code.co_firstlineno)
        declaration = self._declare(key, self.N_ref, function)
        claim(key, place)
        wrapped = wrap(function, declaration)
        return wrapped if function is target else type(target)(wrapped)  # type: ignore[call-arg]

    def _decorate_class(self, cls: Any) -> Any:
        name = self.method
        if name is None:
            raise UsageError(f"{self}: a decorated class needs method=, the name of the method to time")
        function, kind = _method(cls, name, "method", str(self))
        key = Key(declared_module(cls), cls.__qualname__, self.step_name)
        _refuse_timed(function, key, str(self), here=vars(cls).get(name))
        N_ref: Any = self.N_ref
        if isinstance(N_ref, str):
            N_ref = _Named(*_method(cls, N_ref, "N_ref", str(self)), kind)
        declaration = self._declare(key, N_ref, function)
        claim(key, Place(*self._place, f"{cls.__name__}.{name}"))
        wrapped: Any = wrap(function, declaration)
        setattr(cls, name, wrapped if kind is None else kind(wrapped))
        return cls

    def _declare(self, key: Key, N_ref: Any, function: Any) -> Declaration:
        check_size_function(N_ref, str(self), function)
        self._declaration = Declaration(key, self.order, N_ref, self.N_ref_version, self.enable_logging, self.variant)
        return self._declaration


class _Named:
    """A method that is N_ref, called as the timed method of the same object is."""

    def __init__(self, function: Any, kind: Any, timed: Any) -> None:
        self.named = function
        self._kind = kind
        self._timed = timed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._kind is None or self._timed is staticmethod:
            return self.named(*args, **kwargs)
        first, *rest = args
        if self._kind is staticmethod:
            return self.named(*rest, **kwargs)
        return self.named(first if inspect.isclass(first) else type(first), *rest, **kwargs)


def _method(cls: Any, name: Any, what: str, where: str) -> tuple[Any, Any]:
    """Return a method of a class as a plain function, and ``staticmethod``, ``classmethod`` or ``None``."""
    if not isinstance(name, str):
        raise UsageError(f"{where}: {what}={name!r} must be the name of a method of {cls.__qualname__}")
    try:
        found = inspect.getattr_static(cls, name)
    except AttributeError:
        raise UsageError(f"{where}: {cls.__qualname__} has no attribute {name!r} ({what}=)") from None
    kind = kind_of(found)
    if kind in ("staticmethod", "classmethod"):
        return found.__func__, type(found)
    if kind == "function":
        return found, None
    raise UsageError(f"{where}: {cls.__qualname__}.{name} is a {kind}, not a method ({what}=)")


def _refuse_timed(function: Any, key: Key, where: str, here: Any = None) -> None:
    if key in getattr(function, STEPS, ()) and (here is None or getattr(here, "__func__", here) is function):
        raise UsageError(f"{where}: {function.__qualname__} is timed already as step {key}")


def time_subclasses(base: type, method: str, **options: Any) -> list[type]:
    """Time one method of every subclass of *base*, those that are defined later too: all recipes at once.

    Each subclass has a step of its own, named after it, also where it inherits the method. A call of the inherited
    method through ``super()`` is part of the caller's step. *base* itself is not timed.

    Parameters
    ----------
    base
        The common class; it must be one that Python code defines.
    method
        Name of the method.
    **options
        As for :class:`WallClockTime`; an *N_ref* that is a name is looked up in each subclass.

    Returns
    -------
    list of type
        The subclasses that there are, and are timed now.

    Raises
    ------
    UsageError
        A subclass cannot be timed; for later ones, where they are defined.
    """
    manager = WallClockTime(options.pop("step_name", None), method=method, stacklevel=2, **options)
    _method(base, method, "method", str(manager))

    def time_one(cls: Any) -> None:
        function, kind = _method(cls, method, "method", str(manager))
        if method not in vars(cls):  # inherited, perhaps from a timed one: this class gets a step of its own
            while key_of(function) is not None and hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            setattr(cls, method, function if kind is None else kind(function))
        manager._decorate_class(cls)

    def key_of(function: Any) -> Any:
        return next(iter(getattr(function, STEPS, ())), None)

    found: dict[type, None] = {}
    pending: list[type] = list(base.__subclasses__())
    while pending:
        cls = pending.pop(0)
        if cls not in found:
            found[cls] = None
            pending += cls.__subclasses__()
    for cls in found:
        time_one(cls)
    before = inspect.getattr_static(base, "__init_subclass__", None)

    def __init_subclass__(cls: Any, **keywords: Any) -> None:
        if isinstance(before, classmethod):
            before.__func__(cls, **keywords)
        else:
            super(base, cls).__init_subclass__(**keywords)  # type: ignore[arg-type]
        time_one(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment, arg-type]
    return list(found)
