"""What one block costs, measured by whoever runs it: the same code in every engine."""

from __future__ import annotations

import os
from math import nan
from typing import TYPE_CHECKING, Protocol

import msgspec

from workspan.errors import ConfigurationError
from workspan.measure.counters import ProcessCounters
from workspan.measure.ticks import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from workspan.measure.counters import Snapshot, Watch
    from workspan.measure.gpu import GpuSampler, GpuWindow

__all__ = ["BlockStats", "Measured", "Profile", "attach", "close_counters", "memory_source", "profile_block"]


class BlockStats(msgspec.Struct, frozen=True, array_like=True):
    """What one block cost. All figures are those of the whole process, every thread included.

    A figure that this platform cannot tell is ``None``. Two of them are equal if their figures are; NaN equals NaN.
    On the wire it is an array.
    """

    wall_seconds: float = 0.0
    """Elapsed time of the body, by a monotonic clock."""
    cpu_seconds: float | None = 0.0
    """User and system time, without child processes."""
    peak_rss_bytes: int | None = 0
    """Peak resident memory while the block ran: what the process held before, and what the block added. Where the mark
    cannot be reset, the peak of the process so far; :func:`memory_source` says which."""
    io_read_bytes: int | None = 0
    """Bytes read through system calls, whether from a disk, a cache or a pipe."""
    io_write_bytes: int | None = 0
    """Bytes written through system calls."""
    gpu_util_pct: float = nan
    """Mean utilisation of the devices that the process was on, in percent, by itself alone; NaN: not measured."""
    gpu_mem_bytes: int = 0
    """Most device memory that the process held while the block ran; 0: none, or not measured."""

    def _key(self) -> tuple[float | None, ...]:
        return tuple(None if figure != figure else figure for figure in msgspec.structs.astuple(self))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, BlockStats) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())


class Measured(Protocol):
    """What carries its measurement home: a block."""

    stats: BlockStats | None


_counters = ProcessCounters()

DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""One of them is there where a process can use an NVIDIA device: on Linux, and on Linux under Windows."""

_gpu: GpuSampler | None = None
_gpu_looked_in = 0
"""Process that has looked for a device."""


def gpu_sampler() -> GpuSampler | None:
    """Return this process's sampler of its GPU use; ``None`` without a device, or without the extra ``gpu``."""
    global _gpu, _gpu_looked_in
    if _gpu_looked_in != os.getpid():
        _gpu_looked_in, _gpu = os.getpid(), None
        if any(map(os.path.exists, DEVICE_FILES)):  # the cheap question first: most machines have no device
            from importlib.util import find_spec

            if find_spec("pynvml") is not None:
                from workspan.measure.gpu import GpuSampler

                _gpu = GpuSampler()
    return _gpu


class Profile:
    """Measure the body of a ``with`` block; the figures are in :attr:`stats` afterwards, also if the body raised.

    It can be used again, block after block. Profiles may overlap and nest: each sees all that the process does
    meanwhile. Side effect on Linux: the process's ``ru_maxrss`` drops to the peak since the last block began.

    Parameters
    ----------
    clock
        Monotonic clock, in ns.
    counters
        Counters of the process; ``None``: this process's own, shared by all profiles. Given ones measure no GPU.

    Raises
    ------
    ConfigurationError
        It is entered while it measures.

    Examples
    --------
    >>> with Profile() as profile:
    ...     data = bytearray(1_000_000)
    >>> profile.stats.wall_seconds > 0
    True
    """

    __slots__ = ("_began", "_clock", "_counters", "_gpu", "_start", "_watches_gpu", "stats")

    def __init__(self, *, clock: Callable[[], int] = now_ns, counters: ProcessCounters | None = None) -> None:
        self._clock = clock
        self._counters = _counters if counters is None else counters
        self._watches_gpu = counters is None
        self._gpu: tuple[GpuSampler, GpuWindow] | None = None
        self._start: Snapshot | Watch | None = None
        self._began = 0
        self.stats: BlockStats | None = None
        """What the last body cost; ``None`` before its end."""

    def __enter__(self) -> Self:
        if self._start is not None:
            raise ConfigurationError("this Profile is measuring already: use another one for a block inside a block")
        self.stats = None
        if self._watches_gpu and (_gpu is not None or not _gpu_looked_in):  # who found none, finds none as a fork
            sampler = gpu_sampler()
            self._gpu = None if sampler is None else (sampler, sampler.start())
        meter = self._counters.meter
        start = None if meter is None else meter.start()
        self._start = self._counters.start() if start is None else start
        self._began = self._clock()
        return self

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        ended = self._clock()
        start = self._start
        if start is not None:
            self._start = None
            meter = self._counters.meter
            costs = None if meter is None else meter.finish(start)
            cpu, read, write, peak = self._counters.finish(start) if costs is None else costs
            wall = (ended - self._began) / 1e9
            if self._gpu is None:
                self.stats = BlockStats(wall, cpu, peak, read, write)
            else:
                sampler, window = self._gpu
                self._gpu = None
                self.stats = BlockStats(wall, cpu, peak, read, write, *sampler.finish(window))


class profile_block:
    """Measure a ``with`` block and attach the figures to *block*, also if the body raises.

    Workers do this around the whole block function; use it inside the function to narrow what is measured. The first
    measurement that is attached stays: the inner one, which ends first, beats the automatic one around it, and a second
    one changes nothing.

    Parameters
    ----------
    block
        The block; its ``stats`` are set at the end.

    Examples
    --------
    >>> def process(block):
    ...     data = load(block)
    ...     with profile_block(block):
    ...         compute(data)
    """

    __slots__ = ("_block", "_profile")

    def __init__(self, block: Measured) -> None:
        self._block = block
        self._profile = Profile()

    def __enter__(self) -> Profile:
        return self._profile.__enter__()

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        self._profile.__exit__()
        attach(self._block, self._profile.stats)


def attach(block: Measured, stats: BlockStats | None) -> BlockStats | None:
    """Give *block* its measurement unless it has one; return the one that it has then."""
    if block.stats is None:
        block.stats = stats
    return block.stats


def memory_source() -> str:
    """Return what ``peak_rss_bytes`` is in this process.

    ``"VmHWM reset per block"``, or ``"ru_maxrss, process lifetime"`` where the high-water mark cannot be reset: then it
    is the peak so far, or that of the process that started this one.
    """
    return _counters.memory_source


def close_counters() -> None:
    """Close the files of ``/proc/self`` that measurements keep open, and end the thread that watches the GPU.

    New measurements open them again.
    """
    global _gpu_looked_in
    _counters.close()
    if _gpu is not None:
        _gpu.close()
        _gpu_looked_in = 0
