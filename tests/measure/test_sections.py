from __future__ import annotations

import contextvars
import gc
import threading
from contextlib import ExitStack
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.sections import self_ns
from workspan.errors import UsageTypeError
from workspan.measure import sections as module
from workspan.measure import ticks


class TestSelfTime:
    def test_is_the_own_window_less_the_nested_ones(self, sections, clock):
        """A section is charged for its own time only; the root keeps what no section covers."""
        with sections.collect(clock=clock) as collected:
            clock.pass_by(1)
            with sections.section("outer"):
                clock.pass_by(10)
                with sections.section("inner"):
                    clock.pass_by(100)
                clock.pass_by(1000)
            clock.pass_by(10000)
        assert self_ns(collected) == {"outer": 1010, "inner": 100}
        assert collected.root.self_ns == 10001
        assert collected.root.total_ns == 11111

    def test_steps_are_seconds_and_calls_by_name(self, sections, clock):
        """What rides home with a block is self seconds and calls, equal to plain tuples, summed over the name."""
        with sections.collect(clock=clock) as collected:
            for _ in range(3):
                with sections.section("read"):
                    clock.pass_by(500_000_000)
            with sections.section("write"), sections.section("read"):
                clock.pass_by(1)
        assert collected.steps == {"read": (1.500000001, 4), "write": (0.0, 1)}
        assert list(collected.steps) == ["read", "write"]
        assert collected.steps["read"].self_seconds == 1.500000001
        assert collected.steps["read"].calls == 4

    def test_the_tree_keeps_where_a_section_was_called(self, sections, clock):
        """The same name below two parents is two nodes of the tree."""
        with sections.collect(clock=clock) as collected:
            for parent in ("a", "b"):
                with sections.section(parent), sections.section("read"):
                    clock.pass_by(7)
        assert [(node.name, node.total_ns, node.calls) for node in collected.root.walk()] == [
            ("", 14, 0),
            ("a", 7, 1),
            ("read", 7, 1),
            ("b", 7, 1),
            ("read", 7, 1),
        ]

    def test_recursion_counts_every_moment_once(self, sections, clock):
        """A section nested in one of its own name adds its own time and no more."""

        def walk(depth: int) -> None:
            with sections.section("walk"):
                clock.pass_by(1)
                if depth:
                    walk(depth - 1)
                clock.pass_by(10)

        with sections.collect(clock=clock) as collected:
            walk(4)
        assert self_ns(collected) == {"walk": 55}
        assert collected.steps["walk"].calls == 5
        assert collected.root.total_ns == 55

    @given(data=st.data())
    def test_self_times_sum_to_the_root_for_any_nesting(self, sections, data):
        """Over random trees each node gets exactly its window less its children's, and all sum to the root (R67)."""
        now = 0
        expected: dict[str, int] = {}

        def run(depth: int) -> int:
            """Open a section with random pauses and children; return its window."""
            nonlocal now
            name = data.draw(st.sampled_from("abc"))
            window = 0
            with sections.section(name):
                for _ in range(data.draw(st.integers(0, 3))):
                    pause = data.draw(st.integers(0, 10**6))
                    now += pause
                    expected[name] = expected.get(name, 0) + pause
                    window += pause
                    if depth:
                        window += run(depth - 1)
            expected.setdefault(name, 0)
            return window

        with sections.collect(clock=lambda: now) as collected:
            windows = sum(run(3) for _ in range(data.draw(st.integers(0, 3))))
        assert self_ns(collected) == expected
        assert collected.root.total_ns == now == windows
        assert collected.root.self_ns == 0

    @given(steps=st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 100)), max_size=40))
    def test_sections_left_in_any_order_share_the_time_without_gap(self, sections, steps):
        """Every moment belongs to the section that was opened last and is still open, in whatever order they end."""
        now = 0
        names: list[str] = []  # opened and not left, in order of opening
        open_sections = {}
        expected: dict[str, int] = {}
        with sections.collect(clock=lambda: now) as collected:
            for number, (which, opens, pause) in enumerate(steps):
                if opens or not names:
                    name = f"section {number}"
                    open_sections[name] = sections.section(name).__enter__()
                    names.append(name)
                else:
                    name = names.pop(which % len(names))
                    open_sections.pop(name).__exit__(None, None, None)
                now += pause
                last = names[-1] if names else ""
                expected[last] = expected.get(last, 0) + pause
        assert {name: ns for name, ns in self_ns(collected).items() if ns} == {
            name: ns for name, ns in expected.items() if name and ns
        }
        assert collected.root.self_ns == expected.get("", 0)
        assert collected.root.total_ns == now

    def test_real_time_is_counted_in_integer_nanoseconds(self, sections):
        """With the machine's clock too, the parts sum to the whole exactly."""
        with sections.collect() as collected:
            for _ in range(100):
                with sections.section("a"), sections.section("b"):
                    sum(range(50))
        assert sum(node.self_ns for node in collected.root.walk()) == collected.root.total_ns > 0
        assert all(type(node.self_ns) is int for node in collected.root.walk())


