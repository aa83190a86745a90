"""How a fault of the disk is told: one place that turns an ``OSError`` into an error of ours."""

from __future__ import annotations

import errno
import shlex
from typing import TYPE_CHECKING

from workspan.errors import InvalidMetadataError, StoreFullError, TrackingError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["damaged", "disk_error", "is_full"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_full(error: OSError) -> bool:
    """Whether *error* says that no more can be written: disk, quota or file size limit."""
    return error.errno in _FULL


def disk_error(error: OSError, path: Path | str, doing: str) -> StoreFullError | TrackingError:
    """Return what to raise for *error*, met at *path* while *doing* (a gerund)."""
    reason = error.strerror or str(error)
    if is_full(error):
        return StoreFullError(
            error.errno,
            f"{path}: {reason} while {doing}; what was recorded before is intact, so make room and run again",
        )
    return TrackingError(f"{path}: {reason} while {doing}; mend this or use another tracking_path")


def damaged(store: Path, part: str, problem: str) -> InvalidMetadataError:
    """Return the refusal of a *store* because *part* (an array, or a file of the group) has a *problem*."""
    return InvalidMetadataError(
        f"tracking store {store}: {part}: {problem}; nothing was changed. Repair it with `workspan repair "
        f"{shlex.quote(str(store))}`, or delete it to start fresh: rm -rf {shlex.quote(str(store))}"
    )
