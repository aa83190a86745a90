"""Check functions: user code that says whether a block was done before."""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from workspan.engines.failure import failure_text
from workspan.grid import Block
from workspan.schedule.events import Checked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from workspan.run.interrupt import Interrupts
    from workspan.run.task import Task
    from workspan.schedule.events import SkipReason
    from workspan.schedule.ledger import Ledger

logger = logging.getLogger(__name__)

JOIN_SECONDS = 5.0
"""How long the end of a run waits for a check function that is being asked."""


def check_function_of(task: Task) -> Callable[[int], SkipReason | None]:
    """Return the check function of *task* as a pre-check of indices: an exception means not done, and is told once."""
    layout, task_id, function = task.layout, task.task_id, task.check_function
    assert function is not None
    warned = False

    def check(index: int) -> SkipReason | None:
        nonlocal warned
        try:
            return "check" if function(Block.at(layout, index, task_id)) else None
        except Exception as error:
            if not warned:
                warned = True
                logger.warning(
                    "check_function of task %r raised for block %d; the block counts as not done, and further errors "
                    "of it are not shown\n%s",
                    task_id,
                    layout.block_id(index),
                    failure_text(error),
                )
            return None

    return check


def hang_in_checks(ledger: Ledger, tasks: Sequence[Task], interrupts: Interrupts | None = None) -> None:
    """Have the check functions asked by the ledger itself, block by block, after what is known of a block.

    With *interrupts*, Ctrl-C ends a check function that runs.
    """
    for blocks, task in zip(ledger.tasks, tasks, strict=True):
        if task.check_function is not None:
            known, check = blocks.precheck, check_function_of(task)
            if interrupts is not None:
                check = interrupts.around(check)
            blocks.precheck = check if known is None else _either(known, check)


def _either(
    first: Callable[[int], SkipReason | None], second: Callable[[int], SkipReason | None]
) -> Callable[[int], SkipReason | None]:
    return lambda index: first(index) or second(index)


class CheckThread:
    """Asks check functions in a thread of its own, so that the loop which serves workers never waits for them.

    Parameters
    ----------
    ledger
        Its tasks with a check function get a checker.
    tasks
        The tasks, in the order of the ledger.
    wake
        Called when an answer has come.
    """

    def __init__(self, ledger: Ledger, tasks: Sequence[Task], wake: Callable[[], None]) -> None:
        self._wake = wake
        self._questions: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._answers: dict[tuple[int, int], bool] = {}
        self._events: deque[Checked] = deque()
        self._functions: dict[int, Callable[[int], SkipReason | None]] = {}
        for number, (blocks, task) in enumerate(zip(ledger.tasks, tasks, strict=True)):
            if task.check_function is not None:
                self._functions[number] = check_function_of(task)
                blocks.checker = _TaskChecker(self, number)
        self._thread = threading.Thread(target=self._work, name="workspan-checks", daemon=True)

    def __enter__(self) -> CheckThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._functions = {}
        self._questions.put(None)
        self._thread.join(JOIN_SECONDS)

    def events(self) -> list[Checked]:
        """Return the answers that came since the last call."""
        out = []
        while self._events:
            out.append(self._events.popleft())
        return out

    def ask(self, task: int, index: int) -> None:
        """Put a question into the queue."""
        self._questions.put((task, index))

    def answer(self, task: int, index: int) -> bool | None:
        """Return the answer, once; ``None``: not known yet."""
        return self._answers.pop((task, index), None)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            task, index = question
            function = self._functions.get(task)
            if function is None:  # the run is over
                return
            try:
                done = function(index) is not None
            except BaseException:  # sys.exit() in a check function must not end the thread that answers
                logger.warning("the check function of a task ended with an exit; its block is not done", exc_info=True)
                done = False
            self._answers[question] = done
            self._events.append(Checked(task))
            self._wake()


class _TaskChecker:
    def __init__(self, thread: CheckThread, task: int) -> None:
        self._thread, self._task = thread, task

    def ask(self, index: int) -> None:
        self._thread.ask(self._task, index)

    def answer(self, index: int) -> bool | None:
        return self._thread.answer(self._task, index)
