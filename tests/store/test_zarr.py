"""The store as any Zarr reader sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workspan.grid import Layout
from workspan.store.meta import ARRAYS, TRACKED
from workspan.store.runs import append_run
from workspan.store.tracking import TrackingStore

zarr = pytest.importorskip("zarr")


def test_members_are_exactly_the_documented_ones(tracked: Path) -> None:
    """Listing everything warns of nothing, although the run history lies in the folder (KF-21, B159)."""
    append_run(tracked / "runs.jsonl", {"run": 1})
    group = zarr.open_group(tracked, mode="r")
    assert {name for name, _ in group.members(max_depth=None)} == {*ARRAYS, "steps", "steps/read"}
    assert {name for name, _ in group.members()} == {*ARRAYS, "steps"}
    nodes = {str(path.parent.relative_to(tracked)) for path in tracked.rglob("zarr.json")}
    assert nodes == {*ARRAYS, ".", "steps", "steps/read"}


def test_arrays_line_up_with_done(tracked: Path) -> None:
    """The example of the source document: what a block cost, and whether it finished (B110)."""
    group = zarr.open_group(tracked, mode="r")
    assert group["done"][:].tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 1, 0]
    assert group["failures"][7] == 2
    assert group["cpu_seconds"][3] == 0.25
    assert group["worker_id"][:].tolist() == [0, 1, 0, 1, 0] + [0] * 5
    assert (group["returned_at"][:] - group["sent_at"][:]).tolist() == [0.5] * 5 + [0] * 5
    assert np.isnan(group["gpu_util_pct"][:]).tolist() == [True] * 5 + [False] * 5
    assert group.attrs["workspan"]["schema"] == 1


def test_absent_chunks_of_sections_are_nan(tmp_path: Path, stats) -> None:
    """A section's array has a value only where it was executed, also in chunks that were never made (D24)."""
    layout = Layout((0, 0), (300, 1000), (0, 0), (1, 1), (0, 0), (1, 1))
    with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
        store.record_done(150_000, stats, 0, 1.0, 2.0, {"Read it": (0.25, 1)})
    group = zarr.open_group(tmp_path / "seg", mode="r")
    (array,) = [array for _, array in group["steps"].members()]
    assert array.attrs["name"] == "Read it"
    values = array[:]
    assert values[150, 0] == 0.25
    assert np.isnan(values).sum() == 299_999


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_any_rank_opens(tmp_path: Path, stats, rank: int) -> None:
    """Chunk paths have one zero per axis (B111)."""
    layout = Layout((0,) * rank, (5,) * rank, (0,) * rank, (2,) * rank, (0,) * rank, (2,) * rank)
    with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
        store.record_done(layout.num_blocks - 1, stats, 0, 1.0, 2.0)
        group = zarr.open_group(tmp_path / "seg", mode="r")  # while the run holds it
        for name in ("done", *TRACKED):
            assert group[name].shape == (3,) * rank
            assert np.count_nonzero(group[name][:]) == (name not in ("gpu_mem_bytes", "worker_id"))
        assert group["done"][layout.cell(layout.num_blocks - 1)] == 1


def test_arrays_that_others_add_are_listed_after_the_next_run(tracked: Path, row: Layout) -> None:
    """The list of members is brought up to date when a run opens the store."""
    zarr.open_group(tracked, mode="a", use_consolidated=False).create_array("mine", shape=(3,), dtype="u1")
    TrackingStore.open(tracked, row, resource_tracking=True).close()
    assert "mine" in dict(zarr.open_group(tracked, mode="r").members())


def test_a_user_may_reset_flags_with_zarr(tracked: Path, row: Layout) -> None:
    """What zarr writes into ``done`` between runs is what counts (B121)."""
    done = zarr.open_group(tracked, mode="a")["done"]
    done[0:3] = 0
    with TrackingStore.open(tracked, row, resource_tracking=True) as store:
        assert store.done.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1, 0]
    done[:] = 0  # zarr deletes the chunk
    with TrackingStore.open(tracked, row, resource_tracking=True) as store:
        assert not store.done.any()
