"""What each step is charged for, and how drains cut it."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.step_kit import step, steps, working
from workspan import Phase


class TestSelfTime:
    def test_equal_steps_each_have_their_own_time(self, transform_clock, clock):
        """Three equal steps over four items have 0.20 s each and 0.60 s together (KF-01, MR1, M8, M9)."""
        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(*[working(clock, 50_000_000)] * 3), range(4))) == [0, 1, 2, 3]
        times = watch.drain()
        assert times.step_s == (0.2, 0.2, 0.2)
        assert times.total_ns == 600_000_000
        assert times.clamped_s == 0.0

    @pytest.mark.parametrize("n", range(1, 7))
    def test_the_total_is_the_work_for_any_number_of_steps(self, transform_clock, clock, n):
        """The total of n steps is n times one step, not n (n + 1) / 2 (MR1, M9)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(steps(*[working(clock, 10)] * n), range(5)))
        assert watch.drain().total_ns == n * 50

    def test_only_the_working_step_has_time(self, transform_clock, clock):
        """Of three steps the middle one works; its neighbours have none, and each phase is its step (A5, M36)."""
        idle = working(clock, 0)
        chain = [
            step(idle, bucket=Phase.INPUT_PREP),
            step(working(clock, 50_000_000)),
            step(idle, bucket=Phase.OUTPUT_BUILD),
        ]
        watch = transform_clock(clock=clock)
        list(watch.chain(chain, range(4)))
        times = watch.drain()
        assert (times.input_prep_s, times.function_body_s, times.output_build_s) == (0.0, 0.2, 0.0)
        assert times.total_s == 0.2

    def test_the_consumers_time_is_in_no_step(self, transform_clock, clock):
        """What the caller does between pulls is not the chain's (M11)."""
        watch = transform_clock(clock=clock)
        for _ in watch.chain(steps(working(clock, 5)), range(3)):
            clock.pass_by(1000)
        assert watch.drain().total_ns == 15

    def test_pulling_the_input_is_the_first_step(self, transform_clock, clock):
        """Time that the raw input takes when it is pulled counts for step 0 (M12)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(steps(working(clock, 1), working(clock, 2)), working(clock, 100)(range(3))))
        assert watch.drain().step_ns == (303, 6)

    def test_input_fetch_is_outside_of_the_total(self, transform_clock, clock):
        """A declared input fetch is shown apart from phases, stages and total (M12, D8)."""
        chain = [step(working(clock, 100), bucket=Phase.INPUT_FETCH), step(working(clock, 1))]
        watch = transform_clock(clock=clock)
        list(watch.chain(chain, range(2)))
        times = watch.drain()
        assert (times.input_fetch_s, times.total_ns, times.stage_s) == (200e-9, 2, (2e-9,))
        assert times.function_body_s == 2e-9

    def test_an_eager_body_needs_no_special_path(self, transform_clock, clock):
        """A body that does all its work when it is built is timed like any other (MR5, M34)."""

        def write(items: Iterable[Any]) -> list[int]:
            count = 0
            for _ in items:
                clock.pass_by(300)
                count += 1
            return [count]

        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(working(clock, 7), write), range(2))) == [2]
        assert watch.drain().step_ns == (14, 600)

    def test_no_steps_hand_on_the_input(self, transform_clock):
        """A chain of no steps yields its input, with an empty total and a close (M3)."""
        watch = transform_clock()
        running = watch.chain([], [1, 2])
        assert next(running) == 1
        running.close()
        assert list(running) == []
        assert watch.drain().total_s == 0.0

    @given(data=st.data())
    def test_self_times_are_exact_for_any_chain(self, transform_clock, data):
        """Maps, filters, flat maps, early ends, errors: each step gets exactly its work, and all sum up (M9, R67)."""
        now = 0
        worked: dict[int, int] = {}

        def work(index: int, ns: int) -> None:
            nonlocal now
            now += ns
            worked[index] = worked.get(index, 0) + ns

        def make(index: int) -> Any:
            kind = data.draw(st.sampled_from(["map", "filter", "flat", "take", "fail", "eager"]))
            costs = data.draw(st.lists(st.integers(0, 50), min_size=3, max_size=3))
            limit = data.draw(st.integers(0, 6))

            def lazy(items: Iterable[int]) -> Iterator[int]:
                work(index, costs[0])
                try:
                    for number, item in enumerate(items):
                        work(index, costs[1])
                        if kind == "take" and number == limit:
                            return
                        if kind == "fail" and number == limit:
                            raise ValueError(index)
                        for _ in range({"filter": number % 2, "flat": 2}.get(kind, 1)):
                            yield item
                finally:
                    work(index, costs[2])

            return (lambda items: list(lazy(items))) if kind == "eager" else lazy

        count = data.draw(st.integers(1, 5))
        running = (watch := transform_clock(clock=lambda: now)).chain(steps(*map(make, range(count))), range(8))
        pulls = data.draw(st.integers(0, 40))
        found = [0] * count
        try:
            for _ in range(pulls):
                next(running, None)
                now += 1000  # the consumer's
                if data.draw(st.booleans()):
                    times = watch.drain()
                    assert times.clamped_ns == 0
                    found = [a + b for a, b in zip(found, times.step_ns, strict=True)]
        except ValueError:
            pass
        running.close()
        times = watch.drain()
        assert times.clamped_ns == 0
        assert times.total_ns == sum(times.step_ns)
        found = [a + b for a, b in zip(found, times.step_ns, strict=True)]
        assert found == [worked.get(index, 0) for index in range(count)]
        assert tuple(found) == watch.total().step_ns


class TestFirstPull:
    def test_building_runs_nothing(self, transform_clock):
        """Neither apply nor the input run before the first pull; then the last apply starts first (A10, M4, M5)."""
        seen: list[str] = []

        def logging(name: str) -> Any:
            def apply(items: Iterable[int]) -> Iterator[int]:
                seen.append(name)
                yield from items

            return lambda items: (seen.append(f"apply {name}"), apply(items))[1]

        running = transform_clock().chain(steps(logging("a"), logging("b")), (seen.append("input") or 1 for _ in "x"))
        assert seen == []
        assert list(running) == [1]
        assert seen == ["apply b", "b", "apply a", "a", "input"]

    def test_apply_runs_once_and_in_the_window_of_its_step(self, transform_clock, clock):
        """What apply does is its own step's time, once (M5)."""

        def apply(items: Iterable[int]) -> Iterator[int]:
            clock.pass_by(100)
            return iter(items)

        watch = transform_clock(clock=clock)
        list(watch.chain(steps(apply, working(clock, 1)), range(3)))
        assert watch.drain().step_ns == (100, 3)

    def test_a_setup_failure_comes_from_the_first_pull(self, transform_clock, clock):
        """An apply that raises does so in the first pull and in each later one; it is called once (M22, M23, A10)."""
        error = OSError("no such table")
        calls = []

        def apply(items: Iterable[int]) -> Any:
            calls.append(next(iter(items)))
            clock.pass_by(9)
            raise error

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(working(clock, 1), apply), range(3))
        for _ in range(3):
            with pytest.raises(OSError, match="no such table") as caught:
                next(running)
            assert caught.value is error
        assert calls == [0]
        assert watch.drain().step_ns == (1, 9)

    def test_a_stop_from_apply_is_no_clean_end(self, transform_clock):
        """StopIteration out of an apply is an error, since it would look like the end of the data (M23)."""
        watch = transform_clock()
        running = watch.chain(steps(lambda items: next(iter(()))), [1])
        for _ in range(2):
            with pytest.raises(RuntimeError, match="raised StopIteration"):
                next(running)

    def test_a_commit_step_sees_what_prepare_left(self, transform_clock):
        """A body that drains its input first finds the state that an upstream step leaves, else not (M6, MR8)."""

        def run(commit: Any, left: list[str]) -> Any:
            def prepare(items: Iterable[int]) -> Iterator[int]:
                left.append("prepared")
                yield from items

            return list(transform_clock().chain(steps(prepare, lambda items: commit(items, left)), [1, 2]))

        assert run(lambda items, left: (list(items), [*left])[1], []) == ["prepared"]
        assert run(lambda items, left: ([*left], list(items))[0], []) == []


