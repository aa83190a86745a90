"""Reading a store, also while it is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from workspan.errors import InvalidMetadataError, NoStoreError, TrackingError
from workspan.grid import Layout
from workspan.store.meta import ARRAYS, write_node
from workspan.store.reader import StoreReader
from workspan.store.records import BlockRecord
from workspan.store.tracking import TrackingStore


def test_a_store_is_read_without_its_layout(tracked: Path, stats) -> None:
    """Shape, arrays, sections and every record come from the files (B152)."""
    reader = TrackingStore.peek(tracked)
    assert reader.cell_counts == (10,)
    assert reader.arrays == tuple(ARRAYS)
    assert reader.step_names == ("read",)
    assert reader.resource_tracking
    assert list(reader.block_records()) == [
        *(
            BlockRecord(
                coord=(i,),
                done=True,
                failures=0,
                stats=stats,
                worker_id=i % 2,
                sent_at=1000.0 + i,
                returned_at=1000.5 + i,
                steps={"read": 0.125},
            )
            for i in range(5)
        ),
        BlockRecord(coord=(7,), done=False, failures=2),
        BlockRecord(coord=(8,), done=True, failures=0),
    ]
    assert [reader.block((i,)) for i in (5, 6, 9)] == [None] * 3


def test_the_table_has_the_same_as_columns(tracked: Path) -> None:
    """One row a recorded block, in grid order (B152)."""
    reader = TrackingStore.peek(tracked)
    table = reader.table()
    records = list(reader.block_records())
    assert table.cells.tolist() == [list(record.coord) for record in records]
    assert table.done.tolist() == [record.done for record in records]
    assert table.failures.tolist() == [record.failures for record in records]
    assert table.executed.tolist() == [record.stats is not None for record in records]
    assert table.values["sent_at"][:5].tolist() == [record.sent_at for record in records[:5]]
    assert table.steps["read"].tolist()[:5] == [0.125] * 5
    assert np.isnan(table.steps["read"][5:]).all()
    assert table.measured("cpu_seconds").tolist() == table.executed.tolist()


def test_columns_know_what_was_not_measured(tmp_path: Path, row: Layout, stats) -> None:
    """A column's mask leaves out cells whose 0 means nothing (D22)."""
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        store.record_done(0, type(stats)(1.0, 1.0, None, 1, 1), 0, 1.0, 2.0)
        store.record_done(1, type(stats)(1.0, 1.0, 5, 1, 1), 0, 1.0, 2.0)
        store.record_failure(2)
        table = store.peek(store.path).table()
    assert table.measured("peak_rss_bytes").tolist() == [False, True, False]
    assert table.measured("wall_seconds").tolist() == [True, True, False]


def test_large_grids_are_read_in_parts(tmp_path: Path, stats, monkeypatch) -> None:
    """Records and columns are the same however the grid is cut into batches."""
    layout = Layout((0, 0), (70, 50), (0, 0), (1, 1), (0, 0), (1, 1))
    with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
        for index in range(0, layout.num_blocks, 97):
            store.record_done(index, stats, index, 1.0 + index, 2.0 + index, {"a": (index, 1)})
    whole = list(StoreReader(tmp_path / "seg").block_records())
    monkeypatch.setattr("workspan.store.reader._BATCH", 101)
    reader = StoreReader(tmp_path / "seg")
    assert list(reader.block_records()) == whole
    assert len(whole) == len(range(0, 3500, 97))
    assert reader.table().values["worker_id"].tolist() == list(range(0, 3500, 97))
    assert reader.table().steps["a"].tolist() == list(range(0, 3500, 97))


def test_where_there_is_no_store(tmp_path: Path) -> None:
    """A LookupError that names the path; nothing is made (B152)."""
    for path in (tmp_path / "seg", tmp_path):
        with pytest.raises(NoStoreError, match=f"no tracking store at {path}"):
            TrackingStore.peek(path)
    assert os.listdir(tmp_path) == []


