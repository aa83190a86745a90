"""Datasets beside a hand-written loop, Dask and Ray Data: files -> two batch functions -> files, and rows.

All sides read the same Parquet files, call the same two functions and write with the same options. What workers cost to
start is in every row that says "whole call", and in none that says "first task to last". Sides that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dataset_functions import length, scaled, shifted, wanted, weight
from harness import HERE, Row, compare, save

import workspan as ws
from workspan.engines import Processes


def make(folder: Path, rows: int, files: int) -> None:
    """Write the files that all sides read."""
    rng = np.random.default_rng(0)
    each = rows // files
    for number in range(files):
        columns = {name: rng.normal(size=each) for name in "abd"}
        pq.write_table(pa.table({**columns, "c": rng.integers(0, 1000, each)}), folder / f"{number:03d}.parquet")


def one_file(source: str, target: str) -> int:
    """Do the job on one file as one would by hand."""
    table = pq.read_table(source, use_threads=False)
    batch = {name: table.column(name).to_numpy() for name in table.column_names}
    pq.write_table(pa.table(weight(length(batch))), target, compression="zstd")
    return int(table.num_rows)


class Job:
    """The job on the files of a folder; every way of doing it returns its milliseconds, and its output is checked."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder / "in", rows
        self._out = folder / "out"
        self.spans: list[float] = []
        """Milliseconds from the first task to the last of our runs."""

    @property
    def files(self) -> list[Path]:
        """What is read."""
        return sorted(self.folder.iterdir())

    def timed(self, run: Callable[[str], Any]) -> float:
        """Run one way of doing it."""
        shutil.rmtree(self._out, ignore_errors=True)
        begin = time.perf_counter()
        run(str(self._out))
        milliseconds = (time.perf_counter() - begin) * 1e3
        found = sum(pq.read_metadata(path).num_rows for path in self._out.glob("*.parquet"))
        if found != self.rows:
            raise RuntimeError(f"{found} rows written, {self.rows} expected")
        return milliseconds

    def loop(self) -> float:
        """By hand."""

        def run(out: str) -> None:
            os.makedirs(out)
            for path in self.files:
                one_file(str(path), f"{out}/{path.name}")

        return self.timed(run)

    def ours(self, data: Any = None, **how: Any) -> float:
        """By Workspan, from the files or from other data."""
        data = ws.read_parquet(self.folder) if data is None else data
        steps = data.map_batches(length).map_batches(weight)
        runs = []
        milliseconds = self.timed(lambda out: runs.append(steps.write_parquet(out, progress=False, **how)))
        self.spans.append(runs[0].stats_summary().span_seconds * 1e3)
        return milliseconds

    def dask(self, way: str) -> float:
        """By Dask on 2 processes, one call a file."""
        dask, bag = importlib.import_module("dask"), importlib.import_module("dask.bag")

        def run(out: str) -> None:
            os.makedirs(out)
            pairs = [(str(path), f"{out}/{path.name}") for path in self.files]
            with dask.config.set(scheduler="processes", num_workers=2):
                if way == "bag":
                    bag.from_sequence(pairs, npartitions=len(pairs)).starmap(one_file).compute()
                else:
                    dask.compute(*[dask.delayed(one_file)(*pair) for pair in pairs])

        return self.timed(run)

    def ray(self, ray: ModuleType, data: Any = None) -> float:
        """By Ray Data, from the files or from other data."""

        def run(out: str) -> None:
            source = ray.data.read_parquet(str(self.folder)) if data is None else data
            steps = source.map_batches(length, batch_size=None).map_batches(weight, batch_size=None)
            steps.write_parquet(out, compression="zstd")

        return self.timed(run)


def pair(rows: list[Row], what: str, ours: Callable[[], Any], peer: Callable[[], float], **how: Any) -> None:
    """Compare, and add the row."""
    rows.append(compare(what, ours, peer, unit="ms", **how))


