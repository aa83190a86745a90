"""What is logged of steps, and when."""

from __future__ import annotations

import contextvars
import io
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workspan import config
from workspan.estimate import CountedProgress, ProgressBarHandler, WallClockTime, WarningCollector
from workspan.estimate.estimator import Estimator
from workspan.estimate.logs import LOGGER, LOGGER_NAME
from workspan.estimate.recorder import ProgressRecorder

M = __name__


def tick(recorder: ProgressRecorder, clock: Any, seconds: float, step: float = 0.0625) -> None:
    """Let time pass, with the countdown looking now and then."""
    for _ in range(round(seconds / step)):
        clock.work(step)
        recorder.countdown.tick()


@pytest.fixture
def quick(recorder: ProgressRecorder) -> ProgressRecorder:
    """Count down every quarter of a second; 1 s is expected for a size of 1."""
    config.configure(logging={"interval": 0.25}, timing={"default_seconds": 1.0, "default_size": 1.0})
    return recorder


def run(recorder: ProgressRecorder, clock: Any, seconds: float, n_ref: float | None = 1.0) -> None:
    """Run a logged step."""
    with WallClockTime("s", N_ref=lambda: n_ref, order="O_N", enable_logging=True):
        tick(recorder, clock, seconds)


def test_the_life_of_a_root(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """Start, progress, once overdue and then nothing, complete; remaining falls and is never negative (E91, KF-68)."""
    run(quick, clock, 3)
    assert seen.events == ["start", "progress", "progress", "progress", "overdue", "complete"]
    assert seen.texts == [
        "run: s -- estimated completion in 1.0 seconds (default: no data yet)",
        "run: s -- 750 ms left",
        "run: s -- 500 ms left",
        "run: s -- 250 ms left",
        "run: s -- is taking longer than expected (default: no data yet)",
        "run: s -- complete after 3.0 s (estimated 1.0 s)",
    ]
    remaining = [record.dt_rem for record in seen.records]
    assert remaining == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    overdue = seen.records[4].workspan
    assert 1.0 <= overdue["elapsed"] <= 1.1


def test_a_default_is_labelled(recorder: ProgressRecorder, clock: Any, seen: Any) -> None:
    """Without data the estimate says that it is a default, of order O_0 too (E75, KF-64)."""
    with WallClockTime("s", enable_logging=True) as handle:
        clock.work(1)
        assert (handle.dt_est, handle.estimate.source, handle.estimate.low) == (3.0, "default", None)
    assert seen.texts[0].endswith("estimated completion in 3.0 seconds (default: no data yet)")
    assert seen.events == ["start", "complete"]


def test_a_default_tells_the_runs_so_far(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """Until there are enough it says how many there are, also when it is exceeded; then neither (E75, E77, E91)."""
    for _ in range(4):
        run(quick, clock, 1.5)
    told = {"start": "estimated completion in 1.0 seconds", "overdue": "is taking longer than expected"}
    for event, text in told.items():
        texts = [r.getMessage() for r, each in zip(seen.records, seen.events, strict=True) if each == event]
        assert texts[:3] == [
            f"run: s -- {text} (default: {known})"
            for known in ("no data yet", "1 of 3 runs so far", "2 of 3 runs so far")
        ]
    assert texts[3:] == ["run: s -- is taking longer than expected"]


def test_hundredths_that_are_none_are_not_told(recorder: ProgressRecorder, clock: Any, seen: Any) -> None:
    """A default far below what a clock resolves reads as a time, not as 0.00 ms, in every record (KF-64)."""
    for size in (1.0, 40.0, 1e3, 1e5):
        with WallClockTime(f"s{size}", N_ref=size, order="O_N", enable_logging=True):
            clock.work(1e-6)
            recorder.countdown.tick()
    assert seen.events == ["start", "overdue", "complete"] * 2 + ["start", "complete"] * 2
    assert not [text for text in seen.texts if " 0.00 " in text or " 0.0 " in text or " 0.0000 " in text]


def test_runs_that_were_as_expected_are_told_of(
    recorder: ProgressRecorder, clock: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count is that of all runs, not of the last fit; a range with the fifth, made once (D33, E77, E87)."""
    fits: list[int] = []
    refit = Estimator._refit
    monkeypatch.setattr(Estimator, "_refit", lambda self: (fits.append(self.runs), refit(self)))

    def f(seconds: float) -> Any:
        with WallClockTime("s", enable_logging=True) as handle:
            clock.work(seconds)
        return handle

    for number in range(8):
        handle = f(0.25 + number / 1e5)
        if number >= 3:
            assert handle.estimate.basis == f"from {number} runs"
            assert recorder.estimate(handle.key, 1.0).basis == f"from {number + 1} runs"
        assert (handle.estimate.low is not None) == (number >= 5)
    starts = [text.split(" -- ")[1] for text in seen.texts if ", from " in text]
    assert [text.rpartition(", ")[2] for text in starts] == [f"from {number} runs" for number in range(3, 8)]
    assert [" - " in text for text in starts] == [False, False, True, True, True]
    assert fits == [3, 5]
    f(0.5)
    assert f(0.25).estimate.basis == "from 9 runs"
    config.configure(timing={"max_measurements": 10})
    for _ in range(5):
        f(0.25)
    assert f(0.25).estimate.basis == "from 10 runs"


def test_runs_beside_others_are_not_told_of_where_they_do_not_count(recorder: ProgressRecorder, clock: Any) -> None:
    """Runs as expected that overlapped are left out of the count, as of the estimate, if so set (E32, D33)."""
    config.configure(timing={"overlapping": "ignore"})
    for beside in [False] * 6 + [True]:
        runs = [contextvars.Context().run(recorder.record, (M, "f", "s")) for _ in range(1 + beside)]
        clock.work(0.25)
        for each in runs:
            recorder.stop(each)
        recorder.estimate((M, "f", "s"), 1.0)
    assert recorder.estimate((M, "f", "s"), 1.0).basis == "from 6 runs"


def test_learned_estimates_say_from_how_many_runs(recorder: ProgressRecorder, clock: Any, seen: Any) -> None:
    """From the third measurement on, and with a range from the fifth (E87, E91)."""

    def f(seconds: float) -> None:
        with WallClockTime("s", enable_logging=True):
            clock.work(seconds)

    for seconds in (38, 37.5, 38.5, 38, 60, 38, 38):
        f(seconds)
    starts = [text for text, event in zip(seen.texts, seen.events, strict=True) if event == "start"]
    assert [text.split(" -- ")[1].split(" (")[0] for text in starts[:3]] == ["estimated completion in 3.0 seconds"] * 3
    assert starts[3].endswith("38 s, from 3 runs")
    assert starts[-1].startswith("f: s -- 38 s (")
    assert starts[-1].endswith(" runs")


def test_interval_zero_logs_start_and_end(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """No countdown (E91)."""
    config.configure(logging={"interval": 0})
    run(quick, clock, 2)
    assert seen.events == ["start", "complete"]


def test_no_data(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """N_ref None: one record instead of the start, no countdown, no measurement (E36, E92, KF-60)."""
    run(quick, clock, 2, None)
    assert seen.events == ["nodata", "complete"]
    assert seen.texts[0] == "run: s -- no data available"
    assert quick.forecast((M, "run", "s")).measurements() == []


def test_a_failure_is_told(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """One record with the type of the exception, and nothing after it (E94, KF-68)."""

    def f() -> None:
        with WallClockTime("s", N_ref=1.0, order="O_N", enable_logging=True):
            tick(quick, clock, 0.375)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        f()
    tick(quick, clock, 3)
    assert seen.events == ["start", "progress", "failed"]
    assert seen.texts[-1].endswith("failed after 375 ms (ValueError)")
    assert seen.records[-1].dt_rem is None
    assert seen.records[-1].workspan["fraction"] is None


def test_substeps_are_short_and_indented_by_logged_ancestors(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """Start and complete only, never a countdown (E93)."""

    def f() -> None:
        with (
            WallClockTime("a", enable_logging=True),
            WallClockTime("silent", enable_logging=False),
            WallClockTime("c", N_ref=1.0, order="O_N", enable_logging=True),
        ):
            clock.work(2)

    f()
    assert seen.texts[1:3] == [
        "  c -- estimated completion in 1.0 seconds (default: no data yet)",
        "  c -- complete after 2.0 s (estimated 1.0 s)",
    ]
    assert [record.key[2] for record in seen.records] == ["a", "c", "c", "a"]
    assert quick.forecast((M, f.__qualname__, "silent")).count == 1


@pytest.mark.parametrize(
    ("roots", "wish", "logged"),
    [
        ([], None, False),
        ([], True, True),
        (["Service"], None, True),
        (["Service"], False, False),
        (["Serv*"], None, True),
        (["*.reduce"], None, True),
        ([__name__], None, True),
        (["reduce"], None, False),
        (["Recipe"], None, False),
    ],
)
def test_which_steps_are_logged(
    recorder: ProgressRecorder, seen: Any, roots: list[str], wish: bool | None, logged: bool
) -> None:
    """By the declaration, else by the roots; recorded in any case; a change counts at once (E73, E90)."""

    class Service:
        def reduce(self) -> None: ...

    Service.__qualname__ = "Service"
    Service.reduce.__qualname__ = "Service.reduce"
    Service.reduce = WallClockTime(enable_logging=wish)(Service.reduce)  # type: ignore[method-assign]
    Service().reduce()
    assert seen.events == (["start", "complete"] if wish else [])
    config.configure(logging={"roots": roots})
    seen.records.clear()
    Service().reduce()
    assert seen.events == (["start", "complete"] if logged else [])
    assert recorder.forecast((M, "Service.reduce", None)).count == 2


def test_null_names_never_match(recorder: ProgressRecorder, seen: Any) -> None:
    """A step without qualified name is no root, whatever the patterns (E90)."""
    config.configure(logging={"roots": ["*"]})
    recorder.stop(recorder.record((None, None, "x")))
    assert seen.events == []


def test_every_record_has_the_extras(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """Flat extras and the dict, in each event, and none hides an attribute of records (E95, E96)."""
    run(quick, clock, 2)
    wanted = {"event", "id", "parent", "depth", "label", "elapsed", "fraction", "low", "high", "N_ref", "order"}
    plain = vars(logging.LogRecord("", 0, "", 0, "", (), None))
    assert not {"key", "dt_est", "dt_rem", "workspan"} & plain.keys()
    for record in seen.records:
        assert record.key == (M, "run", "s")
        assert record.dt_est == 1.0
        assert wanted | {"source"} <= record.workspan.keys()
        assert (record.workspan["N_ref"], record.workspan["order"]) == (1.0, "O_N")
        assert (record.name, record.levelno) == (LOGGER_NAME, logging.INFO)
    fractions = [record.workspan["fraction"] for record in seen.records]
    assert fractions == pytest.approx([0.0, 0.25, 0.5, 0.75, None, 1.0])


def test_the_level_follows_the_setting(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """logging.level is that of the records (E96)."""
    config.configure(logging={"level": 10})
    run(quick, clock, 0.1)
    assert {record.levelno for record in seen.records} == {10}


def test_the_state_on_demand(recorder: ProgressRecorder, clock: Any, seen: Any) -> None:
    """log_remaining logs any active step, also a silent one; inactive: nothing, False (E99)."""
    with WallClockTime("s", N_ref=1e9, order="O_N") as handle:
        clock.work(1)
        assert handle.log_remaining()
        assert recorder.log_remaining(handle.key)
    assert not handle.log_remaining()
    assert not recorder.log_remaining(handle.key)
    assert seen.texts == ["test_the_state_on_demand: s -- 2.0 s left"] * 2


def test_a_raising_or_slow_handler_does_no_harm(
    recorder: ProgressRecorder, clock: Any, seen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The call ends well, its time is its own, and the fault is told once (E20, E35, E102)."""

    class Bad(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            clock.work(100)
            raise RuntimeError("handler")

    bad = Bad()
    LOGGER.addHandler(bad)
    try:
        for _ in range(2):
            with WallClockTime("s", enable_logging=True):
                clock.work(1)
    finally:
        LOGGER.removeHandler(bad)
    forecast = recorder.forecast((M, "test_a_raising_or_slow_handler_does_no_harm", "s"))
    assert [m.dt for m in forecast.measurements()] == [1.0, 1.0]
    assert [r.message for r in caplog.records if r.name == "workspan.estimate"] == [
        "logging a step failed: RuntimeError: handler"
    ]


def test_the_real_countdown_ends_with_its_step(seen: Any, recorder: ProgressRecorder) -> None:
    """One daemon thread while needed; nothing of a step follows its end; the thread is gone after it (E98)."""
    real = ProgressRecorder(directory=recorder._directory or config.get("timing.directory"))
    config.configure(logging={"interval": 0.01}, timing={"default_seconds": 1000.0})
    ticked = threading.Event()

    class Waiter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.workspan["event"] == "progress":  # type: ignore[attr-defined]
                ticked.set()

    waiter = Waiter()
    LOGGER.addHandler(waiter)
    try:
        handles = [real.record(name, enable_logging=True) for name in "a"]
        assert ticked.wait(10)
        names = [t for t in threading.enumerate() if t.name == "workspan-countdown"]
        assert len(names) == 1
        assert names[0].daemon
        for handle in handles:
            real.stop(handle)
        names[0].join(10)
        assert not names[0].is_alive()
        assert seen.events[-1] == "complete"
    finally:
        LOGGER.removeHandler(waiter)
        real.close()


def test_exit_does_not_wait_for_the_estimate(tmp_path: Path) -> None:
    """A process that ends inside a step with a long estimate is gone at once, without measurement (E98, E115)."""
    code = (
        "import logging, sys; logging.basicConfig(level=20)\n"
        "from workspan.estimate import WallClockTime\n"
        "WallClockTime('s', N_ref=1e12, order='O_N', enable_logging=True).__enter__()\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"WORKSPAN_TIMING_DIRECTORY": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)},
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "estimated completion in 50 min 0 s" in done.stderr
    assert time.monotonic() - started < 20
    assert list(tmp_path.glob("*.json")) == []


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def test_the_bar_is_driven_by_extras_alone(quick: ProgressRecorder, clock: Any) -> None:
    """It fills, is full only when complete, runs to and fro when overdue, and is reset by a failure (E97)."""
    stream = Terminal()
    handler = ProgressBarHandler(stream, width=10)
    LOGGER.addHandler(handler)
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    try:
        run(quick, clock, 1.5)
        drawn = stream.getvalue().split("\r")
        assert drawn[1].rstrip() == "run: s [          ] 1.0 s left"
        assert "[#####     ] 500 ms left" in stream.getvalue()
        assert "<=>" in drawn[-2]
        assert drawn[-1].startswith("run: s [##########] done in 1.5 s")
        assert stream.getvalue().endswith("\n")
        with pytest.raises(ValueError, match="x"), WallClockTime("t", enable_logging=True):
            raise ValueError("x")
        assert "t [          ] failed" in stream.getvalue()
        plain = handler.stream = io.StringIO()
        run(quick, clock, 0.1)
        assert plain.getvalue().splitlines()[0].startswith("run: s -- ")
        assert "\r" not in plain.getvalue()
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


def test_counted_progress(recorder: ProgressRecorder, seen: Any) -> None:
    """Reset sets the counter to 0, report logs count and fraction and adds 1, with a step or without (E100)."""
    counted = CountedProgress(0.5, 1.0, 4)
    assert [counted.report("x") for _ in range(3)] == [0.5, 0.625, 0.75]
    counted.reset(n=2)
    with WallClockTime("s") as handle:
        assert [counted.report("y\n") for _ in range(4)] == [0.0, 0.5, 1.0, 1.0]
    assert seen.records[0].key is None
    assert seen.records[-1].key == handle.key
    assert [record.workspan["count"] for record in seen.records] == [0, 1, 2, 0, 1, 2, 3]
    assert seen.texts[1] == "x (1 of 4, 62 %)"


def test_warnings_are_collected() -> None:
    """By a handler: formatting arguments work, and loggers are as before afterwards (E101)."""
    logger = logging.getLogger("some.app")
    with WarningCollector("some.app") as warnings:
        assert not warnings.has()
        logger.warning("%d of %d", 1, 2)
        logger.info("no")
        assert warnings.has()
        assert warnings.get() == ["1 of 2"]
        warnings.clear()
        assert warnings.get() == []
    logger.warning("after")
    assert not warnings.has()


def test_overdue_is_not_told_too_early(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """A clock that began a little after its countdown: silence until the estimate has really passed (E91)."""
    config.configure(logging={"interval": 10})
    handle = quick.record("s", N_ref=1.0, order="O_N", enable_logging=True)
    handle._since += 0.25
    clock.work(1.0)
    assert quick.countdown.tick() == 0.25
    assert seen.events == ["start"]
    clock.work(0.25)
    quick.countdown.tick()
    assert seen.events == ["start", "overdue"]
    quick.stop(handle)


def test_a_countdown_ends_when_the_interval_becomes_zero(quick: ProgressRecorder, clock: Any, seen: Any) -> None:
    """No flood of records: a step that is counted down is left alone (E73, E91); nor with an interval of almost 0."""
    config.configure(logging={"interval": 0.25})
    handle = quick.record("s", N_ref=1.0, order="O_N", enable_logging=True)
    config.configure(logging={"interval": 0})
    clock.work(0.25)
    assert quick.countdown.tick() is None
    quick.stop(handle)
    assert seen.events == ["start", "progress", "complete"]
    config.configure(logging={"interval": 1e-9})
    handle = quick.record("s", N_ref=1.0, order="O_N", enable_logging=True)
    assert quick.countdown.tick() == pytest.approx(0.01)
    quick.stop(handle)


def test_what_logging_a_substep_takes_is_overhead_of_its_parent(
    recorder: ProgressRecorder, clock: Any, seen: Any
) -> None:
    """Records of its start and of its end lie in the parent's time, and are told apart from its work (E35)."""

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            clock.work({"start": 3.0, "complete": 20.0}[record.workspan["event"]])  # type: ignore[attr-defined]

    slow = Slow()
    LOGGER.addHandler(slow)
    try:
        with WallClockTime("parent", enable_logging=False) as parent, WallClockTime("child", enable_logging=True):
            clock.work(1.0)
    finally:
        LOGGER.removeHandler(slow)
    assert (parent.elapsed, parent.overhead) == (24.0, 23.0)
