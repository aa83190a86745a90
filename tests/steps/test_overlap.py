"""Bodies that have upstream pulled elsewhere: from threads, and from asyncio tasks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from helpers.step_kit import steps, working


def in_thread(call: Any) -> Any:
    """Run a call in a thread of its own and return what it returns."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def reading_ahead(items: Iterable[int]) -> Iterator[int]:
    """Pull upstream from a thread, as far ahead as it goes."""
    box: queue.Queue[Any] = queue.Queue()
    thread = threading.Thread(target=lambda: [box.put(item) for item in [*items, None]])
    thread.start()
    while (item := box.get()) is not None:
        yield item
    thread.join()


class TestThreads:
    def test_read_ahead_is_marked_and_loses_nothing(self, transform_clock, clock):
        """Upstream keeps its own time, the body its blocked time, and the clamp has nothing to hide (A16, M29, M10)."""
        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(working(clock, 50_000_000), reading_ahead), range(4))) == [0, 1, 2, 3]
        times = watch.drain()
        assert [step.overlapped for step in times.steps] == [False, True]
        assert times.steps[0].self_ns == 200_000_000
        assert times.total_ns <= 2 * 200_000_000  # wall times threads
        assert times.clamped_ns == 0

    def test_a_body_that_waits_is_blocked(self, transform_clock):
        """A body that only waits for its thread has next to no busy time; blocked and busy make up its time (M29)."""
        gate = threading.Event()
        threading.Timer(0.05, gate.set).start()

        def slow(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                assert gate.wait(10)
                yield item

        watch = transform_clock()
        list(watch.chain(steps(slow, reading_ahead), range(1)))
        body = watch.drain().steps[1]
        assert body.busy_s + body.blocked_s == pytest.approx(body.self_s)
        assert body.blocked_s > 0.8 * body.self_s

    def test_a_thread_that_starts_later_is_seen_too(self, transform_clock, clock):
        """First items pulled by the body itself, the rest by a thread: each upstream moment is counted once (M29)."""

        def body(items: Iterable[int]) -> Iterator[int]:
            pulled = iter(items)
            yield next(pulled)
            yield next(pulled)
            clock.pass_by(3)
            yield in_thread(lambda: next(pulled))

        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(working(clock, 10), body), range(3))) == [0, 1, 2]
        times = watch.drain()
        assert times.steps[0].self_ns == 30
        assert times.steps[1].self_ns == 3 + 10  # it waited for the thread in a window of its own
        assert times.steps[1].overlapped

    def test_two_threads_in_one_step_are_two_windows(self, transform_clock, clock):
        """Two pullers of one step at once: both count, each with what lies within its own window (M29, M96)."""
        met = threading.Barrier(2)

        class Both:
            def __init__(self, items: Iterable[int]) -> None:
                self.items = iter(items)

            def __iter__(self) -> Both:
                return self

            def __next__(self) -> int:
                met.wait(10)
                clock_once()
                met.wait(10)
                return 1

        lock, moved = threading.Lock(), []

        def clock_once() -> None:
            with lock:
                if not moved:
                    clock.pass_by(10)
                    moved.append(1)

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(Both), [])
        pullers = [threading.Thread(target=next, args=(running,)) for _ in range(2)]
        running_first = iter(running)
        assert running_first is running
        # The first pull sets the step up: both threads must find it made.
        timer_made = threading.Thread(target=lambda: None)
        timer_made.start()
        timer_made.join()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(met, "wait", lambda timeout: 0)
            next(running)
        moved.clear()
        assert watch.drain().total_ns == 10
        for puller in pullers:
            puller.start()
        for puller in pullers:
            puller.join()
        times = watch.drain()
        assert times.steps[0].items == 2
        assert 10 <= times.total_ns <= 20

    def test_a_pull_between_the_bodys_windows_is_no_part_of_it(self, transform_clock, clock):
        """Upstream that a thread pulls while nobody awaits the body is not taken from the body's time (M29)."""
        kept: list[Any] = []

        def body(items: Iterable[int]) -> Iterator[int]:
            kept.append(iter(items))
            for _ in range(2):
                clock.pass_by(5)
                yield 0

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(working(clock, 100), body), range(3))
        next(running)
        in_thread(lambda: next(kept[0]))
        next(running)
        times = watch.drain()
        assert times.step_ns == (100, 10)
        assert times.steps[1].overlapped
