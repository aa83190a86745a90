"""Cut a log file that grows without end: its beginning and its end stay, and a line between them says what is gone.

The worker goes on appending while its file is cut in place, and knows nothing of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_LOG_BYTES = 64 << 20
"""Largest part of one worker in a log file; beyond it, the part is cut."""
HEAD_BYTES = 16 << 20
"""What stays of the beginning of a part that is cut."""
TAIL_BYTES = 16 << 20
"""What stays of its end. Head, tail and the line between them must fit into ``MAX_LOG_BYTES``."""

_PIECE_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
"""How far from the place of a cut a line end is looked for."""
_ROUNDS = 32
"""How often the copying goes after a worker that writes meanwhile."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a cut did to a file, in bytes from its beginning: ``begin`` to ``end`` is gone, the rest moved."""

    begin: int
    end: int
    moved_to: int
    """Where the byte that was at ``end`` is now: behind the line that tells of the cut."""


@dataclass(slots=True)
class LogPart:
    """What one worker writes to one log file: from ``start``, the size of the file before it, to the end."""

    path: Path
    start: int
    identity: tuple[int, int]
    """Device and inode of the file, so that another one that took its name is left alone."""
    note_begin: int = 0
    note_end: int = 0
    """Where the line is that tells of earlier cuts; both 0: there is none."""
    cut_bytes: int = 0

    def size(self) -> int:
        """Return the size of the file in bytes.

        Raises
        ------
        OSError
            It is gone, or another file has taken its place.
        """
        stat = os.stat(self.path)
        if (stat.st_dev, stat.st_ino) != self.identity:
            raise FileNotFoundError(f"another file has taken the place of {str(self.path)!r}")
        return stat.st_size

    def cut(self) -> Cut | None:
        """Cut this part in place if it is longer than ``MAX_LOG_BYTES``.

        Its first ``HEAD_BYTES`` and its last ``TAIL_BYTES`` stay, up to a line end where one is near. Whatever the
        size, little memory is taken. What comes before ``start`` is not touched.

        Returns
        -------
        Cut or None
            What was done; ``None`` if the part is short enough.

        Raises
        ------
        OSError
            The file cannot be cut; what was to stay of its beginning is still there.

        Notes
        -----
        The worker may write meanwhile. That is copied too, up to the size of the file at the last look before it is
        shortened; what the worker writes in the microseconds between these two system calls is lost. No lock closes
        that gap, since the worker writes from any library and any child process. A worker that writes faster than
        the disk copies loses more; that is counted with the bytes of the next cut.
        """
        size = self.size()
        if size < self.note_end:  # somebody emptied the file
            self.note_begin = self.note_end = self.cut_bytes = 0
            self.start = min(self.start, size)
        if size - self.start <= MAX_LOG_BYTES:
            return None
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._cut(descriptor, size)
        finally:
            os.close(descriptor)

    def _cut(self, descriptor: int, size: int) -> Cut:
        begin = self.note_begin or _end_of_line(descriptor, self.start, self.start + HEAD_BYTES)
        end = _begin_of_line(descriptor, size - TAIL_BYTES, size)
        gone = self.cut_bytes + end - (self.note_end or begin)
        moved_to = _write(descriptor, _note(descriptor, gone, begin), begin)
        read, written = end, moved_to
        for _ in range(_ROUNDS):
            read, written = _copy(descriptor, read, written, size)
            size = os.fstat(descriptor).st_size
            if read >= size:
                break
        os.ftruncate(descriptor, written)
        self.note_begin, self.note_end, self.cut_bytes = begin, moved_to, gone + max(0, size - read)
        return Cut(begin, end, moved_to)


def _note(descriptor: int, gone: int, begin: int) -> bytes:
    kept = f"of this worker's output the first {HEAD_BYTES >> 20} MB and the last {TAIL_BYTES >> 20} MB stay"
    line = f"---- {gone:,} bytes were cut here: {kept} ----\n".encode()
    return line if os.pread(descriptor, 1, begin - 1) == b"\n" else b"\n" + line


def _end_of_line(descriptor: int, start: int, end: int) -> int:
    """Return where the last whole line before *end* ends, or *end* if there is none near."""
    start = max(start, end - _LINE_BYTES)
    found = os.pread(descriptor, end - start, start).rfind(b"\n")
    return end if found < 0 else start + found + 1


def _begin_of_line(descriptor: int, begin: int, end: int) -> int:
    """Return where the first whole line from *begin* on begins, or *begin* if there is none near."""
    found = os.pread(descriptor, min(_LINE_BYTES, end - begin), begin - 1).find(b"\n")
    return begin if found < 0 else begin + found


def _copy(descriptor: int, source: int, target: int, end: int) -> tuple[int, int]:
    """Copy the bytes from *source* to *end* down to *target*; return where reading and writing have come to."""
    while source < end:
        piece = os.pread(descriptor, min(_PIECE_BYTES, end - source), source)
        if not piece:  # somebody shortened the file
            break
        target = _write(descriptor, piece, target)
        source += len(piece)
    return source, target


def _write(descriptor: int, data: bytes, place: int) -> int:
    """Write all of *data* at *place* and return the place behind it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view = view[written:]
        place += written
    return place
