"""Errors, the end of the input, and closing."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from helpers.step_kit import steps, working


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

    def test_the_first_item_may_come_in_a_later_pull(self, transform_clock, clock):
        """The time to the first item runs from the first pull, over a failed one and what was between (M99)."""

        class Late:
            def __init__(self, items: Iterable[int]) -> None:
                self.failed = False

            def __iter__(self) -> Late:
                return self

            def __next__(self) -> int:
                clock.pass_by(10)
                if not self.failed:
                    self.failed = True
                    raise OSError
                return 1

        watch = transform_clock(clock=clock)
        running = watch.chain(steps(Late), [])
        with pytest.raises(OSError):  # noqa: PT011
            next(running)
        clock.pass_by(100)
        next(running)
        assert watch.drain().steps[0].first_item_s == 120e-9

    def test_after_an_error_the_iterator_itself_is_asked_again(self, transform_clock, clock):
        """An iterator that recovers goes on, timed or not (M23)."""

        class Hiccup:
            def __init__(self) -> None:
                self.pulls = 0

            def __iter__(self) -> Hiccup:
                return self

            def __next__(self) -> int:
                self.pulls += 1
                clock.pass_by(7)
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
        assert [step.pulls for step in times.steps] == [1, 1, 1]
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

    def test_a_step_that_somebody_else_holds_is_closed_too(self, transform_clock, clock):
        """Closing does not wait until nobody refers to an upstream step any more (M26)."""
        kept = []

        def keeping(items: Iterable[int]) -> Iterator[int]:
            kept.append(items)
            yield from map(int, items)

        seen: list[int] = []
        running = transform_clock(clock=clock).chain(steps(self.cleaning(clock, 50, seen), keeping), range(4))
        next(running)
        running.close()
        assert seen == [50]
        assert next(kept[0], None) is None

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
