"""What a tracking store knows about one block."""

from __future__ import annotations

import msgspec

from workspan.measure.profile import BlockStats  # at run time: msgspec and the docs resolve it

__all__ = ["BlockRecord"]


class BlockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a task, as its tracking store remembers it.

    A block has a record once it was executed, or marked as done without being executed (by a check function); then
    *stats* and the stamps are ``None``.
    """

    coord: tuple[int, ...]
    """Position in the tracking grid, which starts at the begin of the total ROI."""
    done: bool
    """Whether the block once succeeded."""
    failures: int
    """Started attempts that did not succeed, over all runs of the store."""
    stats: BlockStats | None = None
    """What the attempt that succeeded cost, measured by its worker; a field that could not be measured is ``None``."""
    worker_id: int | None = None
    """Worker of the attempt that succeeded, in the run that completed the block; ``None``: no managed worker."""
    sent_at: float | None = None
    """When that attempt was sent out, in seconds since the UNIX epoch, on the driver's clock."""
    returned_at: float | None = None
    """When it came back; never before *sent_at*."""
    steps: dict[str, float] = {}
    """Self time per named section that was executed, in seconds."""
