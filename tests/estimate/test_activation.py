"""Steps inside steps, in threads and forked processes."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import threading
import weakref
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


def test_a_parent_that_has_ended_is_passed_over(recorder: ProgressRecorder) -> None:
    """A task that was made inside a step and begins one of its own after that step's end begins a root (E22, E27)."""
    found: list[Any] = []

    async def late(ended: asyncio.Event) -> None:
        await ended.wait()
        found.append(current())
        with WallClockTime("late") as handle:
            found.append((handle.is_substep, handle.parent, current() is handle))
        found.append(current())

    async def main() -> None:
        ended = asyncio.Event()
        with WallClockTime("parent"):
            task = asyncio.create_task(late(ended))
        ended.set()
        await task

    asyncio.run(main())
    assert found == [None, (False, None, True), None]


def test_a_bar_is_not_full_before_the_end(recorder: ProgressRecorder, clock: Any) -> None:
    """At the very time that was expected the fraction is still below 1, and beyond it nobody can say (E97)."""
    with WallClockTime("s", N_ref=1e9, order="O_N") as handle:
        clock.work(3.0)
        assert (handle.dt_est, handle.elapsed, handle.fraction) == (3.0, 3.0, 0.999)
        clock.work(0.5)
        assert handle.fraction is None
    assert handle.fraction == 1.0
