"""The block functions against the same computation on the whole volume at once, voxel for voxel."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

import workspan as ws
from workspan.cli.demo import ome
from workspan.cli.demo.nifti import Volume
from workspan.cli.demo.pipeline import TASKS, Brain, build, classes, classify, measure, smooth
from workspan.grid import Block

MakeStore = Callable[..., Brain]
Unblocked = Callable[[np.ndarray, float], dict[str, np.ndarray]]
ARRAYS = ("smooth", "labels/classes/0", "tables/histograms", "tables/thresholds", "tables/voxels")


def run_by_hand(brain: Brain, order: random.Random) -> None:
    """Run every block, task by task, in any order; nothing of engines or schedules takes part."""
    for task in build(brain, None, workers=1).tasks:
        indices = list(range(task.layout.num_blocks))
        order.shuffle(indices)
        for index in indices:
            task.process_function(Block.at(task.layout, index, task.task_id))


def assert_equals_unblocked(brain: Brain, truth: dict[str, np.ndarray]) -> None:
    """Compare every array of the store with the truth."""
    for name in ("smooth", "labels/classes/0"):
        ours = brain.read(name)
        assert ours.dtype == truth[name].dtype
        assert np.array_equal(ours, truth[name]), f"{name}: {np.count_nonzero(ours != truth[name])} voxels differ"
    assert np.array_equal(brain.read("tables/histograms").reshape(-1, 256).sum(axis=0), truth["histogram"])
    assert np.array_equal(brain.read("tables/thresholds"), truth["thresholds"])
    assert np.array_equal(brain.read("tables/voxels").reshape(-1, 4).sum(axis=0), truth["voxels"])


@pytest.mark.parametrize("block", [9, 16, 17, 31, 33, 34, 37, 64, (31, 7, 34), (5, 37, 33), (200, 11, 13)], ids=str)
def test_blocks_equal_the_whole_volume(
    make_store: MakeStore, unblocked: Unblocked, crop: np.ndarray, block: Any
) -> None:
    """Smoothed and classified voxels, histograms, thresholds and counts are those of the un-blocked run (KF-26)."""
    brain = make_store(crop, block)
    run_by_hand(brain, random.Random(0))
    assert_equals_unblocked(brain, unblocked(crop, brain.sigma))


@pytest.mark.once
@settings(max_examples=20)
@given(
    shape=st.tuples(*[st.integers(1, 21)] * 3),
    block=st.tuples(*[st.integers(2, 23)] * 3),
    sigma=st.sampled_from([0.3, 0.7, 1.0, 1.4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_block(unblocked: Unblocked, shape: Any, block: Any, sigma: float, seed: int) -> None:
    """Volumes thinner than the halo, blocks that leave a rest of one voxel: always the un-blocked result (KF-26)."""
    data = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    data.flat[: min(4, data.size)] = (0, 40, 90, 200)[: min(4, data.size)]
    if len(np.unique(data[data > 0])) < 3:
        return  # three classes of fewer than three intensities do not exist
    with tempfile.TemporaryDirectory() as folder:
        brain = Brain(f"{folder}/a.zarr", shape, block, sigma)
        ome.create(Path(brain.store), Volume(data, (1, 1, 1), (0, 0, 0)), brain)
        run_by_hand(brain, random.Random(seed))
        assert_equals_unblocked(brain, unblocked(data, brain.sigma))


def test_a_halo_one_voxel_short_is_noticed(
    make_store: MakeStore, unblocked: Unblocked, crop: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison bites: with halo - 1 the result is another one."""
    brain = make_store(crop, 16)
    monkeypatch.setattr(Brain, "halo", 3)
    run_by_hand(brain, random.Random(0))
    with pytest.raises(AssertionError, match=r"smooth: .* voxels differ"):
        assert_equals_unblocked(brain, unblocked(crop, brain.sigma))


