"""What each named section of a block cost."""

from __future__ import annotations

import json
import logging
import os
import re
from itertools import islice, pairwise, product
from math import isnan, prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspan.grid import Layout
from workspan.store import steps as steps_module
from workspan.store.meta import array_metadata, step_chunks
from workspan.store.steps import ChunkGrid, slug
from workspan.store.tracking import TrackingStore

EXTENTS = [1, 2, 3, 7, 40, 255, 256, 300, 65_535, 65_536, 65_537, 200_000]
SHAPES = st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=4).filter(lambda extents: prod(extents) < 2**40)


def record(store: TrackingStore, index: int, steps: dict[str, tuple[float, int]] | None, stats) -> None:
    store.record_done(index, stats, 0, 1.0, 2.0, steps)


def test_an_array_comes_with_the_first_block_that_executes_the_section(tmp_path: Path, row: Layout, stats) -> None:
    """Self seconds are stored beside the rest; NaN where a section was not executed (D24)."""
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        record(store, 0, None, stats)
        assert not (tmp_path / "seg" / "steps").exists()
        record(store, 1, {"read": (0.5, 3)}, stats)
        record(store, 2, {"write": (0.25, 1)}, stats)
        record(store, 3, {"read": (0.0, 1), "write": (1.5, 1)}, stats)
        reader = store.peek(store.path)
        assert sorted(reader.step_names) == ["read", "write"]
        assert [store.block((i,)).steps for i in range(4)] == [
            {},
            {"read": 0.5},
            {"write": 0.25},
            {"read": 0.0, "write": 1.5},
        ]
        assert np.isnan(reader.array("steps/read")).tolist() == [True, False, True, False] + [True] * 6
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:  # and the next run goes on
        record(store, 4, {"read": (2.0, 1)}, stats)
        assert [store.block((i,)).steps.get("read") for i in range(5)] == [None, 0.5, None, 0.0, 2.0]
        assert len(os.listdir(tmp_path / "seg" / "steps")) == 3


def test_metadata_of_a_section(tmp_path: Path, stats) -> None:
    """Chunks of at most 64 Ki cells, NaN where no chunk is, the display name as an attribute (D24)."""
    layout = Layout((0, 0), (300, 1000), (0, 0), (1, 1), (0, 0), (1, 1))
    with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
        record(store, 299_999, {"Größe": (0.5, 1)}, stats)
    (folder,) = [name for name in os.listdir(tmp_path / "seg" / "steps") if name != "zarr.json"]
    node = json.loads((tmp_path / "seg" / "steps" / folder / "zarr.json").read_text())
    assert node["attributes"] == {"name": "Größe"}
    assert node["chunk_grid"] == {"configuration": {"chunk_shape": [65, 1000]}, "name": "regular"}
    assert (node["data_type"], node["fill_value"], node["shape"]) == ("float32", "NaN", [300, 1000])
    chunks = [path for path in (tmp_path / "seg" / "steps" / folder / "c").rglob("*") if path.is_file()]
    assert [str(path.relative_to(tmp_path / "seg" / "steps" / folder)) for path in chunks] == ["c/4/0"]
    assert chunks[0].stat().st_size == 65 * 1000 * 4


