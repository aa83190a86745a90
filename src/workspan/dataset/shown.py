"""How notebooks show datasets and their executions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.dataset.text import seconds, whole
from workspan.errors import WorkspanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.dataset.dataset import Dataset
    from workspan.dataset.plan import Plan
    from workspan.dataset.run import DatasetRun

__all__ = ["dataset_html", "run_html"]


def dataset_html(dataset: Dataset, plan: Callable[[], Plan]) -> str:
    """Return what would run, an operator a row, and what the last execution cost, folded.

    Parameters
    ----------
    dataset
        Nothing of it is run.
    plan
        Makes its plan.
    """
    from workspan.views.html.fragment import folded
    from workspan.views.html.notebook import rows_fragment

    name = repr(dataset)
    try:
        made = plan()
        source = made.explain().splitlines()[0]
        rows = [(op.number, op.name, f"not fused: {op.apart}" if op.apart else "") for op in made.operators]
        after = [folded("Steps", made.explain()), folded("Last execution", dataset.stats())]
    except WorkspanError as error:  # told where somebody looks at it, and raised when it is run
        return rows_fragment(name, [("cannot be planned", error)])
    return rows_fragment(name, rows, headers=("operator", "does", ""), note=source, after=after)


def run_html(run: DatasetRun) -> str:
    """Return what an execution cost, an operator a row, and all the rest folded."""
    from workspan.views.html.fragment import folded
    from workspan.views.html.notebook import rows_fragment

    summary = run.stats_summary()
    rows = [
        (
            op.number,
            op.name,
            f"{op.tasks:,}" + (f" ({op.skipped:,} done before)" if op.skipped else ""),
            "-" if op.rows_in is None else whole(op.rows_in),
            whole(op.rows_out),
            "-" if op.wall is None else seconds(op.wall.mean),
            "-" if op.wall is None else seconds(op.wall.sum),
        )
        for op in summary.operators
    ]
    note = f"{whole(summary.rows)} rows in {seconds(summary.driver_seconds)}"
    if summary.rows_per_second is not None:
        note += f", {whole(summary.rows_per_second)} rows/s"
    headers = ("operator", "does", "tasks", "rows in", "rows out", "a block", "all blocks")
    after = [folded("All figures", run.stats(verbose=True))]
    return rows_fragment("Dataset run", rows, headers=headers, note=note, after=after)
