"""What a run accepts as its tracking store, what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workspan.errors import InvalidMetadataError, LayoutMismatchError, StoreFullError, TrackingError
from workspan.grid import Layout
from workspan.store.hash import layout_hash
from workspan.store.lock import beside
from workspan.store.meta import ARRAYS, array_metadata
from workspan.store.tracking import TrackingStore


def content(folder: Path) -> dict[str, str]:
    """Every path below *folder* with a digest of what is there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


class TestLayoutMismatch:
    """A store of another layout."""

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"total_begin": (5,)}, "total_roi: offset [0], shape [100] -> offset [5], shape [100]"),
            ({"total_shape": (90,)}, "total_roi: offset [0], shape [100] -> offset [0], shape [90]"),
            ({"write_shape": (20,), "read_shape": (20,)}, "write_roi: offset [0], shape [10] -> offset [0], sh"),
            ({"read_begin": (-1,), "read_shape": (12,)}, "read_roi: offset [0], shape [10] -> offset [-1], shape [12]"),
            ({"fit": "shrink"}, "fit: 'valid' -> 'shrink'"),
        ],
    )
    def test_each_field_is_told_old_and_new(self, tracked: Path, make_layout, change, told: str) -> None:
        """The error lists the fields, both hashes, the path and what to do; nothing is changed (R29, B115, KF-17)."""
        before = content(tracked.parent)
        new = make_layout(**change)
        with pytest.raises(LayoutMismatchError) as caught:
            TrackingStore.open(tracked, new, resource_tracking=True)
        text = str(caught.value)
        assert told in text
        assert f"{layout_hash(make_layout())} -> {layout_hash(new)}" in text
        assert f"rm -rf {tracked}" in text
        assert "task.reset()" in text
        assert isinstance(caught.value, (RuntimeError, ValueError))
        assert content(tracked.parent) == before

    def test_what_is_equal_is_not_listed(self, tracked: Path, make_layout) -> None:
        """Only differences are worth a line (R29)."""
        with pytest.raises(LayoutMismatchError) as caught:
            TrackingStore.open(tracked, make_layout(fit="overhang"))
        assert "_roi" not in str(caught.value)

    def test_a_store_of_daisy_shows_its_hash(self, tracked: Path, make_layout, edit) -> None:
        """daisy keeps no layout: the hashes are all there is to tell (D38)."""
        edit(tracked / "zarr.json", lambda node: node["attributes"].pop("workspan"))
        with pytest.raises(LayoutMismatchError, match=f"made by daisy.*\n.*{layout_hash(make_layout())} -> "):
            TrackingStore.open(tracked, make_layout(fit="overhang"))

    def test_a_newer_schema_is_not_guessed_at(self, tracked: Path, row: Layout, edit) -> None:
        """The schema version is compared like a field of the layout (R29)."""
        edit(tracked / "zarr.json", lambda node: node["attributes"]["workspan"].update(schema=2))
        with pytest.raises(LayoutMismatchError, match="schema: 2 -> 1"):
            TrackingStore.open(tracked, row)

    def test_a_node_that_is_no_group_but_has_the_hash(self, tracked: Path, row: Layout, edit) -> None:
        """The hash says that a group is expected there (B115)."""
        edit(tracked / "zarr.json", lambda node: node.update(node_type="array"))
        with pytest.raises(LayoutMismatchError, match="not a Zarr v3 group"):
            TrackingStore.open(tracked, row)

    def test_workers_and_conflicts_do_not_matter(self, tracked: Path, make_layout) -> None:
        """The same layout under another task id, with neighbours running together, resumes (KF-17, B114)."""
        layout = make_layout(read_write_conflict=False)
        with TrackingStore.open(tracked, layout, task_id="other") as store:
            assert store.done.sum() == 6


@dataclass(frozen=True)
class Fault:
    """One way to break a store, and what the refusal must name."""

    id: str
    do: Callable[[Path], object]
    names: str


def edit_json(part: str, **changes: Any) -> Callable[[Path], object]:
    def do(store: Path) -> None:
        path = store / part
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return do


