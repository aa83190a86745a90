"""The brain of the demo: where its files are, without importing the package that ships them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEEDED = {"nilearn": "nilearn", "scipy": "scipy", "skimage": "scikit-image", "PIL": "pillow"}
"""Name to import -> name to install, of what the demo needs beyond the base installation."""

_FILE = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"


@dataclass(frozen=True, slots=True)
class BrainFiles:
    """Three volumes of one shape: the MNI ICBM152 template (symmetric, 2009a, 1 mm)."""

    t1: Path
    """T1-weighted intensity, skull-stripped (0 outside the brain)."""
    grey: Path
    """Probability of grey matter, 0..255."""
    white: Path
    """Probability of white matter, 0..255."""


def find_brain() -> BrainFiles:
    """Find the volumes that the package nilearn ships.

    Only top-level names are looked up: looking up a dotted name would import its parent.

    Raises
    ------
    MissingExtraError
        A package of the extra ``demo`` is not installed, or nilearn no longer ships the files.
    """
    folder = package_folder(_NEEDED, "nilearn") / "datasets" / "data"
    files = BrainFiles(*(folder / _FILE.format(kind) for kind in ("t1", "gm", "wm")))
    for file in (files.t1, files.grey, files.white):
        if not file.is_file():
            raise MissingExtraError(
                f"nilearn in {str(folder.parent.parent)!r} does not ship {file.name!r}: "
                "pip install --upgrade 'workspan[demo]'"
            )
    return files


def package_folder(needed: Mapping[str, str], name: str) -> Path:
    """Return the folder of the package *name*.

    Parameters
    ----------
    needed
        Name to import -> name to install, of all that has to be there.
    name
        One of the former.

    Raises
    ------
    MissingExtraError
        One of them is not installed.
    """
    missing = [package for name, package in needed.items() if _spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"workspan demo needs {', '.join(missing)}, which the extra 'demo' brings: pip install 'workspan[demo]'"
        )
    origin = _spec(name)
    assert origin is not None  # just looked up
    return Path(origin).parent


def _spec(name: str) -> str | None:
    """File of the package *name*, or ``None`` if there is no such package."""
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # sys.modules[name] is None or has no spec: somebody blocked it
        return None
    return None if found is None else found.origin
