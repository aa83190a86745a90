"""The debug mode: blocks run one after another in the calling thread, and their exceptions are the caller's.

There is no engine, worker, deadline or budget; the ledger and the record are those of every other run.
"""

from __future__ import annotations

from os import getpid
from typing import TYPE_CHECKING, Any

from workspan.engines.block import end_fork, run_block
from workspan.engines.failure import failure_text
from workspan.errors import StalledError
from workspan.grid import Block, BlockStatus
from workspan.measure.profile import Profile, close_counters
from workspan.measure.sections import Collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.run.interrupt import Interrupts
    from workspan.run.session import Session

_UPDATE_SECONDS = 0.05
_NO_WORKER = 0


def run_inline(session: Session, on_change: Callable[[], Any], interrupts: Interrupts) -> None:
    """Run every block of *session*, tasks in pipeline order.

    Raises
    ------
    BaseException
        Whatever a block function raised, unchanged, at its first occurrence; the attempt is counted.
    StalledError
        Blocks are left and none is ready: an internal fault.
    """
    session.on_begun()
    numbers = range(len(session.tasks))
    try:
        with Collector() as collector:
            while sum(_run_ready(session, number, on_change, interrupts, collector) for number in numbers):
                pass
    finally:
        close_counters()
    if not session.ledger.is_done():
        raise StalledError("blocks are unfinished, yet none is ready: please report this with the pipeline's layout")


def _run_ready(
    session: Session, number: int, on_change: Callable[[], Any], interrupts: Interrupts, collector: Collector
) -> int:
    """Run the blocks of one task until none is ready; return how many ran."""
    task, book = session.tasks[number], session.record.books[number]
    ledger, record, now = session.ledger, session.record, session.clock.now
    function, layout, task_id = task.process_function, book.layout, task.task_id
    assert function is not None
    profile = Profile() if book.tracked else None
    grant = None if book.store is None else book.store.grant
    acquire, complete, block_done, at = ledger.acquire, ledger.complete, record.block_done, Block.at
    pid, everything = collector.pid, (BaseException,)
    ran = 0
    due = began = 0.0
    index: int | None = None
    # A viewer's thread looks into this frame: to write down each block for it would cost every block.
    session.inline_block = lambda: None if index is None or not began else (number, index, began)
    while (index := acquire(number)) is not None:
        if interrupts.received is not None:
            raise KeyboardInterrupt
        ran += 1
        block = at(layout, index, task_id, BlockStatus.PROCESSING)
        if grant is not None:
            grant(index, None)
        began = now()
        try:
            interrupts.armed = True
            outcome = run_block(function, block, profile, collector, pass_on=everything)
        except BaseException as error:
            interrupts.armed = False
            end_fork(collector, block, error)
            if isinstance(error, KeyboardInterrupt):
                # In flight at an interrupt: neither done nor failed.
                ledger.give_back(number, index)
                record.block_given_back(number, index)
            else:
                final = ledger.fail(number, index) or False
                record.attempt_failed(number, index, _NO_WORKER, began, now(), "error", failure_text(error), final)
            raise
        interrupts.armed = False
        if getpid() != pid:
            end_fork(collector, block)
        ended = now()
        if outcome.ok:
            block_done(number, index, _NO_WORKER, began, ended, outcome.stats, outcome.steps)
            complete(number, index)
        else:
            final = ledger.fail(number, index) or False
            error_text = outcome.error or ""
            record.attempt_failed(number, index, _NO_WORKER, began, ended, "error", error_text, final)
        if ended >= due:
            due = ended + _UPDATE_SECONDS
            session.keep_safe(ended)
            on_change()
    return ran
