"""Computational orders."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from workspan.errors import ConfigurationError
from workspan.estimate.order import ComputationalOrder, convert, order_name, parse_order, size_of

FORMULAS = {
    "O_0": lambda n: 1.0,
    "O_LOG_N": math.log,
    "O_N": lambda n: n,
    "O_N_LOG_N": lambda n: n * math.log(n),
    "O_N_2": lambda n: n**2,
    "O_N_3": lambda n: n**3,
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("n", [1.0, 2.5, 1e3, 7e9, 1e50])
def test_order_agrees_with_its_formula(name, n):
    """E51: from 1 on every order is its formula to 1e-9."""
    assert ComputationalOrder(name)(n) == pytest.approx(FORMULAS[name](n), rel=1e-9)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (0, (1, 0, 0, 0, 0, 0)),
        (0.5, (1, 0, 0.5, 0, 0.25, 0.125)),
        (1, (1, 0, 1, 0, 1, 1)),
        (1e200, (1, math.log(1e200), 1e200, 1e200 * math.log(1e200), None, None)),
    ],
)
def test_edges_of_every_order(n, expected):
    """E52: at 0, below 1, at 1 and where squares overflow, N is finite and at least 0, or there is none."""
    found = [order(n) for order in ComputationalOrder]
    assert found == [None if e is None else pytest.approx(e, rel=1e-12) for e in expected]


@pytest.mark.parametrize("order", ComputationalOrder)
@pytest.mark.parametrize("size", [-1, -0.5, math.nan, math.inf, -math.inf, 10**400, None, "5", True, 1j])
def test_what_is_no_size_has_no_n(order, size):
    """E37, E52: negative, not finite, beyond a float's range or not a number: no N for any order, and no exception."""
    assert order(size) is None


@pytest.mark.parametrize("size", [np.float32(4), np.int64(4), Fraction(4), 4])
def test_any_real_number_is_a_size(size):
    """E37: every real scalar type is accepted and becomes a float."""
    found = ComputationalOrder.O_N_2(size)
    assert found == 16.0
    assert type(found) is float


@pytest.mark.parametrize(
    ("written", "order"),
    [("O_N2", "O_N_2"), ("O_LOGN", "O_LOG_N"), ("o_nlogn", "O_N_LOG_N"), ("O_0", "O_0"), ("O_N_3", "O_N_3")],
)
def test_both_spellings_are_read(written, order):
    """E50: the description's spellings mean the same orders."""
    assert parse_order(written) is ComputationalOrder(order)


def test_auto_and_functions_are_orders():
    """E50: an order may be "auto" or a function, stored by name."""
    assert parse_order("auto") is None
    assert order_name(None) == "auto"
    assert parse_order(math.sqrt) is math.sqrt
    assert order_name(math.sqrt) == "sqrt"
    assert convert(math.sqrt, 9.0) == 3.0


@pytest.mark.parametrize("order", [None, 3, "O_N_4", ""])
def test_unknown_order_is_refused(order):
    """E51: what is no order is a usage error that lists what is, with the value given."""
    with pytest.raises(ConfigurationError, match=rf"{order!r}; use one of O_0, O_LOG_N"):
        parse_order(order)


@pytest.mark.parametrize("function", [lambda n: 1 / 0, lambda n: math.nan, lambda n: -n, lambda n: "x"])
def test_fault_in_an_order_function_means_no_estimate(function):
    """E20, E50: a function that raises or returns no number of at least 0 gives no N."""
    assert convert(function, 2.0) is None


@pytest.mark.parametrize("order", [order for order in ComputationalOrder if order != "O_0"])
@pytest.mark.parametrize("size", [1.5, 30.0, 4e9])
def test_size_is_found_again(order, size):
    """E81: the inverse of an order, by which a curve is sampled over N."""
    assert size_of(order, order(size)) == pytest.approx(size, rel=1e-9)
