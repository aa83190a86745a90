"""Just enough NIfTI-1 to read a volume: gzip, a 348-byte header, NumPy.

The demo reads three files of a known kind; everything that would need more than a header and a reshape (rotated axes,
intensity scaling, pairs of files) is refused by name instead of being read wrongly.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

HEADER_BYTES = 348

_DTYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}
"""NIfTI data type code -> NumPy type, without byte order."""

_MILLIMETRES = {0: 1.0, 1: 1000.0, 2: 1.0, 3: 0.001}
"""Unit code of space -> mm; 0 is "unknown", which is millimetres in practice."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume in C order: axes z, y, x."""

    data: NDArray[Any]
    """Read-only array ``(n_z, n_y, n_x)``."""
    spacing: tuple[float, float, float]
    """Distance of voxel centres per axis (z, y, x), in mm."""
    origin: tuple[float, float, float]
    """Position of the centre of voxel (0, 0, 0), per axis (z, y, x), in mm."""


def read_nifti(path: Path) -> Volume:
    """Read a NIfTI-1 file (``.nii`` or ``.nii.gz``) of one 3-d volume.

    NIfTI stores x fastest; the transpose of that Fortran-ordered array is C-ordered z, y, x, without a copy.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    ConfigurationError
        The file is missing, damaged, or of a kind that is not read here.
    """
    raw = _content(path)
    if len(raw) < HEADER_BYTES:
        raise _bad(path, f"it has {len(raw)} bytes, fewer than the {HEADER_BYTES} of a header")
    order = next((o for o in "<>" if struct.unpack_from(f"{o}i", raw)[0] == HEADER_BYTES), None)
    if order is None:
        size = struct.unpack_from("<i", raw)[0]
        raise _bad(path, f"its header gives its own size as {size}, not {HEADER_BYTES}")
    magic = raw[344:348]
    if magic != b"n+1\0":
        raise _bad(path, f"its magic bytes are {magic!r}, not b'n+1\\x00' (header and data in one file)")

    shape = _shape(path, struct.unpack_from(f"{order}8h", raw, 40))
    dtype = _dtype(path, order, *struct.unpack_from(f"{order}2h", raw, 70))
    spacing, origin = _placement(path, order, raw)
    slope, intercept = struct.unpack_from(f"{order}2f", raw, 112)
    if slope not in (0.0, 1.0) or (slope == 1.0 and intercept != 0.0):
        raise _bad(path, f"its values are scaled (slope {slope}, intercept {intercept}), which is not read here")

    import numpy as np

    offset = struct.unpack_from(f"{order}f", raw, 108)[0]
    if not (offset >= HEADER_BYTES and offset.is_integer()):
        raise _bad(path, f"its data begin at byte {offset}, inside the header or nowhere")
    kind = np.dtype(dtype)
    need = int(offset) + math.prod(shape) * kind.itemsize
    if len(raw) < need:
        raise _bad(path, f"it has {len(raw)} bytes where the header promises {need}: it is cut short")
    data = np.frombuffer(raw, kind, count=math.prod(shape), offset=int(offset)).reshape(shape[::-1])
    return Volume(data, spacing, origin)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _bad(path, f"it does not decompress ({error})") from error
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def _shape(path: Path, dim: tuple[int, ...]) -> tuple[int, ...]:
    """Extents (x, y, z); further axes of extent 1 are dropped."""
    rank, extents = dim[0], dim[1:]
    if not 3 <= rank <= 7 or any(n != 1 for n in extents[3:rank]):
        told = extents[:rank] if 0 <= rank <= 7 else dim
        raise _bad(path, f"it has {rank} axes of extents {told}, and one 3-d volume is needed")
    if min(extents[:3]) < 1:
        raise _bad(path, f"its extents are {extents[:3]}")
    return extents[:3]


def _dtype(path: Path, order: str, code: int, bits: int) -> str:
    name = _DTYPES.get(code)
    if name is None:
        raise _bad(path, f"its data type code is {code}; read are {', '.join(map(str, _DTYPES))}")
    if bits != 8 * int(name[1]):
        raise _bad(path, f"it says {bits} bits a voxel, and its data type (code {code}) has {8 * int(name[1])}")
    return f"{order}{name}"


def _placement(path: Path, order: str, raw: bytes) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Spacing and origin, (z, y, x) in mm; axes that are rotated, mirrored or exchanged are refused."""
    unit = _MILLIMETRES.get(raw[123] & 7)
    if unit is None:
        raise _bad(path, f"its unit of space has code {raw[123] & 7}")
    pixdim = struct.unpack_from(f"{order}8f", raw, 76)
    qform, sform = struct.unpack_from(f"{order}2h", raw, 252)
    if sform > 0:
        rows = struct.unpack_from(f"{order}12f", raw, 280)
        spacing = (rows[0], rows[5], rows[10])
        straight = not any(rows[i] for i in (1, 2, 4, 6, 8, 9))
        origin = (rows[3], rows[7], rows[11])
    elif qform > 0:
        quaternion = struct.unpack_from(f"{order}3f", raw, 256)
        spacing = pixdim[1:4]
        straight = not any(quaternion) and pixdim[0] >= 0
        origin = struct.unpack_from(f"{order}3f", raw, 268)
    else:
        spacing, straight, origin = pixdim[1:4], True, (0.0, 0.0, 0.0)
    if not straight:
        raise _bad(path, "its axes are rotated against x, y, z, which is not read here")
    if not all(math.isfinite(s) and s > 0 for s in spacing) or not all(map(math.isfinite, origin)):
        raise _bad(path, f"its voxels have size {spacing} and origin {origin}")
    x, y, z = (float(s) * unit for s in spacing)
    x0, y0, z0 = (float(o) * unit for o in origin)
    return (z, y, x), (z0, y0, x0)


def _bad(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{str(path)!r} is not a volume that can be read: {why}")
