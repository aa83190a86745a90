"""``workspan compare``: what changed from one run to another, and whether it is too much."""

from __future__ import annotations

import json
import sys
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from workspan.cli import exits
from workspan.cli.terminal import say
from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_P = ParamSpec("_P")

_WORSE = 1


def _never_a_regression(command: Callable[_P, int]) -> Callable[_P, int]:
    """Let no trouble end with the exit code of a regression, whatever happens."""

    @wraps(command)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except Exception as error:
            code = exits.code_of(error)
            if code == exits.INCOMPLETE:
                raise ConfigurationError(f"nothing could be compared: {error}") from error
            if code is not None:
                raise
            exits.explain(error, traceback=True)
            return exits.REFUSED

    return guarded


@_never_a_regression
def run(
    a: str,
    b: str | None,
    *,
    fail_over: str | None,
    smallest: str,
    also: Sequence[str],
    fail_on: Sequence[str],
    with_first: bool,
    everything: bool,
    as_json: bool,
) -> int:
    """Print the comparison; 1: something is worse than *fail_over*, 2: something could not be compared.

    Raises
    ------
    ConfigurationError
        Nothing is recorded there, or a share makes no sense.
    InvalidMetadataError
        A store is damaged.
    """
    from workspan.report.comparison import compare
    from workspan.views.comparison import render_comparison
    from workspan.views.terminal import columns_of, encoding_of

    found = compare(
        a,
        b,
        fail_over=None if fail_over is None else share("--fail-over", fail_over),
        smallest=share("--smallest", smallest),
        also=also,
        fail_on=list(fail_on) or None,
        with_first=with_first,
    )
    if as_json:
        say(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        encoding, columns = encoding_of(sys.stdout), columns_of(sys.stdout)
        say(render_comparison(found, everything=everything, encoding=encoding, columns=columns))
    if found.regressions:
        return _WORSE
    # Without a limit a task that is gone is a thing to read; with one the gate cannot say that all is well.
    refused = bool(found.refused) if fail_over is not None else not found.rows
    return exits.REFUSED if refused else exits.DONE


def share(name: str, text: str) -> float:
    """Return ``10%``, ``10 %`` or ``0.1`` as 0.1.

    Raises
    ------
    ConfigurationError
        It is neither; a bare number of 1 or more is refused, as it may mean percent.
    """
    bare = text.strip()
    try:
        if bare.endswith("%"):
            return float(bare[:-1]) / 100
        value = float(bare)
    except ValueError:
        raise ConfigurationError(f"{name} {text!r} is no share: write 10% or 0.1") from None
    if value >= 1:
        raise ConfigurationError(f"{name} {text!r} may mean percent or times: write {bare}% or {value / 100:g}")
    return value
