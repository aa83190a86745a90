"""What a file system can do for tracking stores: tried out in a folder, for ``workspan doctor``."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from workspan.errors import WorkspanError
from workspan.store.files import can_map
from workspan.store.lock import StoreLock

__all__ = ["Disk", "look_at_disk", "nearest", "why_not_writable"]

_ROOM = 1 << 16


class Disk(NamedTuple):
    """What was found out about the file system of a folder; ``None``: not tried, since nothing can be written."""

    folder: Path
    """Where it was tried: the folder asked for, or the nearest above it that is there."""
    kind: str | None
    """Name of the file system; ``None``: the system does not say."""
    free_bytes: int
    """Free for this user."""
    free_files: int | None
    """Files that can still be made; ``None``: the file system sets no limit."""
    error: str
    """Why nothing can be written; "": it can."""
    has_locks: bool | None = None
    """The kernel's locks work, and keep a second holder out."""
    lock_error: str = ""
    maps: bool | None = None
    """A file can be written through a memory map."""
    allocates: bool | None = None
    """Room can be set aside beforehand (``posix_fallocate``)."""
    uses_map: bool | None = None
    """Stores are written through a map here: that is safe on a full disk, too."""
    is_sparse: bool | None = None
    """Parts of a file that nobody wrote take no room."""


def nearest(folder: Path) -> Path:
    """Return *folder*, or the nearest above it that is there."""
    folder = folder.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def why_not_writable(folder: Path) -> str:
    """Make a file in *folder*, or in the nearest above it that is there, and remove it; return why not, or ""."""
    try:
        if folder.exists() and not folder.is_dir():
            return "is a file, not a folder"
        with tempfile.NamedTemporaryFile(dir=nearest(folder), prefix=".workspan-doctor-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def look_at_disk(folder: Path) -> Disk:
    """Try what the file system of *folder* can do, in a folder of its own there, which is removed again."""
    place = nearest(folder)
    room = os.statvfs(place)
    kind, free = _kind_of(place), room.f_bavail * room.f_frsize
    files = room.f_favail if room.f_files else None
    try:
        work = Path(tempfile.mkdtemp(prefix=".workspan-doctor-", dir=place))
    except OSError as error:
        return Disk(place, kind, free, files, error.strerror or str(error))
    try:
        path = work / "file"
        has_locks, lock_error = _try_locks(work / "store")
        return Disk(
            place,
            kind,
            free,
            files,
            "",
            has_locks,
            lock_error,
            maps=_try_map(path),
            allocates=_try_allocation(work / "room"),
            uses_map=can_map(work),
            is_sparse=_try_hole(work / "hole"),
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _kind_of(folder: Path) -> str | None:
    with suppress(OSError, ValueError, IndexError):
        device = os.stat(folder).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split()
            if fields[2] == name:
                return fields[fields.index("-") + 1]
    return None


def _try_locks(group: Path) -> tuple[bool, str]:
    """Take the lock of a store as a run does, and see that it keeps another one out."""
    try:
        with StoreLock(group) as lock:
            if lock.is_lease:
                return False, ""
            try:
                StoreLock(group).release()
            except WorkspanError:
                return True, ""
            return False, "two processes can hold one lock"
    except (OSError, WorkspanError) as error:
        return False, str(error)


def _try_map(path: Path) -> bool:
    try:
        with open(path, "w+b") as file:
            file.truncate(_ROOM)
            with mmap.mmap(file.fileno(), _ROOM) as view:
                view[:4] = b"span"
            return os.pread(file.fileno(), 4, 0) == b"span"
    except (OSError, ValueError):
        return False


def _try_allocation(path: Path) -> bool:
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        with open(path, "w+b") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM)
            return os.fstat(file.fileno()).st_blocks * 512 >= _ROOM
    except OSError:
        return False


def _try_hole(path: Path) -> bool:
    size = 1 << 24
    try:
        with open(path, "w+b") as file:
            file.truncate(size)
            return os.fstat(file.fileno()).st_blocks * 512 < size // 2
    except OSError:
        return False
