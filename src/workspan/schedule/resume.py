"""Skip what was done before by array operations, not block by block.

A block that was done before (or is masked) is skipped when it becomes a candidate, that is when all its inputs are
complete: skipping it sooner would let its dependents overtake an input that runs again. Level by level and task by
task that is arithmetic on whole arrays, so ten million done blocks take a second and not an hour.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.grid.fields import input_counts, level_inputs, level_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from workspan.grid.layout import Layout
    from workspan.grid.neighbours import Relation
    from workspan.schedule.events import SkipReason
    from workspan.schedule.ledger import Ledger, TaskBlocks

    Flags = np.ndarray[Any, np.dtype[np.uint8]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Counts = np.ndarray[Any, np.dtype[np.integer[Any]]]

DONE, MASKED = 1, 2
_CHUNK = 1 << 16


def skip_known(
    ledger: Ledger,
    flags: Sequence[Flags | None],
    on_skip: Callable[[int, Any, SkipReason], None],
) -> None:
    """Complete every block that is flagged and whose inputs are complete, before anything runs.

    Parameters
    ----------
    ledger
        A fresh ledger; changed in place.
    flags
        One array a task, of the shape of its mask grid: :data:`DONE`, :data:`MASKED` or 0; ``None``: no flags.
    on_skip
        Called as ``on_skip(task, indices, reason)`` with an integer array.

    Notes
    -----
    Flagged blocks whose inputs are not complete are skipped one by one when their turn comes: each task's
    ``precheck`` is set to look the flag up.
    """
    if not any(flag is not None and flag.any() for flag in flags):
        return
    skipped: list[Bools | None] = []
    for number, (blocks, flag) in enumerate(zip(ledger.tasks, flags, strict=True)):
        whole = flag if flag is not None else np.zeros(blocks.layout.counts, np.uint8)
        if not whole.any() and all(skipped[up] is None for up in blocks.upstream):
            skipped.append(None)
            continue
        done = _skip_task(blocks, whole, [(relation, skipped[up]) for up, relation in blocks.upstream.items()])
        skipped.append(done if done.any() else None)
        flat = whole.reshape(-1)
        if flat.any():
            blocks.precheck = _lookup(flat.tobytes())
        reasons: tuple[tuple[int, SkipReason], ...] = ((DONE, "done"), (MASKED, "mask"))
        for value, reason in reasons:
            indices = np.flatnonzero(done.reshape(-1) & (flat == value))
            if len(indices):
                on_skip(number, indices, reason)


def _lookup(flat: bytes) -> Callable[[int], SkipReason | None]:
    reasons: tuple[SkipReason | None, ...] = (None, "done", "mask")
    return lambda index: reasons[flat[index]]


def _skip_task(blocks: TaskBlocks, flags: Flags, sources: Sequence[tuple[Relation, Bools | None]]) -> Bools:
    """Skip the blocks of one task: set its counters, satisfied inputs and first ready blocks.

    Return what was skipped, an array of the mask grid's shape.
    """
    layout = blocks.layout
    counts = layout.counts
    flagged = flags != 0
    # The task's own counter type holds any number of inputs; no wider one is needed per block.
    counter = np.dtype(blocks.satisfied.format if len(blocks.satisfied) else "B")
    got = np.zeros(counts, counter)
    need = np.zeros(counts, counter)
    for relation, source_skipped in sources:
        need += input_counts(relation, None).astype(counter)
        if source_skipped is not None:
            got += input_counts(relation, source_skipped).astype(counter)
    skipped = np.zeros(counts, np.bool_)
    ready: list[Counts] = []
    for level in range(layout.num_levels):
        here = level_slices(layout, level)
        for to, of in level_inputs(layout, level):
            need[to] += 1
            got[to] += skipped[of]
        able = got[here] == need[here]
        skipped[here] = able & flagged[here]
        ready.append(_indices_of(able & ~flagged[here], layout, level))
    total = int(skipped.sum())
    state = blocks.state
    state.completed_count = state.skipped_count = total
    state.ready_count = sum(len(indices) for indices in ready)
    state.started = state.started or total > 0
    if len(blocks.satisfied):
        np.asarray(blocks.satisfied)[:] = got.reshape(-1)
    blocks.source = chain.from_iterable(map(_numbers, ready))
    return skipped


def _indices_of(chosen: Bools, layout: Layout, level: int) -> Counts:
    """Return the indices of the *chosen* blocks of a level, in C order."""
    found = np.flatnonzero(chosen)
    if layout.num_levels == 1:
        return found
    indices = np.zeros(len(found), np.int64)
    offset = layout.level_offset(level)
    where = np.unravel_index(found, chosen.shape)
    for at, o, s, stride in zip(where, offset, layout.level_strides, layout.strides, strict=True):
        indices += (o + at * s) * stride
    return indices


def _numbers(indices: Counts) -> Iterator[int]:
    for start in range(0, len(indices), _CHUNK):
        yield from indices[start : start + _CHUNK].tolist()
