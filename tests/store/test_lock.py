"""One run at a time on a store."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from workspan.errors import StoreLockedError, TrackingError
from workspan.grid import Layout
from workspan.store import lock as lock_module
from workspan.store.lock import LEASE_SECONDS, StoreLock, beside, holder_of
from workspan.store.tracking import TrackingStore

HOLD = """
    import sys
    from pathlib import Path
    from workspan.store.lock import StoreLock
    lock = StoreLock(Path(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_and_told_who_holds_the_store(tmp_path: Path, row: Layout, run_script) -> None:
    """The error names host, pid and start of the holder; nothing was changed (R30, B120)."""
    TrackingStore.open(tmp_path / "seg", row).close()
    holder = run_script(HOLD, tmp_path / "seg")
    assert holder.stdout.readline() == "held\n"
    text = rf"host {re.escape(socket.gethostname())}, pid {holder.pid}, since \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]"
    with pytest.raises(StoreLockedError, match=text):
        TrackingStore.open(tmp_path / "seg", row)
    assert holder_of(tmp_path / "seg").pid == holder.pid


def test_a_killed_holder_holds_nothing(tmp_path: Path, row: Layout, run_script) -> None:
    """SIGKILL frees the store, though the lock file stays (R30, R19)."""
    holder = run_script(HOLD, tmp_path / "seg")
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert beside(tmp_path / "seg", ".lock").exists()
    assert holder_of(tmp_path / "seg") is None
    TrackingStore.open(tmp_path / "seg", row).close()
    assert os.listdir(tmp_path) == ["seg"]


def test_a_second_run_in_the_same_process_is_refused(tmp_path: Path, row: Layout) -> None:
    """Two threads cannot write to one store, under whatever name (R30)."""
    (tmp_path / "link").symlink_to(tmp_path / "seg")
    with (
        TrackingStore.open(tmp_path / "seg", row),
        pytest.raises(StoreLockedError, match=f"pid {os.getpid()}.*, which is this process"),
    ):
        TrackingStore.open(tmp_path / "link", row)


def test_a_reader_needs_no_lock(tmp_path: Path, row: Layout) -> None:
    """Peeking works while a run holds the store, and leaves no trace (R31, B120)."""
    with TrackingStore.open(tmp_path / "seg", row) as store:
        store.mark_done(3)
        before = sorted(map(str, tmp_path.rglob("*")))
        assert TrackingStore.peek(tmp_path / "seg").done[3] == 1
        assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A pool that a block forks may outlive the run; the store is free all the same (R17, R30)."""
    lock = StoreLock(tmp_path / "seg")
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:  # the child: it lives until the parent has tried
        os.close(go[1])
        os.write(ready[1], b"!")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        os.close(lock._fd)  # what a SIGKILL of the parent would do
        lock._fd = -1
        StoreLock(tmp_path / "seg").release()
    finally:
        for fd in (*go, *ready):
            os.close(fd)
        os.waitpid(pid, 0)


def test_a_forked_process_may_close_its_copy(tmp_path: Path, row: Layout) -> None:
    """What unwinds in a child that a block forked takes neither lock nor slots from the run (R17, D25)."""
    with TrackingStore.open(tmp_path / "seg", row) as store:
        store.grant(3, 0)
        pid = os.fork()
        if not pid:
            store.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert sorted(os.listdir(tmp_path / ".workspan")) == ["seg.lock", "seg.slots"]
        assert holder_of(tmp_path / "seg").pid == os.getpid()
        store.mark_done(3)


def test_a_lock_file_that_its_holder_removed_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened the file before its holder removed it tries again with the new one (R30).

    1. A holds the lock. 2. B opens the file. 3. A releases: removes and unlocks. 4. B locks a file without a name.
    """
    first = StoreLock(tmp_path / "seg")
    real = fcntl.flock

    def flock(fd: int, flags: int) -> None:
        first.release()
        real(fd, flags)

    monkeypatch.setattr(fcntl, "flock", flock)
    with StoreLock(tmp_path / "seg"):
        monkeypatch.setattr(fcntl, "flock", real)
        with pytest.raises(StoreLockedError):
            StoreLock(tmp_path / "seg")


def test_a_crowd_gets_the_lock_one_by_one(tmp_path: Path, run_script) -> None:
    """Six processes that take and release as fast as they can never hold it together (R30)."""
    code = """
        import os, sys
        from pathlib import Path
        from workspan.errors import StoreLockedError
        from workspan.store.lock import StoreLock
        sys.stdin.readline()
        taken = 0
        while taken < 20:
            try:
                lock = StoreLock(Path(sys.argv[1]) / "seg")
            except StoreLockedError:
                continue
            os.mkdir(Path(sys.argv[1]) / "alone")
            os.rmdir(Path(sys.argv[1]) / "alone")
            lock.release()
            taken += 1
    """
    crowd = [run_script(code, tmp_path) for _ in range(6)]
    for process in crowd:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in crowd:
        assert process.communicate()[1] == ""
    assert os.listdir(tmp_path) == []


def test_releasing_twice_is_releasing_once(tmp_path: Path) -> None:
    """Nothing of somebody else's is removed."""
    lock = StoreLock(tmp_path / "seg")
    lock.release()
    with StoreLock(tmp_path / "seg"):
        lock.release()
        assert holder_of(tmp_path / "seg") is not None


def test_a_folder_that_takes_no_lock_is_told(tmp_path: Path) -> None:
    """The error names the lock file and the reason (R27)."""
    (tmp_path / ".workspan").touch()
    with pytest.raises(TrackingError, match=r"\.workspan/seg\.lock: Not a directory while locking the tracking store"):
        StoreLock(tmp_path / "seg")


class TestLease:
    """File systems without locks."""

    @pytest.fixture(autouse=True)
    def no_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def flock(fd: int, flags: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)

    def test_a_lease_keeps_others_out(self, tmp_path: Path) -> None:
        """The file is the lock then, and goes when it is given back (R30)."""
        with StoreLock(tmp_path / "seg") as lock:
            assert lock.is_lease
            with pytest.raises(StoreLockedError, match=f"pid {os.getpid()}"):
                StoreLock(tmp_path / "seg")
            assert holder_of(tmp_path / "seg").pid == os.getpid()
        assert os.listdir(tmp_path) == []
        assert holder_of(tmp_path / "seg") is None

    def test_a_lease_that_is_not_renewed_runs_out(self, tmp_path: Path) -> None:
        """After the time without a heartbeat another run takes it, and the first is told at its next one (R30)."""
        first = StoreLock(tmp_path / "seg")
        _age(first, LEASE_SECONDS - 5)
        with pytest.raises(StoreLockedError):
            StoreLock(tmp_path / "seg")
        first.refresh()
        assert os.stat(first.path).st_mtime > _age(first, LEASE_SECONDS + 5) + LEASE_SECONDS
        second = StoreLock(tmp_path / "seg")
        second._me = lock_module.Holder("elsewhere", 1, second._me.since)
        second.path.write_bytes(lock_module.msgspec.json.encode(second._me))
        with pytest.raises(StoreLockedError, match="host elsewhere, pid 1"):
            first.refresh()
        first.release()
        assert second.path.exists()  # not the first one's to remove
        second.release()

    def test_a_lease_of_a_dead_process_here_is_free(self, tmp_path: Path, run_script) -> None:
        """On this machine nobody has to wait for the time to run out (R30)."""
        dead = run_script("pass")
        dead.wait()
        path = beside(tmp_path / "seg", ".lock")
        path.parent.mkdir()
        path.write_bytes(lock_module.msgspec.json.encode(lock_module.Holder(socket.gethostname(), dead.pid, "then")))
        StoreLock(tmp_path / "seg").release()

    def test_a_store_renews_its_lease_when_it_flushes(self, tmp_path: Path, row: Layout) -> None:
        """The heartbeat is the flush; a store that was taken over takes nothing more (R30)."""
        with TrackingStore.open(tmp_path / "seg", row) as store:
            old = _age(store._lock, 100)
            store.flush()
            assert os.stat(store._lock.path).st_mtime > old + 50
            store._lock.path.write_bytes(lock_module.msgspec.json.encode(lock_module.Holder("elsewhere", 1, "now")))
            with pytest.raises(StoreLockedError, match="host elsewhere"):
                store.flush()
            with pytest.raises(StoreLockedError, match="host elsewhere"):
                store.mark_done(1)


def _age(lock: StoreLock, seconds: float) -> float:
    mtime = os.stat(lock.path).st_mtime - seconds
    os.utime(lock.path, (mtime, mtime))
    return mtime
