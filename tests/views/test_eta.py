from __future__ import annotations

import pytest

from workspan.estimate.remaining import Left
from workspan.views.eta import time_left


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (None, ""),
        (Left(124.0), "2:04 left"),
        (Left(124.0, 110.0, 140.0), "2:04 left (1:50 - 2:20)"),
        (Left(4.2, 4.0, 4.4), "0:04 left"),
        (Left(0.0, 0.0, 0.0), "0:00 left"),
        (Left(3724.0, 3600.0, 4000.0), "1:02:04 left (1:00:00 - 1:06:40)"),
    ],
)
def test_the_time_left_in_words(left, text):
    """What is known is said, with its range unless that is empty; of what is not known nothing is said."""
    assert time_left(left) == text
