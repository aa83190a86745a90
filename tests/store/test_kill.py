"""SIGKILL at any instant: the store opens, and what is done has its measurements."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from workspan.grid import Layout
from workspan.store.tracking import TrackingStore

pytestmark = pytest.mark.once

KILLS = 60 if os.environ.get("WORKSPAN_FULL") == "1" else 8
BLOCKS = 30_000
LAYOUT = Layout((0,), (BLOCKS,), (0,), (1,), (0,), (1,))

WRITER = """
    import sys
    from workspan.grid import Layout
    from workspan.measure.profile import BlockStats
    from workspan.store import tracking

    path, way, shift = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if way == "pwrite":
        tracking.can_map = lambda folder: False
    blocks = 30_000
    layout = Layout((0,), (blocks,), (0,), (1,), (0,), (1,))
    print("go", flush=True)
    store = tracking.TrackingStore.open(path, layout, resource_tracking=True, task_id="seg")
    todo = [i for i in range(blocks) if not store.done[i]]
    for number, index in enumerate(todo):
        store.grant(index, 3)
        if index % 7 == shift % 7:
            store.record_failure(index)
            store.grant(index, 4)
        value = 1 + index % 5
        stats = BlockStats(value, value, value if index % 11 else None, value, value)
        store.record_done(index, stats, value, 1000.0 + value, 2000.0 + value, {f"step{index % 3}": (value, 1)})
        if not number % 500:
            store.flush()
"""


def check(path: Path, before: np.ndarray) -> tuple[np.ndarray, int]:
    """The store opens; each done block has all its measurements, each other one runs again. Return flags, in flight."""
    with TrackingStore.open(path, LAYOUT, resource_tracking=True) as store:
        table = store.peek(path).table()
        rows = table.done
        index = table.cells[:, 0]
        value = 1 + index % 5
        assert table.executed[rows].all()
        for name in ("wall_seconds", "cpu_seconds", "io_read_bytes", "io_write_bytes", "worker_id"):
            assert (table.values[name] == value)[rows].all(), name
        assert (table.values["peak_rss_bytes"] == np.where(index % 11, value, 0))[rows].all()
        assert (table.values["sent_at"] == 1000 + value)[rows].all()
        assert (table.values["returned_at"] == 2000 + value)[rows].all()
        for step in range(3):
            if f"step{step}" in table.steps:
                cost = table.steps[f"step{step}"]
                mine = index % 3 == step
                assert (cost == value)[rows & mine].all()
                assert np.isnan(cost)[rows & ~mine].all()
        done = store.done.copy()
        assert (done >= before).all()
        assert {block.worker for block in store.was_in_flight} <= {3, 4}
        assert not any(done[block.index] for block in store.was_in_flight)
        return done, len(store.was_in_flight)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["map", "pwrite"])
def test_a_killed_writer_loses_nothing_that_is_done(tmp_path: Path, run_script, way: str) -> None:
    """A writer is killed at random moments of its life, over and over, and continued (R19, R30, B119)."""
    path = tmp_path / "tracking" / "seg"
    done = np.zeros(BLOCKS, np.uint8)
    in_flight = progress = 0
    random_delay = random.Random(way)
    for kill in range(KILLS):
        writer = run_script(WRITER, path, way, kill)
        assert writer.stdout.readline() == "go\n", writer.stderr.read()
        time.sleep(random_delay.random() * 0.25)  # any moment will do: nothing waits for it
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        if not path.exists():
            continue
        after, granted = check(path, done)
        in_flight += granted
        assert granted <= 1
        progress += int((after != done).any())
        done = after
        assert sorted(os.listdir(path.parent)) == ["seg"]
    assert progress > 0


@pytest.mark.parametrize("way", ["map", "pwrite"])
@pytest.mark.parametrize("call", ["replace", "pwrite", "posix_fallocate", "ftruncate", "mkdir", "open", "fsync"])
def test_a_kill_at_each_system_call(tmp_path: Path, run_script, call: str, way: str) -> None:
    """Killed at its n-th call of each kind that changes files, for growing n: the store opens each time (R19)."""
    killer = """
        import os, signal, sys
        real, left = getattr(os, sys.argv[5]), [int(sys.argv[4])]
        def deadly(*args, **options):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        setattr(os, sys.argv[5], deadly)
    """
    code = killer + WRITER.replace("30_000", "9_000")
    layout = Layout((0,), (9000,), (0,), (1,), (0,), (1,))
    path = tmp_path / "seg"
    for number in (1, 2, 3, 5, 8, 13, 21, 34, 55):
        writer = run_script(code, path, way, 0, number, call)
        writer.wait()
        if not path.exists():
            continue
        with TrackingStore.open(path, layout, resource_tracking=True) as store:
            table = store.peek(path).table()
            value = 1 + table.cells[:, 0] % 5
            assert table.executed[table.done].all()
            assert (table.values["wall_seconds"] == value)[table.done].all()
        assert sorted(os.listdir(tmp_path)) == ["seg"]
        if writer.returncode == 0:
            break
