"""What is made of the frames of running programs: a tree, a picture, lines. The clock is the test's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan.views.watch import Change, ProgramState, StepState, WatchState, describe, render
from workspan.views.watch_plain import MOST_A_SECOND, PlainLines

BEGIN, END = {"kind": "sync", "stage": "begin", "dropped": 0}, {"kind": "sync", "stage": "end", "more": 0}


def record(
    event: str, id: Any, label: str = "", parent: Any = None, elapsed: float = 0.0, **fields: Any
) -> dict[str, Any]:
    """A record about a step."""
    label = label or str(id)
    return {"kind": "step", "event": event, "id": id, "parent": parent, "label": label, "elapsed": elapsed, **fields}


def expected(seconds: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """Fields of a step that has an estimate."""
    return {"dt_est": seconds, "low": low, "high": high, "source": "fitted"}


def program(*records: dict[str, Any], at: float = 0.0) -> ProgramState:
    """A program that has sent *records* at *at*."""
    state = ProgramState(4121, "reduction.py")
    for one in records:
        state.receive(one, at)
    return state


def picture(state: ProgramState, now: float = 0.0, *, ascii_only: bool = False) -> list[str]:
    """The lines of the picture, without the first."""
    return [line.plain.rstrip() for line in render([state], now, ascii_only=ascii_only)][1:]


class TestPicture:
    """What a person sees."""

    def test_the_scene(self) -> None:
        """A root with its range, a substep that is over and one that goes on, as a person is to see them (D30)."""
        state = program(record("start", 1, "reduce", **expected(38, 33, 45)))
        state.receive(record("start", 2, "load", 1), 0.0)
        state.receive(record("complete", 2, "load", 1, 11.2), 11.2)
        state.receive(record("start", 3, "normalise", 1, **expected(27)), 11.2)
        (title, *lines) = [line.plain.rstrip() for line in render([state], 24.2)]
        assert title == "pid 4121  reduction.py"
        assert lines == [
            "  reduce       ━━━━━━━━━━━━╸───────  24 s of 38 s, 14 s left (9 - 21)",
            "    load       ✔ 11.2 s",
            "    normalise  ━━━━━━━━━╸──────────  13 s of 27 s",
        ]

    def test_ascii(self) -> None:
        """A terminal that has only ASCII gets signs that it has (D16)."""
        state = program(record("start", 1, "a", **expected(10)), record("start", 2, "b"), record("complete", 3, "c"))
        lines = picture(state, 5.0, ascii_only=True)
        assert lines == [
            "  c  ok 0.0 us",
            "  a  ##########..........  5.0 s of 10 s, 5.0 s left",
            "  b  ....................  5.0 s so far",
        ]
        assert "".join(lines).isascii()

    def test_few_columns(self) -> None:
        """In a narrow terminal the bar gives way to the figures (R63)."""
        state = program(record("start", 1, "a", **expected(10)))
        bars = {
            width: len(re.findall("[━╸─]", render([state], 5.0, width=width)[1].plain))
            for width in (30, 50, 60, 80, 200)
        }
        assert bars == {30: 0, 50: 5, 60: 10, 80: 20, 200: 20}

    def test_nothing(self) -> None:
        """A program without active steps says so."""
        assert picture(program()) == ["  no step is active"]

    def test_control_codes(self) -> None:
        """Names from other programs cannot steer the terminal, nor be taken for markup (E111, KF-72, R50)."""
        state = ProgramState(1, "x\r\ny")
        state.receive(record("start", 1, "a\x1b[2Jb\x1b]0;owned\x07 [red]x[/red]"), 0.0)
        state.receive(record("failed", 2, "c", error="E\x1b[31m"), 0.0)
        text = "\n".join(line.plain for line in render([state], 0.0))
        assert not set("\x1b\x07\r") & set(text)
        assert "x\\r\\ny" in text
        assert "a\\x1b[2Jb\\x1b]0;owned\\x07 [red]x[/red]" in text
        assert "(E\\x1b[31m)" in text

    def test_many_runs_of_a_step_are_one_line(self) -> None:
        """A loop of substeps does not fill the screen."""
        state = program(record("start", 1, "root"))
        for n in range(100):
            state.receive(record("start", 10 + n, "tile", 1), 0.0)
            state.receive(record("complete", 10 + n, "tile", 1, 0.25), 0.0)
        assert picture(state)[1:] == ["    tile  ✔ 100 times, 250.0 ms each"]

    def test_failures(self) -> None:
        """A failed step is told with its cause and leaves no bar behind (E94, E97)."""
        state = program(record("start", 1, "root"), record("start", 2, "fit", 1, **expected(5)))
        state.receive(record("failed", 2, "fit", 1, 3.2, error="ValueError"), 0.0)
        assert picture(state)[1:] == ["    fit  ✗ failed after 3.2 s (ValueError)"]
        state.receive(record("complete", 3, "fit", 1, 3.2), 0.0)
        assert picture(state)[1:] == ["    fit  ✗ 1 of 2 failed (ValueError)"]

    def test_only_the_last_roots_stay(self) -> None:
        """Of roots that are over the last three are shown, of others the last eight kinds."""
        state = program(*(record("complete", n, f"r{n}", elapsed=1.0) for n in range(10)), record("start", 99, "root"))
        for n in range(20):
            state.receive(record("complete", 100 + n, f"s{n}", 99, 1.0), 0.0)
        names = [line.split()[0] for line in picture(state)]
        assert names == ["r7", "r8", "r9", "root", *(f"s{n}" for n in range(12, 20))]


@pytest.mark.parametrize(
    ("fields", "at", "text"),
    [
        (expected(38, 33, 45), 24.0, "24 s of 38 s, 14 s left (9 - 21)"),
        (expected(38, 30, 45), 10.0, "10 s of 38 s, 28 s left (20 - 35)"),
        (expected(10, 9, 12), 2.5, "2.5 s of 10 s, 7.5 s left (6.5 - 9.5)"),
        (expected(60, 40, 80), 38.0, "38 s of 1 min 0 s, 22 s left (2 - 42)"),
        (expected(38), 24.0, "24 s of 38 s, 14 s left"),
        (expected(380, 300, 420), 24.0, "24 s of 6 min 20 s, 5 min 56 s left (4 min 36 s - 6 min 36 s)"),
        (expected(38, 33, 45), 40.0, "40 s, longer than the 38 s expected"),
        ({"dt_est": 3.0, "source": "default"}, 1.0, "1.0 s so far (no data yet)"),
        ({"dt_est": 3.0, "source": "default"}, 4.0, "4.0 s so far (no data yet)"),
        ({}, 24.0, "24 s so far"),
        ({"dt_est": float("nan")}, 24.0, "24 s so far"),
        ({"dt_est": -3.0}, 24.0, "24 s so far"),
        ({"fraction": 0.25, **expected(40)}, 24.0, "24 s, 25% done, 16 s left"),
        ({"fraction": 0.25, **expected(20)}, 24.0, "24 s, 25% done"),
        ({"fraction": 0.25}, 24.0, "24 s, 25% done"),
        (expected(0.05), 1.0, "1.0 s, longer than the 50 ms expected"),
    ],
)
def test_how_far_a_root_is(fields: dict[str, Any], at: float, text: str) -> None:
    """Elapsed, expected and remaining time with its range, claiming no more than is known (E76, E87, E91)."""
    state = program(record("start", 1, **fields))
    assert describe(state.steps[1], at, is_root=True) == text


class TestTime:
    """Elapsed time between records."""

    def test_it_goes_on_by_the_watchers_clock(self) -> None:
        """A step's elapsed time runs from its last record on (E109)."""
        state = program(record("start", 1, elapsed=5.0, **expected(20)), at=100.0)
        assert state.steps[1].elapsed_at(103.0) == 8.0
        assert state.steps[1].fraction_at(105.0) == 0.5

    def test_it_never_goes_back(self) -> None:
        """A clock that lags takes nothing off (E76)."""
        assert program(record("start", 1, elapsed=5.0), at=100.0).steps[1].elapsed_at(99.0) == 5.0

    def test_a_bar_is_never_full(self) -> None:
        """It stays below 1 until the step is complete, by the clock and by the program's own count (E97)."""
        state = program(record("start", 1, **expected(20)), record("start", 2, fraction=1.0))
        assert state.steps[1].fraction_at(500.0) == 0.999
        assert state.steps[2].fraction_at(0.0) == 0.999

    def test_a_fraction_by_the_clock_is_no_count(self) -> None:
        """Only a fraction that the program counted itself stands still between records (E95, E17)."""
        by_clock = program(record("progress", 1, elapsed=5.0, fraction=0.25, **expected(20)))
        counted = program(record("progress", 1, elapsed=5.0, fraction=0.75, **expected(20)))
        assert by_clock.steps[1].fraction_at(5.0) == 0.5
        assert counted.steps[1].fraction_at(5.0) == 0.75


