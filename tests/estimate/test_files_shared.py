"""What several processes and threads write at once is all kept, and a kill loses nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from helpers.timings import count, documents, step
from workspan import config
from workspan.estimate import files
from workspan.estimate.forecast import Forecast
from workspan.estimate.recorder import ProgressRecorder

CHILD = """
import os, signal, sys
from workspan.estimate import WallClockTime
def part(name, n):
    with WallClockTime(name, N_ref=n, order="O_N"):
        pass
for n in range(int(sys.argv[2])):
    part(sys.argv[1], n + 1)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "inside":
    with WallClockTime("inside"):
        os.kill(os.getpid(), signal.SIGKILL)
print("lived", flush=True)
"""


def start(tmp_path: Path, home: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a process that records."""
    script = tmp_path / "child.py"
    if not script.exists():  # written again it could be read empty by a child that is starting
        script.write_text(CHILD)
    environment = {
        **os.environ,
        "WORKSPAN_TIMING_DIRECTORY": str(home),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "WORKSPAN_TIMING_UPDATE_MINIMUM_COUNT": "50",  # no fit, which would load numpy in each
    }
    return subprocess.Popen([sys.executable, str(script), *words], env=environment, stdout=subprocess.PIPE)


def test_concurrent_processes_lose_nothing(tmp_path: Path, recorder: ProgressRecorder, home: Path) -> None:
    """8 processes x 50 measurements, two of them killed, leave all 400 in the store (E68, R58, KF-67)."""
    children = [start(tmp_path, home, f"p{i}", "50", "kill" if i < 2 else "end") for i in range(8)]
    assert [child.communicate()[0] for child in children] == [b""] * 2 + [b"lived\n"] * 6
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2 + [0] * 6
    history = recorder._loaded()
    assert {key.step_name: kept.count for key, kept in history.items()} == {f"p{i}": 50 for i in range(8)}
    for document in documents(home):
        json.loads(document.read_text())


def test_a_kill_loses_nothing_that_was_finished(tmp_path: Path, recorder: ProgressRecorder, home: Path) -> None:
    """What was measured before a SIGKILL inside a step is there, the step itself is not (D31, E66, E67, R59, KF-67)."""
    assert start(tmp_path, home, "s", "10", "inside").communicate()[0] == b""
    assert {key.step_name: kept.count for key, kept in recorder._loaded().items()} == {"s": 10}
    step(1)
    recorder.flush()
    assert list(home.glob("fragment_*")) == []
    item, other = json.loads(documents(home)[-1].read_text())["steps"]
    assert {len(item["measurements"]), len(other["measurements"])} == {10, 1}


def test_a_held_lock_leaves_the_fragment(
    recorder: ProgressRecorder, home: Path, monkeypatch: pytest.MonkeyPatch, again: Any
) -> None:
    """Lock not obtained in time: the fragment stays and is merged at the next load (E68)."""
    import fcntl

    step(1)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.02)
    with open(home / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = again()
        assert documents(home) == []
        assert count(fresh) == 1
    step(2)
    assert count(again()) == 2
    assert list(home.glob("fragment_*")) == []


def test_unsaved_threads_do_not_lose_measurements(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Saving while other threads record keeps each measurement exactly once (E68)."""
    config.configure(timing={"max_measurements": 1000})

    def work() -> None:
        for n in range(100):
            step(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        recorder.flush()
    for thread in threads:
        thread.join()
    assert count(again()) == 400


def test_no_handler_runs_under_the_lock(recorder: ProgressRecorder, home: Path) -> None:
    """A handler that waits for another thread which records is no deadlock (E26)."""
    home.mkdir()
    (home / "execution_timing_20990101T000000Z.json").write_text("{")
    free: list[bool] = []

    class Other(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            def look() -> None:
                free.append(recorder._lock.acquire(timeout=5))
                if free[-1]:
                    recorder._lock.release()

            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

    handler = Other()
    logging.getLogger("workspan.estimate").addHandler(handler)
    try:
        step(1)
    finally:
        logging.getLogger("workspan.estimate").removeHandler(handler)
    assert free == [True]


def test_fitting_for_a_save_keeps_no_step_waiting(
    recorder: ProgressRecorder, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Curves are fitted without the lock that the end of every step takes (E26, E67)."""
    ended: list[bool] = []
    stored = Forecast.stored

    def slow(self: Forecast, **options: Any) -> Any:
        def step() -> None:
            recorder.stop(recorder.record(("m", "other", None)))
            ended.append(True)

        other = threading.Thread(target=step, daemon=True)
        other.start()
        other.join(10.0)
        return stored(self, **options)

    monkeypatch.setattr(Forecast, "stored", slow)
    recorder.stop(recorder.record(("m", "f", None)))
    assert recorder.flush()
    assert ended == [True]
