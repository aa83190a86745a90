"""Three timers, one suite: native over the processor's counter, native over the monotonic clock, pure Python."""

from __future__ import annotations

import importlib

import pytest

from helpers.step_kit import Clock
from workspan import TransformClock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module", params=["tsc", "monotonic", "pure"])
def transform_clock(request: pytest.FixtureRequest) -> type[TransformClock]:
    """Return the clock class, bound to one of the timers."""
    if request.param == "pure":
        module = importlib.import_module("workspan.measure._timers_py")
    else:
        module = pytest.importorskip("workspan.measure._timers", reason="the native module is not built")
        if request.param not in module.CLOCKS:
            pytest.skip("no invariant counter here")
    source = None if request.param == "pure" else request.param
    return type("Bound", (TransformClock,), {"__slots__": (), "_timers": module, "_source": source})
