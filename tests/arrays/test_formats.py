"""Where arrays may be: Zarr v2 and v3, shards, groups, memory maps, other stores, OME-Zarr images."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import zarr
from ome_zarr_models.v04 import Image as Image04
from ome_zarr_models.v05 import Image as Image05

import workspan as ws
from helpers.arrays import run_by_hand
from workspan.arrays.refs import ref_of
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.measure.stats import Welford

QUIET = {"progress": False, "summary": False}
VALUES = np.arange(48.0).reshape(6, 8)


def stat_of(samples):
    """Summarise samples."""
    found = Welford()
    found.extend(samples)
    return found.stat()


def doubled(a):
    """A function to see whether it was applied, once."""
    return a * 2


def make_image(version, scale=(2.0, 0.5), translation=(10.0, 0.0), unit="micrometer"):
    """An OME-Zarr image at image.zarr, with two levels."""
    axes = [{"name": name, "type": "space", "unit": unit} for name in "yx"]
    steps = [{"type": "scale", "scale": list(scale)}, {"type": "translation", "translation": list(translation)}]
    coarse = [{"type": "scale", "scale": [2 * s for s in scale]}]
    datasets = [
        {"path": "s0", "coordinateTransformations": steps},
        {"path": "s1", "coordinateTransformations": coarse},
    ]
    multiscale = {"name": "cells", "axes": axes, "datasets": datasets}
    if version == "0.4":
        attributes, how = {"multiscales": [{"version": "0.4", **multiscale}]}, {}
    else:
        attributes, how = {"ome": {"version": "0.5", "multiscales": [multiscale]}}, {"dimension_names": ("y", "x")}
    group = zarr.create_group("image.zarr", zarr_format=2 if version == "0.4" else 3, attributes=attributes)
    group.create_array("s0", data=VALUES, chunks=(2, 4), **how)
    group.create_array("s1", data=VALUES[::2, ::2], chunks=(2, 4), **how)


@pytest.mark.parametrize(
    "how",
    [
        {"zarr_format": 2},
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        {"zarr_format": 3},
        {"zarr_format": 3, "chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"zarr_format": 3, "shards": (4, 8)},
        {"zarr_format": 2, "order": "F"},
    ],
    ids=str,
)
def test_every_kind_of_zarr_array(how):
    """Inputs and outputs of both formats, separators, shards: resumed with every chunk found (KF-20)."""
    zarr.create_array("in.zarr", data=VALUES, chunks=(2, 4), **how)
    zarr.create_array("out.zarr", shape=(6, 8), dtype="f8", chunks=(2, 4), **how)

    def task():
        out = zarr.open_array("out.zarr", mode="r+")
        return ws.map_blocks(lambda a: a * 0, "in.zarr", out=out, tracking_path="tracking/t", task_id="t")

    assert tuple(task().layout.write_shape) == how.get("shards", (2, 4))
    assert task().run(engine="serial", **QUIET)
    report = task().run(engine="serial", return_report=True, **QUIET)
    assert report["t"].blocks.skipped == report["t"].blocks.count
    run_by_hand(ws.map_blocks(doubled, "in.zarr", out="new.zarr"))
    assert np.array_equal(zarr.open_array("new.zarr")[:], VALUES * 2)


def test_arrays_in_groups():
    """A path leads into a group, for reading and for making."""
    zarr.create_group("store.zarr").create_array("a/raw", data=VALUES, chunks=(2, 4))
    run_by_hand(ws.map_blocks(doubled, "store.zarr/a/raw", out="store.zarr/a/double"))
    assert np.array_equal(zarr.open_group("store.zarr")["a/double"][:], VALUES * 2)


def test_arrays_in_files_with_processes():
    """Workers read an .npy file and a part of a memory map, and write one, each its own part of the file."""
    np.save("a.npy", VALUES)
    raw = np.memmap("raw.bin", dtype="f8", mode="w+", shape=(10, 8))
    raw[2:8] = VALUES
    raw.flush()
    out = np.lib.format.open_memmap("out.npy", mode="w+", dtype="f8", shape=(6, 8))
    task = ws.map_blocks(np.add, "a.npy", raw[2:8], out=out, block_shape=(2, 3), max_workers=2)
    assert task.run(**QUIET)
    assert np.array_equal(np.load("out.npy"), VALUES * 2)
    assert len(pickle.dumps(ref_of(raw[2:8, ::-1], "x"))) < 1500
    assert np.array_equal(ref_of(raw[2:8, ::-1], "x").open(), VALUES[:, ::-1])
    with pytest.raises(ConfigurationError, match="is read-only"):
        ws.map_blocks(doubled, VALUES, out=np.load("a.npy", mmap_mode="r"), block_shape=2)
    with pytest.raises(ConfigurationError, match=r"'no.npy' cannot be read"):
        ref_of("no.npy", "input")
    with pytest.raises(UsageTypeError, match="input is a list: pass a path"):
        ref_of([1, 2], "input")


def test_a_store_object():
    """An array handed over as an object is named by its store, whatever store that is."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, name="a/b", data=VALUES, chunks=(2, 4))
    out = zarr.create_array(store, name="c", shape=(6, 8), dtype="f8", chunks=(2, 4))
    assert ws.map_blocks(doubled, array, out=out).run(engine="serial", **QUIET)
    assert np.array_equal(out[:], VALUES * 2)


