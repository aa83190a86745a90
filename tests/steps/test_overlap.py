"""Bodies that have upstream pulled elsewhere: from threads, and from asyncio tasks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


class TestDrainsBeside:
    def test_a_reader_between_the_clock_and_the_close_moves_nothing(self, transform_clock, clock):
        """A drain when a window has read its end but is not closed yet counts each moment once (M17, M96)."""
        watch = transform_clock(clock=clock)
        found = []

        def interrupted() -> int:
            now = clock.now
            if late:
                late.pop()()
            return now

        def drain() -> None:
            clock.pass_by(1000)  # another thread had its turn
            found.append(watch.drain())

        late: list[Any] = []
        watch = transform_clock(clock=interrupted)

        def body(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(3)
                if item == 1:
                    late.append(drain)
                yield item

        begin = clock.now
        for _ in watch.chain(steps(working(clock, 10), body, working(clock, 1)), range(4)):
            pass
        found.append(watch.drain())
        assert [times.clamped_ns for times in found] == [0, 0]
        assert sum(times.total_ns for times in found) == clock.now - begin

    def test_a_drain_that_is_held_up_behind_its_clock_moves_nothing(self, transform_clock, clock):
        """What happens after a drain has read the clock, as the machine is busy, is of a later instant (M17, M96)."""
        took, go_on, drained = threading.Event(), threading.Event(), threading.Event()
        late, found = [True], []

        def now() -> int:
            time = clock()
            if threading.current_thread() is drainer and late:
                late.pop()
                took.set()
                assert go_on.wait(30)
            return time

        def drains() -> None:
            found.append(watch.drain())
            drained.set()

        def outer(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                if item == 0:
                    go_on.set()
                    assert drained.wait(30)
                yield item

        watch = transform_clock(clock=now)
        drainer = threading.Thread(target=drains)
        running = watch.chain(steps(working(clock, 50), outer), range(2))
        drainer.start()
        assert took.wait(30)
        assert list(running) == [0, 1]
        drainer.join()
        found.append(watch.drain())
        assert [times.clamped_ns for times in found] == [0, 0]
        assert [times.total_ns for times in found] == [50, 50]

    def test_drains_as_fast_as_they_go_lose_nothing(self, transform_clock):
        """A thread drains without a pause: all items, and no moment twice (M17, M96)."""
        watch = transform_clock()
        running = watch.chain(steps(*[lambda items: (item for item in items)] * 3), range(20_000))
        done = threading.Event()
        found = []

        def drains() -> None:
            while not done.is_set():
                found.append(watch.drain())

        drainer = threading.Thread(target=drains)
        drainer.start()
        begin = time.monotonic_ns()
        for _ in running:
            pass
        wall = time.monotonic_ns() - begin
        done.set()
        drainer.join()
        found.append(watch.drain())
        assert [sum(times.steps[k].items for times in found) for k in range(3)] == [20_000] * 3
        assert [sum(times.steps[k].latency.n for times in found) for k in range(3)] == [20_000] * 3
        assert sum(times.clamped_ns for times in found) <= 0.001 * wall
        assert sum(times.total_ns for times in found) <= wall * 1.001


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
        """What a body waits for upstream in another thread it is blocked; blocked and busy make up its time (M29)."""
        gate = threading.Event()
        waited = []

        def slow(items: Iterable[int]) -> Iterator[int]:
            threading.Timer(0.05, gate.set).start()
            for item in items:
                began = time.monotonic()
                assert gate.wait(10)
                waited.append(time.monotonic() - began)
                yield item

        watch = transform_clock()
        list(watch.chain(steps(slow, reading_ahead), range(1)))
        body = watch.drain().steps[1]
        assert body.busy_s + body.blocked_s == pytest.approx(body.self_s)
        assert body.blocked_s > waited[0] - 0.005  # some of it may have been computing in its own thread

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

    @pytest.fixture
    def processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the thread of a body have computed for 100 ns when it is found overlapped, and 107 ns ever after."""
        monkeypatch.setattr("time.clock_gettime_ns", lambda clock: 100)
        monkeypatch.setattr("time.thread_time_ns", lambda: 107)

    def test_busy_is_what_the_bodys_thread_computed(self, transform_clock, clock, processor):
        """What it did before it overlapped, and its CPU time since; the rest of its windows it was blocked (M29)."""

        def body(items: Iterable[int]) -> Iterator[int]:
            pulled = iter(items)
            yield next(pulled)
            yield next(pulled)
            clock.pass_by(30)
            yield in_thread(lambda: next(pulled))

        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(working(clock, 10), body), range(3))) == [0, 1, 2]
        found = watch.drain().steps[1]
        assert (found.self_ns, found.busy_ns) == (40, 37)
        assert found.blocked_s == 3e-9

    def test_busy_is_never_more_than_the_own_time(self, transform_clock, clock, processor):
        """The busy time before the body overlapped may be in an earlier record; then this one's is all busy (M29)."""

        def body(items: Iterable[int]) -> Iterator[int]:
            clock.pass_by(30)
            watch.drain()
            yield in_thread(lambda: next(iter(items)))

        watch = transform_clock(clock=clock)
        list(watch.chain(steps(working(clock, 10), body), range(3)))
        found = watch.drain().steps[1]
        assert (found.self_ns, found.busy_ns, found.blocked_s) == (10, 10, 0.0)

    @pytest.fixture
    def idle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let no thread ever have computed."""
        monkeypatch.setattr("time.clock_gettime_ns", lambda clock: 0)
        monkeypatch.setattr("time.thread_time_ns", lambda: 0)

    def test_a_body_that_sleeps_by_itself_is_busy(self, transform_clock, clock, idle):
        """Where no upstream was on its way the body waited for none, though its thread did not compute (M29)."""

        def body(items: Iterable[int]) -> Iterator[int]:
            found = in_thread(lambda: list(items))
            for item in found:
                clock.pass_by(30)
                yield item

        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(working(clock, 10), body), range(3))) == [0, 1, 2]
        times = watch.drain()
        assert [step.self_ns for step in times.steps] == [30, 120]
        assert (times.steps[1].busy_ns, times.steps[1].blocked_s) == (90, 30e-9)

    def test_a_drain_splits_what_it_waited_for_too(self, transform_clock, clock, idle):
        """What the body waited so far for a pull that still runs is in the record of a drain, the rest in the next."""

        def slow(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(10)
                found.append(watch.drain())
                clock.pass_by(5)
                yield item

        def body(items: Iterable[int]) -> Iterator[int]:
            clock.pass_by(3)
            item = in_thread(lambda: next(iter(items)))
            clock.pass_by(2)
            yield item

        found: list[Any] = []
        watch = transform_clock(clock=clock)
        list(watch.chain(steps(slow, body), [1]))
        found.append(watch.drain())
        assert [(times.steps[1].self_ns, times.steps[1].busy_ns) for times in found] == [(13, 3), (7, 2)]

    def test_two_readers_at_once_are_waited_for_once(self, transform_clock, clock, idle):
        """The body waits for two threads together: that moment of its time is no two (M29)."""
        both = threading.Barrier(2)

        def slow(items: Iterable[int]) -> Iterator[int]:
            return iter(Twice())

        class Twice:
            def __iter__(self) -> Twice:
                return self

            def __next__(self) -> int:
                if together:
                    if both.wait(10) == 0:
                        clock.pass_by(10)
                    both.wait(10)
                return 1

        together = False

        def body(items: Iterable[int]) -> Iterator[int]:
            nonlocal together
            pulled = iter(items)
            next(pulled)  # sets upstream up
            together = True
            with ThreadPoolExecutor(2) as pool:
                got = [pool.submit(next, pulled) for _ in range(2)]
            clock.pass_by(7)
            yield from [future.result() for future in got]

        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(slow, body), [])) == [1, 1]
        body_times = watch.drain().steps[1]
        assert (body_times.self_ns, body_times.busy_ns) == (17, 7)

    def test_a_drain_splits_windows_of_both_threads(self, transform_clock, clock):
        """An open window that lies in none of its consumer is not taken from it by a drain either (M17, M29)."""
        inside, go = threading.Event(), threading.Event()

        def slow(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(10)
                inside.set()
                assert go.wait(10)
                clock.pass_by(5)
                yield item

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(slow, reading_ahead), range(1))
        puller = threading.Thread(target=list, args=(running,))
        puller.start()
        assert inside.wait(10)
        assert watch.drain().step_ns == (10, 10)
        go.set()
        puller.join()
        times = watch.drain()
        assert times.steps[0].self_ns == 5
        assert times.clamped_ns == 0

    def test_two_threads_in_one_step_are_two_windows(self, transform_clock, clock):
        """Two pullers of one step at once: both windows count, and both items (M29, M96)."""
        met = threading.Barrier(2)
        together = False

        class Shared:
            def __init__(self, items: Iterable[int]) -> None:
                pass

            def __iter__(self) -> Shared:
                return self

            def __next__(self) -> int:
                if together:
                    first = met.wait(10) == 0  # both windows are open now
                    if first:
                        clock.pass_by(10)
                    met.wait(10)
                return 1

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(Shared), [])
        next(running)  # sets the step up
        together = True
        pullers = [threading.Thread(target=next, args=(running,)) for _ in range(2)]
        for puller in pullers:
            puller.start()
        for puller in pullers:
            puller.join()
        times = watch.drain()
        assert (times.steps[0].items, times.total_ns, times.clamped_ns) == (3, 20, 0)

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
