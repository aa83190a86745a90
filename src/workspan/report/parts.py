"""The parts of a report: what the blocks cost, what the workers did, what failed.

Times are seconds, memory and I/O are bytes. ``None`` means not measured, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workspan.measure.stats import Stat
from workspan.report._value import Value

EXITS = ("clean", "error", "timeout", "interrupted")
"""How a worker can end, in the order in which reports list it."""


@dataclass(frozen=True, slots=True)
class BlocksSummary(Value):
    """The blocks of one task in one run."""

    count: int
    """Completed blocks, skipped ones included. ``count - skipped`` blocks were executed."""
    total: int
    """Blocks of the task."""
    skipped: int
    """Completed without running: done before, masked, or found done by the check function."""
    failed: int
    """Given up after the last retry."""
    orphaned: int
    """Could not run, since a block that they need failed or their task was abandoned."""
    failures: int
    """Attempts that did not succeed, of retried blocks as well as of failed ones."""
    round_trip: Stat
    """Seconds from sending a block to its return, as the driver saw it; no samples where there are no workers."""
    wall: Stat | None = None
    """Seconds in the block function, measured by the worker. This field and those below: ``None`` without resource
    tracking, and where executed blocks came back without the figure because the platform lacks it."""
    cpu: Stat | None = None
    """User and system CPU seconds of the worker's process, all threads."""
    peak_rss: Stat | None = None
    """Peak resident set of the worker's process while the block ran, in bytes."""
    io_read: Stat | None = None
    """Bytes read through the syscall layer."""
    io_write: Stat | None = None
    """Bytes written through the syscall layer."""
    overhead: Stat | None = None
    """Round trip less wall, in seconds."""
    trend: float | None = None
    """Slope of the wall time over the order of completion, in ms per block; positive: blocks got slower."""
    gpu_util: Stat | None = None
    """Utilisation of the devices by the worker's process alone, in percent; a sample a block in which it was measured.
    This field and the next: ``None`` unless some block has the figure."""
    gpu_mem: Stat | None = None
    """Peak device memory of the worker's process while the block ran, in bytes; a sample a block as above."""


@dataclass(frozen=True, slots=True)
class StepSummary(Value):
    """One named step (section) of a task's blocks."""

    self_seconds: Stat = field(metadata={"key": "self"})
    """Self time per block: the step's own window less the steps inside it. A sample a block that ran the step."""
    calls: int
    """How often the step was entered, over all blocks."""
    share: float | None
    """Part of the task's work that it took, 0 to 1; ``None`` if that work is not known."""


@dataclass(frozen=True, slots=True)
class WorkerRecord(Value):
    """The life of one worker."""

    id: int
    startup: float | None
    """Seconds from the spawn call to the first request for a block; ``None``: it never asked."""
    blocks: int
    """Blocks that it completed."""
    blocks_failed: int
    """Attempts on it that failed, were lost or ran over their deadline."""
    idle: Stat
    """Seconds between a return (or the first request) and the next block; a sample a block."""
    compute: Stat
    """Seconds between a block and its return, failed ones included; a sample a return."""
    final_wait: float | None
    """Seconds from its last return (or first request) until it was told to end."""
    teardown: float | None
    """Seconds from being told to end until it was gone; only of clean exits."""
    exit: str | None
    """``"clean"``, ``"error"``, ``"timeout"`` or ``"interrupted"``; ``None``: it still ran."""
    text: str | None = None
    """What is known of an end that was not clean: exit code or signal, and what it last wrote to its error stream."""


@dataclass(frozen=True, slots=True)
class WorkersSummary(Value):
    """The workers of one task in one run."""

    count: int
    """Workers that were started, replacements included."""
    startup: Stat
    """Seconds; over workers."""
    idle: Stat
    """Seconds; over all blocks of all workers."""
    compute: Stat
    """Seconds; over all returns of all workers."""
    final_wait: Stat
    """Seconds; over workers."""
    teardown: Stat
    """Seconds; over workers that ended cleanly."""
    exits: dict[str, int]
    """How many workers ended in which way."""
    unmanaged_clients: int
    """Connections of clients that were not started by the run; they are not timed."""
    records: tuple[WorkerRecord, ...]
    """One entry a worker, by id."""


@dataclass(frozen=True, slots=True)
class TaskPlace(Value):
    """Where a task stood in its run, so that the run can be put together from its tasks' lines."""

    position: int
    """In the display order of the tasks, from 0."""
    tasks: int
    """Tasks of the run."""
    span_seconds: float | None = None
    """Longest path through the blocks of all tasks; ``None``: not measured."""


@dataclass(frozen=True, slots=True)
class BlockFailure(Value):
    """A block that was given up."""

    cell: tuple[int, ...]
    """Position in the tracking grid, as ``report.block`` takes it."""
    block_id: int
    """Spatial id."""
    read_begin: tuple[int, ...]
    """Begin of its read ROI, in world units."""
    read_shape: tuple[int, ...]
    write_begin: tuple[int, ...]
    """Begin of its write ROI, in world units."""
    write_shape: tuple[int, ...]
    attempts: int
    """How often it was tried in this run."""
    cause: str
    """``"error"``: reported by the worker, ``"lost"``: with its worker, ``"timeout"``: over its deadline."""
    error: str
    """Text of the last attempt's failure, the traceback from the user's first line on."""
    worker: int | None = None
    """Worker of the last attempt."""
    log: str | None = None
    """Log file of that worker."""
