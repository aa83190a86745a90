"""What it costs to know what a run costs: serial, tracked, no-op blocks with conflicts, and reading the result.

Against daisy 2.0.0, each measurement in a process of its own, in turn. Reading a store back has no peer: there the
limit stands in its place.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import Row, compare, save

NAMES = {"ours": "workspan", "peer": "daisy"}
LIMIT_MS = 1000.0
"""For reading the report and the table of all blocks of one store."""


def nothing(block: Any) -> None:
    """Do nothing with a block."""


def tracked(library: ModuleType, side: int, store: str) -> Any:
    """Make a task of ``side ** 3`` blocks of one voxel, with conflicts between neighbours, all measured."""
    return library.Task(
        "cube",
        library.Roi((0,) * 3, (side + 2,) * 3),
        library.Roi((0,) * 3, (3,) * 3),
        library.Roi((1,) * 3, (1,) * 3),
        process_function=nothing,
        read_write_conflict=True,
        tracking_path=store,
        resource_tracking=True,
    )


def peak_mb() -> float:
    """Highest resident memory of this process since the mark was reset, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def resident_mb() -> float:
    """Resident memory of this process now, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def run_child(name: str, side: int, store: str) -> dict[str, float]:
    """Run one library in this process: microseconds a block, and memory that it took beyond the imports, in MB."""
    import zarr

    library = importlib.import_module(name)
    run = {"multiprocessing": False, "progress": False, "summary": False}
    library.run_blockwise(tracked(library, 2, f"{store}-warm"), **run)  # loads what the library loads late
    before = resident_mb()
    job = tracked(library, side, store)
    begin = time.perf_counter()
    done = library.run_blockwise(job, **run)
    seconds = time.perf_counter() - begin
    assert done, f"{name} did not complete its blocks"
    # Each block resets the mark: it tells of the time after the last one only, and the store of all before.
    peak = max(peak_mb(), float(zarr.open_group(store, mode="r")["peak_rss_bytes"][...].max()) / 2**20)
    return {"us": seconds / side**3 * 1e6, "mb": peak - before}


def read_child(side: int, store: str) -> dict[str, float]:
    """Read report and table of a store in this process, in ms; imports are not in it."""
    import pyarrow  # noqa: F401

    library = importlib.import_module("workspan")
    task = tracked(library, side, store)
    tracked(library, 2, f"{store}-warm").report().to_frame()
    begin = time.perf_counter()
    report = task.report()
    rows = report.to_frame().num_rows
    milliseconds = (time.perf_counter() - begin) * 1e3
    assert rows == report.blocks.count == side**3
    return {"ms": milliseconds}


def fresh(*arguments: object) -> dict[str, float]:
    """Run a child of this script in a fresh process and return what it found."""
    command = [sys.executable, os.path.abspath(__file__), "--child", *map(str, arguments)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def run(side: int, rounds: int, folder: str) -> list[Row]:
    """Compare running, then time reading."""
    label = f"serial, tracked, {side}^3 blocks, context 1 with conflict"
    memory: dict[str, list[float]] = {"ours": [], "peer": []}

    def measure(name: str) -> float:
        store = os.path.join(folder, name)
        for path in (store, f"{store}-warm"):
            shutil.rmtree(path, ignore_errors=True)
        found = fresh("run", NAMES[name], side, store)
        memory[name].append(found["mb"])
        return found["us"]

    rows = [
        compare(label, lambda: measure("ours"), lambda: measure("peer"), unit="us/block", rounds=rounds, target=0.35)
    ]
    ours, peer = (iter(memory[name]) for name in ("ours", "peer"))
    rows.append(
        compare(f"{label}: memory", lambda: next(ours), lambda: next(peer), unit="MB", rounds=rounds, target=1.0)
    )
    store = os.path.join(folder, "ours")
    rows.append(
        compare(
            f"report and table of {side}^3 blocks, against a limit",
            lambda: fresh("read", "workspan", side, store)["ms"],
            lambda: LIMIT_MS,
            unit="ms",
            rounds=rounds,
            target=1.0,
        )
    )
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4, metavar=("CASE", "LIBRARY", "SIDE", "STORE"), help=argparse.SUPPRESS)
    parser.add_argument("--side", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    if arguments.child:
        case, name, side, store = arguments.child
        os.chdir(os.path.dirname(store))  # both libraries keep logs below the working directory
        found = run_child(name, int(side), store) if case == "run" else read_child(int(side), store)
        print(json.dumps(found))
        return
    import daisy

    with tempfile.TemporaryDirectory() as folder:
        rows = run(arguments.side, arguments.rounds, folder)
    print(save("report", f"daisy {daisy.__version__}", rows, arguments.out))


if __name__ == "__main__":
    main()
