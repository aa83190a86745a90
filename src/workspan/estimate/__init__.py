"""How long a step will take: orders, estimators that learn from each run, and the recorder that feeds them.

Everything below loads on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

_HOMES = {
    "activation": ("Activation", "current"),
    "estimator": ("Estimator", "Prediction"),
    "fingerprint": ("fingerprint",),
    "handlers": ("CountedProgress", "ProgressBarHandler", "WarningCollector"),
    "keys": ("Key",),
    "logs": ("LOGGER_NAME",),
    "manager": ("WallClockTime", "time_subclasses"),
    "order": ("ComputationalOrder",),
    "recorder": ("ProgressRecorder",),
    "shortcuts": ("accept", "active", "changed", "discard", "estimate", "flush", "log_remaining", "remaining"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LOGGER_NAME",
    "Activation",
    "ComputationalOrder",
    "CountedProgress",
    "Estimator",
    "Key",
    "Prediction",
    "ProgressBarHandler",
    "ProgressRecorder",
    "WallClockTime",
    "WarningCollector",
    "accept",
    "active",
    "changed",
    "current",
    "discard",
    "estimate",
    "fingerprint",
    "flush",
    "log_remaining",
    "remaining",
    "time_subclasses",
]

if TYPE_CHECKING:
    from workspan.estimate.activation import Activation, current
    from workspan.estimate.estimator import Estimator, Prediction
    from workspan.estimate.fingerprint import fingerprint
    from workspan.estimate.handlers import CountedProgress, ProgressBarHandler, WarningCollector
    from workspan.estimate.keys import Key
    from workspan.estimate.logs import LOGGER_NAME
    from workspan.estimate.manager import WallClockTime, time_subclasses
    from workspan.estimate.order import ComputationalOrder
    from workspan.estimate.recorder import ProgressRecorder
    from workspan.estimate.shortcuts import (
        accept,
        active,
        changed,
        discard,
        estimate,
        flush,
        log_remaining,
        remaining,
    )


class _Package(ModuleType):
    """Keeps functions in their place: a module of the same name would take it when it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workspan.estimate' has no attribute {name!r}")
    value = getattr(import_module(f"workspan.estimate.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