def cell(array: str, number: int, value: float) -> Callable[[Path], object]:
    def do(store: Path) -> None:
        path = store / array / "c" / "0"
        cells = np.fromfile(path, ARRAYS[array].dtype)
        cells[number] = value
        cells.tofile(path)

    return do


def resize(part: str, size: int) -> Callable[[Path], object]:
    return lambda store: os.truncate(store / part, size)


def write(part: str, data: bytes) -> Callable[[Path], object]:
    return lambda store: (store / part).write_bytes(data)


def remove(part: str) -> Callable[[Path], object]:
    return lambda store: (store / part).unlink()


FAULTS = [
    Fault("group cut", lambda store: os.truncate(store / "zarr.json", 40), "zarr.json"),
    Fault("group empty", resize("zarr.json", 0), "zarr.json"),
    Fault("group no json", write("zarr.json", b"\xff\xfe"), "zarr.json"),
    Fault("group nested", write("zarr.json", b"[" * 100_000), "zarr.json"),
    Fault("group a list", write("zarr.json", b"[1]"), "zarr.json"),
    Fault("group attributes", edit_json("zarr.json", attributes=3), "zarr.json"),
    Fault("group without hash", edit_json("zarr.json", attributes={}, node_type="array"), "zarr.json"),
    Fault("group missing", remove("zarr.json"), "done/zarr.json|zarr.json"),
    Fault("array cut", resize("wall_seconds/zarr.json", 100), "wall_seconds/zarr.json"),
    Fault("array missing", remove("wall_seconds/zarr.json"), "wall_seconds/zarr.json"),
    Fault("shape", edit_json("failures/zarr.json", shape=[11]), r"failures: stored shape \[11\], expected \[10\]"),
    Fault("rank", edit_json("done/zarr.json", shape=[10, 1]), r"done: stored shape \[10, 1\]"),
    Fault("dtype", edit_json("sent_at/zarr.json", data_type="float32"), "sent_at: stored dtype 'float32'"),
    Fault("format", edit_json("done/zarr.json", zarr_format=2), "done: it is not a Zarr v3 array"),
    Fault("fill", edit_json("done/zarr.json", fill_value=1), "done: stored fill_value 1"),
    Fault("fill true", edit_json("done/zarr.json", fill_value=False), "done: stored fill_value False"),
    Fault("codecs", edit_json("done/zarr.json", codecs=[{"name": "bytes"}, {"name": "zstd"}]), "done: stored codecs"),
    Fault(
        "endian",
        edit_json("failures/zarr.json", codecs=[{"name": "bytes", "configuration": {"endian": "big"}}]),
        "failures: stored codecs",
    ),
    Fault(
        "chunks",
        edit_json("done/zarr.json", chunk_grid={"name": "regular", "configuration": {"chunk_shape": [5]}}),
        "done: stored chunk_grid",
    ),
    Fault(
        "separator",
        edit_json("done/zarr.json", chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}}),
        "done: stored chunk_key_encoding",
    ),
    Fault("transformers", edit_json("done/zarr.json", storage_transformers=[{"name": "x"}]), "done: stored storage"),
    Fault("short", resize("done/c/0", 9), "done: its chunk has 9 bytes, expected 10"),
    Fault("long", resize("returned_at/c/0", 81), "returned_at: its chunk has 81 bytes, expected 80"),
    Fault("empty", resize("cpu_seconds/c/0", 0), "cpu_seconds: its chunk has 0 bytes, expected 40"),
    Fault("chunk lost", remove("io_read_bytes/c/0"), "io_read_bytes: its chunk is missing"),
    Fault("garbage", cell("done", 6, 2), r"done: cell \(6,\) is 2, expected 0 or 1"),
    Fault("garbage 255", cell("done", 0, 255), r"done: cell \(0,\) is 255"),
    Fault("sent lost", cell("sent_at", 3, 0), r"returned_at: cell \(3,\) is done, sent at 0.0"),
    Fault("returned lost", cell("returned_at", 3, 0), r"returned_at: cell \(3,\)"),
    Fault("returned first", cell("returned_at", 3, 1.0), r"returned_at: cell \(3,\)"),
    Fault("returned nan", cell("returned_at", 3, float("nan")), r"returned_at: cell \(3,\)"),
    Fault("sent inf", cell("sent_at", 3, float("-inf")), r"returned_at: cell \(3,\)"),
    Fault("attribute", lambda store: edit_attributes(store, workspan=5), "zarr.json: its attribute 'workspan'"),
    Fault("hash lost", lambda store: edit_attributes(store, daisy_task_hash=None), "'daisy_task_hash' was lost"),
    Fault("unmeasured", lambda store: edit_ours(store, unmeasured=["x"]), r"unmeasured arrays is \['x'\]"),
    Fault("contradiction", lambda store: edit_ours(store, fit="shrink"), "its fit and its daisy_task_hash contradict"),
    Fault(
        "hash hit",
        lambda store: edit_attributes(store, daisy_task_hash="0" * 64),
        "its layout is that of the task, and its daisy_task_hash is another one's",
    ),
    Fault("steps no group", edit_json("steps/zarr.json", node_type="array"), "steps: it is not a Zarr group"),
    Fault("steps missing", remove("steps/zarr.json"), "steps/zarr.json: it is missing"),
    Fault("step cut", resize("steps/read/zarr.json", 50), "steps/read/zarr.json"),
    Fault("step missing", remove("steps/read/zarr.json"), "steps/read/zarr.json"),
    Fault("step dtype", edit_json("steps/read/zarr.json", data_type="float64"), "steps/read: stored dtype 'float64'"),
    Fault("step name", edit_json("steps/read/zarr.json", attributes={}), "steps/read: its attribute 'name' is None"),
    Fault("step short", resize("steps/read/c/0", 10), "steps/read: a chunk has 10 bytes, expected 40"),
    Fault(
        "step twice",
        lambda store: shutil.copytree(store / "steps/read", store / "steps/read2"),
        "steps/read2: its attribute 'name' is 'read', as in 'read'",
    ),
    Fault("steps a file", lambda store: [shutil.rmtree(store / "steps"), write("steps", b"?")(store)], "steps: it is"),
    Fault("array a file", lambda store: [shutil.rmtree(store / "done"), write("done", b"?")(store)], "done: it is not"),
    Fault("v2", lambda store: [remove("zarr.json")(store), write(".zgroup", b"{}")(store)], "Zarr v2"),
]


