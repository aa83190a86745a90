"""``workspan config``: every setting, its value, and where that came from."""

from __future__ import annotations

import sys

from workspan import config
from workspan.cli import exits
from workspan.cli.terminal import say
from workspan.views.format import one_line, table
from workspan.views.terminal import encoding_of

__all__ = ["run"]


def run(*, only_changed: bool, json: bool) -> int:
    """Print the settings.

    Raises
    ------
    ConfigurationError
        One of them cannot be used.
    """
    found = {n: (v, w) for n, (v, w) in sorted(config.sources().items()) if w != "default" or not only_changed}
    if json:
        from json import dumps

        say(dumps({name: {"value": value, "from": where} for name, (value, where) in found.items()}, default=str))
        return exits.DONE
    if not found:
        say("all settings are at their defaults")
        return exits.DONE
    rows = [("setting", "value", "from")]
    rows += [(name, one_line(_shown(value)), where) for name, (value, where) in found.items()]
    say("\n".join(table(rows, encoding=encoding_of(sys.stdout))))
    return exits.DONE


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "()"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
