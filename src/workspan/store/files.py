"""Cells of an array on disk: one chunk file, written in place.

Two designs were measured for the eleven cells of a block (million blocks, 69 bytes each, in C order and level by
level, on ext4 and tmpfs of a 2-core virtual machine):

========================================================  ===============  ======================
design                                                    per block        random order
========================================================  ===============  ======================
shared map, ranges made real in steps of 4096 cells       0.8 - 1.4 us     2.6 us (page faults)
``os.pwrite`` per cell                                    18 - 20 us       18 - 24 us
========================================================  ===============  ======================

The map wins; making the ranges real costs 0.1 us of it. Storing into a map kills the process (SIGBUS) when the file
system finds no room for the page, so a range is given its blocks by ``posix_fallocate`` before the first store into
it, where a full disk is an ordinary error. That promise holds only where a file system writes allocated blocks in
place: :data:`_IN_PLACE`. Everywhere else (network and copy-on-write file systems, overlays, macOS) cells are written
by ``os.pwrite``.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from workspan.errors import TrackingError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from workspan.store.meta import ArraySpec

__all__ = ["STEP_BITS", "CellFile", "Cells", "can_map", "create_sparse", "read_cells", "read_range"]

STEP_BITS = 12
"""Ranges are made real in steps of ``2 ** STEP_BITS`` cells: one page of the smallest cells."""

_IN_PLACE = {"ext2", "ext3", "ext4", "xfs", "tmpfs"}


class Cells(Protocol):
    """Cells by number: a map's ``memoryview``, or a file written cell by cell."""

    def __getitem__(self, number: int) -> Any: ...

    def __setitem__(self, number: int, value: Any) -> None: ...


class _FileCells:
    """Cells that are read and written by system calls."""

    __slots__ = ("_fd", "_pack", "_size", "_unpack")

    def __init__(self, fd: int, code: str) -> None:
        packer = struct.Struct("<" + code)
        self._fd, self._pack, self._unpack, self._size = fd, packer.pack, packer.unpack, packer.size

    def __getitem__(self, number: int) -> Any:
        return self._unpack(os.pread(self._fd, self._size, number * self._size))[0]

    def __setitem__(self, number: int, value: Any) -> None:
        try:
            data = self._pack(value)
        except struct.error as error:
            raise TypeError(*error.args) from None  # what a memoryview raises
        os.pwrite(self._fd, data, number * self._size)


def can_map(folder: Path) -> bool:
    """Whether the file system of *folder* writes allocated blocks in place, so that a map is safe on a full disk."""
    if not hasattr(os, "posix_fallocate") or sys.byteorder != "little":
        return False
    try:
        device = os.stat(folder).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split()
                if fields[2] == name:
                    return fields[fields.index("-") + 1] in _IN_PLACE
    except (OSError, ValueError, IndexError):
        pass
    return False


