"""Workers that the kernel kills because memory has run out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from workspan.engines.memory import MemoryWatch

DRIVER = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
import workspan as ws

ws.logging.set_log_basedir(None)
def work(block):
    if block.index == 1:
        held = []
        while True:
            held.append(b"x" * 1_000_000)

row, one = ws.Roi((0,), (50,)), ws.Roi((0,), (10,))
task = ws.Task("t", row, one, one, work, read_write_conflict=False, max_workers=1, max_retries=1)
report = ws.run_blockwise(task, progress=False, summary=False, return_report=True)["t"]
print(json.dumps([report.blocks.count, report.blocks.failed, report.blocks.failures, report.failed_blocks[0].error]))
"""
LIMIT = 160 << 20


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory control group of 160 MiB below our own, or a skip."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent, limit = Path("/sys/fs/cgroup/memory", path.lstrip("/")), "memory.limit_in_bytes"
            break
    else:
        parent, limit = Path("/sys/fs/cgroup", path.lstrip("/")), "memory.max"
    folder = parent / f"workspan-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made: {error}")
    try:
        try:
            (folder / limit).write_text(str(LIMIT))
        except OSError as error:
            pytest.skip(f"no memory limit can be set: {error}")
        for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            with suppress(OSError):
                (folder / swap).write_text(str(LIMIT if "memsw" in swap else 0))
        yield folder
    finally:
        end = time.monotonic() + 10
        while True:  # the kernel lets go of its last process a little after that has ended
            try:
                folder.rmdir()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)


def test_a_worker_that_the_kernel_kills_for_memory_is_told_so(group: Path) -> None:
    """R6: the cause names the limit and the worker's peak, with a hint; losses share the retries; the rest is done."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(group)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    count, failed, failures, error = json.loads(done.stdout)
    assert (count, failed, failures) == (4, 1, 2)
    assert "out of memory: the kernel killed it" in error
    assert "of 160 MiB that all workers and this program may use" in error
    assert "use fewer workers or smaller blocks" in error
    peak = int(error.partition("its peak was ")[2].split()[0])
    assert 50 < peak < 160


class TestCounter:
    """Where the kernel keeps its count (D14: Linux; elsewhere there is none)."""

    @pytest.fixture
    def mounts(self, tmp_path: Path) -> tuple[Path, Path]:
        """Stand-ins of /proc and /sys/fs/cgroup."""
        proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        cgroup.mkdir()
        return proc, cgroup

    @pytest.mark.parametrize("inside", [False, True], ids=["host", "container"])
    @pytest.mark.parametrize(
        ("line", "folder", "events", "limit"),
        [
            ("0::/my/group\n", "", "memory.events", "memory.max"),
            ("7:cpu:/x\n4:memory,hugetlb:/my/group\n0::/\n", "memory", "memory.oom_control", "memory.limit_in_bytes"),
        ],
        ids=["v2", "v1"],
    )
    def test_of_the_group(
        self, mounts: tuple[Path, Path], line: str, folder: str, events: str, limit: str, inside: bool
    ) -> None:
        """R6: both versions, and inside of a container, where the path is the host's."""
        proc, cgroup = mounts
        (proc / "self/cgroup").write_text(line)
        where = cgroup / folder if inside else cgroup / folder / "my/group"
        where.mkdir(parents=True, exist_ok=True)
        (where / events).write_text("low 0\noom 4\noom_kill 2\n")
        (where / limit).write_text("1000000\n")
        watch = MemoryWatch(proc, cgroup)
        assert watch.limit_bytes == 1_000_000
        assert not watch.took_one()
        (where / events).write_text("low 0\noom 9\noom_kill 4\n")
        assert watch.took_one()
        assert not watch.took_one()
        (where / limit).write_text("max\n")
        assert watch.limit_bytes is None
        (where / limit).write_text(f"{2**63 - 4096}\n")
        assert watch.limit_bytes is None

    def test_of_the_machine(self, mounts: tuple[Path, Path]) -> None:
        """R6: without a group's counter the machine's is used, and there is no limit."""
        proc, cgroup = mounts
        (proc / "self/cgroup").write_text("0::/\n")
        (proc / "vmstat").write_text("pgfault 3\noom_kill 1\n")
        watch = MemoryWatch(proc, cgroup)
        (proc / "vmstat").write_text("pgfault 3\noom_kill 2\n")
        assert watch.took_one()
        assert watch.limit_bytes is None

    def test_of_nobody(self, mounts: tuple[Path, Path]) -> None:
        """R6: where the kernel counts nothing, or nonsense, nothing is claimed."""
        proc, cgroup = mounts
        watch = MemoryWatch(proc, cgroup)
        assert not watch.took_one()
        assert watch.limit_bytes is None
        (proc / "vmstat").write_text("oom_kill 1\n")
        watch = MemoryWatch(proc, cgroup)
        (proc / "vmstat").write_text("oom_kill many\n")
        assert not watch.took_one()
        (proc / "vmstat").unlink()
        assert not watch.took_one()
