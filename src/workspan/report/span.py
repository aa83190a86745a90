"""The span of a run: the longest chain of blocks that had to run one after the other.

A block ends, at the earliest, its own time after the last of the blocks for which it waits. Computed over the same
relations by which the scheduler hands blocks out, level by level and task by task, in place: a task's times become its
blocks' earliest ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workspan.grid.fields import latest_inputs, level_inputs, level_slices
from workspan.grid.neighbours import Relation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from workspan.grid.layout import Layout

    Field = NDArray[np.float32]

__all__ = ["critical_paths"]


def critical_paths(
    layouts: Sequence[Layout],
    edges: Iterable[tuple[int, int]],
    times: Sequence[memoryview[float] | None],
    longest: Sequence[float],
) -> tuple[list[float], float]:
    """Return the longest path through each task alone, and that through all of them, in seconds.

    Parameters
    ----------
    layouts
        The tasks' tilings, every task behind those for which it waits.
    edges
        Pairs (source, reader) of tasks, as positions in *layouts*.
    times
        Each block's seconds, one entry a block in C order; 0 where it was not run. Overwritten. ``None`` for a task
        whose blocks wait for none and for whose blocks none waits.
    longest
        The longest block of each task, in seconds; 0 if none was run.
    """
    relations = {(u, d): Relation(layouts[u], layouts[d], source_id=str(u), reader_id=str(d)) for u, d in edges}
    own: list[float] = []
    ends: list[Field | None] = []
    tops: list[float] = []
    for number, (layout, buffer, most) in enumerate(zip(layouts, times, longest, strict=True)):
        if buffer is None:
            own.append(most)
            tops.append(most)
            ends.append(None)
            continue
        field = np.asarray(buffer).reshape(layout.counts)
        ready = _ready(number, relations, ends, tops)
        if ready is None:
            own.append(_fold(layout, field) if most else 0.0)
            tops.append(own[-1])
        else:
            alone = most if layout.num_levels == 1 or not most else _fold(layout, field.copy())
            own.append(alone)
            tops.append(_fold(layout, field, ready))
        ends.append(field)
    return own, max(tops, default=0.0)


def _ready(
    reader: int, relations: Mapping[tuple[int, int], Relation], ends: Sequence[Field | None], tops: Sequence[float]
) -> Field | None:
    """When the last block of other tasks that each block of *reader* reads has ended; ``None``: all at 0."""
    ready = None
    for (source, other), relation in relations.items():
        field = ends[source] if other == reader else None
        if field is not None and tops[source]:
            here = latest_inputs(relation, field)
            ready = here if ready is None else np.maximum(ready, here, out=ready)
    return ready


def _fold(layout: Layout, field: Field, ready: Field | None = None) -> float:
    """Turn the times in *field* into ends, in place; return the latest one."""
    for level in range(layout.num_levels):
        here = level_slices(layout, level)
        if level == 0 and ready is None:
            continue
        begin = np.zeros(field[here].shape, np.float32) if ready is None else ready[here].copy()
        for to, of in level_inputs(layout, level):
            steps = zip(to, here, layout.level_strides, strict=True)
            part = begin[tuple(slice((t.start - h.start) // s, -((h.start - t.stop) // s)) for t, h, s in steps)]
            np.maximum(part, field[of], out=part)
        late = begin != 0
        if late.all():
            field[here] += begin
        else:  # what is 0 and stays so is not written: its pages need not exist
            field[here][late] += begin[late]
    return float(field.max(initial=0.0))
