"""What one map task tells of itself: numbers only, which a small file beside its result carries to the driver.

Labels are not in it: the driver has the plan, and with it the list of steps. The sections of the same steps travel with
the block's message, as those of any block do; both are made of the same windows of the same timers.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["BlockTimes", "Flow", "StepFigures", "TaskRecord", "pack", "unpack"]


class BlockTimes(msgspec.Struct, array_like=True):
    """One output block."""

    started_at: float
    """Begin of the work on it, in seconds since the epoch."""
    wall_seconds: float
    """From there until it was ready."""
    cpu_seconds: float
    """CPU time of the process meanwhile."""
    rows: int
    bytes: int
    serialise_seconds: float
    """Writing it to where the consumer finds it; not in the wall time."""
    attempt: int
    """Which attempt of the task made it, from 1."""
    self_ns: list[int] | None
    """Self time of each step, in ns; ``None``: timing was off."""


class StepFigures(msgspec.Struct, array_like=True):
    """One step, over the whole task."""

    pulls: int = 0
    items: int = 0
    first_item_s: float | None = None
    overlapped: bool = False
    latency: tuple[int, float, float, list[list[float]]] | None = None
    """Pulls that gave an item: their number, the least and the greatest in seconds, and samples in ns, of which those
    of level *i* stand for ``2 ** i`` each."""
    cpu_ns: int | None = None
    """CPU time of its own work; ``None``: not measured."""
    rows: int | None = None
    """Rows of its items; ``None``: not measured, or they have none."""
    bytes: int | None = None
    sections: list[tuple[str, int, int]] = []
    """Sections that were opened in it: name, self time in ns, calls."""


class Flow(msgspec.Struct, array_like=True):
    """What went out of a stage."""

    blocks: int = 0
    rows: int = 0
    bytes: int = 0
    calls: int = 0
    """Calls of its function that returned."""
    errored_calls: int = 0
    errored_rows: int = 0
    first_error: str | None = None


class TaskRecord(msgspec.Struct, array_like=True):
    """One map task."""

    index: int
    node: str
    pid: int
    started_at: float
    wall_seconds: float
    blocks: list[BlockTimes]
    trailing_ns: list[int] | None
    """Self time of each step after the last block."""
    steps: list[StepFigures]
    flows: list[Flow]
    blocks_in: int
    rows_in: int | None
    """``None``: it has no input, but reads."""
    fetch_seconds: float = 0.0
    setup_seconds: list[float | None] = []
    """Constructing the instance of each stage's class in this process, where this task did that."""
    attempts: int = 1
    failed_seconds: float = 0.0
    """Time of failed attempts since the block before."""
    replayed_seconds: float = 0.0
    """Time in which blocks were made again that had been delivered."""
    backoff_seconds: float = 0.0
    clamped_ns: int = 0
    overhead_seconds: float | None = None
    """What the timers are estimated to have cost."""
    files: int = 0
    """Arrow files that hold the result."""
    written: tuple[str, int, int | None] | None = None
    """Name, rows and bytes of the file that a sink wrote."""
    statistics: list[Any] = []
    """What ``end_task()`` of the function of each stage returned; ``None``: it has none."""
    held_seconds: float = 0.0
    """Waiting before it began, as what it makes was not wanted yet; not in the wall time."""
    bytes_in: int | None = None
    """``None``: it has no input, but reads."""
    schema: bytes | None = None
    """Schema of what a sink wrote, or was to write where there were no rows and so no file."""


def pack(record: TaskRecord) -> bytes:
    """Return the record as bytes."""
    return msgspec.msgpack.encode(record)


def unpack(data: bytes) -> TaskRecord:
    """Return the record again."""
    return msgspec.msgpack.decode(data, type=TaskRecord)
