"""What may be asked of a recorder."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from workspan.errors import UsageError
from workspan.estimate import activation as stacks
from workspan.estimate.activation import Activation
from workspan.estimate.forecast import Forecast
from workspan.estimate.keys import Key, as_key
from workspan.estimate.knowledge import Knowledge, _stored_order
from workspan.estimate.logs import log_event, state_of

__all__ = ["Questions"]


class Questions(Knowledge):
    """The part of the recorder that answers."""

    def active(self) -> tuple[Activation, ...]:
        """Return the active steps of all threads, in the order in which they began."""
        found = [activation for step in list(self._steps.values()) for activation in list(step.active.values())]
        return tuple(sorted((each for each in found if not each.ended), key=lambda each: each.id))

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the states of all active steps, as viewers get them."""
        found = []
        for activation in self.active():
            with suppress(Exception):
                found.append({**state_of(activation, "start"), "key": list(activation.key)})
        return found

    def find(self, key: Any) -> Activation:
        """Return the latest activation of a step, of this context if it has any.

        Raises
        ------
        UsageError
            The step is not active.
        """
        wanted = as_key(key)
        for activation in reversed(stacks.stack()):
            if activation.key == wanted and activation.recorder is self:
                return activation
        for activation in reversed(self.active()):
            if activation.key == wanted:
                return activation
        raise UsageError(f"step {wanted} is not active: it has no remaining time, N_ref or estimate")

    def remaining(self, key: Any) -> float | None:
        """Return the seconds left of an active step; ``None`` without an estimate.

        Raises
        ------
        UsageError
            The step is not active.
        """
        return self.find(key).remaining

    def estimate(self, key: Any, N_ref: float, *, variant: str | None = None) -> Any:
        """Return the estimate of a step for work of size *N_ref*: ``value``, ``low``, ``high``, ``source``, ``basis``.

        Raises
        ------
        UsageError
            The step is neither declared nor stored.
        """
        return self.forecast(key, variant=variant).predict(float(N_ref))

    def forecast(self, key: Any, *, variant: str | None = None) -> Forecast:
        """Return what is known of a step: its measurements and its estimator.

        Raises
        ------
        UsageError
            The step is neither declared nor stored.
        """
        wanted = as_key(key)
        step, history = self._steps.get(wanted), self._loaded()
        if step is None:
            if wanted not in history:
                raise UsageError(
                    f"step {wanted} is neither declared in this process nor stored: pass the timed function itself, or "
                    "the names that 'workspan history list' shows"
                )
            step = self._new_step(wanted)
            step.order = _stored_order(history[wanted].order)
            step.fingerprint = history[wanted].fingerprint
            step.code = None
        return self._forecast(step, variant, None)

    def log_remaining(self, which: Any) -> bool:
        """Log the state of an active step now; ``False``, and nothing, if it is not active."""
        if not isinstance(which, Activation):
            try:
                which = self.find(which)
            except UsageError:
                return False
        if which.ended or which.nested:
            return False
        was, which.logged = which.logged, True
        try:
            log_event(which, "progress")
        finally:
            which.logged = was
        return True

    def changed(self) -> tuple[Key, ...]:
        """Return the steps whose N_ref turned out to be another one than that of stored measurements."""
        return tuple(key for key, step in list(self._steps.items()) if step.n_ref_changed)

    def accept(self, key: Any) -> None:
        """Let the measurements of an earlier N_ref of this step count again."""
        forecast = self.forecast(key)
        kept = forecast.history
        with self._lock:
            found = {m.fingerprint for s in kept.series.values() for m in s.measurements if m.fingerprint is not None}
            kept.accepted = sorted({*kept.accepted, *found})
            self._unsaved += 1
        self._renew(kept.key)

    def discard(self, key: Any) -> int:
        """Forget the measurements of a step, here and on disk; return how many there were."""
        kept = self.forecast(key).history
        with self._lock:
            count = kept.count
            kept.discarded = self.now()
            for series in kept.series.values():
                series.measurements, series.total, series.estimate = [], 0, None
            self._unsaved += 1
        self._renew(kept.key)
        self.flush()
        return count

    def _renew(self, key: Key) -> None:
        step = self._steps.get(key)
        for forecast in [] if step is None else list(step.forecasts.values()):
            forecast.renew()