def beside_the_loop(job: Job, rounds: int) -> list[Row]:
    """Compare with the loop: in this process, on one worker and on two."""
    rows: list[Row] = []
    job.loop()  # the first use of a library is no figure of either side
    pair(rows, "in the same process", lambda: job.ours(engine="serial"), job.loop, rounds=rounds, target=1.1)
    for workers, span, whole in ((1, 1.1, 1.6), (2, 1 / 1.7, 1.0)):
        name = f"{workers} worker{'s' * (workers > 1)}"
        ours = partial(job.ours, max_workers=workers)
        with_and_without_start(rows, job, name, ours, job.loop, rounds=rounds, span=span, whole=whole)
    return rows


def with_and_without_start(
    rows: list[Row],
    job: Job,
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    *,
    rounds: int,
    span: float,
    whole: float,
) -> None:
    """Compare calls with the start of our workers, and the same calls without it: `span` and `whole` are targets."""
    calls: list[float] = []
    peers: list[float] = []

    def tasks() -> float:
        calls.append(ours())
        return job.spans[-1]

    def other() -> float:
        peers.append(peer())
        return peers[-1]

    pair(rows, f"{name}, first task to last", tasks, other, rounds=rounds, target=span)
    pair(rows, f"{name}, whole call", calls.pop, peers.pop, rounds=rounds, target=whole)


def beside_dask(job: Job, rounds: int) -> list[Row]:
    """Compare whole calls on two processes."""
    rows: list[Row] = []
    for way in ("bag", "delayed"):
        two = partial(job.ours, max_workers=2)
        pair(rows, f"2 workers, whole call, {way}", two, lambda way=way: job.dask(way), rounds=rounds, target=1.0)
    return rows


# -- rows ------------------------------------------------------------------------------------------------------------


def our_rows(rows: int, timing: str, **how: Any) -> float:
    """Return the milliseconds that rows take through three functions."""
    data = ws.range(rows, blocks=16).map(scaled).filter(wanted).map(shifted).options(timing=timing)
    begin = time.perf_counter()
    found = data.count(**how)
    milliseconds = (time.perf_counter() - begin) * 1e3
    assert found == rows - len(range(0, rows, 3)), found
    return milliseconds


def ray_rows(ray: ModuleType, rows: int) -> float:
    """Return the same for Ray, with its own timing."""
    data = ray.data.range(rows, override_num_blocks=16).map(scaled).filter(wanted).map(shifted)
    begin = time.perf_counter()
    found = data.materialize().count()
    milliseconds = (time.perf_counter() - begin) * 1e3
    assert found == rows - len(range(0, rows, 3)), found
    return milliseconds


# -- from a cold start -----------------------------------------------------------------------------------------------

FIRST = {
    "ours": """
import sys; sys.path[:0] = sys.argv[2:]
import workspan as ws
from dataset_functions import length, weight
data = ws.read_parquet(sys.argv[1]).map_batches(length).map_batches(weight)
""",
    "ray": """
import logging, sys; sys.path[:0] = sys.argv[2:]
import ray
ray.init("local", num_cpus=2, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
from dataset_functions import length, weight
data = ray.data.read_parquet(sys.argv[1]).map_batches(length, batch_size=None).map_batches(weight, batch_size=None)
""",
}
CLOCK = "import time; begin = time.perf_counter()"
REST = """
batches = iter(data.iter_batches(batch_size=None{how}))  # kept, so that the rest of the run is not waited for
assert len(next(batches)['f'])
print((time.perf_counter() - begin) * 1e3)
"""


