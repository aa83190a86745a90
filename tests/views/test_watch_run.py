"""What is made of the records of a run: tasks, workers, failures. The clock is the test's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspan.views.format import many_lines
from workspan.views.watch import ProgramState, render
from workspan.views.watch_plain import EVERY_SECONDS, MOST_FAILURES_A_SECOND, PlainLines, end_line
from workspan.views.watch_run import RunChange, RunState

BEGIN, END = {"kind": "sync", "stage": "begin", "dropped": 0}, {"kind": "sync", "stage": "end", "more": 0}
ERROR = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    boom()\n    ^^^^^^\nValueError: bad'


def task(id: str = "smooth", **fields: Any) -> dict[str, Any]:
    """A task as it is told."""
    told = {"id": id, "number": 0, "total": 1728, "completed": 1204, "ready": 522, "processing": 2, "worker_starts": 2}
    return {**told, "left": 124.0, **fields}


def failure(number: int = 1, **fields: Any) -> dict[str, Any]:
    """A failed attempt as it is told."""
    told = {"number": number, "task": "smooth", "block": number, "cell": [0, number], "worker": 1, "cause": "error"}
    return {**told, "ago": 3.0, "error": ERROR, "final": False, **fields}


def worker(number: int = 0, **fields: Any) -> dict[str, Any]:
    """A worker as it is told."""
    return {"worker": number, "task": 0, "does": "block", "block": 40 + number, "cell": [3, number], **fields}


def run(event: str = "state", **fields: Any) -> dict[str, Any]:
    """A record of a run."""
    told = {"kind": "run", "event": event, "run": "20261130T093000Z-0a1b2c3d", "engine": "processes", "elapsed": 83.0}
    workers = [worker(0, seconds=1.2), worker(1, does="waiting", seconds=0.3)]
    return {**told, "tasks": [task()], "workers": workers, "failures": [], **fields}


def program(*records: dict[str, Any], at: float = 0.0) -> ProgramState:
    """A program that has sent *records* at *at*."""
    state = ProgramState(4121, "segment.py")
    for one in records:
        state.receive(one, at)
    return state


def picture(state: ProgramState, now: float = 0.0, **options: Any) -> list[str]:
    """The lines of the picture."""
    return [line.plain.rstrip() for line in render([state], now, **options)]


class TestPicture:
    """What a person sees."""

    def test_the_scene(self) -> None:
        """Tasks with counts and time left, what each worker does and for how long, failures with the traceback of the
        last one (D30)."""
        state = program(run(failures=[failure(1), failure(2, final=True)]))
        assert picture(state, 2.0) == [
            "pid 4121  segment.py",
            "  run (processes), 1:25 so far",
            "    smooth ▶  ━━━━━━━━━━━━━╸──────  1,204/1,728  69 %, 2:02 left, 2 workers",
            "    worker 0  smooth  block 40 (3, 0), 3.2 s",
            "    worker 1  smooth  waiting, 2.3 s",
            "    2 attempts failed:",
            "      smooth: block 1 (0, 1) failed on worker 1, to be tried again, 5.0 s ago",
            "        ValueError: bad",
            "      smooth: block 2 (0, 2) failed on worker 1, given up, 5.0 s ago",
            "        Traceback (most recent call last):",
            '          File "a.py", line 3, in f',
            "            boom()",
            "        ValueError: bad",
        ]

    def test_a_range(self) -> None:
        """Where the program knows how sure it is of the time left, that is told (D30)."""
        state = program(run(tasks=[task(low=110.0, high=140.0)]))
        assert "2:04 left (1:50 - 2:20)" in picture(state)[2]

    def test_ascii(self) -> None:
        """A terminal that has only ASCII gets signs that it has (D16, R63)."""
        tasks = [task(), task("b", number=1, completed=1728), task("c", number=2, failed=3)]
        lines = picture(program(run(tasks=tasks, failures=[failure()])), ascii_only=True)
        assert "".join(lines).isascii()
        assert "smooth >  ##########..." in lines[2]

    @pytest.mark.parametrize("width", [20, 40, 80, 200])
    def test_few_columns(self, width: int) -> None:
        """In a narrow terminal the bar gives way to the figures (R63)."""
        line = picture(program(run()), width=width)[2]
        assert len(re.findall("[━╸─]", line)) == max(0, min(20, width // 2 - 20))

    def test_long_names_and_figures_fit(self) -> None:
        """At 80 columns neither a range with workers nor the id of a dataset's task pushes figures off the screen."""
        long = "1 ReadParquet->Filter((delay > 15))->MapBatches(features)->Write"
        tasks = [task(low=110.0, high=140.0), task(long, number=1, low=110.0, high=140.0)]
        workers = [worker(0, task=1, seconds=1.2), worker(1, task=1, does="waiting", seconds=0.3)]
        lines = picture(program(run(tasks=tasks, workers=workers)))
        assert max(map(len, lines)) <= 80
        assert all("2:04 left (1:50 - 2:20), 2 workers" in line for line in lines[2:4])
        assert "1 Read" in lines[3]
        assert "Write ▶  ━" in lines[3]
        assert lines[4].endswith("Write  block 40 (3, 0), 1.2 s")

    @pytest.mark.parametrize("height", [7, 12, 20, 60])
    def test_few_lines(self, height: int) -> None:
        """In a low terminal the tasks stay longest, and what is left out is counted."""
        tasks = [task(f"t{n}", number=n) for n in range(3)]
        records = run(tasks=tasks, workers=[worker(n) for n in range(30)], failures=[failure(n + 1) for n in range(5)])
        lines = picture(program(records), height=height)
        assert len(lines) <= height
        assert "t0" in lines[2]
        assert any("5 attempts failed" in line for line in lines)
        assert any("worker" in line and "with a block" in line for line in lines) == (height < 60)

    def test_many_tasks(self) -> None:
        """Of many tasks those are shown that go on, and the others are counted."""
        tasks = [task(f"t{n}", number=n, processing=int(n == 30)) for n in range(40)]
        lines = picture(program(run(tasks=tasks, workers=[])), height=8)
        assert "t30" in "".join(lines)
        assert re.search(r"\.\.\. and 3\d more tasks", "\n".join(lines))

    def test_control_codes(self) -> None:
        """Names and errors from other programs cannot steer the terminal, nor be taken for markup (R50)."""
        evil = "a\x1b[2J\x9b[red]x[/red]\u202e\r\nb"
        told = run(
            run=evil,
            engine=evil,
            tasks=[task(evil, abandoned=evil, worker_failures=1, worker_error=evil)],
            workers=[worker(does=evil, block=evil, cell=[evil, evil])],
            failures=[failure(task=evil, block=evil, cell=[evil, 1], cause=evil, error=evil)],
        )
        state, plain = program(), PlainLines()
        change = state.receive(told, 0.0)
        assert isinstance(change, RunChange)
        text = "\n".join([*picture(state), *plain.run_lines(state, change, 0.0)])
        assert not set("\x1b\x9b\r\u202e") & set(text)
        assert "a\\x1b[2J\\x9b[red]x[/red]" in text

    def test_troubles(self) -> None:
        """A task that was given up says why, and workers that failed are told of."""
        tasks = [task(abandoned="no start left", worker_failures=2, worker_error="worker 3: killed by SIGKILL")]
        lines = picture(program(run(tasks=tasks)))
        assert lines[3] == "      abandoned: no start left"
        assert lines[4] == "      2 workers failed, the last: worker 3: killed by SIGKILL"

    def test_several_runs(self) -> None:
        """Two runs of one process are told apart, those that go on and those that have ended (D30)."""
        state = program(run(), run("end", run="x-11111111", outcome="completed", elapsed=61.0))
        heads = [line for line in picture(state, 5.0) if line.startswith("  run")]
        assert heads == ["  run 0a1b2c3d (processes), 1:28 so far", "  run 11111111 (processes) completed after 1:01"]

    def test_one_thread(self) -> None:
        """Without workers the block that runs now is told."""
        lines = picture(program(run(engine="serial", workers=[{**worker(), "worker": None, "seconds": 2.0}])))
        assert lines[3] == "    now  smooth  block 40 (3, 0), 2.0 s"


