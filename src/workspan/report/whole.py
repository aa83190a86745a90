"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name to write to; what was written there becomes *path* at the end, or is deleted if something is raised.

    Where *path* is a link, the file that it leads to is replaced. A device or a pipe is written to as it is: putting a
    file in the place of ``/dev/null`` would break the machine.

    Raises
    ------
    OSError
        The file cannot be put in place.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    partial = target.with_name(f".{target.name}.partial")
    try:
        yield partial
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