def first_result(side: str, folder: Path) -> float:
    """Return the milliseconds from the first line of a new process to its first batch."""
    how = ", max_workers=2" if side == "ours" else ""
    script = CLOCK + FIRST[side] + REST.format(how=how)
    paths = [str(HERE), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", script, str(folder), *paths]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.splitlines()[-1])


def beside_ray(ray: ModuleType, job: Job, items: int, rounds: int) -> list[Row]:
    """Compare with a warm Ray on two processors, and with what it needs to become that."""
    rows: list[Row] = []
    pair(
        rows,
        "from a new process to the first batch",
        lambda: first_result("ours", job.folder),
        lambda: first_result("ray", job.folder),
        rounds=max(1, rounds // 2),
        target=0.1,
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *(path for path in sys.path if path)])
    ray.init("local", num_cpus=2, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    try:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        importlib.import_module("ray.data").DataContext.get_current().enable_progress_bars = False
        job.ray(ray)  # warm
        third = {"rounds": rounds, "span": 1 / 3, "whole": 1 / 3}
        two = partial(job.ours, max_workers=2)
        with_and_without_start(rows, job, "warm, from files", two, lambda: job.ray(ray), **third)
        blocks = [pq.read_table(path) for path in job.files]
        two = partial(job.ours, ws.from_arrow(blocks), max_workers=2)
        stored = ray.data.from_arrow(blocks)
        with_and_without_start(rows, job, "warm, from memory", two, lambda: job.ray(ray, stored), **third)
        # Ray's workers are there before the call; ours are, as far as that goes, with a fork server.
        forked = {"engine": Processes(fork_server=True), "max_workers": 2}
        two = partial(job.ours, **forked)
        two()
        with_and_without_start(rows, job, "warm by fork server, from files", two, lambda: job.ray(ray), **third)
        two = partial(job.ours, ws.from_arrow(blocks), **forked)
        name = "warm by fork server, from memory"
        with_and_without_start(rows, job, name, two, lambda: job.ray(ray, stored), **third)
        ray_rows(ray, items)
        pair(
            rows,
            f"{items:,} rows through map, filter, map; phases timed, Ray's folded",
            lambda: our_rows(items, "phases", max_workers=2),
            lambda: ray_rows(ray, items),
            rounds=rounds,
            target=1.0,
        )
    finally:
        ray.shutdown()
    return rows


def beside_untimed_rows(items: int, rounds: int) -> list[Row]:
    """Compare row functions with every phase timed with the same untimed, in one process."""
    timed, untimed = (lambda timing=timing: our_rows(items, timing, engine="serial") for timing in ("phases", "off"))
    rows: list[Row] = []
    untimed()
    pair(rows, f"{items:,} rows through map, filter, map", timed, untimed, rounds=rounds, target=1.05)
    return rows


def installed(name: str) -> ModuleType | None:
    """Return a library, or ``None`` where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=["loop", "rows", "dask", "ray"], help="parts to measure")
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    # As installers do, or each new worker would, where the environment says that it must not keep what it made of it.
    compileall.compile_dir(str(Path(ws.__file__).parent), quiet=1)
    compileall.compile_dir(str(HERE), maxlevels=0, quiet=1)
    items, rounds, out = arguments.items, arguments.rounds, arguments.out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        make(folder / "in", arguments.rows, arguments.files)
        job = Job(folder, arguments.rows // arguments.files * arguments.files)
        if "loop" in arguments.only:
            print(save("dataset", "pyarrow loop", beside_the_loop(job, rounds), out))
        if "rows" in arguments.only:
            print(save("dataset_rows", "untimed", beside_untimed_rows(items, rounds), out))
        if "dask" in arguments.only and (dask := installed("dask")) is not None and installed("dask.bag"):
            print(save("dataset_dask", f"Dask {dask.__version__}", beside_dask(job, rounds), out))
        if "ray" in arguments.only and (ray := installed("ray")) is not None and installed("ray.data"):
            print(save("dataset_ray", f"Ray Data {ray.__version__}", beside_ray(ray, job, items, rounds), out))


if __name__ == "__main__":
    # By its name and not as `__main__`, so that functions reach the processes of every side in the same way.
    sys.path.insert(0, str(HERE))
    importlib.import_module("bench_dataset").main()
