"""Run tasks and pipelines."""

from __future__ import annotations

import logging
import secrets
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run import notes as _notes  # noqa: F401  # takes the notes of workers from here on
from workspan.run import orders
from workspan.run.arguments import check_amounts
from workspan.run.clock import RunClock
from workspan.run.display import Display, choose_observer
from workspan.run.history import keep_summaries
from workspan.run.live import LiveRun
from workspan.run.pipeline import Pipeline
from workspan.run.reports import keep_report
from workspan.run.session import Session
from workspan.run.writes import check_between
from workspan.schedule.spec import check_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from threading import Event

    from workspan.engines.base import Engine
    from workspan.run.task import Task
    from workspan.schedule.spec import PipelineSpec
    from workspan.schedule.state import TaskState

logger = logging.getLogger(__name__)


def run_blockwise(
    pipeline: Pipeline | Task | list[Task] | tuple[Task, ...],
    multiprocessing: bool = True,
    resources: Mapping[str, int] | None = None,
    progress: Any = True,
    block_tracking: bool = True,
    return_states: bool = False,
    host: str | None = None,
    summary: bool = True,
    *,
    engine: str | Engine | None = None,
    return_report: bool = False,
) -> Any:
    """Run all blocks of a task or pipeline.

    Parameters
    ----------
    pipeline
        What to run. An empty list runs nothing and succeeds.
    multiprocessing
        False: daisy's debug mode. Blocks run in the calling thread, and the first exception of a block function
        reaches the caller unchanged.
    resources
        Name -> amount that the ``requires`` of live workers may add up to.
    progress
        True: bars in a terminal, lines elsewhere. False or None: nothing. Otherwise an object with ``on_start``,
        ``on_progress`` and ``on_finish``, each taking a dict task id -> ``TaskState``.
    block_tracking
        False: neither open nor write any tracking store.
    return_states
        Return the dict task id -> ``TaskState`` instead of the answer.
    host
        Address of this machine under which workers on others dial it; then workers from outside can join. Default:
        ``WORKSPAN_HOST``, ``DAISY_HOST``, or found out where a task needs clients.
    summary
        Print the execution summary and the resource panel at the end.
    engine
        ``"processes"`` (the default), ``"serial"`` (same rules, in the calling thread), ``"dask"`` (a Dask cluster on
        this machine), ``"dask://host:8786"`` (one that runs), or an engine object.
    return_report
        Return the ``RunReport``, whose truth value is the answer.

    Returns
    -------
    bool
        Whether every block of every task completed; skipped blocks count as completed.

    Raises
    ------
    ConfigurationError
        The pipeline cannot be run as asked; nothing was run.
    StoreLockedError, TrackingError
        A tracking store cannot be used; nothing was run.
    AbandonedError
        A task had work left, no live worker, and no start left in its budget.
    KeyboardInterrupt
        SIGINT: workers were ended, what was done is recorded. SIGTERM raises ``SystemExit(143)``. A handler of the
        program's own is called before that, once the run has ended.

    Notes
    -----
    A block runs at least once and is recorded at most once per run: block functions must be idempotent.
    """
    session = execute(
        pipeline,
        choose_engine(engine, multiprocessing),
        resources=resources,
        progress=progress,
        block_tracking=block_tracking,
        host=host,
        summary=summary,
    )
    if return_states:
        return session.snapshot()
    report = session.end()
    return report if return_report else bool(report)


def execute(
    pipeline: Pipeline | Task | list[Task] | tuple[Task, ...],
    engine: Engine | None,
    *,
    resources: Mapping[str, int] | None = None,
    progress: Any = True,
    block_tracking: bool = True,
    host: str | None = None,
    summary: bool = True,
    listen: bool = False,
    stop_event: Event | None = None,
    on_start: Callable[[Session], Any] = lambda session: None,
) -> Session:
    """Run all blocks and return the session, which has ended; see :func:`run_blockwise` for what is not told here.

    Parameters
    ----------
    engine
        Not open yet; ``None``: the debug mode.
    listen
        Let clients connect, also if no task needs them.
    stop_event
        Ends the run early when it is set.
    on_start
        Called with the session before anything runs.
    """
    pipeline = Pipeline.of(pipeline)
    if (asked := orders.in_force()) is not None:
        progress, summary = asked.change(pipeline, progress), summary and asked.shows_summary
    observer = choose_observer(progress, inline=engine is None)
    spec = pipeline.spec()
    for task in pipeline.tasks:
        has_upstream = any(down is task for _, down in pipeline.edges)
        task.check_run(engine is None or not engine.has_workers, has_upstream=has_upstream)
    check_between(pipeline.tasks, pipeline.edges)
    tasks = {task.task_id: task for task in pipeline.tasks}
    _check_runnable(spec, tasks, engine, resources)
    if host and (engine is None or not engine.has_clients):
        name = "the debug mode" if engine is None else f"engine={engine.name!r}"
        raise ConfigurationError(f"host={host!r}: no worker can connect to {name}; use engine='processes'")
    clock = RunClock()
    session = Session(
        spec,
        tasks,
        run_id=_run_id(clock),
        clock=clock,
        block_tracking=block_tracking,
        log_dir=_log_dir(),
        shows_logs=config.get("log_mode") == "both",
        has_workers=engine is not None and engine.has_workers,
        is_inline=engine is None,
        listen=listen,
        host=host,
        stop_event=stop_event,
    )
    if asked is not None:
        asked.note(session)
    on_start(session)
    _run(session, Display(session, observer, told=progress is True, summary=summary), engine, resources)
    return session


