"""Runs of datasets in the folder of their tracking: the records of the tasks are what the page shows of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.errors import WorkspanError
from workspan.report.page import Extra, Stage
from workspan.report.places import RUNS
from workspan.store.reader import NO_WORKER, BlockTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workspan.dataset.record import TaskRecord
    from workspan.report.task import TaskReport

__all__ = ["dataset_extra"]

MOST_WITH_PROCESS = 10_000
"""Tasks up to which each is shown with its process; more are drawn in bins, where a number of a process says little."""


def dataset_extra(report: TaskReport, store: Path) -> Extra | None:
    """Return what a dataset's tracking folder knows of an operator; ``None``: *store* is not in such a folder.

    Parameters
    ----------
    report
        Of the operator's tasks.
    store
        Its tracking store, in the dataset's tracking folder.
    """
    plan = _plan(store.parent)
    records = store.parent / "blocks" / store.name
    if plan is None or not records.is_dir():
        return None
    from workspan.dataset.results import read_record

    found: dict[int, TaskRecord] = {}
    for index in range(report.blocks.total):
        try:
            record = read_record(records, index)
        except (OSError, ValueError):  # damaged: as if it had not finished
            continue
        if record is not None:
            found[index] = record
    return Extra(
        source=_Records(report, found),
        runs=store / RUNS,
        stages=_stages(list(found.values()), plan, store.name),
        block_noun="task",
        worker_noun="process",
    )


def _plan(folder: Path) -> dict[str, Any] | None:
    try:
        plan = json.loads((folder / "plan.json").read_text())
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) and plan.get("workspan") == "dataset" else None


def _stages(records: list[TaskRecord], plan: dict[str, Any], slug: str) -> tuple[Stage, ...]:
    """Sum up what went out of each operator of the plan that this one is made of."""
    count = max((len(record.flows) for record in records), default=0)
    if not count:
        return ()
    names = _names(plan, slug)
    if len(names) != count:
        names = [f"operator {number}" for number in range(count)]
    out = []
    for number, name in enumerate(names):
        flows = [record.flows[number] for record in records if number < len(record.flows)]
        rows, size = sum(flow.rows for flow in flows), sum(flow.bytes for flow in flows)
        written = [record.written for record in records if record.written is not None]
        if number == count - 1 and written:
            rows, size = sum(part[1] for part in written), sum(part[2] or 0 for part in written)
        out.append(
            Stage(
                name=name,
                blocks=sum(flow.blocks for flow in flows),
                rows=rows,
                bytes=size,
                calls=sum(flow.calls for flow in flows),
                errored_rows=sum(flow.errored_rows for flow in flows),
            )
        )
    return tuple(out)


def _names(plan: dict[str, Any], slug: str) -> list[str]:
    """Return the operators that are fused in the one whose folder is *slug*, which begins with its number."""
    operators = plan.get("operators")
    number = slug.partition("-")[0]
    if not isinstance(operators, list) or not number.isdecimal():
        return []
    parts: Any = next((op for n, op in enumerate(operators, 1) if n == int(number)), "")
    return parts.split("->") if isinstance(parts, str) else []


class _Records:
    """The tasks of an operator as the blocks of a grid of one axis."""

    def __init__(self, report: TaskReport, records: dict[int, TaskRecord]) -> None:
        self.cell_counts: tuple[int, ...] = (max(1, report.blocks.total),)
        self.attributes: dict[str, Any] = {}
        self._records = records
        self._failures = np.zeros(self.cell_counts, np.uint32)
        self._done = np.zeros(self.cell_counts, np.bool_)
        try:
            store = report.open_store()
            if store.cell_counts == self.cell_counts:
                self._failures, self._done = store.failures, store.done == 1
        except WorkspanError:  # then the records alone tell
            pass
        self._done[list(records)] = True

    def empty_table(self) -> BlockTable:
        """Return the columns without tasks."""
        return self._table(np.empty(0, np.int64))

    def tables(self) -> Iterator[BlockTable]:
        """Yield all tasks at once."""
        yield self._table(np.flatnonzero(self._done | (self._failures > 0)))

    def _table(self, rows: Any) -> BlockTable:
        found = [self._records.get(int(row)) for row in rows]
        executed = np.array([record is not None for record in found], np.bool_)
        nodes = {record.node for record in found if record is not None}
        named = len(nodes) == 1 and len(found) <= MOST_WITH_PROCESS

        def column(figure: Any) -> Any:
            return np.array([0.0 if record is None else figure(record) for record in found], np.float64)

        values: dict[str, Any] = {
            "wall_seconds": column(lambda r: r.wall_seconds),
            "cpu_seconds": column(lambda r: sum(block.cpu_seconds for block in r.blocks)),
            "round_trip": np.full(len(found), np.nan),  # what the driver saw of single tasks is not recorded
            "rows": column(lambda r: sum(block.rows for block in r.blocks)),
            "bytes": column(lambda r: sum(block.bytes for block in r.blocks)),
            "sent_at": column(lambda r: r.started_at),
            "returned_at": column(lambda r: r.started_at + r.wall_seconds),
            "worker_id": column(lambda r: r.pid if named else NO_WORKER).astype(np.uint32),
        }
        return BlockTable(
            cells=rows.reshape(-1, 1).astype(np.int64),
            done=self._done[rows],
            failures=self._failures[rows],
            executed=executed,
            values=values,
            steps={},
            unmeasured=frozenset(),
        )
