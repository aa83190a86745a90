"""The driver is gone: so are its workers, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from helpers.engine_kit import is_gone, wait_until

DRIVER = """
import ctypes, os, subprocess, sys, time
from workspan.engines import Job, Processes, WorkerTask
from workspan.grid import Layout

def work(block):
    child = subprocess.Popen(["sleep", "1000"]).pid
    os.write(1, b"%d %d\\n" % (os.getpid(), child))  # in one piece
    if block.index == 1:
        time.sleep(1000)
    if block.index == 2:
        ctypes.PyDLL(None).pause()  # in C, and holding the interpreter

engine = Processes(fork_server={forked})
engine.open(Job("run", (WorkerTask("task", Layout((0,), (10,), (0,), (1,), (0,), (1,)), work),)))
engine.start_worker(0, 0)
engine.poll(20)
os.write(1, b"%d\\n" % (engine._server.pid if engine._server else 0))
{before}
engine.send(0, {block})
engine.poll(1 if {block} == 0 else 0)
os.write(1, b"sent\\n")
sys.stdin.read()
"""

FORKS = """
if os.fork() == 0:  # holds copies of all descriptors of the driver
    os.close(1)
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("block", "forked"), [(0, False), (1, False), (2, False), (1, True)], ids=["idle", "in Python", "in C", "by server"]
)
@pytest.mark.parametrize("before", ["", FORKS], ids=["", "forked"])
def test_workers_end_with_a_killed_driver(block, forked, before):
    """Within 5 s of the driver's SIGKILL no worker is left, and no fork server (R19, D28).

    Where no fork of the driver holds on, nothing is left of what a worker started.
    """
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(block=block, before=before, forked=forked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        start_new_session=True,
    )
    worker = 0
    try:
        server = int(driver.stdout.readline())
        assert (server > 0) is forked
        lines = sorted(driver.stdout.readline().split() for _ in range(2))
        assert lines[1] == ["sent"], lines
        worker, grandchild = map(int, lines[0])
        assert not is_gone(worker)
        driver.kill()
        wait_until(lambda: is_gone(worker), "the worker is gone", 5)
        if forked:
            wait_until(lambda: is_gone(server), "the fork server is gone", 5)
        if not before:
            wait_until(lambda: is_gone(grandchild), "what the worker started is gone", 5)
    finally:
        for group in (driver.pid, worker) if worker else (driver.pid,):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        driver.communicate()


@pytest.mark.parametrize("leads", [True, False], ids=["own group", "group of others"])
def test_lifeline_alone_ends_the_group(leads):
    """The closed end of the pipe kills a worker in mid-call and its own group, but no group of others (R19)."""
    code = """
import ctypes, os, subprocess, sys
from workspan.engines.worker import _tie_lifeline
_tie_lifeline()
print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
ctypes.PyDLL(None).pause()
"""
    worker = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        start_new_session=leads,
    )
    grandchild = int(worker.stdout.readline())
    worker.stdin.close()
    assert worker.wait(5) == -signal.SIGKILL
    worker.stdout.close()
    if leads:
        wait_until(lambda: is_gone(grandchild), "the grandchild is gone", 5)
    else:
        os.kill(grandchild, signal.SIGKILL)  # it is still there, and so are we
