"""Which blocks were in flight when a run was killed.

A small file of fixed size beside the lock: one slot per granted block, written when it is granted and not when it
comes back: a slot whose block is done is a free one. Blocks that came back without success are struck out. What is
left at the next start was in flight at the kill.

Format: 1028 unsigned 64-bit integers, little-endian. Four of head: a magic number, the version 1, and the first 16
bytes of the layout hash. Then 1024 slots: 0, or ``index + 1`` in the lower 40 bits and ``worker + 1`` (0: none) in the
upper 24. Eight aligned bytes are never half written. More blocks in flight than slots are not remembered.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from workspan.store.files import CellFile
from workspan.store.meta import ArraySpec

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.store.files import Cells

__all__ = ["CAPACITY", "InFlight", "SlotFile", "read_slots"]

CAPACITY = 1024
_HEAD = 4
_MAGIC = int.from_bytes(b"wsp-slot", "little")
_VERSION = 1
_INDEX_BITS = 40
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_WORKER_MASK = (1 << 24) - 1
_SPEC = ArraySpec("slots", "uint64", "Q")


class InFlight(msgspec.Struct, frozen=True):
    """A block that was granted when its run was killed."""

    index: int
    """Its number in the mask grid."""
    worker: int | None
    """Who had it, in that run; ``None``: no managed worker."""


class SlotFile:
    """The slots of the run that holds the lock.

    Parameters
    ----------
    path
        Where; an older file is replaced.
    layout_hash
        Hash of the task's layout, without which the indices mean nothing.
    mapped
        Store through a map or by system calls.
    """

    def __init__(self, path: Path, layout_hash: str, *, mapped: bool) -> None:
        self.path = path
        head = struct.pack("<QQ", _MAGIC, _VERSION) + bytes.fromhex(layout_hash)[:16]
        temporary = path.with_name(path.name + ".partial")
        try:
            # Zeros that are really written: the map is then safe on a full disk.
            temporary.write_bytes(head + bytes(CAPACITY * _SPEC.itemsize))
            os.replace(temporary, path)
            self._file = CellFile(path, _SPEC, _HEAD + CAPACITY, mapped=mapped)
            self._file.make_real(0, _HEAD + CAPACITY)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        self._cells: Cells = self._file.cells
        self._free = list(range(_HEAD + CAPACITY - 1, _HEAD - 1, -1))
        self._taken: dict[int, int] = {}

    def grant(self, index: int, worker: int | None) -> None:
        """Remember that block *index* was given to *worker*."""
        if self._free:
            slot = self._taken[index] = self._free.pop()
            owner = 0 if worker is None else (worker + 1) & _WORKER_MASK
            self._cells[slot] = (index + 1) & _INDEX_MASK | owner << _INDEX_BITS

    def release(self, index: int) -> None:
        """Block *index* is done: its slot may be used again."""
        slot = self._taken.pop(index, None)
        if slot is not None:
            self._free.append(slot)

    def strike(self, index: int) -> None:
        """Block *index* is no longer in flight although it is not done."""
        slot = self._taken.pop(index, None)
        if slot is not None:
            self._cells[slot] = 0
            self._free.append(slot)

    def close(self, *, remove: bool) -> None:
        """Let go of the file; *remove* it after an orderly end. Can be repeated."""
        self._cells = {}
        self._file.close()
        if remove:
            with suppress(OSError):
                self.path.unlink()


def read_slots(path: Path, layout_hash: str) -> list[InFlight]:
    """Return what the slot file at *path* remembers, done blocks included; nothing if it is for another layout."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    if len(data) != (_HEAD + CAPACITY) * _SPEC.itemsize:
        return []
    if data[:32] != struct.pack("<QQ", _MAGIC, _VERSION) + bytes.fromhex(layout_hash)[:16]:
        return []
    found = {}
    for (value,) in struct.iter_unpack("<Q", data[32:]):
        if value & _INDEX_MASK:
            index, owner = (value & _INDEX_MASK) - 1, value >> _INDEX_BITS
            found[index] = InFlight(index, owner - 1 if owner else None)
    return [found[index] for index in sorted(found)]
