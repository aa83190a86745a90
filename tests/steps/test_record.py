"""Groupings of the self times, and what else a record tells."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.step_kit import step, steps, working
from workspan import Phase, TransformClock
from workspan.errors import UsageTypeError
from workspan.measure import _timers_py as timers
from workspan.steps import clock as timing
from workspan.steps import fold


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

    @pytest.mark.parametrize("order", ["wild", "rising", "periodic"])
    def test_latencies_have_exact_ends_and_a_close_middle(self, transform_clock, clock, order):
        """Least and greatest are exact, percentiles off by at most 1 % of the ranks, at 10^5 items (M88, M99)."""
        watch = transform_clock(clock=clock)
        costs = [(7919 * number) % 100_003 for number in range(100_000)]  # each once
        if order == "rising":
            costs.sort()
        if order == "periodic":
            costs = [391 * (number % 256) for number in range(100_000)]
        for _ in watch.chain(steps(lambda items: (clock.pass_by(ns) for ns in items)), costs):
            pass
        latency = watch.drain().steps[0].latency
        assert (latency.n, latency.min_s, latency.max_s) == (100_000, min(costs) / 1e9, max(costs) / 1e9)
        for q, found in ((0.5, latency.p50_s), (0.9, latency.p90_s), (0.99, latency.p99_s)):
            assert abs(found * 1e9 - q * 100_003) <= 1000 + (391 if order == "periodic" else 0)
        assert latency.sketch.held < 20_000

    @pytest.mark.parametrize("n", [1, 1000, 1025, 3001, 20_000])
    def test_latencies_close_to_each_other_are_told_apart(self, transform_clock, clock, n):
        """Many items of nearly one latency, 1 s: percentiles by rank, each item weighed once, over drains (M88)."""
        watch = transform_clock(clock=clock)
        costs = [10**9 + (7919 * number) % n for number in range(n)]  # each once, as 7919 is prime
        found = []
        for number, _ in enumerate(watch.chain(steps(lambda items: (clock.pass_by(ns) or ns for ns in items)), costs)):
            if number in (n // 3, n // 2):
                found.append(watch.drain().steps[0].latency)
        found.append(watch.drain().steps[0].latency)
        assert sum(latency.n for latency in found) == n
        latency = watch.total().steps[0].latency
        assert (latency.sketch.min, latency.sketch.max) == (min(costs), max(costs))
        assert n > 4096 or latency.sketch.n == n  # from there on they are sampled
        for q, seconds in ((0.5, latency.p50_s), (0.9, latency.p90_s), (0.99, latency.p99_s)):
            assert abs(seconds * 1e9 - 10**9 - q * n) <= 0.01 * n + 1

    def test_an_outlier_shifts_no_percentile(self, transform_clock, clock):
        """Beside one that took 5 s the others are still known to 0.2 %, and the ends exactly (M88)."""
        watch = transform_clock(clock=clock)
        costs = [*range(10**6, 10**6 + 999), 5 * 10**9]
        list(watch.chain(steps(lambda items: (clock.pass_by(ns) for ns in items)), costs))
        latency = watch.drain().steps[0].latency
        assert (latency.min_s, latency.max_s) == (1e-3, 5.0)
        assert latency.p50_s == pytest.approx(1.0005e-3, rel=0.002)
        assert latency.p99_s == pytest.approx(1.00099e-3, rel=0.002)

    def test_without_items_there_is_no_latency(self, transform_clock):
        """Nothing measured is None and not 0 (M88)."""
        watch = transform_clock()
        list(watch.chain(steps(iter), []))
        latency = watch.drain().steps[0].latency
        assert (latency.n, latency.min_s, latency.p50_s, latency.max_s) == (0, None, None, None)

    def test_a_broken_chain_shows_in_the_clamp(self, transform_clock, clock):
        """Where windows exceed their consumer's, no step goes below zero and the record says by how much (M10)."""
        watch = transform_clock(clock=clock)
        list(watch.chain(steps(working(clock, 5), working(clock, 2)), range(2)))
        watch._windows.cells[0].closed += 5004
        times = watch.drain()
        assert times.step_ns == (5014, 0)
        assert (times.clamped_ns, times.clamped_s) == (5000, 5e-6)
        assert "clamped" in times.table()
        watch._windows.cells[0].closed += 1000  # up to 1 µs is the clock's doing
        assert watch.drain().clamped_s == 0.0

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

    def test_an_interruption_does_not_make_the_timers_free(self, monkeypatch):
        """Other programs that take the processor while the cost is found change it in neither direction (M97)."""
        readings = iter([0, 300, 400, 1000, 1320, 6000, 7000, 9000, 9110])  # begin, middle, end, three times
        implementation = SimpleNamespace(
            __name__="made up",
            Cell=timers.Cell,
            Timer=timers.Timer,
            CLOCKS={"monotonic": lambda: next(readings), "x": int},
        )
        monkeypatch.setattr(timing, "_PULLS", 10)
        assert TransformClock.overhead_ns(implementation, "x") == (300 - 100) / 10

    def test_cpu_time_makes_timers_dearer(self, transform_clock):
        """The overhead is found for the way in which the chain is timed (M97)."""
        name = transform_clock()._now()[1]
        plain, watched = (transform_clock.overhead_ns(transform_clock._timers, name, cpu=cpu) for cpu in (False, True))
        assert watched > plain
        watch = transform_clock(cpu=True)
        list(watch.chain(steps(iter), range(10)))
        assert watch.drain().overhead_s == pytest.approx(11 * watched / 1e9)

    def test_a_disturbance_is_no_time_that_timers_save(self, transform_clock, monkeypatch):
        """A pause of the machine in the loop without a timer does not make the timers cost nothing (M97)."""
        implementation = transform_clock()._timers
        times = iter([0, 60_000, 80_000, 0, 50_000, 90_000_000, 0, 40_000_000, 40_030_000])
        clocks = {"own": implementation.CLOCKS["monotonic"], "monotonic": lambda: next(times)}
        fake = SimpleNamespace(
            __name__="disturbed", CLOCKS=clocks, Cell=implementation.Cell, Timer=implementation.Timer
        )
        monkeypatch.setattr("workspan.steps.clock._overheads", {})
        assert transform_clock.overhead_ns(fake, "own") == (50_000 - 20_000) / 2000

    def test_a_chain_that_is_mostly_timers_says_so(self, transform_clock, clock):
        """From 2 % on the table says how to make timing cheaper, and below it does not (M98)."""
        for ns, told in ((1, True), (10**9, False)):
            watch = transform_clock(clock=clock)
            list(watch.chain(steps(working(clock, ns)), range(10)))
            assert ('timing="stages"' in watch.table()) == told

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
        ("chain", "items", "message"),
        [
            ([1], [], "made of steps, not of int: 1"),
            (5, [], "several steps, not of one int: 5"),
            (step(iter), [], "not of one Step; put it in a list"),
            ([], 5, "which int is not"),
        ],
    )
    def test_wrong_arguments_are_refused(self, transform_clock, chain, items, message):
        """What is no step, and an input that cannot be iterated, are refused at once with their type."""
        with pytest.raises(UsageTypeError, match=message):
            transform_clock().chain(chain, items)

    def test_a_wrong_clock_is_refused(self, transform_clock):
        """A clock is called."""
        with pytest.raises(UsageTypeError, match="clock=5: it is called"):
            transform_clock(clock=5)

    @pytest.mark.parametrize("sizes", [False, True])
    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (None, "step 1, 'f1 body', made NoneType of its input, which is not iterable; does its apply return"),
            (7, "made int of its input, which is not iterable$"),
        ],
    )
    def test_an_apply_that_makes_no_iterable_is_named(self, transform_clock, made, message, sizes):
        """The first pull says which step it is and what it made, and so does each later one (M22, M23)."""
        running = transform_clock(sizes=sizes).chain(steps(iter, lambda items: made), [1])
        for _ in range(2):
            with pytest.raises(UsageTypeError, match=message):
                next(running)
