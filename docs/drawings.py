"""Draw the figures of the pages from the library's own arithmetic, as SVG: a figure cannot differ from the code.

``python docs/drawings.py FOLDER`` writes them; the documentation build does so by itself.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from workspan.grid import Layout

INK, SOFT, FAINT = "#334155", "#94a3b8", "#f1f5f9"
LEVELS = ("#0f766e", "#b45309", "#6d28d9", "#be123c")
READ, WRITE = "#bae6fd", "#0369a1"


class Drawing:
    """A canvas with a title for people who do not see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = (width, height)
        self.title = title
        self.parts: list[str] = []

    def box(self, x, y, w, h, *, fill="none", stroke=INK, dash=False, opacity=1.0, wide=1.0):
        """Add a rectangle."""
        style = ' stroke-dasharray="5 4"' if dash else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" fill-opacity="{opacity:g}" '
            f'stroke="{stroke}" stroke-width="{wide:g}"{style}/>'
        )

    def text(self, x, y, text, *, anchor="start", fill=INK, size=13, bold=False):
        """Add one line of text."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size}"{weight}>'
            f"{escape(text)}</text>"
        )

    def line(self, x1, y1, x2, y2, *, stroke=SOFT):
        """Add a thin line."""
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}"/>')

    def svg(self) -> str:
        """Return the picture."""
        w, h = self.size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
            f'font-family="system-ui, sans-serif"><title>{escape(self.title)}</title>'
            f'<rect width="{w}" height="{h}" fill="white"/>{"".join(self.parts)}</svg>\n'
        )


def rois() -> Drawing:
    """One block of a plane: what it writes, what it reads, and the two regions of the task."""
    layout = Layout((0, 0), (34, 50), (0, 0), (14, 14), (2, 2), (10, 10), "valid", False)
    scale, left, top = 9, 20, 20
    out = Drawing(760, 350, "Total ROI, total write ROI, and the read and write ROI of one block")

    def box(bounds, **kwargs):
        (y0, x0), (y1, x1) = bounds
        out.box(left + x0 * scale, top + y0 * scale, (x1 - x0) * scale, (y1 - y0) * scale, **kwargs)

    box(((0, 0), layout.total_shape), fill=FAINT, wide=2)
    for index in range(layout.num_blocks):
        box(layout.write_box(index), stroke=SOFT)
    box(layout.covered, dash=True, wide=2)
    middle = layout.index((1, 1))
    box(layout.read_box(middle), fill=READ, opacity=0.8, stroke=WRITE)
    box(layout.write_box(middle), fill=WRITE, stroke=WRITE)
    x = left + layout.total_shape[1] * scale + 30
    for n, (fill, stroke, dash, text) in enumerate(
        [
            (FAINT, INK, False, "total_roi: all that is read"),
            ("none", INK, True, "total write ROI: all that is written"),
            (WRITE, WRITE, False, "write_roi of one block"),
            (READ, WRITE, False, "read_roi: the block and its halo"),
        ]
    ):
        y = top + 40 + n * 40
        out.box(x, y, 28, 20, fill=fill, stroke=stroke, dash=dash, wide=2)
        out.text(x + 40, y + 15, text)
    return out


def fits() -> Drawing:
    """The three fits of the same line."""
    out = Drawing(760, 330, "The last block under fit valid, overhang and shrink")
    scale, left = 14.5, 110
    for row, (fit, note) in enumerate(
        [
            ("valid", "the partial block is dropped"),
            ("overhang", "it keeps its size and leaves the region"),
            ("shrink", "its ROIs are clipped"),
        ]
    ):
        layout = Layout((0,), (37,), (0,), (14,), (2,), (10,), fit, False)
        y = 40 + row * 95
        out.text(left - 14, y + 30, fit, anchor="end", bold=True)
        out.box(left, y, 37 * scale, 46, fill=FAINT, wide=2)
        low, high = (side[0] for side in layout.covered)
        out.box(left + low * scale, y, (high - low) * scale, 46, dash=True, wide=2)
        for index in range(layout.num_blocks):
            (r0,), (r1,) = layout.read_box(index)
            (w0,), (w1,) = layout.write_box(index)
            lane = y + 6 + (index % 2) * 18
            out.box(left + r0 * scale, lane, (r1 - r0) * scale, 16, fill=READ, stroke=WRITE, opacity=0.7)
            out.box(left + w0 * scale, lane, (w1 - w0) * scale, 16, fill=WRITE, stroke=WRITE)
            out.text(left + (w0 + w1) / 2 * scale, lane + 12, f"{w0}-{w1}", anchor="middle", fill="white", size=11)
        out.text(left, y + 64, f"{layout.num_blocks} blocks; {note}", fill=SOFT, size=12)
    return out


def levels() -> Drawing:
    """The levels of a plane with a conflict, with spatial ids."""
    layout = Layout((0, 0), (6, 8), (0, 0), (3, 3), (1, 1), (1, 1))
    out = Drawing(760, 304, "Blocks coloured by level; blocks of one level never conflict")
    cell, left, top = 66, 20, 20
    for index in range(layout.num_blocks):
        row, column = layout.coords(index)
        level = layout.level_of((row, column))
        x, y = left + column * cell, top + row * cell
        out.box(x, y, cell, cell, fill=LEVELS[level], opacity=0.9, stroke="white", wide=2)
        out.text(x + cell / 2, y + cell / 2 + 5, str(layout.block_id(index)), anchor="middle", fill="white", bold=True)
    read = layout.read_box(layout.index((1, 2)))
    (y0, x0), (y1, x1) = read
    out.box(left + (x0 - 1) * cell, top + (y0 - 1) * cell, (x1 - x0) * cell, (y1 - y0) * cell, dash=True, wide=3)
    x = left + 6 * cell + 40
    for level, colour in enumerate(LEVELS):
        y = top + 20 + level * 44
        out.box(x, y, 28, 20, fill=colour, stroke=colour)
        order = ("runs first", "then", "then", "last")[level]
        out.text(x + 40, y + 15, f"level {level}: {layout.level_size(level)} blocks, {order}")
    out.text(x, top + 20 + 4 * 44 + 14, "dashed: what block 17 reads", fill=SOFT)
    return out


def learning() -> Drawing:
    """An estimator before and after learning."""
    import estimator_drawing  # it draws with the class above

    return estimator_drawing.learning()


FIGURES = {"rois": rois, "fits": fits, "levels": levels, "learning": learning}


def write_all(folder: Path) -> None:
    """Write every figure into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