class TestTree:
    """What belongs to what."""

    def tree(self, state: ProgramState) -> list[tuple[int, Any]]:
        """Depths and ids."""
        return [(depth, step.id) for depth, step in state.tree()]

    def test_order(self) -> None:
        """Steps stand below their parents, in the order in which they began."""
        state = program(
            *(record("start", id, parent=parent) for id, parent in [(1, None), (5, None), (2, 1), (4, 1), (3, 2)])
        )
        assert self.tree(state) == [(0, 1), (1, 2), (2, 3), (1, 4), (0, 5)]

    def test_a_parent_that_ends_first(self) -> None:
        """A substep that outlives its parent is shown as a root (E26)."""
        state = program(record("start", 1), record("start", 2, parent=1), record("complete", 1))
        assert self.tree(state) == [(0, 2)]

    def test_an_unknown_parent(self) -> None:
        """A step whose parent's record was left out is shown all the same (E108)."""
        assert self.tree(program(record("start", 2, parent=1))) == [(0, 2)]

    def test_circles(self) -> None:
        """Records that make no tree do no harm."""
        state = program(record("start", 1, parent=2), record("start", 2, parent=1), record("start", 3, parent=3))
        assert self.tree(state) == [(0, 3)]
        assert state.receive(record("complete", 1, parent=2), 0.0).path == ("2", "1")

    def test_an_end_without_a_beginning(self) -> None:
        """A step that is only heard of at its end is counted where it belongs (E108)."""
        state = program(record("start", 1), record("complete", 2, "late", 1, 3.0))
        assert state.steps[1].ended["late"].times == 1
        assert list(state.steps) == [1]

    def test_a_state_that_is_sent_anew(self) -> None:
        """What is not told again is over, what is told stays as it was known, with what was over within it (E108)."""
        state = program(record("start", 1), record("complete", 9, "x", 1), record("start", 2), record("start", 3))
        for one in ({**BEGIN, "dropped": 7}, record("start", 1), record("start", 4), END):
            state.receive(one, 0.0)
        assert self.tree(state) == [(0, 1), (0, 4)]
        assert "x" in state.steps[1].ended
        assert state.dropped == 7

    def test_a_state_that_is_not_whole(self) -> None:
        """Where the state was cut, what is not told is kept (E106)."""
        state = program(record("start", 1))
        for one in (BEGIN, record("start", 2), {**END, "more": 3}):
            state.receive(one, 0.0)
        assert self.tree(state) == [(0, 1), (0, 2)]

    def test_very_many(self) -> None:
        """No program makes the watcher grow without end (R62)."""
        state = program(*(record("start", n) for n in range(3000)))
        assert len(state.steps) == 2000

    def test_programs_are_apart(self) -> None:
        """Equal ids of two processes are two steps; a program that has gone is forgotten (D30, E111)."""
        watch = WatchState()
        watch.open(1, 10, "a.py")
        watch.open(2, 11, "b.py")
        watch.receive(1, record("start", 1), 0.0)
        watch.receive(2, record("start", 1), 0.0)
        assert [line.plain for line in render(watch.programs.values(), 0.0)][::2] == ["pid 10  a.py", "pid 11  b.py"]
        watch.close(1)
        assert watch.receive(1, record("start", 1), 0.0) is None
        assert list(watch.programs) == [2]


