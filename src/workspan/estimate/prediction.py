"""What an estimator answers."""

from __future__ import annotations

from typing import NamedTuple

from workspan.errors import ConfigurationError

__all__ = ["NO_SIZE", "Prediction", "check", "so_far"]

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
    """``"model"``, ``"default"`` (too few measurements yet), ``"legacy"`` (a stored curve without its measurements), or
    ``"none"``."""
    basis: str
    """The same for people: ``"from 6 runs"``."""


def so_far(count: int, needed: int) -> str:
    """Tell how many runs there are of those that an estimate of their own needs.

    Examples
    --------
    >>> so_far(0, 3), so_far(2, 3)
    ('no data yet', '2 of 3 runs so far')
    """
    return f"{count} of {needed} run{'s' * (needed != 1)} so far" if count else "no data yet"


def check(name: str, value: float, good: bool, wanted: str) -> None:
    """Raise `ConfigurationError` for an option that is not *good*."""
    if not good:
        raise ConfigurationError(f"{name} is {value!r}; it must be {wanted}")
