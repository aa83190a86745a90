"""Tasks and what waits for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run.task import Task
from workspan.schedule.spec import PipelineSpec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from workspan.report.forecast import Forecast

Edge = tuple[Task, Task]


class Pipeline:
    """Tasks joined by edges; a block waits only for the blocks that it reads, not for whole tasks.

    Parameters
    ----------
    tasks
        The tasks, without repetition.
    edges
        Pairs ``(upstream_task, downstream_task)`` of them.

    Raises
    ------
    ConfigurationError
        A task is listed twice, or an edge has an end that is not listed.
    """

    def __init__(self, tasks: Iterable[Task] | None = None, edges: Iterable[Edge] | None = None) -> None:
        self._tasks: list[Task] = []
        for task in tasks or ():
            if not isinstance(task, Task):
                raise UsageTypeError(f"{task!r} is not a Task: a pipeline is made of tasks")
            if any(task is other for other in self._tasks):
                raise ConfigurationError(f"task {task.task_id!r} is listed twice")
            self._tasks.append(task)
        self._edges: list[Edge] = []
        for up, down in edges or ():
            for end in (up, down):
                if not any(end is task for task in self._tasks):
                    raise ConfigurationError(f"an edge names {end!r}, which is not among the tasks of the pipeline")
            if not any(up is u and down is d for u, d in self._edges):
                self._edges.append((up, down))

    @classmethod
    def from_task(cls, task: Task) -> Pipeline:
        """Return the pipeline of *task* and everything reachable through ``upstream_tasks``."""
        return cls.from_tasks([task])

    @classmethod
    def from_tasks(cls, tasks: Iterable[Task]) -> Pipeline:
        """Return the pipeline of *tasks* and everything reachable through ``upstream_tasks``."""
        found: list[Task] = []
        edges: list[Edge] = []
        todo = list(tasks)
        while todo:
            task = todo.pop(0)
            if any(task is other for other in found):
                continue
            found.append(task)
            edges += [(up, task) for up in task.upstream_tasks]
            todo += task.upstream_tasks
        return cls(found, edges)

    @classmethod
    def of(cls, what: Any) -> Pipeline:
        """Return *what* (a pipeline, a task, or a list of tasks) as a pipeline.

        Raises
        ------
        UsageTypeError
            It is something else.
        """
        if isinstance(what, Pipeline):
            return what
        if isinstance(what, Task):
            return cls.from_task(what)
        if isinstance(what, (list, tuple)) and all(isinstance(task, Task) for task in what):
            return cls.from_tasks(what)
        raise UsageTypeError(f"{what!r} cannot be run: pass a Task, a Pipeline or a list of tasks")

    @property
    def tasks(self) -> list[Task]:
        """The tasks, as given."""
        return list(self._tasks)

    @property
    def edges(self) -> list[Edge]:
        """The pairs ``(upstream, downstream)``."""
        return list(self._edges)

    @property
    def sources(self) -> list[Task]:
        """Tasks that wait for none."""
        return [task for task in self._tasks if not any(task is down for _, down in self._edges)]

    @property
    def outputs(self) -> list[Task]:
        """Tasks for which none waits."""
        return [task for task in self._tasks if not any(task is up for up, _ in self._edges)]

    def spec(self) -> PipelineSpec:
        """Rules of the pipeline, tasks in display order.

        Raises
        ------
        ConfigurationError
            Two tasks share an id, or the edges form a cycle.
        """
        return PipelineSpec.ordered(
            [task.spec() for task in self._tasks], [(up.task_id, down.task_id) for up, down in self._edges]
        )

    def forecast(self, workers: int | None = None, *, fresh: bool = False, **options: Any) -> Forecast:
        """Say what the next run of the pipeline will take: see :func:`workspan.forecast`."""
        from workspan.run.forecasts import forecast

        return forecast(self, workers, fresh=fresh, **options)

    def reset(self) -> list[Path]:
        """Delete the tracking stores of all tasks; return the deleted folders."""
        return [path for task in self._tasks if (path := task.reset()) is not None]

    def run_blockwise(self, **kwargs: Any) -> Any:
        """Run the pipeline: :func:`workspan.run_blockwise`."""
        from workspan.run.runner import run_blockwise

        return run_blockwise(self, **kwargs)

    run = run_blockwise

    def __add__(self, other: Any) -> Pipeline:
        """Run *other* after this: an edge from each output of this to each source of *other*."""
        right = _operand(other)
        return NotImplemented if right is None else self._merged(right, join=True)

    def __or__(self, other: Any) -> Pipeline:
        """Run *other* beside this: no new edges."""
        right = _operand(other)
        return NotImplemented if right is None else self._merged(right, join=False)

    def _merged(self, other: Pipeline, *, join: bool) -> Pipeline:
        tasks = self._tasks + [task for task in other._tasks if not any(task is mine for mine in self._tasks)]
        edges = self._edges + other._edges
        if join:
            # A task that other waits for already may stand on both sides.
            edges = edges + [(up, down) for up in self.outputs for down in other.sources if up is not down]
        return Pipeline(tasks, edges)

    def _repr_html_(self) -> str:
        from workspan.run.shown import pipeline_html

        return pipeline_html(self)

    def __repr__(self) -> str:
        edges = f"{len(self._edges)} edge{'' if len(self._edges) == 1 else 's'}"
        return f"Pipeline({[task.task_id for task in self._tasks]!r}, {edges})"


def _operand(value: Any) -> Pipeline | None:
    if isinstance(value, Pipeline):
        return value
    return Pipeline.from_task(value) if isinstance(value, Task) else None
