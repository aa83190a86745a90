"""Runs as lanes of slices: each block once, no two at once on a lane, and what is not recorded says so."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import groupby, islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from helpers.recorded import EPOCH, fill, record
from helpers.runs import line, run
from workspan.errors import ConfigurationError
from workspan.report.parts import BlockFailure
from workspan.report.recorded import find
from workspan.report.trace import Trace, TraceBlock, read_trace
from workspan.store.runs import append_run
from workspan.views.trace import render_trace

WALLS = np.linspace(0.1, 0.3, 20)
LATER = EPOCH + 1000


def traced(where: Path | str, limit: int = 10**6) -> Trace:
    """What is recorded there."""
    return read_trace(find(where), limit=limit)


def no_overlap(blocks: list[TraceBlock]) -> bool:
    """Whether the blocks of each lane follow each other."""
    lanes = groupby(sorted(blocks, key=lambda block: (block.lane, block.begin)), key=lambda block: block.lane)
    return all(a.end <= b.begin for _, lane in lanes for a, b in pairwise(lane))


def test_blocks_stand_on_their_workers_lanes(tmp_path: Path) -> None:
    """Every block is there once, in order of time, as long as its round trip, to a microsecond (B144, D45)."""
    record(tmp_path, WALLS, workers=3, steps={"read": WALLS / 2})
    (task,) = traced(tmp_path).tasks
    blocks = list(task.blocks())
    assert sorted(block.cell for block in blocks) == [(n,) for n in range(20)]
    assert [block.begin for block in blocks] == sorted(block.begin for block in blocks)
    assert [lane.name for lane in task.lanes] == ["worker 0", "worker 1", "worker 2"]
    assert no_overlap(blocks)
    for block in blocks:
        wall = WALLS[block.cell[0]]
        assert block.end - block.begin == pytest.approx((wall + 1e-4) * 1e6, abs=1.5)
        assert block.steps == ((0, pytest.approx(wall / 2)),)
        assert block.gpu_util_pct is None
        assert block.gpu_mem_bytes is None


def test_a_resumed_run_shows_each_block_once(tmp_path: Path) -> None:
    """Blocks of both runs are there once, each with the run that did it; a selected run has its own ones (KF-38)."""
    record(tmp_path, WALLS[:20], run_id="r1")
    # the same store, half of it done again by a later run
    record(tmp_path, WALLS[10:], run_id="r2", first=10, started_at=LATER)
    (task,) = traced(tmp_path).tasks
    assert {block.cell[0]: task.runs[block.run].run_id for block in task.blocks()} == {
        n: "r1" if n < 10 else "r2" for n in range(20)
    }
    assert traced(f"{tmp_path}#r2").count == 10
    assert traced(f"{tmp_path}#r1").count == 10


def test_phases_come_from_the_history(tmp_path: Path) -> None:
    """Start-up, teardown and failures have a place next to what is known, and say that it is one (D45)."""
    report = record(tmp_path, WALLS, run_id="r1", failed=2)
    failure = BlockFailure((3,), 3, (30,), (10,), (30,), (10,), 3, "error", "<script>", worker=1)
    dead = replace(report.workers.records[1], exit="error", teardown=None, text="signal 9")
    workers = replace(report.workers, records=(report.workers.records[0], dead))
    (tmp_path / "runs.jsonl").unlink()
    append_run(tmp_path / "runs.jsonl", replace(report, failed_blocks=(failure,), workers=workers).to_json())
    (task,) = traced(tmp_path).tasks
    names = [(phase.name, phase.lane) for phase in task.phases]
    assert names == [
        ("run r1", None),
        ("startup", 0),
        ("teardown", 0),
        ("startup", 1),
        ("worker ended: error", 1),
        ("failed: block 3", 1),
    ]
    startup = task.phases[1]
    first = next(block for block in task.blocks() if block.lane == 0)
    assert (startup.end, startup.end - startup.begin) == (first.begin, pytest.approx(50_000, abs=2))
    assert all("placed" in phase.told for phase in task.phases[1:])
    assert next(iter(task.blocks())).failures == 2


def test_clients_from_outside_do_not_overlap(tmp_path: Path) -> None:
    """Blocks of no managed worker get as few lanes as hold them; a serial run has one (B142, B143)."""
    record(tmp_path / "serial", WALLS, workers=None)
    (task,) = traced(tmp_path / "serial").tasks
    assert [lane.name for lane in task.lanes] == ["this process"]
    record(tmp_path / "three", WALLS, workers=3)
    chunk = tmp_path / "three" / "worker_id" / "c" / "0"
    chunk.write_bytes(np.full(20, 2**32 - 1, "<u4").tobytes())
    (task,) = traced(tmp_path / "three").tasks
    assert [lane.worker for lane in task.lanes] == [0, 1, 2, None, None, None]  # the history knows three workers
    assert no_overlap(list(task.blocks()))


def test_a_real_run(tmp_path: Path) -> None:
    """What a run leaves is drawn as it was: blocks inside the run, on lanes of this process (D45)."""
    report = run(line(5, lambda block: None, tracking_path=tmp_path, resource_tracking=True))["t"]
    (task,) = traced(tmp_path).tasks
    length = report.wall_seconds * 1e6
    assert all(0 <= block.begin <= block.end <= length + 1 for block in task.blocks())
    assert task.count == 5


def test_the_limit_keeps_the_first_blocks(tmp_path: Path) -> None:
    """Beyond the limit later blocks are left out over all tasks, and the trace says so (R54)."""
    record(tmp_path / "a", WALLS, task_id="a")
    record(tmp_path / "b", WALLS, task_id="b", started_at=EPOCH + 0.5)
    trace = traced(tmp_path, limit=12)
    assert (trace.count, trace.total) == (12, 40)
    assert "Only the 12 blocks" in trace.notes[2]
    kept = [block.begin for task in trace.tasks for block in task.blocks()]
    everything = sorted(block.begin for task in traced(tmp_path).tasks for block in task.blocks())
    assert sorted(kept) == everything[:12]


def test_the_first_blocks_are_those_of_the_first_run(tmp_path: Path) -> None:
    """Within the limit the time counts and not the place: blocks at the end of the grid may have come first (R54)."""
    record(tmp_path, WALLS[10:], run_id="r1", first=10)
    record(tmp_path, WALLS[:10], run_id="r2", started_at=LATER, total=20)
    (task,) = traced(tmp_path, limit=10).tasks
    assert {block.cell[0] for block in task.blocks()} == set(range(10, 20))
    (task,) = traced(tmp_path).tasks
    assert [block.cell[0] for block in task.blocks()] == [*range(10, 20), *range(10)]


def test_nothing_is_timed(tmp_path: Path) -> None:
    """A store without stamps has no trace, and the text says what records them (D42)."""
    record(tmp_path, WALLS, tracked=False)
    with pytest.raises(ConfigurationError, match="resource_tracking=True"):
        traced(tmp_path)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Of 50,000 blocks a few thousand are held at a time while they are written (R54)."""
    fill(tmp_path, 50_000)
    trace = traced(tmp_path)
    tracemalloc.start()
    try:
        written = sum(len(piece) for piece in islice(render_trace(trace), 12))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written > 3_000_000
    assert peak < 15_000_000
