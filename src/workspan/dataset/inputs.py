"""What lies in the memory of the driver on its way to the workers: files that they map, written while they start."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workspan.dataset.blocks import whole
from workspan.dataset.sinks import disk
from workspan.dataset.sources import ArrowPiece, MemoryPiece

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workspan.dataset.sources import Piece

__all__ = ["Inputs"]


class Inputs:
    """Pieces that are written when somebody needs them, or before that when there is nothing else to do.

    They are written in the thread that drives the run, one at a time: so an error ends the run as any other does, and
    between two of them the run does what it has to. A file appears whole or not at all, and one that is there, of a run
    before that was killed, is used again.

    Parameters
    ----------
    folder
        Where the files are put; made when there is one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left: dict[str, MemoryPiece] = {}
        """File -> what is to be written into it, in the order of the tasks."""
        self._bundles: Sequence[Sequence[Piece]] = ()
        self.seconds = 0.0
        """Time that was spent on writing."""

    def __bool__(self) -> bool:
        """Whether there is anything left to be written."""
        return bool(self._left)

    def promise(self, name: str, piece: Piece) -> Piece:
        """Return what a worker will read instead of *piece*; nothing is written."""
        if not isinstance(piece, MemoryPiece):
            return piece
        path = str(self._folder / f"{name}.arrow")
        self._left[path] = piece
        return ArrowPiece(piece.label, piece.rows, path)

    def are_of(self, bundles: Sequence[Sequence[Piece]]) -> None:
        """Take note of what each task reads."""
        self._bundles = bundles

    def write_for(self, task: int) -> None:
        """Write what a task reads, as far as that has not been done.

        Raises
        ------
        OSError
            There is no room for it, for example; a note tells what was written, and where.
        """
        if self._left:
            for piece in self._bundles[task]:
                path = getattr(piece, "path", "")
                if path in self._left:
                    self._write(path)

    def write_next(self) -> None:
        """Write the first of those that are left; errors are those of :meth:`write_for`."""
        self._write(next(iter(self._left)))

    def _write(self, path: str) -> None:
        begin = time.perf_counter()
        piece = self._left.pop(path)
        if not os.path.exists(path):
            part = f"{path}.part"
            told = f"{piece.label} was put into {self._folder} for the workers"
            with (
                disk(told, "set TMPDIR to one on another disk"),
                self._made(part, piece.table.schema) as writer,
            ):
                writer.write_table(whole(piece.table))
            os.replace(part, path)
        self.seconds += time.perf_counter() - begin

    def _made(self, part: str, schema: pa.Schema) -> Any:
        self._folder.mkdir(exist_ok=True)
        return pa.ipc.new_file(part, schema)
