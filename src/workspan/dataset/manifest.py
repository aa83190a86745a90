"""What a write made.

The output folder has ``_manifest.jsonl``: a head, and a line for each file with the task that made it. A file's name is
that of its task, and it appears by rename, so a task that runs again replaces its own file and no other: no row is lost
or there twice, whenever the run was killed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workspan.dataset.files import is_visible
from workspan.dataset.task import replace_file
from workspan.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.dataset.record import TaskRecord
    from workspan.dataset.sinks import Sink

__all__ = ["MANIFEST", "Existing", "Manifest"]

MANIFEST = "_manifest.jsonl"
SCHEMA = 1

Existing = Literal["refuse", "overwrite"]
"""What happens to files that are in the folder already."""

_MADE = re.compile(r"part-\d{6,}\.(parquet|csv|jsonl)")
"""Names of files that a write makes: nothing else is ever removed."""


def unusable(folder: object, error: OSError) -> ConfigurationError:
    """Return the error for a folder that cannot be made or written to."""
    reason = error.strerror or str(error)
    return ConfigurationError(
        f"{str(folder)!r} cannot be written to: {reason}. Choose a folder that is not there yet, or is yours and empty"
    )


class Manifest:
    """The list of the files of one write.

    Parameters
    ----------
    sink
        Where they are.
    run_id
        Identifies the write over all runs that go on with it.
    existing
        What happens to files that are there already.

    Raises
    ------
    ConfigurationError
        The folder has files that this write did not make.
    """

    def __init__(self, sink: Sink, run_id: str, existing: Existing) -> None:
        self._sink = sink
        self._folder = Path(sink.folder)
        self._lines: dict[int, dict[str, Any]] = {}
        try:
            if sink.filesystem is None:
                self._folder.mkdir(parents=True, exist_ok=True)
            else:
                sink.filesystem.create_dir(sink.folder, recursive=True)
        except OSError as error:
            raise unusable(sink.folder, error) from error
        head = self._read()
        if head is not None and head.get("id") == run_id:
            self._sweep()
            return
        found = self._present()
        if found and existing == "refuse":
            raise ConfigurationError(
                f"{sink.folder!r} has {len(found)} files already ({found[0]!r} for example), and the rows of this "
                "write would be beside theirs: write to another folder, pass existing='overwrite', or go on with an "
                "interrupted write by its tracking_path"
            )
        foreign = [name for name in found if not _MADE.fullmatch(name)]
        if foreign:
            raise ConfigurationError(
                f"{sink.folder!r} has files that no write of a dataset has made ({foreign[0]!r} for "
                f"example, of {len(foreign)}), and existing='overwrite' removes none of those: move them, or write to "
                "another folder"
            )
        try:
            for name in found:
                self._delete(name)
            self._lines = {}
            self._head = {"workspan": "manifest", "schema": SCHEMA, "id": run_id, "kind": sink.name}
            self._replace(_line(self._head))
        except OSError as error:
            raise unusable(sink.folder, error) from error

    def _read(self) -> dict[str, Any] | None:
        """Take in what is there; a line that a kill has torn counts for nothing."""
        try:
            if self._sink.filesystem is None:
                data = (self._folder / MANIFEST).read_bytes()
            else:
                with self._sink.filesystem.open_input_stream(f"{self._sink.folder}/{MANIFEST}") as file:
                    data = file.read()
        except OSError:
            return None
        lines = data.decode(errors="replace").splitlines()
        found = []
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        if not found or found[0].get("workspan") != "manifest":
            return None
        self._head = found[0]
        self._lines = {line["block"]: line for line in found[1:] if isinstance(line.get("block"), int)}
        return self._head

    def _sweep(self) -> None:
        """Remove what was being written when a run was ended, and files of no known kind of run."""
        for name in self._names():
            if name.startswith(".part-") and name.endswith(".tmp"):
                self._delete(name)
        if self._sink.filesystem is not None:
            return
        with open(self._folder / MANIFEST, "ab") as file:
            file.write(b"\n")  # ends a line that was torn; empty ones are skipped

    def _names(self, *, deep: bool = False) -> list[str]:
        """Return the names of the files, below the folder."""
        import pyarrow.fs as fs

        system = self._sink.filesystem or fs.LocalFileSystem()
        infos = system.get_file_info(fs.FileSelector(self._sink.folder, recursive=deep))
        start = len(self._sink.folder.rstrip("/")) + 1
        return [info.path[start:] for info in infos if info.type == fs.FileType.File]

    def _present(self) -> list[str]:
        """Return the names of files that a reader would take for data; in folders within it those of this kind."""
        suffix = self._sink.suffix
        names = (name for name in self._names(deep=True) if "/" not in name or name.endswith(suffix))
        return sorted(filter(is_visible, names))

    def _replace(self, data: bytes) -> None:
        if self._sink.filesystem is None:
            replace_file(self._folder / MANIFEST, data)
        else:
            with self._sink.filesystem.open_output_stream(f"{self._sink.folder}/{MANIFEST}") as file:
                file.write(data)

    def _delete(self, name: str) -> None:
        if self._sink.filesystem is None:
            (self._folder / name).unlink(missing_ok=True)
        else:
            self._sink.filesystem.delete_file(f"{self._sink.folder}/{name}")

    def missing(self, done: Sequence[int], records: dict[int, TaskRecord]) -> list[int]:
        """Return the tasks that count as done, but whose file is gone."""
        if not done:
            return []
        there = set(self._names())
        return [
            index
            for index in done
            if index not in records or ((written := records[index].written) is not None and written[0] not in there)
        ]

    def note(self, record: TaskRecord) -> None:
        """Add the file of a task; one without rows has none. What is not local is written at the end only."""
        if record.written is None:
            return
        name, rows, size = record.written
        line = {"block": record.index, "file": name, "rows": rows, "bytes": size}
        if self._lines.get(record.index) == line:
            return
        self._lines[record.index] = line
        if self._sink.filesystem is None:
            with open(self._folder / MANIFEST, "ab") as file:
                file.write(_line(line))

    def finish(self) -> None:
        """Write it whole, in the order of the tasks."""
        if self._sink.filesystem is not None and self._lines:
            there = set(self._names())
            lost = [line["file"] for line in self._lines.values() if line["file"] not in there]
            if lost:
                raise DataError(
                    f"{self._sink.name}: workers have written {len(lost)} files that are not in {self._sink.folder!r} "
                    f"as this process sees it ({lost[0]!r} for example): is the file system one that all processes "
                    "share? Write to a shared one, or pass engine='serial'"
                )
        self._replace(b"".join(map(_line, [self._head, *(self._lines[index] for index in sorted(self._lines))])))


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
