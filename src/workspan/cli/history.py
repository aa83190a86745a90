"""``workspan history``: what was measured of steps, and what is expected of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.cli import exits
from workspan.cli.terminal import complain, remark, say
from workspan.errors import ConfigurationError, StoreLockedError
from workspan.report.whole import whole_file
from workspan.views.format import count, one_line

if TYPE_CHECKING:
    from workspan.estimate.files import TimingFolder
    from workspan.estimate.forecast import Forecast
    from workspan.estimate.keys import Key
    from workspan.estimate.measurements import StepHistory

    Steps = dict[Key, StepHistory]

DAY_SECONDS = 86400.0
LARGEST_IMPORT = 64 * 2**20
"""Most bytes of a file that is imported."""


def list_steps(directory: Path | None) -> int:
    """Print a table of all steps."""
    from workspan.views.history import render_steps
    from workspan.views.terminal import columns_of, encoding_of

    folder = _folder(directory)
    forecasts = [each for kept in _by_name(_load(folder)) for each in _forecasts(kept)]
    if not forecasts and folder.closed_by is not None:
        raise ConfigurationError(f"the steps in {str(folder.directory)!r} cannot be shown: {folder.closed_by}")
    if not forecasts:
        remark(f"no step was ever measured ({folder.directory} holds nothing)")
    else:
        say(render_steps(forecasts, encoding=encoding_of(sys.stdout), columns=columns_of(sys.stdout)))
    return exits.DONE


def show(name: str, directory: Path | None) -> int:
    """Print what is known of one step.

    Raises
    ------
    ConfigurationError
        No step, or more than one, is meant.
    """
    from workspan.views.history import render_step
    from workspan.views.terminal import encoding_of

    kept = _find(_load(_folder(directory)), name)
    say("\n\n".join(render_step(each, encoding=encoding_of(sys.stdout)) for each in _forecasts(kept)))
    return exits.DONE


def discard(name: str, directory: Path | None) -> int:
    """Forget the measurements of one step.

    Raises
    ------
    ConfigurationError
        No step, or more than one, is meant.
    """
    folder = _folder(directory)
    key = _find(_load(folder), name).key
    lost: list[int] = []

    def change(steps: Steps) -> None:
        kept = steps[key]
        lost.append(kept.count)
        kept.discarded = time.time()
        kept.series.clear()

    _save(folder, change)
    say(f"{_name(key)}: {count(lost[0], 'measurement')} discarded")
    return exits.DONE


def prune(directory: Path | None, *, days: float, limit: int | None) -> int:
    """Forget steps that were not run for some days, and measurements beyond a number of each step."""
    from workspan.estimate.measurements import trim

    folder = _folder(directory)
    lost: dict[Key, int] = {}
    trimmed = [0]

    def change(steps: Steps) -> None:
        oldest = time.time() - days * DAY_SECONDS
        for key in [key for key, kept in steps.items() if kept.used < oldest]:
            lost[key] = steps.pop(key).count
        for series in (series for kept in steps.values() for series in kept.series.values()):
            fewer = series.measurements if limit is None else trim(series.measurements, limit)
            trimmed[0] += len(series.measurements) - len(fewer)
            series.measurements = fewer

    _save(folder, change)
    for key, number in lost.items():
        say(f"{_name(key)}: forgotten with {count(number, 'measurement')}")
    say(f"{count(len(lost), 'step')} and {count(trimmed[0], 'more measurement')} were forgotten")
    return exits.DONE


def take_in(paths: Sequence[Path], directory: Path | None) -> int:
    """Add the measurements of timing files, also of those that SNAPRed wrote.

    Raises
    ------
    ConfigurationError
        A path is no such file; nothing was added then.
    """
    from workspan.config import get
    from workspan.estimate.measurements import StepHistory, merge
    from workspan.estimate.snapred import decode, stamp_of

    read: list[StepHistory] = []
    for path in _files(paths):
        stamp = stamp_of(path.name)
        try:
            steps, problems = decode(_read(path), stamp=None if stamp is None else stamp.timestamp())
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise ConfigurationError(f"{str(path)!r} cannot be imported: {why}") from error
        read += steps
        for problem in problems:
            complain(one_line(f"{path.name}: left out {problem}"))
    added: list[int] = []

    def change(steps: Steps) -> None:
        limit = get("timing.max_measurements")
        for each in read:
            kept = steps.setdefault(each.key, StepHistory(each.key))
            before = kept.count
            for side in (kept, each):  # what was thrown away here is wanted again, and what was there is none of ours
                side.discarded, side.dropped = None, {}
            merge(kept, each, limit)
            added.append(kept.count - before)

    _save(_folder(directory), change)
    say(f"{count(sum(added), 'measurement')} of {count(len({each.key for each in read}), 'step')} imported")
    return exits.DONE


def export(path: Path, names: Sequence[str], directory: Path | None) -> int:
    """Write steps to one timing file.

    Raises
    ------
    ConfigurationError
        A step is not there, or the file cannot be written.
    """
    from workspan.estimate.snapred import encode

    stored = _load(_folder(directory))
    steps = [_find(stored, name) for name in names] if names else _by_name(stored)
    for kept in steps:
        for forecast in _forecasts(kept):
            forecast.series.estimate = forecast.stored()
    data = encode(steps)
    if str(path) == "-":
        say(data.decode().rstrip("\n"))
        return exits.DONE
    try:
        with whole_file(path) as file:
            file.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    measurements = count(sum(kept.count for kept in steps), "measurement")
    say(f"{measurements} of {count(len(steps), 'step')} written to {path}")
    return exits.DONE


def _folder(directory: Path | None) -> TimingFolder:
    from workspan.estimate.files import TimingFolder, timing_directory

    folder = TimingFolder(directory or timing_directory())
    if folder.directory is None:
        raise ConfigurationError("there is no home directory to look for timings in; use --directory")
    try:
        os.listdir(folder.directory)
    except FileNotFoundError:
        pass  # as before the first run
    except OSError as error:
        raise ConfigurationError(f"{str(folder.directory)!r} cannot be read: {error.strerror or error}") from error
    return folder


def _load(folder: TimingFolder) -> Steps:
    steps = folder.load()
    folder.tell()
    return steps


def _save(folder: TimingFolder, change: Callable[[Steps], None]) -> None:
    from workspan.config import get

    if not get("timing.persistent_data"):
        raise ConfigurationError("timing.persistent_data is false, so timing files are not to be written")
    if folder.save({}, change=change) is None:
        why = folder.closed_by or "another process is just writing there; try again"
        raise StoreLockedError(f"the timing files in {folder.directory} were not changed: {why}")


def _by_name(steps: Steps) -> list[StepHistory]:
    return sorted(steps.values(), key=lambda kept: kept.key.full_name)


def _forecasts(kept: StepHistory) -> Iterator[Forecast]:
    from workspan.errors import UsageError
    from workspan.estimate.forecast import Forecast
    from workspan.estimate.steps import check_order

    try:
        order = check_order(kept.order or "O_0")
    except UsageError:  # a function of the program that made the measurements
        order = check_order("O_N")
    for variant in sorted(kept.series, key=lambda variant: variant or ""):
        forecast = Forecast(kept, variant)
        forecast.declare(order, kept.fingerprint)
        if variant is None and len(kept.series) > 1 and not forecast.measurements():
            continue
        yield forecast


def _find(steps: Steps, name: str) -> StepHistory:
    """Return the step that a person means: by its full name, or by the end of it."""
    for test in (
        ()
        if not name
        else (
            lambda key: key.full_name == name,
            lambda key: name in (key.step_name, (key.qualname or "").rpartition(".")[2], key.qualname, key.root_label),
            lambda key: key.full_name.endswith(f".{name}"),
        )
    ):
        found = [kept for kept in _by_name(steps) if test(kept.key)]
        if len(found) == 1:
            return found[0]
        if found:
            unnamed = [kept for kept in found if kept.key.step_name is None]
            if len(unnamed) == 1:  # the function itself, not the sections in it
                return unnamed[0]
            names = ", ".join(_name(kept.key) for kept in found[:8])
            raise ConfigurationError(f"{name!r} may be {len(found)} steps: {names}; give more of the name")
    known = ", ".join(_name(kept.key) for kept in _by_name(steps)[:8])
    told = f"measured are {known}" if known else "none has been measured yet"
    raise ConfigurationError(f"no step is called {name!r}; {told}")


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ConfigurationError(f"{str(path)!r} holds no timing files (*.json)")
        yield from inside


def _read(path: Path) -> bytes:
    with path.open("rb") as file:  # which may be a device that never ends
        data = file.read(LARGEST_IMPORT + 1)
    if len(data) > LARGEST_IMPORT:
        raise ValueError(f"it has more than {LARGEST_IMPORT >> 20} MiB")
    return data


def _name(key: Key) -> str:
    return one_line(key.full_name)
