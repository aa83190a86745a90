"""The tracking stores of a run: opened together or not at all, and asked what was done before."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from workspan.run.record import RunRecord
    from workspan.run.task import Task
    from workspan.schedule.ledger import Ledger
    from workspan.store.tracking import TrackingStore

logger = logging.getLogger(__name__)


def open_stores(tasks: Sequence[Task], block_tracking: bool, stack: ExitStack) -> list[TrackingStore | None]:
    """Open the tracking store of each task that has one; *stack* closes them.

    Raises
    ------
    ConfigurationError
        A task wants measurements kept and has no folder for them, or two tasks share one.
    TrackingError, StoreLockedError
        A store cannot be used.
    """
    paths = [task.resolved_tracking_path() if block_tracking else None for task in tasks]
    for task, path in zip(tasks, paths, strict=True):
        if not task.resource_tracking or path is not None:
            continue
        if not block_tracking:
            logger.warning("task %r: block_tracking=False, so resource_tracking is off for this run", task.task_id)
            continue
        raise ConfigurationError(
            f"task {task.task_id!r} has resource_tracking=True but no folder to keep the measurements: pass "
            "tracking_path=, or call set_tracking_basedir() before the run"
        )
    for at, path in enumerate(paths):
        if path is not None and path in paths[:at]:
            other = tasks[paths.index(path)].task_id
            raise ConfigurationError(
                f"tasks {other!r} and {tasks[at].task_id!r} share the tracking folder {path}: give each its own"
            )
    if not any(paths):
        return [None] * len(paths)
    from workspan.store.tracking import TrackingStore

    return [
        None
        if path is None
        else stack.enter_context(
            TrackingStore.open(
                path,
                task.layout,
                resource_tracking=task.resource_tracking,
                task_id=task.task_id,
            )
        )
        for task, path in zip(tasks, paths, strict=True)
    ]


def skip_known_blocks(
    ledger: Ledger, tasks: Sequence[Task], stores: Sequence[TrackingStore | None], record: RunRecord
) -> None:
    """Complete blocks that were done before or are masked."""
    if not any(store is not None for store in stores) and all(task.skip_mask is None for task in tasks):
        return
    import numpy as np

    from workspan.schedule.resume import DONE, MASKED, skip_known

    flags: list[Any] = []
    for task, store in zip(tasks, stores, strict=True):
        done = None if store is None else store.done_blocks()
        mask = task.skip_mask
        if mask is not None:
            masked = np.where(mask, np.uint8(MASKED), np.uint8(0))
            flags.append(masked if done is None else np.where(done != 0, np.uint8(DONE), masked))
        else:
            flags.append(done)
    skip_known(ledger, flags, record.blocks_skipped)