junk = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)
names = st.sampled_from(
    ["kind", "event", "id", "parent", "label", "elapsed", "dt_est", "low", "fraction", "stage", "more"]
)
words = st.sampled_from(["step", "sync", "run", "start", "complete", "failed", "begin", "end", "progress", 1, 2, None])


@given(st.lists(st.dictionaries(names, words | junk, max_size=8), max_size=8))
def test_no_frames_crash_it(frames: list[dict[str, Any]]) -> None:
    """Unknown kinds, missing and wrong fields are passed over, and there is always a picture (E107, D30)."""
    state, plain = program(), PlainLines()
    for frame in frames:
        change = state.receive({"kind": "step", **frame}, 0.0)
        if change is not None:
            assert all("\n" not in line for line in plain.lines(state, change, 0.0))
        assert render([state], 1.0)


class TestPlainLines:
    """Lines for a log."""

    def lines(self, state: ProgramState, plain: PlainLines, *records: dict[str, Any], now: float = 0.0) -> list[str]:
        """The lines for *records*."""
        lines: list[str] = []
        for one in records:
            if (change := state.receive(one, now)) is not None:
                lines += plain.lines(state, change, now)
        return lines

    def test_a_life(self) -> None:
        """Start, substeps by their path, progress, overdue, the end (E91, E93, E94)."""
        state, plain = program(), PlainLines()
        lines = self.lines(
            state,
            plain,
            record("start", 1, "reduce", **expected(38, 33, 45)),
            record("nodata", 2, "load", 1),
            record("complete", 2, "load", 1, 11.2),
            record("progress", 1, "reduce", elapsed=24.0, **expected(38, 33, 45)),
            record("overdue", 1, "reduce", elapsed=38.5, **expected(38, 33, 45)),
            record("failed", 1, "reduce", elapsed=40.0, error="OSError"),
        )
        assert [line.removeprefix("reduction.py (pid 4121): ") for line in lines] == [
            "reduce: started, 38 s expected (33 - 45 s)",
            "reduce > load: started",
            "reduce > load: complete after 11.2 s",
            "reduce: 24 s of 38 s, 14 s left (9 - 21)",
            "reduce: 38 s, longer than the 38 s expected",
            "reduce: failed after 40.0 s (OSError)",
        ]

    def test_what_was_active_before(self) -> None:
        """A step that this watcher finds active is told as it is, once (E109)."""
        state, plain = program(), PlainLines()
        found = (BEGIN, record("start", 1, "reduce", elapsed=24.0, **expected(38)), END)
        (line,) = self.lines(state, plain, *found)
        assert line.endswith("reduce: 24 s of 38 s, 14 s left")
        assert self.lines(state, plain, *found) == []

    def test_inner_steps_do_not_flood_a_log(self) -> None:
        """Of very many substeps a second only some are told, the rest is counted; roots are always told."""
        state, plain = program(record("start", 1, "root")), PlainLines()
        flood = [record("start", 10 + n, "s", 1) for n in range(100)]
        assert len(self.lines(state, plain, *flood, now=5.0)) == MOST_A_SECOND
        lines = self.lines(state, plain, record("complete", 1, "root"), now=5.1)
        assert lines[0] == "(80 lines about inner steps were left out)"
        assert len(lines) == 2

    def test_now_and_then(self) -> None:
        """How far a root is, is told every 10 s if the program says nothing."""
        state, plain = program(record("start", 1, "root"), record("start", 2, "inner", 1)), PlainLines()
        assert list(plain.overviews([state], 0.0)) == []
        assert list(plain.overviews([state], 9.9)) == []
        assert list(plain.overviews([state], 10.0)) == ["reduction.py (pid 4121): root: 10 s so far"]
        assert list(plain.overviews([state], 11.0)) == []
        plain.lines(state, Change("progress", state.steps[1], ("root",)), 19.0)
        list(plain.lines(state, Change("progress", state.steps[1], ("root",)), 19.0))
        assert list(plain.overviews([state], 21.0)) == []
        plain.forget(state)
        assert list(plain.overviews([state], 99.0)) == []


def test_a_step_without_a_name() -> None:
    """A record that lacks everything but an id is still a step."""
    state = program({"kind": "step", "event": "start", "id": 1})
    assert isinstance(state.steps[1], StepState)
    assert picture(state) == ["  ?  ╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  0.0 s so far"]
