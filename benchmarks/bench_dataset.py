"""Parquet in, two NumPy functions, Parquet out: a loop by hand, Workspan and Ray Data; and row functions.

Each measurement is a process of its own. What counts is the call, and for Workspan and Ray that includes the processes
that they start; imports of the calling process are not in it. "tasks" is from the begin of Workspan's first task to the
end of its last: without the start of its workers. All outputs are compared with the loop's. Ray is run by the
interpreter that RAY_PYTHON names, or by this one; where it is not installed its rows are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 8
COLUMNS = ("a", "b", "c", "d", "e", "f")


def distance(batch: dict[str, Any]) -> dict[str, Any]:
    """Add a column of two others."""
    return {**batch, "e": np.sqrt(batch["a"] ** 2 + batch["b"] ** 2) + np.sin(batch["d"])}


def score(batch: dict[str, Any]) -> dict[str, Any]:
    """Add another one."""
    return {**batch, "f": np.exp(-batch["e"]) * batch["c"] + np.log1p(np.abs(batch["e"]))}


def scale(row: dict[str, Any]) -> dict[str, Any]:
    """Compute a row."""
    return {"id": row["id"], "x": row["id"] * 2.5}


def odd(row: dict[str, Any]) -> bool:
    """Keep two rows of three."""
    return bool(row["id"] % 3)


def shift(row: dict[str, Any]) -> dict[str, Any]:
    """Compute a row of it."""
    return {"id": row["id"], "y": row["x"] + 1}


def make_input(rows: int) -> None:
    """Write the files."""
    random = np.random.default_rng(0)
    Path("in").mkdir()
    for number in range(FILES):
        n = rows // FILES
        table = pa.table(
            {
                "a": random.normal(size=n),
                "b": random.normal(size=n),
                "c": random.integers(0, 1000, n),
                "d": random.normal(size=n),
            }
        )
        pq.write_table(table, f"in/{number}.parquet")


def by_loop(rows: int) -> dict[str, float]:
    """Read, compute and write one file after the other, in this process."""
    begin = time.perf_counter()
    Path("out").mkdir()
    for number in range(FILES):
        table = pq.read_table(f"in/{number}.parquet", use_threads=False)
        batch = score(distance({name: table.column(name).to_numpy() for name in table.column_names}))
        pq.write_table(pa.table(batch), f"out/{number}.parquet", compression="zstd")
    return {"seconds": time.perf_counter() - begin}


def by_workspan(rows: int, workers: int) -> dict[str, float]:
    """Let worker processes do it."""
    import workspan as ws

    ws.range(1).take(1, engine="serial")
    begin = time.perf_counter()
    data = ws.read_parquet("in").map_batches(distance).map_batches(score)
    run = data.write_parquet("out", max_workers=workers, progress=False)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "tasks": float(run.stats_summary().span_seconds or 0.0)}


def workspan_first(rows: int) -> dict[str, float]:
    """Wait for the first result."""
    import workspan as ws

    ws.range(1).take(1, engine="serial")
    begin = time.perf_counter()
    batches = ws.read_parquet("in").map_batches(distance).map_batches(score).iter_batches(max_workers=2)
    next(batches)
    seconds = time.perf_counter() - begin
    batches.close()  # type: ignore[attr-defined]
    return {"seconds": seconds}


def workspan_rows(rows: int, timing: str) -> dict[str, float]:
    """Call three functions for each row."""
    import workspan as ws

    data = ws.range(rows, blocks=16).map(scale).filter(odd).map(shift).options(timing=timing)
    data.limit(1).take(1, engine="serial")
    begin = time.perf_counter()
    assert data.count(max_workers=2) == sum(n % 3 != 0 for n in range(rows))
    return {"seconds": time.perf_counter() - begin}


def by_ray(rows: int, map_rows: int) -> dict[str, float]:
    """Let Ray do everything: its first result from a cold start, then each job warm."""
    import ray

    begin = time.perf_counter()
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    found: dict[str, float] = {}

    def source(memory: bool) -> Any:
        if not memory:
            return ray.data.read_parquet("in")
        return ray.data.from_arrow([pq.read_table(f"in/{number}.parquet") for number in range(FILES)])

    first = source(False).map_batches(distance, batch_size=None).map_batches(score, batch_size=None)
    next(iter(first.iter_batches(batch_size=None)))
    found["first"] = time.perf_counter() - begin
    for memory in (False, False, True):  # of the files: warm is the second time
        shutil.rmtree("out", ignore_errors=True)
        data = source(memory)
        begin = time.perf_counter()
        data = data.map_batches(distance, batch_size=None).map_batches(score, batch_size=None)
        data.write_parquet(str(Path("out").absolute()), compression="zstd")
        found["memory" if memory else "files"] = time.perf_counter() - begin
    for n in (1000, map_rows):
        begin = time.perf_counter()
        data = ray.data.range(n, override_num_blocks=16).map(scale).filter(odd).map(shift)
        assert data.materialize().count() == sum(k % 3 != 0 for k in range(n))
        found["rows"] = time.perf_counter() - begin
    return found


METHODS: dict[str, Callable[[int], dict[str, float]]] = {
    "loop": by_loop,
    "workspan-1": lambda rows: by_workspan(rows, 1),
    "workspan-2": lambda rows: by_workspan(rows, 2),
    "workspan-first": workspan_first,
    "workspan-rows": lambda rows: workspan_rows(rows, "phases"),
    "workspan-rows-untimed": lambda rows: workspan_rows(rows, "off"),
    "ray": lambda rows: by_ray(rows, rows // 4),
}


class Bench:
    """Measures variants, and keeps what they took."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.times: dict[tuple[str, str], list[float]] = {}
        """(variant, what) -> seconds."""
        self.truth: Any = None

    def measure(self, variant: str) -> None:
        """Run one variant in a process of its own, and look at what it made."""
        for name in ("out", "workspan_logs"):
            shutil.rmtree(name, ignore_errors=True)
        python = os.environ.get("RAY_PYTHON", sys.executable) if variant.startswith("ray") else sys.executable
        rows = self.rows // 4 if "rows" in variant else self.rows
        command = [python, str(Path(__file__).resolve()), "--measure", variant, "--rows", str(rows)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for what, seconds in json.loads(done.stdout.splitlines()[-1]).items():
            self.times.setdefault((variant, what), []).append(seconds)
        if Path("out").exists():
            self.check(variant)

    def check(self, variant: str) -> None:
        """Compare the rows with those of the first variant, whatever their order."""
        table = pq.read_table("out").select(COLUMNS).sort_by([("a", "ascending"), ("b", "ascending")])
        if self.truth is None:
            self.truth = table
        for name in COLUMNS:
            if not np.array_equal(table.column(name).to_numpy(), self.truth.column(name).to_numpy()):
                raise RuntimeError(f"{variant} has another result in column {name!r}")

    def row(self, what: str, ours: tuple[str, str], peer: tuple[str, str], target: float) -> Any:
        """Compare two: the best rounds."""
        from harness import Row

        a, b = self.times[ours], self.times[peer]
        row = Row(what, "s", min(a), min(b), statistics.median(a), statistics.median(b), target)
        verdict = "met" if row.met else "MISSED"
        print(f"{what}: ours {row.ours:.2f}, peer {row.peer:.2f} s, ratio {row.ratio:.2f}; {verdict}", flush=True)
        return row


def has_ray() -> bool:
    """Whether the interpreter for Ray has it."""
    python = os.environ.get("RAY_PYTHON", sys.executable)
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)"
    return subprocess.run([python, "-c", code]).returncode == 0


