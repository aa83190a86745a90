"""What a recorder knows: its steps with their forecasts, and the files that they come from and go to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workspan import config
from workspan.errors import UsageError
from workspan.estimate.files import TimingFolder, timing_directory
from workspan.estimate.forecast import Forecast
from workspan.estimate.keys import Key
from workspan.estimate.measurements import Series, StepHistory, in_order, trim
from workspan.estimate.notices import guarded, warn_once
from workspan.estimate.steps import Declaration, Step, check_order

__all__ = ["Knowledge"]

RENEWING_SECONDS = 0.5
"""How long a save may fit curves anew."""


class Knowledge:
    """Steps and their history; the base of the recorder.

    Parameters
    ----------
    directory, clock, now, threaded
        As for the recorder.
    """

    def __init__(
        self, directory: Path | None, clock: Callable[[], float], now: Callable[[], float], threaded: bool
    ) -> None:
        self.clock = clock
        self.now = now
        self._directory = directory
        self._threaded = threaded
        self._lock = threading.RLock()
        self._steps: dict[Key, Step] = {}
        self._folder: TimingFolder | None = None
        self._history: dict[Key, StepHistory] | None = None
        self._unsaved = 0
        self._saved_at = clock()
        self._saver: threading.Thread | None = None

    # -- steps --

    def _new_step(self, key: Key) -> Step:
        with self._lock:
            return self._steps.setdefault(key, Step(key))

    def _step_of(self, declaration: Declaration) -> Step:
        step = self._steps.get(declaration.key) or self._new_step(declaration.key)
        declaration.recorder, declaration.step = self, step
        return step

    def _forecast(
        self, step: Step, variant: str | None, declaration: Declaration | None, args: tuple[Any, ...] = ()
    ) -> Forecast:
        """Return the forecast of a step in a variant, brought up to date with its declaration and the settings."""
        history = self._loaded()
        changed = None
        if declaration is not None:
            print_of = step.fingerprint
            if declaration.code is not step.code:
                with guarded(f"the fingerprint of N_ref of step {step.key}", ("fingerprint", step.key)):
                    print_of = declaration.print_of(args)
                step.code = declaration.code
        with self._lock:
            kept = step.history
            if kept is None:
                kept = step.history = history.setdefault(step.key, StepHistory(step.key))
            if declaration is not None:
                step.order = declaration.order
                if print_of != step.fingerprint:
                    changed = step.fingerprint, print_of
                    step.fingerprint = print_of
            forecast = step.forecasts.get(variant)
            if forecast is None:
                forecast = step.forecasts[variant] = Forecast(kept, variant)
        if changed is not None:
            self._compare(step)
        for each in list(step.forecasts.values()):
            each.declare(step.order, step.fingerprint)
        return forecast

    def _compare(self, step: Step) -> None:
        """Tell if stored measurements were made with another N_ref, and do with them what the settings say."""
        kept, new = step.history, step.fingerprint
        if kept is None or new is None:
            return
        with self._lock:
            measured = [m for series in kept.series.values() for m in series.measurements]
            affected = [m for m in measured if not kept.counts(m, new)]
            old = affected[-1].fingerprint if affected else None
            known = any(m.fingerprint == new for m in measured)
            wish = config.get("timing.on_n_ref_change")
            kept.fingerprint = new
            if not affected or known:
                return
            step.n_ref_changed = True
            if wish == "keep":
                kept.accepted += sorted({str(m.fingerprint) for m in affected} - {*kept.accepted})
            elif wish == "discard":
                kept.dropped |= dict.fromkeys((str(m.fingerprint) for m in affected), self.now())
                for series in kept.series.values():
                    series.measurements = [m for m in series.measurements if not kept.is_thrown_away(m)]
                    series.estimate = None
        does = {
            "keep": "are kept; workspan history discard {0!r} deletes them",
            "discard": "are discarded, as timing.on_n_ref_change says",
        }.get(
            wish,
            "no longer count; workspan history discard {0!r} deletes them, workspan.estimate.accept(key) lets them "
            "count again",
        )
        warn_once(
            ("n_ref", step.key, new),
            "step %s: N_ref has changed (%s -> %s); its measurements so far (%d) %s",
            step.key,
            old,
            new,
            len(affected),
            does.format(step.key.full_name),
        )

    def _loaded(self) -> dict[Key, StepHistory]:
        """Return what the files hold, read at the first call."""
        if self._history is not None:
            return self._history
        history = self._load()
        if self._folder is not None:
            self._folder.tell()
        return history

    def _load(self) -> dict[Key, StepHistory]:
        with self._lock:
            if self._history is None:
                self._history = {}
                with guarded("reading the timing files", "load"):
                    self._folder = TimingFolder(self._directory or timing_directory())
                    self._history = self._folder.load()
                self._opened()
            return self._history

    def _opened(self) -> None:
        """Do what is due once the files were read for the first time."""

    # -- files --

    def flush(self) -> bool:
        """Merge what was recorded into the timing files now; return whether there was anything, and it is done."""
        with self._lock:
            folder = self._folder
            if folder is None or not self._unsaved or not folder.writes:
                return False
            written = folder.rotate()
            count, self._unsaved = self._unsaved, 0
            self._saved_at = self.clock()
            made: list[tuple[Series, Forecast]] = []
            recent = sorted(self._loaded().values(), key=StepHistory.last_use, reverse=True)
            steps = {kept.key: self._copied(kept.key, made) for kept in recent[: config.get("timing.max_steps")]}
        hurry = time.monotonic() + RENEWING_SECONDS
        for series, forecast in made:  # without the lock, for which other threads would wait at the end of a step
            series.estimate = forecast.stored(renewed=time.monotonic() < hurry)
        done = folder.save(steps, written)
        folder.tell()
        with self._lock:
            if done is None:
                self._unsaved += count
                return False
        return True

    def _copied(self, key: Key, made: list[tuple[Series, Forecast]]) -> StepHistory:
        """Copy what is known of a step, so that it can be written without the lock; add what has an estimator."""
        kept = self._loaded()[key]
        step = self._steps.get(key)
        copy = StepHistory(**{name: getattr(kept, name) for name in kept.__struct_fields__})
        copy.series = {}
        if step is not None:
            copy.order = step.order_name if step.order is not None else kept.order
            copy.fingerprint = step.fingerprint or kept.fingerprint
        for variant, series in kept.series.items():
            forecast = None if step is None else step.forecasts.get(variant)
            mine = copy.variant(variant)
            series.measurements = trim(in_order(series.measurements), config.get("timing.max_measurements"))
            mine.measurements, mine.total = list(series.measurements), series.total
            mine.estimate = series.estimate
            if forecast is not None:
                made.append((mine, forecast))
            for measurement in mine.measurements:
                if measurement.start is not None and measurement.start > copy.used:
                    copy.used = measurement.start
        return copy

    def _save_soon(self) -> None:
        with self._lock:
            if self._saver is not None and self._saver.is_alive():
                return
            self._saved_at = self.clock()
            self._saver = threading.Thread(target=self._save_quietly, name="workspan-save", daemon=True)
            self._saver.start()

    def _save_quietly(self) -> None:
        with guarded("saving timings", "save"):
            self.flush()

    def close(self) -> None:
        """Save, and let go of the files; what is recorded later reads them again."""
        self.flush()
        with self._lock:
            folder, self._folder, self._history = self._folder, None, None
            self._steps.clear()
            if folder is not None and (fragment := folder.rotate()) is not None:
                fragment.finish()


def _stored_order(name: str | None) -> Any:
    """Return the order of a stored step; one that is a function of another program is not known here."""
    try:
        return check_order(name or "O_0")
    except UsageError:
        return check_order("O_N")
