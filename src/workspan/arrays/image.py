"""OME-Zarr 0.4 and 0.5: where an image lies in space, read from its metadata and written for an output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workspan.grid.layout import Ints

LEVEL = "0"
"""Name of the array in an image group that is written here."""


@dataclass(frozen=True)
class Image:
    """One level of a multiscale image."""

    version: str
    """``"0.4"`` (Zarr v2) or ``"0.5"`` (Zarr v3)."""
    path: str
    """Path of the level's array in the group."""
    axes: tuple[dict[str, Any], ...]
    scale: tuple[float, ...]
    """Distance of voxel centres per axis, in the units of the axes."""
    translation: tuple[float, ...]
    """Position of the centre of voxel 0, in the units of the axes."""

    @property
    def zarr_format(self) -> Literal[2, 3]:
        """The Zarr format that the version asks for."""
        return 2 if self.version == "0.4" else 3

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(str(axis["name"]) for axis in self.axes)

    def attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of a group that holds this level alone, as the array :data:`LEVEL`."""
        place = [{"type": "scale", "scale": list(self.scale)}]
        if any(self.translation):
            place.append({"type": "translation", "translation": list(self.translation)})
        multiscale = {
            "name": name,
            "axes": [dict(axis) for axis in self.axes],
            "datasets": [{"path": LEVEL, "coordinateTransformations": place}],
        }
        if self.zarr_format == 2:
            return {"multiscales": [{"version": self.version, **multiscale}]}
        return {"ome": {"version": self.version, "multiscales": [multiscale]}}

    def whole(self, name: str) -> tuple[Ints, Ints]:
        """Return voxel size and offset as whole numbers of the axes' units.

        Raises
        ------
        ConfigurationError
            They are none.
        """
        out = []
        for what, values in (("scale", self.scale), ("translation", self.translation)):
            if any(value != round(value) for value in values) or (what == "scale" and min(values) < 1):
                raise ConfigurationError(
                    f"{name} has the {what} {values}, and world units must be whole numbers (nanometres, say): correct "
                    "its metadata, or use units='voxels'"
                )
            out.append(tuple(round(value) for value in values))
        return out[0], out[1]


def image_of(attributes: Mapping[str, Any], rank: int | None, level: str | None) -> Image | None:
    """Read the level *level* (``None``: the first, of full resolution) of the image that a group describes.

    Returns
    -------
    Image | None
        ``None`` if the group is no image, has no such level, or has not *rank* axes.
    """
    ome = attributes.get("ome")
    version, found = None, None
    if isinstance(ome, dict) and "multiscales" in ome:
        version, found = str(ome.get("version", "0.5")), ome["multiscales"]
    elif "multiscales" in attributes:
        found = attributes["multiscales"]
        version = str(found[0].get("version", "0.4")) if found else "0.4"
    for multiscale in found or ():
        axes = tuple({"name": axis} if isinstance(axis, str) else dict(axis) for axis in multiscale.get("axes", ()))
        for dataset in multiscale.get("datasets", ()):
            if level not in (None, dataset["path"]):
                continue
            if rank is not None and len(axes) != rank:
                return None
            scale, translation = [1.0] * len(axes), [0.0] * len(axes)
            both = (dataset.get("coordinateTransformations", ()), multiscale.get("coordinateTransformations", ()))
            for step in (step for steps in both for step in steps):
                if "scale" in step:
                    scale = [a * b for a, b in zip(scale, step["scale"], strict=True)]
                    translation = [a * b for a, b in zip(translation, step["scale"], strict=True)]
                elif "translation" in step:
                    translation = [a + b for a, b in zip(translation, step["translation"], strict=True)]
            assert version is not None
            return Image(version, str(dataset["path"]), axes, tuple(scale), tuple(translation))
    return None
