"""What is reported of a block is what the block did: real work, measured by each engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import workspan

MB = 1_000_000

SCRIPT = """
import json, sys, threading, time
import workspan

def on_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def write():
    with open("out", "wb") as file:
        for _ in range(32):
            file.write(b"x" * 1_000_000)

def burn():
    while time.thread_time() < 0.5:
        pass

def work(block):
    number = block.block_id[1]
    if number == 1:
        on_a_thread(write)
    elif number == 2:
        on_a_thread(burn)
    elif number == 4:
        data = b"x" * 200_000_000
        del data
    elif number > 5:
        began = time.perf_counter()
        time.sleep(0.05)
        slept = time.perf_counter() - began
        with open(f"slept{number}", "w") as file:
            file.write(str(slept))

if __name__ == "__main__":
    held = b"x" * 1_000_000_000
    roi = workspan.Roi((0,), (1,))
    task = workspan.Task(
        "t", workspan.Roi((0,), (12,)), roi, roi, work,
        read_write_conflict=False, max_workers=1, tracking_path="t", resource_tracking=True,
    )
    report = workspan.run_blockwise(
        task, engine=sys.argv[1], progress=False, summary=False, return_report=True
    )["t"]
    names = ("wall_seconds", "cpu_seconds", "peak_rss_bytes", "io_read_bytes", "io_write_bytes")
    found = [[getattr(record.stats, name) for name in names] for record in report.block_records()]
    order = [window.coord[0] for window in report.timeline()]
    print(json.dumps([found, order, len(held)]))
"""


@pytest.fixture(scope="module", params=["serial", "processes"])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What twelve blocks cost, one after the other, in a run whose driver holds 1 GB."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "job.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "job.py", request.param],
        env={**os.environ, "PYTHONPATH": str(Path(next(iter(workspan.__path__))).parent)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found, order, _ = json.loads(done.stdout)
    assert order == list(range(12))
    columns = dict(zip(("wall", "cpu", "peak", "read", "written"), zip(*found, strict=True), strict=True))
    slept = [float((folder / f"slept{number}").read_text()) for number in range(6, 12)]
    return SimpleNamespace(engine=request.param, slept=slept, **columns)


@pytest.mark.skipif(sys.platform != "linux", reason="I/O is measured on Linux only")
def test_bytes_of_a_helper_thread(measured: SimpleNamespace) -> None:
    """32 MB that a thread of the block writes read 32 MB; its neighbours wrote next to nothing (B129)."""
    assert 32 * MB <= measured.written[1] < 32.2 * MB
    assert max(measured.written[0], *measured.written[2:]) < MB / 5


def test_processor_time_of_a_helper_thread(measured: SimpleNamespace) -> None:
    """0.5 s that a thread of the block burns read 0.5 s; the other blocks burnt none (B129)."""
    assert 0.49 <= measured.cpu[2] < 0.56
    assert measured.wall[2] > 0.45
    assert measured.cpu[3] < 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured per block on Linux only")
def test_memory_is_that_of_the_block_and_its_process(measured: SimpleNamespace) -> None:
    """200 MB read as baseline + 200 MB, to 5 %; the next small block is small again (B130, KF-31, KF-32).

    The worker of a driver that holds 1 GB does not have it; a serial run's process is the driver.
    """
    baseline = measured.peak[3]
    held = 1000 * MB if measured.engine == "serial" else 0
    assert held < baseline < held + 200 * MB
    assert measured.peak[4] - held == pytest.approx(baseline - held + 200 * MB, rel=0.05)
    assert measured.peak[5] == pytest.approx(baseline, abs=20 * MB)


def test_a_sleep_costs_time_and_no_processor(measured: SimpleNamespace) -> None:
    """Blocks read what they slept, at their best to 1 ms, and a CPU time near zero (B128).

    How long a sleep of 50 ms is, the block itself tells: a busy machine wakes it late.
    """
    beyond = [wall - slept for wall, slept in zip(measured.wall[6:], measured.slept, strict=True)]
    assert 0 <= min(beyond) < 0.001
    assert min(measured.slept) >= 0.05
    assert min(measured.cpu[6:]) < 0.002