def test_every_voxel_is_written_once(make_store: MakeStore, crop: np.ndarray) -> None:
    """The write ROIs of each task tile the volume: no voxel is left out, none belongs to two blocks."""
    for task in build(make_store(crop, 13), None, workers=1).tasks:
        times = np.zeros(crop.shape, np.uint8)
        for index in range(task.layout.num_blocks):
            times[Block.at(task.layout, index, task.task_id).write_roi.to_slices()] += 1
        assert (times == 1).all(), task.task_id


def test_nothing_unwritten_is_left(make_store: MakeStore, crop: np.ndarray) -> None:
    """Before a run every value of an output is one that no block can write; after it none is (KF-25)."""
    brain = make_store(crop, 16)

    def unwritten(name: str) -> int:
        values = brain.read(name)
        none = {"float32": np.nan, "float64": np.nan, "uint8": 255, "int64": -1}[str(values.dtype)]
        return int((np.isnan(values) if values.dtype.kind == "f" else values == none).sum())

    assert [unwritten(name) for name in ARRAYS] == [brain.read(name).size for name in ARRAYS]
    run_by_hand(brain, random.Random(0))
    assert [unwritten(name) for name in ARRAYS] == [0] * len(ARRAYS)


@pytest.mark.parametrize("block", [16, 64, (200, 11, 13)], ids=str)
def test_a_block_writes_whole_chunks_of_its_own(make_store: MakeStore, crop: np.ndarray, block: Any) -> None:
    """Each block creates its own chunk files and touches no other (KF-19)."""
    brain = make_store(crop, block)
    store = Path(brain.store)

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}

    for task in build(brain, None, workers=1).tasks:
        for index in range(task.layout.num_blocks):
            before = files()
            task.process_function(Block.at(task.layout, index, task.task_id))
            after = files()
            assert {path: after[path] for path in before} == before
            assert len(after) == len(before) + (2 if task.task_id == "smooth" else 1)


def test_chunk_files_name_what_is_there(make_store: MakeStore, crop: np.ndarray) -> None:
    """The list by which a resumed demo looks for removed chunks is the list of the files."""
    brain = make_store(crop, (31, 7, 34))
    run_by_hand(brain, random.Random(0))
    store = Path(brain.store)
    named = {path for paths in ome.chunk_files(store, brain).values() for path in paths}
    assert named == {path for path in store.rglob("*") if path.is_file() and path.name != "zarr.json"}


def test_chunks_of_zeros_are_stored(make_store: MakeStore, unblocked: Unblocked) -> None:
    """An empty corner of the brain has chunks like any other, so that a missing one is damage (KF-20)."""
    data = np.zeros((16, 16, 16), np.uint8)
    data[:8, :8, :8] = np.random.default_rng(0).integers(1, 255, (8, 8, 8))
    brain = make_store(data, 8)
    run_by_hand(brain, random.Random(0))
    assert all(path.is_file() for paths in ome.chunk_files(Path(brain.store), brain).values() for path in paths)
    assert_equals_unblocked(brain, unblocked(data, brain.sigma))


def test_dependencies_follow_the_data(make_store: MakeStore, crop: np.ndarray) -> None:
    """Tasks wait for what they read: classes for all of smooth, classify for both, measure for classify (B28)."""
    pipeline = build(make_store(crop, 16), None, workers=3)
    assert tuple(task.task_id for task in pipeline.tasks) == TASKS
    assert {(up.task_id, down.task_id) for up, down in pipeline.edges} == {
        ("smooth", "classes"),
        ("smooth", "classify"),
        ("classes", "classify"),
        ("classify", "measure"),
    }
    blocks = {task.task_id: task.layout.num_blocks for task in pipeline.tasks}
    assert blocks == {"smooth": 18, "classes": 1, "classify": 18, "measure": 18}
    assert {task.task_id: task.max_workers for task in pipeline.tasks} == {
        "smooth": 3,
        "classes": 1,
        "classify": 3,
        "measure": 3,
    }


