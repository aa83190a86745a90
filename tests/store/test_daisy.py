"""Stores of daisy 2.0.0 open here, and ours open there: with the real package."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from workspan.grid import Layout
from workspan.store.hash import layout_hash
from workspan.store.tracking import TrackingStore

pytestmark = pytest.mark.skipif(find_spec("daisy") is None, reason="daisy is not installed (extra bench)")

LAYOUTS = [
    pytest.param(Layout((-5, 0), (63, 45), (0, 0), (23, 14), (12, 2), (10, 10), "valid", True), id="wide context"),
    pytest.param(Layout((3, -4, 0), (9, 10, 4), (0, 0, 0), (4, 3, 2), (1, 0, 0), (2, 3, 2), "shrink", False), id="3-d"),
    pytest.param(Layout((0,), (100,), (0,), (12,), (1,), (10,), "overhang", True), id="row"),
]

DAISY = """
    import json, sys
    import daisy

    spec = json.loads(sys.argv[1])
    ran = []

    def process(block):
        ran.append(list(block.write_roi.begin))
        if len(ran) > spec["succeed"]:
            raise RuntimeError("meant")

    if __name__ == "__main__":
        rois = {k: daisy.Roi(*spec[k]) for k in ("total_roi", "read_roi", "write_roi")}
        task = daisy.Task(
            "seg", process_function=process, fit=spec["fit"], read_write_conflict=spec["conflict"], max_retries=0,
            tracking_path=spec["path"], resource_tracking=spec["tracked"], **rois,
        )
        try:
            daisy.run_blockwise([task], multiprocessing=False, progress=False, summary=False)
        except RuntimeError as error:
            if "meant" not in str(error):
                raise
        print(json.dumps(ran[: spec["succeed"]]))
"""


@pytest.fixture
def run_daisy(run_script, tmp_path: Path) -> Callable[..., list[int]]:
    """Run a task with daisy; return the indices of the blocks that succeeded."""

    def run(path: Path, layout: Layout, *, tracked: bool, succeed: int = 10**9) -> list[int]:
        spec = {
            "total_roi": (layout.total_begin, layout.total_shape),
            "read_roi": (layout.read_begin, layout.read_shape),
            "write_roi": (layout.write_begin, layout.write_shape),
            "fit": layout.fit,
            "conflict": layout.read_write_conflict,
            "path": str(path),
            "tracked": tracked,
            "succeed": succeed,
        }
        out, err = run_script(DAISY, json.dumps(spec), cwd=tmp_path).communicate()
        assert out, err
        begins = [tuple(begin) for begin in json.loads(out.splitlines()[-1])]
        index_of = {layout.write_box(index)[0]: index for index in range(layout.num_blocks)}
        return sorted(index_of[begin] for begin in begins)

    return run


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tracked", [False, True])
def test_a_store_of_daisy_is_resumed_here(tmp_path: Path, run_daisy, stats, layout: Layout, tracked: bool) -> None:
    """What daisy did is done, cell by cell; the rest is done here, and daisy then skips everything (B118, D2)."""
    path = tmp_path / "seg"
    did = run_daisy(path, layout, tracked=tracked, succeed=3)
    assert len(did) == 3
    daisys = {name: TrackingStore.peek(path).array(name) for name in TrackingStore.peek(path).arrays}
    with TrackingStore.open(path, layout, resource_tracking=True) as store:
        assert np.flatnonzero(store.done_blocks()).tolist() == did
        rest = [index for index in range(layout.num_blocks) if index not in did]
        for index in rest:
            store.record_done(index, stats, 1, 1000.0, 1001.0, {"read": (0.5, 1)})
        for name, before in daisys.items():
            after = store.peek(path).array(name)
            assert all(np.array_equal(after[layout.cell(i)], before[layout.cell(i)], equal_nan=True) for i in did)
    assert run_daisy(path, layout, tracked=True) == []
    reader = TrackingStore.peek(path)
    assert reader.done_of(layout).all()
    assert reader.block(layout.cell(rest[0])).stats == stats
    assert reader.block(layout.cell(rest[0])).steps == {"read": 0.5}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tracked", [False, True])
def test_our_store_is_resumed_by_daisy(tmp_path: Path, run_daisy, stats, layout: Layout, tracked: bool) -> None:
    """daisy skips what was done here, does the rest, and its flags and measurements are read here (B110-B114, D2)."""
    path = tmp_path / "seg"
    ours = [0, layout.num_blocks - 1]
    with TrackingStore.open(path, layout, resource_tracking=tracked, task_id="seg") as store:
        for index in ours:
            store.record_done(index, stats, 1, 1000.0, 1001.0, {"read": (0.5, 1)})
        store.record_failure(1)
    did = run_daisy(path, layout, tracked=True)
    assert did == [index for index in range(layout.num_blocks) if index not in ours]
    with TrackingStore.open(path, layout, resource_tracking=True) as store:
        assert store.done_blocks().all()
        assert store.failures_of_blocks().reshape(-1).tolist() == [0, 1] + [0] * (layout.num_blocks - 2)
        peak = store.peek(path).array("peak_rss_bytes")
        assert all(peak[layout.cell(index)] > 0 for index in did)
        assert not any(store.block(layout.cell(index)).worker_id for index in did)


def test_a_store_of_daisy_tells_its_measurements(tmp_path: Path, run_daisy) -> None:
    """Where there are no stamps, a cell means something where the block is done (B113)."""
    layout = LAYOUTS[2].values[0]
    run_daisy(tmp_path / "seg", layout, tracked=True, succeed=3)
    records = list(TrackingStore.peek(tmp_path / "seg").block_records())
    assert [record.done for record in records if record.done] == [True] * 3
    for record in records:
        if record.done:
            assert record.stats.peak_rss_bytes > 1 << 20
            assert (record.worker_id, record.sent_at) == (None, None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_daisy_writes_the_hash_that_we_compute(tmp_path: Path, run_daisy, layout: Layout) -> None:
    """The attribute is the same text (B114)."""
    run_daisy(tmp_path / "seg", layout, tracked=False)
    assert TrackingStore.peek(tmp_path / "seg").layout_hash == layout_hash(layout)


def test_daisy_refuses_our_store_for_another_layout(tmp_path: Path, run_daisy, run_script, make_layout) -> None:
    """And its refusal names our hash (B115, KF-17)."""
    TrackingStore.open(tmp_path / "seg", make_layout()).close()
    with pytest.raises(AssertionError, match=layout_hash(make_layout())):
        run_daisy(tmp_path / "seg", make_layout(blocks=9), tracked=False)
