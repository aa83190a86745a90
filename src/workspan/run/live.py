"""What viewers in other terminals are told of a run.

The run's own thread tells of the begin and the end, if somebody looks. What lies between is read, a few times a second
and only while somebody looks, from what the scheduler keeps anyway, by the thread that sends it: blocks cost nothing
more for it. What is read while it changes may be a block apart from what was read a moment before.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.schedule.state import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from workspan.engines.base import Engine
    from workspan.grid import Layout
    from workspan.run.session import Session
    from workspan.schedule.slots import Slot

logger = logging.getLogger(__name__)

MOST_TASKS = 100
MOST_WORKERS = 64
MOST_TEXT = 4000
"""Characters of an error that are told: of a longer one the first line and the last lines."""


class LiveRun:
    """Lets viewers of this user look at a run.

    Parameters
    ----------
    session
        The run.
    engine
        What runs it; ``None``: the debug mode.
    """

    def __init__(self, session: Session, engine: Engine | None) -> None:
        self._session = session
        self._engine = "debug mode" if engine is None else engine.name
        self._has_workers = engine is not None and engine.has_workers
        self._live: ModuleType | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Open the process to viewers, unless it is open or the setting ``live.enabled`` is false; raises nothing."""
        try:
            if not config.get("live.enabled"):
                return
            from workspan import live

            self._live = live
            live.register_snapshot(self._snapshot, repeat=True)
            live.start()
            self._tell("start")
        except Exception as error:
            logger.warning("this run cannot be watched: %s: %s", type(error).__name__, error)

    def finish(self) -> None:
        """Tell of the end; raises nothing."""
        if self._live is None:
            return
        try:
            self._live.unregister_snapshot(self._snapshot)
            self._tell("end")
        except Exception as error:
            logger.warning("the end of this run cannot be watched: %s: %s", type(error).__name__, error)

    def _tell(self, event: str) -> None:
        assert self._live is not None
        if self._live.listening():
            self._live.publish(self._record(event))

    def _snapshot(self) -> list[dict[str, Any]]:
        # A forked child has inherited the list in which this is, but the run is its parent's.
        return [self._record("state")] if os.getpid() == self._pid else []

    def _record(self, event: str) -> dict[str, Any]:
        session = self._session
        now = session.clock.now()
        states = list(session.states.values())
        workers = list(self._workers(now))
        running = {worker["task"] for worker in workers}
        # Of too many tasks those are told that go on.
        order = sorted(range(len(states)), key=lambda n: 0 if n in running else 2 if states[n].is_done() else 1)
        shown = sorted(order[:MOST_TASKS])
        return {
            "kind": "run",
            "event": event,
            "run": session.run_id,
            "engine": self._engine,
            "elapsed": now - session.clock.start,
            "outcome": self._outcome() if event == "end" else None,
            "tasks": [{"number": number, **self._task(number, states[number], now)} for number in shown],
            "more_tasks": len(states) - len(shown),
            "workers": workers[:MOST_WORKERS],
            "more_workers": max(0, len(workers) - MOST_WORKERS),
            "failures": [self._failure(failure, now) for failure in list(session.record.failures)],
        }

    def _outcome(self) -> str:
        session = self._session
        if session.outcome is not None:
            return session.outcome
        states = session.states.values()
        if any(state.abandoned for state in states):
            return "abandoned"
        done = all(state.completed_count == state.total_block_count for state in states)
        return "completed" if done else "incomplete"

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _task(self, number: int, state: TaskState, now: float) -> dict[str, Any]:
        left, low, high = self._left(number, now)
        return {
            "id": state.task_id,
            "total": state.total_block_count,
            "ready": state.ready_count,
            "processing": state.processing_count,
            "completed": state.completed_count,
            "skipped": state.skipped_count,
            "failed": state.failed_count,
            "orphaned": state.orphaned_count,
            "timeouts": state.timeout_reclaim_count,
            "worker_starts": state.worker_start_count,
            "worker_restarts": state.worker_restart_count,
            "worker_failures": state.worker_failure_count,
            "worker_error": _cut(state.last_worker_error),
            "abandoned": state.abandon_reason or "" if state.abandoned else None,
            "left": left,
            "low": low,
            "high": high,
        }

    def _left(self, number: int, now: float) -> tuple[float | None, float | None, float | None]:
        """Return the seconds that a task will still take, and their range where it is known."""
        left = self._session.remaining.look(now)[number]
        return (None, None, None) if left is None else (left.value, left.low, left.high)

    # -- workers ---------------------------------------------------------------------------------------------------

    def _workers(self, now: float) -> Iterator[dict[str, Any]]:
        session = self._session
        dispatcher = session.dispatcher
        if dispatcher is None:
            if (block := session.inline_block()) is not None and session.started:
                task, index, began = block
                yield {"worker": None, "task": task, **self._block(task, index, now - began)}
            return
        slots = list(dispatcher.slots.values())
        if not self._has_workers:
            holding = [slot for slot in slots if slot.held]
            if holding:
                # Each block begins when the one before it, whoever's, has returned.
                slot = min(holding, key=lambda slot: slot.began_at)
                yield self._worker(slot, now, max(slot.began_at, dispatcher.last_return)) | {"worker": None}
            return
        for slot in slots:
            yield self._worker(slot, now, slot.began_at)

    def _worker(self, slot: Slot, now: float, began: float) -> dict[str, Any]:
        told: dict[str, Any] = {"worker": slot.worker, "task": slot.task}
        if slot.is_guest:
            told["guest"] = True
        try:
            index = slot.held[0]
        except IndexError:  # the last one may have come back just now
            if slot.retired or slot.gone:
                does = "lost"
            elif slot.stopping:
                does = "ending"
            else:
                does = "waiting" if slot.has_asked else "starting"
            return {**told, "does": does, "seconds": max(0.0, now - slot.free_since)}
        return {**told, **self._block(slot.task, index, now - began)}

    def _block(self, task: int, index: int, seconds: float) -> dict[str, Any]:
        return {"does": "block", **_name(self._session.record.books[task].layout, index), "seconds": max(0.0, seconds)}

    # -- failures --------------------------------------------------------------------------------------------------

    def _failure(self, failure: tuple[int, int, int, int, float, str, str, bool], now: float) -> dict[str, Any]:
        number, task, index, worker, at, cause, error, final = failure
        book = self._session.record.books[task]
        return {
            "number": number,
            "task": book.task_id,
            **_name(book.layout, index),
            "worker": worker if self._has_workers else None,
            "ago": max(0.0, now - at),
            "cause": cause,
            "error": _cut(error),
            "final": final,
        }


def _name(layout: Layout, index: int) -> dict[str, Any]:
    return {"block": layout.block_id(index), "cell": layout.cell(index)}


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= MOST_TEXT:
        return text
    first = text.partition("\n")[0][: MOST_TEXT // 4]
    return f"{first}\n...\n{text[-MOST_TEXT // 2 :]}"