def edit_attributes(store: Path, **changes: Any) -> None:
    node = json.loads((store / "zarr.json").read_text())
    node["attributes"] = {k: v for k, v in (node["attributes"] | changes).items() if v is not None}
    (store / "zarr.json").write_text(json.dumps(node))


def edit_ours(store: Path, **changes: Any) -> None:
    edit_attributes(store, workspan=json.loads((store / "zarr.json").read_text())["attributes"]["workspan"] | changes)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_damaged_store_is_refused_by_name(tracked: Path, row: Layout, fault: Fault) -> None:
    """Cut, long, foreign and random content is refused with the part named, and nothing is changed (R28, D23, B117)."""
    fault.do(tracked)
    before = content(tracked.parent)
    with pytest.raises(InvalidMetadataError, match=fault.names) as caught:
        TrackingStore.open(tracked, row, resource_tracking=True)
    assert str(tracked) in str(caught.value)
    assert content(tracked.parent) == before


def test_flags_without_measurements_are_no_damage(tracked: Path, row: Layout) -> None:
    """A block that a check function skipped is done without stamps (D23)."""
    with TrackingStore.open(tracked, row, resource_tracking=True) as store:
        record = store.block((8,))
        assert (record.done, record.stats, record.sent_at) == (True, None, None)


def test_stamps_without_the_flag_are_no_damage(tracked: Path, row: Layout, stats) -> None:
    """A kill between the stamps and the flag leaves a block that runs again (R19, B119)."""
    cell("done", 3, 0)(tracked)
    cell("returned_at", 3, 1.0)(tracked)
    with TrackingStore.open(tracked, row, resource_tracking=True) as store:
        assert store.done.tolist() == [1, 1, 1, 0, 1, 0, 0, 0, 1, 0]
        store.record_done(3, stats, 1, 5000.0, 5001.0)
        assert store.block((3,)).sent_at == 5000.0


