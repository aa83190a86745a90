"""Large tasks: nothing is paid for a block before it runs."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import workspan
from workspan.grid import Layout
from workspan.schedule.ledger import Ledger
from workspan.schedule.resume import DONE, skip_known
from workspan.schedule.spec import PipelineSpec, TaskSpec


def run_fresh(script):
    """Run a script in an interpreter of its own, whose memory nothing else touches; return what it prints as JSON."""
    prelude = """
        import json, time
        from workspan.grid import Layout
        from workspan.schedule.ledger import Ledger
        from workspan.schedule.spec import PipelineSpec, TaskSpec

        def resident():
            return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) * 1024
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("conflict", [False, True])
def test_a_billion_blocks_cost_nothing_before_they_run(conflict):
    """B27: the first block of 10^9 is there in half a second of CPU, and a thousand more touch no megabyte."""
    found = run_fresh(
        f"""
        before, begin = resident(), time.process_time()
        layout = Layout((0,) * 3, (1002,) * 3, (0,) * 3, (3,) * 3, (1,) * 3, (1,) * 3, "valid", {conflict})
        ledger = Ledger(PipelineSpec((TaskSpec("t", layout),)))
        first = ledger.acquire(0)
        seconds = time.process_time() - begin
        ledger.complete(0, first)
        for _ in range(1000):
            ledger.complete(0, ledger.acquire(0))
        print(json.dumps([layout.num_blocks, first, seconds, resident() - before]))
        """
    )
    count, first, seconds, grown = found
    assert count == 10**9
    assert first == (1_001_001 if conflict else 0)
    assert seconds < 0.5
    assert grown < 4e6


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_while_blocks_run():
    """R54, R55: no list of finished blocks; a hundred thousand blocks leave their counters and no more."""
    found = run_fresh(
        """
        layout = Layout((0,) * 3, (52,) * 3, (0,) * 3, (3,) * 3, (1,) * 3, (1,) * 3)
        ledger = Ledger(PipelineSpec((TaskSpec("t", layout),)))
        before = resident()
        while (index := ledger.acquire(0)) is not None:
            ledger.complete(0, index)
        print(json.dumps([layout.num_blocks, resident() - before]))
        """
    )
    count, grown = found
    assert count == 125_000
    assert grown / count < 40


def seconds_of_fan_in(side):
    """Time to complete ``side ** 3`` blocks that one block reads."""
    source = Layout((0,) * 3, (side,) * 3, (0,) * 3, (1,) * 3, (0,) * 3, (1,) * 3, "valid", False)
    whole = Layout((0,) * 3, (side,) * 3, (0,) * 3, (side,) * 3, (0,) * 3, (side,) * 3, "valid", False)
    ledger = Ledger(PipelineSpec((TaskSpec("a", source), TaskSpec("b", whole)), ((0, 1),)))
    begin = time.process_time()
    while (index := ledger.acquire(0)) is not None:
        ledger.complete(0, index)
    assert ledger.acquire(1) == 0
    return time.process_time() - begin


def test_a_fan_in_costs_its_number_of_inputs():
    """B32, W2: eight times the inputs take about eight times as long; quadratic cost would take 64 times."""
    small = min(seconds_of_fan_in(8) for _ in range(5))
    large = min(seconds_of_fan_in(16) for _ in range(3))
    assert large / small < 24


def test_done_blocks_are_skipped_by_array_operations():
    """B35, KF-18: of a million done blocks none is looked at one by one; the one that is missing runs."""
    layout = Layout((0,) * 3, (100,) * 3, (0,) * 3, (1,) * 3, (0,) * 3, (1,) * 3, "valid", False)
    flags = np.full(layout.counts, DONE, np.uint8)
    flags[-1, -1, -1] = 0
    ledger = Ledger(PipelineSpec((TaskSpec("t", layout),)))
    calls = []
    skip_known(ledger, [flags], lambda task, indices, why: calls.append((task, len(indices), why)))
    assert calls == [(0, 999_999, "done")]
    assert ledger.acquire(0) == 999_999
    assert ledger.acquire(0) is None


def test_a_run_over_a_million_done_blocks_calls_nothing(tmp_path, monkeypatch):
    """KF-18: everything is skipped, through store and report; with one block missing exactly that one is called."""
    monkeypatch.chdir(tmp_path)
    called = []
    task = workspan.Task(
        "t",
        workspan.Roi((0,) * 3, (100,) * 3),
        workspan.Roi((0,) * 3, (1,) * 3),
        workspan.Roi((0,) * 3, (1,) * 3),
        lambda block: called.append(block.index),
        read_write_conflict=False,
        tracking_path=tmp_path / "store",
    )

    from workspan.store.tracking import TrackingStore

    with TrackingStore.open(tmp_path / "store", task.layout) as store:
        store.mark_done(np.arange(999_999))
    for expected in (1, 0):
        called.clear()
        report = workspan.run_blockwise(task, multiprocessing=False, progress=False, summary=False, return_report=True)
        assert report
        assert report["t"].blocks.skipped == 10**6 - expected
        assert len(called) == expected
