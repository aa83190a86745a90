"""Mending and deleting stores."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.repairs import announced_repair as repair
from helpers.repairs import files
from workspan.errors import InvalidMetadataError, NoStoreError, StoreLockedError, TrackingError
from workspan.grid import Layout
from workspan.store.hash import layout_hash
from workspan.store.lock import beside
from workspan.store.repair import delete_store
from workspan.store.repair import repair as dry_repair
from workspan.store.runs import append_run
from workspan.store.tracking import TrackingStore

DONE = [1, 1, 1, 1, 1, 0, 0, 0, 1, 0]


def cells(store: Path, array: str, dtype: str, **changes: float) -> None:
    path = store / array / "c" / "0"
    values = np.fromfile(path, dtype)
    for number, value in changes.items():
        values[int(number.removeprefix("n"))] = value
    values.tofile(path)


def open_again(store: Path, row: Layout) -> list[int]:
    with TrackingStore.open(store, row, resource_tracking=True) as opened:
        return opened.done.tolist()


def without(*numbers: int) -> list[int]:
    return [0 if number in numbers else flag for number, flag in enumerate(DONE)]


def test_a_whole_store_needs_no_repair(tracked: Path, row: Layout) -> None:
    """Nothing is written, and the report is true."""
    before = {path: path.stat().st_mtime_ns for path in tracked.rglob("*")}
    report = repair(tracked)
    assert report
    assert (report.fixes, report.reset, report.backup) == ((), 0, None)
    assert {path: path.stat().st_mtime_ns for path in tracked.rglob("*")} == before
    assert os.listdir(tracked.parent) == ["seg"]
    assert open_again(tracked, row) == DONE


def test_bad_cells_are_reset_and_kept(tracked: Path, row: Layout) -> None:
    """Garbage flags and impossible stamps become "not done"; the old files are beside the store (R28)."""
    cells(tracked, "done", "u1", n0=7, n6=255)
    cells(tracked, "returned_at", "f8", n2=1.0)
    old = (tracked / "done" / "c" / "0").read_bytes()
    report = repair(tracked)
    assert not report
    assert report.reset == 3
    assert [fix.part for fix in report.fixes] == ["done", "done"]
    assert "2 cells were neither 0 nor 1: reset to not done" in report.fixes[0].what
    assert "1 cells were done with stamps" in report.fixes[1].what
    assert report.backup.name.startswith("seg.repair-")
    assert (report.backup / "done" / "c" / "0").read_bytes() == old
    assert open_again(tracked, row) == without(0, 2)
    records = {record.coord[0]: record for record in TrackingStore.peek(tracked).block_records()}
    assert sorted(records) == [1, 3, 4, 7, 8]  # what was reset has no stamps left that could be taken for a record
    assert records[7].failures == 2
    assert repair(tracked)


def test_a_dry_run_changes_nothing(tracked: Path) -> None:
    """A dry run says what a repair would put right and reset, and leaves every byte as it is (R28)."""
    cells(tracked, "done", "u1", n0=7)
    os.truncate(tracked / "wall_seconds" / "c" / "0", 14)
    (tracked / "steps" / "read" / "zarr.json").write_text("{")
    before = files(tracked.parent)
    report = dry_repair(tracked, dry_run=True)
    assert (files(tracked.parent), report.backup) == (before, None)
    assert not report
    assert report.reset == 3
    assert [fix.part for fix in report.fixes] == ["wall_seconds", "done", "done", "steps/read"]


@pytest.mark.parametrize(
    ("array", "size", "expected"),
    [
        ("done", 2, without(2, 3, 4, 8)),
        ("done", 12, DONE),
        ("failures", 7, DONE),
        ("wall_seconds", 14, without(3, 4)),
        ("wall_seconds", 0, without(0, 1, 2, 3, 4)),
        ("wall_seconds", 44, DONE),
        ("sent_at", 16, without(2, 3, 4)),
        ("worker_id", 16, without(4)),
    ],
)
def test_chunks_of_a_wrong_size_are_made_right(tracked: Path, row: Layout, array: str, size: int, expected) -> None:
    """Blocks whose measurements are lost run again, all others stay (R28)."""
    os.truncate(tracked / array / "c" / "0", size)
    with pytest.raises(InvalidMetadataError):
        open_again(tracked, row)
    report = repair(tracked)
    assert f"its chunk had {size} bytes" in report.fixes[0].what
    assert (report.backup / array / "c" / "0").stat().st_size == size
    assert open_again(tracked, row) == expected
    for record in TrackingStore.peek(tracked).block_records():
        assert record.stats is None or record.stats.wall_seconds == 0.5
    assert repair(tracked)


@pytest.mark.parametrize("array", ["done", "failures", "cpu_seconds", "returned_at"])
@pytest.mark.parametrize("how", ["cut", "missing", "shape", "codecs"])
def test_metadata_of_arrays_are_written_anew(tracked: Path, row: Layout, edit, array: str, how: str) -> None:
    """The layout says what they must be; the bytes are kept if there are as many as that asks for (R28)."""
    path = tracked / array / "zarr.json"
    if how == "cut":
        os.truncate(path, 50)
    elif how == "missing":
        path.unlink()
    elif how == "shape":
        edit(path, lambda node: node.update(shape=[11]))
    else:
        edit(path, lambda node: node.update(codecs=[]))
    report = repair(tracked)
    assert [fix.part for fix in report.fixes] == [f"{array}/zarr.json"]
    assert report.reset == 0
    assert open_again(tracked, row) == DONE
    assert TrackingStore.peek(tracked).block((7,)).failures == 2


def test_an_array_whose_bytes_mean_something_else_is_made_anew(tracked: Path, row: Layout, edit) -> None:
    """Metadata and size both wrong: nothing of it is believed, and it is kept beside the store (R28)."""
    edit(tracked / "cpu_seconds" / "zarr.json", lambda node: node.update(data_type="float64"))
    (tracked / "cpu_seconds" / "c" / "0").write_bytes(bytes(80))
    report = repair(tracked)
    assert report.reset == 5
    assert (report.backup / "cpu_seconds" / "c" / "0").stat().st_size == 80
    assert open_again(tracked, row) == without(0, 1, 2, 3, 4)


@pytest.mark.parametrize("array", ["wall_seconds", "done", "failures"])
def test_a_lost_chunk(tracked: Path, row: Layout, array: str) -> None:
    """Lost measurements mean running again; flags and failures are zeros in Zarr anyway (D23)."""
    (tracked / array / "c" / "0").unlink()
    report = repair(tracked)
    assert report.reset == (5 if array == "wall_seconds" else 0)
    expected = {"wall_seconds": without(0, 1, 2, 3, 4), "done": [0] * 10, "failures": DONE}
    assert open_again(tracked, row) == expected[array]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda steps: os.truncate(steps / "read" / "zarr.json", 9),
        lambda steps: (steps / "read" / "zarr.json").unlink(),
        lambda steps: os.truncate(steps / "read" / "c" / "0", 9),
        lambda steps: os.truncate(steps / "zarr.json", 9),
        lambda steps: (steps / "zarr.json").unlink(),
        lambda steps: shutil.copytree(steps / "read", steps / "read2"),
        lambda steps: [shutil.rmtree(steps), steps.write_text("?")],
    ],
)
def test_damaged_sections_are_taken_out(tracked: Path, row: Layout, break_it: Callable[[Path], object]) -> None:
    """What blocks cost in them is unknown then; the blocks stay done (R28, D24)."""
    break_it(tracked / "steps")
    with pytest.raises((InvalidMetadataError, TrackingError)):
        open_again(tracked, row)
    assert not repair(tracked)
    assert open_again(tracked, row) == DONE
    assert TrackingStore.peek(tracked).block((1,)).steps in ({}, {"read": 0.125})
    assert repair(tracked)


def test_the_layout_in_words_yields_to_the_hash(tracked: Path, row: Layout, make_layout, edit) -> None:
    """Where they contradict each other the layout is taken out, and the next run writes it again (D38)."""
    edit(tracked / "zarr.json", lambda node: node["attributes"]["workspan"].update(fit="shrink"))
    assert "not that of daisy_task_hash" in repair(tracked).fixes[0].what
    assert open_again(tracked, row) == DONE
    assert json.loads((tracked / "zarr.json").read_text())["attributes"]["workspan"]["fit"] == "valid"


def test_a_lost_hash_is_computed_from_the_layout(tracked: Path, row: Layout, edit) -> None:
    """The layout in words is enough to know it (D38)."""
    edit(tracked / "zarr.json", lambda node: node["attributes"].pop("daisy_task_hash"))
    assert "computed from the layout" in repair(tracked).fixes[0].what
    assert open_again(tracked, row) == DONE
    assert TrackingStore.peek(tracked).layout_hash == layout_hash(row)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"node_type": "array", "zarr_format": 3}'])
def test_a_group_that_lost_its_layout_cannot_be_mended(tracked: Path, content: bytes | None) -> None:
    """Nobody can say which blocks the cells mean; nothing is changed (KF-17)."""
    (tracked / "zarr.json").unlink()
    if content is not None:
        (tracked / "zarr.json").write_bytes(content)
    with pytest.raises(InvalidMetadataError, match=r"zarr\.json"):
        repair(tracked)
    assert os.listdir(tracked.parent) == ["seg"]


def test_a_store_of_daisy_is_mended_by_what_its_arrays_say(tracked: Path, row: Layout, edit) -> None:
    """Without the layout in words the shape is the one most arrays have (B118)."""
    edit(tracked / "zarr.json", lambda node: node["attributes"].pop("workspan"))
    for name in ("worker_id", "sent_at", "returned_at", "steps"):
        shutil.rmtree(tracked / name)
    assert repair(tracked)
    edit(tracked / "done" / "zarr.json", lambda node: node.update(shape=[3]))
    cells(tracked, "done", "u1", n9=9)
    report = repair(tracked)
    assert (len(report.fixes), report.reset) == (2, 1)
    assert not (tracked / "sent_at").exists()  # what was never there is not missing
    assert open_again(tracked, row) == DONE


def test_a_store_in_use_is_not_touched(tracked: Path, row: Layout) -> None:
    """Repair and delete need the lock (R30)."""
    with TrackingStore.open(tracked, row):
        for act in (repair, delete_store):
            with pytest.raises(StoreLockedError):
                act(tracked)
    assert tracked.is_dir()


def test_there_must_be_something_to_mend(tmp_path: Path) -> None:
    """No folder is a LookupError that names it."""
    with pytest.raises(NoStoreError, match=f"no tracking store at {tmp_path}/seg"):
        repair(tmp_path / "seg")
    assert os.listdir(tmp_path) == []


class TestDelete:
    """Starting fresh."""

    def test_everything_of_the_store_goes(self, tracked: Path) -> None:
        """History and what a kill left beside it included; the path comes back (B52)."""
        append_run(tracked / "runs.jsonl", {"run": 1})
        beside(tracked, ".slots").parent.mkdir()
        beside(tracked, ".slots").write_bytes(b"left by a kill")
        assert delete_store(tracked) == tracked
        assert os.listdir(tracked.parent) == []

    def test_nothing_to_delete(self, tmp_path: Path) -> None:
        """No store is no error (B52)."""
        assert delete_store(tmp_path / "seg") is None

    def test_a_damaged_store_can_be_deleted(self, tracked: Path) -> None:
        """Deleting is the remedy when nothing else helps (B115)."""
        (tracked / "zarr.json").write_bytes(b"{")
        shutil.rmtree(tracked / "done")
        assert delete_store(tracked) == tracked

    def test_other_folders_are_not_deleted(self, tmp_path: Path) -> None:
        """A wrong tracking_path must not cost a home folder: what holds something else stays (B52)."""
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis").write_text("years")
        with pytest.raises(TrackingError, match="home is not a tracking store: it holds 'thesis'"):
            delete_store(tmp_path / "home")
        assert (tmp_path / "home" / "thesis").read_text() == "years"
        assert os.listdir(tmp_path) == ["home"]

    def test_a_users_own_files_go_with_a_real_store(self, tracked: Path) -> None:
        """What lies in a group that carries the hash is part of it."""
        (tracked / "notes").mkdir()
        assert delete_store(tracked) == tracked

    def test_a_kill_while_deleting_is_finished_by_the_next_run(self, tracked: Path, row: Layout) -> None:
        """The store was moved out of the way first: no half of it is ever opened (R19, R32)."""
        moved = beside(tracked, ".deleted")
        moved.parent.mkdir()
        shutil.move(tracked, moved)
        shutil.rmtree(moved / "done")
        assert open_again(tracked, row) == [0] * 10
        assert os.listdir(tracked.parent) == ["seg"]
