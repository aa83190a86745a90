"""What the scheduler knows of a task and of a pipeline: frozen values, no functions, no paths."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from workspan.errors import ConfigurationError
from workspan.grid.neighbours import Relation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workspan.grid.layout import Layout


@dataclass(frozen=True)
class TaskSpec:
    """The rules of one task."""

    task_id: str
    layout: Layout
    max_workers: int = 1
    """Most workers alive at the same time."""
    max_retries: int = 2
    """A block is attempted at most ``max_retries + 1`` times."""
    retries_errors: bool = True
    """``False``: a block whose function raised is not tried again, only one that was lost or took too long."""
    timeout: float = inf
    """Deadline of one attempt, in seconds."""
    max_worker_restarts: int = 10
    """Starts allowed beyond the first *max_workers*."""
    requires: Mapping[str, int] = field(default_factory=dict)
    """What one worker takes of the run's resources."""
    has_function: bool = True
    """Workers can be started for it; without, it waits for clients that connect by themselves."""


@dataclass(frozen=True)
class PipelineSpec:
    """Tasks in display order and the edges ``(upstream, downstream)`` between them, as task numbers."""

    tasks: tuple[TaskSpec, ...]
    edges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def ordered(cls, tasks: Iterable[TaskSpec], edges: Iterable[tuple[str, str]]) -> PipelineSpec:
        """Put *tasks* in topological order, the alphabetically smallest available id first.

        Raises
        ------
        ConfigurationError
            Two tasks share an id, an edge names an unknown task, or the edges form a cycle.
        """
        by_id: dict[str, TaskSpec] = {}
        for task in tasks:
            if task.task_id in by_id:
                raise ConfigurationError(f"two tasks have the id {task.task_id!r}: ids must be unique in a pipeline")
            by_id[task.task_id] = task
        pairs = sorted(set(edges))
        for pair in pairs:
            for name in pair:
                if name not in by_id:
                    raise ConfigurationError(f"edge {pair!r} names task {name!r}, which is not in the pipeline")
        order = _topological(by_id, pairs)
        number = {name: n for n, name in enumerate(order)}
        return cls(tuple(by_id[name] for name in order), tuple((number[u], number[d]) for u, d in pairs))

    def downstream(self, task: int) -> list[int]:
        """Tasks that wait for blocks of *task*, ascending."""
        return [d for u, d in self.edges if u == task]

    def upstream(self, task: int) -> list[int]:
        """Tasks for whose blocks *task* waits, ascending."""
        return [u for u, d in self.edges if d == task]

    def relation(self, upstream: int, downstream: int) -> Relation:
        """Return the block-by-block relation of an edge."""
        source, reader = self.tasks[upstream], self.tasks[downstream]
        return Relation(source.layout, reader.layout, source_id=source.task_id, reader_id=reader.task_id)


def check_resources(pipeline: PipelineSpec, resources: Mapping[str, int] | None) -> None:
    """Refuse a task of which not even one worker could be started.

    Raises
    ------
    ConfigurationError
        A single worker requires more than *resources* has.
    """
    for spec in pipeline.tasks if resources is not None else ():
        assert resources is not None
        for name, amount in spec.requires.items():
            if amount > resources.get(name, 0):
                raise ConfigurationError(
                    f"a worker of task {spec.task_id!r} requires {amount} of {name!r}, but the run has "
                    f"{resources.get(name, 0)}: raise resources[{name!r}] or lower requires"
                )


def _topological(names: Iterable[str], edges: Sequence[tuple[str, str]]) -> list[str]:
    """Kahn's algorithm over a heap of names."""
    waiting = {name: 0 for name in names}
    for _, down in edges:
        waiting[down] += 1
    heap = [name for name, n in waiting.items() if n == 0]
    heapq.heapify(heap)
    order = []
    while heap:
        name = heapq.heappop(heap)
        order.append(name)
        for up, down in edges:
            if up == name:
                waiting[down] -= 1
                if waiting[down] == 0:
                    heapq.heappush(heap, down)
    if len(order) < len(waiting):
        stuck = ", ".join(sorted(map(repr, set(waiting) - set(order))))
        raise ConfigurationError(f"the dependencies of tasks {stuck} form a cycle: remove one of their edges")
    return order
