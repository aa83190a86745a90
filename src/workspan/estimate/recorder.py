"""Who records: activations begin and end here, and their measurements go to the forecasts and to disk."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from workspan import config
from workspan.errors import UsageError
from workspan.estimate import activation as stacks
from workspan.estimate import publish
from workspan.estimate.activation import INERT, Activation, _stack, top
from workspan.estimate.forecast import Forecast
from workspan.estimate.keys import Key, as_key, key_of_frame, writable
from workspan.estimate.knowledge import _stored_order
from workspan.estimate.logs import Countdown, log_event
from workspan.estimate.measurements import usable
from workspan.estimate.notices import strict, warn_once
from workspan.estimate.questions import Questions
from workspan.estimate.steps import Declaration, Step, reported
from workspan.measure import notes
from workspan.measure.ticks import current_lane

_ids = secrets.token_hex(6)
_lines = itertools.count()

__all__ = ["ProgressRecorder", "default_recorder"]


class ProgressRecorder(Questions):
    """Record how long steps take, and tell how long they will.

    The one of a process is made when it is first needed (:func:`default_recorder`), and ``WallClockTime`` uses it. All
    methods may be called from any thread.

    Parameters
    ----------
    directory
        Folder of timing files; ``None``: as the settings say.
    clock
        Monotonic clock, in seconds.
    now
        Time of day, in seconds since 1970, for labels.
    threaded
        Without threads nothing is counted down and nothing saved in the background, for tests.
    """

    def __init__(
        self,
        *,
        directory: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
        threaded: bool = True,
    ) -> None:
        super().__init__(directory, clock, now, threaded)
        self.countdown = Countdown(clock, threaded=threaded)
        self.generation = -1
        self._enabled = True
        self._all_nested = False
        self._software: str | None = None
        self._interval = 30.0
        self._most = 1000

    # -- settings --

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded; follows the settings."""
        if self.generation != config.generation:
            self._refresh()
        return self._enabled

    def _refresh(self) -> None:
        self._enabled = config.get("timing.enabled")
        self._all_nested = config.get("timing.recursive") == "all"
        self._software = config.get("timing.software_version")
        self._interval = config.get("timing.save_interval")
        self._most = 20 * config.get("timing.max_measurements")
        self.generation = config.generation

    # -- activations: every line here is paid by every call of every timed function --

    def begin(self, declaration: Declaration, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Begin a step: N_ref, estimate and the first record come before its clock starts."""
        cell = _stack.get()
        entered = 0.0 if cell is None else self.clock()
        step = declaration.step if declaration.recorder is self else self._step_of(declaration)
        activation = Activation(self, step)
        try:
            if cell is not None:
                cell = top()
                if cell is not None:
                    activation.parent, activation.is_substep = cell[0], True
                    activation.nested = not self._all_nested and is_nested(step, cell[0])
            if not activation.nested:
                self._prepare(activation, step, declaration, args, kwargs)
        except BaseException as fault:
            step.active.pop(activation.id, None)
            if not isinstance(fault, Exception) or strict():
                raise
            self._fault("beginning", step, fault)
            return INERT
        if cell is not None:
            cell[0].overhead += self.clock() - entered
        _stack.set((activation, cell))
        activation._since = self.clock()
        return activation

    def _prepare(
        self,
        activation: Activation,
        step: Step,
        declaration: Declaration,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        size = declaration.number
        if declaration.code is not None:
            try:
                size = declaration.N_ref(*args, **kwargs) if kwargs else declaration.N_ref(*args)
                if type(size) is not float or not 0.0 <= size < inf:
                    size = declaration.as_size(size)
            except Exception as error:
                size = None
                reported("N_ref", step, error)
        activation.N_ref = size
        if declaration.variant is not None:
            activation.variant = _variant(step, declaration.variant, args, kwargs)
        if notes.away is not None:  # a worker: no history, no timers, no files
            self._prepare_away(activation, step, declaration, args)
            return
        forecast = step.forecasts.get(activation.variant)
        if (
            forecast is None
            or step.generation != config.generation
            or (declaration is not step.declaration and not step.fits(declaration))
        ):
            forecast = self._forecast(step, activation.variant, declaration, args)
            step.follow(declaration)
        activation.forecast = forecast
        if size is not None:
            try:
                activation.estimate = forecast.answers.get(size) or forecast.predict(size)
            except Exception as error:
                reported("the estimator", step, error)
        if current_lane.get() is not None:
            activation.section = step.section
            step.section.__enter__()
        others = step.active
        if others:
            activation.overlap = count = len(others) + 1
            for other in list(others.values()):
                other.overlap = max(other.overlap, count)
        others[activation.id] = activation
        activation.start = self.now()
        if step.logged or publish.asked():
            self._announce(activation, step.logged)

    def _prepare_away(
        self, activation: Activation, step: Step, declaration: Declaration, args: tuple[Any, ...]
    ) -> None:
        if declaration.code is not step.code:
            step.code, step.order = declaration.code, declaration.order
            try:
                step.fingerprint = declaration.print_of(args)
            except Exception as error:
                self._fault("the fingerprint of N_ref", step, error)
        if current_lane.get() is not None:
            activation.section = step.section
            step.section.__enter__()
        activation.overlap = len(step.active) + 1
        step.active[activation.id] = activation
        activation.start = self.now()

    def adopt(self, found: Sequence[notes.Note]) -> None:
        """Record measurements that workers made."""
        if not self.enabled:
            return
        for note in found:
            try:
                self._adopt(note)
            except Exception as fault:
                if strict():
                    raise
                warn_once(("adopt", type(fault)), "measurements of workers are lost: %s", fault)

    def _adopt(self, note: notes.Note) -> None:
        if usable(note.N_ref) is None or usable(note.dt) is None:  # it came over a wire
            return
        key = Key(*note.key)
        step = self._steps.get(key) or self._new_step(key)
        if step.order is None or step.fingerprint != note.fingerprint:
            step.order, step.fingerprint = _stored_order(note.order), note.fingerprint
            step.code = step.declaration = None
        activation = Activation(self, step)
        activation.N_ref, activation._elapsed, activation.start = note.N_ref, note.dt, note.start
        activation.overlap, activation.is_substep, activation.variant = note.overlap, note.substep, note.variant
        activation.forecast = forecast = self._forecast(step, note.variant, None)
        activation.estimate = forecast.predict(note.N_ref)
        self._record(activation, step, self.clock())

    def _announce(self, activation: Activation, logged: bool) -> None:
        activation.logged = logged
        if logged:
            activation.log_lock = threading.RLock()
        log_event(activation, "nodata" if activation.N_ref is None else "start")
        counts = logged and activation.parent is None and activation.dt_est is not None
        if counts and config.get("logging.interval") > 0.0:
            self.countdown.add(activation)

    def end(self, activation: Any, error: BaseException | None = None) -> None:
        """End a step. Without *error* it is measured; it is over in any case."""
        if activation is INERT:
            return
        ended = activation.pause()
        if activation.nested:
            activation.ended = True
            return
        step = activation.step
        step.active.pop(activation.id, None)
        if activation.log_lock is None:
            activation.ended = True
        else:
            with activation.log_lock:
                activation.ended = True
            if activation.parent is None:
                self.countdown.remove(activation)
        if error is not None:
            activation.failed = True
        elif notes.away is not None:
            self._note(activation, step)
        elif activation.N_ref is not None and not activation.discarded:
            try:
                self._record(activation, step, ended)
            except Exception as fault:
                if strict():
                    raise
                self._fault("recording", step, fault)
        if activation.logged or publish.asked():
            log_event(activation, "complete" if error is None else "failed", error)
        if activation.parent is not None:
            activation.parent.overhead += self.clock() - ended

    def _note(self, activation: Activation, step: Step) -> None:
        size, start, away = activation.N_ref, activation.start, notes.away
        if size is None or start is None or activation.discarded or away is None or len(away) >= notes.MOST:
            return
        fields = (step.key, step.order_name, activation.variant, step.fingerprint, size, activation._elapsed, start)
        away.append(notes.Note(*fields, activation.overlap, activation.is_substep))

    def _fault(self, what: str, step: Step, fault: Exception) -> None:
        cause = (what, step.key, type(fault))
        warn_once(cause, "step %s: %s failed: %s: %s", step.key, what, type(fault).__name__, fault)

    def _record(self, activation: Activation, step: Step, ended: float) -> None:
        forecast: Forecast = activation.forecast
        estimate = activation.estimate
        dt, size, overlap = activation._elapsed, activation.N_ref, activation.overlap
        expected = None if estimate is None else estimate.value
        start, substep = activation.start, activation.is_substep
        folder = self._folder
        series = forecast.series
        lock = self._lock
        lock.acquire()  # half the cost of a with statement
        try:
            fragment = None if folder is None else folder._fragment or folder.fragment()
            if fragment is None:
                source, line = _ids, next(_lines)
            else:
                try:
                    if fragment is not forecast.fragment or forecast.head < 0:
                        forecast.fragment = fragment
                        forecast.head = fragment.head(
                            step.key, step.order_name, forecast.variant, step.fingerprint, self._software
                        )
                    source = fragment.id
                    line = fragment.append((forecast.head, size, dt, expected, start, overlap, substep))
                except OSError as error:
                    source, line = _ids, next(_lines)
                    folder.fail(error)  # type: ignore[union-attr]
            series.new.append(
                (dt, size, expected, start, step.fingerprint, overlap, substep, self._software, source, line)
            )
            series.total += 1
            self._unsaved += 1
            if len(series.new) > self._most:
                series.thin(config.get("timing.max_measurements"))
        finally:
            lock.release()
        if folder is not None and folder.pending:
            folder.tell()
        if forecast.settled and expected is not None and -forecast.floor <= expected - dt <= forecast.floor:
            forecast.skipped += 1
        else:
            forecast.learn(dt, size, overlap, expected)
        if ended - self._saved_at > self._interval and self._threaded:
            self._save_soon()

    def reported(self, activation: Activation) -> None:
        """Take note that the work itself told how far it is."""
        if not activation.ended:
            log_event(activation, "progress")

    # -- low level --

    def record(
        self,
        key: Any = None,
        *,
        N_ref: Any = None,
        N_ref_args: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
        order: Any = "O_0",
        enable_logging: bool | None = None,
        stacklevel: int = 1,
    ) -> Any:
        """Begin a step by hand; each needs one :meth:`stop`. ``WallClockTime`` is what should normally be used.

        Parameters
        ----------
        key
            Names of the step; a single text is a step name in the calling function; ``None``: that function.
        N_ref, N_ref_args, order, enable_logging
            As in ``WallClockTime``.
        stacklevel
            1: the caller is what is timed, 2: its caller, and so on.

        Returns
        -------
        Activation
            The running step.
        """
        from workspan.estimate.steps import check_order, check_size_function, without_size

        if key is None or isinstance(key, str):
            key = key_of_frame(sys._getframe(stacklevel), key)
        check_size_function(N_ref, f"record({key!r})")
        order = check_order(order)
        if N_ref is None:
            order = without_size(order, f"record({key!r})")
        if not self.enabled:
            return INERT
        declaration = Declaration(as_key(key), order, N_ref, None, enable_logging, None, is_section=True)
        return self.begin(declaration, *N_ref_args)

    def stop(self, which: Any) -> None:
        """End a step that :meth:`record` began, by its activation or key.

        Raises
        ------
        UsageError
            It is not active.
        """
        if which is INERT:
            return
        activation = which if isinstance(which, Activation) else self.find(which)
        if activation.ended:
            raise UsageError(f"step {activation.key} is not active: it cannot be stopped")
        self.end(activation)

    # -- the life of the process --

    def _opened(self) -> None:
        if self is _default and self._threaded:
            publish.start(self.snapshot)
            atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == _pid:
            with suppress(Exception):
                self.flush()

    def close(self) -> None:
        """Save, and let go of the files; what is recorded later reads them again."""
        super().close()
        atexit.unregister(self._at_exit)

    def _after_fork(self) -> None:
        """Become the recorder of a child: no steps, no threads, and not the parent's measurements to save."""
        self._lock = threading.RLock()
        self.countdown = Countdown(self.clock, threaded=self._threaded)
        for step in self._steps.values():
            step.active.clear()
            for forecast in step.forecasts.values():
                forecast._lock = threading.Lock()
        self._unsaved = 0
        self._saver = None
        if self._folder is not None:
            self._folder.forget()


def is_nested(step: Step, parent: Activation | None) -> bool:
    """Whether the step itself is active around here."""
    while parent is not None:
        if parent.step is step and not parent.ended:
            return True
        parent = parent.parent
    return False


def _variant(step: Step, choose: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    try:
        value = choose(*args, **kwargs)
    except Exception as error:
        reported("variant", step, error)
        return None
    if isinstance(value, str) and value:
        return writable(value[:200])
    if value is not None:
        warn_once(("variant", step.key), "step %s: variant returned %r, no text; it is left out", step.key, value)
    return None


_default: ProgressRecorder | None = None
_default_lock = threading.Lock()
_pid = os.getpid()


def default_recorder() -> ProgressRecorder:
    """Return the recorder of this process."""
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = ProgressRecorder()
    return _default


def use(recorder: ProgressRecorder | None) -> ProgressRecorder | None:
    """Make another recorder that of this process; return the one before. ``None``: a new one when it is needed."""
    global _default
    before, _default = _default, recorder
    return before


def _after_fork_in_child() -> None:
    global _pid, _ids
    _pid, _ids = os.getpid(), secrets.token_hex(6)
    stacks.forget_stack()
    if _default is not None:
        _default._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
