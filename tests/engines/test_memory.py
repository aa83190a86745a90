"""Killed for lack of memory: how the driver knows."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.engine_kit import wait_until
from workspan.engines.memory import MemoryWatch

UNLIMITED_V1 = "9223372036854771712"


class Machine:
    """Fake /proc and /sys/fs/cgroup."""

    def __init__(self, folder, groups, counter=None, limit=None):
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()
        (self.proc / "self/cgroup").write_text(groups)
        self.counter = self.cgroup / counter if counter else self.proc / "vmstat"
        self.counter.parent.mkdir(parents=True, exist_ok=True)
        self.kill(3)
        if limit is not None:
            path, text = limit
            (self.cgroup / path).write_text(text)

    def kill(self, total):
        """Let the kernel have killed so many."""
        self.counter.write_text(f"low 0\noom 9\noom_kill_disable 0\nunder_oom 0\noom_kill {total}\nother 5\n")

    def watch(self):
        """Return a watch of this machine."""
        return MemoryWatch(self.proc, self.cgroup)


V2 = ("0::/user/job", "user/job/memory.events", "user/job/memory.max")
V1 = (
    "9:name=systemd:/x\n4:cpu,memory:/docker/a\n0::/",
    "memory/docker/a/memory.oom_control",
    "memory/docker/a/memory.limit_in_bytes",
)
V1_CONTAINER = ("4:memory:/docker/a", "memory/memory.oom_control", "memory/memory.limit_in_bytes")
V2_CONTAINER = ("0::/../../job", "memory.events", "memory.max")
HYBRID = (
    "5:memory:/job\n1:name=systemd:/\n0::/job",
    "memory/job/memory.oom_control",
    "memory/job/memory.limit_in_bytes",
)


@pytest.mark.parametrize(
    ("groups", "counter", "limit"),
    [V2, V1, V1_CONTAINER, V2_CONTAINER, HYBRID],
    ids=["v2", "v1", "v1 in a container", "v2 in a container", "hybrid"],
)
class TestGroup:
    def test_a_kill_is_seen_once(self, tmp_path, groups, counter, limit):
        """R6: earlier kills are not this run's, and each one is told once, however many come together."""
        machine = Machine(tmp_path, groups, counter)
        watch = machine.watch()
        assert not watch.took_one()
        machine.kill(5)
        assert [watch.took_one() for _ in range(3)] == [True, True, False]
        machine.kill(6)
        assert watch.took_one()

    @pytest.mark.parametrize(("text", "number"), [("268435456\n", 1 << 28), ("max\n", None), (UNLIMITED_V1, None)])
    def test_the_limit(self, tmp_path, groups, counter, limit, text, number):
        """R6: the limit of the group in bytes, if it has one."""
        assert Machine(tmp_path, groups, counter, (limit, text)).watch().limit_bytes == number

    def test_no_limit_file(self, tmp_path, groups, counter, limit):
        """The root group has none."""
        assert Machine(tmp_path, groups, counter).watch().limit_bytes is None


class TestWithoutGroup:
    @pytest.mark.parametrize("groups", ["", "0::/\n", "3:cpu:/\n", "1:name=systemd:/\n0::/x"])
    def test_the_machines_counter_is_read(self, tmp_path, groups):
        """R6: without a memory group the kills of the whole machine are counted."""
        machine = Machine(tmp_path, groups)
        watch = machine.watch()
        machine.kill(4)
        assert [watch.took_one(), watch.took_one()] == [True, False]
        assert watch.limit_bytes is None

    def test_no_counter_at_all(self, tmp_path):
        """Other systems: nothing is claimed."""
        watch = MemoryWatch(tmp_path / "proc", tmp_path / "cgroup")
        assert not watch.took_one()
        assert watch.limit_bytes is None

    def test_a_counter_that_vanishes(self, tmp_path):
        """A group can be removed under us."""
        machine = Machine(tmp_path, "")
        watch = machine.watch()
        machine.counter.unlink()
        assert not watch.took_one()
        machine.kill(4)
        assert watch.took_one()

    def test_a_counter_that_is_garbage(self, tmp_path):
        """Neither raises nor claims anything."""
        machine = Machine(tmp_path, "")
        watch = machine.watch()
        machine.counter.write_text("oom_kill many\n")
        assert not watch.took_one()


def test_this_machine():
    """Whatever this machine has, it can be asked."""
    watch = MemoryWatch()
    assert watch.took_one() in (True, False)
    assert watch.limit_bytes is None or watch.limit_bytes > 0


DRIVER = """
import sys
import workspan as ws

ws.logging.set_log_basedir(sys.argv[1])

def work(block):
    if block.block_id[1] == 1:
        held = []
        while True:
            held.append(b"x" * (1 << 24))

task = ws.Task("t", ws.Roi((0,), (30,)), ws.Roi((0,), (10,)), ws.Roi((0,), (10,)), work, read_write_conflict=False,
               max_workers=1, max_retries=0)
sys.stdin.readline()
report = ws.run_blockwise(task, progress=False, summary=False, return_report=True)
print(report["t"].blocks.count, report["t"].blocks.failures)
print(report["t"].failed_blocks[0].error)
"""


@pytest.fixture
def limited_group():
    """A memory control group with a limit of 192 MiB."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    is_v1 = (v1 / "memory.limit_in_bytes").exists()
    group = (v1 if is_v1 else v2) / f"workspan-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(192 << 20))
        except OSError as error:
            pytest.skip(f"no memory limit can be set here: {error}")
        with suppress(OSError):
            (group / ("memory.memsw.limit_in_bytes" if is_v1 else "memory.swap.max")).write_text(
                str(192 << 20) if is_v1 else "0"
            )
        yield group
    finally:

        def removed():
            with suppress(OSError):
                group.rmdir()
            return not group.exists()

        wait_until(removed, "the control group is empty")


def test_a_worker_that_takes_too_much(limited_group, tmp_path):
    """R6: the cause reads "out of memory" with peak, limit and a hint, and the other blocks are done."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "logs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    try:
        (limited_group / "cgroup.procs").write_text(str(driver.pid))
    except OSError as error:
        driver.kill()
        pytest.skip(f"no process can be moved to the group: {error}")
    finally:
        out, err = driver.communicate("\n", timeout=50)
    assert driver.returncode == 0, err
    counts, error = out.split("\n", 1)
    assert counts == "2 1", out
    assert "out of memory: the kernel killed it; its peak was " in error
    assert "of 192 MiB that all workers and this program may use: use fewer workers or smaller blocks" in error
    assert "(killed by SIGKILL)" in error
