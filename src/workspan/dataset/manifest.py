"""What a write made, and whether a run may go on where another was ended.

The output folder has ``_manifest.jsonl``: a head, and a line for each file with the task that made it. A file's name is
that of its task, and it appears by rename, so a task that runs again replaces its own file and no other: no row is lost
or there twice, whenever the run was killed.

The tracking folder has ``plan.json``: what the tasks read and do. A run with another plan is refused there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import warnings
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workspan.dataset.sources import FilePiece
from workspan.dataset.task import replace_file
from workspan.errors import ConfigurationError, LayoutMismatchError
from workspan.run.functions import function_fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.dataset.plan import Plan
    from workspan.dataset.record import TaskRecord
    from workspan.dataset.sinks import Sink
    from workspan.dataset.sources import Piece

__all__ = ["MANIFEST", "Existing", "Manifest", "open_plan"]

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
        local = sink.filesystem is None
        try:
            if local:
                self._folder.mkdir(parents=True, exist_ok=True)
            else:
                sink.filesystem.create_dir(sink.folder, recursive=True)
        except OSError as error:
            raise unusable(sink.folder, error) from error
        head = self._read() if local else None
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
            if local:
                replace_file(self._folder / MANIFEST, _line(self._head))
        except OSError as error:
            raise unusable(sink.folder, error) from error

    def _read(self) -> dict[str, Any] | None:
        """Take in what is there; a line that a kill has torn counts for nothing."""
        try:
            lines = (self._folder / MANIFEST).read_text(errors="replace").splitlines()
        except OSError:
            return None
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
        for name in os.listdir(self._folder):
            if name.startswith(".part-") and name.endswith(".tmp"):
                self._delete(name)
        with open(self._folder / MANIFEST, "ab") as file:
            file.write(b"\n")  # ends a line that was torn; empty ones are skipped

    def _present(self) -> list[str]:
        """Return the names of files that a reader would take for data."""
        system = self._sink.filesystem
        if system is None:
            names = [entry.name for entry in os.scandir(self._folder) if entry.is_file()]
        else:
            import pyarrow.fs as fs

            infos = system.get_file_info(fs.FileSelector(self._sink.folder))
            names = [info.base_name for info in infos if info.type == fs.FileType.File]
        return sorted(name for name in names if not name.startswith(("_", ".")))

    def _delete(self, name: str) -> None:
        if self._sink.filesystem is None:
            (self._folder / name).unlink(missing_ok=True)
        else:
            self._sink.filesystem.delete_file(f"{self._sink.folder}/{name}")

    def missing(self, done: Sequence[int], records: dict[int, TaskRecord]) -> list[int]:
        """Return the tasks that count as done, but whose file is gone."""
        if self._sink.filesystem is not None:
            return []
        return [
            index
            for index in done
            if index not in records
            or ((written := records[index].written) is not None and not (self._folder / written[0]).is_file())
        ]

    def note(self, record: TaskRecord) -> None:
        """Add the file of a task; one without rows has none."""
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
        data = b"".join(map(_line, [self._head, *(self._lines[index] for index in sorted(self._lines))]))
        if self._sink.filesystem is None:
            replace_file(self._folder / MANIFEST, data)
        else:
            with self._sink.filesystem.open_output_stream(f"{self._sink.folder}/{MANIFEST}") as file:
                file.write(data)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def open_plan(tracking: Path | None, plan: Plan, mode: str) -> str:
    """Return the id of an execution: a new one, or that of the execution in the tracking folder.

    Raises
    ------
    LayoutMismatchError
        Another plan was run there.
    """
    if tracking is None:
        return secrets.token_hex(8)
    path = tracking / "plan.json"
    here = _plain(plan, mode)
    try:
        there = json.loads(path.read_text())
    except FileNotFoundError:
        there = None
    except ValueError:
        raise ConfigurationError(f"{str(path)!r} is damaged: delete the folder to begin anew") from None
    if there is not None:
        for name, value in here.items():
            if name != "functions" and there.get(name) != value:
                raise LayoutMismatchError(
                    f"{str(tracking)!r} keeps another dataset's run: its {name} is {_short(there.get(name))} "
                    f"and not {_short(value)}. Use the dataset that was run there, or another "
                    "tracking_path, or delete the folder"
                )
        if there["functions"] != here["functions"]:
            warnings.warn(
                f"the functions of the dataset have changed since {str(tracking)!r} was begun: tasks that were done "
                "keep their results",
                UserWarning,
                stacklevel=5,
            )
            replace_file(path, json.dumps({**there, **here}, indent=1).encode())
        return str(there["id"])
    made = {"workspan": "dataset", "schema": SCHEMA, "id": secrets.token_hex(8), **here}
    replace_file(path, json.dumps(made, indent=1).encode())
    return str(made["id"])


def _plain(plan: Plan, mode: str) -> dict[str, Any]:
    digest = sha256()
    for piece in plan.source.pieces:
        digest.update(repr(_identity(piece)).encode())
    functions = []
    for operator in plan.operators:
        for op in operator.ops:
            if op.function is not None:
                functions.append(function_fingerprint(op.function.function) or op.name)
    return {
        "operators": [operator.name for operator in plan.operators],
        "source": f"{len(plan.source.pieces)} pieces {digest.hexdigest()[:16]}",
        "mode": mode,
        "functions": functions,
    }


def _identity(piece: Piece) -> tuple[Any, ...]:
    size = piece.size_bytes if isinstance(piece, FilePiece) else None
    return piece.label, piece.rows, size


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
