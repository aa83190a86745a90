"""What a run will take, before it begins: measured blocks, put through the scheduler on a clock that jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.arguments import at_least
from workspan.report import forecast as values
from workspan.run.foresight import Forecaster, Planned
from workspan.run.past import learn_task
from workspan.run.pipeline import Pipeline
from workspan.run.sizes import sizes_to_plan
from workspan.schedule.spec import check_resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workspan.report.forecast import Forecast
    from workspan.run.task import Task
    from workspan.schedule.spec import PipelineSpec

__all__ = ["Planned", "forecast", "forecast_planned"]


def forecast(
    pipeline: Any,
    workers: int | None = None,
    *,
    fresh: bool = False,
    resources: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Forecast:
    """Say what the next run of *pipeline* will take, from what its blocks took in earlier runs.

    The blocks that are left, each with a time drawn from those that were measured at its size, go through the scheduler
    with a clock that jumps from event to event: conflicts, edges, resources and the start of workers count as in a run.
    That is repeated, which gives the interval. Runs with more than 50,000 blocks are answered by levels.

    Parameters
    ----------
    pipeline
        A :class:`Pipeline`, a :class:`Task`, or a list of tasks.
    workers
        Workers of each task; ``None``: the ``max_workers`` of each.
    fresh
        As if nothing were done yet; else the blocks that are done in the tracking store are skipped, as the run would.
    resources
        As for :func:`workspan.run_blockwise`.
    seed
        Of the draws: the same history gives the same forecast.

    Returns
    -------
    Forecast
        ``print`` shows it. Where a task was never measured its times are ``None`` and its basis says so.

    Raises
    ------
    ConfigurationError
        The pipeline could not be run so.
    LayoutMismatchError
        A tracking store was made for another layout: the run would be refused too. With ``fresh=True`` it is not looked
        at for done blocks.
    """
    pipeline = Pipeline.of(pipeline)
    spec = pipeline.spec()
    tasks = {task.task_id: task for task in pipeline.tasks}
    planned = [_planned(tasks[entry.task_id], fresh) for entry in spec.tasks]
    return forecast_planned(spec, planned, workers, resources=resources, seed=seed)


def _planned(task: Task, fresh: bool) -> Planned:
    return Planned(
        past=learn_task(task),
        sizes=sizes_to_plan(task.layout, task.n_ref, task.task_id),
        flags=_flags(task, fresh),
    )


def _flags(task: Task, fresh: bool) -> NDArray[Any] | None:
    """Return which blocks the next run would skip."""
    import numpy as np

    from workspan.errors import LayoutMismatchError
    from workspan.schedule.resume import DONE, MASKED
    from workspan.store.hash import layout_hash
    from workspan.store.reader import StoreReader

    mask = task.skip_mask
    flags = None if mask is None else np.where(mask, np.uint8(MASKED), np.uint8(0))
    path = task.resolved_tracking_path()
    if fresh or path is None or not (path / "zarr.json").is_file():
        return flags
    reader = StoreReader(path)
    if reader.layout_hash not in (None, layout_hash(task.layout)):
        raise LayoutMismatchError(
            f"{path} was made for another layout of task {task.task_id!r}: use the arguments that made it, reset() it, "
            "or pass fresh=True"
        )
    done = reader.done_of(task.layout)
    if flags is None:
        return np.where(done != 0, np.uint8(DONE), np.uint8(0))
    return np.where(done != 0, np.uint8(DONE), flags)


def forecast_planned(
    spec: PipelineSpec,
    planned: Sequence[Planned],
    workers: int | None = None,
    *,
    resources: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Forecast:
    """Forecast a run of tasks of which everything is gathered; see :func:`forecast`."""
    if workers is not None:
        workers = at_least("workers", workers, 1)
    check_resources(spec, resources)
    return Forecaster(spec, planned, resources, seed).all(workers)


def _show(forecast: Forecast) -> str:
    from workspan.views.forecast import render_forecast

    return render_forecast(forecast)


values.show = _show
