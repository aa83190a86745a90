"""The folder of timing files: a JSON document that each save writes anew, and a fragment for each running process.

A finished measurement goes to the fragment at once. The fragment is mapped into memory, so that this costs no system
call and a kill of the process loses nothing: the pages are the kernel's. Its room is allocated before it is used,
because a full disk would otherwise end the process. Whoever saves merges the newest document, what it knows itself and
the fragments of processes that are gone (their lock is free) into a new document, under the lock of the folder.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from workspan import config
from workspan.estimate.home import timing_directory
from workspan.estimate.keys import Key
from workspan.estimate.measurements import Measurement, StepHistory, merge, trim, usable
from workspan.estimate.notices import LOGGER, warn_once
from workspan.estimate.snapred import NewerVersionError, decode, encode, file_name, stamp_of, to_json

__all__ = ["LARGEST_DOCUMENT", "Fragment", "TimingFolder", "timing_directory"]

LOCK_SECONDS = 1.0
"""How long a save waits for another one; then the fragment is left for a later save."""

_LOCK = ".lock"
_ROOM = 16 * 1024
LARGEST_DOCUMENT = 64 * 2**20
"""Most bytes of a document that is read."""
_FRAGMENT = "fragment_*.jsonl"
_encode = msgspec.json.Encoder().encode


class Fragment:
    """Measurements of this process since its last save: lines of JSON, then zeros.

    Parameters
    ----------
    directory
        The folder, which must exist.

    Raises
    ------
    OSError
        There is no room, or no right to write.
    """

    def __init__(self, directory: Path) -> None:
        self.id = secrets.token_hex(6)
        host = "".join(sign if sign.isalnum() else "-" for sign in socket.gethostname())[:40]
        self.path = directory / f"fragment_{host}_{os.getpid()}_{self.id}.jsonl"
        self.lines = 0
        self._series: dict[tuple[object, ...], int] = {}
        self._at = 0
        self._size = 0
        # Locked before it has the name that others look for: unlocked, it would look as if this process had ended.
        hidden = directory / f".{self.path.name}"
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._grow(_ROOM)
            self._write(msgspec.json.encode({"workspan_fragment": 1, "id": self.id}) + b"\n")
            os.rename(hidden, self.path)
        except BaseException:
            os.close(self._fd)
            with suppress(OSError):
                hidden.unlink()
            raise

    def head(
        self, key: Key, order: str | None, variant: str | None, fingerprint: str | None, software: str | None
    ) -> int:
        """Return the number of a series of measurements that have these in common."""
        which = (key, order, variant, fingerprint, software)
        number = self._series.get(which)
        if number is None:
            number = len(self._series)
            head = {"series": number, "key": key, "order": order, "variant": variant, "fp": fingerprint, "sw": software}
            self._write(to_json(head) + b"\n")
            self._series[which] = number
        return number

    def append(self, fields: tuple[Any, ...]) -> int:
        """Add (series, N_ref, dt, dt_est, start, overlap, substep) and return its line.

        On return a kill of the process no longer loses it.
        """
        data = _encode(fields)
        at = self._at
        end = at + len(data) + 1
        if end >= self._size:
            self._grow(max(2 * self._size, end + _ROOM))
        self._map[at:end] = data + b"\n"
        self._at = end
        line = self.lines
        self.lines = line + 1
        return line

    def _write(self, data: bytes) -> None:
        end = self._at + len(data)
        if end >= self._size:
            self._grow(max(2 * self._size, end + _ROOM))
        self._map[self._at : end] = data
        self._at = end

    def _grow(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)
        else:  # macOS: written, so that the room is really there
            os.pwrite(self._fd, bytes(size - self._size), self._size)
        self._map = mmap.mmap(self._fd, size)
        self._size = size

    def finish(self) -> None:
        """Cut the unused room off and leave the file to whoever saves next."""
        if self._fd >= 0:
            with suppress(OSError, ValueError):
                self._map.close()
                os.ftruncate(self._fd, self._at)
            self.forget()

    def remove(self) -> None:
        """Delete it: its measurements are in a document."""
        self.forget()
        with suppress(OSError):
            self.path.unlink()

    def forget(self) -> None:
        """Close it without a change, in a forked child for instance."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with suppress(ValueError):
                self._map.close()