class TestRecords:
    """What comes after what."""

    def test_the_end_is_the_end(self) -> None:
        """What comes after the end of a run, or belongs to the time before it, changes nothing (R62)."""
        state = program(run("end", outcome="incomplete", elapsed=90.0), run("state", elapsed=89.0))
        (found,) = state.runs.values()
        assert (found.outcome, found.elapsed, found.workers) == ("incomplete", 90.0, [])

    def test_a_state_that_is_sent_anew(self) -> None:
        """A run that is not told again is over, although its end was left out; one that had ended stays (R62)."""
        state = program(run(run="a"), run(run="b"), run("end", run="c", outcome="completed"))
        for one in (BEGIN, run(run="b"), END):
            state.receive(one, 0.0)
        assert list(state.runs) == ["b", "c"]

    def test_only_the_last_ended_runs_stay(self) -> None:
        """A program with very many runs does not make its viewer grow (R62)."""
        state = program(run(run="now"), *(run("end", run=str(n), outcome="completed") for n in range(100)))
        assert list(state.runs) == ["now", "97", "98", "99"]
        assert len(program(*(run(run=str(n)) for n in range(200))).runs) == 50

    def test_failures_are_told_once(self) -> None:
        """Each record tells the last failures; only new ones are news, and what fell between is counted."""
        state = RunState("r")
        first = state.receive(run(failures=[failure(4), failure(5)]), 10.0)
        again = state.receive(run(failures=[failure(4), failure(5)]), 11.0)
        later = state.receive(run(failures=[failure(9), failure(10)]), 12.0)
        assert [[one.number for one in change.failures] for change in (first, again, later)] == [[4, 5], [], [9, 10]]
        assert (first.unseen, later.unseen, state.failure_count) == (0, 3, 10)
        assert state.failures[0].at == 7.0


