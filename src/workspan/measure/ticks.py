"""The clock, the bookkeeping of sections and running sums: native where it was built, else the pure-Python twin.

``WORKSPAN_PURE_PYTHON=1`` in the environment forces the twin.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workspan.measure import _ticks_py as implementation
elif os.environ.get("WORKSPAN_PURE_PYTHON", "0") in ("", "0"):
    try:
        from workspan.measure import _ticks as implementation
    except ImportError:
        from workspan.measure import _ticks_py as implementation
else:
    from workspan.measure import _ticks_py as implementation

__all__ = [
    "NATIVE",
    "Lane",
    "Meter",
    "Moments",
    "Node",
    "Section",
    "Slope",
    "Tree",
    "Watch",
    "current_lane",
    "implementation",
    "now_ns",
    "push_each",
    "running_task",
]

NATIVE: bool = not implementation.__name__.endswith("_py")
"""Whether the compiled module is in use."""

Lane = implementation.Lane
Meter = implementation.Meter
Moments = implementation.Moments
Node = implementation.Node
Section = implementation.Section
Slope = implementation.Slope
Tree = implementation.Tree
Watch = implementation.Watch
current_lane = implementation.current_lane
now_ns = implementation.now_ns
push_each = implementation.push_each
running_task = implementation.running_task
