"""One block: where it reads, where it writes, who it is."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError
from workspan.grid.layout import pyramid_number

if TYPE_CHECKING:
    from funlib.geometry import Roi

    from workspan.grid.layout import Box, Layout
    from workspan.measure.profile import BlockStats

BlockId = tuple[str | None, int]


class BlockStatus(IntEnum):
    """State of a block as its worker sees it."""

    CREATED = 0
    PROCESSING = 1
    SUCCESS = 2
    FAILED = 3


_STATUSES = {int(status): status for status in BlockStatus}


class Block:
    """A block of a task.

    Two blocks are equal (and hash alike) iff their :attr:`block_id` is equal. Blocks pickle with ROIs, id and status;
    statistics stay behind.

    Parameters
    ----------
    total_roi, read_roi, write_roi
        Region of the task, and what this block reads and writes, in world units. Anything with ``offset`` (or
        ``begin``) and ``shape``.
    task_id
        The task this block belongs to.
    block_id
        ``(task_id, spatial id)`` or a spatial id; computed from *total_roi* and *write_roi* if not given.

    Attributes
    ----------
    stats
        What the block cost: a ``BlockStats``, or ``None`` while nothing has been measured.
    """

    __slots__ = (
        "_index",
        "_layout",
        "_read_roi",
        "_spatial_id",
        "_status",
        "_task_id",
        "_total_roi",
        "_write_roi",
        "stats",
    )

    def __init__(
        self,
        total_roi: Any,
        read_roi: Any,
        write_roi: Any,
        task_id: str | None = None,
        block_id: int | BlockId | None = None,
    ) -> None:
        self._layout: Layout | None = None
        self._index: int | None = None
        self._total_roi: Roi | None = as_roi(total_roi, "total_roi")
        self._read_roi: Roi | None = as_roi(read_roi, "read_roi")
        self._write_roi: Roi | None = as_roi(write_roi, "write_roi")
        self._status = BlockStatus.CREATED
        self.stats: BlockStats | None = None
        if isinstance(block_id, tuple):
            own, spatial = block_id
            task_id = own if task_id is None else task_id
            self._spatial_id: int | None = spatial
        elif block_id is not None:
            self._spatial_id = int(block_id)
        else:
            write, total = self._write_roi, self._total_roi
            self._spatial_id = pyramid_number(
                [(w - t) // s for w, t, s in zip(write.begin, total.begin, write.shape, strict=True)]
            )
        self._task_id = task_id

    @classmethod
    def at(cls, layout: Layout, index: int, task_id: str | None, status: BlockStatus = BlockStatus.CREATED) -> Block:
        """Make the block *index* of *layout*; its ROIs are computed when they are first asked for."""
        block = cls.__new__(cls)
        block._layout = layout
        block._index = index
        block._total_roi = block._read_roi = block._write_roi = block._spatial_id = block.stats = None
        block._task_id = task_id
        block._status = status
        return block

    @property
    def index(self) -> int | None:
        """C-order number in the task's mask grid; ``None`` for a block made by hand."""
        return self._index

    @property
    def task_id(self) -> str | None:
        """Id of the task, the first element of :attr:`block_id`."""
        return self._task_id

    @property
    def block_id(self) -> BlockId:
        """``(task_id, spatial id)``."""
        if self._spatial_id is None:
            assert self._layout is not None
            assert self._index is not None
            self._spatial_id = self._layout.block_id(self._index)
        return self._task_id, self._spatial_id

    @property
    def total_roi(self) -> Roi:
        """Region of the whole task, in world units."""
        if self._total_roi is None:
            assert self._layout is not None
            begin, shape = self._layout.total_begin, self._layout.total_shape
            self._total_roi = box_roi((begin, tuple(b + s for b, s in zip(begin, shape, strict=True))))
        return self._total_roi

    @property
    def read_roi(self) -> Roi:
        """Region that this block reads, in world units."""
        if self._read_roi is None:
            assert self._layout is not None
            assert self._index is not None
            self._read_roi = box_roi(self._layout.read_box(self._index))
        return self._read_roi

    @property
    def write_roi(self) -> Roi:
        """Region that this block writes, in world units."""
        if self._write_roi is None:
            assert self._layout is not None
            assert self._index is not None
            self._write_roi = box_roi(self._layout.write_box(self._index))
        return self._write_roi

    @property
    def status(self) -> BlockStatus:
        """State of the block; assign ``BlockStatus.FAILED`` to fail it without raising."""
        return self._status

    @status.setter
    def status(self, value: int) -> None:
        try:
            self._status = _STATUSES[value]
        except (KeyError, TypeError):
            names = ", ".join(f"{status.name} ({status.value})" for status in BlockStatus)
            raise ConfigurationError(f"block.status = {value!r} is not a status: use one of {names}") from None

    def __eq__(self, other: object) -> bool:
        return self.block_id == other.block_id if isinstance(other, Block) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.block_id)

    def __repr__(self) -> str:
        task, spatial = self.block_id
        return f"Block({task!r}, {spatial}, read {self.read_roi}, write {self.write_roi}, {self._status.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        rois = (self.total_roi, self.read_roi, self.write_roi)
        return _rebuild, (*rois, self.block_id, int(self._status))


def _rebuild(total: Roi, read: Roi, write: Roi, block_id: BlockId, status: int) -> Block:
    block = Block(total, read, write, block_id=block_id)
    block.status = status
    return block


def index_of(layout: Layout, block: Block) -> int:
    """Return the index of *block* in *layout*.

    Raises
    ------
    ConfigurationError
        It is not a block of that layout.
    """
    begin = tuple(block.write_roi.begin)
    steps = [(b - c, w) for b, c, w in zip(begin, layout.covered[0], layout.write_shape, strict=True)]
    coords = [at // w for at, w in steps]
    if any(at % w for at, w in steps) or not layout.contains(coords):
        raise ConfigurationError(
            f"{block!r} is no block of this task: its blocks are {layout.write_shape} from {layout.covered[0]} on, "
            f"{layout.counts} per axis"
        )
    return layout.index(coords)


def box_roi(box: Box) -> Roi:
    """Return the funlib ``Roi`` of a half-open box ``(begin, end)``."""
    from funlib.geometry import Roi

    begin, end = box
    return Roi(begin, tuple(e - b for b, e in zip(begin, end, strict=True)))


def as_roi(value: Any, name: str) -> Roi:
    """Return *value* as a funlib ``Roi``.

    Raises
    ------
    ConfigurationError
        *value* (the argument *name*) has no ``offset``/``begin`` and ``shape``.
    """
    from funlib.geometry import Roi

    if isinstance(value, Roi):
        return value
    offset = getattr(value, "offset", None)
    offset = getattr(value, "begin", None) if offset is None else offset
    shape = getattr(value, "shape", None)
    if offset is None or shape is None:
        raise ConfigurationError(f"{name}={value!r} is not a region: pass Roi(offset, shape)")
    return Roi(offset, shape)
