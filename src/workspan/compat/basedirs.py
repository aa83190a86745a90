"""Where tasks keep their tracking stores by default."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from workspan import config

if TYPE_CHECKING:
    import os
    from pathlib import Path


def set_tracking_basedir(path: str | os.PathLike[str] | None) -> None:
    """Keep the tracking store of each task in ``path/<task_id>``; ``None``: no tracking by default."""
    config.configure(tracking_basedir=path)


def get_tracking_basedir() -> Path | None:
    """Return the folder below which tasks keep their tracking stores, or ``None``."""
    path: Path | None = config.get("tracking_basedir")
    return path


def set_done_marker_basedir(path: str | os.PathLike[str] | None) -> None:
    """Do what :func:`set_tracking_basedir` does; daisy's spelling."""
    warnings.warn("use set_tracking_basedir", DeprecationWarning, stacklevel=2)
    set_tracking_basedir(path)


def get_done_marker_basedir() -> Path | None:
    """Do what :func:`get_tracking_basedir` does; daisy's spelling."""
    warnings.warn("use get_tracking_basedir", DeprecationWarning, stacklevel=2)
    return get_tracking_basedir()
