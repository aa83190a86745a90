"""Runs as viewers in other terminals are told of them. The viewer is in this process where one thread will do."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import workspan as ws
from helpers.engine_kit import SECONDS
from helpers.runs import line, run
from workspan import config, live
from workspan.errors import AbandonedError
from workspan.live import folder as folders
from workspan.live import outlet
from workspan.live.frames import FrameReader
from workspan.run import live as module
from workspan.run.live import LiveRun


class Look:
    """A viewer that reads what it is told to read."""

    made: ClassVar[list[Look]] = []

    def __init__(self, place: Path) -> None:
        (found,) = folders.candidates(place)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        self.socket.connect(str(found.path))
        self.reader = FrameReader()
        self.frames: list[dict[str, Any]] = []
        self.made.append(self)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read to the first frame of a run that is wanted."""
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame["kind"] == "run" and wanted(frame):
                    return frame
            data = self.socket.recv(1 << 16)
            assert data, "the program hung up"
            self.frames += self.reader.feed(data)

    def state(self) -> dict[str, Any]:
        """Read to the next state of a run."""
        return self.until(lambda frame: True)

    def close(self) -> None:
        """Look no more."""
        self.socket.close()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder for sockets."""
    base = Path(tempfile.mkdtemp(prefix="r"))
    monkeypatch.setenv("WORKSPAN_LIVE_DIRECTORY", str(base / "s"))
    monkeypatch.setenv("WORKSPAN_LIVE_ENABLED", "true")
    monkeypatch.setenv("WORKSPAN_LOG_BASEDIR", str(tmp_path / "logs"))
    config.reset()
    yield base / "s"
    while Look.made:
        Look.made.pop().close()
    live.stop()
    config.reset()
    shutil.rmtree(base)


def look_once(place: Path) -> dict[str, Any]:
    """What a viewer that comes now is told of the run."""
    look = Look(place)
    try:
        return look.state()
    finally:
        look.close()


def waiting(place: Path) -> Look:
    """A viewer that is there before the run begins."""
    live.start()
    look = Look(place)
    while not live.listening():
        time.sleep(0.001)
    # Greeted: it may have been the viewer before this one that was still there.
    look.frames += look.reader.feed(look.socket.recv(1 << 16))
    return look


@pytest.mark.parametrize("engine", ["serial", None])
def test_a_block_that_runs_here(place: Path, engine: str | None) -> None:
    """Where blocks run in the program's own thread, a viewer that comes in the middle of one is told at once of the
    counts and of this block; so is one in the debug mode (D30, R62)."""
    seen: list[dict[str, Any]] = []

    def work(block: ws.Block) -> None:
        if block.block_id[1] == 3:
            seen.append(look_once(place))

    assert run(line(5, work, "smooth"), engine, multiprocessing=engine is not None)
    (told,) = seen
    assert (told["event"], told["engine"]) == ("state", engine or "debug mode")
    (task,) = told["tasks"]
    assert (task["id"], task["total"], task["completed"]) == ("smooth", 5, 3)
    assert task["processing"] + task["ready"] == 2  # blocks of no length are handed out ahead
    (worker,) = told["workers"]
    assert (worker["worker"], worker["task"], worker["does"]) == (None, 0, "block")
    assert (worker["block"], worker["cell"]) == (3, [3])
    assert 0 <= worker["seconds"] <= told["elapsed"] < 60
    assert 0 <= task["left"] < 60


def test_one_after_another(place: Path) -> None:
    """A block that waits in the program's own thread for another task's block runs from the end of that on (D30)."""
    seen: list[dict[str, Any]] = []

    def first(block: ws.Block) -> None:
        time.sleep(0.1)

    def second(block: ws.Block) -> None:
        seen.append(look_once(place))

    assert run([line(1, first, "a"), line(1, second, "b")])
    (told,) = seen
    assert told["workers"][0]["task"] == 1
    assert told["workers"][0]["seconds"] <= told["elapsed"] - 0.1  # without the first block, however slow a look is


def test_workers(place: Path, tmp_path: Path) -> None:
    """With worker processes each one is told with what it does: its block and for how long; then the run ends, and how
    (D30)."""
    gate = tmp_path / "gate"

    def work(block: ws.Block) -> None:
        import time

        while not gate.exists():
            time.sleep(0.005)

    reports: list[Any] = []
    running = threading.Thread(target=lambda: reports.append(run(line(4, work, "smooth", max_workers=2), "processes")))
    running.start()
    try:
        while not folders.candidates(place):
            running.join(0.01)
        look = Look(place)
        told = look.until(lambda frame: [worker["does"] for worker in frame["workers"]] == ["block", "block"])
        assert [worker["worker"] for worker in told["workers"]] == [0, 1]
        assert sorted(worker["block"] for worker in told["workers"]) == [0, 1]
        (task,) = told["tasks"]
        assert (task["processing"], task["worker_starts"], task["left"]) == (2, 2, None)
        again = look.state()
        assert again["workers"][0]["seconds"] > told["workers"][0]["seconds"]
    finally:
        gate.touch()
        running.join(SECONDS)
    ended = look.until(lambda frame: frame["event"] == "end")
    look.close()
    assert (ended["outcome"], ended["tasks"][0]["completed"], ended["workers"]) == ("completed", 4, [])
    assert bool(reports[0])


def test_failures(place: Path) -> None:
    """The last failed attempts are told, with number, block, traceback and what came of them; a long error keeps its
    first line and its end (D30)."""

    def work(block: ws.Block) -> None:
        if block.block_id[1] == 2:
            raise ValueError("bad \x1b[31m" + "x" * 9000 + "the end")

    look = waiting(place)
    assert not run(line(5, work, "smooth", max_retries=1))
    first, second = look.until(lambda frame: frame["event"] == "end")["failures"]
    look.close()
    assert (first["number"], first["task"], first["block"], first["cause"]) == (1, "smooth", 2, "error")
    assert not first["final"]
    assert (second["number"], second["final"], second["worker"]) == (2, True, None)
    assert second["error"].startswith("Traceback")
    assert second["error"].rstrip().endswith("the end")
    assert len(second["error"]) <= module.MOST_TEXT
    assert 0 <= second["ago"] <= first["ago"] < 60


def test_how_runs_end(place: Path) -> None:
    """The end says how: completed, incomplete, given up, broken off by an error (D30)."""

    def fail(block: ws.Block) -> None:
        raise ValueError("bad")

    def leave(block: ws.Block) -> None:
        os._exit(3)

    def end_of(task: ws.Task, engine: Any = "serial", raises: type[BaseException] | None = None) -> str:
        look = waiting(place)
        if raises is None:
            run(task, engine, multiprocessing=engine is not None)
        else:
            with pytest.raises(raises):
                run(task, engine, multiprocessing=engine is not None)
        ended = look.until(lambda frame: frame["event"] == "end")
        look.close()
        return str(ended["outcome"])

    assert end_of(line(2, lambda block: None)) == "completed"
    assert end_of(line(2, fail, max_retries=0)) == "incomplete"
    lost = line(1, leave, max_workers=1, max_retries=9, max_worker_restarts=0)
    assert end_of(lost, "processes", raises=AbandonedError) == "abandoned"
    assert end_of(line(2, fail), None, raises=ValueError) == "error"


def test_two_runs_in_one_process(place: Path) -> None:
    """A run within a block of another one is told beside it, and has an id of its own (D30)."""
    seen: list[dict[str, Any]] = []

    def inner(block: ws.Block) -> None:
        look = Look(place)
        seen.extend([look.state(), look.state()])
        look.close()

    def outer(block: ws.Block) -> None:
        run(line(1, inner, "inner"))

    assert run(line(1, outer, "outer"))
    assert [frame["tasks"][0]["id"] for frame in seen[:2]] == ["outer", "inner"]
    assert seen[0]["run"] != seen[1]["run"]


def test_a_dataset(place: Path, tmp_path: Path) -> None:
    """A dataset's operators are tasks like others, and what it reads and writes are their blocks (D30)."""
    seen: list[dict[str, Any]] = []

    def batch(rows: Any) -> Any:
        seen.append(look_once(place))
        return rows

    ws.range(100).map_batches(batch).write_parquet(tmp_path / "out", engine="serial", progress=False)
    (task,) = seen[0]["tasks"]
    assert "MapBatches(batch)" in task["id"]
    assert seen[0]["workers"][0]["does"] == "block"


