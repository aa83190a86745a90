"""``workspan doctor``: what this machine can measure and do, and what to do about the rest."""

from __future__ import annotations

import shutil
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

from workspan.cli import exits
from workspan.cli.doctor_checks import CHECKS, Check
from workspan.cli.terminal import say
from workspan.errors import ConfigurationError
from workspan.views.format import count, fit, one_line
from workspan.views.terminal import encoding_of, is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["as_json", "examine", "render", "run"]

SIGNS = {"yes": "✔", "no": "–", "broken": "✗"}

_NARROWEST = 40


def run(path: Path | None, *, json: bool, limit: float) -> int:
    """Look at everything, print it, and return the exit code.

    Parameters
    ----------
    path
        Folder whose file system is looked at; ``None``: the working directory.
    json
        Print one JSON object.
    limit
        Seconds that all of it may take.

    Returns
    -------
    int
        0, or 1 if something is broken without which nothing runs.

    Raises
    ------
    ConfigurationError
        *limit* is not above 0.
    """
    if not limit > 0:
        raise ConfigurationError(f"--limit {limit:g} is too small: use seconds above 0")
    checks = list(examine(CHECKS, path, limit=limit))
    if json:
        say(as_json(checks))
    else:
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        say(render(checks, encoding=encoding_of(sys.stdout), width=width))
    return exits.INCOMPLETE if any(check.state == "broken" for check in checks) else exits.DONE


def examine(
    checks: Iterable[tuple[str, str, Callable[[Path | None], Iterator[Check]]]],
    path: Path | None,
    *,
    limit: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Check]:
    """Look at one thing after another, each in a thread, which is left behind when the time is up.

    Parameters
    ----------
    checks
        Group, name, and what looks: it yields its findings.
    path
        Folder that it is about, if it was named.
    limit
        Seconds for all of them.
    clock
        Monotonic clock, in seconds.
    """
    end = clock() + limit
    for group, name, look in checks:
        found: list[Check] = []
        thread = threading.Thread(target=_look, args=(look, path, name, found), name="workspan-doctor", daemon=True)
        if (left := end - clock()) > 0:
            thread.start()
            thread.join(left)
        if not found or thread.is_alive():
            found.append(
                Check(name, "no", f"not known: no answer within {limit:g} s", "--limit gives it more time", {})
            )
        for check in list(found):
            yield check._replace(group=group)


def _look(look: Callable[[Path | None], Iterator[Check]], path: Path | None, name: str, found: list[Check]) -> None:
    try:
        found.extend(look(path))
    except ConfigurationError as error:  # of the settings, about which there is a finding of its own
        found.append(Check(name, "no", f"not known: {one_line(str(error))}", "", {}))
    except Exception as error:
        text = one_line(f"{type(error).__name__}: {error}")
        found.append(Check(name, "broken", f"looking at it failed: {text}", "", {}))


def as_json(checks: Iterable[Check]) -> str:
    """Return all findings as one JSON object: whether all is well, and a list."""
    import json

    listed: list[dict[str, Any]] = [
        {"group": c.group, "name": c.name, "state": c.state, "told": c.told, "remedy": c.remedy, **c.facts}
        for c in checks
    ]
    return json.dumps(
        {"ok": all(entry["state"] != "broken" for entry in listed), "checks": listed}, ensure_ascii=False, default=str
    )


def render(checks: list[Check], *, encoding: str, width: int | None) -> str:
    """Return all findings as text.

    Parameters
    ----------
    checks
        In their order; those of a group follow one another.
    encoding
        Of the stream.
    width
        Columns of the terminal; ``None``: a line each, however long.
    """
    signs = {state: fit(sign, encoding) for state, sign in SIGNS.items()}
    sign_width = max(map(len, signs.values()))
    name_width = max((len(check.name) for check in checks), default=0)
    lines: list[str] = []
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            lines += ["", group] if lines else [group]
        text = check.told + (f"; {check.remedy}" if check.remedy else "")
        head = f"  {signs[check.state]:{sign_width}} {check.name:{name_width}}  "
        text = head + fit(one_line(text), encoding)
        if width is None or width < len(head) + _NARROWEST:
            lines.append(text)
        else:
            lines += textwrap.wrap(
                text, width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
            )
    missing, broken = (sum(check.state == state for check in checks) for state in ("no", "broken"))
    ending = "nothing is broken" if not broken else f"{count(broken, 'thing')} broken ({signs['broken']})"
    lines += ["", f"{count(missing, 'thing')} not there ({signs['no']}); {ending}"]
    return "\n".join(lines)
