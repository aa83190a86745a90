"""The worked example: connected components by blocks are those of the whole volume."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from helpers.arrays import run_by_hand
from workspan.cli.demo.brain import find_brain
from workspan.cli.demo.nifti import read_nifti

FILE = Path(__file__).parents[2] / "examples" / "components.py"
QUIET = {"progress": False, "summary": False}


@pytest.fixture(scope="module")
def example():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("components", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_same_up_to_numbers(ours, count, mask):
    """The components of *ours* are those of SciPy, each under one number of its own."""
    theirs, wanted = ndimage.label(mask)
    assert count == wanted
    assert np.array_equal(ours > 0, mask)
    pairs = np.unique(ours[mask] * (wanted + 1) + theirs[mask])
    assert len(pairs) == wanted  # each number goes with one of theirs, and
    assert np.array_equal(np.unique(pairs // (wanted + 1)), np.arange(1, wanted + 1))  # each with another one


def test_the_brain(example):
    """Components of the thresholded brain by two workers are SciPy's; a second call computes nothing."""
    brain = read_nifti(find_brain().t1).data
    zarr.create_array("raw.zarr", data=np.ascontiguousarray(brain), chunks=(64, 64, 64))
    count = example.components("raw.zarr", 190, "labels.zarr", folder="work", **QUIET)
    labels = zarr.open_array("labels.zarr", mode="r")
    assert count > 100
    assert_same_up_to_numbers(labels[:], count, brain > 190)
    before = {path: path.stat().st_mtime_ns for path in Path("labels.zarr").rglob("*")}
    assert example.components("raw.zarr", 190, "labels.zarr", folder="work", **QUIET) == count
    assert {path: path.stat().st_mtime_ns for path in Path("labels.zarr").rglob("*")} == before


@settings(max_examples=25)
@given(
    shape=st.integers(1, 3).flatmap(lambda rank: st.tuples(*[st.integers(1, 9)] * rank)),
    block=st.integers(1, 5),
    share=st.sampled_from([0.0, 0.4, 0.6, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_volume(example, shape, block, share, seed):
    """Snakes through many blocks, single voxels, no foreground at all: always SciPy's components."""
    mask = np.random.default_rng(seed).random(shape) < share
    import workspan as ws

    labels, renamed = np.zeros((2, *shape), np.int64)
    label = ws.map_blocks(
        lambda a, block: example.label_block(a, block, threshold=0), mask.astype("u1"), out=labels, block_shape=block
    )
    run_by_hand(label, seed)
    touch = ws.reduce_blocks(
        example.touching_labels, labels, combine=example.merge_pairs, block_shape=block, halo=((1, 0),) * len(shape)
    )
    old, new, count = example.numbering(run_by_hand(touch, seed))
    np.savez("table.npz", old=old, new=new)
    run_by_hand(
        ws.map_blocks(lambda a: example.relabel_block(a, table="table.npz"), labels, out=renamed, block_shape=block)
    )
    assert_same_up_to_numbers(renamed, count, mask)
