"""Whether a store holds blocks of a run that left no report, since it was killed or still goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.errors import WorkspanError
from workspan.report.history import LayoutFields

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.grid.layout import Layout
    from workspan.report.task import RunReport, TaskReport
    from workspan.store.reader import StoreReader

__all__ = ["RUN_ID", "is_unrecorded", "stored_layout", "unrecorded"]

RUN_ID = "unrecorded"
"""Begin of the id of a run that wrote none."""


def is_unrecorded(report: TaskReport | RunReport) -> bool:
    """Whether a report was put together from a store."""
    return report.run_id.startswith(RUN_ID)


def stored_layout(reader: StoreReader, *, read_write_conflict: bool) -> Layout | None:
    """Return the layout that a store was made for; ``None``: it does not say."""
    ours = reader.attributes.get("workspan")
    try:
        total, read, write = (ours[name] for name in ("total_roi", "read_roi", "write_roi"))  # type: ignore[index]
        return LayoutFields.from_json(
            {
                **{f"total_{to}": total[key] for to, key in (("begin", "offset"), ("shape", "shape"))},
                **{f"read_{to}": read[key] for to, key in (("begin", "offset"), ("shape", "shape"))},
                **{f"write_{to}": write[key] for to, key in (("begin", "offset"), ("shape", "shape"))},
                "fit": ours["fit"],  # type: ignore[index]
                "read_write_conflict": read_write_conflict,
            }
        ).layout()
    except (WorkspanError, KeyError, TypeError):
        return None


def unrecorded(path: Path, *, after: float) -> TaskReport | None:
    """Do as :func:`rebuild` for the store at *path*, if there is one; its blocks are read only if some may be new."""
    try:
        if not any(file.stat().st_mtime > after for file in (path / "returned_at").glob("c/**/*")):
            return None
        from workspan.report.rebuilt import rebuild
        from workspan.store.reader import StoreReader

        return rebuild(StoreReader(path), after=after)
    except (OSError, WorkspanError):  # what is wrong with a store is told by those who need its blocks
        return None
