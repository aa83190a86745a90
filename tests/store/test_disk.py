"""Full disks, failing disks, and disks on which maps are not safe."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from workspan.errors import StoreFullError, TrackingError
from workspan.grid import Layout
from workspan.store import files
from workspan.store.files import STEP_BITS, can_map
from workspan.store.tracking import TrackingStore

BLOCKS = 40_000
FILL = """
    import os, sys
    from workspan.errors import StoreFullError
    from workspan.grid import Layout
    from workspan.measure.profile import BlockStats
    from workspan.store import tracking

    if sys.argv[2] == "pwrite":
        tracking.can_map = lambda folder: False
    layout = Layout((0,), (40_000,), (0,), (1,), (0,), (1,))
    store = tracking.TrackingStore.open(sys.argv[1] + "/seg", layout, resource_tracking=True)
    try:
        for index in range(layout.num_blocks):
            if index % 3:
                store.record_failure(index)
            store.record_done(index, BlockStats(0.5, 0.25, index), 1, 1000.0, 1001.0, {"read": (0.5, 1)})
    except StoreFullError as error:
        print(index, error.errno, error, flush=True)
        store.flush()
        print(store.newly_done, flush=True)
        store.close()
    sys.exit(7)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, unmounted at the end."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("way", ["map", "pwrite"])