def test_smooth_reads_the_halo_and_no_more(make_store: MakeStore, crop: np.ndarray) -> None:
    """The read ROI is the write ROI grown by four sigma, clipped by the block function alone (B6)."""
    task = build(make_store(crop, 16), None, workers=1).tasks[0]
    block = Block.at(task.layout, 0, "smooth")
    assert block.write_roi == ws.Roi((0, 0, 0), (16, 16, 16))
    assert block.read_roi == ws.Roi((-4, -4, -4), (24, 24, 24))


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 1.3, 2.0])
def test_halo_is_where_scipy_stops(sigma: float) -> None:
    """A single bright voxel reaches exactly *halo* voxels far."""
    halo = Brain("", (1, 1, 1), (1, 1, 1), sigma).halo
    line = np.zeros(101, np.float64)
    line[50] = 1.0
    touched = np.flatnonzero(gaussian_filter(line, sigma, mode="reflect"))
    assert touched[-1] - 50 <= halo
    weights = gaussian_filter(np.eye(1, 101, 50)[0], sigma, mode="reflect", truncate=4.0)
    assert touched[-1] == np.flatnonzero(weights)[-1]


def test_functions_travel_small(make_store: MakeStore, crop: np.ndarray) -> None:
    """What goes to a worker is a name and where the arrays are, not an array."""
    for task in build(make_store(crop, 16), None, workers=1).tasks:
        assert len(pickle.dumps(task.process_function)) < 1000


def test_a_threshold_belongs_to_the_lower_class(make_store: MakeStore) -> None:
    """An intensity of exactly a threshold is the last one of the lower class, as in the histogram."""
    raw = np.full((1, 1, 6), 9, np.uint8)
    raw[0, 0, 0] = 0
    brain = make_store(raw, 8)
    brain.write("tables/thresholds", ..., np.array([139.0, 189.0]))
    brain.write("smooth", (0, 0), np.array([200, 139, 139.5, 189, 189.5, 0.5], np.float32))
    classify(Block.at(build(brain, None, workers=1).tasks[2].layout, 0, "classify"), brain=brain)
    assert brain.read("labels/classes/0").tolist() == [[[0, 1, 2, 2, 3, 1]]]


def test_missing_histogram_stops_classes(make_store: MakeStore, crop: np.ndarray) -> None:
    """Thresholds are never computed from a part of the volume (KF-25)."""
    brain = make_store(crop, 32)
    tasks = build(brain, None, workers=1).tasks
    for index in range(tasks[0].layout.num_blocks - 1):
        smooth(Block.at(tasks[0].layout, index, "smooth"), brain=brain)
    with pytest.raises(RuntimeError, match="a histogram of 'smooth' was removed or never written"):
        classes(Block.at(tasks[1].layout, 0, "classes"), brain=brain)


@pytest.mark.parametrize("missing", ["smooth", "tables/thresholds"])
def test_missing_input_stops_classify(make_store: MakeStore, crop: np.ndarray, missing: str) -> None:
    """A voxel without a smoothed value, or without thresholds, gets no label (KF-25)."""
    brain = make_store(crop, 64)
    run_by_hand(brain, random.Random(0))
    brain.write(missing, ..., np.float32("nan"))
    with pytest.raises(RuntimeError, match="the output of 'smooth' or 'classes' was removed or never written"):
        classify(Block.at(build(brain, None, workers=1).tasks[2].layout, 0, "classify"), brain=brain)


def test_missing_labels_stop_measure(make_store: MakeStore, crop: np.ndarray) -> None:
    """A voxel without a label is not counted as background (KF-25)."""
    brain = make_store(crop, 64)
    with pytest.raises(RuntimeError, match=r"label 255 is none of 0\.\.3"):
        measure(Block.at(build(brain, None, workers=1).tasks[3].layout, 0, "measure"), brain=brain)


def test_a_store_made_anew_is_opened_anew(make_store: MakeStore, crop: np.ndarray) -> None:
    """An array that a process has open is not mistaken for its successor at the same place."""
    import shutil

    brain = make_store(crop, 64)
    assert brain.read("t1").shape == crop.shape
    shutil.rmtree(brain.store)
    again = make_store(crop[:20], 16)
    assert again.store == brain.store
    assert np.array_equal(again.read("t1"), crop[:20])
