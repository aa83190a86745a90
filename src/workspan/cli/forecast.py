"""``workspan forecast``: what a repeat of a tracked run, or the rest of it, will take; without the user's script."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workspan.cli import exits
from workspan.cli.terminal import complain, say
from workspan.errors import ConfigurationError, WorkspanError
from workspan.report.places import RUNS, nothing_at, task_folders

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.grid.layout import Layout
    from workspan.report.history import RunSummary
    from workspan.store.reader import StoreReader

NODE = "zarr.json"


@dataclass(frozen=True)
class _Tracked:
    """A task as its store, and the summary of its newest run, describe it."""

    task_id: str
    path: Path
    reader: StoreReader
    layout: Layout
    newest: RunSummary | None
    max_workers: int


def run(path: Path, *, workers: int | None, fresh: bool, as_json: bool) -> int:
    """Forecast what is tracked at *path*, and print it.

    Raises
    ------
    ConfigurationError
        Nothing is tracked there.
    """
    from workspan.run.forecasts import Planned, forecast_planned
    from workspan.schedule.resume import DONE
    from workspan.schedule.spec import PipelineSpec, TaskSpec
    from workspan.views.forecast import render_forecast
    from workspan.views.terminal import columns_of, encoding_of

    found = _find(path)
    done = {entry.task_id: entry.reader.done_of(entry.layout) for entry in found}
    repeat = fresh or all(flags.all() for flags in done.values())
    names = {entry.task_id for entry in found}
    spec = PipelineSpec.ordered(
        [
            TaskSpec(
                task_id=entry.task_id,
                layout=entry.layout,
                max_workers=entry.max_workers,
                requires={} if entry.newest is None else entry.newest.requires,
            )
            for entry in found
        ],
        [
            (up, entry.task_id)
            for entry in found
            for up in (() if entry.newest is None else entry.newest.upstream)
            if up in names
        ],
    )
    by_id = {entry.task_id: entry for entry in found}
    planned = []
    for rules in spec.tasks:
        past, sizes = _past(by_id[rules.task_id])
        flags = None if repeat else (done[rules.task_id] != 0).astype("u1") * DONE
        planned.append(Planned(past, sizes, flags))
    forecast = forecast_planned(spec, planned, workers)
    if as_json:
        say(json.dumps({"repeat": repeat, **forecast.to_dict()}, allow_nan=False))
        return exits.DONE
    if repeat and not fresh:
        say("All blocks are done; this is what it takes to do them again.")
    elif not fresh:
        say("What is left of it:")
    say(render_forecast(forecast, encoding=encoding_of(sys.stdout), columns=columns_of(sys.stdout)))
    return exits.DONE


def _find(path: Path) -> list[_Tracked]:
    """Return the tracked tasks at *path*: a store, its ``runs.jsonl``, or a folder of stores."""
    folders = [folder for folder in task_folders(path) if (folder / NODE).is_file()]
    found: list[_Tracked] = []
    problems: list[str] = []
    for folder in folders:
        try:
            entry = _tracked(folder)
        except WorkspanError as error:
            problems.append(f"{folder} is left out: {error}")
            continue
        if entry is None:
            problems.append(f"{folder} is left out: it does not say which blocks it is of")
        elif any(entry.task_id == other.task_id for other in found):
            problems.append(f"{folder} is left out: there is another store of task {entry.task_id!r}")
        else:
            found.append(entry)
    for problem in problems:
        complain(f"workspan: {problem}")
    if not found:
        if problems:
            raise ConfigurationError(f"{str(path)!r} holds no tracking store that can be used")
        raise ConfigurationError(nothing_at(path, "tracking store"))
    return found


def _tracked(folder: Path) -> _Tracked | None:
    from workspan.report.unrecorded import stored_layout, unrecorded
    from workspan.run.history import read_summaries
    from workspan.store.hash import layout_hash
    from workspan.store.reader import StoreReader
    from workspan.store.runs import last_run

    reader = StoreReader(folder)
    ours = reader.attributes.get("workspan")
    task_id = ours.get("task_id") if isinstance(ours, dict) else None
    layout = stored_layout(reader, read_write_conflict=False)
    if not isinstance(task_id, str) or layout is None:
        return None
    here = str(folder.resolve())
    newest = None
    for summary in read_summaries(task_id)[0]:
        better = newest is None or summary.tracking_path == here or newest.tracking_path != here
        if better and layout_hash(summary.layout.layout()) == reader.layout_hash:
            newest = summary
    line: dict[str, Any] = last_run(folder / RUNS) or {}
    workers = line.get("workers")
    count = workers.get("count") if isinstance(workers, dict) else None
    if newest is None and not line and (left := unrecorded(folder, after=0.0)) is not None:
        count = left.workers.count
    if newest is not None:
        layout = newest.layout.layout()
    elif layout.read_shape != layout.write_shape:
        # The store does not say whether neighbours wait for each other; it is the default that they do.
        layout = replace(layout, read_write_conflict=True)
    most = newest.max_workers if newest is not None else max(1, count if isinstance(count, int) else 1)
    return _Tracked(task_id, folder, reader, layout, newest, most)


def _past(entry: _Tracked) -> tuple[Any, Any]:
    """Return what is known of a task, and the size of each of its blocks."""
    from workspan.run.past import learn
    from workspan.run.sizes import all_sizes

    mark = None if entry.newest is None else entry.newest.n_ref
    function = None if entry.newest is None else entry.newest.function
    past = learn(entry.task_id, entry.layout, entry.path, function=function, n_ref_mark=mark)
    sizes = all_sizes(entry.layout, None, entry.task_id)
    if entry.newest is None:
        if entry.layout.num_levels > 1:
            note = f"{entry.task_id}: neighbouring blocks are taken to wait for each other, as is the default"
            past = replace(past, notes=(*past.notes, note))
    elif mark is not None:
        import numpy as np

        rows = entry.newest.later or entry.newest.first
        usual = sum(row.size * row.blocks for row in rows) / max(1, sum(row.blocks for row in rows))
        sizes = np.full(entry.layout.counts, usual or 1.0)
        note = f"{entry.task_id}: its n_ref is in the script, so all blocks are taken to have the usual size"
        past = replace(past, notes=(*past.notes, note))
    return past, sizes
