"""What an estimator answers."""

from __future__ import annotations

from typing import NamedTuple

from workspan.errors import ConfigurationError

__all__ = ["NO_SIZE", "Prediction", "check"]

NO_SIZE = "no size to estimate from"


class Prediction(NamedTuple):
    """An estimate, with where it comes from. Immutable."""

    value: float | None
    """Seconds; ``None`` if there is no estimate."""
    low: float | None
    """Lower end of the interval, in seconds; ``None`` without one."""
    high: float | None
    """Upper end of the interval, in seconds; ``None`` without one."""
    source: str
    """``"model"``, ``"default"`` (no measurement yet), ``"legacy"`` (a stored curve without its measurements), or
    ``"none"``."""
    basis: str
    """The same for people: ``"from 6 runs"``."""


def check(name: str, value: float, good: bool, wanted: str) -> None:
    """Raise `ConfigurationError` for an option that is not *good*."""
    if not good:
        raise ConfigurationError(f"{name} is {value!r}; it must be {wanted}")
