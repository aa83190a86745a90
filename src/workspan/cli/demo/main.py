"""``workspan demo``, put together: three acts in one folder, and a page at the end."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from workspan.cli import Terminated, exits
from workspan.cli.demo import act_brain
from workspan.cli.demo import folder as folders
from workspan.cli.demo.stage import ACTS, Options, Stage
from workspan.cli.terminal import complain
from workspan.views.format import duration, titled

if TYPE_CHECKING:
    from workspan.cli.demo.folder import Folder
    from workspan.cli.demo.nifti import Volume

__all__ = ["Options", "run"]


def run(options: Options) -> int:
    """Run the demo, or what is left of it.

    Returns
    -------
    int
        0 if every block is done, else 1.
    """
    began = perf_counter()
    options.check()
    with folders.opened(options.out) as folder:
        stage = Stage(folder, options)
        with stage.preparing():
            volume = _prepare(folder, options)
        try:
            return _play_all(stage, volume, began)
        except (KeyboardInterrupt, SystemExit, Terminated):
            complain("workspan: interrupted; the same command goes on with what is missing")
            raise


def _play_all(stage: Stage, volume: Volume | None, began: float) -> int:
    spent = []
    for act in ACTS:
        if act not in stage.options.acts:
            continue
        if act == "forecast" and stage.options.engine == "serial":
            stage.title(act)
            stage.tell("  Left out: it is of worker processes, and --engine serial has none.")
            continue
        at = perf_counter()
        if not _play(act, stage, volume):
            return exits.INCOMPLETE
        spent.append(f"{act} {duration(perf_counter() - at)}")
    _end(stage, spent, began)
    return exits.DONE


def _prepare(folder: Folder, options: Options) -> Volume | None:
    """Refuse what may be refused before the first file is written or deleted; return the brain if it was loaded."""
    state = None
    if options.fresh:
        folder.made_here()
    else:
        state = folder.state()
        if state is not None and state.deleting:
            folder.clear()  # somebody asked for it, and it was interrupted
            state = None
    if {"brain", "forecast"} & set(options.acts) and not options.fresh:
        act_brain.check(folder, options)
    if options.acts == ("forecast",):
        from workspan.cli.demo import act_forecast

        act_forecast.check(folder, options)
    volume = None
    if "brain" in options.acts and (state is None or state.brain is None or state.brain.input_bytes is None):
        volume = act_brain.load()
    if "flights" in options.acts and (state is None or state.flights is None or not state.flights.bytes):
        from workspan.cli.demo.flights import find_flights

        find_flights()
    if options.fresh:
        folder.clear()
    return volume


def _play(act: str, stage: Stage, volume: Volume | None) -> bool:
    if act == "brain":
        return act_brain.play(stage, volume)
    if act == "flights":
        from workspan.cli.demo import act_flights

        return act_flights.play(stage)
    from workspan.cli.demo import act_forecast

    return act_forecast.play(stage)


def _end(stage: Stage, spent: list[str], began: float) -> None:
    """Write the page, and say where everything is."""
    from workspan.cli.demo.evaluate import shown
    from workspan.cli.demo.page import write

    folder = stage.folder
    at = perf_counter()
    with stage.preparing():
        write(folder)
    spent.append(f"report {duration(perf_counter() - at)}")
    places = [
        (folder.page, "the report: open it in a browser"),
        (folder.picture, "the brain, and beside it its classes"),
        (folder.store, "the brain as OME-Zarr 0.5"),
        (folder.late, "the flights as Parquet"),
        (folder.tracking, "what is done, and what each block cost"),
        (folder.logs, "what the workers said"),
        (folder.second.path, "the second run, with the same names"),
    ]
    stage.tell("\n" + "\n".join(titled("Where it is", [])))
    stage.tell_table([[shown(path), what] for path, what in places if path.exists()])
    stage.tell("")
    stage.tell(f"  workspan report {shown(folder.path)}    shows every figure of the first run")
    stage.tell(f"  {duration(perf_counter() - began)} in all: {', '.join(spent)}")
