"""What happens to measurements when N_ref or the order is another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workspan import config
from workspan.estimate import WallClockTime, accept, active, changed, discard, estimate, flush, log_remaining, remaining
from workspan.estimate.keys import Key
from workspan.estimate.recorder import ProgressRecorder
from workspan.estimate.steps import Declaration, check_order

KEY = Key("m", "f", None)


@pytest.fixture
def run(clock: Any) -> Callable[..., Any]:
    """Return what runs one step, of whatever N_ref and order, on the recorder of now."""

    def run(recorder: ProgressRecorder, n: float, seconds: float, n_ref: Any, **options: Any) -> Any:
        options = {"N_ref_version": None, "enable_logging": None, "variant": None, "order": "O_N"} | options
        options["order"] = check_order(options["order"])
        activation = recorder.begin(Declaration(KEY, N_ref=n_ref, **options), (n,), {})
        clock.work(seconds)
        recorder.end(activation)
        return activation

    return run


def one(n: float) -> float:
    """Return a size."""
    return n


def other(n: float) -> float:
    """Return another one."""
    return n * 2


def test_a_changed_n_ref_quarantines(
    recorder: ProgressRecorder, run: Any, again: Any, seen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning; the old curve answers as stale until there are enough new ones; reverting works (E47, E48, D11)."""
    for n in (1, 2, 3, 4):
        run(recorder, n, n * 10, one)
    fresh = again()
    assert run(fresh, 2, 20, one).estimate.source == "model"
    assert changed() == ()
    fresh = again()
    caplog.clear()
    first = run(fresh, 2, 20, other, enable_logging=True)
    assert first.estimate.source == "stale"
    assert first.estimate.value == pytest.approx(40, rel=0.01)
    run(fresh, 3, 30, other)
    (told,) = [record for record in caplog.records if record.name == "workspan.estimate"]
    assert told.levelname == "WARNING"
    for part in (
        "step m.f: N_ref has changed (src1:",
        "measurements so far (5) no longer count",
        "history discard 'm.f'",
    ):
        assert part in told.message
    assert changed() == (KEY,)
    assert seen.records[0].workspan["n_ref_changed"] is True
    assert (
        seen.texts[0] == "f -- 40 s (40 s - 40 s), from 5 runs of an earlier N_ref" or "earlier N_ref" in seen.texts[0]
    )
    run(fresh, 4, 40, other)
    assert estimate(KEY, 8.0).value == pytest.approx(40, rel=0.01)
    assert fresh.forecast(KEY).count == 3
    caplog.clear()
    back = again()
    assert run(back, 5, 50, one).estimate.value == pytest.approx(50, rel=0.01)
    assert back.forecast(KEY).count == 6
    assert caplog.records == []


def test_accept_lets_them_count_again(recorder: ProgressRecorder, run: Any, again: Any) -> None:
    """Also in the next process (E48)."""
    for n in (1, 2, 3):
        run(recorder, n, n * 10, one)
    fresh = again()
    run(fresh, 1, 10, other)
    assert fresh.forecast(KEY).count == 1
    accept(KEY)
    assert fresh.forecast(KEY).count == 4
    assert again().forecast(KEY).count == 4


@pytest.mark.parametrize(("wish", "left"), [("keep", 4), ("discard", 1)])
def test_other_wishes(recorder: ProgressRecorder, run: Any, again: Any, wish: str, left: int) -> None:
    """keep lets them count, discard deletes them (E48)."""
    for n in (1, 2, 3):
        run(recorder, n, n * 10, one)
    config.configure(timing={"on_n_ref_change": wish})
    fresh = again()
    run(fresh, 1, 10, other)
    assert fresh.forecast(KEY).count == left
    assert len(again().forecast(KEY).measurements()) == left


def test_discarding_spares_what_counted(recorder: ProgressRecorder, run: Any, again: Any, caplog: Any) -> None:
    """Only measurements of the earlier N_ref go, here and on disk, and their curve with them (E48)."""
    for n in (1, 2, 3):
        run(recorder, n, n * 10, 7.0)  # a number: it cannot be told from any N_ref, so these count in any case
    for n in (1, 2, 3):
        run(recorder, n, n * 10, one)
    config.configure(timing={"on_n_ref_change": "discard"})
    run(again(), 1, 10, other)
    assert "measurements so far (3) are discarded" in caplog.text
    left = again().forecast(KEY)
    assert [m.N_ref for m in left.measurements()] == [7.0, 7.0, 7.0, 2.0]


