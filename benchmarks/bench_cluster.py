"""What a block costs on a cluster on top of its own time: Workspan's engine against the cluster's own plain loop.

Both do the same work on the same local cluster of two workers. Ours is measured from when both are ready, so that the
start of worker processes, which is told apart, is not spread over blocks; the plain loop finds the cluster's workers
started. What one worker does before the other is ready is left out of both time and count.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from funlib.geometry import Roi
from harness import Row, compare, save

import workspan
from workspan.engines import Dask, Ray
from workspan.schedule.events import Ready, Returned

WORKERS = 2
MEMORY_FROM = 2_000
"""Blocks after which the memory must not grow any more."""


class Timed:
    """Notes when all workers were ready and when the last block came back, and the driver's memory meanwhile."""

    def __init__(self, address: str | None) -> None:
        super().__init__(address)  # type: ignore[call-arg]
        self.begin = self.end = 0.0
        self.ready_count = self.count_before = 0
        self.count = 0
        self.early_bytes = 0

    def poll(self, timeout: float | None) -> list[Any]:
        events: list[Any] = super().poll(timeout)  # type: ignore[misc]
        for event in events:
            if isinstance(event, Ready):
                self.ready_count += 1
                if self.ready_count == WORKERS:
                    self.begin = time.perf_counter()
                    self.count_before = self.count
            elif isinstance(event, Returned):
                self.count += 1
                self.end = time.perf_counter()
                if self.count == MEMORY_FROM:
                    self.early_bytes = psutil.Process().memory_info().rss
        return events


class TimedDask(Timed, Dask):
    """Of Dask."""


class TimedRay(Timed, Ray):
    """Of Ray."""


def work_of(seconds: float) -> Any:
    """Return a function of anything that takes *seconds*."""

    def work(block: Any) -> None:
        if seconds:
            time.sleep(seconds)

    return work


def ours(engine: Any, blocks: int, seconds: float) -> tuple[float, int]:
    """Run; return microseconds a block, and what the driver's memory grew by, in bytes."""
    before = psutil.Process().memory_info().rss
    roi = Roi((0,), (1,))
    task = workspan.Task(
        "nap", Roi((0,), (blocks,)), roi, roi, work_of(seconds), read_write_conflict=False, max_workers=WORKERS
    )
    called = time.perf_counter()
    if not workspan.run_blockwise(task, progress=False, summary=False, block_tracking=False, engine=engine):
        raise RuntimeError("not all blocks were done")
    after = psutil.Process().memory_info().rss
    print(f"ours: {engine.begin - called:.2f} s from the call until all workers are ready", flush=True)
    if engine.early_bytes:
        grown = (after - engine.early_bytes) / 2**20
        print(f"ours: the driver grew by {grown:.1f} MiB from block {MEMORY_FROM:,} to {blocks:,}", flush=True)
    timed = blocks - engine.count_before
    # A few no-op blocks may all be done before the second worker is ready.
    return (engine.end - engine.begin) / timed * 1e6 if timed else math.nan, after - before


def plain_dask(client: Any, blocks: int, seconds: float) -> tuple[float, int]:
    """Do the same, futures kept as one does for their results, with ``client.map`` and ``as_completed``."""
    from distributed import as_completed

    before = psutil.Process().memory_info().rss
    begin = time.perf_counter()
    futures = client.map(work_of(seconds), range(blocks), pure=False)
    for _ in as_completed(futures):
        pass
    took = time.perf_counter() - begin
    return took / blocks * 1e6, psutil.Process().memory_info().rss - before


def dask_rows(sizes: list[tuple[float, int]], memory_blocks: int, rounds: int) -> list[Row]:
    """Compare on a local Dask cluster."""
    from distributed import Client, LocalCluster

    rows = []
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        address = cluster.scheduler_address
        ours(TimedDask(address), 20, 0.0)
        plain_dask(client, 20, 0.0)
        rows.append(
            compare(
                f"Dask, memory that {memory_blocks:,} no-op blocks take in the driver",
                lambda: max(0.0, ours(TimedDask(address), memory_blocks, 0.0)[1] / 2**20),
                lambda: max(0.0, plain_dask(client, memory_blocks, 0.0)[1] / 2**20),
                unit="MiB",
                rounds=1,
                target=1.0,
            )
        )
        for milliseconds, blocks in sizes:
            rows.append(
                compare(
                    f"Dask, {blocks:,} blocks of {milliseconds:g} ms, {WORKERS} workers",
                    lambda b=blocks, s=milliseconds / 1e3: ours(TimedDask(address), b, s)[0],
                    lambda b=blocks, s=milliseconds / 1e3: plain_dask(client, b, s)[0],
                    unit="us/block",
                    rounds=rounds,
                    target=1.05,
                )
            )
    return rows