def test_questions_about_what_is_not_there(tmp_path: Path, row: Layout, make_layout) -> None:
    """Arrays, sections and layouts that the store does not have are told by name."""
    TrackingStore.open(tmp_path / "seg", row).close()
    with TrackingStore.peek(tmp_path / "seg") as reader:
        assert not reader.resource_tracking
        with pytest.raises(NoStoreError, match="no array 'wall_seconds': it has done, failures"):
            reader.array("wall_seconds")
        with pytest.raises(NoStoreError, match="no section 'read'"):
            reader.array("steps/read")
        with pytest.raises(TrackingError, match=r"has the cells \(10,\), the task \(9,\)"):
            reader.done_of(make_layout(blocks=9))


@pytest.mark.parametrize(
    ("part", "size", "named"),
    [
        ("zarr.json", 30, "zarr.json"),
        ("done/zarr.json", 30, "done/zarr.json"),
        ("wall_seconds/zarr.json", 30, "wall_seconds/zarr.json"),
        ("done/c/0", 9, "done: .*has 9 bytes, expected 10"),
        ("sent_at/c/0", 90, "sent_at: .*has 90 bytes, expected 80"),
        ("steps/read/c/0", 0, "steps/read: a chunk has 0 bytes"),
    ],
)
def test_damage_is_told_by_name(tracked: Path, part: str, size: int, named: str) -> None:
    """A reader takes nothing damaged for a record (R28)."""
    os.truncate(tracked / part, size)
    with pytest.raises(InvalidMetadataError, match=named):
        list(TrackingStore.peek(tracked).block_records())


def test_lost_measurements_are_not_zeros(tracked: Path) -> None:
    """A missing chunk of measurements is damage, one of flags is zeros (D23)."""
    shutil.rmtree(tracked / "failures" / "c")
    assert TrackingStore.peek(tracked).block((7,)) is None
    shutil.rmtree(tracked / "wall_seconds" / "c")
    with pytest.raises(InvalidMetadataError, match="wall_seconds: its chunk is missing"):
        TrackingStore.peek(tracked).block((1,))