class TestDrain:
    def test_every_output_block_is_timed(self, transform_clock, clock):
        """Draining after each item reads each item's time; live timers keep counting (KF-02, MR2, A9, M13)."""
        watch = transform_clock(clock=clock)
        found = []
        for _ in watch.chain(steps(working(clock, 1), working(clock, 50_000_000)), range(5)):
            found.append(watch.drain().step_ns)
        assert found == [(1, 50_000_000)] * 5

    def test_the_second_drain_in_a_row_is_empty(self, transform_clock, clock):
        """Phases and stages are 0.0 then, or not measured as before (M14)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(steps(working(clock, 5)), range(2)))
        assert watch.drain().total_ns == 10
        times = watch.drain()
        assert (times.total_s, times.function_body_s, times.stage_s, times.steps[0].items) == (0.0, 0.0, (0.0,), 0)

    def test_before_a_chain_nothing_is_measured(self, transform_clock):
        """Total 0.0; phases, stages and steps None (M15)."""
        times = transform_clock().drain()
        assert times.total_s == 0.0
        assert times.input_prep_s is times.unsplit_s is times.stage_s is times.step_s is times.user_s is None

    def test_a_drain_inside_a_body_splits_the_open_windows(self, transform_clock, clock):
        """Time so far is in this record and the rest in the next; none is lost, doubled or moved (A12, M16, M17)."""
        watch = transform_clock(clock=clock)
        found = []

        def body(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(3)
                found.append(watch.drain().step_ns)
                clock.pass_by(4)
                yield item

        list(watch.chain(steps(working(clock, 10), body, working(clock, 1)), range(2)))
        found.append(watch.drain().step_ns)
        assert found == [(10, 3, 0), (10, 7, 1), (0, 4, 1)]

    def test_a_drain_from_another_thread_splits_them_too(self, transform_clock, clock):
        """A drain while another thread is in a window takes what it has so far (A12, M17)."""
        watch = transform_clock(clock=clock)
        inside, go = threading.Event(), threading.Event()

        def body(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(3)
                inside.set()
                assert go.wait(10)
                clock.pass_by(4)
                yield item

        puller = threading.Thread(target=list, args=(watch.chain(steps(working(clock, 10), body), [1]),))
        puller.start()
        assert inside.wait(10)
        assert watch.drain().step_ns == (10, 3)
        go.set()
        puller.join()
        assert watch.drain().step_ns == (0, 4)

    def test_time_after_the_last_item_is_reported(self, transform_clock, clock):
        """Cleanup after the last yield and a filter that drops the rest are in the last record (A13, M18)."""

        def body(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(5)
                if item < 2:
                    yield item
            clock.pass_by(100)

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(body, working(clock, 1)), range(4))
        assert [next(running), next(running)] == [0, 1]
        assert watch.drain().step_ns == (10, 2)
        assert next(running, None) is None
        assert watch.drain().step_ns == (110, 0)
        assert watch.total().step_ns == (120, 2)

    def test_a_new_chain_starts_from_zero(self, transform_clock, clock):
        """Timers of the chain before do not contribute any more (M19)."""
        watch = transform_clock(clock=clock)
        old = watch.chain(steps(working(clock, 5)), range(9))
        next(old)
        assert watch.drain().step_ns == (5,)
        new = watch.chain(steps(working(clock, 7)), range(9))
        next(old)
        next(new)
        assert watch.drain().step_ns == (7,)
        assert watch.total().step_ns == (7,)

    def test_tasks_that_share_steps_keep_their_own_figures(self, transform_clock, clock):
        """One list of steps, two clocks, pulls and drains in any order: each has exactly its own (A14, MR3, M20)."""
        shared = steps(lambda items: (clock.pass_by(ns) or ns for ns in items))
        one, two = transform_clock(clock=clock), transform_clock(clock=clock)
        first, second = one.chain(shared, [20] * 5), two.chain(shared, [60] * 5)
        found = {1: [], 2: []}
        for number in range(5):
            next(first)
            next(second)
            if number % 2:
                found[1].append(one.drain().total_ns)
        found[2].append(two.drain().total_ns)
        found[1].append(one.drain().total_ns)
        assert found == {1: [40, 40, 20], 2: [300]}

    def test_records_add_up(self, transform_clock, clock):
        """The sum of all drains is the total, for time, pulls, items and latencies (M13, M88)."""
        watch = transform_clock(clock=clock)
        drained = [watch.drain() for _ in watch.chain(steps(working(clock, 5)), range(5))]
        drained.append(watch.drain())
        added = sum(drained[1:], drained[0])
        assert added.step_ns == watch.total().step_ns == (25,)
        assert (added.steps[0].items, added.steps[0].pulls, added.steps[0].latency.n) == (5, 6, 5)
        whole = watch.total()
        assert added.overhead_s == pytest.approx(whole.overhead_s)
        assert dataclasses.replace(added, overhead_s=whole.overhead_s) == whole


def test_any_number_of_drains_is_kept_in_bounds(transform_clock, clock):
    """A chain that is drained for each of many blocks keeps a bounded number of records, and their whole sum (M13)."""
    watch = transform_clock(clock=clock)
    for _ in watch.chain(steps(working(clock, 5)), range(600)):
        watch.drain()
        assert len(watch._drained) < 256
    total = watch.total().steps[0]
    assert (total.self_ns, total.items, total.latency.n, total.latency.sketch.n) == (3000, 600, 600, 600)


class Item:
    """Something that can be referred to weakly."""


def test_no_intermediate_stays_alive(transform_clock):
    """After a pull of five steps that each make a new item, only the last one lives (A17, M30)."""
    seen: list[weakref.ref[Item]] = []

    def renew(items: Iterable[Item]) -> Iterator[Item]:
        for _ in map(id, items):
            made = Item()
            seen.append(weakref.ref(made))
            yield made
            del made

    running = transform_clock().chain(steps(*[renew] * 5), (Item() for _ in range(3)))
    for _ in range(2):
        item = next(running)
        gc.collect()
        # The generators above hold their own item while they are suspended; the timers hold none.
        alive = [ref() for ref in seen if ref() is not None]
        assert item in alive
        alive.clear()
        running_refs = [ref for ref in seen[:-5] if ref() is not None]
        assert running_refs == []
    assert next(running) is not item
