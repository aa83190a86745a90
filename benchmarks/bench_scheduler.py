"""What scheduling costs at scale, in time and memory: Workspan against daisy 2.0.0, serial mode, no-op blocks.

Each measurement is a process of its own, in turn, since a process gives memory back late or never.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import Row, compare, save

NAMES = {"ours": "workspan", "peer": "daisy"}


def nothing(block: Any) -> None:
    """Do nothing with a block."""


def cube(library: ModuleType, side: int, context: int) -> Any:
    """Make a task of ``side ** 3`` blocks of one voxel, with conflicts between neighbours if there is a context."""
    return library.Task(
        "cube",
        library.Roi((0,) * 3, (side + 2 * context,) * 3),
        library.Roi((0,) * 3, (1 + 2 * context,) * 3),
        library.Roi((context,) * 3, (1,) * 3),
        process_function=nothing,
        read_write_conflict=context > 0,
    )


def fan_in(library: ModuleType, side: int) -> Any:
    """Make a pipeline of ``side ** 3`` blocks that one block reads."""
    whole = library.Roi((0,) * 3, (side,) * 3)
    last = library.Task("last", whole, whole, whole, process_function=nothing, read_write_conflict=False)
    return cube(library, side, 0) + last


def peak_mb() -> float:
    """Highest resident memory of this process so far, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def child(name: str, what: str, side: int) -> dict[str, float]:
    """Run one case in this process: microseconds a block, and memory that it took beyond the imports, in MB."""
    library = importlib.import_module(name)
    make = {"plain": lambda s: cube(library, s, 0), "conflict": lambda s: cube(library, s, 1)}.get(what)
    job = fan_in(library, side) if make is None else make(side)
    warm = fan_in(library, 2)  # loads what the library loads late
    library.run_blockwise(warm, multiprocessing=False, progress=False, summary=False)
    before = peak_mb()
    begin = time.perf_counter()
    done = library.run_blockwise(job, multiprocessing=False, progress=False, summary=False)
    seconds = time.perf_counter() - begin
    assert done, f"{name} did not complete its blocks"
    return {"us": seconds / side**3 * 1e6, "mb": peak_mb() - before}


def run_child(side_name: str, what: str, side: int, folder: str) -> dict[str, float]:
    """Run :func:`child` in a fresh process."""
    command = [sys.executable, os.path.abspath(__file__), "--child", NAMES[side_name], what, str(side)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def run(side: int, fan_side: int, rounds: int) -> list[Row]:
    """Compare all cases."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for what, extent, label, time_target, memory_target in (
            ("plain", side, f"serial, {side}^3 blocks, no conflict", 1.0, None),
            ("conflict", side, f"serial, {side}^3 blocks, context 1 with conflict", 0.2, 0.5),
            ("fan-in", fan_side, f"serial, fan-in {fan_side**3} -> 1", 0.05, None),
        ):
            memory: dict[str, list[float]] = {"ours": [], "peer": []}

            def measure(name: str, what: str = what, extent: int = extent, memory: Any = memory) -> float:
                found = run_child(name, what, extent, folder)
                memory[name].append(found["mb"])
                return found["us"]

            rows.append(
                compare(
                    label,
                    lambda measure=measure: measure("ours"),
                    lambda measure=measure: measure("peer"),
                    unit="us/block",
                    rounds=rounds,
                    target=time_target,
                )
            )
            if memory_target is not None:
                ours, peer = (iter(memory[name]) for name in ("ours", "peer"))
                rows.append(
                    compare(
                        f"{label}: memory",
                        lambda ours=ours: next(ours),
                        lambda peer=peer: next(peer),
                        unit="MB",
                        rounds=rounds,
                        target=memory_target,
                    )
                )
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("LIBRARY", "CASE", "SIDE"), help=argparse.SUPPRESS)
    parser.add_argument("--side", type=int, default=100)
    parser.add_argument("--fan-side", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    if arguments.child:
        name, what, side = arguments.child
        print(json.dumps(child(name, what, int(side))))
        return
    rows = run(arguments.side, arguments.fan_side, arguments.rounds)
    print(save("scheduler", "daisy 2.0.0", rows, arguments.out))


if __name__ == "__main__":
    main()