def test_a_discarded_curve_does_not_answer(recorder: ProgressRecorder, run: Any, again: Any) -> None:
    """After all measurements went, the default stands, not what was made of them (E48, E62)."""
    for n in (1, 2, 3):
        run(recorder, n, n * 10, one)
    config.configure(timing={"on_n_ref_change": "discard"})
    run(again(), 1, 10, other)
    assert again().estimate(KEY, 2.0).source == "default"


def test_discard_forgets_here_and_on_disk(recorder: ProgressRecorder, run: Any, again: Any, clock: Any) -> None:
    """What comes later counts (E48)."""
    for n in (1, 2, 3):
        run(recorder, n, n * 10, one)
    clock.work(1)
    assert discard(KEY) == 3
    clock.work(1)
    run(recorder, 1, 10, one)
    assert [m.dt for m in again().forecast(KEY).measurements()] == [10]


def test_a_changed_order_is_no_change_of_n_ref(recorder: ProgressRecorder, run: Any, again: Any, caplog: Any) -> None:
    """No warning, and the first estimate is that of the new order (E49, E78)."""
    for n in (1, 2, 3):
        run(recorder, n, n * n, one)
    fresh = again()
    assert run(fresh, 2, 4, one, order="O_N_2").estimate.value == pytest.approx(4, rel=0.2)
    assert caplog.records == []
    assert fresh.forecast(KEY).estimator.order == "O_N_2"
    assert run(fresh, 2, 4, one, order="auto").estimate is not None
    assert run(fresh, 2, 4, one, order=lambda n: n * n).estimate is not None


def test_a_version_changes_it_and_a_number_cannot(
    recorder: ProgressRecorder, run: Any, again: Any, caplog: Any
) -> None:
    """N_ref_version is mixed in (E45); a plain number has no fingerprint to compare (E44)."""
    for n in (1, 2, 3):
        run(recorder, n, n, one)
    fresh = again()
    run(fresh, 1, 1, 7.0)
    assert caplog.records == []
    fresh = again()
    run(fresh, 1, 1, one, N_ref_version="2")
    assert "N_ref has changed" in caplog.text


def test_a_with_block_in_a_loop_is_one_n_ref(recorder: ProgressRecorder, clock: Any, caplog: Any) -> None:
    """A lambda made in each pass, over changing variables, is the same function (E46)."""

    def f() -> None:
        for n in (1, 2, 3):
            with WallClockTime("s", N_ref=lambda: n, order="O_N"):  # noqa: B023
                clock.work(n)

    f()
    (key,) = recorder._steps
    assert len({m.fingerprint for m in recorder.forecast(key).measurements()}) == 1
    assert caplog.records == []


def test_when_an_estimate_is_made_anew(recorder: ProgressRecorder, run: Any) -> None:
    """From the third measurement, when it was wrong by more than the threshold and the floor (E77)."""
    for n in (1, 2):
        run(recorder, n, n, one)
    assert estimate(KEY, 1).source == "default"
    run(recorder, 3, 3, one)
    assert estimate(KEY, 1).source == "model"
    made = recorder.forecast(KEY).made
    run(recorder, 2, 2.0005, one)
    assert recorder.forecast(KEY).made is made
    config.configure(timing={"spline_order": 1})
    run(recorder, 2, 2, one)
    assert recorder.forecast(KEY).made is not made  # other options (E78)
    assert recorder.forecast(KEY).estimator.degree == 1


def test_questions_to_the_recorder(recorder: ProgressRecorder, clock: Any) -> None:
    """The short ways ask the recorder of this process (E18, E99)."""
    handle = recorder.record(("a", "b"), N_ref=1e9, order="O_N")
    assert active() == (handle,)
    assert remaining(("a", "b")) == 3.0
    assert log_remaining(("a", "b"))
    recorder.stop(handle)
    assert flush()
    assert not flush()


def test_special_cases_are_left_out(recorder: ProgressRecorder, run: Any) -> None:
    """N_ref None is neither estimated nor recorded (E36, KF-60)."""
    for _ in range(5):
        assert run(recorder, 1, 99, lambda n: None).estimate is None
    for n in (1, 2, 3):
        run(recorder, n, n, lambda n: n)
    assert recorder.forecast(KEY).count == 3
