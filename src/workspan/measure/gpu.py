"""What this process does on NVIDIA devices while its blocks run, asked of the driver (NVML) now and then.

A thread asks, and only while a block runs; nothing here is imported where there is no device or no ``pynvml``. All
figures are those of this process, found by its id: what others do on the same device is never taken for it. What NVML
does not tell stays unknown. After any failure it is not asked again in this process.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from math import nan
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["INTERVAL_SECONDS", "PERIOD_SECONDS", "GpuSampler", "GpuWindow"]

INTERVAL_SECONDS = 0.2
"""Between two samples."""

PERIOD_SECONDS = 1.0
"""The longest time over which the driver averages utilisation. It lists only processes that had some, so that silence
means 0 after this time, and nothing before."""

_logger = logging.getLogger(__name__)


class GpuWindow:
    """The samples that fell into one measurement."""

    __slots__ = ("began", "peak_bytes", "percent_sum", "percents")

    def __init__(self) -> None:
        self.began: float | None = None
        """Time of its first sample, in seconds: from then on, news of the driver is about this measurement."""
        self.peak_bytes = 0
        self.percents = 0
        """Number of samples with a known utilisation."""
        self.percent_sum = 0.0


class _Device:
    """One device, and what it last said of this process."""

    __slots__ = ("cursor", "handle", "news_at", "percent", "tells_percent")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.cursor = 0
        """Stamp of the newest utilisation that was read; stamps are the driver's own, and only compared."""
        self.percent = 0.0
        self.news_at = -PERIOD_SECONDS
        """When :attr:`percent` was read."""
        self.tells_percent = True


class GpuSampler:
    """Utilisation and memory of this process on all devices.

    Measurements may overlap. Thread-safe.

    Parameters
    ----------
    load
        Returns the module ``pynvml``; called in the sampling thread, as that takes tens of milliseconds.
    clock
        Monotonic clock, in seconds.
    """

    def __init__(self, *, load: Callable[[], Any] | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._load = _pynvml if load is None else load
        self._clock = clock
        self.pid = os.getpid()
        """The process that it is about. A forked child needs a sampler of its own."""
        self.is_off = False
        """NVML has failed, and is not asked any more."""
        self._lock = threading.Lock()
        self._windows: list[GpuWindow] = []
        self._is_needed = threading.Event()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml: Any = None
        self._devices: list[_Device] = []
        self._last: float | None = None

    def start(self) -> GpuWindow:
        """Begin a measurement; the first one starts the thread."""
        window = GpuWindow()
        if self.is_off or self.pid != os.getpid():
            return window
        with self._lock:
            self._windows.append(window)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="workspan-gpu", daemon=True)
                self._thread.start()
        self._is_needed.set()
        return window

    def finish(self, window: GpuWindow) -> tuple[float, int]:
        """End a measurement.

        Returns
        -------
        percent
            Mean utilisation over the samples and over the devices that this process was on; NaN: not known.
        peak_bytes
            Most memory that it held on all devices together; 0: none, or not known.
        """
        if self.pid != os.getpid():  # in a fork the lock may be held for ever, and the figures are the parent's
            return nan, 0
        with self._lock:
            if window in self._windows:
                self._windows.remove(window)
            if not self._windows:
                self._is_needed.clear()
        return window.percent_sum / window.percents if window.percents else nan, window.peak_bytes

    def close(self) -> None:
        """End the thread. Can be repeated; the sampler measures nothing afterwards."""
        self.is_off = True
        self._is_over.set()
        self._is_needed.set()
        if self._thread is not None and self.pid == os.getpid():
            self._thread.join(5.0)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.begin()
            while self._devices and not self._is_over.is_set():
                self._is_needed.wait()
                self.sample()
                self._is_over.wait(INTERVAL_SECONDS)
        except Exception as error:  # whatever a driver, a library or its binding comes up with
            if not self._is_over.is_set():
                _logger.warning("process %d does not measure its GPU use: %s", self.pid, str(error) or type(error))
        finally:
            self.is_off = True
            with suppress(Exception):
                self._nvml.nvmlShutdown()

    def begin(self) -> None:
        """Load NVML and look for devices."""
        self._nvml = nvml = self._load()
        nvml.nvmlInit()
        self._devices = [_Device(nvml.nvmlDeviceGetHandleByIndex(n)) for n in range(nvml.nvmlDeviceGetCount())]

    def sample(self) -> None:
        """Ask all devices once, for the measurements that are under way."""
        with self._lock:
            windows = list(self._windows)
        if not windows:
            return
        now = self._clock()
        has_paused = self._last is None or now - self._last > 2 * INTERVAL_SECONDS
        self._last = now
        total = 0
        percents: list[tuple[float, bool]] = []
        for device in self._devices:
            held = self._held_bytes(device)
            if held is not None:  # the process is on this device
                total += held
                if device.tells_percent:
                    self._read_percent(device, now, is_old=has_paused)
                    percents.append((device.percent, now - device.news_at < PERIOD_SECONDS))
        for window in windows:
            window.peak_bytes = max(window.peak_bytes, total)
            if window.began is None:
                window.began = now  # what the driver said until now may be about the block before
                continue
            if now - window.began >= PERIOD_SECONDS:
                known = [percent if is_new else 0.0 for percent, is_new in percents]
            else:
                known = [percent for percent, is_new in percents if is_new]
            window.percents += len(known)
            window.percent_sum += sum(known)

    def _held_bytes(self, device: _Device) -> int | None:
        """Memory of this process on *device*, in bytes, 0 if NVML does not tell; ``None``: it is not there."""
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device.handle):
            if process.pid == self.pid:
                return int(process.usedGpuMemory or 0)
        return None

    def _read_percent(self, device: _Device, now: float, *, is_old: bool) -> None:
        """Read what is new about the utilisation; *is_old*: it is from before the blocks that run now."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device.handle, device.cursor)
        except nvml.NVMLError as error:
            # No process did anything (the binding raises "success" for an empty list), or one more came in between.
            if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INSUFFICIENT_SIZE):
                return
            if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION):
                raise
            device.tells_percent = False
            _logger.warning("process %d does not measure how busy its GPU is: %s", self.pid, error)
            return
        before = device.cursor
        for sample in sorted(samples, key=lambda sample: int(sample.timeStamp)):
            if sample.timeStamp > before:
                device.cursor = int(sample.timeStamp)
                if sample.pid == self.pid and not is_old:
                    device.percent, device.news_at = float(sample.smUtil), now


def _pynvml() -> Any:
    import pynvml

    return pynvml
