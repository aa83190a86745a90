"""What an execution of a dataset will take: its operators are tasks with a history, their sizes are rows."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspan.dataset.plan import bundled
from workspan.errors import ConfigurationError
from workspan.grid import Layout
from workspan.run.functions import function_fingerprint
from workspan.schedule.spec import PipelineSpec, TaskSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from workspan.dataset.plan import Operator, Plan
    from workspan.dataset.sources import Piece
    from workspan.grid.block import Block
    from workspan.report.forecast import Forecast

__all__ = ["BundleRows", "forecast_plan", "operator_mark", "rows_of_bundles", "task_id_of"]

ROWS, TASKS = "rows", "tasks"
"""What the sizes of an operator's tasks are: the rows that each reads, or nothing is known and all are alike."""


def task_id_of(operator: Operator) -> str:
    """Return the id of an operator's task."""
    text = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in operator.name)
    return f"{operator.number} {text}"[:150]


def operator_mark(operator: Operator) -> str:
    """Return what tells an operator from one of the same name with other functions."""
    users = [user.function for op in operator.ops if (user := getattr(op, "user", None)) is not None]
    digest = blake2b("\n".join(function_fingerprint(user) or "" for user in users).encode(), digest_size=8)
    return f"{operator.name.replace(' ', '_')} {digest.hexdigest()}"


def rows_of_bundles(bundles: Iterable[tuple[Piece, ...]]) -> tuple[int, ...] | None:
    """Return how many rows each task reads; ``None`` if that is not known before they are read."""
    found = []
    for bundle in bundles:
        rows = [piece.rows for piece in bundle]
        if any(number is None for number in rows):
            return None
        found.append(sum(number or 0 for number in rows))
    return tuple(found)


class BundleRows:
    """The ``n_ref`` of an operator's task: rows that its source reads for each of its blocks."""

    def __init__(self, rows: tuple[int, ...] | None) -> None:
        self.rows = rows
        self.mark = TASKS if rows is None else ROWS

    def __call__(self, block: Block) -> float:
        """Return the size of a block."""
        return 1.0 if self.rows is None else max(1.0, float(self.rows[int(block.write_roi.begin[0])]))


def forecast_plan(
    plan: Plan,
    most_workers: int,
    workers: int | None,
    *,
    tracking: str | os.PathLike[str] | None,
    resources: Mapping[str, int] | None,
) -> Forecast:
    """Forecast an execution of *plan* from those before it.

    Raises
    ------
    ConfigurationError
        What its last operators do depends on what the first ones leave.
    """
    from workspan.run.forecasts import Planned, forecast_planned
    from workspan.run.past import learn
    from workspan.run.sizes import all_sizes

    if len(plan.segments) > 1:
        raise ConfigurationError(
            f"there is a limit in the middle of {plan.operators[-1].name}: how many rows reach what is behind it is "
            "not known before it has run; forecast the part before the limit"
        )
    bundles = bundled(plan.source.pieces, plan.operators[0].batch_rows)
    count, size = len(bundles), BundleRows(rows_of_bundles(bundles))
    layout = Layout((0,), (count,), (0,), (1,), (0,), (1,), "valid", False)
    rules: list[TaskSpec] = []
    planned: list[Planned] = []
    for operator in plan.operators:
        most = most_workers if operator.concurrency is None else operator.concurrency
        name = task_id_of(operator)
        rules.append(TaskSpec(name, layout, max_workers=max(1, min(most, count)), requires=operator.requires))
        store = None if tracking is None else Path(tracking).absolute() / operator.slug
        past = learn(name, layout, store, function=operator_mark(operator), n_ref=size, n_ref_mark=size.mark)
        planned.append(Planned(past, all_sizes(layout, size, name), _done(store, layout)))
    edges: Sequence[tuple[int, int]] = [(number, number + 1) for number in range(len(rules) - 1)]
    made = forecast_planned(PipelineSpec(tuple(rules), tuple(edges)), planned, workers, resources=resources)
    limit = plan.segments[0].limit
    if limit is not None:
        made = replace(made, notes=(*made.notes, f"it ends once it has {limit:,} rows: this is the most that it takes"))
    return made


def _done(store: Path | None, layout: Layout) -> Any:
    """Return the flags of tasks that an execution with this store would skip."""
    if store is None or not (store / "zarr.json").is_file():
        return None
    from workspan.schedule.resume import DONE
    from workspan.store.reader import StoreReader

    return (StoreReader(store).done_of(layout) != 0).astype("u1") * DONE
