"""The same as lines for a log: one for each thing that happens, and now and then how far the steps are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.estimate.logs import range_text, seconds_text
from workspan.views.format import duration
from workspan.views.watch import Ended, describe, describe_ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.views.watch import Change, ProgramState, StepState

__all__ = ["PlainLines"]

EVERY_SECONDS = 10.0
"""How often it is said how far an outermost step is, where the program does not say so itself."""
MOST_A_SECOND = 20
"""Lines about steps within others in a second; what is more is counted."""


class PlainLines:
    """Turns changes into lines."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int | str], float] = {}
        self._second = 0.0
        self._lines = 0
        self._left_out = 0

    def lines(self, program: ProgramState, change: Change, now: float) -> Iterator[str]:
        """Yield the lines for *change*, at *now* seconds of the watcher's clock."""
        step = change.step
        is_root = len(change.path) == 1
        is_over = change.event in ("complete", "failed")
        key = program.pid, step.id
        if is_root:
            self._told[key] = now
            if is_over:
                del self._told[key]
        elif not self._may_pass(now):
            return
        if self._left_out:
            yield f"({self._left_out:,} lines about inner steps were left out)"
            self._left_out = 0
        yield f"{title(program)}: {' > '.join(change.path)}: {_text(change, now, is_root)}"

    def overviews(self, programs: list[ProgramState], now: float) -> Iterator[str]:
        """Yield how far each outermost step is of which nothing was said for some time."""
        for program in programs:
            roots = [step for depth, step in program.tree() if depth == 0]
            for step in roots:
                key = program.pid, step.id
                if now - self._told.setdefault(key, now) >= EVERY_SECONDS:
                    self._told[key] = now
                    yield f"{title(program)}: {step.label}: {describe(step, now, is_root=True)}"

    def forget(self, program: ProgramState) -> None:
        """Forget a program that has ended."""
        self._told = {key: at for key, at in self._told.items() if key[0] != program.pid}

    def _may_pass(self, now: float) -> bool:
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        self._lines += 1
        if self._lines > MOST_A_SECOND:
            self._left_out += 1
            return False
        return True


def title(program: ProgramState) -> str:
    """Return what a line about *program* begins with."""
    return f"{program.script} (pid {program.pid})"


def _text(change: Change, now: float, is_root: bool) -> str:
    step = change.step
    if change.event == "complete":
        return f"complete after {duration(step.elapsed)}"
    if change.event == "failed":
        return describe_ended(Ended(step.label, 1, step.elapsed, 1, change.error))
    if change.event == "start":
        return _start(step)
    return describe(step, now, is_root=is_root)


def _start(step: StepState) -> str:
    if step.expected is None or step.is_guess:
        return "started"
    return f"started, {seconds_text(step.expected)} expected{range_text(step.low, step.high)}"
