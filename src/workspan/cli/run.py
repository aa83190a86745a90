"""``workspan run``: run what a script declares, with other workers, another engine or another folder."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.cli import exits
from workspan.cli.script import Target, call, find, is_runnable, loaded, split, what_instead
from workspan.cli.terminal import complain, say
from workspan.errors import ConfigurationError
from workspan.run.orders import Orders, given

if TYPE_CHECKING:
    from types import ModuleType

    from workspan.run.session import Session
    from workspan.schedule.state import TaskState

__all__ = ["Options", "run"]


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line; ``None``: nothing."""

    script: str
    arguments: tuple[str, ...]
    workers: int | None
    engine: str | None
    tracking: Path | None
    settings: tuple[str, ...]
    forecast_only: bool
    progress: bool
    quiet: bool


class _Planned(BaseException):
    """What a script was about to run; no ``Exception``, so that the script does not take it for an error."""

    def __init__(self, what: Any) -> None:
        super().__init__(what)
        self.what = what


def run(options: Options) -> int:
    """Run what is asked for.

    Returns
    -------
    int
        0 if every block is done, else 1; what a script that ends itself (``sys.exit``) says.

    Raises
    ------
    ConfigurationError
        Something is wrong with the script, the name or the options; nothing was run.
    """
    target = split(options.script)
    orders = _orders(options)
    with given(orders):
        try:
            return _run(options, target, orders)
        except _Planned as planned:
            return _forecast(planned.what)
        except SystemExit as end:
            if isinstance(end.code, str):
                complain(end.code)
                return exits.INCOMPLETE
            raise


def _orders(options: Options) -> Orders:
    """Return what is asked for on the command line, else by the settings; refuse what cannot be."""
    for text in options.settings:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigurationError(f"--set {text!r} has no '=': use --set name=value")
        config.configure(**{name.strip(): value.strip()})
    workers = config.get("run.workers") if options.workers is None else options.workers
    if workers is not None and workers < 1:
        raise ConfigurationError(f"--workers {workers} is too small: use 1 or more")
    engine = options.engine or config.get("run.engine")
    if engine is not None:
        from workspan.run.runner import choose_engine

        choose_engine(engine, True)  # a name that is not known is refused before the script does anything
    tracking = None if options.tracking is None else options.tracking.absolute()
    if tracking is not None and tracking.exists() and not tracking.is_dir():
        raise ConfigurationError(f"--tracking {str(options.tracking)!r} is not a folder")
    return Orders(
        engine=engine,
        max_workers=workers,
        tracking=tracking,
        shows_progress=options.progress and not options.quiet,
        shows_summary=not options.quiet,
        command=_command(options),
    )


def _command(options: Options) -> str:
    """Return what to type to run the same again."""
    words = ["workspan", "run", options.script]
    given = {"--workers": options.workers, "--engine": options.engine, "--tracking": options.tracking}
    words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
    words += [word for setting in options.settings for word in ("--set", setting)]
    return shlex.join([*words, *(("--", *options.arguments) if options.arguments else ())])


def _run(options: Options, target: Target, orders: Orders) -> int:
    def has_run() -> bool:
        return bool(orders.sessions or orders.datasets)

    def plan(what: Any) -> None:
        raise _Planned(what)

    def refuse(what: Any) -> None:
        raise ConfigurationError(
            "this runs blocks already while the script is loaded: put it under if __name__ == '__main__', or leave out "
            f"':{target.name}' to run the script as it is"
        )

    nothing, orders.before = orders.before, refuse if target.name else plan if options.forecast_only else orders.before
    with loaded(target.path, options.arguments, has_run=has_run) as module:
        orders.before = plan if options.forecast_only else nothing
        if not has_run():
            _run_found(module, target, orders, quiet=options.quiet)
        return _ended(orders, quiet=options.quiet)


def _run_found(module: ModuleType, target: Target, orders: Orders, *, quiet: bool) -> None:
    """Run what the target names; what a function returns if that is one, unless the function has run it."""
    from workspan.dataset.run import DatasetRun
    from workspan.run.runner import run_blockwise

    found = find(module, target)
    value = found.value
    if not is_runnable(value):
        value = call(value, target.path, has_run=lambda: bool(orders.sessions or orders.datasets))
        if isinstance(value, DatasetRun):
            if not quiet:
                say(value.stats())
            return
        if not is_runnable(value):
            if orders.sessions or orders.datasets:
                return
            returned = what_instead(value, found.name) if value is not None else "returned None: return what it makes"
            text = f"what {found.name!r} returned {returned}" if value is not None else f"{found.name!r} {returned}"
            raise ConfigurationError(f"{target.path}: {text}")
    run_blockwise(value)


def _ended(orders: Orders, *, quiet: bool) -> int:
    """Say what is missing, if nothing else did, and return the exit code."""
    missing = [session for session in orders.sessions if session.report is None or not session.report]
    if not missing:
        return exits.DONE
    if quiet:
        complain("workspan: the run is not complete: " + "; ".join(_missing(session) for session in missing))
    return exits.INCOMPLETE


def _missing(session: Session) -> str:
    states = session.states.items()
    return "; ".join(f"task {n!r}: {_counts(s)}" for n, s in states if s.completed_count < s.total_block_count)


def _counts(state: TaskState) -> str:
    counts = {
        "failed": state.failed_count,
        "orphaned": state.orphaned_count,
        "done": state.completed_count,
    }
    told = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number or name == "done")
    return f"{told} of {state.total_block_count:,} blocks"


def _forecast(what: Any) -> int:
    """Print what to expect of the pipeline *what*, which has been changed as was asked."""
    from workspan.run.pipeline import Pipeline
    from workspan.views.forecast import render_forecast
    from workspan.views.terminal import columns_of, encoding_of

    if not isinstance(what, Pipeline):
        raise ConfigurationError("--forecast-only: a dataset is not forecast, only tasks and pipelines are")
    say(render_forecast(what.forecast(), encoding=encoding_of(sys.stdout), columns=columns_of(sys.stdout)))
    return exits.DONE
