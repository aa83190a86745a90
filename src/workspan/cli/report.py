"""``workspan report``: the resource panel of a run that is over, a page about it, and its blocks as rows."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspan.cli import exits
from workspan.cli.terminal import remark, say
from workspan.errors import ConfigurationError, InvalidMetadataError
from workspan.report.places import RUNS, nothing_at, task_folders
from workspan.report.unrecorded import is_unrecorded, unrecorded
from workspan.report.whole import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.report.page import Extra
    from workspan.report.page_blocks import BlockSource
    from workspan.report.task import RunReport, TaskReport

STDOUT = "-"

_UNRECORDED = {
    "running": "It goes on. This is what its tracking store holds by now.",
    "interrupted": "It left no report, as a run that is killed does. This is what its tracking store holds.",
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """What to write beside the panel. ``-`` is standard output, of one of them."""

    html: Path | None = None
    json: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None

    def check(self) -> None:
        """Refuse what cannot work, before anything is read.

        Raises
        ------
        ConfigurationError
            Two outputs for one place, or a kind that is no text to standard output.
        """
        named = {name: str(path) for name in self.__slots__ if (path := getattr(self, name)) is not None}
        places = list(named.values())
        for name, place in named.items():
            if place.startswith("--"):
                raise ConfigurationError(f"--{name} {place}: the name of a file is missing")
            if places.count(place) > 1:
                raise ConfigurationError(f"--{name} {place}: two outputs cannot go to the same place")
            if place == STDOUT and name in ("html", "parquet"):
                raise ConfigurationError(f"--{name} - is not possible: name a file")
            if place != STDOUT and Path(place).is_dir():
                raise ConfigurationError(f"--{name} {place}: that is a folder, name a file in it")
            if not Path(place).parent.is_dir():
                raise ConfigurationError(f"--{name} {place}: there is no folder {str(Path(place).parent)!r}")

    @property
    def has_stdout(self) -> bool:
        """Whether standard output is taken."""
        return any(str(getattr(self, name)) == STDOUT for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Found:
    """The newest run at a path that had something to do."""

    report: RunReport
    files: dict[str, Path]
    """Task id -> its ``runs.jsonl``."""
    idle: bool
    """Newer runs found every block done."""
    other: tuple[str, ...]
    """Tasks that were not part of that run."""


def run(where: str, outputs: Outputs | None = None) -> int:
    """Print the panel of a run, the newest one that had something to do by default, and write what is asked for.

    Raises
    ------
    ConfigurationError
        No run is recorded there, or an output cannot be.
    NoStoreError
        Rows are asked for, and no task has a store.
    """
    outputs = outputs or Outputs()
    outputs.check()
    found = find_run(where)
    if not outputs.has_stdout:
        _print(found)
    written = []
    for name, write in _WRITERS.items():
        to = getattr(outputs, name)
        if to is not None:
            told = _guarded(name, to, write, found)
            if str(to) != STDOUT:
                written.append(f"{told} {to}")
    if written:
        say("")
        for line in written:
            say(line)
    return exits.DONE


def _print(found: Found) -> None:
    from datetime import datetime

    from workspan.views.format import one_line
    from workspan.views.panel import render_panel
    from workspan.views.summary import render_recorded
    from workspan.views.terminal import columns_of, encoding_of

    report, encoding, columns = found.report, encoding_of(sys.stdout), columns_of(sys.stdout)
    began = datetime.fromtimestamp(report.started_at).astimezone()
    say(f"run {one_line(report.run_id)} of {began:%Y-%m-%d %H:%M:%S}: {one_line(report.outcome)}")
    if is_unrecorded(report):
        remark(_UNRECORDED[report.outcome])
    say("\n" + render_recorded(report, encoding=encoding, columns=columns))
    if panel := render_panel(report, encoding=encoding, columns=columns):
        say("\n" + panel)
    if found.idle:
        say()
        remark("The newest run found every block done before; this is the last one that had something to do.")
    if found.other:
        say()
        remark(f"Not part of that run: {', '.join(map(one_line, found.other))}")


# -- finding ---------------------------------------------------------------------------------------------------------


def find_run(where: str) -> Found:
    """Find the newest run that had something to do, or the one that is named.

    Parameters
    ----------
    where
        A ``runs.jsonl``, its folder, or a folder of such folders; after ``#`` a run, as for
        :func:`workspan.report.recorded.find`.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    from workspan.report.recorded import find, split
    from workspan.report.task import RunReport

    path, selector = split(where)
    if selector:
        place = find(where)
        found = [(task.folder / RUNS, run) for task in place.tasks if (run := place.run(task)) is not None]
        idle, others = False, [task.task_id for task in place.tasks]
    else:
        found, idle = _last_reports(Path(path))
        others = [report.task_id for _, report in found]
    newest = max((report for _, report in found), key=lambda report: report.started_at)
    here = sorted((pair for pair in found if pair[1].run_id == newest.run_id), key=lambda pair: _order(pair[1]))
    tasks = {report.task_id: _at(report, file) for file, report in here}
    whole = RunReport(
        run_id=newest.run_id,
        started_at=newest.started_at,
        ended_at=newest.ended_at,
        wall_seconds=newest.wall_seconds,
        outcome=_worst(list(tasks.values())),
        tasks=tasks,
        # Beside the work of some of its tasks the span of the whole run would mislead.
        span_seconds=newest.place.span_seconds if newest.place and newest.place.tasks == len(tasks) else None,
    )
    other = tuple(dict.fromkeys(task_id for task_id in others if task_id not in tasks))
    return Found(whole, {report.task_id: file for file, report in here}, idle, other)