def test_fsspec_stores():
    """A file system of fsspec works with processes, its memory not: nobody else sees that."""
    pytest.importorskip("fsspec")
    options = {"auto_mkdir": True}
    files = zarr.storage.FsspecStore.from_url(f"file://{os.getcwd()}/f.zarr", storage_options=options)
    array = zarr.create_array(files, data=VALUES, chunks=(2, 4))
    assert ws.map_blocks(doubled, array, out="out.zarr", max_workers=1).run(**QUIET)
    assert np.array_equal(zarr.open_array("out.zarr")[:], VALUES * 2)
    memory = zarr.storage.FsspecStore.from_url("memory://x.zarr")
    array = zarr.create_array(memory, data=VALUES, chunks=(2, 4))
    with pytest.raises(ConfigurationError, match="in the memory of this process"):
        ws.map_blocks(doubled, array, out="y.zarr").run(**QUIET)
    task = ws.map_blocks(doubled, VALUES, out="memory://z.zarr", block_shape=4)
    with pytest.raises(ConfigurationError, match=r"out='memory://z.zarr' is in the memory of this process"):
        task.run(**QUIET)
    assert task.run(engine="serial", **QUIET)
    assert np.array_equal(zarr.open_array("memory://z.zarr", mode="r")[:], VALUES * 2)


