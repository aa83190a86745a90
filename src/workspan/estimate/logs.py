"""What is logged of a step: ordinary records on the logger ``workspan.progress``, with numbers in their extras.

Every record has the attributes ``key``, ``dt_est`` and ``dt_rem`` (seconds, or ``None``) and a dict ``workspan`` with
``event``, ``id``, ``parent``, ``depth``, ``label``, ``elapsed``, ``fraction``, ``low``, ``high``, ``N_ref``, ``order``
and ``source``. A handler can drive a progress bar from these alone. Events of a step: ``start`` or ``nodata``, then
``progress``, ``overdue``, ``complete`` or ``failed``. Records of the remaining time come from another thread.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.estimate import publish
from workspan.estimate.notices import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.estimate.activation import Activation

__all__ = ["LOGGER", "LOGGER_NAME", "Countdown", "log_event", "seconds_text", "state_of"]

LOGGER_NAME = "workspan.progress"
LOGGER = logging.getLogger(LOGGER_NAME)
SHORTEST_SECONDS = 0.01
"""Least time between two records of the remaining time, whatever ``logging.interval`` says."""


def seconds_text(seconds: float) -> str:
    """Return a time as people say it, to two digits or whole seconds.

    Examples
    --------
    >>> [seconds_text(s) for s in (0, 1.2e-6, 0.00012, 0.048, 2.14, 38.2, 381, 7384)]
    ['0 s', '0.0012 ms', '0.12 ms', '48 ms', '2.1 s', '38 s', '6 min 21 s', '2 h 3 min']
    """
    if seconds < 5e-8:  # what no clock here resolves
        return "0 s"
    if seconds < 9.95e-5:
        return f"{seconds * 1e3:.4f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{0 if seconds >= 0.00995 else 1 if seconds >= 0.000995 else 2}f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def range_text(low: float | None, high: float | None) -> str:
    """Return a range in brackets behind a time, or nothing."""
    if low is None or high is None:
        return ""
    one, other = seconds_text(low), seconds_text(high)
    if one.rpartition(" ")[2] == other.rpartition(" ")[2] and " " not in one.rpartition(" ")[0]:
        one = one.rpartition(" ")[0]
    return f" ({one} - {other})"


def state_of(activation: Activation, event: str) -> dict[str, Any]:
    """Return everything that is told of an activation: the extras of a record, and what viewers get."""
    estimate = activation.estimate
    dt_rem: float | None = 0.0
    if event == "failed":
        dt_rem = None
    elif event not in ("complete", "overdue"):
        dt_rem = None if activation.ended else activation.remaining
    parent = activation.parent
    return {
        "key": activation.key,
        "dt_est": activation.dt_est,
        "dt_rem": dt_rem,
        "event": event,
        "id": activation.id,
        "parent": None if parent is None else parent.id,
        "depth": activation.depth,
        "label": activation.label,
        "elapsed": activation.elapsed,
        "fraction": 1.0 if event == "complete" else None if event in ("failed", "overdue") else activation.fraction,
        "low": None if estimate is None else _known(estimate.low),
        "high": None if estimate is None else _known(estimate.high),
        "N_ref": activation.N_ref,
        "order": activation.step.order_name,
        "source": None if estimate is None else str(estimate.source),
        "n_ref_changed": activation.step.n_ref_changed,
        "overhead": activation.overhead,
    }


def _known(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) else None


def log_event(activation: Activation, event: str, error: BaseException | None = None) -> None:
    """Log an event of an activation if its step is logged, and send it to viewers if there are any.

    Ends (``complete``, ``failed``) are the last of their activation: whatever comes later is dropped.
    """
    watched = publish.asked()
    if not (activation.logged or watched):
        return
    state = state_of(activation, event)
    if error is not None:
        state["error"] = type(error).__name__
    if activation.logged:
        with guarded("logging a step", ("log", activation.key)):
            _emit(activation, dict(state))
    if watched:
        publish.publish({**state, "key": list(activation.key)})


def _emit(activation: Activation, state: dict[str, Any]) -> None:
    level = config.get("logging.level")
    if not LOGGER.isEnabledFor(level):
        return
    indent, above = "", activation.parent
    while above is not None:
        indent += config.get("logging.indent") if above.logged else ""
        above = above.parent
    text = f"{indent}{activation.label} -- {_message(activation, state)}"
    extra = {name: state.pop(name) for name in ("key", "dt_est", "dt_rem")}
    record = LOGGER.makeRecord(LOGGER.name, level, "", 0, text, (), None, "", {**extra, "workspan": state})
    LOGGER.handle(record)


def _message(activation: Activation, state: dict[str, Any]) -> str:
    event, expected = state["event"], state["dt_est"]
    if event == "nodata":
        return "no data available"
    if event == "overdue":
        return f"is taking longer than expected{_default_text(activation, state)}"
    took = seconds_text(state["elapsed"])
    if event == "complete":
        return f"complete after {took}" + ("" if expected is None else f" (estimated {seconds_text(expected)})")
    if event == "failed":
        return f"failed after {took} ({state.get('error', 'no reason told')})"
    if event == "start":
        if expected is None:
            return "started"
        if state["source"] == "default":
            return f"estimated completion in {_seconds_long(expected)}{_default_text(activation, state)}"
        marked = " of an earlier N_ref" if state["source"] == "stale" else ""
        basis = activation.estimate.basis
        return f"{seconds_text(expected)}{range_text(state['low'], state['high'])}, {basis}{marked}"
    remaining = state["dt_rem"]
    if remaining is None:
        return f"running for {took}, no data available"
    if remaining == 0.0:
        return f"running for {took}, longer than expected"
    left = activation.remaining_range
    return f"{seconds_text(remaining)} left{range_text(*left) if left else ''}"


def _default_text(activation: Activation, state: dict[str, Any]) -> str:
    """Return, in brackets, that what is expected is a mere default, and how many runs there are; else nothing."""
    return f" (default: {activation.estimate.basis.partition(':')[0]})" if state["source"] == "default" else ""


def _seconds_long(seconds: float) -> str:
    text = seconds_text(seconds)
    return f"{text[:-2]} seconds" if text.endswith(" s") and "min" not in text else text


class Countdown:
    """Logs the remaining time of all logged roots, by one daemon thread that exists only while there are any.

    Parameters
    ----------
    clock
        Monotonic clock, in seconds.
    threaded
        Without a thread :meth:`tick` is to be called from outside, for tests.
    """

    def __init__(self, clock: Callable[[], float], *, threaded: bool = True) -> None:
        self._clock = clock
        self._threaded = threaded
        self._due: list[tuple[float, int, bool, Activation]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, activation: Activation) -> None:
        """Begin the countdown of an activation whose clock starts now."""
        now = self._clock()
        with self._changed:
            heapq.heappush(self._due, self._next(activation, now, 0.0))
            if self._threaded:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="workspan-countdown", daemon=True)
                    self._thread.start()
                else:
                    self._changed.notify()

    def remove(self, activation: Activation) -> None:
        """End a countdown: no record of this activation follows, except its last."""
        with self._changed:
            self._due = [item for item in self._due if item[3] is not activation]
            heapq.heapify(self._due)
            self._changed.notify()

    def tick(self) -> float | None:
        """Log what is due; return the seconds until more is, or ``None`` if nothing is left to count."""
        while True:
            with self._changed:
                if not self._due:
                    return None
                now = self._clock()
                due, _, at_estimate, activation = self._due[0]
                if due > now:
                    return due - now
                heapq.heappop(self._due)
            with activation.log_lock:
                if activation.ended:
                    continue
                elapsed, expected = activation.elapsed, activation.dt_est
                overdue = expected is not None and elapsed >= expected
                if overdue or not at_estimate:  # it began a little after its countdown: then it is not time yet
                    log_event(activation, "overdue" if overdue else "progress")
            if not overdue and config.get("logging.interval") > 0.0:  # it may have been changed to none
                with self._changed:
                    if not activation.ended:
                        heapq.heappush(self._due, self._next(activation, now, elapsed))

    def _next(self, activation: Activation, now: float, elapsed: float) -> tuple[float, int, bool, Activation]:
        """When the next record is due: after the interval, or when the estimate passes."""
        wait, expected = max(config.get("logging.interval"), SHORTEST_SECONDS), activation.dt_est
        left = wait if expected is None else max(0.0, expected - elapsed)
        return now + min(wait, left), activation.id, left <= wait and expected is not None, activation

    def _run(self) -> None:
        while True:
            with guarded("the countdown of steps", "countdown"):
                self.tick()
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                wait = self._due[0][0] - self._clock()
                if wait > 0.0:
                    self._changed.wait(wait)
