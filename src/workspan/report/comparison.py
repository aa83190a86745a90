"""Two runs side by side: by how much each figure changed, how sure that is, and whether it is too much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.report.comparison_figures import METRICS
from workspan.report.comparison_sides import Rules, Sides
from workspan.report.comparison_values import Comparison, Row, Side
from workspan.report.recorded import find

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["Comparison", "Row", "Side", "compare"]


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    fail_over: float | None = None,
    smallest: float = 0.02,
    confidence: float = 0.95,
    with_first: bool = False,
    also: Sequence[str | os.PathLike[str]] = (),
    fail_on: Sequence[str] | None = None,
) -> Comparison:
    """Compare what two runs cost, per task, step and metric, taking their spread into account.

    Parameters
    ----------
    a
        Where the older run is recorded: a tracking folder, a folder of those of several tasks, or a ``runs.jsonl``.
        ``#`` and a number or id select one run: ``"run/#-2"`` is the last but one that executed anything. A tracking
        folder stands for all its blocks, whichever run executed them.
    b
        The newer one; ``None``: the last run at *a* is compared with the one before it.
    fail_over
        Relative change from which on more of something is a regression: 0.1 is 10 %. ``None``: none is.
    smallest
        Smallest relative change that matters: with blocks enough any two runs differ by something.
    confidence
        Chance that all intervals of the comparison hold together.
    with_first
        Take also the first block of each worker, which pays for imports and caches.
    also
        Where more runs of the older program are recorded. With those in the histories at *a* they tell what whole runs
        differ by, which no single run does. Fewer than three in all: 1.5 % of times and 0.5 % of memory are assumed.
    fail_on
        Metrics of which more can be a regression; ``"steps"`` is all steps. ``None``: all but the overhead and the
        round trip, which depend on what else the driver's machine does; without the wall time the round trip counts.

    Returns
    -------
    Comparison
        Rows in the order of the tasks; tasks of one side only are in its notes.

    Raises
    ------
    ConfigurationError
        Nothing is recorded there, the run does not exist, or a number makes no sense.
    InvalidMetadataError
        A store is damaged.
    """
    for name, value, most in (("fail_over", fail_over, math.inf), ("smallest", smallest, 1.0)):
        if value is not None and not 0 <= _number(name, value) < most:
            raise ConfigurationError(f"{name}={value!r} is no relative change: 0.1 is 10 %")
    if not 0 < _number("confidence", confidence) < 1:
        raise ConfigurationError(f"confidence={confidence!r} is no probability: use one between 0 and 1")
    if fail_over is not None:
        smallest = min(smallest, fail_over)
    unknown = [name for name in fail_on or () if name not in METRICS and name != "steps"]
    if unknown:
        known = ", ".join(map(repr, [*METRICS, "steps"]))
        raise ConfigurationError(f"fail_on: there is no metric {unknown[0]!r}: use some of {known}")
    one = find(a)
    if b is None:
        if one.selected is not None:
            raise ConfigurationError(f"{one.text!r} is one run: name another one to compare it with")
        if len(one.run_ids) < 2:
            raise ConfigurationError(
                f"{one.text!r} holds {len(one.run_ids)} run{'s' * (len(one.run_ids) != 1)} that executed something, so "
                "its last one has none before it: name two places"
            )
        one, two = one.at(-2), one.at(-1)
    else:
        two = find(b)
    rules = Rules(fail_over, smallest, confidence, with_first, None if fail_on is None else frozenset(fail_on))
    return Sides(one, two, rules, [find(place) for place in also]).comparison()


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageTypeError(f"{name}={value!r} is a {type(value).__name__}: pass a number")
    return float(value)
