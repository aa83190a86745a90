"""Questions to the recorder of this process. A *key* names a step: the timed function itself, or a :class:`Key`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.estimate.recorder import default_recorder

if TYPE_CHECKING:
    from workspan.estimate.activation import Activation
    from workspan.estimate.estimator import Prediction
    from workspan.estimate.keys import Key

__all__ = ["accept", "active", "changed", "discard", "estimate", "flush", "log_remaining", "remaining"]


def active() -> tuple[Activation, ...]:
    """Return the active steps of all threads of this process, in the order in which they began."""
    return default_recorder().active()


def remaining(key: Any) -> float | None:
    """Return the seconds left of an active step, from 0 on; ``None`` without an estimate.

    Raises
    ------
    UsageError
        The step is not active.
    """
    return default_recorder().remaining(key)


def log_remaining(key: Any) -> bool:
    """Log how much time is left of an active step, now; ``False``, and nothing, if it is not active."""
    return default_recorder().log_remaining(key)


def estimate(key: Any, N_ref: float, *, variant: str | None = None) -> Prediction:
    """Return how long a step would take for work of size *N_ref*.

    Raises
    ------
    UsageError
        The step is neither declared in this process nor stored.
    """
    found: Prediction = default_recorder().estimate(key, N_ref, variant=variant)
    return found


def changed() -> tuple[Key, ...]:
    """Return the steps whose N_ref is another one than that of stored measurements."""
    return default_recorder().changed()


def accept(key: Any) -> None:
    """Let the measurements that a step has from an earlier N_ref count again.

    Raises
    ------
    UsageError
        The step is neither declared in this process nor stored.
    """
    default_recorder().accept(key)


def discard(key: Any) -> int:
    """Forget the measurements of a step, here and on disk; return how many there were.

    Raises
    ------
    UsageError
        The step is neither declared in this process nor stored.
    """
    return default_recorder().discard(key)


def flush() -> bool:
    """Merge what was recorded into the timing files now; return whether there was anything, and it is done."""
    return default_recorder().flush()