def test_nobody_looks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a viewer nothing is told or counted, at no block and not at the ends, and after a run nothing of it is
    left to be asked (R62)."""

    asked: list[object] = []
    monkeypatch.setattr(LiveRun, "_record", lambda self, event: asked.append(event))
    before = len(outlet._snapshots), len(outlet._repeated)
    assert run(line(50, lambda block: None))
    assert asked == []
    assert (len(outlet._snapshots), len(outlet._repeated)) == before
    assert folders.candidates(place)


def test_it_can_be_switched_off(place: Path) -> None:
    """``live.enabled = false`` keeps a run to itself: no socket, no folder (D30)."""
    config.configure(live={"enabled": False})
    assert run(line(2, lambda block: None))
    assert not place.exists()


def test_a_fault_of_it_is_no_fault_of_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What goes wrong with telling is a warning, and the run goes on (R62)."""
    monkeypatch.setattr(live, "register_snapshot", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(live, "listening", lambda: 1 / 0)
    assert run(line(2, lambda block: None))
    assert [record.message for record in caplog.records if "watched" in record.message] == [
        "this run cannot be watched: ZeroDivisionError: division by zero",
        "the end of this run cannot be watched: ZeroDivisionError: division by zero",
    ]


def test_a_forked_child_does_not_tell_its_parents_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child inherits is not its own (R65)."""
    told: list[Any] = []

    def work(block: ws.Block) -> None:
        (snapshot,) = outlet._repeated
        told.append(len(snapshot()))
        monkeypatch.setattr(module.os, "getpid", lambda: -1)
        told.append(len(snapshot()))
        monkeypatch.undo()

    assert run(line(1, work))
    assert told == [1, 0]


def test_very_many_tasks_and_workers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more tasks and workers than a record may have, those are told that go on, and the others are counted (R62)."""
    monkeypatch.setattr(module, "MOST_TASKS", 2)
    monkeypatch.setattr(module, "MOST_WORKERS", 0)
    seen: list[dict[str, Any]] = []

    def last(block: ws.Block) -> None:
        seen.append(look_once(place))

    tasks = [line(1, lambda block: None, f"t{n}") for n in range(5)]
    assert run([*tasks, line(1, last, "u")])
    (told,) = seen
    assert len(told["tasks"]) == 2
    assert told["more_tasks"] == 4
    assert (told["workers"], told["more_workers"]) == ([], 1)
    assert "u" in [task["id"] for task in told["tasks"]]
