"""The tracking stores of a run: opened together or not at all, and asked what was done before."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from workspan.errors import ConfigurationError
from workspan.run.functions import function_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from workspan.run.task import Task
    from workspan.schedule.events import SkipReason
    from workspan.schedule.ledger import Ledger
    from workspan.store.tracking import TrackingStore

logger = logging.getLogger(__name__)


class Stores:
    """The tracking stores of one run.

    Parameters
    ----------
    tasks
        The tasks, in display order.
    block_tracking
        False: no task has a store in this run.

    Raises
    ------
    ConfigurationError
        A task wants measurements kept and has no folder for them, or two tasks share one.
    """

    def __init__(self, tasks: Sequence[Task], block_tracking: bool) -> None:
        self._tasks = list(tasks)
        self._paths = [task.resolved_tracking_path() if block_tracking else None for task in tasks]
        for task, path in zip(tasks, self._paths, strict=True):
            if not task.resource_tracking or path is not None:
                continue
            if not block_tracking:
                logger.warning("task %r: block_tracking=False, so resource_tracking is off for this run", task.task_id)
                continue
            raise ConfigurationError(
                f"task {task.task_id!r} has resource_tracking=True but no folder to keep the measurements: pass "
                "tracking_path=, or call set_tracking_basedir() before the run"
            )
        real = [None if path is None else path.resolve() for path in self._paths]
        for at, path in enumerate(real):
            if path is not None and path in real[:at]:
                other = tasks[real.index(path)].task_id
                raise ConfigurationError(
                    f"tasks {other!r} and {tasks[at].task_id!r} share the tracking folder {path}: give each its own"
                )
        self._open = ExitStack()
        self._new: list[Path] = []

    def open(self) -> list[TrackingStore | None]:
        """Open or make the store of each task that has one; ``None`` for the others.

        Raises
        ------
        TrackingError, StoreLockedError, StoreFullError
            A store cannot be used. :meth:`close` then removes those that were newly made.
        """
        if not any(self._paths):
            return [None] * len(self._paths)
        from workspan.store.tracking import TrackingStore

        out: list[TrackingStore | None] = []
        for task, path in zip(self._tasks, self._paths, strict=True):
            if path is None:
                out.append(None)
                continue
            existed = path.exists()
            function = task.process_function
            store = TrackingStore.open(
                path,
                task.layout,
                resource_tracking=task.resource_tracking,
                task_id=task.task_id,
                function=None if function is None else function_fingerprint(function),
            )
            out.append(self._open.enter_context(store))
            if not existed:
                self._new.append(store.path)
        return out

    def prepare_outputs(self, stores: Sequence[TrackingStore | None]) -> None:
        """Let the tasks check what they write into, all of them, and then make it.

        Raises
        ------
        ConfigurationError
            An output is not what the store remembers, or is in the way.
        """
        for task, store in zip(self._tasks, stores, strict=True):
            done = None if store is None else store.done_blocks()
            task.check_outputs(done, fresh=store is None or store.path in self._new)
        for task in self._tasks:
            task.make_outputs()

    def close(self, *, keep_new: bool) -> None:
        """Flush and close the stores; without *keep_new*, remove those that :meth:`open` made: nothing ran in them."""
        try:
            self._open.close()
        finally:
            new, self._new = self._new, []
            for path in new if not keep_new else ():
                shutil.rmtree(path, ignore_errors=True)


def skip_known_blocks(
    ledger: Ledger,
    tasks: Sequence[Task],
    stores: Sequence[TrackingStore | None],
    on_skip: Callable[[int, Any, SkipReason], None],
) -> None:
    """Complete blocks that were done before or are masked; *on_skip* is told (task, indices, reason)."""
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
    skip_known(ledger, flags, on_skip)
