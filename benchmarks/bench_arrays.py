"""The same Gaussian over one Zarr array: a loop by hand, Workspan, Dask and, where it is installed, Cubed.

Each measurement is a process of its own that makes an output of its own. What counts is the call: interpreters that a
library starts are part of it, its imports are not. All outputs are compared with the loop's, voxel for voxel
(Cubed's without the outermost ones). Memory is the largest peak of one process that does blocks, as the kernel counted
it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from harness import Row, save
from scipy.ndimage import gaussian_filter

SIGMA = 1.5
HALO = int(4 * SIGMA + 0.5)
VARIANTS = ("loop", "workspan-1", "workspan-2", "dask-threads", "dask-processes", "cubed")


def smooth(data: np.ndarray) -> np.ndarray:
    """Filter what a block reads; uint8 in and out.

    Blocks are clipped at the edge of the volume, by hand, by Workspan and by Dask, so all filter as many voxels; the
    filter itself reflects there.
    """
    return np.rint(gaussian_filter(data, SIGMA, mode="reflect", output=np.float32)).astype(np.uint8)


def smooth_inside(data: np.ndarray) -> np.ndarray:
    """Filter what a block reads, and cut the halo off."""
    return smooth(data)[(slice(HALO, -HALO),) * data.ndim]


def by_loop(block: int) -> None:
    """Read, filter and write one chunk after the other, in this process."""
    source = zarr.open_array("raw.zarr", mode="r")
    out = zarr.create_array("out.zarr", shape=source.shape, chunks=source.chunks, dtype="u1")
    for begin in product(*(range(0, n, block) for n in source.shape)):
        end = [min(b + block, n) for b, n in zip(begin, source.shape, strict=True)]
        low = [max(b - HALO, 0) for b in begin]
        high = [min(e + HALO, n) for e, n in zip(end, source.shape, strict=True)]
        data = smooth(source[tuple(map(slice, low, high))])
        inner = tuple(slice(b - lo, e - lo) for b, e, lo in zip(begin, end, low, strict=True))
        out[tuple(map(slice, begin, end))] = data[inner]


def by_workspan(block: int, workers: int) -> None:
    """Let worker processes do it."""
    import workspan as ws

    task = ws.map_blocks(
        smooth, "raw.zarr", out="out.zarr", block_shape=block, halo=HALO, mode="clip", max_workers=workers
    )
    if not task.run(progress=False, summary=False):
        raise RuntimeError("workspan did not complete its blocks")


def by_dask(block: int, scheduler: str) -> None:
    """Let a scheduler of Dask's own do it, on two workers."""
    import dask
    import dask.array

    source = dask.array.from_zarr("raw.zarr", chunks=(block,) * 3)
    result = dask.array.map_overlap(smooth, source, depth=HALO, boundary="none", dtype=np.uint8)
    out = zarr.create_array("out.zarr", shape=source.shape, chunks=(block,) * 3, dtype="u1")
    with dask.config.set(scheduler=scheduler, num_workers=2):
        dask.array.store(result, out, lock=False)


def by_cubed(block: int) -> None:
    """Let Cubed do it, on two processes.

    It refuses a plan whose blocks need more than ``allowed_mem`` before anything runs, and resumes by whole arrays. Its
    processes are not reaped, so the kernel tells nothing of their memory.
    """
    import cubed

    spec = cubed.Spec(
        work_dir="cubed",
        allowed_mem="2GB",
        executor_name="processes",
        executor_options={"max_workers": 2},
    )
    source = cubed.from_zarr("raw.zarr", spec=spec)
    # It pads with constants only and does not trim, so its outermost voxels are other ones and are not compared.
    result = cubed.map_overlap(smooth_inside, source, dtype=np.uint8, chunks=source.chunks, depth=HALO, boundary=0)
    cubed.to_zarr(result, "out.zarr")


METHODS: dict[str, Callable[[int], None]] = {
    "loop": by_loop,
    "workspan-1": partial(by_workspan, workers=1),
    "workspan-2": partial(by_workspan, workers=2),
    "dask-threads": partial(by_dask, scheduler="threads"),
    "dask-processes": partial(by_dask, scheduler="processes"),
    "cubed": by_cubed,
}


def load(variant: str) -> None:
    """Import what a variant needs, before the clock runs."""
    for name in {"workspan": ["workspan.arrays.mapping"], "dask": ["dask.array"], "cubed": ["cubed"]}.get(
        variant.split("-")[0], []
    ):
        __import__(name)


def measure_here(variant: str, block: int) -> dict[str, float]:
    """Run one variant in this process; return its seconds and the peak memory of a process that did blocks."""
    load(variant)
    begin = time.perf_counter()
    METHODS[variant](block)
    seconds = time.perf_counter() - begin
    alone = variant in ("loop", "dask-threads")
    usage = resource.getrusage(resource.RUSAGE_SELF if alone else resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)}


