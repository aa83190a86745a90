"""The store: OME-Zarr 0.5 by its own rules, and by ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

from workspan.cli.demo import ome
from workspan.cli.demo.nifti import Volume
from workspan.cli.demo.pipeline import Brain

v05 = pytest.importorskip("ome_zarr_models.v05")

MakeStore = Callable[..., Brain]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of voxels that differ in size on each axis."""
    brain = Brain("", (6, 7, 8), (4, 4, 9))
    volume = Volume(np.arange(6 * 7 * 8).reshape(6, 7, 8).astype(np.uint8), (3.0, 2.0, 0.5), (-72.0, -134.0, -98.0))
    ome.create(tmp_path / "b.zarr", volume, brain)
    return tmp_path / "b.zarr"


def test_image_is_valid(store: Path) -> None:
    """The group is an OME-Zarr 0.5 image with the brain and the filtered brain."""
    image = v05.Image.from_zarr(zarr.open_group(store, mode="r"))
    assert [m.name for m in image.attributes.ome.multiscales] == ["T1", "smoothed T1"]


def test_labels_are_valid(store: Path) -> None:
    """The classes are an OME-Zarr 0.5 label image that names its values and its source."""
    group = zarr.open_group(store, mode="r")
    assert v05.Labels.from_zarr(group["labels"]).attributes.ome.labels == ["classes"]
    label = v05.ImageLabel.from_zarr(group["labels/classes"]).attributes.ome.image_label
    assert [p.label_value for p in label.properties] == [c.label_value for c in label.colors] == [0, 1, 2, 3]
    assert (store / "labels/classes" / label.source.image).resolve() == store.resolve()


@pytest.mark.parametrize("group", ["", "labels/classes"])
def test_place_and_size_are_in_millimetres(store: Path, group: str) -> None:
    """Scale, then translation, z first, for every array of the volume."""
    attributes = json.loads((store / group / "zarr.json").read_text())["attributes"]["ome"]
    assert attributes["version"] == "0.5"
    for image in attributes["multiscales"]:
        assert [(a["name"], a["type"], a["unit"]) for a in image["axes"]] == [
            (axis, "space", "millimeter") for axis in "zyx"
        ]
        assert image["datasets"][0]["coordinateTransformations"] == [
            {"type": "scale", "scale": [3.0, 2.0, 0.5]},
            {"type": "translation", "translation": [-72.0, -134.0, -98.0]},
        ]


def test_arrays_are_zarr_3_with_named_axes(store: Path) -> None:
    """Every array is Zarr v3, says what its axes are, and has one chunk a block, clipped to the volume."""
    for name in ("t1", "smooth", "labels/classes/0"):
        array = zarr.open_array(store / name, mode="r")
        assert array.metadata.zarr_format == 3
        assert array.metadata.dimension_names == ("z", "y", "x")
        assert array.shape == (6, 7, 8)
        assert array.chunks == (4, 4, 8)
    for name, width in (("histograms", 256), ("voxels", 4)):
        array = zarr.open_array(store / "tables" / name, mode="r")
        assert array.shape == (2, 2, 1, width)
        assert array.chunks == (1, 1, 1, width)


def test_input_is_in_the_store(store: Path) -> None:
    """The first array is the brain itself."""
    values = zarr.open_array(store / "t1", mode="r")[...]
    assert np.array_equal(values.ravel(), np.arange(6 * 7 * 8).astype(np.uint8))


def test_size_of_a_voxel_is_kept_with_the_counts(store: Path) -> None:
    """Whoever finds the counts alone can turn them into millilitres."""
    attributes = zarr.open_array(store / "tables/voxels", mode="r").attrs
    assert attributes["millilitres_per_voxel"] == 0.003
    assert attributes["classes"] == ["background", "CSF", "grey matter", "white matter"]
