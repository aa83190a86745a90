"""One run of a step, and the stack of those that are active in a context.

The stack is a context variable that holds immutable cells, so that threads and asyncio tasks never see each other's
steps: a thread starts with none, a task with those of its creator. Ending removes that very activation, wherever in the
stack it is; in the copies that other tasks have it stays, marked as ended, and is passed over.
"""

from __future__ import annotations

import itertools
from contextvars import ContextVar
from math import isfinite
from typing import TYPE_CHECKING, Any

from workspan.errors import UsageError

if TYPE_CHECKING:
    from workspan.estimate.keys import Key
    from workspan.estimate.recorder import ProgressRecorder
    from workspan.estimate.steps import Step

__all__ = ["INERT", "Activation", "current", "stack"]

Cell = tuple["Activation", "Cell | None"]

_stack: ContextVar[Any] = ContextVar("workspan_steps", default=None)
_numbers = itertools.count(1)


def top() -> Any:
    """Return the innermost cell of this context whose activation is active, or ``None``."""
    cell = _stack.get()
    while cell is not None and cell[0].ended:
        cell = cell[1]
    return cell


def stack() -> tuple[Activation, ...]:
    """Return the active steps of this context, outermost first."""
    found: list[Activation] = []
    cell = _stack.get()
    while cell is not None:
        if not cell[0].ended:
            found.append(cell[0])
        cell = cell[1]
    return tuple(reversed(found))


def current() -> Activation | None:
    """Return the innermost active step of this context, or ``None``."""
    cell = top()
    return None if cell is None else cell[0]


def forget_stack() -> None:
    """Start with an empty stack, in a forked child."""
    _stack.set(None)


class Activation:
    """One run of a step: what ``with WallClockTime(...) as activation`` gives.

    All of it may be read from any thread.
    """

    __slots__ = (
        "N_ref", "_elapsed", "_since", "discarded", "ended", "estimate", "failed", "forecast", "fraction_reported",
        "id", "is_substep", "log_lock", "logged", "nested", "overhead", "overlap", "parent", "recorder", "section",
        "start", "step", "variant",
    )  # fmt: skip

    id: int
    """Number of the run in this process."""
    N_ref: float | None
    """Size of the work; ``None``: neither estimated nor recorded."""
    estimate: Any
    """What was expected at the start: ``value``, ``low``, ``high``, ``source``, ``basis``; ``None`` without N_ref."""
    parent: Activation | None
    """The step that it runs in."""
    is_substep: bool
    variant: str | None
    start: float | None
    """When it began, in seconds since 1970: a label."""
    overlap: int
    """How many runs of the step there were at once, itself included."""
    overhead: float
    """Seconds of its time that went into measuring and logging steps inside it."""
    ended: bool
    failed: bool
    discarded: bool
    logged: bool
    nested: bool
    """Whether the step runs inside itself: then only the outermost run counts."""
    fraction_reported: float | None

    def __init__(self, recorder: ProgressRecorder, step: Step) -> None:
        self.recorder = recorder
        self.step = step
        self.id = next(_numbers)
        self.N_ref = self.estimate = self.parent = self.variant = self.start = self.fraction_reported = None
        self.is_substep = self.ended = self.failed = self.discarded = self.logged = self.nested = False
        self.overlap = 1
        self.overhead = self._elapsed = 0.0
        self._since: float | None = None
        self.forecast: Any = None
        self.log_lock: Any = None
        self.section: Any = None

    @property
    def key(self) -> Key:
        """Key of the step."""
        return self.step.key

    @property
    def label(self) -> str:
        """Name of the step in messages: short below another step."""
        return self.step.key.substep_label if self.is_substep else self.step.key.root_label

    @property
    def depth(self) -> int:
        """How many steps it runs in."""
        depth, parent = 0, self.parent
        while parent is not None:
            depth, parent = depth + 1, parent.parent
        return depth

    @property
    def elapsed(self) -> float:
        """Seconds since its start, or that it took; for a generator, those spent inside it."""
        since = self._since
        return self._elapsed if since is None else self._elapsed + self.recorder.clock() - since

    @property
    def dt_est(self) -> float | None:
        """Seconds expected at the start, or ``None``."""
        return None if self.estimate is None else self.estimate.value

    @property
    def remaining(self) -> float | None:
        """Seconds left, from 0 on; ``None`` without an estimate.

        Raises
        ------
        UsageError
            The activation has ended.
        """
        if self.ended:
            raise UsageError(f"step {self.key} is not active any more: it has no remaining time")
        expected = self.dt_est
        return None if expected is None else max(0.0, expected - self.elapsed)

    @property
    def remaining_range(self) -> tuple[float, float] | None:
        """Least and greatest seconds left at the level ``timing.interval``; ``None`` where there is no range."""
        if self.estimate is None or self.estimate.low is None or self.estimate.high is None:
            return None
        if not isfinite(self.estimate.low + self.estimate.high):
            return None
        elapsed = self.elapsed
        return max(0.0, self.estimate.low - elapsed), max(0.0, self.estimate.high - elapsed)

    @property
    def fraction(self) -> float | None:
        """Part that is done, below 1 until it has ended; ``None`` if nobody can say, or if it is overdue."""
        if self.ended and not self.failed:
            return 1.0
        if self.fraction_reported is not None:
            return min(self.fraction_reported, 0.999)
        expected = self.dt_est
        if not expected:
            return None
        elapsed = self.elapsed
        return min(elapsed / expected, 0.999) if elapsed <= expected else None

    def log_remaining(self) -> bool:
        """Log how much time is left, now; ``False`` if it has ended."""
        return self.recorder.log_remaining(self)

    def discard(self) -> None:
        """Keep no measurement of this run: it is not what the estimate is for."""
        self.discarded = True

    def report(self, fraction: float) -> None:
        """Tell which part of the work is done, 0 to 1, where the code knows it better than the clock.

        What is not a number is passed over.
        """
        part = float(fraction)
        if part != part:
            return
        self.fraction_reported = min(max(part, 0.0), 1.0)
        self.recorder.reported(self)

    # -- for the recorder --

    def push(self) -> None:
        """Put it on the stack of this context and start its clock."""
        _stack.set((self, top()))
        self._since = self.recorder.clock()

    def pause(self) -> float:
        """Stop its clock and take it off the stack of this context; return the time of the clock."""
        since, now = self._since, self.recorder.clock()
        if since is not None:
            self._elapsed += now - since
            self._since = None
            if self.section is not None:
                self.section.__exit__()
        cell = _stack.get()
        if cell is not None:
            if cell[0] is self:
                _stack.set(cell[1])
            else:
                self._remove(cell)
        return now

    def resume(self) -> None:
        """Go on after a pause, in whatever context this is."""
        if self.section is not None:
            self.section.__enter__()
        self.push()

    def _remove(self, cell: Any) -> None:
        above = []
        while cell is not None and cell[0] is not self:
            above.append(cell[0])
            cell = cell[1]
        if cell is None:  # ended in another context than it began in
            return
        rest = cell[1]
        for activation in reversed(above):
            if not activation.ended:
                rest = (activation, rest)
        _stack.set(rest)


class Inert:
    """What a disabled manager gives: everything may be asked, and nothing is known."""

    __slots__ = ()
    key = None
    label = ""
    N_ref = None
    estimate = None
    dt_est = None
    elapsed = None
    remaining = None
    remaining_range = None
    fraction = None
    ended = True

    def log_remaining(self) -> bool:
        """Log nothing."""
        return False

    def discard(self) -> None:
        """Do nothing."""

    def report(self, fraction: float) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""


INERT = Inert()
