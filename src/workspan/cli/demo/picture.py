"""Three slices of the result as a picture: the brain, and beside it the classes in colour."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from workspan.cli.demo.ome import COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from PIL.ImageFont import FreeTypeFont, ImageFont

SCALE = 2
"""Pixels per voxel."""
MARGIN = 16
TITLE = 24
LEGEND = 240
INK = (230, 230, 230)
PAPER = (24, 24, 24)


def draw(
    path: Path, t1: NDArray[np.uint8], classes: NDArray[np.uint8], origin: Sequence[float], legend: Sequence[str]
) -> None:
    """Write a PNG with an axial, a coronal and a sagittal slice.

    Parameters
    ----------
    path
        The picture; it is written beside and moved, so that a half-written one is never seen.
    t1, classes
        Volumes ``(n_z, n_y, n_x)``; classes holds labels 0..3.
    origin
        Position of voxel (0, 0, 0), (z, y, x) in mm, for voxels of 1 mm.
    legend
        A line for each label, in the order of the labels; background first.
    """
    import numpy as np
    from PIL import Image, ImageDraw

    colours = np.array(COLOURS, dtype=np.uint8)
    n_z, n_y, n_x = t1.shape
    # Sagittal is cut beside the midline, where there is more to see than the gap between the hemispheres.
    cuts = (("axial z", 0, n_z // 2), ("coronal y", 1, n_y // 2), ("sagittal x", 2, n_x * 2 // 5))

    rows = []
    for name, axis, at in cuts:
        left = np.flip(np.take(t1, at, axis=axis), axis=0)  # up is superior, or anterior
        right = np.flip(np.take(classes, at, axis=axis), axis=0)
        pair = (Image.fromarray(np.ascontiguousarray(left)).convert("RGB"), Image.fromarray(colours[right]))
        large = [p.resize((p.width * SCALE, p.height * SCALE), Image.Resampling.NEAREST) for p in pair]
        rows.append((f"{name} = {origin[axis] + at:+.0f} mm", large))

    column = max(picture.width for _, pictures in rows for picture in pictures)
    height = MARGIN + sum(TITLE + pictures[0].height + MARGIN for _, pictures in rows)
    canvas = Image.new("RGB", (4 * MARGIN + 2 * column + LEGEND, height), PAPER)
    pen, font = ImageDraw.Draw(canvas), _font()
    y = MARGIN
    for name, pictures in rows:
        pen.text((MARGIN, y), f"T1, {name}", fill=INK, font=font)
        pen.text((2 * MARGIN + column, y), "classes", fill=INK, font=font)
        for i, picture in enumerate(pictures):
            canvas.paste(picture, (MARGIN + i * (column + MARGIN), y + TITLE))
        y += TITLE + pictures[0].height + MARGIN

    x, y = 3 * MARGIN + 2 * column, MARGIN + TITLE
    for colour, line in zip(COLOURS[1:], legend[1:], strict=True):
        pen.rectangle((x, y, x + 18, y + 18), fill=colour)
        pen.text((x + 28, y), line, fill=INK, font=font)
        y += 30

    part = path.with_name(f".{path.name}.part")
    try:
        canvas.save(part, format="PNG")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _font() -> FreeTypeFont | ImageFont:
    """Pillow's own font; an old build without FreeType has it in one size only."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size=16)
    except (TypeError, ImportError, OSError):
        return ImageFont.load_default()