def read_fragment(data: bytes) -> list[StepHistory]:
    """Read a fragment as far as it makes sense: the last line may be cut."""
    steps: dict[Key, StepHistory] = {}
    heads: dict[Any, tuple[Key, Any, Any, Any]] = {}
    name, lines = "", 0
    for line in data.rstrip(b"\0").split(b"\n"):
        try:
            item = msgspec.json.decode(line)
            if isinstance(item, dict):
                if "workspan_fragment" in item:
                    name = str(item["id"])
                else:
                    key = Key(*item["key"])
                    heads[item["series"]] = (key, item["variant"], item["fp"], item["sw"])
                    steps.setdefault(key, StepHistory(key)).order = item["order"]
                    steps[key].fingerprint = item["fp"]
                continue
            number, n_ref, dt, dt_est, start, overlap, substep = item
            key, variant, fingerprint, software = heads[number]
            dt, start = usable(dt), usable(start)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, TypeError, KeyError):
            continue
        lines += 1
        if dt is None or start is None or not name:
            continue
        step = steps[key]
        step.used = max(step.used, start)
        series = step.variant(variant)
        series.measurements.append(
            Measurement(
                dt, usable(n_ref), usable(dt_est), f"{name}-{lines - 1}", start, fingerprint, overlap, substep, software
            )
        )
        series.total += 1
    return list(steps.values())