class Bench:
    """Measures variants on one input, and keeps what they took."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.times: dict[str, list[float]] = {}
        """Variant -> seconds of its call."""
        self.peaks: dict[str, list[float]] = {}
        """Variant -> peak of one of its processes, in MB."""
        self.truth: Any = None

    def measure(self, variant: str) -> None:
        """Run one variant in a process of its own, and look at what it made."""
        for name in ("out.zarr", "cubed", "workspan_logs"):
            shutil.rmtree(name, ignore_errors=True)
        command = [sys.executable, str(Path(__file__).resolve()), "--measure", variant, "--block", str(self.block)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        self.peaks.setdefault(variant, []).append(found["peak_bytes"] / 1e6)
        self.times.setdefault(variant, []).append(found["seconds"])
        self.check(variant)

    def check(self, variant: str) -> None:
        """Compare the output with the first one, chunk by chunk."""
        out = zarr.open_array("out.zarr", mode="r")
        if self.truth is None:
            shutil.copytree("out.zarr", "truth.zarr")
            self.truth = zarr.open_array("truth.zarr", mode="r")
        for where in regions(out.shape, self.block):
            if variant == "cubed":
                where = tuple(
                    slice(max(w.start, HALO), min(w.stop, n - HALO)) for w, n in zip(where, out.shape, strict=True)
                )
            if not np.array_equal(out[where], self.truth[where]):
                raise RuntimeError(f"{variant} has another result in {where}")

    def row(self, what: str, peer: str, target: float, *, ours: str = "workspan-2", unit: str = "s") -> Row:
        """Compare two variants: the best rounds."""
        a, b = ((self.times if unit == "s" else self.peaks)[name] for name in (ours, peer))
        row = Row(what, unit, min(a), min(b), statistics.median(a), statistics.median(b), target)
        verdict = "met" if row.met else "MISSED"
        print(f"{what}: ours {row.ours:.1f}, peer {row.peer:.1f} {unit}, ratio {row.ratio:.2f}; {verdict}", flush=True)
        return row


def regions(shape: tuple[int, ...], block: int) -> Iterator[tuple[slice, ...]]:
    """Yield the index of each block."""
    for begin in product(*(range(0, n, block) for n in shape)):
        yield tuple(slice(b, b + block) for b in begin)


def make_input(side: int, block: int) -> None:
    """Write a volume with structure, so that it compresses as an image does."""
    source = zarr.create_array("raw.zarr", shape=(side,) * 3, chunks=(block,) * 3, dtype="u1")
    random = np.random.default_rng(0)
    for where in regions(source.shape, block):
        size = source[where].shape
        coarse = random.integers(0, 200, tuple(-(-n // 8) for n in size), dtype=np.uint8)
        fine = coarse.repeat(8, 0).repeat(8, 1).repeat(8, 2)[tuple(map(slice, size))]
        source[where] = fine + random.integers(0, 16, size, dtype=np.uint8)


def run(side: int, block: int, rounds: int) -> list[Row]:
    """Compare all variants."""
    make_input(side, block)
    bench = Bench(block)
    variants = [name for name in VARIANTS if name != "cubed" or importlib.util.find_spec("cubed") is not None]
    for number in range(rounds):
        # In turn, and every other time the other way round, so that a machine that drifts favours nobody.
        for variant in variants if number % 2 == 0 else variants[::-1]:
            bench.measure(variant)
    what = f"{side}^3 uint8, "
    dask = min("dask-threads", "dask-processes", key=lambda name: min(bench.times[name]))
    rows = [
        bench.row(f"{what}1 worker / loop", "loop", 1.05, ours="workspan-1"),
        bench.row(f"{what}2 workers / loop", "loop", 1 / 1.7),
        bench.row(f"{what}2 workers / {dask}, Dask's best", dask, 1.0),
    ]
    if "cubed" in variants:
        rows.append(bench.row(f"{what}2 workers / Cubed's 2 processes", "cubed", 1.0))
    for peer in variants:
        # 0: its processes were not reaped, so the kernel tells nothing.
        if not peer.startswith("workspan") and all(bench.peaks[peer]):
            rows.append(bench.row(f"{what}peak of one process / {peer}", peer, 1.05, unit="MB"))
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    parser.add_argument("--measure", choices=VARIANTS, help="run one variant in the working directory, print its cost")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_here(arguments.measure, arguments.block)))
        return
    out = arguments.out.resolve() if arguments.out else None
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        rows = run(arguments.side, arguments.block, arguments.rounds)
    names = [f"{name} {version(name)}" for name in ("dask", "cubed") if importlib.util.find_spec(name)]
    print(save("arrays", ", ".join(["loop", *names]), rows, out))


if __name__ == "__main__":
    main()