class TestCallersOwn:
    """Groups that a caller made."""

    @pytest.fixture
    def group(self, tmp_path: Path) -> Path:
        path = tmp_path / "mine"
        path.mkdir()
        (path / "zarr.json").write_text(
            json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"mine": [1, 2]}})
        )
        return path

    def test_a_group_without_hash_is_trusted_by_its_format(self, group: Path, row: Layout, stats) -> None:
        """Missing arrays are made; no hash is added and the attributes stay (B116)."""
        (group / "done" / "c").mkdir(parents=True)
        (group / "done" / "zarr.json").write_text(json.dumps(array_metadata(ARRAYS["done"], (10,))))
        (group / "done" / "c" / "0").write_bytes(bytes([1] * 3 + [0] * 7))
        before = (group / "zarr.json").read_bytes()
        with TrackingStore.open(group, row, resource_tracking=True) as store:
            assert store.done.tolist() == [1] * 3 + [0] * 7
            store.record_done(3, stats, 0, 1.0, 2.0)
        assert (group / "zarr.json").read_bytes() == before
        assert TrackingStore.peek(group).layout_hash is None
        assert TrackingStore.peek(group).block((3,)).stats == stats

    def test_unmeasured_counters_are_listed_there_too(self, group: Path, row: Layout, stats) -> None:
        """The list is all that is added to the attributes (D22, B116)."""
        with TrackingStore.open(group, row, resource_tracking=True) as store:
            store.record_done(3, type(stats)(1.0, None, None, 1, 1), 0, 1.0, 2.0)
        attributes = json.loads((group / "zarr.json").read_text())["attributes"]
        ours = {"schema": 1, "unmeasured": ["cpu_seconds", "peak_rss_bytes"]}
        assert attributes == {"mine": [1, 2], "workspan": ours}
        TrackingStore.open(group, row, resource_tracking=True).close()

    @pytest.mark.parametrize(("shape", "dtype"), [((11,), "u1"), ((10,), "u4")])
    def test_another_shape_or_type_is_refused(self, group: Path, row: Layout, shape, dtype) -> None:
        """The error names what is stored and what is expected (B116)."""
        zarr = pytest.importorskip("zarr")
        zarr.open_group(group, mode="a").create_array("done", shape=shape, dtype=dtype)
        stored = r"shape \[11\], expected \[10\]" if shape == (11,) else "dtype 'uint32', expected 'uint8'"
        before = content(group)
        with pytest.raises(InvalidMetadataError, match=f"done: stored {stored}"):
            TrackingStore.open(group, row)
        assert content(group) == before

    @pytest.mark.parametrize("chunks", [(3,), (10,), (64,)])
    @pytest.mark.parametrize("compressed", [True, False])
    def test_arrays_of_another_form_are_rewritten(self, group: Path, row: Layout, chunks, compressed) -> None:
        """Compressed or chunked arrays are decoded and rewritten, never taken for raw bytes (B117)."""
        zarr = pytest.importorskip("zarr")
        root = zarr.open_group(group, mode="a")
        options = {} if compressed else {"compressors": None}
        done = root.create_array("done", shape=(10,), chunks=chunks, dtype="u1", attributes={"a": 1}, **options)
        done[:] = [0, 1, 1, 0, 0, 0, 0, 0, 1, 0]
        failures = root.create_array("failures", shape=(10,), chunks=chunks, dtype="u4", fill_value=0, **options)
        failures[2] = 70_000
        for _ in range(2):
            with TrackingStore.open(group, row) as store:
                assert store.done.tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 1, 0]
                assert store.failures.tolist() == [0, 0, 70_000] + [0] * 7
        with TrackingStore.open(group, row) as store:
            store.mark_done(4)
            store.record_failure(2)
        array = zarr.open_group(group, mode="r")["done"]
        assert array[:].tolist() == [0, 1, 1, 0, 1, 0, 0, 0, 1, 0]
        assert array.attrs["a"] == 1
        assert (group / "done" / "c" / "0").stat().st_size == 10
        assert TrackingStore.peek(group).failures[2] == 70_001
        assert os.listdir(group.parent) == ["mine"]

    def test_what_zarr_cannot_decode_is_refused(self, group: Path, row: Layout) -> None:
        """Broken compression is damage, and the array stays as it is (B117)."""
        zarr = pytest.importorskip("zarr")
        zarr.open_group(group, mode="a").create_array("done", shape=(10,), dtype="u1")[:] = 1
        (group / "done" / "c" / "0").write_bytes(b"no zstd")
        before = content(group)
        with pytest.raises(InvalidMetadataError, match="done: zarr cannot decode it"):
            TrackingStore.open(group, row)
        assert content(group) == before

    def test_garbage_in_another_form_is_garbage(self, group: Path, row: Layout) -> None:
        """Flags are checked before anything is rewritten (D23)."""
        zarr = pytest.importorskip("zarr")
        zarr.open_group(group, mode="a").create_array("done", shape=(10,), dtype="u1", fill_value=7)
        before = content(group)
        with pytest.raises(InvalidMetadataError, match=r"done: cell \(0,\) is 7"):
            TrackingStore.open(group, row)
        assert content(group) == before

    @pytest.mark.parametrize("when", ["made", "moved out", "moved in"])
    def test_a_kill_while_rewriting_loses_nothing(self, group: Path, row: Layout, when: str) -> None:
        """The old array comes back, or the new one is there, whichever move came last (R19, B117)."""
        zarr = pytest.importorskip("zarr")
        zarr.open_group(group, mode="a").create_array("done", shape=(10,), dtype="u1")[:] = 1
        new, old = beside(group, ".done.new"), beside(group, ".done.old")
        old.parent.mkdir()
        if when == "made":
            shutil.copytree(group / "done", new)
            (new / "c" / "0").write_bytes(b"half")
        elif when == "moved out":
            shutil.move(group / "done", old)
            new.mkdir()
        else:
            shutil.copytree(group / "done", old)
        with TrackingStore.open(group, row) as store:
            assert store.done.all()
        assert os.listdir(group.parent) == ["mine"]

    def test_not_a_group(self, tmp_path: Path, row: Layout) -> None:
        """An array where the group should be, without hash, is no tracking store (B116)."""
        zarr = pytest.importorskip("zarr")
        zarr.create_array(tmp_path / "mine", shape=(3,), dtype="u1")
        with pytest.raises(InvalidMetadataError, match="it is not a Zarr v3 group but 'array'"):
            TrackingStore.open(tmp_path / "mine", row)


