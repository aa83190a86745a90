"""What a decorator or manager declares of a step, and what the recorder knows of it while the process lives."""

from __future__ import annotations

import inspect
import math
import reprlib
import types
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.errors import ConfigurationError, UsageError
from workspan.estimate.fingerprint import fingerprint
from workspan.estimate.keys import Key
from workspan.estimate.notices import strict, warn_once
from workspan.estimate.order import AUTO, ComputationalOrder, as_size, order_name, parse_order
from workspan.measure.sections import section

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.estimate.activation import Activation
    from workspan.estimate.forecast import Forecast
    from workspan.estimate.measurements import StepHistory

__all__ = ["Declaration", "Step"]

_LARGE = 1 << 1000


class Declaration:
    """What is timed, and what its time depends on.

    Parameters
    ----------
    key
        Names of the step.
    order
        Computational order, by name, member or function.
    N_ref
        Function of the call's arguments, number, or ``None`` for the constant 1.
    N_ref_version
        Mixed into the fingerprint of *N_ref*.
    enable_logging
        ``None``: as ``logging.roots`` says.
    variant
        Function of the call's arguments that returns a short text or ``None``.
    is_section
        A ``with`` block: the variables around it are its data.

    Raises
    ------
    UsageError
        One of them cannot be used.
    """

    __slots__ = (
        "N_ref", "N_ref_version", "_fingerprint", "code", "enable_logging", "is_section", "key", "number", "order",
        "recorder", "step", "variant",
    )  # fmt: skip

    def __init__(
        self,
        key: Key,
        order: Any,
        N_ref: Any,
        N_ref_version: str | None,
        enable_logging: bool | None,
        variant: Callable[..., str | None] | None,
        *,
        is_section: bool = False,
    ) -> None:
        self.key = key
        self.order = order
        self.N_ref = N_ref
        self.N_ref_version = N_ref_version
        self.enable_logging = enable_logging
        self.variant = variant
        self.is_section = is_section
        self.number: float | None = None
        self.code: Any = None
        """What N_ref runs: the same for every pass through a ``with`` block."""
        if N_ref is None:
            self.number = 1.0
        elif callable(N_ref):
            self.code = getattr(N_ref, "__code__", N_ref)
        else:
            self.number = self.as_size(N_ref)
        self._fingerprint: str | None = None
        self.recorder: Any = None
        self.step: Any = None

    def __getstate__(self) -> tuple[Any, ...]:
        # The recorder stays in this process.
        return (
            self.key, self.order, self.N_ref, self.N_ref_version, self.enable_logging, self.variant, self.is_section
        )  # fmt: skip

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state[:-1], is_section=state[-1])  # type: ignore[misc]

    def as_size(self, value: Any) -> float | None:
        """Return what N_ref returned as a size; ``None``, with one warning, if it is none: not to be estimated."""
        if type(value) is float and 0.0 <= value < math.inf:
            return value
        if type(value) is int and 0 <= value < _LARGE:
            return float(value)
        if value is None:
            return None
        size = _size(value)
        if size is None:
            warn_once(
                ("size", self.key),
                "step %s: N_ref is %s, which is no finite number from 0 on; the run is neither estimated nor recorded",
                self.key,
                _short(value),
            )
        return size

    def print_of(self, args: tuple[Any, ...]) -> str | None:
        """Return the fingerprint of N_ref; ``None`` for a number, which has none."""
        if self.N_ref is not None and not callable(self.N_ref):
            return None
        if self._fingerprint is None:
            if self.N_ref is None:
                self._fingerprint = fingerprint(_constant, version=self.N_ref_version)
            else:
                self._fingerprint = fingerprint(
                    getattr(self.N_ref, "named", self.N_ref),
                    version=self.N_ref_version,
                    owner=_owner(self.key, args),
                    closure_values=not self.is_section,
                )
        return self._fingerprint


