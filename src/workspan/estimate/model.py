"""The fit: from measurements to a curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workspan.estimate.curve import Curve, Floats, tabulate

__all__ = ["fit_curve"]

SMALLEST = 1e-9  # s: what a clock cannot resolve is taken as this, as logarithms need more than 0
SHARES = np.concatenate(([0.0], 2.0 ** np.arange(-16.0, 17.0)))


def fit_curve(
    places: Sequence[float], ns: Sequence[float], dts: Sequence[float], *, level: float, monotone: bool | None
) -> Curve:
    """Fit a curve to measurements in the order in which they were made.

    Parameters
    ----------
    places, ns, dts
        Place, N and seconds of each measurement, at least one.
    level
        Share of runs that the interval is to hold.
    monotone
        ``True``: never falling. ``None`` and ``False``: as the data say.
    """
    n = np.asarray(ns, float)
    y = np.log(np.maximum(np.asarray(dts, float), SMALLEST))
    scale = float(np.median(n)) or 1.0
    laws = np.log(np.maximum(SHARES[:, None] + n[None, :] / scale, 1e-30))
    shifts = np.median(y - laws, axis=1)
    errors = np.abs(y - laws - shifts[:, None])
    best = int(np.argmin(errors.mean(axis=1)))
    residuals = y - laws[best] - shifts[best]
    last = float(np.median(residuals[-5:]))

    def law(at: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(SHARES[best] + at / scale, 1e-30)) + shifts[best] + last / 2)

    order = np.argsort(places, kind="stable")
    nodes, chosen = np.unique(np.asarray(places, float)[order], return_index=True)
    n_nodes = n[order][chosen]
    grid = np.log(np.maximum(nodes, 1e-300))
    values = law(n_nodes)
    half = np.full(len(values), float(np.quantile(np.abs(residuals), level)))
    if len(y) < 5:
        half[:] = np.nan
    ends = (float(n_nodes[0]), float(n_nodes[-1]), float(np.exp(values[0])), float(np.exp(values[-1])))
    return tabulate(grid.tolist(), values.tolist(), half.tolist(), half.tolist(), ends)
