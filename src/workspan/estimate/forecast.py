"""What a step will take: its measurements that count, and the estimator that was made of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.errors import ConfigurationError
from workspan.estimate.estimator import INTERVAL_FROM, Estimator
from workspan.estimate.measurements import Measurement, Series, StepHistory, in_order, trim
from workspan.estimate.order import ComputationalOrder

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        "_declared", "_lock", "answers", "floor", "fragment", "generation", "head", "history", "made", "series",
        "settled", "skipped", "stale", "variant",
    )  # fmt: skip

    def __init__(self, history: StepHistory, variant: str | None) -> None:
        self.history = history
        self.series: Series = history.variant(variant)
        self.variant = variant
        self.stale = False
        """Whether it answers from measurements of an earlier N_ref."""
        self.settled = False
        """Whether a measurement that is as expected, to ``timing.update_floor``, need not be learned, nor counted."""
        self.generation = -1
        self.floor = 0.0
        self._declared: Any = (None, None)
        self.made: Estimator | None = None
        """The estimator, once it was needed; to be made again after a change."""
        self.answers: dict[float, Any] = {}
        """Sizes that were asked for since the estimator was made or learned."""
        self.skipped = 0
        """Measurements since then that differed too little from what was expected to matter."""
        self.fragment: Any = None
        self.head = -1
        """The fragment that it last wrote to, and its number there."""
        self._lock = threading.Lock()

    def declare(self, order: Any, fingerprint: str | None) -> None:
        """Take in the order, the fingerprint of N_ref and the settings of now; start again where one has changed."""
        options = tuple(config.get(f"timing.{name}") for name in _OPTIONS)
        declared = (order, fingerprint, options)
        if declared != self._declared:
            self._declared = declared
            self.head = -1
            self.renew()
        self.floor = config.get("timing.update_floor")
        self.generation = config.generation

    def renew(self) -> None:
        """Start again from the measurements."""
        self.made, self.skipped, self.settled = None, 0, False
        self.answers.clear()

    @property
    def count(self) -> int:
        """Number of measurements that count."""
        return len(self.admitted())

    def measurements(self) -> list[Measurement]:
        """Return all measurements, also those that do not count now, in the order of their start."""
        return trim(in_order(list(self.series.measurements)), config.get("timing.max_measurements"))

    def admitted(self) -> list[Measurement]:
        """Return the measurements that count."""
        fingerprint = self._declared[1]
        beside = config.get("timing.overlapping") == "use"
        return [m for m in self.measurements() if (beside or m.overlap == 1) and self.history.counts(m, fingerprint)]

    @property
    def estimator(self) -> Estimator:
        """The estimator of now, made if need be."""
        found = self.made
        if found is None:
            with self._lock:
                found = self.made
                if found is None:
                    found = self.made = self._build()
                    self.settled = self._is_settled(found)
        return found

    def predict(self, N_ref: float) -> Any:
        """Return the estimate for work of size *N_ref*: ``value``, ``low``, ``high``, ``source``, ``basis``."""
        found = self.answers.get(N_ref)
        if found is None:
            found = (self.made or self.estimator).predict(N_ref)
            if self.stale:
                found = found._replace(source="stale")
            if len(self.answers) >= _MOST_ANSWERS:
                self.answers.clear()
            self.answers[N_ref] = found
        return found

    def _is_settled(self, estimator: Estimator) -> bool:
        return not self.stale and estimator.source == "model" and estimator.runs >= estimator.max_measurements

    def learn(self, dt: float, N_ref: float | None, overlap: int, expected: float | None) -> None:
        """Take a new measurement into the estimates; one that was as *expected* is only counted."""
        estimator = self.made
        if estimator is None:  # made of all measurements when it is next needed, of this one too
            return
        if overlap > 1 and config.get("timing.overlapping") == "ignore":
            return
        if self.stale:
            if len(self.admitted()) >= config.get("timing.update_minimum_count"):
                self.renew()
            return
        size, before = 1.0 if N_ref is None else N_ref, estimator.runs
        agrees = expected is not None and abs(expected - dt) <= self.floor and estimator.source == "model"
        with self._lock:
            if agrees:
                estimator.agree(size)
                self.skipped += 1
                renews = before < INTERVAL_FROM <= estimator.runs  # now there is to be an interval
            else:
                renews = estimator.update(size, dt) and self.skipped > 0
            self.answers.clear()
            self.settled = self._is_settled(estimator)
        if renews:
            self.renew()

    def _build(self) -> Estimator:
        order = self._declared[0] or self.history.order or "O_0"
        least = config.get("timing.update_minimum_count")
        estimator = _new(order)
        admitted, self.stale = self._pairs(self.admitted()), False
        if len(admitted) >= least:
            return estimator.fit(admitted)
        earlier = self._pairs(m for m in self.measurements() if not self.history.counts(m, self._declared[1]))
        if len(earlier) >= least and config.get("timing.on_n_ref_change") == "quarantine":
            self.stale = True
            return estimator.fit(earlier)
        # A stored default is no curve of anything: what is assumed now counts, and it is said that it is.
        if self.series.estimate is not None and not earlier and self.series.estimate.get("source") != "default":
            estimator = _from_stored(order, self.series.estimate) or estimator
        for pair in admitted:
            estimator.update(*pair)
        return estimator

    def _pairs(self, measurements: Iterable[Measurement]) -> list[tuple[float, float]]:
        """Return (N_ref, dt); without a size only where the order does not need one."""
        constant = self._declared[0] == ComputationalOrder.O_0
        return [(1.0 if m.N_ref is None else m.N_ref, m.dt) for m in measurements if m.N_ref is not None or constant]

    def stored(self, *, renewed: bool = True) -> dict[str, Any] | None:
        """Return the estimator as it goes into a file: ``count``, ``tck``, ``source``, ``order``.

        Parameters
        ----------
        renewed
            Whether there is time, some 10 ms, to fit it to the measurements that it was right about, too.
        """
        try:
            if renewed and self.skipped:
                self.renew()
            if self.made is None and not renewed:
                return self.series.estimate
            estimator = self.estimator
            knots, coefficients, degree = estimator.tck
            distinct, total = estimator.count
        except (ValueError, ArithmeticError, AssertionError):
            return self.series.estimate
        if estimator.source == "legacy":
            return self.series.estimate
        source = "stale" if self.stale else estimator.source
        if source == "model":
            source = "fitted"
        return {
            "count": [distinct, total],
            "tck": [list(map(float, knots)), list(map(float, coefficients)), degree],
            "source": source,
            "order": estimator.order,
        }


def _new(order: Any) -> Estimator:
    return Estimator(order, **_options())


def _options() -> dict[str, Any]:
    names = ("monotone", "default_seconds", "default_size", "max_measurements", "spline_order")
    names += ("update_minimum_count", "update_threshold", "update_floor")  # type: ignore[assignment]
    return {"level": config.get("timing.interval"), **{name: config.get(f"timing.{name}") for name in names}}


def _from_stored(order: Any, estimate: dict[str, Any]) -> Estimator | None:
    """Make an estimator of a stored curve that has no measurements; SciPy pads the coefficients with zeros."""
    knots, coefficients, degree = estimate["tck"]
    if degree:
        coefficients = coefficients[: len(knots) - degree - 1]
    try:
        return Estimator.from_tck(order, (knots, coefficients, degree), **_options())
    except (ConfigurationError, ValueError, TypeError):
        return None


_MOST_ANSWERS = 1024

_OPTIONS = (
    "spline_order", "update_threshold", "update_minimum_count", "update_floor", "monotone", "interval",
    "default_seconds", "default_size", "on_n_ref_change", "overlapping", "max_measurements",
)  # fmt: skip
