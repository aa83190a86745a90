"""What lies in the memory of the driver is written while the workers start, and before they are sent the task."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import workspan as ws
from workspan.dataset.figures import Tally
from workspan.dataset.inputs import Inputs
from workspan.dataset.pace import Pace, Paced
from workspan.dataset.sources import ArrowPiece, MemoryPiece, RangePiece


class Recorder:
    """An engine that writes down what it is told, and which files were there at that time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.told: list[tuple[Any, ...]] = []
        self.events: list[Any] = []

    def _note(self, *what: Any) -> None:
        self.told.append((*what, sorted(path.name for path in self._folder.glob("*"))))

    def open(self, job: Any) -> None:
        """Begin."""

    def start_worker(self, worker: int, task: int) -> None:
        """Start."""
        self._note("start", worker)

    def send(self, worker: int, index: int) -> None:
        """Send."""
        self._note("send", index)

    def stop_worker(self, worker: int) -> None:
        """Stop."""

    def poll(self, timeout: float | None) -> list[Any]:
        """Wait."""
        self._note("poll", timeout)
        return self.events


class Job:
    """A job of so many operators."""

    tasks = (None, None)


def paced(folder: Path, blocks: int = 4) -> tuple[Paced, Recorder, Inputs]:
    """Return an engine that was told of two tasks of as many pieces each."""
    inputs = Inputs(folder / "input")
    tables = [pa.table({"x": [number]}) for number in range(blocks)]
    pieces = [inputs.promise(str(n), MemoryPiece(f"table {n}", 1, table)) for n, table in enumerate(tables)]
    inputs.are_of([pieces[: blocks // 2], pieces[blocks // 2 :]])
    engine = Recorder(folder / "input")
    made = Paced(engine, Pace([folder, folder], [9]), Tally(), inputs)  # type: ignore[arg-type]
    made.open(Job())
    return made, engine, inputs


def test_workers_start_before_anything_is_written(tmp_path: Path) -> None:
    """Workers load their libraries while inputs are written, one between two polls, none of which waits (M59)."""
    engine, recorder, inputs = paced(tmp_path)
    engine.start_worker(0, 0)
    engine.poll(5.0)
    engine.poll(5.0)
    assert recorder.told == [("start", 0, []), ("poll", 0, []), ("poll", 0, ["0.arrow"])]
    for _ in range(3):
        engine.poll(5.0)
    assert not inputs
    assert recorder.told[-1] == ("poll", 5.0, [f"{number}.arrow" for number in range(4)])


def test_a_task_is_sent_when_all_that_it_reads_is_there(tmp_path: Path) -> None:
    """A worker that asks before its inputs are written gets the task with them, and no others are written (M105)."""
    engine, recorder, _ = paced(tmp_path)
    engine.start_worker(0, 0)
    recorder.events = [object()]
    engine.poll(None)
    engine.send(0, 1)
    assert recorder.told[-1] == ("send", 1, ["2.arrow", "3.arrow"])
    table = next(ArrowPiece("", None, str(tmp_path / "input" / "3.arrow")).read())
    assert table.to_pydict() == {"x": [3]}
    engine.start_worker(1, 1)
    engine.send(1, 0)  # a task of the second operator reads results, and none of these
    assert recorder.told[-1] == ("send", 0, ["2.arrow", "3.arrow"])


def test_a_run_that_ends_writes_nothing_more(tmp_path: Path) -> None:
    """After Ctrl-C nothing is written ahead (B71)."""
    engine, recorder, inputs = paced(tmp_path)
    engine.start_worker(0, 0)
    engine.stop_worker(0)
    engine.poll(0.5)
    engine.poll(0.5)
    assert recorder.told[-1] == ("poll", 0.5, [])
    assert inputs


def test_only_memory_is_written_and_what_is_there_is_used_again(tmp_path: Path) -> None:
    """A resumed run finds the inputs that the run before has written whole, and no half of one (M63)."""
    inputs = Inputs(tmp_path)
    numbers = RangePiece("rows 0 to 3", 3, 0, 3)
    assert inputs.promise("0", numbers) is numbers
    assert not inputs
    (tmp_path / "1.arrow").write_bytes(b"whole")
    (tmp_path / "2.arrow.part").write_bytes(b"half")
    pieces = [inputs.promise(name, MemoryPiece(name, 1, pa.table({"x": [1]}))) for name in "12"]
    inputs.are_of([pieces])
    inputs.write_for(0)
    assert (tmp_path / "1.arrow").read_bytes() == b"whole"
    assert next(pieces[1].read()).num_rows == 1
    assert not list(tmp_path.glob("*.part"))


def test_a_full_disk_ends_the_run_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that cannot be written ends the run with what was written, where, and a remedy (M67)."""

    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("workspan.dataset.inputs.pa.ipc.new_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        ws.from_items([{"x": 1}]).map(lambda row: row).to_arrow(max_workers=1, progress=False)
    (note,) = caught.value.__notes__
    assert note.startswith("while items 0 to 1 was put into ")
    assert note.endswith("input for the workers: make room, or set TMPDIR to one on another disk")


def test_no_rows_stay_none_after_a_limit_in_worker_processes() -> None:
    """A limit that no row reaches hands on no rows, and not those that the source began with (M58)."""
    data = ws.from_items([{"x": n} for n in range(4)], blocks=2).filter(lambda row: row["x"] < 0).limit(3)
    assert data.map(lambda row: row).count(max_workers=1, progress=False) == 0