class TestPlainLines:
    """Lines for a log."""

    def test_a_life(self) -> None:
        """Begin, a failure with its traceback, how far it is now and then, the end (D30)."""
        state, plain = program(), PlainLines()
        lines: list[str] = []
        for record, now in (
            (run("start", elapsed=0.0, workers=[], tasks=[task(completed=0, left=None)]), 0.0),
            (run(failures=[failure()]), 5.0),
            (run(), 10.0),
            (run("end", outcome="incomplete", tasks=[task(completed=1727, failed=1, ready=0, processing=0)]), 20.0),
        ):
            change = state.receive(record, now)
            assert isinstance(change, RunChange)
            lines += [*plain.run_lines(state, change, now), *plain.overviews([state], now)]
        assert [line.replace("segment.py (pid 4121): ", "") for line in lines] == [
            "run 0a1b2c3d (processes), 0:00 so far",
            "smooth: 0/1,728 blocks, 0 %, 2 workers",
            "smooth: block 1 (0, 1) failed on worker 1, to be tried again\n    " + ERROR.replace("\n", "\n    "),
            "smooth: 1,204/1,728 blocks, 69 %, 2:04 left, 2 workers",
            "worker 0 block 40 (3, 0), 1.2 s; worker 1 waiting, 0.3 s",
            "smooth: 1,727/1,728 blocks, 99 %, 2 workers, 1 failed",
            "run 0a1b2c3d (processes) incomplete after 1:23",
        ]
        (ended,) = state.runs.values()
        assert end_line(state, ended).endswith("incomplete after 1:23: smooth 1,727/1,728")

    def test_failures_do_not_flood_a_log(self) -> None:
        """Of very many failures a second some are told at length, the others are counted (R62)."""
        state, plain = program(run()), PlainLines()
        told: list[str] = []
        for n in range(50):
            change = state.receive(run(failures=[failure(2 * n + 2)]), n / 50)
            assert isinstance(change, RunChange)
            told += plain.run_lines(state, change, n / 50)
        assert len([line for line in told if "Traceback" in line]) == MOST_FAILURES_A_SECOND
        change = state.receive(run("end", outcome="incomplete"), 1.0)
        assert isinstance(change, RunChange)
        lines = list(plain.run_lines(state, change, 1.0))
        counted = [int(n) for line in [*told, *lines] for n in re.findall(r"\((\d+) more attempts failed\)", line)]
        assert sum(counted) == 100 - MOST_FAILURES_A_SECOND

    def test_a_log_says_nothing_twice(self) -> None:
        """A task of which nothing has changed has no second line, and a program that has gone is forgotten."""
        state, plain = program(run(workers=[])), PlainLines()
        assert list(plain.overviews([state], 0.0)) == []
        assert len(list(plain.overviews([state], EVERY_SECONDS))) == 1
        assert list(plain.overviews([state], 2 * EVERY_SECONDS)) == []
        plain.forget(state)
        assert list(plain.overviews([state], 3 * EVERY_SECONDS)) == []


junk = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)
parts = st.sampled_from([*task(), *failure(), *worker(), "guest", "abandoned", "low", "high", "worker_error"])
inner = st.lists(st.dictionaries(parts, junk | st.sampled_from(["block", True, 0]), max_size=12) | junk, max_size=3)
fields = st.sampled_from(
    ["event", "run", "elapsed", "outcome", "tasks", "workers", "failures", "more_workers", "engine"]
)
events = st.sampled_from(["start", "state", "end", "a", "b", "completed"])


@settings(max_examples=50)
@given(st.lists(st.dictionaries(fields, inner | events | junk, max_size=9), max_size=6), st.integers(1, 60))
def test_no_records_crash_it(records: list[dict[str, Any]], height: int) -> None:
    """Missing and wrong fields are passed over, and there is always a picture (E107, D30)."""
    state, plain = program(), PlainLines()
    for record in records:
        change = state.receive({"run": "a", **record, "kind": "run"}, 0.0)
        if isinstance(change, RunChange):
            lines = [*plain.run_lines(state, change, 0.0), end_line(state, change.run)]
            assert [many_lines(line) for line in lines] == lines
    assert render([state], 1.0, height=height)
    assert list(plain.overviews([state], 99.0)) is not None
