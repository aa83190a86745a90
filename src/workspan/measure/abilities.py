"""What can be measured here: tried out, not assumed. For ``workspan doctor``; nothing else imports it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.measure import ticks, timers
from workspan.measure.counters import PER_BLOCK, ProcessCounters
from workspan.measure.gpu import _pynvml
from workspan.measure.profile import DEVICE_FILES, Profile
from workspan.measure.sections import section

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clocks", "Costs", "Gpu", "clocks", "costs", "counters", "gpu", "processors"]

_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class Clocks(NamedTuple):
    """The clocks of this process."""

    native_sections: bool
    """The compiled bookkeeping of sections is in use."""
    native_timer: bool
    """The compiled timer of steps is in use."""
    forced_pure: bool
    """``WORKSPAN_PURE_PYTHON`` asks for the pure-Python twins."""
    clock: str
    """Which clock windows use: ``"tsc"`` or ``"monotonic"``."""
    tsc_is_invariant: bool | None
    """Whether the processor's counter runs at one speed; ``None``: the compiled timer, which can tell, is missing."""
    kernel_clock: str | None
    """Clock by which the kernel keeps time; ``None``: it does not say."""
    reading_ns: float
    """Time of one reading of that clock, in ns, called from Python."""
    resolution_ns: float
    """Smallest step of the monotonic clock, in ns, as the system states it."""


class Costs(NamedTuple):
    """What measuring costs here: the median of some hundred."""

    section_seconds: float
    """Of an empty ``with section(...)``."""
    profile_seconds: float
    """Of an empty measurement of a block."""


class Counters(NamedTuple):
    """Counters of this process that can be read."""

    has_cpu: bool
    has_io: bool
    resets_mark: bool
    """The high-water mark of memory can be reset, so that every block has a peak of its own."""
    usage_follows_mark: bool
    """``ru_maxrss`` follows the mark and is read instead of it, as that is cheaper."""


class Gpu(NamedTuple):
    """NVIDIA devices."""

    has_device_file: bool
    has_library: bool
    """``pynvml`` is installed."""
    names: tuple[str, ...]
    """Devices that the driver lists."""
    error: str
    """What NVML said instead; "": nothing."""


class Processors(NamedTuple):
    """Processors of this machine, and how much of them this process may use."""

    present: int
    allowed: int
    """To which it is bound (affinity)."""
    limit: float | None
    """Processor time per time that the control group allows; ``None``: no limit."""

    @property
    def usable(self) -> float:
        """As many can be kept busy."""
        return self.allowed if self.limit is None else min(self.allowed, self.limit)


def clocks() -> Clocks:
    """Look at the clocks."""
    tell = getattr(timers.implementation, "tsc_is_invariant", None)
    name = timers.default_clock()
    try:
        kernel: str | None = _CLOCK_SOURCE.read_text().strip()
    except OSError:
        kernel = None
    return Clocks(
        native_sections=ticks.NATIVE,
        native_timer=timers.NATIVE,
        forced_pure=os.environ.get("WORKSPAN_PURE_PYTHON", "0") not in ("", "0"),
        clock=name,
        tsc_is_invariant=None if tell is None else bool(tell()),
        kernel_clock=kernel,
        reading_ns=1e9 * _seconds_each(timers.CLOCKS[name], 1000),
        resolution_ns=1e9 * time.get_clock_info("monotonic").resolution,
    )


def costs() -> Costs:
    """Measure what an empty section and an empty measurement of a block cost."""

    def one_section() -> None:
        with section("workspan doctor"):
            pass

    def one_profile() -> None:
        with Profile(counters=counters_here):
            pass

    counters_here = ProcessCounters()
    try:
        one_profile()  # the first one finds out how
        return Costs(_seconds_each(one_section, 100), _seconds_each(one_profile, 20))
    finally:
        counters_here.close()


def _seconds_each(call: Callable[[], Any], times: int, *, rounds: int = 7) -> float:
    """Return the time of one call, in seconds: the median of some rounds."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(times):
            call()
        found.append((time.perf_counter() - begin) / times)
    return sorted(found)[rounds // 2]


def counters(proc: str | os.PathLike[str] = "/proc/self") -> Counters:
    """Try the counters of this process.

    Parameters
    ----------
    proc
        Folder with ``io``, ``status`` and ``clear_refs``.
    """
    here = ProcessCounters(proc)
    try:
        resets = here.memory_source == PER_BLOCK
        found = here.finish(here.start())
        return Counters(
            has_cpu=found.cpu_seconds is not None,
            has_io=found.io_read_bytes is not None and found.io_write_bytes is not None,
            resets_mark=resets,
            usage_follows_mark=bool(here.usage_has_mark),
        )
    finally:
        here.close()


def gpu(device_files: tuple[str, ...] = DEVICE_FILES, *, load: Callable[[], Any] | None = None) -> Gpu:
    """Look for NVIDIA devices, and ask the driver about them.

    Parameters
    ----------
    device_files
        One of them is there where a process can use a device.
    load
        Returns the module ``pynvml``.
    """
    from importlib.util import find_spec

    has_file = any(map(os.path.exists, device_files))
    has_library = load is not None or find_spec("pynvml") is not None
    if not has_file or not has_library:
        return Gpu(has_file, has_library, (), "")
    try:
        nvml = _pynvml() if load is None else load()
        nvml.nvmlInit()
        try:
            names = [
                nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(n)) for n in range(nvml.nvmlDeviceGetCount())
            ]
        finally:
            nvml.nvmlShutdown()
    except Exception as error:  # whatever a driver or its binding comes up with
        return Gpu(has_file, has_library, (), str(error) or type(error).__name__)
    return Gpu(has_file, has_library, tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names), "")


def processors(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Processors:
    """Count processors, and look for a limit of the control group (version 2 or 1) or of one above it.

    Parameters
    ----------
    proc, cgroup
        Mount points of the two file systems.
    """
    present = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    return Processors(present, allowed, _cpu_limit(proc, cgroup))


def _cpu_limit(proc: Path, cgroup: Path) -> float | None:
    limits = []
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            base = cgroup
            if controllers:
                if "cpu" not in controllers.split(","):
                    continue
                base = next((b for b in (cgroup / "cpu", cgroup / controllers) if b.is_dir()), cgroup / "cpu")
            # Inside a container the group's path may be the host's, and its root is what is mounted.
            here = base / path.strip("/")
            for folder in dict.fromkeys([here, *here.parents]):
                if folder != base and base not in folder.parents:
                    break
                limits.append(_limit_of(folder))
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_of(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    return None
