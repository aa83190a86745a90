"""Stores and histories as runs leave them, of blocks whose cost a test makes up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.report.aggregate import TaskAggregate
from workspan.report.parts import TaskPlace
from workspan.report.task import TaskReport
from workspan.report.timeline import TaskTimeline
from workspan.store.meta import ARRAYS, STEP, chunk_file
from workspan.store.reader import NO_WORKER
from workspan.store.steps import slug
from workspan.store.tracking import TrackingStore

EPOCH = 1_800_000_000.0


def row(blocks: int, extent: int = 10) -> Layout:
    """Blocks of some elements in a row."""
    return Layout((0,), (extent * blocks,), (0,), (extent,), (0,), (extent,))


def record(
    folder: Path,
    walls: Any,
    *,
    run_id: str = "20270101T000000Z-1",
    task_id: str = "smooth",
    started_at: float = EPOCH,
    workers: int | None = 2,
    steps: Mapping[str, Any] | None = None,
    peaks: Any = 64 << 20,
    reads: Any = 1000,
    overhead: float = 1e-4,
    extent: int = 10,
    tracked: bool = True,
    first: int = 0,
    total: int | None = None,
    failed: int = 0,
    place: int = 0,
) -> TaskReport:
    """Record a run that executed some of *total* blocks, from number *first* on, each of *walls* seconds.

    The next block goes to the worker that is free first; ``workers=None`` is a serial run. *failed* attempts, of the
    first block, came to nothing. *peaks* and *reads* are bytes, for all blocks or one by one; *steps* are self seconds
    by name, NaN where a block did not enter.
    """
    walls = np.asarray(walls, float)
    executed, total = len(walls), total or first + len(walls)
    peaks, reads = np.broadcast_to(peaks, executed), np.broadcast_to(reads, executed)
    steps = {name: np.asarray(column, float) for name, column in (steps or {}).items()}
    if not (folder / "zarr.json").exists():
        _make(folder, total, extent, task_id, tracked, tuple(steps))
    sent_at, returned_at, worker_id = np.empty(executed), np.empty(executed), np.empty(executed)
    aggregate = TaskAggregate(total, resource_tracking=tracked, has_workers=workers is not None)
    timeline = TaskTimeline()
    free = [started_at + 0.05] * (workers or 1)
    for worker in range(workers or 0):
        timeline.started(worker, started_at)
        timeline.ready(worker, free[worker])
    if total > executed:
        aggregate.skipped(total - executed, "done")
    for _ in range(failed):
        aggregate.failed()
    for n, wall in enumerate(walls.tolist()):
        worker = free.index(min(free))
        sent = free[worker]
        returned = free[worker] = sent + wall + overhead
        stats = BlockStats(wall, 0.9 * wall, int(peaks[n]), int(reads[n]), 50) if tracked else None
        own = {name: (float(column[n]), 1) for name, column in steps.items() if column[n] == column[n]}
        sent_at[n], returned_at[n], worker_id[n] = sent, returned, worker if workers else NO_WORKER
        aggregate.done(returned - sent, stats, own)
        timeline.returned(worker, sent, returned, ok=True)
    for worker in range(workers or 0):
        timeline.stopping(worker, max(free))
        timeline.ended(worker, max(free) + 0.01, "clean")
    columns = {"done": np.ones(executed), "failures": np.where(np.arange(executed), 0, failed)}
    if tracked:
        columns |= {"sent_at": sent_at, "returned_at": returned_at, "worker_id": worker_id}
        columns |= {"wall_seconds": walls, "cpu_seconds": 0.9 * walls, "gpu_util_pct": np.full(executed, np.nan)}
        columns |= {"peak_rss_bytes": peaks, "io_read_bytes": reads, "io_write_bytes": np.full(executed, 50)}
        columns |= {f"steps/{slug(name)}": column for name, column in steps.items()}
    for name, values in columns.items():
        _write(chunk_file(folder / name, 1), ARRAYS.get(name, STEP).dtype, total, first, values)
    report = aggregate.report(
        run_id=run_id,
        task_id=task_id,
        started_at=started_at,
        ended_at=max(free) + 0.01,
        wall_seconds=max(free) + 0.01 - started_at,
        outcome="completed",
        tracking_path=str(folder),
        orphaned=0,
        workers=timeline.summary(),
        place=TaskPlace(place, 1),
    )
    with open(folder / "runs.jsonl", "a") as file:  # as append_run does, but not down to the disk
        file.write(json.dumps(report.to_json(), allow_nan=False) + "\n")
    return report


_made: dict[tuple[object, ...], dict[str, bytes]] = {}
"""Files of stores that were made before: making one waits for the disk, writing its files again does not."""


def _make(folder: Path, blocks: int, extent: int, task_id: str, tracked: bool, steps: tuple[str, ...]) -> None:
    """Make a store whose figures are still to be written."""
    key = blocks, extent, task_id, tracked, steps
    if key not in _made:
        with TrackingStore.open(folder, row(blocks, extent), resource_tracking=tracked, task_id=task_id) as store:
            store.record_done(0, BlockStats(1.0, 1.0, 1, 1, 1), 0, EPOCH, EPOCH, dict.fromkeys(steps, (1.0, 1)))
        files = (path for path in folder.rglob("*") if path.is_file())
        _made[key] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        return
    for name, data in _made[key].items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _write(file: Path, dtype: str, total: int, first: int, values: np.ndarray) -> None:
    cells = np.fromfile(file, dtype) if file.exists() else np.zeros(total, dtype)
    cells[first : first + len(values)] = values
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(cells.tobytes())


def fill(folder: Path, blocks: int, steps: tuple[str, ...] = ("read", "filter")) -> None:
    """Make a store of many blocks of 1 ms on two workers, faster than by recording them one by one."""
    layout = row(blocks)
    store = TrackingStore.open(folder, layout, resource_tracking=True, task_id="many")
    store.record_done(0, BlockStats(1e-3, 1e-3, 1, 1, 1), 0, EPOCH, EPOCH + 1, dict.fromkeys(steps, (1e-4, 1)))
    store.close()
    number = np.arange(blocks)
    sent = EPOCH + number // 2 * 1.1e-3
    columns = {
        "done": np.ones(blocks),
        "sent_at": sent,
        "returned_at": sent + 1.1e-3,
        "worker_id": number % 2,
        "wall_seconds": np.full(blocks, 1e-3),
        "cpu_seconds": np.full(blocks, 9e-4),
        "peak_rss_bytes": 10**8 + number,
        "io_read_bytes": np.full(blocks, 1000),
        "io_write_bytes": np.full(blocks, 500),
    }
    for name, values in columns.items():
        chunk_file(folder / name, 1).write_bytes(values.astype(ARRAYS[name].dtype).tobytes())
    for array in (folder / "steps").iterdir():
        for chunk in range(-(-blocks // 65536)) if array.is_dir() else ():
            file = array / "c" / str(chunk)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(np.full(min(65536, blocks), 1e-4, "<f4").tobytes())