class CellFile:
    """One chunk file, open for writing.

    Only the holder of the store's lock may have one. The caller makes a range real (:meth:`make_real`) before it
    stores into it.

    Parameters
    ----------
    path
        The file, which has the size *count* cells ask for.
    spec
        Type of its cells.
    count
        Number of cells.
    mapped
        Store through a map (see :func:`can_map`) or by system calls.
    """

    __slots__ = ("_fd", "_inode", "_map", "cells", "count", "mapped", "path", "spec")

    cells: Cells
    """Read and store cells here, by their C-order number."""

    def __init__(self, path: Path, spec: ArraySpec, count: int, *, mapped: bool) -> None:
        self.path, self.spec, self.count, self.mapped = path, spec, count, mapped
        self._fd = -1
        self._map: mmap.mmap | None = None
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._inode = os.fstat(fd).st_ino
            if mapped:
                # The map keeps its own descriptor where Python is older than 3.13; one per array is enough.
                options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
                self._map = mmap.mmap(fd, count * spec.itemsize, **options)
                self.cells = memoryview(self._map).cast(spec.code)  # type: ignore[call-overload]
            else:
                self._fd, fd = fd, -1
                self.cells = _FileCells(self._fd, spec.code)
        finally:
            if fd >= 0:
                os.close(fd)

    def make_real(self, first: int, stop: int) -> None:
        """Give the cells from *first* up to *stop* their place on the disk; storing into them cannot fill it then."""
        begin = first * self.spec.itemsize
        length = min(stop, self.count) * self.spec.itemsize - begin
        fd = self._fd if self._fd >= 0 else self._reopened()
        try:
            written = False
            if hasattr(os, "posix_fallocate"):
                try:
                    os.posix_fallocate(fd, begin, length)
                    written = True
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                        raise
            data = os.pread(fd, length, begin)
            # Content that a copy of the store may share (reflinks of XFS) would get new blocks at the first store.
            if (data.count(0) != len(data) or not written) and os.pwrite(fd, data, begin) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            if fd != self._fd:
                os.close(fd)

    def _reopened(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_ino != self._inode:
            os.close(fd)
            raise OSError(errno.ESTALE, "the file was replaced during the run")
        return fd

    def set_ones(self, numbers: NDArray[np.int64]) -> None:
        """Store 1 into the cells *numbers* of a ``uint8`` array, in ranges that are real."""
        if self._map is not None:
            np.frombuffer(self._map, np.uint8)[numbers] = 1
            return
        for step in np.flatnonzero(np.bincount(numbers >> STEP_BITS)).tolist():
            begin = step << STEP_BITS
            data = np.frombuffer(os.pread(self._fd, 1 << STEP_BITS, begin), np.uint8).copy()
            data[numbers[numbers >> STEP_BITS == step] - begin] = 1
            os.pwrite(self._fd, data.tobytes(), begin)

    def flush(self) -> None:
        """Write everything to the disk; an error means that the disk has lost something."""
        if self._map is not None:
            self._map.flush()
        else:
            os.fsync(self._fd)
        status = os.stat(self.path)
        if status.st_ino != self._inode:
            raise OSError(errno.ESTALE, "the file was replaced during the run")

    def trim(self) -> None:
        """Let go of the pages in memory; their content stays with the operating system."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let go of the file. Can be repeated."""
        cells, self.cells = self.cells, {}
        if isinstance(cells, memoryview):
            cells.release()
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def create_sparse(path: Path, size: int) -> None:
    """Make a file of *size* zero bytes that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def read_cells(path: Path, spec: ArraySpec, count: int) -> NDArray[Any]:
    """Return all cells of the chunk file *path*; ranges that were never written take no memory.

    Raises
    ------
    TrackingError
        The file does not have *count* cells.
    OSError
        It cannot be read.
    """
    out = np.zeros(count, spec.dtype)
    raw = memoryview(out.data).cast("B")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = _checked_size(fd, path, count * spec.itemsize)
        begin = 0
        while begin < size:
            try:
                begin = os.lseek(fd, begin, os.SEEK_DATA)
                end = os.lseek(fd, begin, os.SEEK_HOLE)
            except (OSError, AttributeError) as error:
                if isinstance(error, OSError) and error.errno == errno.ENXIO:
                    break  # nothing but a hole is left
                end = size
            while begin < end:
                got = os.preadv(fd, [raw[begin : min(end, begin + (1 << 30))]], begin)
                if not got:
                    raise TrackingError(f"{path} became shorter while it was read")
                begin += got
    finally:
        os.close(fd)
    return out


def read_range(path: Path, spec: ArraySpec, count: int, begin: int, end: int) -> NDArray[Any]:
    """Return the cells *begin* to *end* of the chunk file *path*, which has *count* cells.

    Raises
    ------
    TrackingError
        The file does not have *count* cells.
    OSError
        It cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked_size(fd, path, count * spec.itemsize)
        data = os.pread(fd, (end - begin) * spec.itemsize, begin * spec.itemsize)
    finally:
        os.close(fd)
    if len(data) != (end - begin) * spec.itemsize:
        raise TrackingError(f"{path} became shorter while it was read")
    return np.frombuffer(data, spec.dtype)


def _checked_size(fd: int, path: Path, expected: int) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise TrackingError(f"{path} is not a file")
    if status.st_size != expected:
        raise TrackingError(f"{path} has {status.st_size} bytes, expected {expected}")
    return expected
