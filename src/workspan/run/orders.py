"""What whoever starts a program asks for, over what its code says: ``workspan run script.py --workers 8``.

Only one set of orders is in force at a time, for the whole process; without any, code runs as it says.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from workspan.engines.base import Engine
    from workspan.run.pipeline import Pipeline
    from workspan.run.session import Session
    from workspan.run.task import Task

__all__ = ["Orders", "given", "in_force"]


@dataclass(slots=True)
class Orders:
    """What is asked for; ``None``: as the code says."""

    engine: str | Engine | None = None
    max_workers: int | None = None
    """Most workers of each task."""
    tracking: Path | None = None
    """Folder in which every task has its tracking store, under its id; for a dataset that is written, the folder."""
    shows_progress: bool = True
    """False: nobody sees a progress display."""
    shows_summary: bool = True
    command: str | None = None
    """What to type to run the same again."""
    before: Callable[[Any], None] = lambda what: None
    """Called with the pipeline, or the plan of a dataset, that is about to run; what it raises keeps it from that."""
    sessions: list[Session] = field(default_factory=list)
    """Every run of tasks under these orders, as it began."""
    datasets: int = 0
    """Number of executions of datasets under these orders."""

    def change(self, pipeline: Pipeline, progress: Any) -> Any:
        """Let the tasks of *pipeline* be run as was asked; return the progress display to use.

        The operators of a dataset are left alone: they were made to order.
        """
        tasks = [task for task in pipeline.tasks if takes_orders(task)]
        for task in tasks:
            if self.max_workers is not None:
                task.max_workers = self.max_workers
            if self.tracking is not None:
                task.tracking_path = self.tracking / task.task_id
        if tasks or not pipeline.tasks:
            self.before(pipeline)
        return progress if self.shows_progress else None

    def note(self, session: Session) -> None:
        """Keep in mind that *session* is about to run."""
        if all(map(takes_orders, session.tasks)):
            self.sessions.append(session)


def takes_orders(task: Task) -> bool:
    """Whether *task* is the user's own and no operator of a dataset."""
    return getattr(task, "takes_orders", True)


_orders: Orders | None = None


def in_force() -> Orders | None:
    """Return the orders that hold now, or ``None``."""
    return _orders


@contextmanager
def given(orders: Orders) -> Iterator[Orders]:
    """Put *orders* in force; those before come back."""
    global _orders
    before, _orders = _orders, orders
    try:
        yield orders
    finally:
        _orders = before
