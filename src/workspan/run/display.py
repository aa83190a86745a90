"""What a person sees of a run: the progress while it goes on, and the summary after it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from workspan.run.orders import in_force

if TYPE_CHECKING:
    from workspan.run.session import Session
    from workspan.views.progress import Observer

logger = logging.getLogger(__name__)


def choose_observer(progress: Any, *, inline: bool) -> Observer | None:
    """Return whom *progress* means.

    Parameters
    ----------
    progress
        True, False or None, or an observer.
    inline
        Blocks run in the calling thread, in the debug mode.

    Raises
    ------
    UsageTypeError
        *progress* is something else.
    """
    from workspan.views.progress import PlainProgress, choose

    # Bars take over the terminal, and a debugger in a block needs it.
    return PlainProgress(sys.stderr) if progress is True and inline else choose(progress)


class Display:
    """Shows one run; loads the views that it needs and no others.

    Parameters
    ----------
    session
        The run.
    observer
        Who is told of the progress; ``None``: nobody.
    told
        Say at the beginning what an earlier run left unfinished.
    summary
        Print the execution summary and the resource panel at the end.
    """

    def __init__(self, session: Session, observer: Observer | None, *, told: bool, summary: bool) -> None:
        from workspan.views.progress import Guard

        self._session = session
        self._told = told
        self._summary = summary
        self._guard = Guard(observer, before=self._look)
        self._events = -1
        self._looks = observer is not None

    def start(self) -> None:
        """Say what an earlier run left, and begin the progress display."""
        if self._told:
            self._tell_resume()
        self._guard.start(self._session.states, self._session.clock.now())

    def update(self) -> None:
        """Bring the display up to date, if it is time; called after every round of events."""
        events = self._session.record.events
        if events != self._events:
            self._events = events
            self._guard.changed()
        self._guard.tick(self._session.states, self._session.clock.now())

    def _look(self) -> None:
        """Let the counters say what is left; called before the observer is told anything."""
        session = self._session
        if not self._looks:
            return
        try:
            lefts = session.remaining.look(session.clock.now())
        except Exception:  # an estimate less, and neither the run nor its display
            logger.warning("the time that is left is not shown from here on", exc_info=True)
            self._looks, lefts = False, [None] * len(session.states)
        for state, left in zip(session.states.values(), lefts, strict=True):
            state.left = left

    def tell_stopping(self) -> None:
        """Say why the run does not end at once when it is told to."""
        from workspan.run.session import GRACE_SECONDS
        from workspan.views.format import count
        from workspan.views.terminal import emit

        dispatcher = self._session.dispatcher
        slots = [] if dispatcher is None else list(dispatcher.slots.values())
        # What was granted ahead of time is taken back, and not waited for.
        in_flight = sum(bool(slot.held) and not (slot.retired or slot.gone) for slot in slots)
        if (self._told or self._summary) and in_flight:
            blocks = f"{count(in_flight, 'block')} in flight {'has' if in_flight == 1 else 'have'}"
            emit(f"stopping: {blocks} {GRACE_SECONDS:g} s to end; Ctrl-C ends at once", sys.stderr)

    def finish(self) -> None:
        """End the progress display."""
        self._guard.finish(self._session.states)

    def print_summary(self) -> None:
        """Print the execution summary and the resource panel to standard output; an error speaks for itself."""
        session = self._session
        if not self._summary or session.outcome == "error":
            return
        from workspan.views.panel import render_panel
        from workspan.views.summary import render_summary
        from workspan.views.terminal import columns_of, emit, encoding_of

        encoding, columns = encoding_of(sys.stdout), columns_of(sys.stdout)
        report = session.end()
        books = session.record.books
        summary = render_summary(
            session.states,
            list(session.states),
            errors={book.task_id: book.aggregate.failed_blocks for book in books},
            skips={book.task_id: book.aggregate.skip_reasons for book in books},
            stores={book.task_id: book.store.path for book in books if book.store is not None},
            log_dirs={} if session.log_dir is None else {b.task_id: session.log_dir / b.task_id for b in books},
            interrupted=session.outcome == "interrupted",
            command=None if (asked := in_force()) is None else asked.command,
            encoding=encoding,
            columns=columns,
        )
        emit("\n" + summary, sys.stdout)
        if panel := render_panel(report, encoding=encoding, columns=columns):
            emit("\n" + panel, sys.stdout)

    def _tell_resume(self) -> None:
        from workspan.views.summary import skip_sentence
        from workspan.views.terminal import emit

        for book in self._session.record.books:
            if book.store is not None and (in_flight := len(book.store.was_in_flight)):
                done = {"done": int(book.store.done.sum())}
                total = book.state.total_block_count
                emit(skip_sentence(book.task_id, total, done, in_flight=in_flight), sys.stderr)
