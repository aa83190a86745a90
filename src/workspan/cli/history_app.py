"""The commands below ``workspan history`` and their options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

__all__ = ["build"]

Folder = Annotated[Path | None, Parameter(help="Folder of timing files; by default where programs keep them.")]
Step = Annotated[str, Parameter(help="Name of the step, or the end of it: a function, a section.")]


def build() -> App:
    """Make the parser of these commands."""
    app = App(
        name="history",
        help="Look at what was measured of steps, and at what is expected of them from it.",
        default_parameter=Parameter(negative=()),
    )
    commands: dict[str, Any] = dict(zip(NAMES, COMMANDS, strict=True))
    for name, command in commands.items():
        app.command(command, name=name)
    return app


def list_steps(*, directory: Folder = None) -> int:
    """List all steps: runs, order, degree and source of the estimate, and how wrong it was last."""
    from workspan.cli import history

    return history.list_steps(directory)


def show(step: Step, /, *, directory: Folder = None) -> int:
    """Print the measurements of a step, its curve, its error so far, and a plot."""
    from workspan.cli import history

    return history.show(step, directory)


def discard(step: Step, /, *, directory: Folder = None) -> int:
    """Forget the measurements of a step, because what it does has changed."""
    from workspan.cli import history

    return history.discard(step, directory)


def _days(kind: type[float], tokens: Sequence[Any]) -> float:
    try:
        days = float(tokens[0].value)
        if not 0.0 <= days < 1e6:
            raise ValueError
    except ValueError:
        raise ValueError(f'"{tokens[0].value}" is not a number of days.') from None
    return days


def _count(kind: type[int], tokens: Sequence[Any]) -> int:
    try:
        count = int(tokens[0].value)
        if count < 1:
            raise ValueError
    except ValueError:
        raise ValueError(f'"{tokens[0].value}" is not a whole number from 1.') from None
    return count


def prune(
    *,
    days: Annotated[float, Parameter(converter=_days, help="Forget steps that did not run for this long.")] = 365.0,
    keep: Annotated[
        int | None, Parameter(converter=_count, help="Keep only so many measurements of each step.")
    ] = None,
    directory: Folder = None,
) -> int:
    """Forget what is old: whole steps by their age, and measurements beyond a number of each step."""
    from workspan.cli import history

    return history.prune(directory, days=days, limit=keep)


def take_in(
    path: Annotated[Path, Parameter(help="A timing file, also one of SNAPRed, or a folder of such files.")],
    /,
    *more: Annotated[Path, Parameter(help="More of them.")],
    directory: Folder = None,
) -> int:
    """Add the measurements of other timing files; what is there already is not added again."""
    from workspan.cli import history

    return history.take_in((path, *more), directory)


def export(
    path: Annotated[Path, Parameter(allow_leading_hyphen=True, help="File to write, or - for the terminal.")],
    /,
    *steps: Annotated[str, Parameter(help="Names of steps; all if there are none.")],
    directory: Folder = None,
) -> int:
    """Write steps to one timing file, for another machine."""
    from workspan.cli import history

    return history.export(path, steps, directory)


NAMES = ("list", "show", "discard", "prune", "import", "export")
COMMANDS = (list_steps, show, discard, prune, take_in, export)
