"""Computational orders: how the size of the work, ``N_ref``, becomes the number N in which its time grows.

A conversion never raises and never warns: what has no finite, non-negative N has ``None``, which means "no estimate".
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import cbrt, exp, inf, isfinite, log, sqrt
from typing import TypeAlias

from workspan.errors import ConfigurationError

__all__ = ["AUTO", "ComputationalOrder", "Order", "as_size", "convert", "order_name", "parse_order", "size_of"]

#: The order is chosen among the six by its error on measurements left out.
AUTO = "auto"


class ComputationalOrder(StrEnum):
    """How the time of a step grows with its size ``N_ref``. The values are what files hold.

    Calling a member converts: ``ComputationalOrder.O_N_2(3.0)`` is 9.0. Logarithms are natural; below 1, where they
    are negative, the logarithmic orders are 0.
    """

    O_0 = "O_0"
    O_LOG_N = "O_LOG_N"
    O_N = "O_N"
    O_N_LOG_N = "O_N_LOG_N"
    O_N_2 = "O_N_2"
    O_N_3 = "O_N_3"

    def __call__(self, N_ref: object) -> float | None:
        """Convert a size into N.

        Returns
        -------
        float or None
            N, finite and at least 0; ``None`` if *N_ref* is negative, not a number, infinite, or its N beyond the
            range of a float.
        """
        size = as_size(N_ref)
        if size is None:
            return None
        n = FORMULAS[self](size)
        return n if n < inf else None


def as_size(N_ref: object) -> float | None:
    """Return *N_ref* as a finite float, at least 0, or ``None`` if it is not one. A bool is not a size."""
    if type(N_ref) is float:
        return N_ref if 0.0 <= N_ref < inf else None
    if isinstance(N_ref, bool | complex | str | bytes) or not hasattr(N_ref, "__float__"):
        return None
    try:
        size = float(N_ref)
    except (OverflowError, TypeError, ValueError):
        return None
    return size if 0.0 <= size < inf else None


def _ln(n: float) -> float:
    return log(n) if n > 1.0 else 0.0


#: N of a size that is known to be one; infinite where it is beyond the range of a float.
FORMULAS: dict[ComputationalOrder, Callable[[float], float]] = {
    ComputationalOrder.O_0: lambda n: 1.0,
    ComputationalOrder.O_LOG_N: _ln,
    ComputationalOrder.O_N: lambda n: n,
    ComputationalOrder.O_N_LOG_N: lambda n: n * _ln(n),
    ComputationalOrder.O_N_2: lambda n: n * n,  # a product becomes inf where a power would raise
    ComputationalOrder.O_N_3: lambda n: n * n * n,
}

#: What a conversion may be: one of the six orders, or a user's own function of N_ref.
Order: TypeAlias = ComputationalOrder | Callable[[float], float]


def parse_order(order: object) -> Order | None:
    """Read an order as people write it; ``None`` stands for :data:`AUTO`.

    Parameters
    ----------
    order
        A :class:`ComputationalOrder`, its name in either spelling (``"O_N_2"`` or ``"O_N2"``, ``"O_LOG_N"`` or
        ``"O_LOGN"``), ``"auto"``, or a callable from float to float.

    Raises
    ------
    ConfigurationError
        If *order* is none of these.
    """
    if isinstance(order, ComputationalOrder):
        return order
    if isinstance(order, str):
        squeezed = order.upper().replace("_", "")
        if squeezed == "AUTO":
            return None
        for member in ComputationalOrder:
            if member.value.replace("_", "") == squeezed:
                return member
    elif callable(order):
        return order
    names = ", ".join(ComputationalOrder)
    raise ConfigurationError(f"order is {order!r}; use one of {names}, {AUTO!r}, or a function from float to float")


def order_name(order: Order | None) -> str:
    """Return the name under which an order is stored and shown."""
    if order is None:
        return AUTO
    if isinstance(order, ComputationalOrder):
        return order.value
    return str(getattr(order, "__qualname__", None) or type(order).__qualname__)


def convert(order: Order, N_ref: object) -> float | None:
    """Convert a size by any order; a user's function that raises or returns no finite number >= 0 gives ``None``."""
    if isinstance(order, ComputationalOrder):
        return order(N_ref)
    size = as_size(N_ref)
    if size is None:
        return None
    try:
        n = float(order(size))
    except Exception:  # E20: a fault in the user's function must not reach the timed code
        return None
    return n if isfinite(n) and n >= 0 else None


def size_of(order: Order, n: float) -> float:
    """Return the size whose N is *n*: the inverse of one of the six orders, O_0 apart; N itself for a function."""
    if n <= 0.0 or not isinstance(order, ComputationalOrder):
        return n
    if order == ComputationalOrder.O_LOG_N:
        return exp(min(n, 709.0))
    if order == ComputationalOrder.O_N_2:
        return sqrt(n)
    if order == ComputationalOrder.O_N_3:
        return cbrt(n)
    if order != ComputationalOrder.O_N_LOG_N:
        return n
    size = max(n / max(log(max(n, 3.0)), 1.0), 1.0)
    for _ in range(60):  # Newton's method; a dozen steps suffice
        size = max(size - (size * log(size) - n) / (log(size) + 1.0), 1.0)
    return size
