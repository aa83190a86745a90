from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from workspan.measure import gpu, profile
from workspan.measure.gpu import GpuSampler
from workspan.measure.profile import Profile, close_counters

ME = os.getpid()
OTHER = ME + 1
GIB = 1 << 30


class NVMLError(Exception):
    """As in the real module: known by its number."""

    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text)
        self.value = value


@dataclass
class FakeNvml:
    """A module ``pynvml`` whose devices say what the test tells them to."""

    devices: int = 1
    held: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """(device, process) -> bytes."""
    used: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Device -> (stamp, process, percent) of each sample in its buffer."""
    broken: set[str] = field(default_factory=set)
    """Functions that raise."""
    calls: list[str] = field(default_factory=list)

    silence: int = 6
    """Number of the error that says that there are no samples."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_INSUFFICIENT_SIZE = 7

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.broken:
            raise NVMLError(999, f"{name} is broken")

    def nvmlInit(self) -> None:
        self._called("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._called("nvmlShutdown")

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        self._called("processes")
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=held) for (where, pid), held in self.held.items() if where == device
        ]

    def nvmlDeviceGetProcessUtilization(self, device: int, since: int) -> list[SimpleNamespace]:
        self._called("utilisation")
        for name, number in (("no utilisation", 3), ("forbidden", 4)):
            if name in self.broken:
                raise NVMLError(number, name)
        found = [
            SimpleNamespace(timeStamp=stamp, pid=pid, smUtil=percent)
            for stamp, pid, percent in self.used.get(device, [])
            if stamp > since
        ]
        if not found:
            raise NVMLError(self.silence, "Not Found")
        return found


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