class TestPaths:
    """Paths that cannot be a store."""

    def test_a_file_in_the_place_of_the_folder(self, tmp_path: Path, row: Layout) -> None:
        """The error says so, and the file stays (R27)."""
        (tmp_path / "seg").write_text("mine")
        with pytest.raises(TrackingError, match=f"tracking store {tmp_path}/seg is a file"):
            TrackingStore.open(tmp_path / "seg", row)
        assert content(tmp_path).keys() == {"seg"}

    def test_a_file_in_the_place_of_a_parent(self, tmp_path: Path, row: Layout) -> None:
        """The error names path and reason (R27)."""
        (tmp_path / "a").write_text("mine")
        with pytest.raises(TrackingError, match=f"{tmp_path}/a/b/seg: Not a directory"):
            TrackingStore.open(tmp_path / "a" / "b" / "seg", row)

    def test_a_loop_of_symbolic_links(self, tmp_path: Path, row: Layout) -> None:
        """The error names path and reason (R27)."""
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        for path in (tmp_path / "a", tmp_path / "a" / "seg"):
            with pytest.raises(TrackingError, match="Too many levels of symbolic links"):
                TrackingStore.open(path, row)
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]

    def test_a_link_leads_to_the_store(self, tmp_path: Path, row: Layout) -> None:
        """One store under two paths is one store, and a dangling link is filled (B115)."""
        (tmp_path / "link").symlink_to(tmp_path / "there" / "seg")
        with TrackingStore.open(tmp_path / "link", row) as store:
            store.mark_done(1)
            assert store.path == tmp_path / "there" / "seg"
        with TrackingStore.open(tmp_path / "there" / "seg", row) as store:
            assert store.done[1]

    def test_folders_without_permission(self, tmp_path: Path, run_script) -> None:
        """No write permission, on the parent or on the store, is told before anything is made (R27)."""
        if os.getuid():
            pytest.skip("needs root, to become somebody else")
        os.chmod(tmp_path, 0o755)
        for parent in tmp_path.parents:
            if not os.stat(parent).st_mode & 0o001:
                os.chmod(parent, os.stat(parent).st_mode | 0o001)
        (tmp_path / "theirs").mkdir()
        os.chmod(tmp_path / "theirs", 0o777)
        code = """
            import os, sys
            from workspan.errors import TrackingError
            from workspan.grid import Layout
            from workspan.store.tracking import TrackingStore
            layout = Layout((0,), (100,), (0,), (10,), (0,), (10,))
            TrackingStore.open(sys.argv[1] + "/theirs/seg", layout).close()
            os.setuid(65534)
            for path in ("/seg", "/a/b/seg", "/theirs/seg"):
                try:
                    TrackingStore.open(sys.argv[1] + path, layout)
                except TrackingError as error:
                    print(error)
        """
        out, err = run_script(code, tmp_path).communicate()
        assert len(re.findall(rf"{tmp_path}/\S*seg\S*: Permission denied while", out)) == 3, out + err
        assert sorted(os.listdir(tmp_path)) == ["theirs"]
        assert os.listdir(tmp_path / "theirs") == ["seg"]

    def test_a_failure_while_making_leaves_nothing(self, tmp_path: Path, row: Layout, monkeypatch) -> None:
        """At whichever array the disk fails, the folders that were made go again (R27, R25)."""
        from workspan.store import opening

        real = opening.create_sparse
        for number in range(12):
            calls = iter(range(12))

            def fail(path: Path, size: int, calls=calls, number=number) -> None:
                if next(calls) == number:
                    raise OSError(28, "No space left on device")
                real(path, size)

            monkeypatch.setattr(opening, "create_sparse", fail)
            with pytest.raises(StoreFullError, match="No space left on device while opening"):
                TrackingStore.open(tmp_path / "a" / "b" / "seg", row, resource_tracking=True)
            assert os.listdir(tmp_path) == []

    def test_a_kill_while_making_is_completed(self, tmp_path: Path, row: Layout) -> None:
        """However far a killed run came, the next one finishes the store (R19)."""
        TrackingStore.open(tmp_path / "whole", row, resource_tracking=True).close()
        order = [f"{name}/{part}" for name in ARRAYS for part in ("c/0", "zarr.json")]
        for number in range(len(order) + 1):
            path = tmp_path / f"seg{number}"
            path.mkdir()
            for part in order[:number]:
                (path / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tmp_path / "whole" / part, path / part)
            (path / ".zarr.json.partial").write_text("half")
            with TrackingStore.open(path, row, resource_tracking=True) as store:
                assert not store.done.any()
                store.mark_done(1)
            assert sorted(os.listdir(path)) == sorted([*ARRAYS, "zarr.json"])

    def test_a_group_without_its_file_is_not_taken_for_a_new_one(self, tracked: Path, row: Layout) -> None:
        """Flags without the layout they belong to must not be used by index for any layout (KF-17)."""
        (tracked / "zarr.json").unlink()
        for name in ("done", "wall_seconds"):
            before = content(tracked)
            with pytest.raises(InvalidMetadataError, match=r"zarr\.json: it is missing"):
                TrackingStore.open(tracked, row, resource_tracking=True)
            assert content(tracked) == before
            (tracked / name / "zarr.json").unlink()