@settings(max_examples=50)
@given(SHAPES)
def test_a_chunk_is_a_run_of_cells(extents: list[int]) -> None:
    """Chunk and offset of a cell, found by its number, are those of its coordinates (D24)."""
    shape = tuple(extents)
    chunk, _ = step_chunks(shape)
    grid = ChunkGrid(shape)
    assert prod(chunk) <= 65_536
    some = sorted({0, prod(shape) - 1, *(prod(shape) * k // 7 for k in range(7))})
    for number in some:
        cell = np.unravel_index(number, shape)
        key, offset = grid.locate(number)
        at = tuple(int(c) // n for c, n in zip(cell, chunk, strict=True))
        within = tuple(int(c) % n for c, n in zip(cell, chunk, strict=True))
        assert grid.file(Path("a"), key) == Path("a", "c", *map(str, at))
        assert offset == np.ravel_multi_index(within, chunk)
        begin, end = grid.span(key)
        assert begin <= number < end
        assert number - begin == offset
    keys = grid.keys(0, prod(shape))
    spans = [grid.span(key) for key in islice(keys, 1000)]
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
    assert next(grid.keys(prod(shape) - 1, prod(shape))) == prod(grid.counts) - 1


@pytest.mark.parametrize("shape", [(3, 5), (70_000,), (2, 3, 40_000), (2, 2, 70_000)])
def test_cells_of_many_chunks_come_back(tmp_path: Path, shape: tuple[int, ...], stats) -> None:
    """Blocks anywhere in grids of one chunk, of chunks along an axis, and of padded chunks (D24)."""
    ones = (1,) * len(shape)
    layout = Layout((0,) * len(shape), shape, (0,) * len(shape), ones, (0,) * len(shape), ones)
    some = [0, layout.num_blocks - 1, layout.num_blocks // 2, 1, layout.num_blocks // 3]
    for mapped in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("workspan.store.tracking.can_map", lambda folder, mapped=mapped: mapped)
            with TrackingStore.open(tmp_path / f"seg{mapped}", layout, resource_tracking=True) as store:
                for index in some:
                    record(store, index, {"a": (index + 0.5, 1), "b": (1.0, 1)}, stats)
        reader = TrackingStore.peek(tmp_path / f"seg{mapped}")
        values = reader.array("steps/a")
        assert {index: values[layout.coords(index)] for index in some} == {index: index + 0.5 for index in some}
        assert np.isnan(values).sum() == layout.num_blocks - len(set(some))
        assert reader.block(layout.coords(some[2])).steps == {"a": some[2] + 0.5, "b": 1.0}
        assert reader.table().steps["a"].tolist() == [index + 0.5 for index in sorted(set(some))]


@pytest.mark.parametrize("name", ["read", "read_2", "a-b", "x" * 40])
def test_a_safe_name_is_its_own_slug(name: str) -> None:
    """Folders are readable where they can be (D24)."""
    assert slug(name) == name


@given(st.lists(st.text(max_size=60), unique=True, min_size=2, max_size=6))
def test_slugs_are_safe_and_do_not_collide(names: list[str]) -> None:
    """Any text gives a short name of safe characters, and different texts differ, also if case is lost (R49)."""
    slugs = [slug(name) for name in names]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9_-]{,48}", text) for text in slugs)
    assert len(set(slugs)) == len(slugs)


@pytest.mark.parametrize(
    "names",
    [
        ["read", "Read", "READ", "re ad", "re-ad", "re/ad", "../read", "/read", "read\0", "read\n"],
        ["\u00e9", "e\u0301", "", ".", "..", "__a", "zarr.json", "c", "CON"],
        ["x" * 300, "x" * 301],
    ],
)
def test_names_of_any_kind_are_kept_apart(tmp_path: Path, row: Layout, stats, names: list[str]) -> None:
    """Names that look like paths or like each other each have their array below ``steps``, over two runs (R49)."""
    for index in range(2):
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            record(store, index, {name: (number + index / 2, 1) for number, name in enumerate(names)}, stats)
    reader = TrackingStore.peek(tmp_path / "seg")
    assert sorted(reader.step_names) == sorted(names)
    assert reader.block((1,)).steps == {name: number + 0.5 for number, name in enumerate(names)}
    assert len(os.listdir(tmp_path / "seg" / "steps")) == len(names) + 1
    assert sorted(os.listdir(tmp_path)) == ["seg"]


def test_a_slug_that_is_taken_gets_more_of_the_hash(tmp_path: Path, row: Layout, stats, monkeypatch) -> None:
    """Two names whose slugs agree do not share an array (D24)."""
    real = slug
    monkeypatch.setattr(steps_module, "slug", lambda name, digits=8: "same" if digits == 8 else real(name, digits))
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        record(store, 0, {"A": (1.0, 1), "B": (2.0, 1)}, stats)
        assert store.block((0,)).steps == {"A": 1.0, "B": 2.0}


@pytest.mark.parametrize("bad", ["\ud800", "x" * 1001])
def test_names_that_cannot_be_kept_cost_only_themselves(tmp_path: Path, row: Layout, stats, caplog, bad: str) -> None:
    """The block and its other sections are stored; the log says so once (R49)."""
    caplog.set_level(logging.WARNING)
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        record(store, 0, {bad: (1.0, 1), "read": (2.0, 1)}, stats)
        record(store, 1, {bad: (1.0, 1), "read": (2.0, 1)}, stats)
        assert store.block((1,)).steps == {"read": 2.0}
    assert len(caplog.records) == 1
    assert "is not stored" in caplog.text


def test_a_name_per_block_does_not_fill_the_disk(tmp_path: Path, row: Layout, stats, caplog, monkeypatch) -> None:
    """Beyond a number of names the rest is left out and said so (D24)."""
    monkeypatch.setattr(steps_module, "MOST_NAMES", 3)
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        for index in range(6):
            record(store, index, {f"step{index}": (1.0, 1)}, stats)
        assert store.peek(store.path).step_names == ("step0", "step1", "step2")
        assert store.block((5,)).steps == {}
        assert store.block((1,)).steps == {"step1": 1.0}
    assert "a store has at most 3" in caplog.text


def test_one_chunk_of_a_section_is_open_at_a_time(tmp_path: Path, stats) -> None:
    """Descriptors do not grow with the grid, and chunks that were left are flushed too (D24)."""
    layout = Layout((0,), (1_000_000,), (0,), (1,), (0,), (1,))
    with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
        record(store, 0, {"read": (0.0, 1)}, stats)
        before = len(os.listdir("/proc/self/fd"))
        for index in range(0, 1_000_000, 65_536):
            record(store, index, {"read": (index, 1)}, stats)
        assert len(os.listdir("/proc/self/fd")) == before
        store.flush()
        values = store.peek(store.path).array("steps/read")
        assert values[::65_536].tolist() == list(range(0, 1_000_000, 65_536))


def test_sections_left_half_made_by_a_kill_are_completed(tmp_path: Path, row: Layout, stats) -> None:
    """A folder without metadata and a chunk that was not moved into place hold nothing (R19, R32)."""
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        record(store, 0, {"read": (1.0, 1)}, stats)
    steps = tmp_path / "seg" / "steps"
    (steps / "write").mkdir()
    (steps / "read" / ".chunk.partial").write_bytes(b"half")
    with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
        assert not (steps / "read" / ".chunk.partial").exists()
        record(store, 1, {"write": (2.0, 1)}, stats)
        assert [store.block((i,)).steps for i in (0, 1)] == [{"read": 1.0}, {"write": 2.0}]


def test_metadata_of_every_shape_is_accepted_again() -> None:
    """What is written is what is expected, for chunks of any form (D24)."""
    for shape in product([1, 300], [1, 300], [1, 70_000]):
        node = json.loads(json.dumps(array_metadata(steps_module.STEP, shape, name="a")))
        assert steps_module.array_problem(node, array_metadata(steps_module.STEP, shape, name="b")) is None
        assert isnan(float(node["fill_value"]))
