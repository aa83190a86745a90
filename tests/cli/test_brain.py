"""Finding the brain without importing what ships it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from workspan.cli.demo.brain import find_brain
from workspan.cli.demo.nifti import Volume, read_nifti
from workspan.errors import MissingExtraError


def test_three_volumes_of_one_shape(t1: Volume) -> None:
    """The brain and both maps are there, uint8, 197 x 233 x 189 voxels of 1 mm, in one place."""
    files = find_brain()
    for volume in (t1, read_nifti(files.grey), read_nifti(files.white)):
        assert volume.data.shape == (189, 233, 197)
        assert volume.data.dtype == np.uint8
        assert volume.spacing == (1.0, 1.0, 1.0)
        assert volume.origin == (-72.0, -134.0, -98.0)


def test_the_brain_is_skull_stripped(t1: Volume) -> None:
    """Outside the brain T1 is 0, which is what the classes rely on."""
    assert np.count_nonzero(t1.data) == 1_886_539


def test_nothing_is_imported() -> None:
    """Looking for the files imports neither nilearn nor anything else that is heavy."""
    code = (
        "import sys; from workspan.cli.demo.brain import find_brain; find_brain()\n"
        "print([n for n in ('nilearn', 'sklearn', 'pandas', 'nibabel', 'numpy', 'scipy', 'skimage', 'PIL', 'zarr')"
        " if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the text names what is missing, the extra, and the command that brings it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        find_brain()
    assert str(caught.value) == (
        "workspan demo needs nilearn, scipy, scikit-image, pillow, which the extra 'demo' brings: "
        "pip install 'workspan[demo]'"
    )


def test_blocked_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that somebody blocked in sys.modules counts as missing."""
    monkeypatch.setitem(sys.modules, "nilearn", None)
    with pytest.raises(MissingExtraError, match="needs nilearn, which"):
        find_brain()


def test_package_without_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A nilearn that no longer ships the brain is named with the file that was looked for."""
    origin = str(tmp_path / "nilearn" / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin=origin))
    with pytest.raises(MissingExtraError, match=r"nilearn in '.*nilearn' does not ship 'mni_icbm152_t1_tal"):
        find_brain()
