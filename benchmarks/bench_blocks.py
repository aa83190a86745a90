"""What a block costs on top of the user's function: Workspan against daisy 2.0.0, same layouts, no-op blocks."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import daisy
from harness import Row, compare, save

import workspan


def nothing(block: Any) -> None:
    """Do nothing with a block."""


def cost(
    library: ModuleType, side: int, *, context: int = 0, workers: int = 0, tracked: bool = False, dims: int = 3
) -> float:
    """Run ``side ** dims`` blocks of one voxel; return microseconds a block, the whole call included.

    `context` is the halo in voxels, with conflicts between neighbours; without workers the blocks run in this process.
    """
    Roi = library.Roi
    with tempfile.TemporaryDirectory() as folder:
        task = library.Task(
            "nothing",
            Roi((0,) * dims, (side + 2 * context,) * dims),
            Roi((0,) * dims, (1 + 2 * context,) * dims),
            Roi((context,) * dims, (1,) * dims),
            process_function=nothing,
            read_write_conflict=context > 0,
            max_workers=max(1, workers),
            **({"tracking_path": str(Path(folder, "tracking")), "resource_tracking": True} if tracked else {}),
        )
        begin = time.perf_counter()
        done = library.run_blockwise(
            task, multiprocessing=workers > 0, progress=False, summary=False, block_tracking=tracked
        )
        seconds = time.perf_counter() - begin
    if not done:
        raise RuntimeError(f"{library.__name__} did not complete its blocks")
    return seconds / side**dims * 1e6


def run(side: int, conflict_side: int, process_blocks: int, rounds: int) -> list[Row]:
    """Compare all layouts; sizes are blocks along an axis of a cube, and blocks in a row for the processes."""

    def row(what: str, target: float, side: int, **how: Any) -> Row:
        def measure(library: ModuleType) -> float:
            return cost(library, side, **how)

        return compare(
            what,
            lambda: measure(workspan),
            lambda: measure(daisy),
            unit="us/block",
            rounds=rounds,
            target=target,
        )

    return [
        row(f"serial, {side}^3 blocks, no conflict", 1.0, side),
        row(f"serial, {conflict_side}^3 blocks, context 1 with conflict", 0.2, conflict_side, context=1),
        row(f"2 processes, {process_blocks} blocks", 1 / 4, process_blocks, workers=2, dims=1),
        row(f"2 processes, {process_blocks} blocks, tracked", 1 / 3, process_blocks, workers=2, dims=1, tracked=True),
    ]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=60)
    parser.add_argument("--conflict-side", type=int, default=36)
    parser.add_argument("--process-blocks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    # Both libraries keep logs below the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        rows = run(arguments.side, arguments.conflict_side, arguments.process_blocks, arguments.rounds)
    print(save("blocks", f"daisy {daisy.__version__}", rows, arguments.out))


if __name__ == "__main__":
    main()
