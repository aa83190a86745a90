"""Blocks become batches, and what came out becomes blocks: vector for vector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from workspan.dataset.batching import Shape, auto_rows, batches, checked_size, shaped
from workspan.errors import ConfigurationError, DataError, UsageTypeError


def blocks(*rows: int) -> list[pa.Table]:
    """Tables of int64 numbers that go on from one to the next."""
    tables, start = [], 0
    for n in rows:
        tables.append(pa.table({"x": pa.array(list(range(start, start + n)), pa.int64())}))
        start += n
    return tables


def lengths(tables: Iterator[pa.Table]) -> list[int]:
    return [table.num_rows for table in tables]


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        ((3, 3, 3, 1), None, [3, 3, 3, 1]),
        ((3, 3, 3, 1), 4, [4, 4, 2]),
        ((0, 2, 0, 3), None, [2, 3]),
        ((0, 2, 0, 3), 5, [5]),
        ((1, 1, 1, 1), 4, [4]),
        ((10,), 3, [3, 3, 3, 1]),
        ((3, 3), 2, [2, 2, 2]),
        ((4, 4), 4, [4, 4]),
        ((0, 0), 4, []),
        ((), 4, []),
        ((0, 0), "auto", []),
        ((), "auto", []),
    ],
)
def test_batches_have_the_rows_that_were_asked_for(rows: tuple[int, ...], size: Any, expected: list[int]) -> None:
    """Batches are filled over the edges of blocks, only the last is short, and none is empty (M45, M46, M50, KF-05)."""
    found = list(batches(blocks(*rows), size))
    assert lengths(iter(found)) == expected
    assert [value for table in found for value in table.column("x").to_pylist()] == list(range(sum(rows)))


@pytest.mark.parametrize(
    ("rows", "target", "expected"), [(10, 800, 100), (10, 1, 1), (0, 800, None), (1000, 80, 10), (3, 8, 1)]
)
def test_auto_size_follows_the_bytes_of_a_row(rows: int, target: int, expected: int | None) -> None:
    """The vectors of int64 rows, and none where nothing can be told (M47)."""
    assert auto_rows(rows, 8 * rows, target) == expected


def test_auto_batches_keep_what_was_peeked_at() -> None:
    """Empty blocks in front and the one that was measured stay in the stream, in order (M47)."""
    found = list(batches(blocks(0, 0, 1000, 7), "auto", target_bytes=80))
    assert lengths(iter(found)) == [10] * 100 + [7]
    assert [v for t in found for v in t.column("x").to_pylist()] == list(range(1007))


@pytest.mark.parametrize("bad", [0, -1, "all"])
def test_a_batch_size_that_cannot_be_is_refused(bad: Any) -> None:
    """Below one row there is no batch; the text has the value (M46)."""
    with pytest.raises(ValueError, match=str(bad)) as caught:
        checked_size(bad)
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize("bad", [True, 1.5, b"4"])
def test_a_batch_size_of_another_type_is_refused(bad: Any) -> None:
    """Booleans are no integers here (M46)."""
    with pytest.raises(UsageTypeError, match=type(bad).__name__):
        checked_size(bad)


def test_any_integral_type_is_a_batch_size() -> None:
    """A number of NumPy's counts as an integer (M46)."""
    import numpy as np

    assert checked_size(np.int32(4)) == 4


@pytest.mark.parametrize(
    ("rows", "target", "expected"),
    [
        ((14,), 80, [14]),
        ((15,), 80, [10, 5]),
        ((40,), 80, [10, 10, 10, 10]),
        ((5,) * 6, 80, [10, 10, 10]),
        ((3,), 1, [1, 1, 1]),
        ((10,), 80, [10]),
    ],
)
def test_blocks_are_shaped_by_bytes(rows: tuple[int, ...], target: int, expected: list[int]) -> None:
    """The vectors of 8-byte rows (M55)."""
    found = list(shaped(blocks(*rows), Shape("bytes", target)))
    assert lengths(iter(found)) == expected
    assert [v for t in found for v in t.column("x").to_pylist()] == list(range(sum(rows)))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [((10,), [3, 3, 3, 1]), ((6,), [3, 3]), ((2, 2, 2), [3, 3]), ((4, 2, 1), [3, 3, 1]), ((3,), [3])],
)
def test_blocks_are_shaped_by_rows(rows: tuple[int, ...], expected: list[int]) -> None:
    """The vectors of target 3 (M56)."""
    found = list(shaped(blocks(*rows), Shape("rows", 3)))
    assert lengths(iter(found)) == expected
    assert [v for t in found for v in t.column("x").to_pylist()] == list(range(sum(rows)))


def test_one_big_block_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows cut one by one are joined once, and then only looked at in slices (M56)."""
    from workspan.dataset import batching

    calls = []
    monkeypatch.setattr(batching, "concat", lambda tables, where: calls.append(len(tables)) or tables[0])
    assert len(list(shaped(blocks(100), Shape("rows", 1)))) == 100
    assert calls == [1, 1]  # the whole, and the last row that stayed


def test_rows_win_over_bytes_and_off_changes_nothing() -> None:
    """With both targets rows count; without shaping blocks pass as they are, empty ones too (M56, M57)."""
    assert Shape.of(3, 80) == Shape("rows", 3)
    assert Shape.of(None, 80) == Shape("bytes", 80)
    assert lengths(shaped(blocks(2, 0, 3), Shape("off"))) == [2, 0, 3]


@pytest.mark.parametrize("shape", [Shape("off"), Shape("rows", 3)])
def test_only_a_shape_by_bytes_has_a_target_to_override(shape: Shape) -> None:
    """Another target for an operator that has none is refused (M57)."""
    assert Shape("bytes", 8).overridden(16) == Shape("bytes", 16)
    with pytest.raises(ValueError, match=shape.by):
        shape.overridden(16)


def test_no_rows_are_one_empty_block_with_the_schema() -> None:
    """When everything was removed the schema is kept; without any block it is what the stage knows (M58)."""
    schema = blocks(1)[0].schema
    found = list(shaped(blocks(0, 0), Shape()))
    assert lengths(iter(found)) == [0]
    assert found[0].schema == schema
    assert next(shaped([], Shape(), schema=lambda: schema)).schema == schema
    assert lengths(shaped([], Shape())) == [0]


def test_types_that_do_not_go_together_are_named() -> None:
    """A column that is a number here and text there fails with both types and the remedy."""
    tables = [pa.table({"x": [1, 2]}), pa.table({"x": ["a"]})]
    with pytest.raises(DataError, match=r"Map\(f\), block 2: .*column 'x' is int64 and string.*one type"):
        list(shaped(tables, Shape(), where="Map(f), block 2"))


def test_types_that_widen_and_columns_that_are_absent_go_together() -> None:
    """Whole and broken numbers become broken ones, an absent column nulls."""
    tables = [pa.table({"x": [1], "y": ["a"]}), pa.table({"x": [0.5]})]
    assert next(shaped(tables, Shape())).to_pylist() == [{"x": 1.0, "y": "a"}, {"x": 0.5, "y": None}]


@pytest.mark.parametrize("size", [None, 2, 3])
def test_batches_that_are_gone_are_not_kept(size: int | None) -> None:
    """Nobody holds a batch that was handed on, nor the block it was cut from (M30)."""
    made = batches((blocks(6)[0] for _ in range(2)), size)
    table = next(made)
    buffer = weakref.ref(table)
    del table
    gc.collect()
    assert buffer() is None