@pytest.mark.parametrize(("version", "model"), [("0.4", Image04), ("0.5", Image05)])
class TestOme:
    """OME-Zarr images."""

    @pytest.mark.parametrize("source", ["image.zarr", "image.zarr/s0"])
    def test_the_output_is_an_image(self, version, model, source):
        """An output of an image is one, of its version, at its place, and passes ome-zarr-models."""
        make_image(version)
        run_by_hand(ws.map_blocks(doubled, source, out="double.zarr"))
        group = zarr.open_group("double.zarr", mode="r")
        image = model.from_zarr(group)
        (multiscale,) = image.attributes.multiscales if version == "0.4" else image.ome_attributes.multiscales
        assert [(axis.name, axis.unit) for axis in multiscale.axes] == [("y", "micrometer"), ("x", "micrometer")]
        (dataset,) = multiscale.datasets
        scale, translation = dataset.coordinateTransformations
        assert (scale.scale, translation.translation) == ([2.0, 0.5], [10.0, 0.0])
        assert np.array_equal(group[dataset.path][:], VALUES * 2)
        assert group.metadata.zarr_format == (2 if version == "0.4" else 3)

    def test_a_coarser_level_has_its_own_place(self, version, model):
        """The second level is read as what it is: another scale and no translation."""
        make_image(version)
        run_by_hand(ws.map_blocks(doubled, "image.zarr/s1", out="half.zarr"))
        image = model.from_zarr(zarr.open_group("half.zarr", mode="r"))
        (multiscale,) = image.attributes.multiscales if version == "0.4" else image.ome_attributes.multiscales
        assert [step.scale for step in multiscale.datasets[0].coordinateTransformations] == [[4.0, 1.0]]

    def test_it_can_be_overwritten_and_resumed(self, version, model):
        """An image that this library made is replaced by overwrite=True, and its chunks are looked at."""
        make_image(version)
        run_by_hand(ws.map_blocks(doubled, "image.zarr", out="double.zarr"))

        def task():
            return ws.map_blocks(doubled, "image.zarr", out="double.zarr", overwrite=True, tracking_path="tracking/t")

        assert task().run(engine="serial", **QUIET)
        assert task().run(engine="serial", return_report=True, **QUIET)["doubled"].blocks.skipped == 6

    def test_world_units(self, version, model):
        """In world units blocks, halo and ROI are in those of the axes, from the translation on."""
        make_image(version, scale=(10, 5), translation=(100, 200), unit="nanometer")
        seen = []

        def look(a, block):
            seen.append((tuple(block.write_roi.begin), tuple(block.read_roi.shape), a.shape))
            return a * 2

        task = ws.map_blocks(
            look, "image.zarr", out="double.zarr", units="world", block_shape=(20, 20), halo=(10, 5), mode="nearest"
        )
        assert tuple(task.total_write_roi.begin) == (100, 200)
        assert tuple(task.total_write_roi.end) == (160, 240)
        run_by_hand(task)
        assert np.array_equal(zarr.open_array("double.zarr/0")[:], VALUES * 2)
        assert ((100, 200), (40, 30), (4, 6)) in seen
        with pytest.raises(ConfigurationError, match=r"halo=\(5, 5\) is not made of whole voxels"):
            ws.map_blocks(look, "image.zarr", out="x.zarr", units="world", block_shape=(20, 20), halo=5)

    def test_two_resolutions(self, version, model):
        """In world units a coarse mask goes with a fine image: each is read in its own voxels."""
        make_image(version, scale=(10, 5), translation=(0, 0), unit="nanometer")

        def both(fine, coarse):
            return fine + coarse.repeat(2, axis=0).repeat(2, axis=1)

        task = ws.map_blocks(both, "image.zarr", "image.zarr/s1", out="sum.zarr", units="world", block_shape=(20, 20))
        run_by_hand(task)
        wanted = VALUES + VALUES[::2, ::2].repeat(2, axis=0).repeat(2, axis=1)
        assert np.array_equal(zarr.open_array("sum.zarr/0")[:], wanted)

    def test_world_units_must_be_whole(self, version, model):
        """A scale of half a micrometre is no whole number: refused, and so are arrays without a place."""
        make_image(version)
        with pytest.raises(ConfigurationError, match=r"has the scale \(2.0, 0.5\), and world units must be whole"):
            ws.map_blocks(doubled, "image.zarr", out="x.zarr", units="world", block_shape=4)
        with pytest.raises(ConfigurationError, match="no OME metadata"):
            ws.map_blocks(doubled, VALUES, out="x.zarr", units="world", block_shape=4)


def test_a_big_array_does_not_travel_by_value(monkeypatch):
    """An array too large for the pipe is refused with what to do; in this process it is used as it is."""
    monkeypatch.setattr("workspan.arrays.task.MOST_VALUE_BYTES", 100)
    task = ws.map_blocks(doubled, VALUES, out="x.zarr", block_shape=4)
    with pytest.raises(ConfigurationError, match=r"has 384 bytes, and arrays above 100 do not travel"):
        task.run(**QUIET)
    assert task.run(engine="serial", **QUIET)


