"""The history of a task: ``runs.jsonl``, one JSON object a line, one line a run.

Lines are only ever appended, each with one write to a file opened for appending, so that writers on one machine cannot
mix their lines. What a killed writer left unfinished stays where it is; the next line starts on a line of its own, and
readers pass over what is damaged and count it.
"""

from __future__ import annotations

import json
import math
import os
from typing import IO, TYPE_CHECKING, Any, NoReturn

from workspan.errors import UsageTypeError
from workspan.store.faults import disk_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LONGEST_LINE_BYTES", "append_run", "iter_runs", "last_run", "read_runs"]

Run = dict[str, Any]

LONGEST_LINE_BYTES = 64 << 20
"""A longer line is damaged; no more than this is held in memory."""

_READ_BYTES = 64 << 10
_BLOCK_BYTES = 64 << 10


def append_run(path: Path | str, run: Run, *, durable: bool = True) -> None:
    """Append *run* to the history at *path*; folders and file are made if need be.

    Numbers that JSON does not have (NaN and the infinities) are written as ``null``. With *durable* the line is on the
    disk when this returns; without, a power cut may lose it.

    Raises
    ------
    UsageTypeError
        *run* holds something that is not JSON.
    StoreFullError
        There is no room for the line. What was written before is intact.
    TrackingError
        The file cannot be written.
    """
    try:
        try:
            text = json.dumps(run, allow_nan=False)
        except ValueError:
            text = json.dumps(_without_nan(run), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageTypeError(f"the record of a run is not JSON: {error}") from None
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, flags, 0o666)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = ("\n" * torn + text + "\n").encode("ascii")
            written = os.write(fd, data)
            while written < len(data):  # the disk is full, as the rest will say, or the line is longer than 2 GB
                written += os.write(fd, data[written:])
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise disk_error(error, path, "appending the record of a run") from error


def iter_runs(path: Path | str) -> Iterator[Run | None]:
    """Yield the runs at *path*, oldest first, and ``None`` for each damaged line; nothing if there is no file.

    Holds one line in memory at a time.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            for line in _lines(file):
                if line is None:
                    yield None
                elif line.strip():
                    yield _parsed(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise disk_error(error, path, "reading the history of runs") from error


def read_runs(path: Path | str) -> tuple[list[Run], int]:
    """Return all runs at *path*, oldest first, and the number of damaged lines; ``([], 0)`` if there is no file."""
    runs = []
    damaged = 0
    for run in iter_runs(path):
        if run is None:
            damaged += 1
        else:
            runs.append(run)
    return runs, damaged


def last_run(path: Path | str) -> Run | None:
    """Return the newest run at *path* whose line is whole, or ``None``; reads from the end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(error, path, "reading the history of runs") from error
    try:
        for line in _lines_backwards(fd):
            run = _parsed(line) if line.strip() else None
            if run is not None:
                return run
        return None
    except OSError as error:
        raise disk_error(error, path, "reading the history of runs") from error
    finally:
        os.close(fd)


def _lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield the lines of *file*, ``None`` for those that are too long."""
    parts: list[bytes] = []
    length = 0
    while block := file.read(_READ_BYTES):
        *heads, rest = block.split(b"\n")
        for piece in heads:
            parts.append(piece)
            yield b"".join(parts) if length + len(piece) <= LONGEST_LINE_BYTES else None
            parts, length = [], 0
        length += len(rest)
        if length <= LONGEST_LINE_BYTES:
            parts.append(rest)
        else:
            parts = []
    if length:
        yield b"".join(parts) if length <= LONGEST_LINE_BYTES else None


def _lines_backwards(fd: int) -> Iterator[bytes]:
    end = os.fstat(fd).st_size
    parts: list[bytes] = []  # of the line that is being gathered, last part first
    length = 0
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        pieces = os.pread(fd, end - begin, begin).split(b"\n")
        end = begin
        while pieces:
            piece = pieces.pop()
            length += len(piece)
            if length <= LONGEST_LINE_BYTES:
                parts.append(piece)
            else:
                parts = []
            if pieces:  # a newline stands before this piece
                if length <= LONGEST_LINE_BYTES:
                    yield b"".join(reversed(parts))
                parts, length = [], 0
    if length <= LONGEST_LINE_BYTES:
        yield b"".join(reversed(parts))


def _parsed(line: bytes) -> Run | None:
    if line[:64].lstrip()[:1] not in (b"{", b""):
        return None  # megabytes of junk are not worth a parse
    try:
        run = json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return run if isinstance(run, dict) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value
