"""What a person says of blocks, halos and regions, in the units of the blocks and complete."""

from __future__ import annotations

from math import prod
from numbers import Integral
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.grid import as_roi

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.arrays.refs import Ref
    from workspan.grid.layout import Box, Ints

Halo = tuple[tuple[int, int], ...]


def per_axis(name: str, value: Any, rank: int, *, least: int) -> Ints:
    """Return one whole number an axis; a single one stands for all.

    Raises
    ------
    UsageTypeError, ConfigurationError
        *value* (the argument *name*) is something else, has another length, or a number is below *least*.
    """
    values = (value,) * rank if isinstance(value, Integral) else value
    if isinstance(values, str) or not hasattr(values, "__len__") or not all(isinstance(v, Integral) for v in values):
        raise UsageTypeError(f"{name}={value!r}: pass a whole number, or one for each of the {rank} axes")
    if len(values) != rank:
        raise ConfigurationError(f"{name}={value!r} has {len(values)} entries, and the arrays have {rank} axes")
    if min(values) < least:
        raise ConfigurationError(f"{name}={value!r} is too small: use {least} or more on every axis")
    return tuple(int(v) for v in values)


def halo_of(value: Any, rank: int) -> Halo:
    """Return (lower, upper) margins an axis, from a number, one an axis, or a pair an axis."""
    if hasattr(value, "__len__") and any(hasattr(entry, "__len__") for entry in value):
        if len(value) != rank:
            raise ConfigurationError(f"halo={value!r} has {len(value)} entries, and the arrays have {rank} axes")
        out = []
        for entry in value:
            low, high = per_axis("halo", entry, 2, least=0)
            out.append((low, high))
        return tuple(out)
    return tuple((n, n) for n in per_axis("halo", value, rank, least=0))


def region_of(roi: Any, whole: Box) -> Box:
    """Return the region that is written: *roi*, or all.

    Raises
    ------
    ConfigurationError
        It reaches beyond the array.
    """
    if roi is None:
        return whole
    found = as_roi(roi, "roi")
    box = tuple(map(int, found.begin)), tuple(map(int, found.end))
    if len(box[0]) != len(whole[0]):
        raise ConfigurationError(f"roi={roi} has {len(box[0])} axes, and the arrays have {len(whole[0])}")
    if any(b < w or e > x for b, e, w, x in zip(*box, *whole, strict=True)):
        raise ConfigurationError(f"roi={roi} reaches beyond the array, which covers {whole[0]} to {whole[1]}")
    return box


def check_whole_voxels(name: str, values: Sequence[int], ref: Ref) -> None:
    """Refuse lengths that are no multiples of the voxels of an array."""
    if any(value % voxel for value, voxel in zip(values, ref.voxel_size, strict=True)):
        raise ConfigurationError(
            f"{name}={tuple(values)} is not made of whole voxels of {ref.name}, which are {ref.voxel_size}: use "
            "multiples of them"
        )


def check_inputs(inputs: Sequence[Ref]) -> None:
    """Refuse inputs that cannot be cut into blocks together.

    Raises
    ------
    ConfigurationError
        Naming the two that do not fit.
    """
    first = inputs[0]
    for ref in inputs[1:]:
        if len(ref.shape) != len(first.shape):
            raise ConfigurationError(
                f"{ref.name} has {len(ref.shape)} axes and {first.name} has {len(first.shape)}: inputs need the same "
                "axes"
            )
        if ref.voxel_size == first.voxel_size and ref.offset == first.offset and ref.shape != first.shape:
            raise ConfigurationError(
                f"{ref.name} has shape {ref.shape} and {first.name} has {first.shape}: inputs need the same shape"
            )


def block_bytes(inputs: Sequence[Ref], outputs: Sequence[Ref], block: Ints, halo: Halo) -> int:
    """Return what one block holds at its peak by arithmetic: inputs and results, both with the halo, in bytes.

    What the function itself needs beside them is not known before it ran.
    """
    grown = [b + low + high for b, (low, high) in zip(block, halo, strict=True)]
    return sum(
        prod(-(-g // v) for g, v in zip(grown, ref.voxel_size, strict=True)) * ref.dtype.itemsize
        for ref in (*inputs, *outputs)
    )
