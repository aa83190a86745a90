"""What timing a step costs: a function under ``WallClockTime`` against the bare function.

Rows: enabled and not logged, the size a number or a function (its own call taken off), a ``with`` block, and disabled.
``peer`` is the limit, in microseconds a call.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import harness

from workspan import config
from workspan.estimate import WallClockTime
from workspan.estimate.recorder import use

CALLS = 20_000


def bare(size):
    """Do nothing."""
    return size


def size_of(size):
    """Return the size."""
    return size


@WallClockTime(N_ref=1.0, order="O_N")
def constant(size):
    """Do nothing, with a constant size."""
    return size


@WallClockTime("sized", N_ref=size_of, order="O_N")
def sized(size):
    """Do nothing, with a size."""
    return size


def block(size):
    """Do nothing in a block."""
    with WallClockTime("block", N_ref=size, order="O_N"):
        return size


def cost(function, calls, *less) -> float:
    """Microseconds of a call, less those of other functions."""

    def seconds(each):
        sizes = [float(i % 1000 + 1) for i in range(calls)]
        begun = time.perf_counter()
        for size in sizes:
            each(size)
        return time.perf_counter() - begun

    return (seconds(function) - sum(map(seconds, less))) / calls * 1e6


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        config.configure(timing={"directory": folder})
        cases = [
            ("enabled, constant size", constant, (bare,), 5.0),
            ("enabled, size from a function", sized, (bare, size_of), 5.0),
            ("enabled, with block", block, (bare,), 10.0),
        ]
        for name, function, less, limit in cases:
            for _ in range(2):
                cost(function, 1000)
            best = [cost(function, options.calls, *less) for _ in range(options.rounds)]
            rows.append(harness.Row(name, "us", min(best), limit, sorted(best)[len(best) // 2], limit, 1.0))
        config.configure(timing={"enabled": False})
        best = [cost(sized, options.calls, bare) for _ in range(options.rounds)]
        rows.append(harness.Row("disabled", "us", min(best), 0.5, sorted(best)[len(best) // 2], 0.5, 1.0))
        config.configure(timing={"enabled": True})
        recorder = use(None)
        if recorder is not None:
            recorder.close()
    harness.save("recorder", "the limit", rows, options.out)


if __name__ == "__main__":
    main()
