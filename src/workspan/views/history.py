"""What is known of steps, for people: a table of all, and one with its measurements and a plot of its curve."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from workspan.views.format import MISSING, count, long_duration, one_line, shorten, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.estimate.forecast import Forecast
    from workspan.estimate.measurements import Measurement

__all__ = ["plot", "render_step", "render_steps"]

WIDTH, HEIGHT = 60, 12
_LEAST_NAME = 12


def render_steps(forecasts: Sequence[Forecast], *, encoding: str, columns: int | None = None) -> str:
    """Return a table of steps: how much is known of each, how its curve was made, how good it was last.

    Names are shortened for a terminal of so many *columns*.
    """
    rows: list[tuple[str, ...]] = [("step", "runs", "order", "degree", "source", "last error")]
    for forecast in forecasts:
        estimator = forecast.estimator
        rows.append(
            (
                _name(forecast),
                str(forecast.count),
                estimator.order,
                str(estimator.degree),
                "stale" if forecast.stale else estimator.source,
                _percent(_last_error(forecast.admitted())),
            )
        )
    if columns is not None:
        room = columns - sum(2 + max(map(len, cells)) for cells in list(zip(*rows, strict=True))[1:])
        rows = [(shorten(name, max(_LEAST_NAME, room)), *figures) for name, *figures in rows]
    return "\n".join(table(rows, encoding=encoding, right=(1, 3, 5)))


def render_step(forecast: Forecast, *, encoding: str) -> str:
    """Return what is known of one step: measurements, curve, error so far, and a plot."""
    estimator, admitted = forecast.estimator, forecast.admitted()
    measured = forecast.measurements()
    source = "stale: of an earlier N_ref" if forecast.stale else estimator.source
    lines = [
        _name(forecast),
        f"  order        {one_line(estimator.order)}",
        f"  N_ref        {forecast.history.fingerprint or MISSING}",
        f"  estimator    {source}, degree {estimator.degree}, {estimator.predict(_middle(admitted)).basis}",
        f"  error so far {_errors(admitted)}",
        f"  runs         {count(forecast.series.total, 'run')} so far, {len(measured)} kept, {len(admitted)} count",
    ]
    if measured:
        counted = {measurement.id for measurement in admitted}
        rows = [("  when", "N_ref", "took", "expected", "error", "")]
        rows += [
            (
                f"  {_when(m.start)}",
                MISSING if m.N_ref is None else f"{m.N_ref:.6g}",
                long_duration(m.dt),
                long_duration(m.dt_est),
                _percent(_error(m)),
                "" if m.id in counted else "does not count: N_ref was another one, or it ran beside others",
            )
            for m in measured
        ]
        lines += ["", *table(rows, encoding=encoding, right=(1, 2, 3, 4))]
    drawn = plot(forecast)
    return "\n".join([*lines, "", *drawn] if drawn else lines)


def plot(forecast: Forecast) -> list[str]:
    """Draw measurements (``o``), the curve (``*``) and its range (``.``) over N_ref, in ASCII.

    No lines where there is nothing to draw: fewer than two sizes.
    """
    points = [(m.N_ref, m.dt) for m in forecast.admitted() if m.N_ref is not None]
    if len({n for n, _ in points}) < 2:
        return []
    least, most = min(n for n, _ in points), max(n for n, _ in points)
    at = [least + (most - least) * i / (WIDTH - 1) for i in range(WIDTH)]
    curve = [forecast.predict(n) for n in at]
    highest = max([dt for _, dt in points] + [p.value for p in curve if p.value is not None]) or 1.0
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def put(column: int, seconds: float | None, sign: str) -> None:
        if seconds is not None and math.isfinite(seconds) and 0.0 <= seconds <= highest:
            cells[HEIGHT - 1 - round(seconds / highest * (HEIGHT - 1))][column] = sign

    for column, prediction in enumerate(curve):
        put(column, prediction.low, ".")
        put(column, prediction.high, ".")
        put(column, prediction.value, "*")
    for n, dt in points:
        put(round((n - least) / (most - least) * (WIDTH - 1)), dt, "o")
    labels = [long_duration(highest), *[""] * (HEIGHT - 2), "0"]
    width = max(map(len, labels))
    lines = [f"  {label.rjust(width)} |{''.join(row).rstrip()}" for label, row in zip(labels, cells, strict=True)]
    ends = f"{least:.4g}".ljust(WIDTH - len(f"{most:.4g}")) + f"{most:.4g}"
    edge = " " * width
    return [*lines, f"  {edge} +{'-' * WIDTH}", f"  {edge}  {ends}", f"  {edge}  N_ref; o run, * estimate, . its range"]


def _name(forecast: Forecast) -> str:
    name = one_line(forecast.history.key.full_name)
    return name if forecast.variant is None else f"{name} [{one_line(forecast.variant)}]"


def _middle(measurements: Sequence[Measurement]) -> float:
    sizes = sorted(m.N_ref for m in measurements if m.N_ref is not None)
    return sizes[len(sizes) // 2] if sizes else 1.0


def _error(measurement: Measurement) -> float | None:
    return None if measurement.dt_est is None or measurement.dt <= 0.0 else measurement.dt_est / measurement.dt - 1.0


def _last_error(measurements: Sequence[Measurement]) -> float | None:
    return _error(measurements[-1]) if measurements else None


def _errors(measurements: Sequence[Measurement]) -> str:
    errors = sorted(abs(e) for e in map(_error, measurements) if e is not None)
    if not errors:
        return MISSING
    usual = errors[len(errors) // 2]
    shown = f"{usual * 100:.0f} % of" if usual < 10 else _times(usual)
    return f"median {shown} the time taken, last {_percent(_last_error(measurements))}"


def _percent(part: float | None) -> str:
    if part is None:
        return MISSING
    if abs(part) >= 10:
        return f"{_times(part + 1)} too long"  # only what is too long can be so far off
    return f"{whole:+d} %" if (whole := round(part * 100)) else "0 %"


def _times(ratio: float) -> str:
    """Return a ratio of 10 or more in words, to three digits."""
    if ratio >= 1e9:
        return "over a billion times"
    return f"{round(ratio, 2 - math.floor(math.log10(ratio))):,.10g} times"


def _when(start: float | None) -> str:
    return MISSING if start is None else datetime.fromtimestamp(start).strftime("%Y-%m-%d %H:%M:%S")