def _run(session: Session, display: Display, engine: Engine | None, resources: Mapping[str, int] | None) -> None:
    """Run; then, on every path: end the display, append the reports, close the stores, print, and raise what was wrong.

    What goes wrong while a run ends never hides why it ended.
    """
    errors: list[BaseException] = []

    def attempt(step: Callable[[], Any]) -> None:
        try:
            step()
        except BaseException as error:
            if errors:
                logger.error("while the run ended: %s", error)
            errors.append(error)

    # Tasks that can tell from their first blocks whether the memory will do.
    judges = [
        (judge, book.aggregate)
        for task, book in zip(session.tasks, session.record.books, strict=True)
        if task.resource_tracking and (judge := getattr(task, "judge_memory", None)) is not None
    ]

    live = LiveRun(session, engine)
    session.on_open = display.start
    session.on_begun = live.start
    note_stop = session.on_stopping

    def stopping() -> None:
        note_stop()
        display.tell_stopping()

    session.on_stopping = stopping

    def update() -> None:
        display.update()
        if judges:
            judges[:] = [(judge, aggregate) for judge, aggregate in judges if not judge(aggregate.peak_rss)]

    def drive() -> None:
        if engine is None:
            display.start()
            session.drive_inline(display.update)
        else:
            session.drive(engine, update if engine.has_workers else display.update, resources=resources)

    attempt(drive)
    if errors:
        session.outcome = session.outcome or "error"
    attempt(display.finish)
    attempt(live.finish)
    if session.started:
        attempt(lambda: keep_report(session.end(), session))
        attempt(lambda: keep_summaries(session.end(), session))
        _log_skips(session.states)
    attempt(session.close)
    if session.started:
        attempt(display.print_summary)
    attempt(session.call_previous_handler)
    if not errors and session.signal is not None:
        errors.append(KeyboardInterrupt() if session.signal == signal.SIGINT else SystemExit(128 + session.signal))
    if not errors and (abandoned := session.abandoned()) is not None:
        errors.append(abandoned)
    if errors:
        raise _with_record(errors[0], session) if session.started else errors[0]


def _check_runnable(
    spec: PipelineSpec, tasks: Mapping[str, Task], engine: Engine | None, resources: Mapping[str, int] | None
) -> None:
    """Refuse what could never finish, before anything is opened."""
    for entry in spec.tasks:
        task = tasks[entry.task_id]
        if entry.layout.num_blocks and (engine is None or not engine.has_clients):
            where = "the debug mode" if engine is None else f"engine={engine.name!r}"
            if task.process_function is None:
                raise ConfigurationError(
                    f"task {task.task_id!r} has no process_function, and no client can connect to {where}: give it a "
                    "function of one block, or run with engine='processes'"
                )
            if task.function_kind == "worker":
                raise ConfigurationError(
                    f"the process_function of task {task.task_id!r} is a worker function, which takes its blocks from "
                    f"a client, and none can connect to {where}: give it one parameter, the block, or run with "
                    "engine='processes'"
                )
    if resources is not None:
        check_amounts("resources", resources)
    check_resources(spec, resources)


def _log_skips(states: Mapping[str, TaskState]) -> None:
    for task_id, state in states.items():
        if state.skipped_count:
            logger.info(
                "task %r skipped %d of %d blocks; to process them again, call its reset(), which deletes the record of "
                "what was done",
                task_id,
                state.skipped_count,
                state.total_block_count,
            )


def _with_record(error: BaseException, session: Session) -> BaseException:
    """Let *error* carry what the run had done; the ``daisy_`` names are daisy's."""
    report, states = session.end(), session.snapshot()
    values = {"run_report": report, "task_states": states, "task_order": list(states)}
    values |= {"daisy_run_report": report, "daisy_states": states, "daisy_task_order": list(states)}
    for name, value in values.items():
        with suppress(Exception):  # a user's exception may refuse attributes; it is raised all the same
            setattr(error, name, value)
    return error


def choose_engine(engine: str | Engine | None, multiprocessing: bool) -> Engine | None:
    """Return the engine; ``None`` for the debug mode."""
    from workspan.engines.choose import engine_of

    if (asked := orders.in_force()) is not None and asked.engine is not None:
        engine, multiprocessing = asked.engine, True
    if engine is None:
        return engine_of("processes") if multiprocessing else None
    if not multiprocessing:
        raise UsageTypeError(f"multiprocessing=False and engine={engine!r} contradict each other: pass engine= only")
    return engine_of(engine) if isinstance(engine, str) else engine


def _run_id(clock: RunClock) -> str:
    """Return an id that sorts by time and is unique: start of the run in UTC, and four random bytes."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(clock.at(clock.start)))
    return f"{stamp}-{secrets.token_hex(4)}"


def _log_dir() -> Path | None:
    basedir: Path | None = config.get("log_basedir")
    if basedir is None or config.get("log_mode") == "console":
        return None
    return basedir.absolute()
