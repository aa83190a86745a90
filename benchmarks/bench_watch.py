"""What it costs a run that somebody looks at it (R62): nothing that can be told from the run's own spread.

The peer is the same run with nobody looking. The two run in turn, in alternating order, and what is claimed is the
median of the ratios of neighbours: a machine whose speed drifts by more than the two per cent leaves that alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import HERE, Row, save

import workspan
from workspan import config, live
from workspan.live import outlet
from workspan.live.server import Server

TARGET = 1.02


def nothing(block: Any) -> None:
    """Do nothing, so that the run is all there is."""


def doze(block: Any) -> None:
    """Take a millisecond of a processor."""
    end = time.perf_counter() + 1e-3
    while time.perf_counter() < end:
        pass


def run(function: Any, blocks: int, engine: str) -> float:
    """Run a task and return the milliseconds that the call took."""
    roi, one = workspan.Roi((0,), (blocks,)), workspan.Roi((0,), (1,))
    task = workspan.Task("line", roi, one, one, function, read_write_conflict=False, max_workers=2)
    begin = time.perf_counter()
    done = workspan.run_blockwise(task, engine=engine, progress=False, summary=False, block_tracking=False)
    seconds = time.perf_counter() - begin
    if not done:
        raise RuntimeError("the run did not complete its blocks")
    return seconds * 1e3


def connected() -> int:
    """Return how many viewers this process has."""
    assert isinstance(outlet._server, Server)
    return len(outlet._server._viewers)


@contextlib.contextmanager
def viewer(what: str) -> Iterator[None]:
    """Have somebody look: ``reading``, ``stopped`` or ``killed`` (which happens after a tenth of a second)."""
    live.start()
    before = connected()
    command = [sys.executable, "-m", "workspan", "watch", "--plain"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while connected() == before:
                time.sleep(0.01)
            if what == "stopped":
                process.send_signal(signal.SIGSTOP)
            elif what == "killed":
                subprocess.Popen(["/bin/sh", "-c", f"sleep 0.1; kill -9 {process.pid}"])
            yield
        finally:
            process.kill()
    while connected() > before:
        time.sleep(0.01)


def watched(what: str, *args: Any) -> Callable[[], float]:
    """Return a measurement of a run that somebody looks at."""

    def measure() -> float:
        with viewer(what):
            return run(*args)

    return measure


def unwatched(*args: Any) -> float:
    """Return the milliseconds of a run whose viewer has just left, so that the machine is as it is with one."""
    with viewer("reading"):
        pass
    return run(*args)


def crowd(*args: Any) -> float:
    """Return the milliseconds of a run with five viewers, two of which are stopped."""
    with contextlib.ExitStack() as stack:
        for what in ("reading", "stopped", "reading", "stopped", "reading"):
            stack.enter_context(viewer(what))
        return run(*args)


def pairs(what: str, ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> Row:
    """Compare neighbours."""
    ratios, found = [], []
    for number in range(rounds):
        if number % 2:
            one = ours()
            other = peer()
        else:
            other = peer()
            one = ours()
        ratios.append(one / other)
        found.append((one, other))
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4) if rounds > 1 else (ratio, ratio, ratio)
    medians = [statistics.median(side) for side in zip(*found, strict=True)]
    row = Row(what, "times the unwatched run", ratio, 1.0, medians[0] / medians[1], 1.0, TARGET)
    spread = f"half of the {rounds} pairs within {low:.3f} to {high:.3f}"
    print(f"{what}: {ratio:.3f} ({spread}; medians {medians[0]:.0f} and {medians[1]:.0f} ms)", flush=True)
    return row


def rows(scale: float, rounds: int, only: str) -> Iterator[Row]:
    """Compare watched runs with those that nobody looks at."""
    serial = nothing, int(100_000 * scale), "serial"
    workers = doze, int(1000 * scale), "processes"
    cases = [
        ("serial, a viewer that reads", watched("reading", *serial), serial),
        ("serial, a viewer that is stopped", watched("stopped", *serial), serial),
        ("serial, a viewer that is killed", watched("killed", *serial), serial),
        ("serial, three viewers that read and two that are stopped", lambda: crowd(*serial), serial),
        ("2 workers, a viewer that reads", watched("reading", *workers), workers),
        ("2 workers, a viewer that is stopped", watched("stopped", *workers), workers),
    ]
    for what, ours, args in cases:
        if only in what:
            yield pairs(f"{args[1]:,} blocks, {what}", ours, lambda a=args: unwatched(*a), rounds)


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKSPAN_LIVE_DIRECTORY"] = folder
        config.reset()
        found = list(rows(args.scale, args.rounds, args.only))
        live.stop()
    if not args.only:
        print(save("watch", "the same run with nobody looking", found, args.out))


if __name__ == "__main__":
    main()