def _short(value: Any) -> str:
    """Return the ``repr`` of anything, or the beginning of it."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"


def _constant(*args: Any, **kwargs: Any) -> float:
    return 1.0


def _owner(key: Key, args: tuple[Any, ...]) -> type | None:
    """Return the class that defines the timed method, if the first argument tells it."""
    if not args or key.qualname is None:
        return None
    kind = args[0] if inspect.isclass(args[0]) else type(args[0])
    names = (key.qualname, key.qualname.rpartition(".")[0])
    return next((base for base in kind.__mro__ if base.__qualname__ in names), None)


def _size(value: Any) -> float | None:
    """Return any real number from 0 on as a float; ``None`` for anything else, truth values included."""
    return None if type(value).__name__ in ("bool", "bool_") else as_size(value)


class Step:
    """A step while the process lives: its declared order, who runs it, and its forecasts by variant."""

    __slots__ = (
        "active", "code", "declaration", "enable_logging", "fingerprint", "forecasts", "generation", "history", "key",
        "logged", "n_ref_changed", "order", "section",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.key = key
        self.active: dict[int, Activation] = {}
        self.forecasts: dict[str | None, Forecast] = {}
        self.history: StepHistory | None = None
        self.order: Any = None
        self.fingerprint: str | None = None
        self.code: Any = self
        self.enable_logging: bool | None = None
        self.logged = False
        self.declaration: Declaration | None = None
        """The one that was followed last, of a decorator."""
        self.n_ref_changed = False
        self.section = section(key.substep_label)
        self.generation = -1

    @property
    def order_name(self) -> str:
        """Name of the order, as it is stored."""
        return self.order if isinstance(self.order, str) else order_name(self.order)

    def fits(self, declaration: Declaration) -> bool:
        """Whether a declaration says the same as the one before: each pass through a ``with`` block makes a new one."""
        return (
            declaration.code is self.code
            and declaration.order is self.order
            and declaration.enable_logging is self.enable_logging
        )

    def follow(self, declaration: Declaration) -> None:
        """Take in whether activations are logged, by the declaration or by the settings."""
        self.generation = config.generation
        # That of a with block is not kept: its N_ref may hold the data of the moment.
        self.declaration = None if declaration.is_section else declaration
        self.enable_logging = wish = declaration.enable_logging
        self.logged = _is_root(self.key) if wish is None else wish


_orders: dict[str, Any] = {}


def check_order(order: Any) -> Any:
    """Return an order as its member, function, or ``"auto"``.

    Raises
    ------
    UsageError
        It is none of these.
    """
    if type(order) is str and (known := _orders.get(order)) is not None:
        return known
    try:
        found = parse_order(order) or AUTO
    except ConfigurationError as error:
        raise UsageError(f"WallClockTime: {error}") from None
    if isinstance(order, str):
        _orders[order] = found
    return found


def without_size(order: Any, where: object) -> Any:
    """Return the order of a step without a size (E33): ``"O_0"``; of another one it is said once that it has no use."""
    if order is not ComputationalOrder.O_0:
        name = order if isinstance(order, str) else order_name(order)
        warn_once(
            ("no size", str(where)),
            "%s: order=%r says how the time grows with N_ref, but there is none, so it is taken as constant; "
            "give N_ref, or leave the order out",
            where,
            str(name),
        )
    return ComputationalOrder.O_0


def _is_root(key: Key) -> bool:
    roots = config.get("logging.roots")
    if not roots or key.qualname is None:
        return False
    from fnmatch import fnmatchcase

    first = key.qualname.partition(".")[0]
    names = [name for name in (first, key.module, key.full_name) if name]
    return any(fnmatchcase(name, root) for root in roots for name in names)


_UNFIT = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def check_size_function(N_ref: Any, where: str, target: Any = None) -> None:
    """Refuse what cannot be an N_ref.

    Raises
    ------
    UsageError
        It is neither callable nor a number, is a coroutine function, or cannot take the arguments of *target*.
    """
    if N_ref is None:
        return
    if not callable(N_ref):
        if isinstance(N_ref, (str, bytes, bool)) or not hasattr(N_ref, "__float__"):
            raise UsageError(f"{where}: N_ref={N_ref!r} is neither callable nor a number")
        return
    called = N_ref if inspect.isroutine(N_ref) or inspect.isclass(N_ref) else getattr(N_ref, "__call__", N_ref)  # noqa: B004
    if any(is_kind(each) for each in (getattr(N_ref, "named", N_ref), called) for is_kind in _UNFIT):
        raise UsageError(f"{where}: N_ref is a coroutine or generator function, but it must return a number at once")
    if target is not None:
        _check_fit(N_ref, target, where)


def _check_fit(N_ref: Any, target: Any, where: str) -> None:
    """Refuse an N_ref that no call of *target* fits, where both signatures are known."""
    try:
        theirs, ours = inspect.signature(N_ref), inspect.signature(target, follow_wrapped=False)
    except (ValueError, TypeError):
        return
    positional = [p for p in ours.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keywords = {p.name: None for p in ours.parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    for count in range(len(required), len(positional) + 1):
        try:
            theirs.bind(*[None] * count, **keywords)
            return
        except TypeError:
            continue
    raise UsageError(f"{where}: N_ref{theirs} cannot take the arguments of {getattr(target, '__name__', target)}{ours}")


def kind_of(target: Any) -> str:
    """Tell what a decorator was given, for messages and to choose its way."""
    if inspect.isclass(target):
        return "class"
    if isinstance(target, (staticmethod, classmethod)):
        return type(target).__name__
    if isinstance(target, types.FunctionType):
        return "function"
    return {
        types.MethodType: "bound method",
        types.BuiltinFunctionType: "builtin",
        types.ModuleType: "module",
        property: "property",
    }.get(type(target), f"value of type {type(target).__name__}")


def reported(what: str, step: Step, error: Exception) -> None:
    """Tell once that code of the user raised, which must not stop the timed code; with ``timing.strict`` raise it."""
    if strict():
        raise error
    warn_once(
        (what, step.key, type(error)),
        "step %s: %s raised %s: %s; the run is neither estimated nor recorded",
        step.key,
        what,
        type(error).__name__,
        error,
    )
