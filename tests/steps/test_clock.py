from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.step_kit import step, steps, working
from workspan import Phase
from workspan.errors import UsageTypeError
from workspan.steps import fold


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
        """Time so far is in this record and the rest in the next; none is lost, doubled or moved (A12, M17)."""
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
        assert added == watch.total()


class TestErrorsAndEnds:
    def test_an_error_counts_and_comes_through_unchanged(self, transform_clock, clock):
        """An error at item 3 in the middle step: the same object, its time counted, self times exact (A19, M21)."""
        error = KeyError("x")

        def body(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(10)
                if item == 3:
                    raise error
                yield item

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(working(clock, 1), body, working(clock, 100)), range(6))
        with pytest.raises(KeyError) as caught:
            list(running)
        assert caught.value is error
        assert caught.value.__cause__ is None
        assert "body" in [entry.name for entry in caught.traceback]
        assert watch.drain().step_ns == (4, 40, 300)

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, SystemExit])
    def test_an_interrupt_closes_the_windows(self, transform_clock, clock, kind):
        """Any exception ends a window, so that what follows is not counted (M7)."""

        def body(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                clock.pass_by(2)
                if item:
                    raise kind
                yield item

        watch = transform_clock(clock=clock)
        with pytest.raises(kind):
            list(watch.chain(steps(body), range(3)))
        clock.pass_by(1000)
        assert watch.drain().total_ns == 4

    def test_after_an_error_the_iterator_itself_is_asked_again(self, transform_clock):
        """An iterator that recovers goes on, timed or not (M23)."""

        class Hiccup:
            def __init__(self) -> None:
                self.pulls = 0

            def __iter__(self) -> Hiccup:
                return self

            def __next__(self) -> int:
                self.pulls += 1
                if self.pulls == 3:
                    raise OSError("once")
                if self.pulls > 5:
                    raise StopIteration
                return self.pulls

        running = transform_clock().chain(steps(lambda items: Hiccup()), [])
        assert [next(running), next(running)] == [1, 2]
        with pytest.raises(OSError, match="once"):
            next(running)
        assert list(running) == [4, 5]

    def test_the_end_is_sticky(self, transform_clock):
        """After the end the iterator below is not asked again, even if it would give more (M24)."""
        asked = []

        class Restarting:
            def __iter__(self) -> Restarting:
                return self

            def __next__(self) -> int:
                asked.append(1)
                if len(asked) == 3:
                    raise StopIteration
                return len(asked)

        watch = transform_clock()
        running = watch.chain(steps(lambda items: Restarting()), [])
        assert list(running) == [1, 2]
        assert list(running) == [] == list(running)
        assert len(asked) == 3
        assert watch.drain().steps[0].pulls == 5

    def test_a_generators_return_value_survives(self, transform_clock):
        """What a generator returns is what `yield from` gives, through a timer too (M21)."""

        def returning(items: Iterable[int]) -> Iterator[int]:
            yield from items
            return "done"

        running = transform_clock().chain(steps(returning), [1, 2])
        got = []

        def outer() -> Iterator[int]:
            got.append((yield from running))

        assert list(outer()) == [1, 2]
        assert got == ["done"]

    def test_a_reentered_step_counts_once(self, transform_clock, clock):
        """A pull of a step within its own pull belongs to the outer window (M25)."""
        chains = []

        class Reentrant:
            def __init__(self) -> None:
                self.depth = 0

            def __iter__(self) -> Reentrant:
                return self

            def __next__(self) -> int:
                self.depth += 1
                clock.pass_by(10)
                if self.depth in (2, 4):
                    next(chains[0])
                if self.depth > 6:
                    raise StopIteration
                return self.depth

        watch = transform_clock(clock=clock)
        chains.append(watch.chain(steps(lambda items: Reentrant()), []))
        for _ in range(3):
            next(chains[0])
        times = watch.drain()
        assert (times.total_ns, times.steps[0].pulls) == (50, 3)
        chains[0].close()

    def test_an_early_stop_costs_nothing_more(self, transform_clock, clock):
        """A consumer that stops after two items pays for two, and they can be drained (M27)."""
        watch = transform_clock(clock=clock)
        running = watch.chain(steps(working(clock, 5), working(clock, 7)), range(100))
        next(running), next(running)
        running.close()
        assert watch.drain().step_ns == (10, 14)

    def test_a_lazy_item_costs_who_iterates_it(self, transform_clock, clock):
        """Work is charged to the step in whose window it runs (M28)."""

        def lazy(items: Iterable[int]) -> Iterator[Any]:
            for _ in items:
                yield working(clock, 30)([1, 2])

        def flat(items: Iterable[Any]) -> Iterator[Any]:
            for item in items:
                yield from item

        watch = transform_clock(clock=clock)
        assert list(watch.chain(steps(lazy, flat), range(1))) == [1, 2]
        assert watch.drain().step_ns == (0, 60)


class TestClose:
    @staticmethod
    def cleaning(clock: Any, ns: int, seen: list[int]) -> Any:
        def apply(items: Iterable[int]) -> Iterator[int]:
            try:
                for item in items:  # noqa: UP028  # `yield from` would close upstream before its own cleanup
                    yield item
            finally:
                clock.pass_by(ns)
                seen.append(ns)

        return apply

    def test_cleanup_runs_from_last_to_first_and_is_charged(self, transform_clock, clock):
        """A consumer takes 1 of 4 and closes: each cleanup ran once before close returned, on its step (A15, M26)."""
        seen: list[int] = []
        watch = transform_clock(clock=clock)
        running = watch.chain(steps(*(self.cleaning(clock, ns, seen) for ns in (50, 7, 1))), range(4))
        assert next(running) == 0
        running.close()
        assert seen == [1, 7, 50]
        running.close()
        assert seen == [1, 7, 50]
        times = watch.drain()
        assert times.step_ns == (50, 7, 1)
        assert (times.clamped_ns, [step.overlapped for step in times.steps]) == (0, [False] * 3)
        assert next(running, None) is None

    def test_a_step_that_delegates_is_not_charged_for_upstream(self, transform_clock, clock):
        """`yield from` closes what it delegates to before the own cleanup; its time is upstream's (M26)."""

        def delegating(items: Iterable[int]) -> Iterator[int]:
            try:
                yield from items
            finally:
                clock.pass_by(3)

        seen: list[int] = []
        watch = transform_clock(clock=clock)
        running = watch.chain(steps(self.cleaning(clock, 50, seen), delegating), range(4))
        next(running)
        running.close()
        assert (seen, watch.drain().step_ns) == ([50], (50, 3))

    def test_dropping_a_chain_closes_it(self, transform_clock, clock):
        """A chain that is dropped runs its cleanup at once, timed (M26)."""
        seen: list[int] = []
        watch = transform_clock(clock=clock)
        running = watch.chain(steps(self.cleaning(clock, 50, seen), self.cleaning(clock, 7, seen)), range(4))
        next(running)
        gc.disable()
        try:
            del running
            assert seen == [7, 50]
        finally:
            gc.enable()
        assert watch.drain().step_ns == (50, 7)

    def test_a_failing_cleanup_does_not_keep_the_others_from_running(self, transform_clock, clock):
        """All steps are closed, and the error comes through (M26)."""
        seen: list[int] = []

        def failing(items: Iterable[int]) -> Iterator[int]:
            try:
                yield from items
            finally:
                raise OSError("cannot flush")

        running = transform_clock().chain(steps(self.cleaning(clock, 50, seen), failing), range(4))
        next(running)
        with pytest.raises(OSError, match="cannot flush"):
            running.close()
        assert seen == [50]

    def test_closing_before_the_first_pull_runs_nothing(self, transform_clock):
        """No apply is called any more after close (M26)."""
        called = []
        running = transform_clock().chain(steps(called.append), [1])
        running.close()
        assert list(running) == []
        assert called == []

    def test_the_input_stays_open(self, transform_clock):
        """The input belongs to the caller: it can be read on after the chain is closed."""
        source = iter(range(4))
        numbers = (number for number in source)
        running = transform_clock().chain(steps(iter), numbers)
        assert next(running) == 0
        running.close()
        assert list(numbers) == [1, 2, 3]

    def test_a_cleanup_that_pulls_upstream_is_not_charged_for_it(self, transform_clock, clock):
        """Upstream work that a cleanup asks for is upstream's (M26, M8)."""

        def rest(items: Iterable[int]) -> Iterator[int]:
            pulled = iter(items)
            try:
                yield next(pulled)
            finally:
                clock.pass_by(3)
                list(pulled)

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(working(clock, 10), rest), range(4))
        next(running)
        running.close()
        assert watch.drain().step_ns == (40, 3)


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


