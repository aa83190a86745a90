"""Steps inside steps, in threads, tasks, generators and forked processes."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from workspan import config
from workspan.errors import UsageError
from workspan.estimate import WallClockTime
from workspan.estimate.activation import current, stack
from workspan.estimate.recorder import ProgressRecorder

M = __name__


def times(recorder: ProgressRecorder, function: Any, name: str | None = None) -> list[float]:
    """Measured seconds of a step of this module."""
    return [round(m.dt, 9) for m in recorder.forecast((M, function.__qualname__, name)).measurements()]


def test_steps_nest_and_know_their_place(recorder: ProgressRecorder, clock: Any) -> None:
    """Root or substep is decided at the start; dt includes substeps; handles tell what is asked (E17, E23, E54)."""

    def outer() -> None:
        with WallClockTime("a", N_ref=2.0) as a:
            clock.work(1)
            with WallClockTime("b") as b:
                clock.work(2)
                assert stack() == (a, b)
                assert current() is b
                assert (a.is_substep, b.is_substep, b.parent, b.depth) == (False, True, a, 1)
                assert (a.elapsed, b.elapsed) == (3.0, 2.0)
            assert (a.label, b.label) == ("outer: a", "b")

    outer()
    assert times(recorder, outer, "a") == [3.0]
    assert times(recorder, outer, "b") == [2.0]
    assert [m.substep for m in recorder.forecast((M, outer.__qualname__, "b")).measurements()] == [True]
    assert stack() == ()


def test_remaining_time_by_handle_and_key(recorder: ProgressRecorder, clock: Any) -> None:
    """Estimate less elapsed, never below 0, None without N_ref, an error when inactive (E11, E18, E76, KF-68)."""

    def f(size: float | None) -> None:
        with WallClockTime("s", N_ref=lambda: size, order="O_N") as handle:
            where = (M, f.__qualname__, "s")
            assert recorder.find(where) is handle
            if size is None:
                assert recorder.remaining(where) is None
                return
            assert handle.dt_est == handle.remaining == 3.0
            clock.work(1.0)
            assert handle.remaining == recorder.remaining(where) == pytest.approx(2.0)
            clock.work(3.0)
            assert handle.remaining == 0.0
        with pytest.raises(UsageError, match="is not active any more"):
            _ = handle.remaining
        with pytest.raises(UsageError, match="is not active"):
            recorder.remaining(where)

    f(1e9)
    f(None)
    assert times(recorder, f, "s") == [4.0]


def test_leaving_in_another_order_removes_the_right_step(recorder: ProgressRecorder, clock: Any) -> None:
    """Ending removes that very activation, wherever it is in the stack (E22)."""
    a, b, c = (recorder.record(name) for name in "abc")
    clock.work(1)
    recorder.stop(b)
    assert stack() == (a, c)
    recorder.stop(a)
    assert stack() == (c,)
    recorder.stop(c.key)
    assert stack() == ()
    with pytest.raises(UsageError, match="is not active"):
        recorder.stop(c)
    with pytest.raises(UsageError, match="is not active"):
        recorder.stop(c.key)


def test_record_and_stop_name_the_calling_function(recorder: ProgressRecorder, clock: Any) -> None:
    """Low level use: the key comes from the calling frame (E16)."""

    def f() -> Any:
        handle = recorder.record(N_ref=5, order="O_N")
        clock.work(2)
        recorder.stop(handle)
        return handle

    assert f().key == (M, f.__qualname__, None)
    assert times(recorder, f) == [2]


def test_recursion_counts_once(recorder: ProgressRecorder, clock: Any) -> None:
    """Only the outermost run of a step is recorded, in mutual recursion too; "all" records each (E25, KF-65)."""

    @WallClockTime
    def f(n: int) -> None:
        clock.work(0.05)
        if n:
            g(n - 1)

    @WallClockTime
    def g(n: int) -> None:
        f(n)

    f(4)
    f(4)
    assert times(recorder, f) == [0.25, 0.25]
    assert times(recorder, g) == [0.2, 0.2]
    assert stack() == ()
    config.configure(timing={"recursive": "all"})
    f(1)
    assert times(recorder, f) == [0.25, 0.25, 0.1, 0.05]


def test_an_exception_ends_the_step_without_measurement(recorder: ProgressRecorder, clock: Any) -> None:
    """Any BaseException: inactive, off the stack, nothing kept, and it comes through unchanged (E20, E55, E56)."""

    @WallClockTime
    def f(error: BaseException | None) -> str:
        clock.work(1)
        if error is not None:
            raise error
        return "done"

    for error in (ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()):
        with pytest.raises(type(error)) as caught:
            f(error)
        assert caught.value is error
        assert stack() == ()
    try:
        raise ValueError
    except ValueError:
        assert f(None) == "done"  # inside an except block it is as good as elsewhere (E55)
    assert times(recorder, f) == [1]


def test_discard_keeps_no_measurement(recorder: ProgressRecorder) -> None:
    """An early return can say that this run is not what is estimated (E17)."""

    def f() -> None:
        with WallClockTime("s") as handle:
            handle.discard()

    f()
    assert times(recorder, f, "s") == []


def test_zero_seconds_are_legal(recorder: ProgressRecorder) -> None:
    """No division by dt (E57, KF-69)."""

    @WallClockTime
    def f() -> None: ...

    for _ in range(4):
        f()
    assert times(recorder, f) == [0.0] * 4


def test_n_ref_is_outside_the_time(recorder: ProgressRecorder, clock: Any) -> None:
    """Its own time is not in dt; a substep's is reported to the parent as overhead (E33, E35)."""
    calls = []

    def slow(x: int) -> int:
        calls.append(x)
        clock.work(10)
        return x

    @WallClockTime(N_ref=slow)
    def inner(x: int) -> None:
        clock.work(1)

    def outer() -> float:
        with WallClockTime("o") as handle:
            inner(3)
            return handle.overhead

    inner(2)
    assert times(recorder, inner) == [1]
    assert outer() == pytest.approx(10)
    assert times(recorder, outer, "o") == [11]
    assert calls == [2, 3]


