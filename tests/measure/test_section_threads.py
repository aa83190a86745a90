"""Sections in threads and in tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

from helpers.sections import self_ns


class TestThreads:
    def test_a_plain_thread_measures_nothing(self, sections, clock):
        """A thread starts with an empty context, so its sections are not in the collection."""

        def work() -> None:
            with sections.section("helper"):
                pass

        with sections.collect(clock=clock) as collected, sections.section("outer"):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(work).result()
        assert list(collected.steps) == ["outer"]

    def test_a_thread_in_a_copied_context_counts_beside_its_starter(self, sections, clock):
        """Its sections are collected in full, and take nothing from the section around its start (R67)."""
        inside, passed = threading.Barrier(2), threading.Barrier(2)

        def work() -> None:
            with sections.section("helper"):
                inside.wait(10)
                passed.wait(10)

        with sections.collect(clock=clock) as collected, sections.section("outer"):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
            thread.start()
            inside.wait(10)
            with sections.section("mine"):  # opened while the helper's is open
                clock.pass_by(5)
            passed.wait(10)
            thread.join()
            clock.pass_by(2)
        assert self_ns(collected) == {"outer": 2, "mine": 5, "helper": 5}
        assert [node.name for node in collected.root.walk()] == ["", "outer", "mine"]
        assert [[(node.name, node.self_ns) for node in root.walk()] for root in collected.beside] == [
            [("", 0), ("helper", 5)]
        ]

    def test_many_threads_lose_no_call_and_no_time(self, sections):
        """Threads keep their own figures: every lane sums to itself, whatever the others do at the time (R67)."""
        count, rounds = 8, 300
        start = threading.Barrier(count)

        def work() -> None:
            start.wait(10)
            for _ in range(rounds):
                with sections.section("a"), sections.section("b"):
                    pass

        with sections.collect() as collected:
            threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert collected.steps["a"].calls == collected.steps["b"].calls == count * rounds
        assert all(node.self_ns >= 0 for root in collected.beside for node in root.walk())

    def test_one_object_shared_by_threads_is_several_sections(self, sections, clock):
        """A section object kept in a module can be open in two threads at once."""
        shared = sections.section("shared")
        inside, passed = threading.Barrier(2), threading.Barrier(2)

        def work() -> None:
            with shared:
                inside.wait(10)
                passed.wait(10)

        with sections.collect(clock=clock) as collected:
            with shared:
                thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
                thread.start()
                inside.wait(10)
                clock.pass_by(3)
            clock.pass_by(50)
            passed.wait(10)
            thread.join()
        assert collected.root.self_ns == 50
        assert [node.self_ns for node in collected.root.children] == [3]
        assert [node.self_ns for node in collected.beside[0].children] == [53]

    def test_one_object_nested_in_itself_closes_from_the_inside(self, sections, clock):
        """A section object that is entered again while it is open is left in reverse order."""
        shared = sections.section("shared")
        with sections.collect(clock=clock) as collected:
            with shared:
                clock.pass_by(1)
                with shared:
                    clock.pass_by(10)
                    with shared:
                        clock.pass_by(100)
                    with shared:
                        clock.pass_by(1000)
                clock.pass_by(10000)
            clock.pass_by(100000)
        assert self_ns(collected) == {"shared": 11111}
        assert [node.self_ns for node in collected.root.walk()] == [100000, 10001, 10, 1100]

    def test_a_thread_that_outlives_the_collection_is_not_measured_further(self, sections, clock):
        """After the end neither open nor new sections of other threads change the figures."""
        opened, ended = threading.Event(), threading.Event()

        def work() -> None:
            with sections.section("long"):
                opened.set()
                ended.wait(10)
            with sections.section("late"):
                pass

        with sections.collect(clock=clock) as collected:
            thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
            thread.start()
            opened.wait(10)
        before = collected.beside
        clock.pass_by(100)
        ended.set()
        thread.join()
        assert collected.beside == before
        assert list(collected.steps) == ["long"]


class TestTasks:
    def test_a_section_around_an_await_includes_the_wait(self, sections, clock):
        """In async code a plain `with` works, and coroutines awaited directly nest."""

        async def inner() -> None:
            with sections.section("inner"):
                clock.pass_by(1)
                await asyncio.sleep(0)
                clock.pass_by(10)

        async def main():
            with sections.collect(clock=clock) as collected, sections.section("outer"):
                await inner()
                clock.pass_by(100)
            return collected

        collected = asyncio.run(main())
        assert self_ns(collected) == {"outer": 100, "inner": 11}
        assert collected.beside == ()

    def test_tasks_overlap_without_taking_time_from_each_other(self, sections, clock):
        """Two tasks that wait at once count in full, and the section that started them keeps its own time (R67)."""

        async def child(name: str, ready: asyncio.Event, go: asyncio.Event) -> None:
            with sections.section(name):
                ready.set()
                await go.wait()
                with sections.section("tail"):
                    clock.pass_by(1)
            clock.pass_by(50)  # covered by no section of this task
            with sections.section("end"):
                pass

        async def main():
            with sections.collect(clock=clock) as collected, sections.section("outer"):
                go = asyncio.Event()
                ready = [asyncio.Event(), asyncio.Event()]
                tasks = [asyncio.create_task(child(f"task {n}", ready[n], go)) for n in range(2)]
                for event in ready:
                    await event.wait()
                clock.pass_by(1000)
                go.set()
                await asyncio.gather(*tasks)
            return collected

        collected = asyncio.run(main())
        assert collected.root.total_ns == 1102
        assert [node.name for node in collected.root.walk()] == ["", "outer"]
        assert self_ns(collected) == {"outer": 1102, "task 0": 1000, "task 1": 1051, "tail": 2, "end": 0}
        assert [node.self_ns for node in collected.beside[0].walk() if node.name == ""] == [0]

    def test_async_work_inside_a_plain_block_function_is_collected(self, sections, clock):
        """asyncio.run in a block: the sections of its main task count, the section around it keeps its own window."""

        async def main() -> None:
            with sections.section("fetch"):
                clock.pass_by(10)

        with sections.collect(clock=clock) as collected, sections.section("outer"):
            asyncio.run(main())
        assert self_ns(collected) == {"outer": 10, "fetch": 10}
        assert collected.root.total_ns == 10

    def test_work_given_to_a_thread_by_a_task_is_collected(self, sections):
        """asyncio.to_thread copies the context, so its sections are measured beside the task's."""

        def work() -> None:
            with sections.section("thread"):
                pass

        async def main():
            with sections.collect() as collected, sections.section("outer"):
                await asyncio.to_thread(work)
            return collected

        collected = asyncio.run(main())
        assert set(collected.steps) == {"outer", "thread"}
        assert [node.name for node in collected.root.walk()] == ["", "outer"]

    def test_an_async_generator_left_in_mid_way_is_closed_in_order(self, sections, clock):
        """An abandoned async generator is charged until the loop closes it; the sum stays whole (R67)."""

        async def items():
            with sections.section("read"):
                while True:
                    clock.pass_by(3)
                    yield

        async def main():
            with sections.collect(clock=clock) as collected:
                source = items()
                async for _ in source:
                    break
                clock.pass_by(10)
                await source.aclose()
                clock.pass_by(100)
            return collected

        collected = asyncio.run(main())
        assert self_ns(collected) == {"read": 13}
        assert collected.root.self_ns == 100

    def test_many_tasks_share_one_tree(self, sections):
        """A thousand tasks of one thread leave one tree behind, with every call in it."""

        async def child() -> None:
            with sections.section("a"):
                await asyncio.sleep(0)
                with sections.section("b"):
                    await asyncio.sleep(0)

        async def main():
            with sections.collect() as collected:
                await asyncio.gather(*(child() for _ in range(1000)))
            return collected

        collected = asyncio.run(main())
        assert len(collected.beside) == 1
        assert [(node.name, node.calls) for node in collected.beside[0].walk()] == [("", 0), ("a", 1000), ("b", 1000)]
