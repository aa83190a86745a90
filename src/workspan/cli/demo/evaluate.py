"""What the demo says at its end: volumes and overlaps from the arrays, the share of start-up from the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.cli.demo.folder import Result
from workspan.cli.demo.nifti import read_nifti
from workspan.cli.demo.pipeline import CLASSES
from workspan.errors import ConfigurationError, InvalidMetadataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from workspan.cli.demo.brain import BrainFiles
    from workspan.cli.demo.folder import Folder, Marker
    from workspan.report.task import RunReport

GREY, WHITE = 2, 3
SHIPPED_MIDDLE = 127
"""A voxel of a shipped map (probability 0..255) belongs to its class above this value."""


def evaluate(folder: Folder, marker: Marker, files: BrainFiles, *, written_ns: int) -> Result:
    """Compute volumes and overlaps from the arrays of a finished run, and draw the picture.

    Parameters
    ----------
    folder, marker
        The finished demo.
    files
        Where the shipped maps are.
    written_ns
        Youngest modification time of the arrays, epoch nanoseconds; kept with the result.

    Raises
    ------
    InvalidMetadataError
        The counts of the blocks do not add up to the volume.
    ConfigurationError
        A shipped map has another shape.
    """
    from workspan.cli.demo import ome, picture

    brain = folder.brain(marker)
    labels = brain.read("labels/classes/0")
    counts = brain.read("tables/voxels").reshape(-1, len(CLASSES)).sum(axis=0)
    if counts.sum() != labels.size:
        raise InvalidMetadataError(
            f"the blocks in {str(folder.store)!r} count {counts.sum():,} voxels, and the volume has {labels.size:,}: "
            "use --fresh to delete this demo and start anew"
        )
    shipped, overlap = [], []
    for label, file in ((GREY, files.grey), (WHITE, files.white)):
        volume = read_nifti(file)
        if volume.data.shape != labels.shape:
            raise ConfigurationError(f"{str(file)!r} has shape {volume.data.shape}, and the brain has {labels.shape}")
        inside = volume.data > SHIPPED_MIDDLE
        shipped.append(int(inside.sum()) * ome.voxel_ml(volume.spacing))
        overlap.append(dice(labels == label, inside))

    low, high = brain.read("tables/thresholds").tolist()
    c0, c1, c2, c3 = (int(n) * ome.voxel_ml(marker.spacing) for n in counts)
    result = Result((low, high), (c0, c1, c2, c3), (shipped[0], shipped[1]), (overlap[0], overlap[1]), written_ns)
    legend = [f"{name}  {ml:,.1f} ml" for name, ml in zip(CLASSES, result.millilitres, strict=True)]
    picture.draw(folder.picture, brain.read("t1"), labels, marker.origin, legend)
    return result


def dice(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """Overlap of two regions: twice their intersection over the sum of their sizes; NaN if both are empty."""
    size = int(a.sum()) + int(b.sum())
    return 2 * int((a & b).sum()) / size if size else float("nan")


@dataclass(frozen=True, slots=True)
class Cost:
    """Where the time of a run's workers went, in seconds, summed over workers."""

    total: float
    """From the start of each worker to its end; without workers the wall time of all blocks."""
    startup: float
    """Starting interpreters."""
    imports: float
    """Loading libraries, inside the first block of each worker."""

    @property
    def share(self) -> float:
        """Start-up and imports over everything, 0..1."""
        return (self.startup + self.imports) / self.total


def cost_of(report: RunReport) -> Cost | None:
    """Sum up what the workers of a run cost; ``None`` if nothing was measured, as in a run that skipped everything."""
    startup = imports = total = 0.0
    for task in report.tasks.values():
        workers = task.workers
        if workers.count:
            parts = (workers.startup, workers.idle, workers.compute, workers.final_wait, workers.teardown)
            startup += workers.startup.total
            total += sum(part.total for part in parts)
        elif task.blocks.wall is not None:
            total += task.blocks.wall.total
        if "import" in task.steps:
            imports += task.steps["import"].self_seconds.total
    return Cost(total, startup, imports) if total > 0 else None


def as_lines(result: Result) -> list[str]:
    """Write *result* for people."""
    low, high = result.thresholds
    lines = [f"  thresholds    CSF <= {low:g} < grey matter <= {high:g} < white matter  (multi-Otsu)"]
    lines.append(f"  {CLASSES[1]:<12}  {result.millilitres[1]:>8,.1f} ml")
    for label, shipped, overlap in zip((GREY, WHITE), result.shipped_millilitres, result.dice, strict=True):
        lines.append(
            f"  {CLASSES[label]:<12}  {result.millilitres[label]:>8,.1f} ml   "
            f"shipped map {shipped:>8,.1f} ml   Dice overlap {overlap:.3f}"
        )
    return lines


def shown(path: Path) -> str:
    """Return *path* as a person would type it: relative where it lies below the working directory."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
