"""Layouts, measurements and stores to try things on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.store.tracking import TrackingStore


def make_layout(blocks: int = 10, **fields: Any) -> Layout:
    """A row of *blocks* blocks of ten units."""
    whole = {
        "total_begin": (0,),
        "total_shape": (10 * blocks,),
        "read_begin": (0,),
        "read_shape": (10,),
        "write_begin": (0,),
        "write_shape": (10,),
    }
    return Layout(**{**whole, **fields})


@pytest.fixture(name="make_layout")
def make_layout_fixture() -> Callable[..., Layout]:
    return make_layout


@pytest.fixture
def row() -> Layout:
    """Ten blocks in a row."""
    return make_layout()


@pytest.fixture
def plane() -> Layout:
    """16 blocks in a plane whose first cell is (1, 0): the context in front of axis 0 is wider than a block."""
    return Layout((-5, 0), (63, 45), (0, 0), (23, 14), (12, 2), (10, 10), "valid", True)


@pytest.fixture
def stats() -> BlockStats:
    """Measurements that float32 holds exactly."""
    return BlockStats(0.5, 0.25, 123_456_789_012, 11, 22)


@pytest.fixture
def edit() -> Callable[[Path, Callable[[dict[str, Any]], Any]], None]:
    """Change a JSON file in place."""

    def change(path: Path, by: Callable[[dict[str, Any]], Any]) -> None:
        node = json.loads(path.read_text())
        by(node)
        path.write_text(json.dumps(node))

    return change


@pytest.fixture
def tracked(tmp_path: Path, row: Layout, stats: BlockStats) -> Path:
    """A closed store: blocks 0 to 4 done and measured, block 7 failed twice, block 8 done without being executed."""
    path = tmp_path / "tracking" / "seg"
    with TrackingStore.open(path, row, resource_tracking=True, task_id="seg") as store:
        for index in range(5):
            store.record_done(index, stats, index % 2, 1000.0 + index, 1000.5 + index, {"read": (0.125, 1)})
        store.record_failure(7)
        store.record_failure(7)
        store.mark_done(8)
    return path


@pytest.fixture
def run_script() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python code in a process of its own, with the package on its path; killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object, **options: Any) -> subprocess.Popen[str]:
        import workspan

        path = os.pathsep.join([str(Path(workspan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
