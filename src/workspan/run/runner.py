"""Run tasks and pipelines."""

from __future__ import annotations

import logging
import secrets
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run.clock import RunClock
from workspan.run.display import Display
from workspan.run.pipeline import Pipeline
from workspan.run.reports import keep_report
from workspan.run.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from workspan.engines.base import Engine
    from workspan.report.task import RunReport
    from workspan.run.task import Task
    from workspan.schedule.state import TaskState

logger = logging.getLogger(__name__)

ENGINES = ("processes", "serial")


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
        Address for workers on other machines.
    summary
        Print the execution summary and the resource panel at the end.
    engine
        ``"processes"`` (the default), ``"serial"`` (same rules, in the calling thread), or an engine object.
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
        SIGINT: workers were ended, what was done is recorded. SIGTERM raises ``SystemExit(143)``.

    Notes
    -----
    A block runs at least once and is recorded at most once per run: block functions must be idempotent.
    """
    if host is not None:
        raise ConfigurationError(f"host={host!r}: workers on other machines are not supported by this version")
    chosen = _engine(engine, multiprocessing)
    pipeline = Pipeline.of(pipeline)
    clock = RunClock()
    session = Session(
        pipeline.spec(),
        {task.task_id: task for task in pipeline.tasks},
        run_id=_run_id(clock),
        clock=clock,
        block_tracking=block_tracking,
        log_dir=_log_dir(),
        has_workers=chosen is not None and chosen.has_workers,
        is_inline=chosen is None,
    )
    display = Display(session, progress=progress, summary=summary)
    with _reported(session, display):
        display.start()
        if chosen is None:
            session.drive_inline(display.update)
        else:
            session.drive(chosen, display.update, resources=resources)
    if return_states:
        return session.snapshot()
    report = session.end()
    return report if return_report else bool(report)


@contextmanager
def _reported(session: Session, display: Display) -> Iterator[None]:
    """On every path out of a run: end the display, append the reports, close the stores, print, then raise."""
    error: BaseException | None = None
    try:
        try:
            yield
        except BaseException as problem:
            error = problem
            session.outcome = session.outcome or "error"
        finally:
            display.finish()
            keep_report(session.end(), session)
            _log_skips(session.states)
    finally:
        session.close()
    display.print_summary()
    if error is None and session.signal is not None:
        error = KeyboardInterrupt() if session.signal == signal.SIGINT else SystemExit(128 + session.signal)
    error = error or session.abandoned()
    if error is not None:
        raise _with_record(error, session.end(), session.snapshot())


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


def _with_record(error: BaseException, report: RunReport, states: dict[str, TaskState]) -> BaseException:
    """Let *error* carry what the run had done; the ``daisy_`` names are daisy's."""
    order = list(states)
    for name, value in (("run_report", report), ("task_states", states), ("task_order", order)):
        setattr(error, name, value)
    for name, value in (("daisy_run_report", report), ("daisy_states", states), ("daisy_task_order", order)):
        setattr(error, name, value)
    return error


def _engine(engine: str | Engine | None, multiprocessing: bool) -> Engine | None:
    """Return the engine; ``None`` for the debug mode."""
    from workspan.engines import Processes, Serial

    if engine is None:
        return Processes() if multiprocessing else None
    if not multiprocessing:
        raise UsageTypeError(f"multiprocessing=False and engine={engine!r} contradict each other: pass engine= only")
    if engine == "serial":
        return Serial()
    if engine == "processes":
        return Processes()
    if isinstance(engine, str):
        raise ConfigurationError(f"engine={engine!r} is not known: use one of {', '.join(map(repr, ENGINES))}")
    return engine


def _run_id(clock: RunClock) -> str:
    """Return an id that sorts by time and is unique: start of the run in UTC, and four random bytes."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(clock.at(clock.start)))
    return f"{stamp}-{secrets.token_hex(4)}"


def _log_dir() -> Path | None:
    basedir: Path | None = config.get("log_basedir")
    if basedir is None or config.get("log_mode") == "console":
        return None
    return basedir.absolute()
