"""The order ``"auto"``: which of the six fits best, judged on measurements left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workspan.estimate.model import CONSTANT_PENALTY, SHARES, choose_shape
from workspan.estimate.order import ComputationalOrder

__all__ = ["choose_order", "order_errors"]

FROM = 4  # distinct sizes; fewer do not tell orders apart
WORTH = 0.9  # another order than O_N must have at most this part of its error


def order_errors(sizes: Sequence[float], dts: Sequence[float]) -> dict[ComputationalOrder, float]:
    """Return the usual relative error of each order, with a constant cost beside it, for measurements left out.

    Parameters
    ----------
    sizes, dts
        N_ref and seconds of each measurement. An order without a finite N for one of them has no error.
    """
    y = np.log(np.maximum(np.asarray(dts, float), 1e-9))
    errors = {}
    for order in ComputationalOrder:
        ns = [order(size) for size in sizes]
        if None in ns:
            continue
        n = np.array(ns, float)
        scale = float(np.median(n)) or 1.0
        shapes = np.log(np.maximum(SHARES[:, None] + n / scale, 1e-12))
        law = choose_shape(shapes, y, CONSTANT_PENALTY * (SHARES > 0.0))
        errors[order] = float(np.expm1(np.abs(law.without - y).mean()))
    return errors


def choose_order(sizes: Sequence[float], dts: Sequence[float]) -> tuple[ComputationalOrder, dict[str, float]]:
    """Return the order with the smallest error, and the error of each; O_N where the data do not tell."""
    if len(set(sizes)) < FROM:
        return ComputationalOrder.O_N, {}
    errors = order_errors(sizes, dts)
    best = min(errors, key=errors.__getitem__)
    usual = errors.get(ComputationalOrder.O_N)
    if usual is not None and errors[best] > WORTH * usual:
        best = ComputationalOrder.O_N
    return best, {order.value: error for order, error in errors.items()}
