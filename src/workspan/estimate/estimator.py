"""How long will it take: an estimate in seconds from a size, learned from what earlier runs took."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, isfinite, log
from typing import Any

import numpy as np

from workspan.estimate.choose import choose_order
from workspan.estimate.curve import Curve
from workspan.estimate.order import (
    FORMULAS,
    ComputationalOrder,
    Order,
    as_size,
    convert,
    order_name,
    parse_order,
    size_of,
)
from workspan.estimate.prediction import NO_SIZE, Prediction, check, so_far
from workspan.estimate.spline import Tck, bounded, checked, distinct_points, sample
from workspan.estimate.table import fit_curve

__all__ = ["Estimator", "Prediction"]

INTERVAL_FROM = 5  # measurements; fewer say too little about the spread (D33)
STEP = 0.2  # log; one run that the curve was right about is taken to say no more than this
UNFITTED, UNFITTED_SHARE = 3, 0.2  # measurements since the last fit, and share of all, that call for another
EXACT = 1e-6  # relative error; nothing is learned from less
ANSWERS = 256  # kept until something is learned

_tuple = tuple.__new__  # makes a named tuple in half the time that its class takes


class Estimator:
    """Estimate how long a step takes from its size, learning from each run.

    Below *update_minimum_count* measurements it answers with the default, linear through the origin. Not thread-safe:
    callers that share one estimator hold a lock, except around :meth:`predict`.

    Parameters
    ----------
    order
        How the time is expected to grow with the size: a :class:`~workspan.estimate.order.ComputationalOrder`, its
        name, a function from float to float, or ``"auto"``, which chooses among the six. Measurements override it.
    monotone
        ``True``: the estimate never falls with growing size. ``None``: growth is expected, and repeated measurements
        override it. ``False``: no such expectation.
    level
        Share of runs that the interval is to hold, above 0 and below 1.
    default_seconds, default_size
        What a run is expected to take before there is any measurement: *default_seconds* at size *default_size*.
    max_measurements
        How many of the latest measurements :meth:`update` keeps.
    update_minimum_count, update_threshold, update_floor
        :meth:`update` fits anew if there are this many measurements and the estimate was wrong by more than this share
        of the time taken, and by more than this many seconds.
    spline_order
        Largest degree of :attr:`tck`, 0 to 5.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range.

    Examples
    --------
    >>> estimator = Estimator("O_N").fit([(1e6, 0.2), (2e6, 0.3), (4e6, 0.5)])
    >>> round(estimator.predict(3e6).value, 2), estimator.predict(3e6).basis
    (0.4, 'from 3 runs')
    """

    def __init__(
        self,
        order: Order | str = ComputationalOrder.O_N,
        *,
        monotone: bool | None = None,
        level: float = 0.9,
        default_seconds: float = 3.0,
        default_size: float = 1e9,
        max_measurements: int = 50,
        update_minimum_count: int = 3,
        update_threshold: float = 0.2,
        update_floor: float = 1e-3,
        spline_order: int = 3,
    ) -> None:
        self._declared = parse_order(order)
        check("level", level, 0.0 < level < 1.0, "above 0 and below 1")
        check("default_seconds", default_seconds, 0.0 < default_seconds < inf, "above 0")
        check("default_size", default_size, 0.0 < default_size < inf, "above 0")
        check("max_measurements", max_measurements, max_measurements >= 1, "at least 1")
        check(
            "update_minimum_count",
            update_minimum_count,
            1 <= update_minimum_count <= max_measurements,
            f"1 to max_measurements ({max_measurements})",
        )
        check("update_threshold", update_threshold, update_threshold >= 0.0, "at least 0")
        check("update_floor", update_floor, update_floor >= 0.0, "at least 0")
        check("spline_order", spline_order, 0 <= spline_order <= 5, "0 to 5")
        self.monotone = monotone
        self.level = level
        self.max_measurements = max_measurements
        self.update_minimum_count = update_minimum_count
        self.update_threshold = update_threshold
        self.update_floor = update_floor
        self.spline_order = spline_order
        self.default = (default_seconds, default_size)
        self._use_order(self._declared or ComputationalOrder.O_N)
        self._measurements: list[tuple[float, float]] = []
        self._curve: Curve | None = None
        self._legacy: Tck | None = None
        self._fitted = 0  # measurements that the curve was fitted to
        self._agreed = 0  # runs since then that were as expected, and are not among the measurements
        self._sizes = (inf, -inf)  # least and greatest of all runs
        self._basis = ("", "", "")
        self._errors: dict[str, float] = {}
        # what was learned since the curve was fitted: factors by size and for all others, and the answers given
        self._factors: dict[float, float] = {}
        self._factor = 1.0
        self._misses: list[tuple[float, float]] = []
        self._unfitted = 0
        self._answers: dict[float, Prediction] = {}

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, measurements: Iterable[tuple[float, float]]) -> Estimator:
        """Learn from measurements alone, forgetting all before.

        Parameters
        ----------
        measurements
            Pairs (N_ref, seconds) in the order in which they were made. A pair whose size has no N, or whose time is
            negative or not finite, is left out. Without any left the estimator is as it was (E81).

        Returns
        -------
        Estimator
            This one.
        """
        kept = [(float(N_ref), float(dt)) for N_ref, dt in measurements if self._admits(N_ref, dt)]
        if kept:
            self._measurements = kept
            self._refit()
        return self

    def update(self, N_ref: float, dt: float) -> bool:
        """Learn from one more run that took *dt* seconds; return whether the curve was fitted anew.

        It is if the estimate was wrong by more than `update_threshold` (E77); when a fifth of the measurements, three
        at least, have come since the last fit, so that the interval learns what it was right about; and when there are
        enough for an interval at last. If not, the curve is kept and what it missed by is taken into account: fully for
        the same size as it repeats, and in part for the others.
        """
        if not self._admits(N_ref, dt):
            return False
        N_ref, dt = float(N_ref), float(dt)
        expected = self.predict(N_ref).value
        self._measurements.append((N_ref, dt))
        if len(self._measurements) > self.max_measurements:
            del self._measurements[0]
        if len(self._measurements) < self.update_minimum_count:
            self._answers.clear()
            return False
        if self._curve is not None and expected is not None:
            error = abs(expected - dt)
            if error <= self.update_threshold * dt or error <= self.update_floor:
                self._unfitted += error > EXACT * dt
                few = self._fitted < INTERVAL_FROM <= len(self._measurements)
                if self._unfitted < (1 if few else max(UNFITTED, UNFITTED_SHARE * len(self._measurements))):
                    self._correct(N_ref, dt)
                    self._count(N_ref)
                    return False
        self._refit()
        return True

    def agree(self, N_ref: float) -> None:
        """Count a run that was as expected, and of which nothing else is to be learned."""
        self._agreed += 1
        self._count(N_ref)

    def _admits(self, N_ref: object, dt: object) -> bool:
        return as_size(dt) is not None and convert(self._order, N_ref) is not None

    def _correct(self, N_ref: float, dt: float) -> None:
        found = self._on_curve(N_ref)
        if found is None:
            return
        miss = log(dt / found[0]) if dt > 0.0 < found[0] else 0.0
        self._misses = [*self._misses[-9:], (N_ref, min(max(miss, -STEP), STEP))]
        same = [m for size, m in self._misses if size == N_ref]
        self._factors[N_ref] = exp(sum(same) / (len(same) + 1))
        # a curve that is right has misses of both signs, so that this stays near 1
        self._factor = exp(sum(m for _, m in self._misses) / (len(self._misses) + 5))
        self._answers.clear()

    @np.errstate(all="ignore")  # sizes and times may be as wild as floats: what comes out is held to finite numbers
    def _refit(self) -> None:
        sizes = [N_ref for N_ref, _ in self._measurements]
        dts = [dt for _, dt in self._measurements]
        if self._declared is None:
            order, self._errors = choose_order(sizes, dts)
            self._use_order(order)
        ns = [convert(self._order, N_ref) or 0.0 for N_ref in sizes]
        self._curve = fit_curve(sizes if self._sized else ns, dts, self._n_at, level=self.level, monotone=self.monotone)
        self._legacy = None
        self._factors.clear()
        self._factor = 1.0
        self._misses = []
        self._unfitted = self._agreed = 0
        self._fitted = len(sizes)
        self._sizes = (min(sizes), max(sizes))
        self._count(sizes[-1])

    def _count(self, size: float) -> None:
        """Tell from now on of one more run, of this size."""
        least, most = self._sizes
        self._sizes = (min(least, size), max(most, size))
        basis = f"from {self.runs} run{'s' * (self.runs != 1)}"
        self._basis = (f"{basis}, all of them larger", basis, f"{basis}, all of them smaller")
        self._answers.clear()

    def _use_order(self, order: Order) -> None:
        self._order = order
        # Places are sizes: a wrong order then does no harm between them. Of a user's function nothing is known.
        self._sized = isinstance(order, ComputationalOrder) and order != ComputationalOrder.O_0
        self._formula = FORMULAS[order] if isinstance(order, ComputationalOrder) else None

    def _n_at(self, place: float) -> float | None:
        return convert(self._order, place) if self._sized else place

    # -- answering -----------------------------------------------------------------------------------------------

    def predict(self, N_ref: float | None) -> Prediction:
        """Estimate a run of size *N_ref*. Never raises; a size that cannot be used has no estimate."""
        try:
            kept = self._answers.get(N_ref)  # type: ignore[arg-type]
        except TypeError:
            kept = None
        if kept is not None:
            return kept
        size = N_ref if type(N_ref) is float and 0.0 <= N_ref < inf else as_size(N_ref)
        if size is None:
            return Prediction(None, None, None, "none", NO_SIZE)
        answer = self._answer(size)
        if type(N_ref) is float:
            if len(self._answers) >= ANSWERS:
                self._answers.clear()
            self._answers[N_ref] = answer
        return answer

    def _on_curve(self, size: float) -> tuple[float, float, float, int] | None:
        curve = self._curve
        if curve is None:
            return None
        if self._formula is None:
            n = convert(self._order, size)
            return None if n is None else curve.evaluate(n, n)
        n = self._formula(size)
        return curve.evaluate(size if self._sized else n, n) if n < inf else None

    def _answer(self, size: float) -> Prediction:
        if self._curve is None:
            return self._without_data(size)
        found = self._on_curve(size)
        if found is None:
            return Prediction(None, None, None, "none", NO_SIZE)
        value, low, high, where = found
        factor = self._factors.get(size, self._factor) if self._factors else self._factor
        if where != 1 and self._sizes[0] <= size <= self._sizes[1]:  # the curve is older than such a run
            where = 1
        basis = self._basis[where]
        if len(self._measurements) < INTERVAL_FROM:
            return Prediction(value * factor, None, None, "model", basis)
        return _tuple(Prediction, (value * factor, low * factor, high * factor, "model", basis))

    def _without_data(self, size: float) -> Prediction:
        n = convert(self._order, size)
        if n is None:
            return Prediction(None, None, None, "none", NO_SIZE)
        if self._legacy is not None:
            return Prediction(bounded(self._legacy, n), None, None, "legacy", "from a stored curve")
        seconds, reference_size = self.default
        reference = convert(self._order, reference_size)
        value = seconds * (n / reference) if reference else inf
        known = so_far(len(self._measurements), self.update_minimum_count)
        if not isfinite(value):
            return Prediction(None, None, None, "none", f"{known}, and no default for this order")
        basis = f"{known}: {seconds:g} s for a size of {reference_size:g} is assumed"
        return Prediction(value, None, None, "default", basis)

    # -- showing -------------------------------------------------------------------------------------------------

    @property
    def order(self) -> str:
        """Name of the order in use; of the chosen one if ``"auto"`` was declared."""
        return order_name(self._order)

    @property
    def declared_order(self) -> str:
        """Name of the order as declared, which may be ``"auto"``."""
        return order_name(self._declared)

    @property
    def order_errors(self) -> dict[str, float]:
        """With ``"auto"``: usual relative error of each order on measurements left out; empty if too few to tell."""
        return dict(self._errors)

    @property
    def measurements(self) -> list[tuple[float, float]]:
        """The measurements kept, as (N_ref, seconds), oldest first."""
        return list(self._measurements)

    @property
    def runs(self) -> int:
        """How many runs it answers from: all that it was fitted to, or of those since at most `max_measurements`."""
        kept = len(self._measurements)
        return max(kept, min(kept + self._agreed, self.max_measurements))

    @property
    def source(self) -> str:
        """Where estimates come from now: ``"model"``, ``"default"`` or ``"legacy"``."""
        if self._curve is not None:
            return "model"
        return "default" if self._legacy is None else "legacy"

    @property
    def count(self) -> tuple[int, int]:
        """Number of distinct N, with the point at 0 where E80 adds one, and number of measurements."""
        return len(self._points()), len(self._measurements)

    @property
    def degree(self) -> int:
        """Degree of :attr:`tck` (E81): 0 is a constant. Without measurements 1, a line."""
        return self.tck[2]

    @property
    def tck(self) -> Tck:
        """The estimate over N as a B-spline: knots, coefficients, degree, as plain lists and an int."""
        if self._legacy is not None:
            return self._legacy
        curve, points = self._curve, self._points()
        constant = self._order == ComputationalOrder.O_0
        if curve is None or not points:
            seconds, size = self.default
            reference = convert(self._order, size)
            if not reference or constant:
                return [0.0, 0.0], [seconds], 0
            return [0.0, 0.0, reference, reference], [0.0, seconds], 1
        degree = 0 if constant else min(len(points) - 1, self.spline_order)

        def seconds_at(n: float) -> float:
            return curve.evaluate(size_of(self._order, n) if self._sized else n, n)[0]

        return sample(seconds_at, points, degree)

    def _points(self) -> list[float]:
        ns = [n for N_ref, _ in self._measurements if (n := convert(self._order, N_ref)) is not None]
        return distinct_points(ns, tie=self._order != ComputationalOrder.O_0)

    @classmethod
    def from_tck(cls, order: Order | str, tck: Tck, **options: Any) -> Estimator:
        """Make an estimator that answers from a stored curve until it has measurements (E62).

        Parameters
        ----------
        order, options
            As for the class.
        tck
            Knots, coefficients and degree of seconds over N. Degree 0 may have two equal knots.

        Raises
        ------
        ConfigurationError
            If the numbers of knots and coefficients do not belong together.
        """
        estimator = cls(order, **options)
        estimator._legacy = checked(tck)
        return estimator
