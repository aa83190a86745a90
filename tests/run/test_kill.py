"""SIGKILL of a whole run at any instant: nothing survives it but what was done, and the next run does the rest."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from helpers.engine_kit import wait_until
from workspan.run.task import Task
from workspan.store.hash import layout_hash
from workspan.store.lock import beside
from workspan.store.slots import read_slots
from workspan.store.tracking import TrackingStore

KILLS = 60 if os.environ.get("WORKSPAN_FULL") == "1" else 8
BLOCKS = 8 * (KILLS + 1)
WORKERS = 2

DRIVER = """
import os, sys, time
from pathlib import Path
import numpy as np
import workspan as ws

folder, run, blocks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ws.logging.set_log_basedir(folder / "logs")
size = 10 * blocks

def note(text):
    calls = os.open(folder / f"calls.{run}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(calls, text.encode())
    os.close(calls)

def array(name):
    return np.lib.format.open_memmap(folder / f"{name}.npy", "r+")

def part(roi):
    return slice(max(0, roi.begin[0]), min(size, roi.end[0]))

def smooth(block):
    note(f"begin {block.task_id} {block.index}\\n")
    if int(run) % 2:
        time.sleep(0.002)  # else grants run ahead of the workers
    if block.task_id == "first":
        array("a")[part(block.write_roi)] = np.arange(size)[part(block.write_roi)] + 1
    else:
        seen = array("a")[part(block.read_roi)]
        assert seen.all(), "an input was not there"
        array("b")[part(block.write_roi)] = seen.sum()
    note(f"end {block.task_id} {block.index}\\n")

def task(name, context, conflict):
    roi = ws.Roi
    return ws.Task(
        name, roi((-context,), (size + 2 * context,)), roi((-context,), (10 + 2 * context,)), roi((0,), (10,)), smooth,
        read_write_conflict=conflict, max_workers=1, max_retries=0, tracking_path=folder / name, resource_tracking=True,
    )

first, second = task("first", 0, False), task("second", 5, True)
if __name__ == "__main__":
    print("ended", ws.run_blockwise(first + second), flush=True)
"""


def layouts(folder: Path) -> dict[str, Task]:
    """Return the tasks of the driver, without their functions."""
    from funlib.geometry import Roi

    tasks = {}
    for name, context in (("first", 0), ("second", 5)):
        total = Roi((-context,), (10 * BLOCKS + 2 * context,))
        read = Roi((-context,), (10 + 2 * context,))
        tasks[name] = Task(name, total, read, Roi((0,), (10,)), None, read_write_conflict=context > 0)
    return tasks


def processes_of(token: str) -> set[int]:
    """Processes that inherited *token* in their environment, which the driver hands on to its workers."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if token.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.add(int(name))
        except OSError:  # ended meanwhile
            pass
    return found


def calls_of(folder: Path, run: int) -> dict[str, list[tuple[str, int]]]:
    """What user code noted in one run: ``"begin"`` and ``"end"`` -> blocks."""
    path = folder / f"calls.{run}"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {word: [(task, int(index)) for kind, task, index in lines if kind == word] for word in ("begin", "end")}


def check_stores(folder: Path, tasks: dict[str, Task]) -> tuple[set[tuple[str, int]], dict[str, set[int]]]:
    """Each done block has all its measurements. Return what is done, and what is remembered to be in flight."""
    done, in_flight = set(), {}
    for name, task in tasks.items():
        path = folder / name
        if not path.exists():
            in_flight[name] = set()
            continue
        table = TrackingStore.peek(path).table()
        flags = table.done
        assert table.executed[flags].all()
        values = table.values
        for column in ("wall_seconds", "peak_rss_bytes", "sent_at"):
            assert (values[column][flags] > 0).all(), column
        assert (values["returned_at"] >= values["sent_at"])[flags].all()
        assert (values["worker_id"][flags] >= 0).all()
        base = task.layout.cell(0)[0]
        mine = {int(cell) - base for cell in table.cells[flags, 0]}
        done |= {(name, index) for index in mine}
        slots = read_slots(beside(path, ".slots"), layout_hash(task.layout))
        in_flight[name] = {slot.index for slot in slots} - mine
        assert {slot.worker for slot in slots} <= set(range(WORKERS))
    return done, in_flight


@pytest.mark.once
@pytest.mark.timeout(150 if KILLS == 8 else 600)
def test_a_run_that_is_killed_over_and_over_goes_on_where_it_was(tmp_path, monkeypatch):
    """R19, R24, R1, D25, KF-25: after each SIGKILL of the driver no worker is left within 5 s, what is done is whole,
    what was in flight is told, and the next run does exactly what was not done.
    """
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    for name in "ab":
        np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.int64, (10 * BLOCKS,))[:] = 0
    tasks = layouts(tmp_path)
    chance = random.Random(KILLS)
    monkeypatch.setenv("TEST_KILL_TOKEN", token := f"kill-{os.getpid()}-{chance.random()}")
    before = processes_of(token)
    everything = {(name, index) for name in tasks for index in range(BLOCKS)}
    done: set[tuple[str, int]] = set()
    ended: set[tuple[str, int]] = set()
    in_flight: dict[str, set[int]] = {name: set() for name in tasks}
    were_in_flight = 0
    for run in range(KILLS + 1):
        last = run == KILLS
        err = tmp_path / f"err.{run}"
        with err.open("w") as stderr:
            driver = subprocess.Popen(
                [sys.executable, str(script), str(tmp_path), str(run), str(BLOCKS)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
            try:
                if not last:
                    # Some die while they start, most after some calls; in both cases at no particular moment.
                    calls = tmp_path / f"calls.{run}"
                    wanted = chance.choice((0, *range(1, 13)))

                    def has_come(calls=calls, wanted=wanted):
                        return wanted == 0 or (calls.exists() and calls.read_text().count("begin") >= wanted)

                    wait_until(has_come, f"{wanted} blocks have begun", 40)
                    try:
                        driver.wait(chance.random() * (0.5 if wanted == 0 else 0.01))
                    except subprocess.TimeoutExpired:
                        driver.send_signal(signal.SIGKILL)
                out, _ = driver.communicate(timeout=50)
            finally:
                if driver.poll() is None:
                    driver.kill()
                    driver.communicate()
        wait_until(lambda: processes_of(token) <= before, "no worker is left", 5)

        lines = re.findall(r"^(\w+): .* (\d+) w(?:as|ere) in flight and run again", err.read_text(), re.M)
        told = {name: int(number) for name, number in lines}
        noted = calls_of(tmp_path, run)
        if noted["begin"]:  # it came far enough to tell
            assert told == {name: len(blocks) for name, blocks in in_flight.items() if blocks}
        assert len(set(noted["begin"])) == len(noted["begin"]), "a block ran twice in one run"
        assert not done & set(noted["begin"]), "a done block ran again"
        ended |= set(noted["end"])
        if last:
            assert set(noted["begin"]) == everything - done
            assert driver.returncode == 0, err.read_text()
            assert "ended True" in out
        else:
            assert driver.returncode == -signal.SIGKILL, err.read_text()
        after, left = check_stores(tmp_path, tasks)
        assert after >= done
        assert after <= ended, "a block is marked whose function did not end"
        begun = set(noted["begin"]) - after
        assert begun <= {(name, index) for name, blocks in left.items() for index in blocks}
        were_in_flight += sum(map(len, left.values()))
        done, in_flight = after, left
    assert done == everything
    assert were_in_flight > 0
    size = 10 * BLOCKS
    a, b = np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy")
    assert (a == np.arange(size) + 1).all()
    sums = [a[max(0, at - 5) : at + 15].sum() for at in range(0, size, 10)]
    assert (b == np.repeat(sums, 10)).all()
    for name, task in tasks.items():
        with TrackingStore.open(tmp_path / name, task.layout, resource_tracking=True) as store:
            assert store.was_in_flight == ()
            assert store.failures_of_blocks().sum() == 0  # the driver's death is no fault of a block
