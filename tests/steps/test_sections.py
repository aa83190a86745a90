"""Steps and sections are one mechanism: one tree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

from helpers.step_kit import step, steps, working
from workspan import section
from workspan.measure.sections import collect


def test_a_chain_in_a_section_and_sections_in_its_steps_are_one_tree(transform_clock, clock):
    """Each node has its own time and all sum to the root; the step's own record keeps the sections in it (R67, M36)."""

    def body(items: Iterable[int]) -> Iterator[int]:
        for item in items:
            clock.pass_by(2)
            with section("lookup"):
                clock.pass_by(30)
            yield item

    watch = transform_clock(clock=clock)
    with collect(clock=clock) as collected, section("block"):
        clock.pass_by(1000)
        for _ in watch.chain([step(working(clock, 5), label="read"), step(body, label="features")], range(3)):
            clock.pass_by(100)
    assert {name: round(cost.self_seconds * 1e9) for name, cost in collected.steps.items()} == {
        "block": 1300,
        "features": 6,
        "read": 15,
        "lookup": 90,
    }
    assert collected.root.total_ns == 1411
    block = collected.root.children[0]
    assert [node.name for node in block.children] == ["features"]
    assert sorted(node.name for node in block.children[0].children) == ["lookup", "read"]
    assert watch.drain().step_ns == (15, 96)


def test_outside_of_a_collection_no_section_opens(transform_clock, clock):
    """A chain that first runs outside of one stays out of the tree."""
    running = transform_clock(clock=clock).chain(steps(working(clock, 5)), range(2))
    next(running)
    with collect(clock=clock) as collected:
        next(running)
    assert collected.steps == {}


def test_a_chain_that_is_left_early_keeps_the_tree_whole(transform_clock, clock):
    """Abandoned in the middle, with a section open in a suspended step: the tree still sums to its root (R67)."""

    def body(items: Iterable[int]) -> Iterator[int]:
        with section("open"):
            for item in items:
                clock.pass_by(4)
                yield item

    with collect(clock=clock) as collected:
        running = transform_clock(clock=clock).chain(steps(working(clock, 5), body), range(9))
        next(running)
        clock.pass_by(10)
        running.close()
        clock.pass_by(1)
    assert collected.root.total_ns == 20


def test_asynchronous_steps_are_in_the_tree_too(clock, transform_clock):
    """A section per pull, as for others."""

    async def apply(items: AsyncIterator[int]) -> AsyncIterator[int]:
        async for item in items:
            clock.pass_by(5)
            yield item

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main() -> None:
        with collect(clock=clock) as collected:
            async for _ in transform_clock(clock=clock).chain(steps(apply), numbers()):
                clock.pass_by(100)
        assert collected.steps["f0 body"] == (10e-9, 3)
        assert collected.root.self_ns == 200

    asyncio.run(main())