class Lab:
    """A sampler whose thread the test stands in for, at times of its own."""

    def __init__(self, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(GpuSampler, "_run", lambda self: None)
        self.now = 100.0
        self.sampler = GpuSampler(load=lambda: nvml, clock=lambda: self.now)
        self.sampler.begin()

    def sample_at(self, *times: float) -> None:
        for seconds in times:
            self.now = 100.0 + seconds
            self.sampler.sample()


@pytest.fixture
def lab(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(nvml, monkeypatch)


class TestMemory:
    def test_the_peak_is_the_most_that_a_sample_saw_on_all_devices(self, lab: Lab, nvml: FakeNvml) -> None:
        """Peak GPU memory is this process's, over all devices that it is on, while the block ran (D12, B128)."""
        nvml.devices = 2
        lab.sampler.begin()
        window = lab.sampler.start()
        for at, (first, second) in enumerate([(1, 1), (3, 2), (2, 1)]):
            nvml.held = {(0, ME): first * GIB, (1, ME): second * GIB, (1, OTHER): 7 * GIB}
            lab.sample_at(at * 0.2)
        assert lab.sampler.finish(window)[1] == 5 * GIB

    def test_a_block_has_no_part_of_the_block_before(self, lab: Lab, nvml: FakeNvml) -> None:
        """A small block after a large one reads small again (D12, as KF-32 for the host's memory)."""
        for size in (8, 1):
            window = lab.sampler.start()
            nvml.held = {(0, ME): size * GIB}
            lab.sample_at(0.0)
            assert lab.sampler.finish(window) == (pytest.approx(math.nan, nan_ok=True), size * GIB)

    def test_memory_that_the_driver_does_not_tell_is_not_guessed(self, lab: Lab, nvml: FakeNvml) -> None:
        """A process whose memory NVML calls not available reads 0, like one that was not measured (D12)."""
        nvml.held = {(0, ME): None}
        window = lab.sampler.start()
        lab.sample_at(0.0)
        assert lab.sampler.finish(window)[1] == 0


class TestUtilisation:
    def test_is_the_mean_of_the_samples_of_this_process_in_the_block(self, lab: Lab, nvml: FakeNvml) -> None:
        """20, 40 and 60 % in three samples are 40 %; another process and what came before do not count (D12)."""
        nvml.held = {(0, ME): GIB}
        nvml.used = {0: [(1, ME, 99)]}
        window = lab.sampler.start()
        lab.sample_at(0.0)
        for stamp, percent in ((2, 20), (3, 40), (4, 60)):
            nvml.used[0] += [(stamp, ME, percent), (stamp, OTHER, 100)]
            lab.sample_at(0.2 * (stamp - 1))
        assert lab.sampler.finish(window)[0] == pytest.approx(40.0)

    def test_news_at_the_first_sample_are_about_the_time_before(self, lab: Lab, nvml: FakeNvml) -> None:
        """A block that ends after one sample has no utilisation: that sample may be of its predecessor (D12)."""
        nvml.held = {(0, ME): GIB}
        first = lab.sampler.start()
        lab.sample_at(0.0, 0.2)
        lab.sampler.finish(first)
        second = lab.sampler.start()
        nvml.used = {0: [(1, ME, 80)]}
        lab.sample_at(0.4)
        percent, held = lab.sampler.finish(second)
        assert math.isnan(percent)
        assert held == GIB

    def test_a_value_holds_until_the_driver_has_a_new_one(self, lab: Lab, nvml: FakeNvml) -> None:
        """Samples between two of the driver's repeat its last, and silence for its longest period is 0 (D12)."""
        nvml.held = {(0, ME): GIB}
        window = lab.sampler.start()
        lab.sample_at(0.0)
        nvml.used = {0: [(1, ME, 50)]}
        lab.sample_at(0.2, 0.4, 0.6, 0.8, 1.0)  # 50 % each
        lab.sample_at(1.3, 1.6, 1.9, 2.2, 2.5)  # more than a second after the news: 0 each
        assert lab.sampler.finish(window)[0] == pytest.approx(25.0)

    def test_a_silent_driver_tells_nothing_of_a_short_block(self, lab: Lab, nvml: FakeNvml) -> None:
        """Before a whole period of the driver has passed, no news is no figure; after it, it is 0 (D12)."""
        nvml.held = {(0, ME): GIB}
        window = lab.sampler.start()
        lab.sample_at(0.0, 0.2, 0.4)
        assert math.isnan(lab.sampler.finish(window)[0])
        window = lab.sampler.start()
        lab.sample_at(0.6, 0.8, 1.0, 1.2, 1.4, 1.7)
        assert lab.sampler.finish(window)[0] == 0.0

    def test_what_the_buffer_kept_over_a_pause_is_old(self, lab: Lab, nvml: FakeNvml) -> None:
        """News that came up while nobody asked are not the next block's (D12)."""
        nvml.held = {(0, ME): GIB}
        window = lab.sampler.start()
        lab.sample_at(0.0, 0.2)
        lab.sampler.finish(window)
        nvml.used = {0: [(1, ME, 90)]}
        window = lab.sampler.start()
        lab.sample_at(9.0, 9.2)
        assert math.isnan(lab.sampler.finish(window)[0])

    @pytest.mark.parametrize("silence", [0, 6, 7])
    def test_no_samples_are_no_failure(self, lab: Lab, nvml: FakeNvml, silence: int) -> None:
        """The ways in which the module says that it has nothing are silence, and it is asked again (D12)."""
        nvml.held, nvml.silence = {(0, ME): GIB}, silence
        window = lab.sampler.start()
        lab.sample_at(0.0, 0.2)
        nvml.used = {0: [(1, ME, 30)]}
        lab.sample_at(0.4)
        assert lab.sampler.finish(window)[0] == 30.0

    @pytest.mark.parametrize("reason", ["no utilisation", "forbidden"])
    def test_a_device_without_it_still_tells_its_memory(
        self, lab: Lab, nvml: FakeNvml, caplog: pytest.LogCaptureFixture, reason: str
    ) -> None:
        """Where NVML knows no utilisation of processes it is asked once, and says so once (D12)."""
        nvml.held = {(0, ME): GIB}
        nvml.broken.add(reason)
        window = lab.sampler.start()
        with caplog.at_level(logging.WARNING):
            lab.sample_at(0.0, 0.2, 0.4)
        percent, held = lab.sampler.finish(window)
        assert math.isnan(percent)
        assert held == GIB
        assert nvml.calls.count("utilisation") == 1
        assert len(caplog.records) == 1


class TestWhoIsMeasured:
    def test_a_process_that_is_not_on_a_device_has_no_figures(self, lab: Lab, nvml: FakeNvml) -> None:
        """What others do on the device is never taken for this process's work (D12)."""
        nvml.held = {(0, OTHER): 8 * GIB}
        nvml.used = {0: [(n, OTHER, 100) for n in range(1, 9)]}
        window = lab.sampler.start()
        lab.sample_at(*(n * 0.2 for n in range(10)))
        percent, held = lab.sampler.finish(window)
        assert math.isnan(percent)
        assert held == 0
        assert "utilisation" not in nvml.calls

    def test_overlapping_blocks_each_have_their_own_samples(self, lab: Lab, nvml: FakeNvml) -> None:
        """An inner measurement sees the samples in it, the outer one all (B133, D12)."""
        nvml.held = {(0, ME): 4 * GIB}
        outer = lab.sampler.start()
        lab.sample_at(0.0)
        nvml.held = {(0, ME): GIB}
        inner = lab.sampler.start()
        lab.sample_at(0.2)
        assert lab.sampler.finish(inner)[1] == GIB
        assert lab.sampler.finish(outer)[1] == 4 * GIB

    def test_nothing_is_asked_between_blocks(self, lab: Lab, nvml: FakeNvml) -> None:
        """While no block runs, NVML is left alone (D12)."""
        lab.sampler.finish(lab.sampler.start())
        lab.sample_at(0.0, 0.2)
        assert "processes" not in nvml.calls

    def test_a_forked_copy_measures_nothing_and_does_not_hang(self, lab: Lab) -> None:
        """In a child the parent's sampler is silent, also if its lock was held at the fork (R65)."""
        window = lab.sampler.start()
        lab.sampler.pid = OTHER  # what a child sees
        with lab.sampler._lock:
            assert math.isnan(lab.sampler.finish(window)[0])
            lab.sampler.start()


@pytest.fixture
def installed(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[FakeNvml]:
    """A machine with a device, and with the extra."""
    module = tmp_path / "pynvml.py"
    module.write_text("")
    device = tmp_path / "nvidiactl"
    device.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(profile, "DEVICE_FILES", (str(device),))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(nvml, "__spec__", SimpleNamespace(name="pynvml"), raising=False)
    monkeypatch.setattr(gpu, "INTERVAL_SECONDS", 0.002)
    close_counters()
    monkeypatch.setattr(profile, "_gpu_looked_in", 0)
    yield nvml
    close_counters()
    profile._gpu = None


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestProfile:
    def test_a_profile_fills_the_slots_where_there_is_a_device(self, installed: FakeNvml) -> None:
        """With the extra and a device, the measurement carries both GPU figures (D12, B128)."""
        installed.held = {(0, ME): 3 * GIB}
        with Profile() as measured:
            wait_for(lambda: installed.calls.count("utilisation") >= 2)
            stamp = 1
            while installed.calls.count("utilisation") < 50:
                installed.used = {0: [(stamp, ME, 70)]}
                stamp += 1
                time.sleep(0.001)
        assert measured.stats.gpu_mem_bytes == 3 * GIB
        assert measured.stats.gpu_util_pct == pytest.approx(70.0)

    def test_without_the_module_nothing_is_started(self, installed: FakeNvml, monkeypatch) -> None:
        """A device without the extra: no thread, no import, NaN and 0 (D12, D28)."""
        monkeypatch.delitem(sys.modules, "pynvml")
        monkeypatch.setattr(sys, "path", [])
        with Profile() as measured:
            pass
        assert profile.gpu_sampler() is None
        assert math.isnan(measured.stats.gpu_util_pct)
        assert measured.stats.gpu_mem_bytes == 0

    def test_without_a_device_the_module_is_not_even_looked_for(self, installed: FakeNvml, monkeypatch) -> None:
        """On a machine without device the check is one look at the device's file, once in a process (D28)."""
        looked = []
        monkeypatch.setattr(profile, "DEVICE_FILES", ("/dev/no-such-device",))
        monkeypatch.setattr(profile.os.path, "exists", lambda path: looked.append(path))
        for _ in range(3):
            with Profile():
                pass
        assert looked == ["/dev/no-such-device"]
        assert installed.calls == []

    @pytest.mark.parametrize("function", ["nvmlInit", "processes", "utilisation"])
    def test_a_failure_of_the_driver_ends_it_for_good(
        self, installed: FakeNvml, caplog: pytest.LogCaptureFixture, function: str
    ) -> None:
        """NVML that fails is not asked again: one line in the log, figures stay unknown, the block is done (D12)."""
        installed.broken.add(function)
        installed.held = {(0, ME): GIB}
        with caplog.at_level(logging.WARNING, logger="workspan"):
            with Profile() as measured:
                wait_for(lambda: profile.gpu_sampler().is_off)
            asked = installed.calls.count(function)
            for _ in range(3):
                with Profile() as measured:
                    time.sleep(0.005)
        assert [record.message for record in caplog.records] == [
            f"process {ME} does not measure its GPU use: {function} is broken"
        ]
        assert installed.calls.count(function) == asked == 1
        assert math.isnan(measured.stats.gpu_util_pct)
        assert measured.stats.gpu_mem_bytes == 0

    def test_closing_ends_the_thread_and_the_next_measurement_begins_anew(self, installed: FakeNvml) -> None:
        """A serial run leaves no thread behind, and the next one measures again (R65, D12)."""
        installed.held = {(0, ME): GIB}
        measured = Profile()
        for number in (1, 2):
            with measured:
                wait_for(lambda: profile.gpu_sampler()._windows[0].peak_bytes)
            thread = profile.gpu_sampler()._thread
            assert thread.is_alive()
            close_counters()
            assert not thread.is_alive()
            assert installed.calls.count("nvmlShutdown") == number
            assert measured.stats.gpu_mem_bytes == GIB


@pytest.mark.skipif(not any(map(os.path.exists, profile.DEVICE_FILES)), reason="this machine has no NVIDIA device")
def test_a_real_device_answers() -> None:
    """On a real device the sampler runs without being switched off, and never takes others' work for ours (D12)."""
    pytest.importorskip("pynvml", reason="the extra gpu is not installed")
    with Profile() as measured:
        time.sleep(0.5)
    sampler = profile.gpu_sampler()
    assert sampler is not None
    assert not sampler.is_off
    assert math.isnan(measured.stats.gpu_util_pct)
    assert measured.stats.gpu_mem_bytes == 0
    close_counters()


def test_the_worker_does_not_load_it_for_nothing(fresh) -> None:
    """Importing the profile and measuring loads neither the sampler nor the module, without a device (D28)."""
    if any(map(os.path.exists, profile.DEVICE_FILES)):
        pytest.skip("this machine has an NVIDIA device")
    script = """
        with Profile():
            pass
        print(json.dumps([name in sys.modules for name in ("workspan.measure.gpu", "pynvml", "importlib.util")]))
    """
    assert fresh(script)[:2] == [False, False]
