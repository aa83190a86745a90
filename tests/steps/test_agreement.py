"""The three clocks tell the same time."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.step_kit import steps
from workspan import TransformClock
from workspan.measure import timers


def spin(seconds: float) -> None:
    """Compute for a while."""
    end = time.monotonic_ns() + round(seconds * 1e9)
    while time.monotonic_ns() < end:
        pass


@pytest.mark.parametrize("work", [time.sleep, spin], ids=["sleep", "spin"])
@pytest.mark.parametrize("drains", [False, True], ids=["one drain", "a drain an item"])
def test_each_timer_agrees_with_the_work_itself(transform_clock, work: Callable[[float], None], drains: bool):
    """Self times are within 1 % (and 0.2 ms) of what the steps saw themselves, on all three timers (A5, M9).

    What a step slept or spun is measured inside it. On a loaded machine a thread may lose its turn between that reading
    and the window's: one undisturbed run of five is enough, since a wrong timer is wrong in all.
    """

    def run() -> bool:
        seen = {0: 0, 1: 0, 2: 0}

        def make(index: int, seconds: float) -> Any:
            def apply(items: Iterable[int]) -> Iterator[int]:
                for item in items:
                    begin = time.monotonic_ns()
                    work(seconds)
                    seen[index] += time.monotonic_ns() - begin
                    yield item

            return apply

        watch = transform_clock()
        begin = time.monotonic_ns()
        for _ in watch.chain(steps(make(0, 0.010), make(1, 0.002), make(2, 0.005)), range(6)):
            if drains:
                watch.drain()
        times = watch.total()
        assert times.total_ns <= (time.monotonic_ns() - begin) * 1.001
        assert times.clamped_s == 0.0
        return all(abs(ns - seen[index]) <= 0.01 * seen[index] + 200_000 for index, ns in enumerate(times.step_ns))

    assert any(run() for _ in range(5))


def test_a_chain_of_a_moment_is_right_within_clock_resolution(transform_clock):
    """A very short chain has little to scale the processor's counter by; it is off by no more than it took (M9)."""
    for _ in range(50):
        watch = transform_clock()
        begin = time.monotonic_ns()
        list(watch.chain(steps(iter), range(3)))
        total = watch.drain().total_ns
        assert 0 < total <= time.monotonic_ns() - begin + 1000


class TestChoice:
    @pytest.mark.parametrize("kernel", ["tsc", "kvm-clock", None])
    def test_the_counter_is_used_only_where_the_kernel_trusts_it(self, monkeypatch, tmp_path: Path, kernel):
        """An invariant counter that the kernel has not chosen is not read, nor one without a file (M93, M94)."""
        path = tmp_path / "current_clocksource"
        if kernel:
            path.write_text(f"{kernel}\n")
        monkeypatch.setattr(timers, "_KERNEL", path)
        monkeypatch.setattr(timers, "CLOCKS", {"tsc": int, "monotonic": int})
        assert timers.default_clock() == ("tsc" if kernel == "tsc" else "monotonic")

    def test_the_kernel_is_asked_again_after_a_while(self, monkeypatch, tmp_path: Path):
        """Once a second at most, and a counter that it has given up is not read any more (M94)."""
        now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: now)
        path = tmp_path / "current_clocksource"
        path.write_text("tsc\n")
        monkeypatch.setattr(timers, "_KERNEL", path)
        monkeypatch.setattr(timers, "CLOCKS", {"tsc": int, "monotonic": int})
        assert timers.default_clock() == "tsc"
        path.write_text("hpet\n")
        assert timers.default_clock() == "tsc"
        now += 2
        assert timers.default_clock() == "monotonic"

    def test_without_an_invariant_counter_the_monotonic_clock_is_read(self, monkeypatch):
        """On such a machine, and with the twin, there is no counter to choose (M93)."""
        monkeypatch.setattr(timers, "CLOCKS", {"monotonic": int})
        assert timers.default_clock() == "monotonic"

    def test_the_twin_can_be_forced_and_stands_in(self, monkeypatch):
        """WORKSPAN_PURE_PYTHON selects the twin with the rest of the native code (M93)."""
        native = timers.implementation.__name__ == "workspan.measure._timers"
        assert native == timers.NATIVE
        monkeypatch.setenv("WORKSPAN_PURE_PYTHON", "1")
        twin = importlib.import_module("workspan.measure._timers_py")
        assert set(twin.CLOCKS) == {"monotonic"}
        assert TransformClock._timers is timers.implementation
