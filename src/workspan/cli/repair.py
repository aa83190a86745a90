"""``workspan repair``: say what is broken in a tracking store, and mend it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from workspan.cli import exits
from workspan.cli.terminal import say
from workspan.errors import ConfigurationError, NoStoreError

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.store.repair import RepairReport


def run(path: Path, *, yes: bool) -> int:
    """Tell what a repair of the store at *path* would do; do it if *yes*, or if the user agrees.

    Raises
    ------
    ConfigurationError
        There is no store, or nobody can be asked. Nothing was changed.
    InvalidMetadataError
        The store is beyond repair. Nothing was changed.
    StoreLockedError
        A run writes to it.
    """
    from workspan.report.places import task_folders
    from workspan.store.repair import repair

    if path.is_dir() and not (path / "done").exists() and (stores := [f for f in task_folders(path) if f != path]):
        names = ", ".join(map(str, stores[:5])) + (", ..." if len(stores) > 5 else "")
        raise ConfigurationError(f"'{path}' is no tracking store, but holds some: name one of {names}")
    if path.is_dir() and not any((path / name).exists() for name in ("zarr.json", "done", "failures")):
        raise ConfigurationError(
            f"'{path}' is no tracking store: name the folder of one, with 'done' and 'failures' in it"
        )
    try:
        planned = repair(path, dry_run=True)
    except NoStoreError as error:
        raise ConfigurationError(f"{error}: name the folder of one, which has 'done' and 'failures' inside") from None
    if planned:
        say(f"{planned.path}: nothing to repair")
        return exits.DONE
    say("\n".join(_plan(planned)))
    if not yes and not _agreed():
        say("Nothing was changed.")
        return exits.REFUSED
    done = repair(path)
    kept = f"; the changed files as they were are in {done.backup}" if done.backup is not None else ""
    say(f"Repaired{kept}")
    return exits.DONE


def _plan(planned: RepairReport) -> list[str]:
    """Say, part by part, what is broken and what becomes of it."""
    width = max(len(fix.part) for fix in planned.fixes) + 3
    lines = [f"{planned.path}: this is broken, and a repair does:"]
    lines += [f"  {fix.part:<{width}}{fix.what}" for fix in planned.fixes]
    cells = "1 cell" if planned.reset == 1 else f"{planned.reset:,} cells"
    lines.append(f"  {cells} of 'done' would be reset" + (": those blocks run again" if planned.reset else ""))
    return lines


def _agreed() -> bool:
    """Ask at the terminal.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    try:
        asked = sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):  # a stream is missing or closed
        asked = False
    if not asked:
        raise ConfigurationError("nothing was changed, since there is no terminal to ask at: to repair, pass --yes")
    # Not input(): its prompt goes to stderr where there are two terminals.
    sys.stdout.write("Repair it? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
