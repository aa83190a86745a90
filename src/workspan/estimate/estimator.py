"""How long will it take: an estimate in seconds from a size, learned from what earlier runs took."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, isfinite, log
from typing import NamedTuple

from workspan.errors import ConfigurationError
from workspan.estimate.curve import Curve
from workspan.estimate.table import fit_curve
from workspan.estimate.order import ComputationalOrder, Order, as_size, convert, order_name, parse_order
from workspan.estimate.spline import Tck, evaluate, sample

__all__ = ["Estimator", "Prediction"]

INTERVAL_FROM = 5  # measurements; fewer say too little about the spread (D33)
TIE = 1e-5  # relative; sizes closer than this are one size (E79)


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


class Estimator:
    """Estimate how long a step takes from its size, learning from each run.

    Before the first measurement it answers with the default, linear through the origin. Not thread-safe: callers that
    share one estimator hold a lock, except around :meth:`predict`.

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
    >>> round(estimator.predict(3e6).value, 3)
    0.4
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
        _check("level", level, 0.0 < level < 1.0, "above 0 and below 1")
        _check("default_seconds", default_seconds, 0.0 < default_seconds < inf, "above 0")
        _check("default_size", default_size, 0.0 < default_size < inf, "above 0")
        _check("max_measurements", max_measurements, max_measurements >= 1, "at least 1")
        _check(
            "update_minimum_count",
            update_minimum_count,
            1 <= update_minimum_count <= max_measurements,
            f"1 to max_measurements ({max_measurements})",
        )
        _check("update_threshold", update_threshold, update_threshold >= 0.0, "at least 0")
        _check("update_floor", update_floor, update_floor >= 0.0, "at least 0")
        _check("spline_order", spline_order, 0 <= spline_order <= 5, "0 to 5")
        self.monotone = monotone
        self.level = level
        self.max_measurements = max_measurements
        self.update_minimum_count = update_minimum_count
        self.update_threshold = update_threshold
        self.update_floor = update_floor
        self.spline_order = spline_order
        self.default = (default_seconds, default_size)
        self._order: Order = self._declared or ComputationalOrder.O_N
        self._measurements: list[tuple[float, float]] = []
        self._curve: Curve | None = None
        self._legacy: Tck | None = None
        self._basis = "no runs yet"

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
        kept = [pair for pair in measurements if self._admits(*pair)]
        if kept:
            self._measurements = [(float(N_ref), float(dt)) for N_ref, dt in kept]
            self._refit()
        return self

    def update(self, N_ref: float, dt: float) -> bool:
        """Learn from one more run that took *dt* seconds; return whether the curve was fitted anew (E77)."""
        if not self._admits(N_ref, dt):
            return False
        expected = self.predict(N_ref).value
        self._measurements.append((float(N_ref), float(dt)))
        del self._measurements[: -self.max_measurements]
        if len(self._measurements) < self.update_minimum_count:
            return False
        if expected is not None and self._curve is not None:
            error = abs(expected - dt)
            if error <= self.update_threshold * dt or error <= self.update_floor:
                return False
        self._refit()
        return True

    def _admits(self, N_ref: object, dt: object) -> bool:
        seconds = as_size(dt)
        return seconds is not None and convert(self._order, N_ref) is not None

    def _refit(self) -> None:
        sizes = [N_ref for N_ref, _ in self._measurements]
        ns = [convert(self._order, N_ref) or 0.0 for N_ref in sizes]
        self._curve = fit_curve(
            [self._place(*pair) for pair in zip(sizes, ns, strict=True)],
            [dt for _, dt in self._measurements],
            self._n_at,
            level=self.level,
            monotone=self.monotone,
        )
        self._legacy = None
        count = len(sizes)
        self._basis = f"from {count} run{'s' * (count != 1)}"

    def _n_at(self, place: float) -> float | None:
        """Return N of a place: the inverse of :meth:`_place`, followed by the order."""
        return convert(self._order, place) if self._sized else place

    def _place(self, N_ref: float, n: float) -> float:
        """Return where a size lies on the axis of the fit: the size itself, unless its order is not one of the six."""
        return N_ref if self._sized else n

    @property
    def _sized(self) -> bool:
        return isinstance(self._order, ComputationalOrder) and self._order != ComputationalOrder.O_0

    # -- answering -----------------------------------------------------------------------------------------------

    def predict(self, N_ref: float | None) -> Prediction:
        """Estimate a run of size *N_ref*. Never raises; a size that cannot be used has no estimate."""
        n = convert(self._order, N_ref)
        if n is None or N_ref is None:
            return Prediction(None, None, None, "none", "no size to estimate from")
        curve = self._curve
        if curve is None:
            return self._without_data(n)
        value, low, high = curve.evaluate(self._place(float(N_ref), n), n)
        if len(self._measurements) < INTERVAL_FROM:
            return Prediction(value, None, None, "model", self._basis)
        return Prediction(value, low, high, "model", self._basis)

    def _without_data(self, n: float) -> Prediction:
        if self._legacy is not None:
            return Prediction(self._from_legacy(self._legacy, n), None, None, "legacy", "from a stored curve")
        seconds, size = self.default
        reference = convert(self._order, size)
        value = seconds * (n / reference) if reference else None
        if value is None or not isfinite(value):
            return Prediction(None, None, None, "none", "no runs yet, and no default for this order")
        return Prediction(value, None, None, "default", f"no runs yet: {seconds:g} s for a size of {size:g} is assumed")

    def _from_legacy(self, tck: Tck, n: float) -> float:
        knots, coefficients, _ = tck
        value = max(0.0, evaluate(tck, n))
        if n > knots[-1] > 0.0:  # E84: no faster than in proportion to N
            value *= n / knots[-1]
        return min(value, 1e300) if coefficients else 0.0

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
    def measurements(self) -> list[tuple[float, float]]:
        """The measurements kept, as (N_ref, seconds), oldest first."""
        return list(self._measurements)

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
        points = self._points()
        if not points or self._curve is None:
            seconds, size = self.default
            reference = convert(self._order, size)
            if not reference or self.order == "O_0":
                return [0.0, 0.0], [seconds], 0
            return [0.0, 0.0, reference, reference], [0.0, seconds], 1
        degree = 0 if self.order == "O_0" else min(len(points) - 1, self.spline_order)
        return sample(self._at, points, degree)

    def _points(self) -> list[float]:
        ns = sorted(n for N_ref, _ in self._measurements if (n := convert(self._order, N_ref)) is not None)
        points: list[float] = []
        for n in ns:
            if not points or n - points[-1] > TIE * points[-1]:
                points.append(n)
        if points and points[0] > 0.0 and len(points) < 3 and self.order != "O_0":
            points.insert(0, 0.0)
        return points

    def _at(self, n: float) -> float:
        """Seconds at N, for sampling: the table is in places, so look N's place up by the measurements around it."""
        assert self._curve is not None
        return self._curve.evaluate(_invert(self._order, n), n)[0]

    @classmethod
    def from_tck(cls, order: Order | str, tck: Tck, **options: float | bool | None) -> Estimator:
        """Make an estimator that answers from a stored curve until it has measurements (E62)."""
        knots, coefficients, degree = tck
        if not coefficients or (len(knots) != len(coefficients) + degree + 1 and not (degree == 0 and len(knots) == 2)):
            raise ConfigurationError(
                f"a spline of degree {degree} with {len(coefficients)} coefficients has "
                f"{len(coefficients) + degree + 1} knots, not {len(knots)}"
            )
        estimator = cls(order, **options)  # type: ignore[arg-type]
        estimator._legacy = (list(map(float, knots)), list(map(float, coefficients)), int(degree))
        return estimator


def _check(name: str, value: float, good: bool, wanted: str) -> None:
    if not good:
        raise ConfigurationError(f"{name} is {value!r}; it must be {wanted}")


def _invert(order: Order, n: float) -> float:
    """Return the place whose N is *n*."""
    if not isinstance(order, ComputationalOrder) or order == "O_0" or n <= 0.0:
        return n
    if order == "O_LOG_N":
        return exp(min(n, 700.0))
    if order == "O_N_2":
        return float(n**0.5)
    if order == "O_N_3":
        return float(n ** (1 / 3))
    if order == "O_N":
        return n
    size = max(n / max(log(max(n, 3.0)), 1.0), 1.0)  # n ln n: Newton's method converges in a few steps
    for _ in range(50):
        size = max(size - (size * log(size) - n) / (log(size) + 1.0), 1.0)
    return size