def plain_ray(blocks: int, seconds: float) -> tuple[float, int]:
    """Do the same with one remote task a block and ``ray.wait``, as Ray's manual has it: all are submitted at once."""
    import ray

    work = ray.remote(work_of(seconds))
    before = psutil.Process().memory_info().rss
    begin = time.perf_counter()
    waiting = [work.remote(index) for index in range(blocks)]
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        ray.get(done)
    took = time.perf_counter() - begin
    return took / blocks * 1e6, psutil.Process().memory_info().rss - before


def pool_ray(blocks: int, seconds: float) -> float:
    """Do the same with actors that are ready and ``ray.util.ActorPool``: one block under way to each."""
    import ray
    from ray.util import ActorPool

    function = work_of(seconds)

    class Napper:
        def work(self, index: int) -> None:
            function(index)

    actors = [ray.remote(Napper).options(num_cpus=1).remote() for _ in range(WORKERS)]
    ray.get([actor.work.remote(0) for actor in actors])
    begin = time.perf_counter()
    for _ in ActorPool(actors).map_unordered(lambda actor, index: actor.work.remote(index), range(blocks)):
        pass
    took = time.perf_counter() - begin
    for actor in actors:
        ray.kill(actor)
    return took / blocks * 1e6


def ray_rows(sizes: list[tuple[float, int]], memory_blocks: int, rounds: int) -> list[Row]:
    """Compare on a local Ray; the peer is the loop over remote tasks, and the pool of actors is shown beside."""
    import ray

    rows = []
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(
            address="local",
            num_cpus=WORKERS,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
        try:
            ours(TimedRay(None), 20, 0.0)
            plain_ray(20, 0.0)
            rows.append(
                compare(
                    f"Ray, memory that {memory_blocks:,} no-op blocks take in the driver",
                    lambda: max(0.0, ours(TimedRay(None), memory_blocks, 0.0)[1] / 2**20),
                    lambda: max(0.0, plain_ray(memory_blocks, 0.0)[1] / 2**20),
                    unit="MiB",
                    rounds=1,
                    target=1.0,
                )
            )
            for milliseconds, blocks in sizes:
                for peer, loop in (
                    ("ray.wait", lambda b, s: plain_ray(b, s)[0]),
                    ("ActorPool", pool_ray),
                ):
                    rows.append(
                        compare(
                            f"Ray, {blocks:,} blocks of {milliseconds:g} ms, {WORKERS} workers, against {peer}",
                            lambda b=blocks, s=milliseconds / 1e3: ours(TimedRay(None), b, s)[0],
                            lambda b=blocks, s=milliseconds / 1e3, f=loop: f(b, s),
                            unit="us/block",
                            rounds=rounds,
                            target=1.05,
                        )
                    )
        finally:
            ray.shutdown()
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10_000, help="of the run whose memory is looked at")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of timed blocks")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    parser.add_argument("--only", choices=("dask", "ray"), help="one of the two")
    arguments = parser.parse_args()
    sizes = [(ms, max(20, int(count * arguments.scale))) for ms, count in ((1, 1800), (10, 500), (100, 60))]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if arguments.only != "ray":
            import distributed

            rows = dask_rows(sizes, arguments.blocks, arguments.rounds)
            print(save("cluster_dask", f"distributed {distributed.__version__}", rows, arguments.out))
        if arguments.only != "dask":
            import ray

            rows = ray_rows(sizes, arguments.blocks, arguments.rounds)
            print(save("cluster_ray", f"ray {ray.__version__}", rows, arguments.out))


if __name__ == "__main__":
    main()
