"""Act 2: the flights as a dataset, and what every operator of it cost."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from workspan.cli.demo import flights
from workspan.cli.demo.folder import FLIGHTS
from workspan.cli.demo.stage import FRESH
from workspan.errors import InvalidMetadataError, LayoutMismatchError, TrackingError
from workspan.views.format import MISSING, count, duration, one_line, share, shorten

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.cli.demo.folder import Folder
    from workspan.cli.demo.stage import Stage
    from workspan.dataset.run import DatasetRun
    from workspan.dataset.stats import DatasetSummary

LONGEST_NAME = 40
"""Characters of an operator's name that are shown."""


def play(stage: Stage) -> bool:
    """Run the dataset, or what is left of it; return True, since what fails for good raises."""
    began = perf_counter()
    folder = stage.folder
    with stage.preparing():
        state = folder.state()
        written = None if state is None else state.flights
        is_there = written is not None and written.bytes > 0
        if written is not None and is_there:
            folder.check_flights(written)
        else:
            written = folder.create_flights(flights.unpack)
    ready = perf_counter()
    stage.title("flights")
    stage.tell("  All flights that left New York in 2013, as a dataset: cleaned, enriched with")
    stage.tell("  pandas and NumPy, filtered and written. Who left late made up time in the air?")
    stage.tell("")
    source = "flights/csv is there from before"
    if not is_there:
        source = f"flights/csv: {written.rows:,} flights, a CSV file a month"
    stage.tell(f"  {source}, {ready - began:.1f} s")
    made = run_dataset(stage, folder.csv, folder)
    _tell_cost(stage, made.stats_summary())
    late, best = flights.airlines(folder.late)
    stage.tell("")
    stage.tell(f"  {late:,} of {written.rows:,} flights left over {flights.LATE} min late and made up time.")
    rows = [["airline", "such flights", "made up, median"]]
    rows += [[line.name, f"{line.flights:,}", f"{line.minutes:.0f} min"] for line in best]
    stage.tell_table(rows, right=(1, 2))
    return True


def run_dataset(stage: Stage, csv: Path, folder: Folder) -> DatasetRun:
    """Run what is missing, from *csv* into *folder*.

    Raises
    ------
    InvalidMetadataError
        Somebody removed results of tasks that are done.
    """
    try:
        return _run_dataset(stage, csv, folder)
    except LayoutMismatchError:
        # Files are known by their whole names, so in a folder that was moved nothing of it is done.
        stage.tell("  The tasks that are done are of another dataset, or of another place: begun anew.")
        folder.forget_flights()
        return _run_dataset(stage, csv, folder)


def _run_dataset(stage: Stage, csv: Path, folder: Folder) -> DatasetRun:
    options = stage.options
    with stage.running(folder.logs / FLIGHTS):
        try:
            return flights.made_up(csv).write_parquet(
                folder.late,
                existing="overwrite",
                engine=options.engine,
                max_workers=options.workers,
                tracking_path=folder.tracking / FLIGHTS,
                resource_tracking=True,
                progress=stage.watch(FLIGHTS),
            )
        except TrackingError as error:
            if type(error) is not TrackingError:
                raise
            raise InvalidMetadataError(f"flights in {str(folder.late)!r} are missing: {FRESH}") from error


def _tell_cost(stage: Stage, summary: DatasetSummary) -> None:
    """Print a line an operator, and how the rows went through."""
    (operator,) = summary.operators
    if not operator.tasks:
        stage.tell(f"  Nothing to do: all {operator.skipped:,} tasks were done before. --fresh starts anew.")
        return
    if operator.skipped:
        done = operator.skipped
        stage.tell(f"  {done:,} of {done + operator.tasks:,} tasks were done before and were skipped.")
    total = sum(entry.total_seconds or 0.0 for entry in operator.stages)
    rows = [["operator", "rows out", "self time", "share"]]
    for entry in operator.stages:
        part = None if entry.total_seconds is None or not total else entry.total_seconds / total
        rows.append(
            [
                shorten(one_line(entry.name), LONGEST_NAME),
                f"{entry.rows_out:,}",
                duration(entry.total_seconds),
                share(part),
            ]
        )
    stage.tell("")
    stage.tell_table(rows, right=(1, 2, 3))
    stage.tell("")
    took = MISSING if summary.driver_seconds is None else duration(summary.driver_seconds)
    stage.tell(f"  {count(operator.tasks, 'task')} in {took}, {duration(summary.wall_seconds)} of work.")
