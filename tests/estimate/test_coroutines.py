"""Steps in asyncio tasks, coroutine functions and generators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from workspan import config
from workspan.estimate import WallClockTime
from workspan.estimate.activation import current, stack
from workspan.estimate.recorder import ProgressRecorder

M = __name__


def times(recorder: ProgressRecorder, function: Any, name: str | None = None) -> list[float]:
    """Measured seconds of a step of this module."""
    return [round(m.dt, 9) for m in recorder.forecast((M, function.__qualname__, name)).measurements()]


def test_tasks_never_see_each_other(recorder: ProgressRecorder) -> None:
    """Interleaved tasks have their creator's steps as parents; a child may outlive its parent (E27)."""

    async def main() -> None:
        gate, late = asyncio.Event(), asyncio.Event()
        parents = {}

        async def child(name: str) -> None:
            with WallClockTime("child") as handle:
                parents[name] = handle.parent
                await gate.wait()
                with WallClockTime("grandchild") as inner:
                    assert inner.parent is handle
                await late.wait()
                assert stack() == (handle,)

        with WallClockTime("parent") as parent:
            tasks = [asyncio.create_task(child(name)) for name in "ab"]
            await asyncio.sleep(0)
            assert stack() == (parent,)
            gate.set()
            await asyncio.sleep(0)
        late.set()
        await asyncio.gather(*tasks)
        assert parents == {"a": parent, "b": parent}
        assert stack() == ()

    asyncio.run(main())


def test_coroutines_are_timed_while_they_run(recorder: ProgressRecorder, clock: Any) -> None:
    """From the first resume to the end; never awaited: nothing; cancelled: nothing (E28, KF-66)."""

    @WallClockTime
    async def f(seconds: float, gate: asyncio.Event | None = None) -> float:
        clock.work(seconds)
        await asyncio.sleep(0)
        clock.work(seconds)
        if gate is not None:
            await gate.wait()
        return seconds

    async def main() -> None:
        made = f(1)
        clock.work(5)
        assert await made == 1
        f(2).close()
        task = asyncio.create_task(f(3, asyncio.Event()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert times(recorder, f) == [2]
    assert recorder.active() == ()


def test_generators_are_timed_inside_only(recorder: ProgressRecorder, clock: Any) -> None:
    """The consumer's time is left out, and the step is on the stack only inside; send and return pass (E29, KF-66)."""
    sized = []

    @WallClockTime(N_ref=lambda n: sized.append(n) or n, order="O_N")
    def f(n: int) -> Iterator[Any]:
        got = []
        for i in range(n):
            clock.work(0.05)
            assert current() is not None
            got.append((yield i))
        return got

    generator = f(4)
    assert sized == []
    assert next(generator) == 0
    for i in range(3):
        clock.work(0.1)
        assert current() is None
        assert generator.send(f"s{i}") == i + 1
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == ["s0", "s1", "s2", None]
    assert times(recorder, f) == [0.2]
    assert sized == [4]


def test_a_generator_that_is_not_exhausted_is_not_recorded(recorder: ProgressRecorder) -> None:
    """Early close, drop and throw record nothing, and pass through (E29)."""
    closed = []

    @WallClockTime
    def f() -> Iterator[int]:
        try:
            yield 1
            yield 2
        except KeyError:
            yield 3
        finally:
            closed.append(True)

    early = f()
    next(early)
    early.close()
    dropped = f()
    next(dropped)
    del dropped
    thrown = f()
    next(thrown)
    assert thrown.throw(KeyError()) == 3
    assert list(thrown) == []
    raising = f()
    next(raising)
    with pytest.raises(ValueError, match="x"):
        raising.throw(ValueError("x"))
    assert closed == [True] * 4
    assert times(recorder, f) == []
    assert recorder.active() == () == stack()


def test_asynchronous_generators(recorder: ProgressRecorder, clock: Any) -> None:
    """As generators: own time only, recorded when exhausted, not when closed early (E29)."""

    @WallClockTime
    async def f() -> AsyncIterator[Any]:
        for i in range(3):
            clock.work(0.5)
            await asyncio.sleep(0)
            try:
                yield i
            except KeyError:
                yield "thrown"

    async def main() -> None:
        got = []
        async for item in f():
            clock.work(1)
            assert current() is None
            got.append(item)
        assert got == [0, 1, 2]
        early = f()
        await anext(early)
        await early.aclose()
        thrown = f()
        await anext(thrown)
        assert await thrown.athrow(KeyError()) == "thrown"
        async for _ in thrown:
            pass
        config.configure(timing={"enabled": False})
        assert [item async for item in f()] == [0, 1, 2]
        config.configure(timing={"enabled": True})

    asyncio.run(main())
    assert times(recorder, f) == [1.5]
    assert recorder.active() == ()


def test_a_manager_across_a_yield_is_removed(recorder: ProgressRecorder) -> None:
    """Steps of the consumer count as substeps meanwhile, and the stack ends empty (E30)."""

    def generator() -> Iterator[int]:
        with WallClockTime("held"):
            yield 1

    held = generator()
    next(held)
    with WallClockTime("consumer") as handle:
        assert handle.is_substep
        next(held, None)
        assert stack() == (handle,)
    assert stack() == ()


def test_wrong_arguments_are_refused_by_the_function_itself(
    recorder: ProgressRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that fits no signature fails where the function would begin, in its own words; none is left (E13, E20)."""

    @WallClockTime(N_ref=1.0, order="O_N")
    def items(n: int) -> Iterator[int]:
        yield n

    @WallClockTime(N_ref=1.0, order="O_N")
    async def fetch(n: int) -> int:
        return n

    with pytest.raises(TypeError, match=r"items\(\) missing 1 required positional argument: 'n'"):
        next(items())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"fetch\(\) missing 1 required positional argument: 'n'"):
        asyncio.run(fetch())  # type: ignore[call-arg]
    assert (recorder.active(), stack(), recorder.flush()) == ((), (), False)
    assert caplog.records == []