class TestWaysOut:
    def test_a_section_that_raises_is_closed_and_counted(self, sections, clock):
        """An exception passes through unchanged, and time after it belongs to the caller (R67)."""
        error = ValueError("torn")

        def tear() -> None:
            with sections.section("a"), sections.section("b"):
                clock.pass_by(5)
                raise error

        with sections.collect(clock=clock) as collected:
            with pytest.raises(ValueError, match="torn") as caught:
                tear()
            clock.pass_by(100)
        assert caught.value is error
        assert self_ns(collected) == {"a": 0, "b": 5}
        assert collected.root.self_ns == 100

    def test_a_collection_that_raises_still_has_its_steps(self, sections, clock):
        """A block that fails keeps what it measured, and the next one starts afresh."""
        collected = sections.collect(clock=clock)

        def fail() -> None:
            with collected, sections.section("a"):
                clock.pass_by(5)
                raise KeyError("gone")

        with pytest.raises(KeyError, match="gone"):
            fail()
        assert self_ns(collected) == {"a": 5}
        with sections.section("later"):
            pass
        assert self_ns(collected) == {"a": 5}

    def test_an_abandoned_generator_ends_its_section_when_it_is_closed(self, sections, clock):
        """A generator left in mid-way is charged up to its close, and the sum stays whole (R67)."""

        def items():
            with sections.section("read"):
                while True:
                    clock.pass_by(3)
                    yield

        with sections.collect(clock=clock) as collected:
            source = items()
            next(source)
            next(source)
            with sections.section("use"):
                clock.pass_by(10)
                source.close()
                clock.pass_by(100)
            clock.pass_by(1000)
        assert self_ns(collected) == {"read": 6, "use": 110}
        assert collected.root.self_ns == 1000

    def test_a_generator_that_is_never_closed_ends_with_the_collection(self, sections, clock):
        """What is still open at the end is charged up to the end and not beyond it (R67)."""

        def items():
            with sections.section("read"):
                yield

        with sections.collect(clock=clock) as collected:
            source = items()
            next(source)
            clock.pass_by(20)
        clock.pass_by(1000)
        before = collected.root
        source.close()
        assert self_ns(collected) == {"read": 20}
        assert collected.root == before

    def test_an_outer_section_that_ends_first_does_not_take_the_inner_with_it(self, sections, clock):
        """Left out of order, the inner section goes on until it is left itself."""
        with sections.collect(clock=clock) as collected:
            outer, inner = sections.section("outer"), sections.section("inner")
            outer.__enter__()
            inner.__enter__()
            clock.pass_by(1)
            outer.__exit__(None, None, None)
            clock.pass_by(10)
            inner.__exit__(None, None, None)
            clock.pass_by(100)
        assert self_ns(collected) == {"outer": 0, "inner": 11}
        assert collected.root.self_ns == 100

    def test_leaving_twice_or_without_entering_changes_nothing(self, sections, clock):
        """A second exit of the same section is ignored."""
        with sections.collect(clock=clock) as collected, sections.section("outer"):
            inner = sections.section("inner")
            inner.__exit__(None, None, None)
            with inner:
                clock.pass_by(1)
            inner.__exit__(None, None, None)
            clock.pass_by(10)
        assert self_ns(collected) == {"outer": 10, "inner": 1}

    def test_a_generator_closed_by_another_thread_leaves_the_figures_to_their_own(self, sections, clock):
        """A section left by a foreign thread is closed, but only its lane's own thread does the sums (R67)."""

        def items():
            with sections.section("read"):
                yield

        def read_by_foreign_thread() -> None:
            raise AssertionError("the foreign thread touched the lane")

        with sections.collect(clock=clock) as collected:
            with sections.section("outer"):
                source = items()
                next(source)
                clock.pass_by(5)
                clock.on_read.append(read_by_foreign_thread)
                thread = threading.Thread(target=source.close)
                thread.start()
                thread.join()
                assert clock.on_read.pop() is read_by_foreign_thread
                with sections.section("inner"):
                    clock.pass_by(7)
            clock.pass_by(10)
            with sections.section("after"):
                clock.pass_by(100)
        assert self_ns(collected) == {"outer": 0, "read": 5, "inner": 7, "after": 100}
        assert collected.root.self_ns == 10
        assert [node.name for node in collected.root.children[0].children] == ["read", "inner"]

    def test_a_section_ends_although_another_thread_closed_the_one_in_it(self, sections, clock):
        """What a foreign thread closed does not hide the end of the section around it."""

        def items():
            with sections.section("read"):
                yield

        with sections.collect(clock=clock) as collected:
            with sections.section("outer"):
                source = items()
                next(source)
                thread = threading.Thread(target=source.close)
                thread.start()
                thread.join()
            clock.pass_by(10)
        assert self_ns(collected) == {"outer": 0, "read": 0}
        assert collected.root.self_ns == 10

    @pytest.mark.parametrize("at", ["entering", "leaving"])
    def test_a_section_left_in_the_middle_of_another_ones_bookkeeping(self, sections, clock, at):
        """The collector may close a generator at any moment, also while the clock is read for another section (R67)."""

        def items():
            with sections.section("read"):
                yield

        with sections.collect(clock=clock) as collected:
            source = items()
            next(source)
            clock.pass_by(5)
            section = sections.section("use")
            if at == "entering":
                clock.on_read.append(source.close)
            with section:
                clock.pass_by(10)
                if at == "leaving":
                    clock.on_read.append(source.close)
            clock.pass_by(100)
            with sections.section("after"):
                clock.pass_by(1000)
        assert self_ns(collected) == {"read": 5, "use": 10, "after": 1000}
        assert collected.root.self_ns == 100
        below_read = ["use"] if at == "leaving" else []
        tree = {node.name: [child.name for child in node.children] for node in collected.root.walk()}
        assert tree["read"] == below_read
        assert tree[""] == [name for name in ("read", "use", "after") if name not in below_read]

    def test_abandoned_collections_are_freed_without_the_collector(self, sections):
        """A finished collection is no garbage cycle: blocks by the million do not wait for a collection run."""
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                with sections.collect() as collected, sections.section("a"), sections.section("b"):
                    pass
            del collected
            assert gc.collect() == 0
        finally:
            gc.enable()


