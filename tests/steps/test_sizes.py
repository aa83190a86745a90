"""How much came out of each step."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from helpers.step_kit import steps
from workspan import Chain
from workspan.errors import UsageTypeError
from workspan.steps.sizes import sizes_of


@dataclass
class Block:
    """Something with rows and bytes, as an Arrow table has them."""

    num_rows: int

    @property
    def nbytes(self) -> int:
        return 8 * self.num_rows


def doubled(items: Iterable[Block]) -> Iterator[Block]:
    """Give twice the rows."""
    for item in items:
        yield Block(2 * item.num_rows)


def unsized(items: Iterable[Block]) -> Iterator[object]:
    """Give things without a size."""
    return (object() for _ in items)


def test_rows_and_bytes_of_each_step_are_added_up(transform_clock):
    """Each record has what came out since the one before; what has no size is None, and records add up (M99, M39)."""
    watch = transform_clock(sizes=True)
    running = watch.chain(steps(doubled, unsized), [Block(10), Block(20), Block(0)])
    next(running)
    first = watch.drain()
    list(running)
    second = watch.drain()
    assert [(times.steps[0].rows, times.steps[0].nbytes) for times in (first, second)] == [(20, 160), (40, 320)]
    assert (first.steps[1].rows, first.steps[1].nbytes) == (None, None)
    total = watch.total()
    assert (total.steps[0].rows, total.steps[0].nbytes, total.steps[0].items) == (60, 480, 3)
    assert watch.drain().steps[0].rows == 0
    table = watch.table()
    assert "rows" in table
    assert "480.0 B" in table


def test_they_are_an_option(transform_clock):
    """Without it nothing is asked of the items (M99, M39)."""
    watch = transform_clock()
    list(watch.chain(steps(doubled), [Block(1)]))
    assert (watch.drain().steps[0].rows, watch.drain().steps[0].nbytes) == (None, None)
    assert "rows" not in watch.table()


def test_a_function_may_tell_the_sizes(transform_clock):
    """What it returns is added up; what it raises comes through (M99)."""
    watch = transform_clock(sizes=lambda item: (len(item), None))
    assert list(watch.chain(steps(lambda items: (item * 2 for item in items)), ["a", "bc"])) == ["aa", "bcbc"]
    assert (watch.drain().steps[0].rows, watch.total().steps[0].nbytes) == (6, None)
    with pytest.raises(TypeError, match="has no len"):
        list(watch.chain(steps(iter), [5]))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Block(3), (3, 24)),
        ({"a": memoryview(bytes(4)), "b": memoryview(bytes(6))}, (4, 10)),
        ({"a": memoryview(bytes(4)), "b": "text"}, (None, None)),
        ({}, (None, None)),
        ("text", (None, None)),
    ],
)
def test_sizes_are_those_that_the_item_names(item: Any, expected: tuple[int | None, int | None]):
    """Rows and bytes by the names that Arrow and NumPy give them, of one thing or of a mapping of columns (M99)."""
    assert sizes_of(item) == expected


def test_counting_changes_nothing_else(transform_clock):
    """Errors, return values, cleanup and the caller's input are as without (M21, M26, M99)."""
    seen: list[str] = []

    def body(items: Iterable[int]) -> Iterator[int]:
        try:
            yield from items
            return "done"
        finally:
            seen.append("closed")

    source = (number for number in range(4))
    running = transform_clock(sizes=True).chain(steps(body), source)
    assert next(running) == 0
    running.close()
    assert seen == ["closed"]
    numbers = (number for number in range(4))
    running = transform_clock(sizes=True).chain(steps(lambda items: items), numbers)
    next(running)
    running.close()
    assert list(numbers) == [1, 2, 3]  # the input is not closed
    got = []

    def outer() -> Iterator[int]:
        got.append((yield from transform_clock(sizes=True).chain(steps(body), [1])))

    assert list(outer()) == [1]
    assert got == ["done"]


def test_asynchronous_steps_are_counted_too(transform_clock):
    """Rows and bytes of items that are awaited (M99)."""

    async def apply(items: AsyncIterator[Block]) -> AsyncIterator[Block]:
        async for item in items:
            yield item

    async def blocks() -> AsyncIterator[Block]:
        yield Block(2)
        yield Block(3)

    async def main() -> None:
        running = watch.chain(steps(apply), blocks())
        await running.__anext__()
        await running.__anext__()
        await running.aclose()

    watch = transform_clock(sizes=True)
    asyncio.run(main())
    assert (watch.drain().steps[0].rows, watch.total().steps[0].nbytes) == (5, 40)


def test_a_chain_keeps_the_option_when_it_is_sent():
    """A pickled chain counts as the one it was made from (M95, M99)."""
    chain = pickle.loads(pickle.dumps(Chain(steps(doubled), sizes=True)))
    list(chain.run([Block(1)]))
    assert chain.total().steps[0].rows == 2


def test_a_wrong_option_is_refused(transform_clock):
    """The message names the value and what it may be."""
    with pytest.raises(UsageTypeError, match=r"sizes='all': it is True, False or a function"):
        transform_clock(sizes="all")