def test_threads_start_with_an_empty_stack(recorder: ProgressRecorder, clock: Any) -> None:
    """A thread's first step is a root; with a copied context it is a substep (E26)."""
    found: dict[str, Any] = {}

    def f(name: str) -> None:
        with WallClockTime("inner") as handle:
            found[name] = handle.parent

    with WallClockTime("outer") as outer:
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=f, args=("bare",)),
            threading.Thread(target=context.run, args=(f, "copied")),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert found == {"bare": None, "copied": outer}
    assert stack() == ()


def test_many_threads_lose_nothing(recorder: ProgressRecorder) -> None:
    """32 threads x 200 calls are 6400 measurements, with empty stacks (E26)."""

    @WallClockTime(N_ref=lambda n: n, order="O_N")
    def f(n: int) -> None: ...

    left: list[Any] = []

    def work() -> None:
        for n in range(200):
            f(n)
        left.append(stack())

    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    forecast = recorder.forecast((M, f.__qualname__, None))
    assert forecast.series.total == 6400
    assert left == [()] * 32
    assert recorder.active() == ()
    assert len(forecast.measurements()) == config.get("timing.max_measurements")


def test_runs_of_one_step_keep_their_own_figures(recorder: ProgressRecorder, clock: Any) -> None:
    """Start, N_ref and estimate belong to the run, not to the step or its decorator (E24)."""

    @WallClockTime(N_ref=lambda n, _: n, order="O_N")
    async def f(n: float, gate: asyncio.Event) -> tuple[Any, ...]:
        handle = current()
        assert handle is not None
        await gate.wait()
        return handle.N_ref, handle.dt_est, handle.elapsed

    async def main() -> list[tuple[Any, ...]]:
        gate = asyncio.Event()
        tasks = []
        for n in (1e9, 2e9):
            tasks.append(asyncio.create_task(f(n, gate)))
            await asyncio.sleep(0)
            clock.work(1)
        gate.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [(1e9, 3.0, 2.0), (2e9, 6.0, 1.0)]


def test_overlap_is_noted(recorder: ProgressRecorder) -> None:
    """How many runs of the step there were at once; fits may leave those out (E32)."""
    barrier = threading.Barrier(2)

    @WallClockTime
    def f(alone: bool) -> None:
        if not alone:
            barrier.wait()
            barrier.wait()

    thread = threading.Thread(target=f, args=(False,))
    thread.start()
    f(False)
    thread.join()
    f(True)
    forecast = recorder.forecast((M, f.__qualname__, None))
    assert sorted(m.overlap for m in forecast.measurements()) == [1, 2, 2]
    config.configure(timing={"overlapping": "ignore"})
    assert recorder.forecast((M, f.__qualname__, None)).count == 1


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


def test_a_forked_child_starts_empty(recorder: ProgressRecorder, home: Any, again: Any) -> None:
    """No steps, and its own fragment: what it measured reaches the store, the parent's is not saved twice (E31)."""

    @WallClockTime
    def f() -> None: ...

    f()
    with WallClockTime("outer"):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                assert stack() == () == recorder.active()
                f()
                assert not recorder.active()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    assert len(again().forecast((M, f.__qualname__, None)).measurements()) == 2


def test_report_tells_the_fraction(recorder: ProgressRecorder, clock: Any) -> None:
    """What the work says wins over the clock; below 1 until the end (E17, E97)."""

    def f() -> None:
        with WallClockTime("s", N_ref=1e9, order="O_N") as handle:
            clock.work(1.5)
            assert handle.fraction == 0.5
            handle.report(0.9)
            assert handle.fraction == 0.9
            handle.report(7)
            handle.report(math.nan)
            assert handle.fraction == 0.999
        assert handle.fraction == 1.0

    f()


def test_data_of_a_block_is_not_kept(recorder: ProgressRecorder) -> None:
    """A step remembers nothing that N_ref of its first pass could see (E24)."""

    class Data:
        size = 3.0

    def f() -> Any:
        data = Data()
        with WallClockTime("s", N_ref=lambda: data.size):
            return weakref.ref(data)

    found = f()
    gc.collect()
    assert found() is None