def run(rows: int, rounds: int) -> list[Any]:
    """Compare all variants."""
    make_input(rows)
    bench = Bench(rows)
    variants = [name for name in METHODS if has_ray() or not name.startswith("ray")]
    for number in range(rounds):
        # In turn, and every other time the other way round, so that a machine that drifts favours nobody.
        for variant in variants if number % 2 == 0 else variants[::-1]:
            if number == 0 or variant != "ray":  # which is dear, and repeats what it is compared by itself
                bench.measure(variant)
    call, loop = "seconds", ("loop", "seconds")
    what = f"{rows / 1e6:g} M rows, "
    row = bench.row
    found = [
        row(f"{what}1 worker, tasks / loop", ("workspan-1", "tasks"), loop, 1.10),
        row(f"{what}1 worker, whole call / loop", ("workspan-1", call), loop, 2.0),
        row(f"{what}2 workers, tasks / loop", ("workspan-2", "tasks"), loop, 1 / 1.7),
        row(f"{what}2 workers, whole call / loop", ("workspan-2", call), loop, 1.0),
    ]
    each = f"{rows / 4e6:g} M rows by map, filter, map, "
    timed, untimed = ("workspan-rows", call), ("workspan-rows-untimed", call)
    found.append(row(f"{each}timed / untimed", timed, untimed, 1.05))
    if "ray" in variants:
        found += [
            row(f"{what}2 workers, whole call / Ray warm, from files", ("workspan-2", call), ("ray", "files"), 1 / 3),
            row(
                f"{what}2 workers, whole call / Ray warm, from memory",
                ("workspan-2", call),
                ("ray", "memory"),
                1 / 3,
            ),
            row(f"{what}first result / Ray cold", ("workspan-first", call), ("ray", "first"), 0.1),
            row(f"{each}whole call / Ray warm", timed, ("ray", "rows"), 1.0),
        ]
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="of the files; row functions get a quarter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    parser.add_argument("--measure", choices=METHODS, help="run one variant in the working directory, print its cost")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(METHODS[arguments.measure](arguments.rows)))
        return
    from harness import save

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            rows = run(arguments.rows, arguments.rounds)
        finally:
            os.chdir(Path(__file__).parent)
    save("dataset", "loop, Ray Data", rows, arguments.out)


if __name__ == "__main__":
    main()