def _at(report: TaskReport, file: Path) -> TaskReport:
    """Return the report of a task whose store is where its history is: the folder may have been moved since."""
    moved = file.parent.resolve()
    return replace(report, tracking_path=str(moved)) if (moved / "zarr.json").is_file() else report


def _worst(tasks: list[TaskReport]) -> str:
    order = ("error", "running", "interrupted", "abandoned", "incomplete", "completed")
    return min((task.outcome for task in tasks), key=lambda o: order.index(o) if o in order else -1)


def _order(report: TaskReport) -> tuple[float, float, str]:
    """Sort key of a task: its place in the run; in lines that do not tell it, the order in which workers came to it."""
    place = math.inf if report.place is None else report.place.position
    return place, min((record.id for record in report.workers.records), default=math.inf), report.task_id


def _last_reports(path: Path) -> tuple[list[tuple[Path, TaskReport]], bool]:
    """Find the last report worth showing of each task, with its file, and whether newer ones had nothing to do.

    Parameters
    ----------
    path
        A ``runs.jsonl``, its folder, or a folder of such folders.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    from workspan.store.runs import iter_runs

    shown: list[tuple[Path, TaskReport]] = []
    is_idle: list[tuple[bool, bool]] = []
    damaged = 0
    for folder in task_folders(path):
        file = path if path.is_file() else folder / RUNS
        last = busy = None
        for line in iter_runs(file):
            if line is None:
                damaged += 1
            else:
                last = line
                busy = busy if _was_idle(line) else line
        chosen = busy or last
        report = None if chosen is None else _read(chosen, file)
        left = None if path.is_file() else unrecorded(folder, after=0.0 if report is None else report.ended_at)
        if left is not None:
            shown.append((file, left))
            is_idle.append((False, False))
        elif report is not None:
            shown.append((file, report))
            is_idle.append((_was_idle(last or {}), busy is None))
    if not shown:
        raise ConfigurationError(nothing_at(path, "recorded run" if not damaged else "run that can be read"))
    idle = all(newest for newest, _ in is_idle) and not all(only for _, only in is_idle)
    return shown, idle


def _read(line: dict[str, Any], file: Path) -> TaskReport:
    from workspan.report.task import TaskReport

    try:
        return TaskReport.from_json(line)
    except InvalidMetadataError as error:
        raise InvalidMetadataError(f"{file}: {error}") from None


def _was_idle(line: dict[str, Any]) -> bool:
    """Whether a run skipped every block."""
    blocks = line.get("blocks")
    return isinstance(blocks, dict) and blocks.get("count") == blocks.get("skipped") == blocks.get("total")


# -- writing ---------------------------------------------------------------------------------------------------------


def _guarded(name: str, to: Path, write: Callable[[Found, Path], str], found: Found) -> str:
    """Write one output; what the file system refuses is said with the option that asked for it."""
    try:
        with exits.writing(f"--{name}", to):
            return write(found, to)
    except BrokenPipeError:  # the reader has seen enough
        return ""


def _write_html(found: Found, to: Path) -> str:
    from workspan.views.format import size
    from workspan.views.html.page import write_page

    return f"page, {size(write_page(found.report, to, extras=find_extras(found)))}:"


def find_extras(found: Found) -> dict[str, Extra]:
    """Return what is known of each task beside its report."""
    from workspan.cli.report_rows import dataset_extra
    from workspan.report.page import Extra

    out = {}
    for task_id, file in found.files.items():
        known = dataset_extra(found.report.tasks[task_id], file.parent)
        out[task_id] = known or Extra(runs=file)
    return out


def _write_json(found: Found, to: Path) -> str:
    text = json.dumps(found.report.to_json(), allow_nan=False, indent=1) + "\n"
    if str(to) == STDOUT:
        sys.stdout.write(text)
    else:
        with whole_file(to) as file:
            file.write_text(text, "utf-8")
    return "report as JSON:"


def _write_csv(found: Found, to: Path) -> str:
    from workspan.report.export import write_csv

    reports, sources = list(found.report.tasks.values()), _sources(found)
    if str(to) == STDOUT:
        sys.stdout.flush()
        rows = write_csv(reports, sys.stdout.buffer, sources)
    else:
        with whole_file(to) as part, open(part, "wb") as file:
            rows = write_csv(reports, file, sources)
    return f"{rows:,} blocks as CSV:"


def _write_parquet(found: Found, to: Path) -> str:
    from workspan.report.export import write_parquet

    return f"{write_parquet(list(found.report.tasks.values()), to, _sources(found)):,} blocks as Parquet:"


def _sources(found: Found) -> dict[str, BlockSource]:
    return {task_id: extra.source for task_id, extra in find_extras(found).items() if extra.source is not None}


_WRITERS: dict[str, Callable[[Found, Path], str]] = {
    "html": _write_html,
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
