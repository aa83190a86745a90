"""Arrays by reference: what travels to a worker is where an array is, and the worker opens it.

A Zarr array travels as its store and path, a memory map as its file, a small NumPy array by value.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from workspan.arrays.image import image_of
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run.writes import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.arrays.image import Image
    from workspan.grid.layout import Box, Ints

MOST_VALUE_BYTES = 1 << 28
"""Largest NumPy array that travels to workers by value."""


@dataclass(frozen=True, kw_only=True)
class Ref(ABC):
    """Where an array is, and what it is."""

    library: ClassVar[str | None] = None
    """What :meth:`open` imports."""

    name: str
    """For messages: the argument and what was given."""
    shape: Ints
    dtype: np.dtype[Any]
    chunks: Ints | None = None
    """Shape of a chunk, in voxels; ``None``: no chunks."""
    shards: Ints | None = None
    """Shape of a shard, in voxels; ``None``: no shards."""
    voxel_size: Ints = ()
    """Extent of a voxel, in the units of the blocks."""
    offset: Ints = ()
    """Where voxel 0 begins, in the units of the blocks."""
    image: Image | None = None
    """Its place in space, if OME metadata tell it."""
    is_private: bool = False
    """No other process sees what is written to it."""
    is_writable: bool = True
    follows_block: bool = False
    """Its chunks are to be made after the blocks."""

    @property
    def identity(self) -> str | None:
        """Equal for two references to one array on disk."""
        return None

    @property
    def whole(self) -> Box:
        """What the array covers, in the units of the blocks."""
        ends = (o + n * v for o, n, v in zip(self.offset, self.shape, self.voxel_size, strict=True))
        return self.offset, tuple(ends)

    def voxels(self, box: Box) -> Box:
        """Return *box*, in the units of the blocks, in voxels of this array."""
        begin, end = (
            tuple((at - o) // v for at, o, v in zip(side, self.offset, self.voxel_size, strict=True)) for side in box
        )
        return begin, end

    def target(self) -> Target:
        """Return what is written in one piece."""
        return Target(self.name, self.identity, self.shards or self.chunks, self.offset, self.voxel_size)

    @abstractmethod
    def open(self, *, write: bool = False) -> Any:
        """Open the array in this process."""


@dataclass(frozen=True, kw_only=True)
class ZarrRef(Ref):
    """An array in a Zarr store."""

    library = "zarr"

    root: Any
    """Path or URL of the store, or the store itself."""
    path: str = ""
    """Path of the array in the store."""

    @property
    def identity(self) -> str | None:
        """Where it is."""
        if isinstance(self.root, str):
            if "://" in self.root:
                return f"{self.root.rstrip('/')}/{self.path}".rstrip("/")
            return os.path.realpath(os.path.join(self.root, self.path))
        store = f"{type(self.root).__name__}-{id(self.root)}" if self.is_private else str(self.root)
        return f"{store}/{self.path}"

    def open(self, *, write: bool = False) -> Any:
        """Open the array; what is written is stored chunk by chunk, also chunks of fill values (KF-20)."""
        import zarr

        array = zarr.open_array(self.root, path=self.path, mode="r+" if write else "r")
        # Not by open_array(config=...), which has no effect on an array that exists.
        return array.with_config({"write_empty_chunks": True}) if write else array


@dataclass(frozen=True, kw_only=True)
class ValueRef(Ref):
    """A NumPy array, by value."""

    data: NDArray[Any] = field(repr=False, compare=False)

    def open(self, *, write: bool = False) -> Any:
        """Return the array itself."""
        return self.data


@dataclass(frozen=True, kw_only=True)
class FileRef(Ref):
    """A memory map of a file, or a part of one."""

    file: str
    begin: int
    """Of the first voxel, in bytes."""
    strides: Ints
    """In bytes."""

    @property
    def identity(self) -> str | None:
        """Where it is."""
        return f"{os.path.realpath(self.file)}@{self.begin}"

    def open(self, *, write: bool = False) -> Any:
        """Map the file."""
        raw = np.memmap(self.file, dtype=np.uint8, mode="r+" if write else "r")
        return np.ndarray(self.shape, self.dtype, buffer=raw, offset=self.begin, strides=self.strides)


def ref_of(array: Any, name: str) -> Ref:
    """Return a reference to what a person names as an array; voxel units.

    Parameters
    ----------
    array
        Path or URL of a Zarr array, of an OME-Zarr image (its first level) or of a ``.npy`` file; a Zarr array or
        image group; a NumPy array; a memory map.
    name
        The argument, for messages.

    Raises
    ------
    ConfigurationError
        There is no array.
    UsageTypeError
        It is none of these.
    """
    if isinstance(array, (str, os.PathLike)):
        where = os.fspath(array)
        name = f"{name}={where!r}"
        found: Any = _npy(where, name) if where.endswith(".npy") else _zarr_node(where, name)
    else:
        found = array
    if isinstance(found, np.ndarray):
        ref = _numpy_ref(found, name)
    elif type(found).__module__.startswith("zarr."):
        ref = _zarr_ref(found, name)
    else:
        raise UsageTypeError(
            f"{name} is a {type(array).__name__}: pass a path, a Zarr array, a NumPy array, or the task that makes it"
        )
    rank = len(ref.shape)
    if not rank:
        raise ConfigurationError(f"{name} has no axes: blocks need at least one")
    return replace(ref, voxel_size=(1,) * rank, offset=(0,) * rank)


def in_world_units(ref: Ref, first: Ref | None) -> Ref:
    """Return *ref* placed as its OME metadata say; without, it lies where *first* does, if it has its shape.

    Raises
    ------
    ConfigurationError
        It has no place, or one that is not made of whole numbers.
    """
    image = ref.image
    if image is None:
        if first is None or first.shape != ref.shape:
            raise ConfigurationError(
                f"{ref.name} has no OME metadata that tell its place in space: units='world' needs them, or use "
                "units='voxels'"
            )
        return replace(ref, voxel_size=first.voxel_size, offset=first.offset)
    voxel_size, offset = image.whole(ref.name)
    return replace(ref, voxel_size=voxel_size, offset=offset)


def _npy(where: str, name: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(where, mmap_mode="r")
        return found
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name} cannot be read: {error}") from error


def _zarr_node(where: str, name: str) -> Any:
    import zarr

    try:
        return zarr.open(where, mode="r")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{name} does not exist: name an array that is there, or pass the task that makes it"
        ) from None
    except Exception as error:  # every store has errors of its own
        raise ConfigurationError(f"{name} cannot be opened: {type(error).__name__}: {error}") from error


def _zarr_ref(node: Any, name: str) -> ZarrRef:
    import zarr

    image = None
    if isinstance(node, zarr.Group):
        image = image_of(node.attrs.asdict(), None, None)
        if image is None:
            members = sorted(key for key, _ in node.arrays())
            told = f", one of {', '.join(map(repr, members[:9]))}" if members else ""
            raise ConfigurationError(f"{name} is a group and no OME-Zarr image: name the array in it{told}")
        node = node[image.path]
    else:
        image = _image_around(node)
    root, path = _root_of(node)
    return ZarrRef(
        name=name if "=" in name else f"{name}={str(node.store_path).removeprefix('file://')!r}",
        shape=tuple(node.shape),
        dtype=np.dtype(node.dtype),
        chunks=tuple(node.chunks),
        shards=None if node.shards is None else tuple(node.shards),
        image=image,
        is_private=_is_private(node.store),
        is_writable=_can_write(node),
        root=root,
        path=path,
    )


def _root_of(node: Any) -> tuple[Any, str]:
    from zarr.storage import LocalStore

    if isinstance(node.store, LocalStore):
        # One root and no path: a group above it may be of another hierarchy.
        return os.path.join(os.path.abspath(node.store.root), node.path).rstrip(os.sep), ""
    return node.store, node.path


def _image_around(array: Any) -> Image | None:
    """Return the place of an array that is a level of an image in a group above it."""
    import zarr

    root, path = _root_of(array)
    parts = root.split(os.sep) if isinstance(root, str) else path.split("/")
    for up in (1, 2):
        if len(parts) < up or not parts[-up]:
            return None
        level = "/".join(parts[-up:])
        try:
            if isinstance(root, str):
                group = zarr.open_group(os.sep.join(parts[:-up]) or os.sep, mode="r")
            else:
                group = zarr.open_group(root, path="/".join(parts[:-up]), mode="r")
        except Exception:  # there is none
            continue
        image = image_of(group.attrs.asdict(), array.ndim, level)
        if image is not None:
            return image
    return None


def _is_private(store: Any) -> bool:
    from zarr.storage import GpuMemoryStore, MemoryStore, WrapperStore

    while isinstance(store, WrapperStore):
        store = store._store
    if isinstance(store, (MemoryStore, GpuMemoryStore)):
        return True
    protocol = getattr(getattr(store, "fs", None), "protocol", ())
    return "memory" in ((protocol,) if isinstance(protocol, str) else protocol)


def _can_write(node: Any) -> bool:
    from zarr.storage import LocalStore

    if isinstance(node.store, LocalStore) and not os.access(os.path.join(node.store.root, node.path), os.W_OK):
        return False
    return not node.store.read_only


def _numpy_ref(array: NDArray[Any], name: str) -> Ref:
    common: dict[str, Any] = {"shape": array.shape, "dtype": array.dtype}
    name = name if "=" in name else f"{name} (NumPy, {array.shape})"
    root: Any = array
    while isinstance(getattr(root, "base", None), np.ndarray):
        root = root.base
    if isinstance(root, np.memmap) and root.filename is not None:
        begin = array.__array_interface__["data"][0] - root.__array_interface__["data"][0] + root.offset
        return FileRef(
            name=name,
            **common,
            is_writable=root.mode in ("r+", "w+"),
            file=os.path.abspath(root.filename),
            begin=begin,
            strides=array.strides,
        )
    return ValueRef(name=name, **common, is_private=True, is_writable=array.flags.writeable, data=array)


def value_bytes(ref: Ref) -> int:
    """Return the bytes that travel by value with a reference."""
    return prod(ref.shape) * ref.dtype.itemsize if isinstance(ref, ValueRef) else 0