class TestGroupings:
    def stages(self, clock: Any) -> list[Any]:
        made = []
        for stage, (user, costs) in enumerate([(False, (1, 2, 4)), (True, (8, 16, 32))]):
            for phase, cost in zip(list(Phase)[:3], costs, strict=True):
                made.append(
                    step(
                        working(clock, cost),
                        stage,
                        bucket=phase,
                        user=user and phase is Phase.FUNCTION_BODY,
                        label=f"F{stage} {phase.value}",
                        ops=[f"F{stage}"],
                    )
                )
        return made

    def test_all_are_of_one_array(self, transform_clock, clock):
        """Phases and stages sum to the total, user and built-in to the body (M36, M37, M38, KF-03)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(self.stages(clock), [1]))
        times = watch.drain()
        assert (times.input_prep_s, times.function_body_s, times.output_build_s) == (9e-9, 18e-9, 36e-9)
        assert (times.unsplit_s, times.stage_s, times.total_ns) == (0.0, (7e-9, 56e-9), 63)
        assert (times.user_s, times.built_in_s, times.approximate) == (16e-9, 2e-9, False)
        assert times.operator_s == {"F0": 7e-9, "F1": 56e-9}

    def test_a_folded_stage_is_unsplit(self, transform_clock, clock):
        """In a mixed chain phases and unsplit sum to the total; the folded stage counts whole (M31, M38, M40)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(fold(self.stages(clock), [1]), [1]))
        times = watch.drain()
        assert (times.input_prep_s, times.function_body_s, times.output_build_s) == (1e-9, 2e-9, 4e-9)
        assert (times.unsplit_s, times.stage_s) == (56e-9, (7e-9, 56e-9))
        assert (times.user_s, times.built_in_s, times.approximate) == (56e-9, 2e-9, True)

    def test_without_phases_they_are_not_measured(self, transform_clock, clock):
        """Where no step carries a phase all three are None, and the total is a number (M39, KF-03)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(fold(self.stages(clock), [0, 1]), [1]))
        times = watch.drain()
        assert (times.input_prep_s, times.function_body_s, times.output_build_s) == (None, None, None)
        assert (times.total_ns, times.unsplit_s) == (63, 63e-9)

    def test_a_stage_without_steps_reports_zero(self, transform_clock, clock):
        """A gap does not shift later stages (MR7, M37)."""
        watch = transform_clock(clock=clock)
        list(watch.chain([step(working(clock, 1), 0), step(working(clock, 2), 2)], [1]))
        assert watch.drain().stage_s == (1e-9, 0.0, 2e-9)

    def test_a_chain_without_user_code_has_no_user_time(self, transform_clock, clock):
        """The user group is exactly 0.0 and the built-in one positive (MR6, M38)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(steps(working(clock, 5)), [1]))
        times = watch.drain()
        assert (times.user_s, times.built_in_s) == (0.0, 5e-9)

    def test_a_step_of_several_operators_is_one_figure(self, transform_clock, clock):
        """Operators that share a step are not told apart: one figure under both names (M42)."""
        watch = transform_clock(clock=clock)
        list(watch.chain([step(working(clock, 5), ops=["Map(f)", "Filter(g)"])], [1]))
        assert watch.drain().operator_s == {"Map(f)+Filter(g)": 5e-9}


