"""Which blocks wait for which, by arithmetic: inside one layout, and between two.

Everything here is separable: a relation between boxes is the product of relations between intervals, one per axis.
So a block's dependents cost what they number, and tables have one entry per *axis position*, never one per block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workspan.grid.layout import Ints, Layout

_TABLE_LIMIT = 1 << 16
"""Longest axis for which a table is kept; longer ones are computed when asked."""


class Neighbour(NamedTuple):
    """A dependent of a block in the same task."""

    offset: int
    """Its index less the block's."""
    waits_for: int
    """For how many blocks of its task it waits."""


class ConflictGraph:
    """Dependencies between the blocks of one layout with a read-write conflict.

    A block's dependents hang only on its *class*: its position modulo the level strides, and its distance to the
    grid's border as far as that matters. There are few classes, so their dependents are computed once each, with
    bounds already checked.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._axes: list[tuple[int, _Classes]] = []
        self._dependents: dict[int, tuple[Neighbour, ...]] = {}
        size = 1
        for count, k, stride in zip(layout.counts, layout.level_strides, layout.strides, strict=True):
            # The dependents of a block's dependents lie up to 2 (k - 1) away: their number is part of the class.
            reach = 2 * (k - 1)
            axis = _AxisClasses(count, k, reach, size)
            self._axes.append((stride, axis if count > _TABLE_LIMIT else [axis[at] for at in range(count)]))
            size *= axis.size

    @property
    def most_inputs(self) -> int:
        """Upper bound of the number of blocks that one block waits for."""
        return 1 << sum(k > 1 for k in self.layout.level_strides)

    def dependents(self, index: int) -> tuple[Neighbour, ...]:
        """Return the blocks that wait for block *index*, in order of their ids, with the number of inputs of each."""
        key: int = 0
        rest = index
        for stride, classes in self._axes:
            at, rest = divmod(rest, stride)
            key += classes[at]
        try:
            return self._dependents[key]
        except KeyError:
            found = tuple(
                Neighbour(other - index, len(self.inputs(other)))
                for other in sorted(self._moved(index, forward=True), key=self.layout.id_order)
            )
            if len(self._dependents) < _TABLE_LIMIT:
                self._dependents[key] = found
            return found

    def inputs(self, index: int) -> list[int]:
        """Return the blocks for which block *index* waits, in order of their ids."""
        return sorted(self._moved(index, forward=False), key=self.layout.id_order)

    def _moved(self, index: int, *, forward: bool) -> Iterator[int]:
        layout = self.layout
        coords = layout.coords(index)
        level = layout.level_of(coords)
        if forward and level + 1 == layout.num_levels:
            return
        sign = -1 if forward else 1
        for offset in layout.conflict_offsets(level + 1 if forward else level):
            moved = tuple(c + sign * o for c, o in zip(coords, offset, strict=True))
            if layout.contains(moved):
                yield layout.index(moved)


class _Classes(Protocol):
    def __getitem__(self, at: int, /) -> int: ...


class _AxisClasses:
    """Class numbers of the positions of one axis, already multiplied by the size of the axes before it."""

    def __init__(self, count: int, k: int, reach: int, scale: int) -> None:
        self._count, self._k, self._reach, self._scale = count, k, reach, scale
        self.size = k * (reach + 1) ** 2

    def __getitem__(self, at: int) -> int:
        below = min(at, self._reach)
        above = min(self._count - 1 - at, self._reach)
        return ((at % self._k * (self._reach + 1) + below) * (self._reach + 1) + above) * self._scale


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a relation between two layouts."""

    source_begin: int
    source_step: int
    source_end: int
    """Where the region that the source's blocks write ends."""
    source_count: int
    begin: int
    step: int
    size: int
    end: int | None
    """Where read intervals are clipped (fit ``"shrink"``), or ``None``."""
    count: int

    def inputs(self, at: int) -> tuple[int, int]:
        """Range of source positions whose write interval overlaps the read interval of position *at*."""
        low = self.begin + at * self.step
        high = low + self.size
        if self.end is not None:
            high = min(high, self.end)
        low, high = max(low, self.source_begin), min(high, self.source_end)
        if low >= high:
            return 0, 0
        return (low - self.source_begin) // self.source_step, -((self.source_begin - high) // self.source_step)

    def dependents(self, at: int) -> tuple[int, int]:
        """Range of positions whose read interval overlaps the write interval of source position *at*."""
        low = self.source_begin + at * self.source_step
        high = min(low + self.source_step, self.source_end)
        if self.end is not None:
            high = min(high, self.end)
            if low >= high:
                return 0, 0
        first = max(0, (low - self.size - self.begin) // self.step + 1)
        last = min(self.count, -((self.begin - high) // self.step))
        return (first, last) if first < last else (0, 0)


class Relation:
    """Dependencies of the blocks of one task (*reader*) on the blocks of another (*source*).

    A block of the reader waits for every block of the source whose write ROI overlaps its read ROI.

    Raises
    ------
    ConfigurationError
        The two layouts differ in rank.
    """

    def __init__(self, source: Layout, reader: Layout, *, source_id: str, reader_id: str) -> None:
        if source.rank != reader.rank:
            raise ConfigurationError(
                f"task {reader_id!r} has {reader.rank} axes and task {source_id!r}, on which it depends, has "
                f"{source.rank}: joined tasks need ROIs of the same rank"
            )
        self.source, self.reader = source, reader
        self._names = (source_id, reader_id)
        self.axes = tuple(self._axis(a) for a in range(source.rank))
        self._steps: tuple[dict[int, tuple[tuple[int, int], ...]], ...] = tuple({} for _ in self.axes)

    def _axis(self, a: int) -> Axis:
        source, reader = self.source, self.reader
        begin, end = (side[a] for side in source.covered)
        whole = begin + source.counts[a] * source.write_shape[a]
        clip = reader.total_begin[a] + reader.total_shape[a] if reader.fit == "shrink" else None
        return Axis(
            source_begin=begin,
            source_step=source.write_shape[a],
            source_end=min(end, whole) if source.fit == "shrink" else whole,
            source_count=source.counts[a],
            begin=reader.total_begin[a],
            step=reader.write_shape[a],
            size=reader.read_shape[a],
            end=clip,
            count=reader.counts[a],
        )

    def check(self) -> None:
        """Refuse a reader with a block that overlaps no block of the source: it would wait for ever.

        Read intervals move monotonically, so looking at the first and the last position of each axis is exact.

        Raises
        ------
        ConfigurationError
            Naming both tasks, the axis and both intervals.
        """
        if not self.reader.num_blocks:
            return
        for a, axis in enumerate(self.axes):
            for at in (0, axis.count - 1):
                low, high = axis.inputs(at)
                if low < high:
                    continue
                begin = axis.begin + at * axis.step
                end = begin + axis.size if axis.end is None else min(begin + axis.size, axis.end)
                source_id, reader_id = self._names
                raise ConfigurationError(
                    f"task {reader_id!r} depends on task {source_id!r}, but on axis {a} its "
                    f"{'first' if at == 0 else 'last'} block reads [{begin}, {end}) while the blocks of {source_id!r} "
                    f"write [{axis.source_begin}, {max(axis.source_begin, axis.source_end)}): no overlap, so it would "
                    f"wait for ever; enlarge the ROI of {source_id!r}, shrink that of {reader_id!r}, or drop the edge"
                )

    @property
    def most_inputs(self) -> int:
        """Upper bound of the number of source blocks that one block waits for."""
        return prod(min(axis.source_count, -(-axis.size // axis.source_step) + 1) for axis in self.axes)

    def num_inputs(self, index: int) -> int:
        """For how many source blocks block *index* of the reader waits."""
        return prod(
            high - low
            for low, high in (axis.inputs(at) for axis, at in zip(self.axes, self.reader.coords(index), strict=True))
        )

    def inputs(self, index: int) -> Iterator[int]:
        """Yield the source blocks for which block *index* of the reader waits, in C order."""
        coords = self.reader.coords(index)
        return _indices([axis.inputs(at) for axis, at in zip(self.axes, coords, strict=True)], self.source.strides)

    def dependents(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield ``(block of the reader, its number of inputs from the source)`` for each that waits for *index*."""
        steps = [self._axis_steps(a, at) for a, at in enumerate(self.source.coords(index))]
        if len(steps) == 1:
            return iter(steps[0])
        return ((sum(s for s, _ in pick), prod(n for _, n in pick)) for pick in product(*steps))

    def _axis_steps(self, a: int, at: int) -> tuple[tuple[int, int], ...]:
        """``(index contribution, number of inputs on this axis)`` of the dependents of source position *at*."""
        known = self._steps[a]
        found = known.get(at)
        if found is None:
            axis, stride = self.axes[a], self.reader.strides[a]
            found = tuple((d * stride, _extent(axis.inputs(d))) for d in range(*axis.dependents(at)))
            if len(known) < _TABLE_LIMIT:
                known[at] = found
        return found


def _extent(pair: tuple[int, int]) -> int:
    return pair[1] - pair[0]


def _indices(ranges: Sequence[tuple[int, int]], strides: Ints) -> Iterator[int]:
    axes = [range(low * s, high * s, s) for (low, high), s in zip(ranges, strides, strict=True)]
    return (sum(pick) for pick in product(*axes))
