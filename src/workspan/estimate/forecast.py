"""What a step will take: its measurements that count, and the estimator that was made of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.estimate.estimator import Estimator
from workspan.estimate.measurements import Measurement, Series, StepHistory, in_order, trim

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Forecast"]


class Forecast:
    """Forecast of one step in one variant.

    Parameters
    ----------
    history
        What is stored of the step; its series of this variant is what :meth:`add` adds to.
    variant
        Name of the variant, or ``None``.
    """

    __slots__ = (
        "_answers", "_declared", "_estimator", "_lock", "generation", "history", "last_error", "series", "stale",
        "variant",
    )  # fmt: skip

    def __init__(self, history: StepHistory, variant: str | None) -> None:
        self.history = history
        self.series: Series = history.variant(variant)
        self.variant = variant
        self.stale = False
        """Whether it answers from measurements of an earlier N_ref."""
        self.last_error: float | None = None
        """Relative error of the last estimate that could be compared."""
        self.generation = -1
        self._declared: Any = (None, None)
        self._estimator: Estimator | None = None
        self._lock = threading.Lock()

    def declare(self, order: Any, fingerprint: str | None) -> None:
        """Take in the order, the fingerprint of N_ref and the settings of now; start again where one has changed."""
        options = tuple(config.get(f"timing.{name}") for name in _OPTIONS)
        declared = (order, fingerprint, options)
        if declared != self._declared:
            self._declared = declared
            self._estimator = None
        self.generation = config.generation

    def renew(self) -> None:
        """Start again from the measurements, which were changed."""
        self._estimator = None

    @property
    def count(self) -> int:
        """Number of measurements that count."""
        return len(self.admitted())

    def measurements(self) -> list[Measurement]:
        """Return all measurements, also those that do not count now, in the order of their start."""
        kept = trim(in_order(list(self.series.measurements)), config.get("timing.max_measurements"))
        return kept

    def admitted(self) -> list[Measurement]:
        """Return the measurements that count."""
        fingerprint = self._declared[1]
        beside = config.get("timing.overlapping") == "use"
        return [m for m in self.measurements() if (beside or m.overlap == 1) and self.history.counts(m, fingerprint)]

    @property
    def estimator(self) -> Estimator:
        """The estimator of now, made if need be."""
        found = self._estimator
        if found is None:
            with self._lock:
                found = self._estimator
                if found is None:
                    found = self._estimator = self._build()
        return found

    def predict(self, N_ref: float) -> Any:
        """Return the estimate for work of size *N_ref*: ``value``, ``low``, ``high``, ``source``, ``basis``."""
        return (self._estimator or self.estimator).predict(N_ref)

    def add(self, measurement: Measurement) -> None:
        """Keep a measurement, and let old ones go once there are far too many."""
        measurements = self.series.measurements
        measurements.append(measurement)
        self.series.total += 1
        limit = config.get("timing.max_measurements")
        if len(measurements) > 2 * limit + 16:
            self.series.measurements = trim(measurements, limit)

    def learn(self, measurement: Measurement) -> None:
        """Take a new measurement into the estimates."""
        raise NotImplementedError

    def _build(self) -> Estimator:
        raise NotImplementedError

    def stored(self) -> dict[str, Any] | None:
        """Return the estimator as it goes into a file."""
        raise NotImplementedError


_OPTIONS = (
    "spline_order", "update_threshold", "update_minimum_count", "update_floor", "monotone", "interval",
    "default_seconds", "default_size", "on_n_ref_change", "overlapping", "max_measurements",
)  # fmt: skip


def pairs(measurements: Sequence[Measurement]) -> list[tuple[float, float]]:
    """Return (N_ref, dt) of those that have a size."""
    return [(m.N_ref, m.dt) for m in measurements if m.N_ref is not None]
