"""Chains of asynchronous steps."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest

from helpers.step_kit import Clock, steps
from workspan import TransformClock
from workspan.errors import UsageTypeError


async def numbers(n: int) -> AsyncIterator[int]:
    """Count asynchronously."""
    for number in range(n):
        yield number


def working(clock: Clock, ns: int, cleanup: int = 0) -> Any:
    """Return the apply of an asynchronous step that works, waits, works."""

    async def apply(items: AsyncIterator[int]) -> AsyncIterator[int]:
        try:
            async for item in items:
                clock.pass_by(ns)
                await asyncio.sleep(0)
                clock.pass_by(ns)
                yield item
        finally:
            clock.pass_by(cleanup)

    return apply


def test_own_time_excludes_what_the_consumer_does(clock):
    """Waiting within a step is its time; being suspended while the consumer works is not (M7, M11)."""

    async def main() -> None:
        async for _ in watch.chain(steps(working(clock, 5), working(clock, 20)), numbers(3)):
            clock.pass_by(1000)
            await asyncio.sleep(0)

    watch = TransformClock(clock=clock)
    asyncio.run(main())
    times = watch.drain()
    assert times.step_ns == (30, 120)
    assert (times.clamped_ns, times.steps[1].items, times.steps[1].overlapped) == (0, 3, False)


def test_other_tasks_do_not_disturb(clock):
    """Two chains whose tasks take turns: each step's windows are its own (M20)."""

    async def run(watch: TransformClock) -> None:
        async for _ in watch.chain(steps(working(clock, 5)), numbers(3)):
            pass

    async def main() -> None:
        await asyncio.gather(run(one), run(two))

    one, two = TransformClock(clock=clock), TransformClock(clock=clock)
    asyncio.run(main())
    # A window includes the wait, in which the other task works.
    assert 30 <= one.drain().total_ns <= 60
    assert 30 <= two.drain().total_ns <= 60


def test_upstream_pulled_by_another_task_is_overlap(clock):
    """A body that has a task read ahead is marked, its wait and its own work are told apart, all stay true (M29)."""

    async def ahead(items: AsyncIterator[int]) -> AsyncIterator[int]:
        pulled = items.__aiter__()
        for _ in range(2):
            task = asyncio.ensure_future(pulled.__anext__())
            item = await task
            clock.pass_by(3)
            yield item

    async def main() -> list[int]:
        return [item async for item in watch.chain(steps(working(clock, 5), ahead), numbers(3))]

    watch = TransformClock(clock=clock)
    assert asyncio.run(main()) == [0, 1]
    times = watch.drain()
    assert [step.overlapped for step in times.steps] == [False, True]
    assert times.step_ns == (20, 26)
    assert (times.steps[1].busy_ns, times.steps[1].blocked_s) == (6, 20e-9)
    assert times.clamped_ns == 0


def test_closing_cleans_up_from_last_to_first(clock):
    """aclose runs every cleanup, charged to its step, once (M26)."""

    async def main() -> None:
        running = watch.chain(steps(working(clock, 1, 50), working(clock, 1, 7)), numbers(4))
        await running.__anext__()
        await running.aclose()
        await running.aclose()
        with pytest.raises(StopAsyncIteration):
            await running.__anext__()

    watch = TransformClock(clock=clock)
    asyncio.run(main())
    assert watch.drain().step_ns == (52, 9)


def test_a_setup_failure_comes_from_each_pull():
    """Apply that raises is called once and its error comes again (M22, M23)."""
    error = OSError("no table")
    calls = []

    def apply(items: Any) -> Any:
        calls.append(1)
        raise error

    async def main() -> None:
        running = TransformClock().chain(steps(apply), numbers(1))
        for _ in range(2):
            with pytest.raises(OSError, match="no table") as caught:
                await running.__anext__()
            assert caught.value is error

    asyncio.run(main())
    assert calls == [1]


def test_synchronous_and_asynchronous_do_not_mix():
    """A step that makes the wrong kind of iterable is named, in both directions (M22)."""

    async def main() -> None:
        running = TransformClock().chain(steps(lambda items: [1]), numbers(1))
        with pytest.raises(UsageTypeError, match="'f0 body', made list of its input, which is not asynchronous"):
            await running.__anext__()

    asyncio.run(main())
    with pytest.raises(UsageTypeError, match=r"made async_generator .* give the chain an asynchronous input"):
        next(TransformClock().chain(steps(working(Clock(), 1)), [1]))


def test_the_end_is_sticky():
    """After the end the iterator below is not asked again (M24)."""
    asked = []

    class Restarting:
        def __aiter__(self) -> Restarting:
            return self

        async def __anext__(self) -> int:
            asked.append(1)
            if len(asked) == 2:
                raise StopAsyncIteration
            return 1

    async def main() -> None:
        running = TransformClock().chain(steps(lambda items: Restarting()), numbers(1))
        assert [item async for item in running] == [1]
        assert [item async for item in running] == []

    asyncio.run(main())
    assert len(asked) == 2


def test_a_cancelled_pull_closes_its_windows(clock):
    """Cancelling ends the windows; what follows is not counted (M7)."""

    async def stuck(items: AsyncIterator[int]) -> AsyncIterator[int]:
        async for item in items:
            clock.pass_by(3)
            await asyncio.get_running_loop().create_future()
            yield item

    async def main() -> None:
        task = asyncio.ensure_future(watch.chain(steps(stuck), numbers(1)).__anext__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    watch = TransformClock(clock=clock)
    asyncio.run(main())
    clock.pass_by(1000)
    assert watch.drain().total_ns == 3


def test_without_timers_and_without_steps():
    """Off and empty chains give the data (M3, M31)."""

    async def main() -> None:
        watch = TransformClock()
        assert [item async for item in watch.chain([], numbers(2))] == [0, 1]
        chain = steps(working(Clock(), 1))
        assert [item async for item in watch.chain(chain, numbers(2), timed=False)] == [0, 1]
        assert watch.drain().total_s is None
        with pytest.raises(UsageTypeError, match="cannot be pickled"):
            pickle.dumps(watch.chain(chain, numbers(2)))

    asyncio.run(main())