class TestMemory:
    """What blocks will take, before they run."""

    def test_prediction(self):
        """Inputs and outputs with their halo, each of its own type."""
        task = ws.map_blocks(
            np.add,
            np.zeros((20, 20), "u1"),
            np.zeros((20, 20), "f8"),
            out="x.zarr",
            dtype="f4",
            block_shape=(10, 8),
            halo=((1, 2), (0, 3)),
        )
        assert task.predicted_bytes() == 13 * 11 * (1 + 8 + 4)

    def test_what_is_kept_of_inputs_counts(self, monkeypatch):
        """Layers of tiles are part of what a worker is said to take."""
        monkeypatch.setattr("workspan.arrays.task.WORKER_BYTES", 100_000)
        zarr.create_array("in.zarr", shape=(640, 640), chunks=(64, 64), dtype="f8")
        task = ws.map_blocks(doubled, "in.zarr", out="x.zarr", max_workers=2, halo=8)
        block = 2 * 80 * 80 * 8
        # A tile keeps 4 layers of 8 x 64; one row of 10 tiles and 9 around a block are in use.
        layers = 4 * 8 * 64 * 8 * (9 + 2 * 11)
        monkeypatch.setattr("workspan.arrays.task.memory_limit_bytes", lambda: 2 * (block + 100_000 + layers))
        task.check_run(False, has_upstream=False)  # warnings are errors here
        monkeypatch.setattr("workspan.arrays.task.memory_limit_bytes", lambda: 2 * (block + 100_000 + layers) - 1)
        with pytest.warns(UserWarning, match=r"blocks of \(64, 64\) take about"):
            task.check_run(False, has_upstream=False)

    def test_a_block_that_will_not_fit_is_told_with_one_that_does(self, monkeypatch):
        """Workers times block above the limit: a warning before the run, with a shape of whole chunks that fits."""
        monkeypatch.setattr("workspan.arrays.task.memory_limit_bytes", lambda: 1_000_000)
        monkeypatch.setattr("workspan.arrays.task.WORKER_BYTES", 100_000)
        zarr.create_array("in.zarr", shape=(512, 512), chunks=(16, 32), dtype="f8")
        task = ws.map_blocks(doubled, "in.zarr", out="x.zarr", block_shape=(512, 512), max_workers=2, halo=1)
        with pytest.warns(UserWarning, match=r"blocks of \(512, 512\) take about") as caught:
            task.check_run(in_process=False)
        shape = eval(str(caught[0].message).split("block_shape=")[1].split(", or fewer")[0])
        fits = ws.map_blocks(doubled, "in.zarr", out="x.zarr", block_shape=shape, max_workers=2, halo=1)
        fits.check_run(in_process=False)  # warnings are errors here
        assert shape[0] % 16 == 0
        assert shape[1] % 32 == 0
        assert 2 * (fits.predicted_bytes() * 4 + 100_000) > 1_000_000

    def test_the_first_blocks_are_held_against_the_prediction(self, monkeypatch, caplog):
        """Blocks that take more than was predicted are told within the run, with a shape that fits, once."""
        monkeypatch.setattr("workspan.arrays.task.memory_limit_bytes", lambda: 1_000_000)
        monkeypatch.setattr("workspan.arrays.task.WORKER_BYTES", 100_000)
        task = ws.map_blocks(doubled, np.zeros((64, 64)), out="x.zarr", block_shape=16, max_workers=2)
        predicted = task.predicted_bytes() + 100_000
        with caplog.at_level("INFO", "workspan.arrays.task"):
            assert not task.judge_memory(stat_of([predicted] * 2))
            assert task.judge_memory(stat_of([predicted] * 3))
            assert [record.levelname for record in caplog.records] == ["INFO"]
            assert "1.00 times what was predicted" in caplog.text
            assert task.judge_memory(stat_of([predicted, 600_000, predicted]))
        assert caplog.records[-1].levelname == "WARNING"
        assert "(measured in the first 3); 2 workers then 0.0012 GB of 0.001 GB: use block_shape=" in caplog.text

    def test_what_was_measured_counts(self, monkeypatch, caplog):
        """A function that needs more than its arrays is known from the last run, and the shape goes by that."""

        def greedy(a):
            np.ones(10_000_000).sum()  # 80 MB
            return a * 2

        def task(block):
            return ws.map_blocks(
                greedy,
                np.zeros((64, 64)),
                out="x.zarr",
                block_shape=block,
                tracking_path="tracking/t",
                resource_tracking=True,
                overwrite=True,
                max_workers=1,
            )

        with caplog.at_level("INFO", "workspan.arrays.task"):
            assert task(64).run(**QUIET)
        assert caplog.text.count("the first 1 blocks took up to") == 1
        measured = task(64).measured_bytes()
        assert measured > 80_000_000
        monkeypatch.setattr("workspan.arrays.task.memory_limit_bytes", lambda: 40_000_000)
        monkeypatch.setattr("workspan.arrays.task.WORKER_BYTES", 10_000_000)
        assert task(64).predicted_bytes() == 65536
        with pytest.warns(UserWarning, match=r"measured in the last run.*use block_shape=") as caught:
            task(64).check_run(in_process=False)
        shape = eval(str(caught[0].message).split("block_shape=")[1].split(", or fewer")[0])
        assert np.prod(shape) / 64**2 * (measured - 10_000_000) <= 30_000_000
