"""One run: open what it needs, drive the scheduler against the engine, close everything on every path."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any

from workspan.engines.base import Job, WorkerTask
from workspan.errors import AbandonedError, EngineError
from workspan.report.aggregate import TaskAggregate
from workspan.run.checks import CheckThread, hang_in_checks
from workspan.run.functions import takes_context
from workspan.run.inline import run_inline
from workspan.run.interrupt import Interrupts
from workspan.run.record import RunRecord, TaskBook
from workspan.run.stores import Stores, skip_known_blocks
from workspan.schedule.dispatch import Dispatcher
from workspan.schedule.events import KillWorker, Send, StartWorker, StopWorker, TakeBack
from workspan.schedule.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from threading import Event

    from workspan.engines.base import Engine
    from workspan.report.task import RunReport
    from workspan.run.clock import RunClock
    from workspan.run.remaining import RunRemaining
    from workspan.run.task import Task
    from workspan.schedule.events import Decision, SkipReason
    from workspan.schedule.spec import PipelineSpec
    from workspan.schedule.state import TaskState

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long blocks in flight may go on after an interrupt."""

STOP_SECONDS = 0.1
"""How often it is looked whether the run is to stop."""

FLUSH_SECONDS = 1.0
"""How often stores are flushed: a power cut costs at most this much of a run."""