class TestOutside:
    def test_a_section_outside_a_collection_measures_nothing(self, sections):
        """Without a collection a section runs its body, passes exceptions on, and leaves no trace."""
        with sections.section("a"):
            assert sections.ticks.current_lane.get() is None
        with pytest.raises(ValueError, match="mine"), sections.section("a"):
            raise ValueError("mine")

    def test_a_section_made_before_the_collection_works_in_it(self, sections, clock):
        """Whether to measure is decided when a section is entered, so that one object can live in a module."""
        shared = sections.section("shared")
        with shared:
            pass
        with sections.collect(clock=clock) as collected, shared:
            clock.pass_by(3)
        assert self_ns(collected) == {"shared": 3}

    def test_a_section_that_spans_the_end_of_its_collection(self, sections, clock):
        """A section that is left after the collection has ended changes nothing, in this one or in the next."""
        late = sections.section("late")
        with sections.collect(clock=clock) as first:
            late.__enter__()
            clock.pass_by(1)
        with sections.collect(clock=clock) as second:
            clock.pass_by(10)
            late.__exit__(None, None, None)
            clock.pass_by(100)
        assert self_ns(first) == {"late": 1}
        assert second.root.self_ns == 110

    def test_a_nested_collection_is_a_whole_of_its_own(self, sections, clock):
        """The outer collection goes on afterwards, and holds none of the inner one's sections."""
        with sections.collect(clock=clock) as outer, sections.section("a"):
            with sections.collect(clock=clock) as inner, sections.section("b"):
                clock.pass_by(1)
            with sections.section("c"):
                clock.pass_by(10)
        assert self_ns(inner) == {"b": 1}
        assert self_ns(outer) == {"a": 1, "c": 10}

    def test_a_collection_can_be_used_again(self, sections, clock):
        """Each use of a collection starts with nothing."""
        collected = sections.collect(clock=clock)
        for name in ("first", "second"):
            with collected, sections.section(name):
                clock.pass_by(1)
        assert self_ns(collected) == {"second": 1}

    def test_steps_can_be_read_while_they_grow(self, sections, clock):
        """Before the end the figures are those of the last entry or exit."""
        with sections.collect(clock=clock) as collected:
            with sections.section("a"):
                clock.pass_by(5)
            assert collected.steps == {"a": (5e-9, 1)}
        assert sections.collect().steps == {}


