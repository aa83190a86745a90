"""Steps, the way to time them, and the clock of their last run, in one object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.steps.clock import TransformClock
from workspan.steps.step import explain, listed, rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from workspan.steps.record import ChainTimes
    from workspan.steps.sizes import Sizes
    from workspan.steps.step import Step, Timing

__all__ = ["Chain"]


_FOLDED = """
stages of rows are timed as a whole: without the native timer, timing their steps would cost more than many steps do;
timing="phases" times each"""
_OFF = "\ntiming is off"


class Chain:
    """A list of steps that can be printed, run over any iterable, and asked what each step cost.

    It can be pickled if its steps can; then it has not run yet. It serves one run at a time: several at once take a
    :class:`TransformClock` each.

    Parameters
    ----------
    steps
        The steps, from the first to the last.
    timing
        How finely to time: ``"phases"`` every step, ``"stages"`` every stage, ``"total"`` all in one, ``"off"`` not at
        all; ``"auto"`` every step, but stages in *rows* in one where there is no native timer. Never changes the data.
    rows
        Stages that handle one row after the other.
    cpu
        Whether to measure CPU time too.
    sizes
        Whether to add up rows and bytes too, and how; see :class:`TransformClock`.
    clock
        Monotonic clock, in ns; ``None``: the machine's.

    Raises
    ------
    ConfigurationError
        *timing* is none of these.
    UsageTypeError
        One of the others is of the wrong kind.

    Examples
    --------
    >>> from workspan import Phase, Step
    >>> chain = Chain([Step("Map(double) body", Phase.FUNCTION_BODY, 0, lambda items: (2 * item for item in items))])
    >>> print(chain.explain())
    #  stage  phase  code      step
    0      0  body   built-in  Map(double) body
    >>> list(chain.run([1, 2, 3]))
    [2, 4, 6]
    >>> chain.total().steps[0].items
    3
    """

    __slots__ = ("_arguments", "_clock", "_note", "_timed", "steps")

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        timing: Timing = "auto",
        rows: Collection[int] = (),
        cpu: bool = False,
        sizes: Sizes | bool = False,
        clock: Callable[[], int] | None = None,
    ) -> None:
        given = listed(steps)
        self.steps = tuple(rewrite(given, timing, rows=rows))
        """The steps as they will be run and timed."""
        self._timed = timing != "off"
        self._note = _FOLDED if timing == "auto" and self.steps != given else ""
        self._arguments: dict[str, Any] = {"cpu": cpu, "sizes": sizes, "clock": clock}
        self._clock = TransformClock(**self._arguments)

    def __repr__(self) -> str:
        return f"Chain({' -> '.join(step.label for step in self.steps)})"

    def explain(self) -> str:
        """Return the steps as a table, and why if they are not timed one by one; nothing runs."""
        return explain(self.steps) + self._note + ("" if self._timed else _OFF)

    def run(self, items: Any) -> Any:
        """Return the iterator of the steps over *items*, with ``close()``; see :meth:`TransformClock.chain`."""
        return self._clock.chain(self.steps, items, timed=self._timed)

    def drain(self) -> ChainTimes:
        """Return what the run has cost since the last drain."""
        return self._clock.drain()

    def total(self) -> ChainTimes:
        """Return what the run has cost so far, drained or not."""
        return self._clock.total()

    def table(self) -> str:
        """Return what the run has cost so far as a table."""
        return self._clock.table()

    def __reduce__(self) -> Any:
        return _rebuilt, (self.steps, self._timed, self._arguments, self._note)


def _rebuilt(steps: tuple[Step, ...], timed: bool, arguments: dict[str, Any], note: str = "") -> Chain:
    made = Chain(steps, timing="phases" if timed else "off", **arguments)
    made._note = note
    return made
