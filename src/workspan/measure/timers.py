"""The timed iterator: native where it was built, else the pure-Python twin; and the clock that its windows use.

On x86-64 the native timer reads the processor's counter where that runs at one speed and the kernel itself keeps time
by it; a chain turns its unit into ns by its own monotonic window, so no constant is measured beforehand. Elsewhere it
reads the monotonic clock. ``WORKSPAN_PURE_PYTHON=1`` in the environment forces the twin.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.measure import ticks

if TYPE_CHECKING:
    from workspan.measure import _timers_py as implementation
elif ticks.NATIVE:
    try:
        from workspan.measure import _timers as implementation
    except ImportError:
        from workspan.measure import _timers_py as implementation
else:
    from workspan.measure import _timers_py as implementation

__all__ = ["CLOCKS", "NATIVE", "Cell", "Timer", "default_clock", "implementation"]

NATIVE: bool = not implementation.__name__.endswith("_py")
"""Whether the compiled module is in use."""

CLOCKS = implementation.CLOCKS
Cell = implementation.Cell
Timer = implementation.Timer

_KERNEL = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_AGAIN = 1.0  # seconds after which the kernel is asked again: it may find that the counter cannot be trusted

_asked: tuple[Path, float, str] | None = None


def default_clock() -> str:
    """Return the name of the clock that windows use here: ``"tsc"`` or ``"monotonic"``."""
    return "tsc" if "tsc" in CLOCKS and _kernel_clock() == "tsc" else "monotonic"


def _kernel_clock() -> str:
    global _asked
    now = time.monotonic()
    asked = _asked
    if asked is None or asked[0] is not _KERNEL or now - asked[1] > _AGAIN:
        try:
            found = _KERNEL.read_text().strip()
        except OSError:
            found = ""
        _asked = asked = _KERNEL, now, found
    return asked[2]