class TestNames:
    @pytest.mark.parametrize("name", [None, 3, b"read"])
    def test_a_name_that_is_no_text_is_refused(self, sections, name):
        """A wrong name is told with its value and type, and damages nothing."""
        with sections.collect() as collected:
            with pytest.raises(UsageTypeError) as caught, sections.section(name):
                pass
            with sections.section("good"):
                pass
        assert f"section({name!r})" in str(caught.value)
        assert type(name).__name__ in str(caught.value)
        assert list(collected.steps) == ["good"]

    def test_members_of_an_enumeration_are_names_by_their_text(self, sections):
        """A StrEnum member names a section by its value, as plain text."""

        class Part(StrEnum):
            READ = "read"

        with sections.collect() as collected:
            with sections.section(Part.READ):
                pass
            with sections.section("read"):
                pass
        assert collected.steps["read"].calls == 2
        assert [type(name) for name in collected.steps] == [str]


class TestSize:
    def test_depth_is_not_limited_by_recursion(self, sections, clock):
        """Ten thousand sections inside each other are summed, copied and freed without recursion."""
        with sections.collect(clock=clock) as collected, ExitStack() as stack:
            for number in range(10_000):
                stack.enter_context(sections.section(f"level {number}"))
                clock.pass_by(1)
        assert collected.root.total_ns == 10_000
        assert len(collected.steps) == 10_000
        del collected, stack

    @pytest.mark.parametrize("pure", ["", "1"])
    def test_a_deep_pile_that_is_never_left_is_freed(self, fresh, monkeypatch, pure):
        """Open sections that are dropped together do not overflow the stack, however small (R67)."""
        monkeypatch.setenv("WORKSPAN_PURE_PYTHON", pure)
        script = """
            import gc
            from workspan.measure.sections import collect, section
            def work():
                with collect() as collected:
                    pile = [section("deep").__enter__() for _ in range(200_000)]
                del pile, collected
                gc.collect()
                print("true")
            # From 3.12 on the interpreter itself nests some thousand deallocations before it postpones them.
            threading.stack_size(4 * 1024 * 1024)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        """
        assert fresh(script) is True


def test_the_public_section_is_the_chosen_implementation():
    """`section` and `collect` work together out of the box."""
    with module.collect() as collected, module.section("a"):
        pass
    assert list(collected.steps) == ["a"]
    assert module.section is ticks.Section


class TestCollector:
    def test_pieces_are_kept_apart(self, sections):
        """One piece's sections are its own; a piece without any says None, and so does what lies between."""
        with sections.Collector() as collector:
            collector.begin()
            with sections.section("read"), sections.section("inner"):
                pass
            first = collector.end()
            with sections.section("between"):
                pass
            collector.begin()
            second = collector.end()
            collector.begin()
            with sections.section("write"):
                pass
            third = collector.end()
        assert {name: calls for name, (_, calls) in first.items()} == {"read": 1, "inner": 1}
        assert second is None
        assert list(third) == ["write"]

    def test_a_section_left_open_ends_with_its_piece(self, sections):
        """What an abandoned generator leaves open counts up to the end of its piece, and never for a later one."""
        with sections.Collector() as collector:
            collector.begin()
            left_open = sections.section("open")
            left_open.__enter__()
            assert collector.end()["open"][1] == 1
            collector.begin()
            left_open.__exit__()
            assert collector.end() is None

    def test_a_thread_in_a_copy_of_the_context_is_collected(self, sections):
        """Helper threads of a piece count, beside it."""
        with sections.Collector() as collector:
            collector.begin()

            def work():
                with sections.section("aside"):
                    pass

            thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
            thread.start()
            thread.join()
            assert collector.end()["aside"][1] == 1

    def test_the_context_is_restored(self, sections):
        """After it, and inside a collection, sections go where they went before."""
        with sections.collect() as outer:
            with sections.Collector() as collector:
                collector.begin()
                with sections.section("mine"):
                    pass
                collector.end()
            with sections.section("outer"):
                pass
        assert list(outer.steps) == ["outer"]
