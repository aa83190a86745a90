"""One run at a time on a tracking store, whatever ends the other one.

The lock is the kernel's (``flock``), so it is gone when its holder is, also after SIGKILL; the file only says who
holds it. File and slot file are in the folder ``.workspan`` beside the group: inside it they would be strangers in a
Zarr hierarchy, and the names beside it belong to other tasks. An orderly end removes both.

Where a file system has no locks, the file is a lease: its holder renews it (:meth:`StoreLock.refresh`), and one that
was not renewed for :data:`LEASE_SECONDS` may be taken over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
import weakref
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from workspan.errors import StoreLockedError
from workspan.store.faults import disk_error

__all__ = ["LEASE_SECONDS", "Holder", "StoreLock", "beside", "holder_of"]

LEASE_SECONDS = 180.0
"""How long a lease holds without being renewed; a run renews it every 30 s."""

_FOLDER = ".workspan"
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
_ATTEMPTS = 100


class Holder(msgspec.Struct, frozen=True):
    """Who holds a store."""

    host: str
    """Name of its machine."""
    pid: int
    """Process id there."""
    since: str
    """When it took the lock: local time with offset, ISO 8601."""

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}, since {self.since}"


def beside(group: Path, suffix: str) -> Path:
    """Return the path of a companion of *group*: lock, slot file or what is being moved."""
    return group.parent / _FOLDER / (group.name + suffix)


class StoreLock:
    """The right to write to a tracking store; taken on construction.

    A forked copy of this process does not keep the lock.

    Parameters
    ----------
    group
        Folder of the store, which need not exist; its parent must.

    Raises
    ------
    StoreLockedError
        Another run has it; the text names host, pid and start of the holder.
    TrackingError
        The lock file cannot be written.
    """

    def __init__(self, group: Path) -> None:
        self.group = group
        self.path = beside(group, ".lock")
        self.is_lease = False
        self._fd = -1
        self._me = Holder(socket.gethostname(), os.getpid(), datetime.now().astimezone().isoformat(timespec="seconds"))
        try:
            self._acquire()
        except OSError as error:
            raise disk_error(error, self.path, "locking the tracking store") from error
        _held.add(self)

    def _acquire(self) -> None:
        for _ in range(_ATTEMPTS):
            try:
                with suppress(FileExistsError):
                    self.path.parent.mkdir()
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # another run has just removed the empty folder
            try:
                if self._take(fd):
                    self._fd, fd = fd, -1
                    data = msgspec.json.encode(self._me)
                    try:
                        os.pwrite(self._fd, data, 0)
                        os.ftruncate(self._fd, len(data))
                    except OSError:
                        self.release()
                        raise
                    return
            finally:
                if fd >= 0:
                    os.close(fd)
        raise self._locked(None)

    def _take(self, fd: int) -> bool:
        """Lock the open file; ``False`` if its holder removed it meanwhile, so that it is no longer the lock."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._locked(_read_holder(fd)) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self._take_lease(fd)
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _take_lease(self, fd: int) -> None:
        holder = _read_holder(fd)
        if holder is not None and not _is_dead(holder) and _age_seconds(self.path, fd) < LEASE_SECONDS:
            raise self._locked(holder)
        self.is_lease = True

    def _locked(self, holder: Holder | None) -> StoreLockedError:
        told = str(holder) if holder is not None else "a run that has just started"
        if holder is not None and (holder.host, holder.pid) == (self._me.host, self._me.pid):
            told += ", which is this process"
        return StoreLockedError(
            f"tracking store {self.group} is held by another run ({told}): wait for it or stop it, or use another "
            "tracking_path"
        )

    def refresh(self) -> None:
        """Renew a lease, at least every 30 s; a kernel lock needs none.

        Raises
        ------
        StoreLockedError
            Another run has taken the lease over.
        """
        if not self.is_lease or self._fd < 0:
            return
        holder = _read_holder(self._fd)
        if holder != self._me or not self.path.exists():
            raise self._locked(holder)
        os.utime(self._fd)

    def release(self) -> None:
        """Give the store free and remove the lock file. Can be repeated."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        _held.discard(self)
        with suppress(OSError):
            if not self.is_lease or _read_holder(fd) in (self._me, None):
                self.path.unlink()  # before the lock is free, so that nobody locks a file that is about to go
        os.close(fd)
        with suppress(OSError):
            self.path.parent.rmdir()

    def _forget(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


_held: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A lock lives as long as any copy of its descriptor: a pool that a block function forks must not keep it.
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_forget_in_child)


def holder_of(group: Path | str) -> Holder | None:
    """Return who writes to the store *group* just now, or ``None``. Leaves no trace."""
    path = beside(Path(os.path.realpath(group)), ".lock")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        holder = _read_holder(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return holder
        except OSError:
            fresh = holder is not None and time.time() - os.fstat(fd).st_mtime < LEASE_SECONDS
            return holder if fresh else None
        return None
    finally:
        os.close(fd)


def _read_holder(fd: int) -> Holder | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(os.pread(fd, 4096, 0), type=Holder)
    return None


def _age_seconds(path: Path, fd: int) -> float:
    """Age of the lease by the clock of the file system, which all machines share."""
    probe = path.with_name(f"{path.name}.{os.getpid()}.now")
    probe.touch()
    try:
        return probe.stat().st_mtime - os.fstat(fd).st_mtime
    finally:
        probe.unlink()


def _is_dead(holder: Holder) -> bool:
    if holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
