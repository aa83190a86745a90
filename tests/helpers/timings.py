"""A step whose times are kept, and a look at the folder that they are kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workspan.estimate import WallClockTime
from workspan.estimate.recorder import ProgressRecorder

KEY = (__name__, "step", None)


@WallClockTime(N_ref=lambda n, *_: n, order="O_N")
def step(n: float, work: Any = None) -> None:
    """Take as long as told."""
    if work is not None:
        work(n)


def documents(home: Path) -> list[Path]:
    """Timing files, oldest first."""
    return sorted(home.glob("execution_timing_*.json"))


def count(recorder: ProgressRecorder, key: Any = KEY) -> int:
    """Number of stored measurements."""
    try:
        return len(recorder.forecast(key).measurements())
    except Exception:
        return 0