class Session:
    """One run of a pipeline.

    Parameters
    ----------
    spec
        The rules, tasks in display order.
    tasks
        Task id -> task.
    run_id
        Identifies the run.
    clock
        Time of the run; it started when the clock was made.
    block_tracking
        Open and write tracking stores.
    log_dir
        Folder of the workers' logs, or ``None``.
    shows_logs
        Show what workers write to their logs on this process's streams too.
    has_workers
        Blocks travel to workers.
    is_inline
        Blocks run in the calling thread, in the debug mode.
    listen
        Let clients connect, also if no task needs them.
    host
        Address of this machine that clients dial, or ``None``.
    stop_event
        Ends the run early when it is set.

    Attributes
    ----------
    states
        Task id -> counters, live, in display order.
    outcome
        ``"interrupted"`` or ``"error"`` if the run ended so, else ``None``.
    signal
        What interrupted it, or ``None``.
    call_previous_handler
        Hands that signal on to the handler that the program had set before the run.
    report
        The report of the run, once :meth:`end` was called.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        tasks: Mapping[str, Task],
        *,
        run_id: str,
        clock: RunClock,
        block_tracking: bool,
        log_dir: Path | None,
        shows_logs: bool,
        has_workers: bool,
        is_inline: bool,
        listen: bool = False,
        host: str | None = None,
        stop_event: Event | None = None,
    ) -> None:
        self.spec = spec
        self._listen = listen
        self._host = host
        self._stop_event = stop_event
        self.is_inline = is_inline
        self.tasks = [tasks[entry.task_id] for entry in spec.tasks]
        self.clock = clock
        self.run_id = run_id
        self.log_dir = log_dir
        self._shows_logs = shows_logs
        self.outcome: str | None = None
        self.signal: signal.Signals | None = None
        self.call_previous_handler: Callable[[], None] = lambda: None
        self.report: RunReport | None = None
        self.on_open: Callable[[], Any] = lambda: None
        """Called once, when the engine is open, so that workers can join, and no worker has been asked for."""
        self.on_begun: Callable[[], Any] = lambda: None
        """Called once, when the first workers have been asked for: what it takes is hidden by their start-up."""
        self.on_stopping: Callable[[], Any] = lambda: None
        """Called when the run is told to end, before its workers are: what they hold may still be done."""
        self.dispatcher: Dispatcher | None = None
        """Who has which block; none before the run, and in the debug mode."""
        self.inline_block: Callable[[], tuple[int, int, float] | None] = lambda: None
        """In the debug mode: returns task, block and begin of the block that was begun last."""
        self.started = False
        """Something may have run: from here on there is a report."""
        for entry in spec.tasks:
            if not entry.layout.num_blocks:
                logger.warning(
                    "task %r has no blocks: its total ROI of %s is smaller than a block",
                    entry.task_id,
                    entry.layout.total_shape,
                )
        self.ledger = Ledger(spec, on_skip=self._skipped)
        self.states: dict[str, TaskState] = {b.spec.task_id: b.state for b in self.ledger.tasks}
        self._stores = Stores(self.tasks, block_tracking)
        self._resources = ExitStack()
        with ExitStack() as on_error:
            on_error.callback(self.close)
            stores = self._stores.open()
            self._stores.prepare_outputs(stores)
            books = [
                TaskBook(
                    task_id=blocks.spec.task_id,
                    layout=blocks.layout,
                    state=blocks.state,
                    tracked=task.resource_tracking and store is not None,
                    store=store,
                    aggregate=TaskAggregate(
                        blocks.layout.num_blocks,
                        resource_tracking=task.resource_tracking and store is not None,
                        has_workers=has_workers,
                    ),
                )
                for blocks, task, store in zip(self.ledger.tasks, self.tasks, stores, strict=True)
            ]
            self.record = RunRecord(run_id, books, clock, has_workers=has_workers, log_dir=log_dir, edges=spec.edges)
            skip_known_blocks(self.ledger, self.tasks, stores, self.record.blocks_skipped)
            on_error.pop_all()
        self._unannounced = {
            number
            for number, task in enumerate(self.tasks)
            if not is_inline and (task.process_function is None or task.init_callback_fn is not None)
        }
        """Tasks of whose begin somebody must be told, and was not yet."""
        self._checks: CheckThread | None = None
        self._next_flush = clock.start + FLUSH_SECONDS

    def _skipped(self, task: int, indices: list[int], reason: SkipReason) -> None:
        self.record.blocks_skipped(task, indices, reason)

    def close(self) -> None:
        """Flush and close the stores and give their locks back; without a start, remove what was newly made."""
        self._resources.close()
        self._stores.close(keep_new=self.started)

    @cached_property
    def remaining(self) -> RunRemaining:
        """What is left of each task; nobody looks unless it is asked."""
        from workspan.run.remaining import RunRemaining

        return RunRemaining(self)

    # -- driving ---------------------------------------------------------------------------------------------------

    def job(self) -> Job:
        """Return what the engine must know."""
        return Job(
            run_id=self.run_id,
            tasks=tuple(
                WorkerTask(
                    task_id=task.task_id,
                    layout=task.layout,
                    function=task.process_function,
                    kind=task.function_kind,
                    takes_context=task.process_function is not None and takes_context(task.process_function),
                    resource_tracking=book.tracked,
                    timeout=task.timeout_secs,
                    max_workers=task.max_workers,
                    requires=task.requires,
                )
                for task, book in zip(self.tasks, self.record.books, strict=True)
            ),
            log_dir=self.log_dir,
            shows_logs=self._shows_logs,
            listen=self._listen or any(task.init_callback_fn is not None for task in self.tasks),
            host=self._host,
        )

    def drive(
        self,
        engine: Engine,
        on_change: Callable[[], Any],
        *,
        resources: Mapping[str, int] | None,
    ) -> None:
        """Run to the end.

        Parameters
        ----------
        engine
            Not open yet; it is closed on every path.
        on_change
            Called after events were handled, to keep a display up to date.
        resources
            Limits of what live workers may require together.
        """
        one_at_a_time = not engine.has_workers
        dispatcher = Dispatcher(
            self.ledger,
            self.record,
            resources=resources,
            one_at_a_time=one_at_a_time,
            wire_seconds=getattr(engine, "wire_seconds", 0.0),
        )
        self.dispatcher = dispatcher
        late: list[BaseException] = []

        def notice() -> None:
            if not self.started:
                engine.give_up()
            engine.wake()

        with Interrupts(notice) as interrupts:
            try:
                engine.open(self.job())
            except EngineError:
                self._note_signal(interrupts)
                if self.signal is None:
                    raise
                return  # it has given up
            self.started = True
            try:
                self.on_open()
                if any(task.check_function is not None for task in self.tasks):
                    self._hang_in_checks(engine, interrupts)
                self._loop(dispatcher, engine, interrupts, on_change)
            except KeyboardInterrupt:
                self.outcome, self.signal = "interrupted", signal.SIGINT
            except BaseException:
                self.outcome = "error"
                raise
            finally:
                interrupts.armed = False
                late += self._shut_down(dispatcher, engine)
        self._note_signal(interrupts)
        if late:
            raise late[0]

    def _hang_in_checks(self, engine: Engine, interrupts: Interrupts) -> None:
        if engine.has_workers:
            # The calling thread serves workers: it must not wait for a check function.
            self._checks = self._resources.enter_context(CheckThread(self.ledger, self.tasks, engine.wake))
        else:
            hang_in_checks(self.ledger, self.tasks, interrupts)

    def _loop(
        self,
        dispatcher: Dispatcher,
        engine: Engine,
        interrupts: Interrupts,
        on_change: Callable[[], Any],
    ) -> None:
        now = self.clock.now
        self._act(engine, dispatcher.start(now()))
        self.on_begun()
        kill_at = inf
        while not dispatcher.finished:
            if self._unannounced:
                self._announce(engine)
            interrupts.armed = not engine.has_workers
            events = engine.poll(self._wait_seconds(dispatcher, kill_at))
            interrupts.armed = False
            arrived = now()
            if len(events) > 1:
                dispatcher.foresee(events)
            for event in events:
                self._act(engine, dispatcher.handle(event, now(), arrived))
            time = now()
            for checked in self._checks.events() if self._checks is not None else ():
                self._act(engine, dispatcher.handle(checked, time))
            self._act(engine, dispatcher.tick(time))
            self.keep_safe(time)
            on_change()
            if interrupts.received is not None or self._is_to_stop():
                if not dispatcher.stopping:
                    self.on_stopping()
                    self._act(engine, dispatcher.stop(time))
                    kill_at = time + GRACE_SECONDS
                if interrupts.count > 1 or time >= kill_at:
                    return

    def _wait_seconds(self, dispatcher: Dispatcher, kill_at: float) -> float:
        now = self.clock.now()
        wait = min(dispatcher.wait_seconds(now), max(0.0, kill_at - now))
        return wait if self._stop_event is None else min(wait, STOP_SECONDS)

    def _is_to_stop(self) -> bool:
        if self._stop_event is not None and self._stop_event.is_set():
            self.outcome = "interrupted"
        return self.outcome == "interrupted"

    def _announce(self, engine: Engine) -> None:
        """Tell who has to know it of the tasks whose first block has become ready."""
        for number in sorted(self._unannounced):
            task = self.tasks[number]
            if not self.ledger.tasks[number].state.ready_count:
                continue
            self._begin_task(number, engine)
            if task.process_function is None:
                logger.warning(
                    "task %r has no process_function: it waits for workers from outside, which find it by the context "
                    "in %s (Client(Context.from_file(...)))",
                    task.task_id,
                    engine.context_file(number),
                )

    def _begin_task(self, number: int, engine: Engine) -> None:
        """Call the task's callback, once."""
        if number in self._unannounced:
            self._unannounced.discard(number)
            callback = self.tasks[number].init_callback_fn
            if callback is not None and engine.has_clients:
                callback(engine.context(number, 0))

    def _act(self, engine: Engine, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Send):
                engine.send(decision.worker, decision.index)
            elif isinstance(decision, StartWorker):
                self._begin_task(decision.task, engine)
                engine.start_worker(decision.worker, decision.task)
            elif isinstance(decision, StopWorker):
                engine.stop_worker(decision.worker)
            elif isinstance(decision, TakeBack):
                engine.take_back(decision.worker)
            elif isinstance(decision, KillWorker):
                engine.kill_worker(decision.worker)
            else:
                engine.admit(decision.guest, decision.worker)

    def _shut_down(self, dispatcher: Dispatcher, engine: Engine) -> list[BaseException]:
        """End all workers, and record what came back meanwhile.

        Return the errors of that: none of them keeps the rest from being done, or hides an earlier one.
        """
        now = self.clock.now
        errors: list[BaseException] = []

        def attempt(step: Callable[[], Any]) -> Any:
            try:
                return step()
            except BaseException as error:
                logger.error("while the run was shut down: %s", error)
                errors.append(error)
                return []

        attempt(lambda: self.record.shut_down(now()))
        if dispatcher.slots:
            attempt(lambda: dispatcher.stop(now()))
        for event in attempt(lambda: engine.close(0.0)):
            attempt(partial(dispatcher.handle, event, now()))
        self.record.stale_results = dispatcher.stale_results
        self.record.refused_messages = engine.refused_messages
        for book in self.record.books:
            if book.store is not None:
                attempt(book.store.flush)
        return errors

    def drive_inline(self, on_change: Callable[[], Any]) -> None:
        """Run to the end in the calling thread, in the debug mode."""
        self.started = True
        with Interrupts(lambda: None) as interrupts:
            hang_in_checks(self.ledger, self.tasks, interrupts)
            try:
                run_inline(self, on_change, interrupts)
            except KeyboardInterrupt:
                self.outcome, self.signal = "interrupted", signal.SIGINT
            except BaseException:
                self.outcome = "error"
                raise
        self._note_signal(interrupts)

    def _note_signal(self, interrupts: Interrupts) -> None:
        if interrupts.received is not None:
            self.outcome, self.signal = "interrupted", interrupts.received
            self.call_previous_handler = interrupts.call_previous

    def keep_safe(self, time: float) -> None:
        """Flush the stores if that is due."""
        if time >= self._next_flush:
            self._flush(time)

    def _flush(self, time: float) -> None:
        self._next_flush = time + FLUSH_SECONDS
        for book in self.record.books:
            if book.store is not None:
                book.store.flush()

    def snapshot(self) -> dict[str, TaskState]:
        """Return a copy of the counters, task id -> ``TaskState``, in display order."""
        return {task_id: replace(state) for task_id, state in self.states.items()}

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> RunReport:
        """Close the record, once: the report that is returned, printed and written is one value."""
        if self.report is None:
            self.report = self.record.report(outcome=self.outcome, ended_at=self.clock.now())
        return self.report

    def abandoned(self) -> AbandonedError | None:
        """Return the error that tells of abandoned tasks, or ``None``."""
        texts = [
            f"task {task_id!r} was abandoned: {state.abandon_reason}; {state.worker_failure_count} of "
            f"{state.worker_start_count} workers failed, {state.worker_restart_count} restarts, "
            f"{state.orphaned_count:,} of {state.total_block_count:,} blocks orphaned"
            + (f", {state.timeout_reclaim_count} timeouts" if state.timeout_reclaim_count else "")
            + (f"\nlast worker error: {state.last_worker_error}" if state.last_worker_error else "")
            for task_id, state in self.states.items()
            if state.abandoned
        ]
        return AbandonedError("\n".join(texts)) if texts else None
