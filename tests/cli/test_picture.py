"""The picture of three slices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from workspan.cli.demo.ome import COLOURS
from workspan.cli.demo.picture import LEGEND, MARGIN, SCALE, TITLE, draw

pytestmark = pytest.mark.once

SHAPE = (20, 30, 26)
LINES = ["background", "CSF  1.0 ml", "grey matter  2.0 ml", "white matter  3.0 ml"]


@pytest.fixture
def picture(tmp_path: Path) -> np.ndarray:
    """The picture of a volume whose upper half along z is white matter."""
    t1 = np.full(SHAPE, 100, np.uint8)
    classes = np.ones(SHAPE, np.uint8)
    classes[10:] = 3
    draw(tmp_path / "a.png", t1, classes, (-10.0, -15.0, -13.0), LINES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        return np.asarray(image)


def test_size(picture: np.ndarray) -> None:
    """Three rows (axial, coronal, sagittal) of two slices, and a legend beside them."""
    n_z, n_y, _n_x = SHAPE
    assert picture.shape == (
        4 * MARGIN + 3 * TITLE + SCALE * (n_y + n_z + n_z),
        4 * MARGIN + 2 * SCALE * n_y + LEGEND,
        3,
    )


def test_brain_left_classes_right(picture: np.ndarray) -> None:
    """The same slice is grey on the left and in the colours of its classes on the right."""
    _n_z, n_y, n_x = SHAPE
    top = MARGIN + TITLE
    left = picture[top : top + SCALE * n_y, MARGIN : MARGIN + SCALE * n_x]
    right = picture[top : top + SCALE * n_y, 2 * MARGIN + SCALE * n_y :][:, : SCALE * n_x]
    assert (left == 100).all()
    assert (right == COLOURS[3]).all()


def test_up_is_superior(picture: np.ndarray) -> None:
    """In the coronal slice the upper half is the one with the larger z."""
    n_z, n_y, n_x = SHAPE
    top = 2 * (MARGIN + TITLE) + SCALE * n_y
    right = picture[top : top + SCALE * n_z, 2 * MARGIN + SCALE * n_y :][:, : SCALE * n_x]
    assert (right[: SCALE * 10] == COLOURS[3]).all()
    assert (right[SCALE * 10 :] == COLOURS[1]).all()


def test_legend_shows_each_colour(picture: np.ndarray) -> None:
    """Every class but the background has a patch in the legend."""
    legend = picture[:, -LEGEND - MARGIN :].reshape(-1, 3)
    for colour in COLOURS[1:]:
        assert (legend == colour).all(axis=1).sum() >= 18 * 18


def test_a_failure_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that could not be saved leaves no part and does not damage the one before."""
    (tmp_path / "a.png").write_text("old")

    def fail(self: Image.Image, path: Path, format: str) -> None:
        path.write_text("half")
        raise OSError("full")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(OSError, match="full"):
        draw(tmp_path / "a.png", np.ones(SHAPE, np.uint8), np.ones(SHAPE, np.uint8), (0, 0, 0), LINES)
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {"a.png": "old"}
