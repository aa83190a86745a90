"""The time that is left, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.views.format import clock

if TYPE_CHECKING:
    from workspan.estimate.remaining import Left


def time_left(left: Left | None) -> str:
    """Return what is left, with its range where it is known and not empty; nothing if it is not known.

    Examples
    --------
    >>> from workspan.estimate.remaining import Left
    >>> time_left(Left(124.0, 110.0, 140.0)), time_left(Left(4.2, 4.0, 4.4)), time_left(None)
    ('2:04 left (1:50 - 2:20)', '0:04 left', '')
    """
    if left is None:
        return ""
    text = f"{clock(left.value)} left"
    if left.low is None or left.high is None:
        return text
    low, high = clock(left.low), clock(left.high)
    return text if low == high else f"{text} ({low} - {high})"