class TimingFolder:
    """Everything that is kept on disk.

    Parameters
    ----------
    directory
        ``None``: nowhere to keep it; what is recorded lives as long as the process.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._fragment: Fragment | None = None
        self.closed_by: str | None = None
        """Why nothing can be written, once that is known."""
        self.pending: list[tuple[Any, ...]] = []
        """What went wrong and was not told yet: whoever holds a lock tells it afterwards."""
        if directory is None:
            self._close("there is no home directory to keep them in; set timing.directory")

    def _close(self, why: str) -> None:
        self.closed_by = why
        self._warn(("files", str(self.directory)), "timings are kept in memory only: %s", why)

    def _warn(self, *what: Any) -> None:
        self.pending.append(what)

    def tell(self) -> None:
        """Log what went wrong, each thing once."""
        while self.pending:
            with suppress(IndexError):  # another thread tells it, too
                warn_once(*self.pending.pop(0))

    @property
    def writes(self) -> bool:
        """Whether measurements go to disk."""
        return self.closed_by is None and bool(config.get("timing.persistent_data"))

    # -- reading --

    def documents(self) -> list[Path]:
        """Return the documents, newest first."""
        if self.directory is None:
            return []
        try:
            names = os.listdir(self.directory)
        except OSError:
            return []
        stamped = [(stamp, name) for name in names if (stamp := stamp_of(name)) is not None]
        return [self.directory / name for _, name in sorted(stamped, reverse=True)]

    def load(self) -> dict[Key, StepHistory]:
        """Return what the newest valid document and all fragments hold; never raises."""
        return self._load(self._fragments())

    def _load(self, fragments: Iterable[Path]) -> dict[Key, StepHistory]:
        limit = config.get("timing.max_measurements")
        steps: dict[Key, StepHistory] = {}
        for path in self.documents():
            found = self._read(path)
            if found is not None:
                steps = {step.key: step for step in found}
                break
        for step in steps.values():
            for series in step.series.values():
                series.measurements = trim(series.measurements, limit)
        for path in fragments:
            try:
                found = read_fragment(path.read_bytes())
            except OSError:
                continue
            for step in found:
                merge(steps.setdefault(step.key, StepHistory(step.key)), step, limit)
        return steps

    def _read(self, path: Path) -> list[StepHistory] | None:
        stamp = stamp_of(path.name)
        try:
            if path.stat().st_size > LARGEST_DOCUMENT:
                raise ValueError(f"it has more than {LARGEST_DOCUMENT >> 20} MiB")
            steps, problems = decode(path.read_bytes(), stamp=None if stamp is None else stamp.timestamp())
        except NewerVersionError as error:
            self._close(f"{path.name} must not be replaced: {error}")
            return None
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(("read", path), "timing file %s cannot be read and is left out: %s", path.name, error)
            return None
        except ValueError as error:
            self._set_aside(path, str(error))
            return None
        if problems:
            self._warn(("part", path), "timing file %s: left out %s", path.name, "; ".join(problems)[:500])
        return steps

    def _set_aside(self, path: Path, why: str) -> None:
        moved = "is left out"
        if self.writes:
            with suppress(OSError):
                path.rename(path.with_name(f"{path.name}.{secrets.token_hex(2)}.bad"))
                moved = "was renamed to end in .bad"
        self._warn(("bad", path), "timing file %s %s: %s", path.name, moved, why[:200])

    def _fragments(self, *, dead: bool = False) -> list[Path]:
        """Return the fragments of other processes, or only of those that are gone."""
        if self.directory is None:
            return []
        own = None if self._fragment is None else self._fragment.path
        return [p for p in sorted(self.directory.glob(_FRAGMENT)) if p != own and (not dead or _is_free(p))]

    # -- writing --

    def fragment(self) -> Fragment | None:
        """Return the fragment to write to; ``None`` where that is impossible, which is told once."""
        if self._fragment is None and self.writes:
            assert self.directory is not None, "test_files.py::test_without_a_home"
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fragment = Fragment(self.directory)
            except OSError as error:
                self.fail(error)
        return self._fragment

    def fail(self, error: OSError) -> None:
        """Keep everything in memory from now on, because the disk refused; that is told once."""
        fragment = self.rotate()
        if fragment is not None:
            fragment.finish()
        self._close(f"{error.strerror or error} ({self.directory})")

    def rotate(self) -> Fragment | None:
        """Begin a new fragment; return the one that was written so far."""
        fragment, self._fragment = self._fragment, None
        return fragment

    def save(
        self,
        steps: dict[Key, StepHistory],
        written: Fragment | None = None,
        *,
        change: Callable[[dict[Key, StepHistory]], None] | None = None,
    ) -> dict[Key, StepHistory] | None:
        """Write a new document of *steps*, the newest document and the fragments of ended processes.

        Parameters
        ----------
        steps
            What this process knows. It is changed: what the disk knows is merged into it.
        written
            Fragment whose measurements are in *steps*.
        change
            Called with everything that is going to be written, under the lock.

        Returns
        -------
        dict or None
            What was written; ``None`` if the lock was not to be had or the disk refused: then the fragment stays.
        """
        done = None
        try:
            if self.directory is not None and self.writes:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                done = self._save(self.directory, steps, change)
        except OSError as error:
            self.fail(error)
        finally:
            if written is not None:
                if done is None:
                    written.finish()
                else:
                    written.remove()
        return done

    def _save(
        self, directory: Path, steps: dict[Key, StepHistory], change: Callable[[dict[Key, StepHistory]], None] | None
    ) -> dict[Key, StepHistory] | None:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locked(lock, LOCK_SECONDS):
                return None
            dead = self._fragments(dead=True)
            limit = config.get("timing.max_measurements")
            for key, step in self._load(dead).items():
                merge(steps.setdefault(key, StepHistory(key)), step, limit)
            if not self.writes:  # the newest document turned out to be of a later version
                return None
            if change is not None:
                change(steps)
            _write_atomically(directory, file_name(datetime.now(UTC)), _limited(steps))
            for path in (*self.documents()[config.get("timing.max_files") :], *dead):
                with suppress(FileNotFoundError):
                    path.unlink()
            return steps
        finally:
            os.close(lock)

    def forget(self) -> None:
        """Let go of the fragment without a change: it is the parent's, and this a forked child."""
        if self._fragment is not None:
            self._fragment.forget()
            self._fragment = None


def _limited(steps: dict[Key, StepHistory]) -> bytes:
    """Encode the steps that were used last, as many as the limits allow."""
    by_use = sorted(steps.values(), key=lambda step: step.used, reverse=True)[: config.get("timing.max_steps")]
    most = config.get("timing.max_file_bytes")
    while True:
        data = encode(by_use)
        if len(data) <= most or not by_use:
            break
        by_use = by_use[: min(len(by_use) - 1, int(len(by_use) * most / len(data)))]
    kept = {step.key for step in by_use}
    for key in [key for key in steps if key not in kept]:
        del steps[key]
        LOGGER.info("step %s was dropped from the timing files: it is the least recently used", key)
    return data


def _write_atomically(directory: Path, name: str, data: bytes) -> None:
    temporary = directory / f".{name}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, directory / name)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _locked(fd: int, seconds: float) -> bool:
    """Take the lock, for which others may wait, too; ``False`` after *seconds*."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        except OSError:  # no locks on this file system
            return False


def _is_free(path: Path) -> bool:
    """Whether the process that wrote a fragment has ended."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
