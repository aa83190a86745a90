"""The size of a block, on which its time depends: what its task's ``n_ref`` says, else the elements that it writes."""

from __future__ import annotations

from math import isfinite, nan, prod
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError
from workspan.grid.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from workspan.grid.layout import Layout

__all__ = ["all_sizes", "sizes_of", "sizes_to_plan", "write_elements"]

MOST_ASKED = 50_000
"""Blocks for which ``n_ref`` is asked; of a task that has more an even choice is."""


HUGE = 1_000_000
"""Blocks from which on the sizes of some stand for all."""


def write_elements(layout: Layout, index: int) -> int:
    """Return the number of elements of the write ROI of block *index*, clipped."""
    if layout.fit != "shrink":
        return prod(layout.write_shape)
    begin, end = layout.write_box(index)
    return prod(e - b for b, e in zip(begin, end, strict=True))


def sizes_of(layout: Layout, indices: Iterable[int], n_ref: Callable[[Block], Any] | None, task_id: str) -> list[float]:
    """Return the size of each of these blocks; NaN where ``n_ref`` gave none.

    Raises
    ------
    Exception
        Whatever *n_ref* raises.
    ConfigurationError
        It returned something that is neither a number nor ``None``.
    """
    if n_ref is None and layout.fit != "shrink":
        whole = float(prod(layout.write_shape))
        return [whole for _ in indices]
    if n_ref is None:
        return [float(write_elements(layout, index)) for index in indices]
    return [_size(n_ref(Block.at(layout, index, task_id)), task_id) for index in indices]


def _size(value: Any, task_id: str) -> float:
    if value is None:
        return nan
    try:
        size = float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"n_ref of task {task_id!r} returned {value!r}: it must return a number above 0, or None where it has none"
        ) from None
    return size if isfinite(size) and size > 0 else nan


def all_sizes(layout: Layout, n_ref: Callable[[Block], Any] | None, task_id: str) -> NDArray[Any]:
    """Return the size of every block, in the shape of the mask grid; NaN where ``n_ref`` gave none.

    Where a task has more than :data:`MOST_ASKED` blocks ``n_ref`` is asked for some, and its neighbours count like it.
    """
    import numpy as np

    count = layout.num_blocks
    if n_ref is None:
        out: NDArray[Any] = np.ones(())
        low, high = layout.covered
        for b, e, w, n in zip(low, high, layout.write_shape, layout.counts, strict=True):
            extents = np.full(n, float(w))
            if layout.fit == "shrink" and n:
                extents[-1] = min(w, e - (b + (n - 1) * w))
            out = np.multiply.outer(out, extents)
        return out
    step = max(1, -(-count // MOST_ASKED))
    found = sizes_of(layout, range(0, count, step), n_ref, task_id)
    return np.repeat(np.array(found), step)[:count].reshape(layout.counts)


def sizes_to_plan(layout: Layout, n_ref: Callable[[Block], Any] | None, task_id: str) -> NDArray[Any]:
    """Return the size of every block as :func:`all_sizes` does; of a huge task, that of some blocks, evenly chosen."""
    import numpy as np

    if layout.num_blocks <= HUGE:
        return all_sizes(layout, n_ref, task_id)
    # A step that no axis has as its length, so that blocks at all edges are among them.
    return np.array(sizes_of(layout, range(0, layout.num_blocks, layout.num_blocks // MOST_ASKED | 1), n_ref, task_id))