def test_a_full_disk_is_an_orderly_end(small_disk: Path, run_script, way: str) -> None:
    """No SIGBUS; the error names the path, nothing is torn, and after making room the run goes on (R25, D5)."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(350_000))
    process = run_script(FILL, small_disk, way)
    out, err = process.communicate()
    assert process.returncode == 7, err
    told, count = out.splitlines()
    index = int(told.split()[0])
    assert told.split()[1] == str(errno.ENOSPC)
    assert f"{small_disk}/seg: No space left on device while recording" in told
    assert "make room and run again" in told
    assert int(count) == index > 0

    layout = Layout((0,), (BLOCKS,), (0,), (1,), (0,), (1,))
    ballast.unlink()
    with TrackingStore.open(small_disk / "seg", layout, resource_tracking=True) as store:
        assert store.done[:index].all()
        assert not store.done[index:].any()
        table = store.peek(store.path).table()
        assert table.executed[:index].all()
        assert table.values["peak_rss_bytes"][:index].tolist() == list(range(index))
        assert (table.steps["read"][:index] == 0.5).all()
        store.record_done(index, table_stats(), 1, 1000.0, 1001.0)
        assert store.done[index]


def table_stats():
    from workspan.measure.profile import BlockStats

    return BlockStats(1.0)


@pytest.mark.parametrize("way", ["map", "pwrite"])
def test_recording_goes_on_once_there_is_room(small_disk: Path, make_layout, stats, monkeypatch, way: str) -> None:
    """A full disk does not end the store: the same call succeeds after somebody made room (R25)."""
    monkeypatch.setattr("workspan.store.tracking.can_map", lambda folder: way == "map")
    layout = make_layout(blocks=BLOCKS)
    ballast = small_disk / "ballast"
    with TrackingStore.open(small_disk / "seg", layout, resource_tracking=True) as store:
        free = os.statvfs(small_disk).f_bfree * os.statvfs(small_disk).f_bsize
        ballast.write_bytes(bytes(free - 8192))
        for call in (
            lambda: store.record_done(0, stats, 1, 1.0, 2.0, {"read": (1.0, 1)}),
            lambda: store.record_failure(BLOCKS - 1),
        ):
            ballast.write_bytes(bytes(os.stat(ballast).st_size + _free(small_disk)))
            with pytest.raises(StoreFullError):
                call()
            assert not store.done.any()
            assert not store.failures.any()
        with pytest.raises(StoreFullError):
            store.mark_done(np.arange(BLOCKS))
        assert not store.done.any()
        ballast.unlink()
        store.record_done(0, stats, 1, 1.0, 2.0, {"read": (1.0, 1)})
        store.record_failure(BLOCKS - 1)
        assert store.mark_done(np.arange(BLOCKS)) == BLOCKS - 1
        assert store.block((0,)).steps == {"read": 1.0}
        assert store.failures[-1] == 1


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bfree * status.f_bsize


def test_a_disk_that_is_full_from_the_start(small_disk: Path, row: Layout) -> None:
    """No store is made, and no part of one is left (R25, R27)."""
    (small_disk / "ballast").write_bytes(bytes(_free(small_disk)))
    with pytest.raises(StoreFullError, match=f"{small_disk}/.*: No space left on device"):
        TrackingStore.open(small_disk / "a" / "seg", row, resource_tracking=True)
    assert os.listdir(small_disk) == ["ballast"]


@pytest.mark.parametrize("way", ["map", "pwrite"])
@pytest.mark.parametrize("number", range(14))
def test_the_disk_may_be_full_at_every_array(tmp_path: Path, row: Layout, stats, monkeypatch, way, number) -> None:
    """Whichever array gets no room, the block is not done and the store opens again (R25)."""
    monkeypatch.setattr("workspan.store.tracking.can_map", lambda folder: way == "map")
    real = files.CellFile.make_real
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        calls = iter(range(100))

        def make_real(self: files.CellFile, first: int, stop: int) -> None:
            if next(calls) == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(self, first, stop)

        monkeypatch.setattr(files.CellFile, "make_real", make_real)
        outcome = None
        try:
            store.record_done(3, stats, 1, 1.0, 2.0, {"read": (1.0, 1)})
        except StoreFullError as error:
            outcome = error
        assert (outcome is None) == (number >= 12) == bool(store.done[3])
        assert bool(store.peek(store.path).array("done")[3]) == bool(store.done[3])
        monkeypatch.undo()
        store.record_done(3, stats, 1, 3.0, 4.0, {"read": (1.0, 1)})
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        assert store.block((3,)).sent_at == 3.0


@pytest.mark.parametrize("failing", ["wall_seconds", "done"])
def test_a_failed_flush_ends_the_store(tmp_path: Path, row: Layout, stats, monkeypatch, failing: str) -> None:
    """The disk lost something: the store is declared failed at once, and no later call claims success (R26)."""
    real = files.CellFile.flush

    def flush(self: files.CellFile) -> None:
        if self.spec.name == failing:
            monkeypatch.undo()  # the next flush of the system would claim success
            raise OSError(errno.EIO, "Input/output error")
        real(self)

    store = TrackingStore.open(tmp_path / "seg", row, resource_tracking=True)
    store.record_done(0, stats, 1, 1.0, 2.0)
    monkeypatch.setattr(files.CellFile, "flush", flush)
    for call in (
        store.flush,
        store.flush,
        lambda: store.record_done(1, stats, 1, 1.0, 2.0),
        lambda: store.record_failure(1),
        lambda: store.mark_done(2),
    ):
        with pytest.raises(TrackingError, match="seg: Input/output error while flushing"):
            call()
    store.close()
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        assert not store.done[1:].any()


def test_an_unreadable_store_is_refused(tmp_path: Path, row: Layout, monkeypatch) -> None:
    """An error of the disk while opening is told with the path (R26)."""
    TrackingStore.open(tmp_path / "seg", row).close()

    def preadv(*args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", preadv)
    with TrackingStore.open(tmp_path / "seg", row) as store:  # nothing was written: there is nothing to read
        store.mark_done(1)
    with pytest.raises(TrackingError, match=f"{tmp_path}/seg: Input/output error while opening"):
        TrackingStore.open(tmp_path / "seg", row)


class TestMaps:
    """Where cells may be stored through a map."""

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("27 1 {} / / rw,relatime shared:1 - ext4 /dev/vda rw", True),
            ("27 1 {} / / rw,relatime - xfs /dev/vda rw", True),
            ("27 1 {} / / rw - tmpfs tmpfs rw", True),
            ("27 1 {} / / rw - btrfs /dev/vda rw", False),
            ("27 1 {} / / rw - nfs4 host:/ rw", False),
            ("27 1 {} / / rw - overlay overlay rw,upperdir=/x", False),
            ("27 1 {} / / rw - fuse.sshfs host rw", False),
            ("27 1 0:99 / / rw - ext4 /dev/vda rw", False),
            ("nonsense", False),
        ],
    )
    def test_only_where_allocated_blocks_are_written_in_place(self, tmp_path, monkeypatch, line, expected) -> None:
        """Copy-on-write, network and unknown file systems are written by system calls (D5, W17)."""
        device = os.stat(tmp_path).st_dev
        (tmp_path / "mountinfo").write_text(
            "1 1 7:77 / /x rw - ext4 /dev/x rw\n" + line.format(f"{os.major(device)}:{os.minor(device)}") + "\n"
        )
        real = open
        monkeypatch.setattr(files, "open", lambda path, **_: real(tmp_path / "mountinfo"), raising=False)
        assert can_map(tmp_path) == expected

    def test_not_without_fallocate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A platform that cannot give a file its blocks beforehand gets system calls (D14)."""
        monkeypatch.delattr(os, "posix_fallocate")
        assert not can_map(tmp_path)

    def test_both_ways_write_the_same_bytes(self, tmp_path: Path, plane: Layout, stats, monkeypatch) -> None:
        """The two designs leave identical files (B111)."""
        for way in ("map", "pwrite"):
            monkeypatch.setattr("workspan.store.tracking.can_map", lambda folder, way=way: way == "map")
            with TrackingStore.open(tmp_path / way, plane, resource_tracking=True) as store:
                for index in range(0, 16, 3):
                    store.record_done(index, stats, index, 1.0, 2.0, {"read": (1.0, 1), "write": (2.0, 1)})
                    store.record_done(index, type(stats)(1.0, None, 2, 3, 4), index, 1.0, 2.0, {"read": (1.0, 1)})
                    store.record_failure(index)
                store.mark_done([1, 2, 3])
                store.mark_done(4)
        ours, theirs = (
            {str(p.relative_to(tmp_path / way)): p.read_bytes() for p in (tmp_path / way).rglob("*") if p.is_file()}
            for way in ("map", "pwrite")
        )
        assert ours == theirs

    def test_ranges_are_real_before_they_are_stored_into(self, tmp_path: Path, stats) -> None:
        """After the first record of a step, its whole range of each array has blocks on the disk (D5, R25)."""
        layout = Layout((0,), (BLOCKS,), (0,), (1,), (0,), (1,))
        with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
            store.record_done(BLOCKS // 2, stats, 1, 1.0, 2.0)
            for name, file in store._columns.files.items():
                blocks = os.stat(file.path).st_blocks * 512
                size = file.spec.itemsize << STEP_BITS
                assert (size if name != "failures" else 0) <= blocks < 3 * size
