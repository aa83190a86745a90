"""The identity of a layout on disk: daisy's hash, so that stores open in both."""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import TYPE_CHECKING

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from workspan.grid.layout import Layout

__all__ = ["layout_hash"]


def layout_hash(layout: Layout) -> str:
    """Return the lower-case hex SHA-256 of what decides which block a cell of the tracking grid means.

    Task id, conflict flag, masks and workers do not enter.

    Raises
    ------
    ConfigurationError
        A coordinate does not fit in 64 bits, so that daisy's hash is not defined.
    """
    digest = sha256(b"daisy-tracking:v1\n")
    boxes = (
        (b"total", layout.total_begin, layout.total_shape),
        (b"read", layout.read_begin, layout.read_shape),
        (b"write", layout.write_begin, layout.write_shape),
    )
    for label, offset, shape in boxes:
        digest.update(label + b":offset=" + _packed(offset) + b";shape=" + _packed(shape) + b";")
    digest.update(b"fit=" + layout.fit.capitalize().encode())
    return digest.hexdigest()


def _packed(values: tuple[int, ...]) -> bytes:
    try:
        return b"".join(struct.pack("<q", value) + b"," for value in values)
    except struct.error:
        raise ConfigurationError(
            f"a region of the task has the coordinates {values}, which do not fit in 64 bits: tracking needs smaller "
            "world units"
        ) from None