def test_metadata_are_old_or_new_at_any_time(tmp_path: Path, run_script) -> None:
    """A process that reads in a loop meets no half-written file in 500 updates (KF-22, R31)."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"n": 0, "long": "x" * 50_000}}
    write_node(tmp_path, group)
    code = """
        import json, sys
        seen = set()
        while True:
            with open(sys.argv[1] + "/zarr.json") as file:
                node = json.load(file)
            seen.add(node["attributes"]["n"])
            assert len(node["attributes"]["long"]) == 50_000
            if len(seen) == 1:
                print("reading", flush=True)
            if node["attributes"]["n"] == 500:
                break
        print(len(seen))
    """
    reader = run_script(code, tmp_path)
    assert reader.stdout.readline() == "reading\n"
    for number in range(1, 501):
        group["attributes"]["n"] = number
        write_node(tmp_path, group, durable=False)
    out, err = reader.communicate()
    assert int(out.split()[-1]) > 1, err
    assert os.listdir(tmp_path) == ["zarr.json"]


@pytest.mark.parametrize(("way", "blocks"), [("map", 100_000), ("pwrite", 20_000)])
def test_a_reader_finds_the_measurements_of_every_done_block(tmp_path: Path, run_script, way, blocks) -> None:
    """While a run writes as fast as it can, what reads as done has all its measurements, in any reader (R31, B120)."""
    code = """
        import sys
        from workspan.grid import Layout
        from workspan.measure.profile import BlockStats
        from workspan.store import tracking
        if sys.argv[2] == "pwrite":
            tracking.can_map = lambda folder: False
        layout = Layout((0,), (int(sys.argv[3]),), (0,), (1,), (0,), (1,))
        with tracking.TrackingStore.open(sys.argv[1], layout, resource_tracking=True) as store:
            print("ready", flush=True)
            for index in range(layout.num_blocks):
                store.record_done(index, BlockStats(1.0, 1.0, 1, 1, 1), 1, 1000.0, 1001.0, {"read": (1.0, 1)})
                if index == layout.num_blocks // 2:
                    sys.stdin.readline()  # so that the reader meets a run that is not over
                if not index % 2000:
                    store.record_done(index, BlockStats(1.0, None, 1, 1, 1), 1, 1000.0, 1001.0, {"read": (1.0, 1)})
                    store.flush()
    """
    writer = run_script(code, tmp_path / "seg", way, blocks)
    assert writer.stdout.readline() == "ready\n", writer.stderr.read()
    rounds = last = 0
    while writer.poll() is None:
        reader = TrackingStore.peek(tmp_path / "seg")
        table = reader.table()
        assert table.executed[table.done].all()
        for name in ("wall_seconds", "peak_rss_bytes", "io_read_bytes", "io_write_bytes", "worker_id"):
            assert (table.values[name][table.done] == 1).all()
        assert (table.values["returned_at"][table.done] == 1001).all()
        if table.steps:
            assert (table.steps["read"][table.done] == 1).all()
        assert table.done.sum() >= last
        last = int(table.done.sum())
        record = reader.block((max(0, last - 2),))
        assert record is None or not record.done or record.stats.wall_seconds == 1
        rounds += 1
        if rounds == 3:
            writer.stdin.write("go on\n")
            writer.stdin.flush()
    assert writer.returncode == 0, writer.stderr.read()
    assert TrackingStore.peek(tmp_path / "seg").done.sum() == blocks


def test_peeking_opens_nothing_for_long(tracked: Path) -> None:
    """A reader holds no descriptor, whatever was asked."""
    before = sorted(os.listdir("/proc/self/fd"))
    reader = TrackingStore.peek(tracked)
    list(reader.block_records())
    reader.table()
    reader.array("steps/read")
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_unknown_keys_are_passed_over(tracked: Path, edit) -> None:
    """Attributes and keys of others do not disturb (B116)."""
    edit(tracked / "zarr.json", lambda node: node["attributes"].update(mine=1, workspan="odd"))
    edit(tracked / "done" / "zarr.json", lambda node: node.update(dimension_names=["x"], attributes={"a": 1}))
    assert TrackingStore.peek(tracked).block((1,)).done
    assert json.loads((tracked / "zarr.json").read_text())["attributes"]["mine"] == 1


@pytest.mark.parametrize("when", ["before the folders", "after the folders", "at the metadata"])
def test_a_section_that_comes_up_while_its_names_are_read(tracked: Path, monkeypatch, when: str) -> None:
    """Whatever a run makes between two looks of a reader, the reader takes it for no damage (R31).

    1. The reader looks for one thing. 2. The run makes the section's group, array and chunk. 3. The reader goes on.
    """
    from workspan.store import steps

    hidden = tracked.parent / "hidden"
    shutil.move(tracked / "steps", hidden)
    real = steps.step_folders
    if when == "at the metadata":
        (tracked / "steps" / "read").mkdir(parents=True)
        real_read = steps.read_node

        def read_node(store: Path, part: str = "") -> object:
            node = real_read(store, part)
            if hidden.exists():
                shutil.rmtree(tracked / "steps")
                shutil.move(hidden, tracked / "steps")
            return node

        monkeypatch.setattr(steps, "read_node", read_node)
    else:

        def look(store: Path) -> list[str]:
            found = real(store)
            shutil.move(hidden, tracked / "steps")
            return real(store) if when == "before the folders" else found

        monkeypatch.setattr(steps, "step_folders", look)
    assert TrackingStore.peek(tracked).step_names == (("read",) if when == "before the folders" else ())
    monkeypatch.undo()
    assert TrackingStore.peek(tracked).step_names == ("read",)
