"""Measurements of steps that come home with the blocks of workers go to the recorder of the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.measure import notes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["keep"]


def keep(found: Sequence[notes.Note]) -> None:
    """Record what workers measured; loads the recorder only where there is something."""
    from workspan.estimate.recorder import default_recorder

    default_recorder().adopt(found)


notes.home = keep