class TestMore:
    def test_pulls_items_and_first_item(self, transform_clock, clock):
        """Each step tells its pulls, its items and how long its first item took (M99)."""

        def odd(items: Iterable[int]) -> Iterator[int]:
            return (item for item in items if item % 2)

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(working(clock, 10), odd), range(6))
        assert watch.drain().steps[0].first_item_s is None
        assert list(running) == [1, 3, 5]
        first, second = watch.drain().steps
        assert (first.pulls, first.items, first.first_item_s) == (7, 6, 10e-9)
        assert (second.pulls, second.items, second.first_item_s) == (4, 3, 20e-9)

    def test_latencies_have_exact_ends_and_a_close_middle(self, transform_clock, clock):
        """Least and greatest are exact, percentiles off by at most 1 % of the ranks, at 10^5 items (M88, M99)."""
        watch = transform_clock(clock=clock)
        costs = [(7919 * number) % 100_003 for number in range(100_000)]  # each once, in wild order
        for _ in watch.chain(steps(lambda items: (clock.pass_by(ns) for ns in items)), costs):
            pass
        latency = watch.drain().steps[0].latency
        assert (latency.n, latency.min_s, latency.max_s) == (100_000, min(costs) / 1e9, max(costs) / 1e9)
        for q, found in ((0.5, latency.p50_s), (0.9, latency.p90_s), (0.99, latency.p99_s)):
            assert abs(found * 1e9 - q * 100_003) <= 1000
        assert latency.sketch.held < 20_000

    def test_without_items_there_is_no_latency(self, transform_clock):
        """Nothing measured is None and not 0 (M88)."""
        watch = transform_clock()
        list(watch.chain(steps(iter), []))
        latency = watch.drain().steps[0].latency
        assert (latency.n, latency.min_s, latency.p50_s, latency.max_s) == (0, None, None, None)

    def test_cpu_time_is_an_option(self, transform_clock, monkeypatch):
        """A step that computes has CPU time and one that waits has none; without the option it is None (M99)."""
        used = 0
        monkeypatch.setattr("time.thread_time_ns", lambda: used)

        def busy(items: Iterable[int]) -> Iterator[int]:
            nonlocal used
            for item in items:
                used += 100
                yield item

        watch = transform_clock(cpu=True)
        list(watch.chain(steps(busy, iter, busy), range(3)))
        assert [times.cpu_ns for times in watch.drain().steps] == [300, 0, 300]
        assert watch.drain().steps[0].cpu_s == 0.0
        watch = transform_clock()
        list(watch.chain(steps(busy), range(3)))
        assert watch.drain().steps[0].cpu_s is None

    def test_the_cost_of_the_timers_is_told(self, transform_clock, clock):
        """The overhead is the number of pulls times what one is found to cost here (M97)."""
        watch = transform_clock(clock=clock)
        assert watch.drain().overhead_s == 0.0
        list(watch.chain(steps(*[working(clock, 1)] * 2), range(99)))
        times = watch.drain()
        each = watch.overhead_ns(watch._timers, "monotonic")
        assert times.overhead_s > 0
        assert times.overhead_s <= 200 * max(each, watch.overhead_ns(watch._timers, watch._now()[1])) / 1e9 * 1.0001
        assert times.total_ns == 198  # it is not taken out of the figures

    def test_without_timers_nothing_is_measured(self, transform_clock):
        """Off: the same data, every figure None, still nothing before the first pull (M31, M94)."""
        called = []
        watch = transform_clock()
        running = watch.chain(
            steps(lambda items: called.append(1) or (2 * item for item in items)), [1, 2], timed=False
        )
        assert called == []
        assert list(running) == [2, 4]
        times = watch.drain()
        assert times.total_s is times.function_body_s is times.stage_s is times.step_s is times.overhead_s is None

    def test_clocks_and_timers_say_that_they_cannot_be_pickled(self, transform_clock):
        """They belong to one run in one process; the message says what to send instead (M95)."""
        watch = transform_clock()
        running = watch.chain(steps(iter), [1])
        for thing in (watch, running):
            with pytest.raises(UsageTypeError, match=r"send .*steps instead"):
                pickle.dumps(thing)

    @pytest.mark.parametrize(
        ("chain", "items", "message"), [([1], [], "made of steps, not of int"), ([], 5, "which int")]
    )
    def test_wrong_arguments_are_refused(self, transform_clock, chain, items, message):
        """What is no step, and an input that cannot be iterated, are refused at once with their type."""
        with pytest.raises(UsageTypeError, match=message):
            transform_clock().chain(chain, items)
