"""Act 3: what a second run of both will take, told from the first one, and then what it took.

The second run goes into folders of its own, so that it really runs. A run in two pieces cannot be compared with a
forecast: one that was interrupted begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import workspan as ws
from workspan.cli.demo import act_brain, act_flights, flights
from workspan.cli.demo.folder import Outcome, State
from workspan.cli.demo.pipeline import build
from workspan.errors import ConfigurationError
from workspan.views.format import MISSING, count, long_duration

if TYPE_CHECKING:
    from workspan.cli.demo.folder import Folder
    from workspan.cli.demo.stage import Options, Stage
    from workspan.report.forecast import Forecast
    from workspan.report.task import RunReport


def first_runs(folder: Folder) -> list[str]:
    """Return the acts that were played to their end."""
    state = folder.state() or State(0)
    done = {
        "brain": state.brain is not None and state.brain.result is not None,
        "flights": state.flights is not None and folder.late.is_dir(),
    }
    return [name for name, is_done in done.items() if is_done]


def check(folder: Folder, options: Options) -> None:
    """Refuse to forecast a second run without a first one.

    Raises
    ------
    ConfigurationError
        There was none, or it is to be deleted.
    """
    if options.acts == ("forecast",) and (options.fresh or not first_runs(folder)):
        raise ConfigurationError(
            f"--act forecast tells a second run from the first one, and {str(folder.path)!r} has none: "
            "leave --act out, or run the acts brain and flights before"
        )


def play(stage: Stage) -> bool:
    """Forecast the second runs that are missing, run them, and compare; return whether every block is done."""
    folder = stage.folder
    state, parts = folder.state() or State(0), first_runs(folder)
    missing = [name for name in parts if name not in state.second]
    stage.title("forecast")
    stage.tell("  How long will a second run take? Told from the runs before it, then run, in")
    stage.tell("  folders of its own.")
    if missing:
        forecasts = {name: _forecast(stage, name) for name in missing}
        stage.tell("")
        for name, forecast in forecasts.items():
            stage.tell(f"  {name:<8} {count(forecast.blocks, 'block'):>10}: {_told(forecast)}")
            stage.tell(f"  {'':<8} {'':>10}  from {forecast.basis}")
        for name, forecast in forecasts.items():
            report = _run(stage, name)
            if not report:
                return False
            made = Outcome(
                forecast.wall_seconds, forecast.wall_low, forecast.wall_high, forecast.basis, report.wall_seconds
            )
            folder.change(second={**(folder.state() or state).second, name: made})
    else:
        stage.tell("  Nothing to do: it was run before. --fresh starts anew.")
    stage.tell("")
    _tell_outcomes(stage, (folder.state() or state).second)
    return True


def _forecast(stage: Stage, name: str) -> Forecast:
    """Forecast a run of everything, as if nothing were done."""
    folder, workers = stage.folder, stage.options.workers
    if name == "flights":
        return flights.made_up(folder.csv).forecast(writes="parquet", max_workers=workers)
    marker = folder.marker()
    assert marker is not None  # the first run is there
    return ws.forecast(build(folder.brain(marker), folder.tracking, workers=workers), fresh=True)


def _run(stage: Stage, name: str) -> RunReport | None:
    """Run it again, in a folder of its own."""
    folder = stage.folder
    with stage.preparing():
        marker = folder.marker() if name == "brain" else None
        second = folder.create_second(marker)
    if marker is not None:
        return act_brain.run_tasks(stage, second, marker)
    return act_flights.run_dataset(stage, folder.csv, second).report()


def _told(forecast: Forecast) -> str:
    if forecast.wall_seconds is None:
        return "not known"
    low, high = long_duration(forecast.wall_low), long_duration(forecast.wall_high)
    return f"about {long_duration(forecast.wall_seconds)}, {100 * forecast.level:.0f} % sure of {low} to {high}"


def _tell_outcomes(stage: Stage, outcomes: dict[str, Outcome]) -> None:
    rows = [["second run", "forecast", "range", "took", "forecast was", "in the range"]]
    for name, outcome in outcomes.items():
        rows.append(
            [
                name,
                _exact(outcome.wall),
                MISSING if outcome.low is None else f"{_exact(outcome.low)} - {_exact(outcome.high)}",
                _exact(outcome.took),
                _error(outcome.error),
                {True: "yes", False: "no", None: MISSING}[outcome.within],
            ]
        )
    stage.tell_table(rows, right=(1, 2, 3, 4))


def _exact(seconds: float | None) -> str:
    """Return a time with one figure more than usual: it stands beside the end of a range that it may just have missed.

    Examples
    --------
    >>> _exact(3.312), _exact(75.0), _exact(None)
    ('3.31 s', '1 min 15 s', '-')
    """
    return f"{seconds:.2f} s" if seconds is not None and seconds < 59.95 else long_duration(seconds)


def _error(error: float | None) -> str:
    """Say how far off a forecast was.

    Examples
    --------
    >>> _error(0.123), _error(-0.05), _error(0.001), _error(None)
    ('12 % too long', '5 % too short', '0 % off', '-')
    """
    if error is None:
        return MISSING
    percent = round(100 * error)
    return f"{abs(percent)} % {'too long' if percent > 0 else 'too short' if percent < 0 else 'off'}"
