"""Where timings are kept. Loads nothing else: the begin of every run that is shown asks for it."""

from __future__ import annotations

from pathlib import Path

from workspan import config

__all__ = ["timing_directory"]


def timing_directory() -> Path | None:
    """Return the folder of timing files; ``None`` if there is no home to put it in."""
    directory: Path | None = config.get("timing.directory")
    if directory is None:
        home: Path | None = config.get("user_data_home")
        if home is None:
            import platformdirs

            home = Path(platformdirs.user_data_dir("workspan", appauthor=False))
        directory = home / "workflows_data" / "timing"
        if not directory.is_absolute():
            return None
    return directory
