from __future__ import annotations

import io
import json
import logging

import pytest

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.estimate.remaining import Left
from workspan.views.progress import Guard, JsonProgressObserver, PlainProgress, choose


class Recording:
    """An observer that keeps what it is told; raises in the methods named by *faults*."""

    def __init__(self, *faults: str, error: BaseException | None = None) -> None:
        self.calls: list[tuple[str, dict]] = []
        self._faults = faults
        self._error = error or ValueError("observer is broken")

    def _call(self, method, states):
        self.calls.append((method, states))
        if method in self._faults:
            raise self._error

    def on_start(self, states):
        self._call("on_start", states)

    def on_progress(self, states):
        self._call("on_progress", states)

    def on_finish(self, states):
        self._call("on_finish", states)

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]


class TestGuard:
    def test_start_progress_finish(self, make):
        """on_start comes once before all, on_finish once after all with the final counters (B166)."""
        observer, states = Recording(), {"seg": make.state(total=12, completed=0)}
        guard = Guard(observer)
        guard.start(states, 0.0)
        states["seg"].completed_count = 6
        guard.changed()
        guard.tick(states, 1.0)
        states["seg"].completed_count = 12
        guard.finish(states)
        guard.finish(states)
        assert [(method, told["seg"].completed_count) for method, told in observer.calls] == [
            ("on_start", 0),
            ("on_progress", 6),
            ("on_finish", 12),
        ]

    def test_at_most_every_500_ms(self, make):
        """Changes every 10 ms for 5 s are told about ten times, not 500 times (B166, KF-55)."""
        observer, states = Recording(), {"seg": make.state()}
        guard = Guard(observer)
        guard.start(states, 0.0)
        for step in range(1, 501):
            guard.changed()
            guard.tick(states, step * 0.01)
        assert 9 <= observer.methods.count("on_progress") <= 10

    def test_only_after_a_change(self, make):
        """Time alone is no progress (B166)."""
        observer, states = Recording(), {"seg": make.state()}
        guard = Guard(observer)
        guard.start(states, 0.0)
        for step in range(1, 100):
            guard.tick(states, float(step))
        assert observer.methods == ["on_start"]

    def test_a_change_is_told_when_its_time_has_come(self, make):
        """A change right after the last call is not lost, but told with the next tick that is due (B166)."""
        observer, states = Recording(), {"seg": make.state()}
        guard = Guard(observer)
        guard.start(states, 0.0)
        guard.changed()
        guard.tick(states, 0.1)
        assert observer.methods == ["on_start"]
        guard.tick(states, 0.5)
        guard.tick(states, 5.0)
        assert observer.methods == ["on_start", "on_progress"]

    def test_displays_are_told_of_the_time(self, make):
        """A display that shows the time left is called without a change too, at the same pace."""
        observer, states = Recording(), {"seg": make.state()}
        observer.wants_ticks = True
        guard = Guard(observer)
        guard.start(states, 0.0)
        for step in range(1, 21):
            guard.tick(states, step * 0.1)
        assert observer.methods.count("on_progress") == 4

    def test_no_finish_without_a_start(self, make):
        """A run that was refused before its start tells nobody (B166)."""
        observer = Recording()
        guard = Guard(observer)
        guard.tick({"seg": make.state()}, 10.0)
        guard.finish({"seg": make.state()})
        assert observer.calls == []

    def test_nothing_after_the_finish(self, make):
        """What still changes during the shutdown is not told (B166)."""
        observer, states = Recording(), {"seg": make.state()}
        guard = Guard(observer)
        guard.start(states, 0.0)
        guard.finish(states)
        guard.changed()
        guard.tick(states, 10.0)
        assert observer.methods == ["on_start", "on_finish"]

    def test_counters_are_copies(self, make):
        """What an observer keeps does not change under it, and what it changes does not reach the run (B60)."""
        observer, states = Recording(), {"seg": make.state(total=12, completed=0)}
        Guard(observer).start(states, 0.0)
        told = observer.calls[0][1]["seg"]
        states["seg"].completed_count = 7
        assert told.completed_count == 0
        told.failed_count = 99
        assert states["seg"].failed_count == 0

    @pytest.mark.parametrize("method", ["on_start", "on_progress", "on_finish"])
    @pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)], ids=["error", "exit"])
    def test_an_observer_that_raises_is_switched_off(self, make, caplog, method, error):
        """Its error is logged once with its name and the method, and it is not called again (B165, R18)."""
        observer, states = Recording(method, error=error), {"seg": make.state()}
        guard = Guard(observer)
        with caplog.at_level(logging.WARNING, logger="workspan"):
            guard.start(states, 0.0)
            for now in (1.0, 2.0, 3.0):
                guard.changed()
                guard.tick(states, now)
            guard.finish(states)
        assert observer.methods.count(method) == 1
        assert observer.methods[-1] == method
        (record,) = caplog.records
        assert record.getMessage() == f"progress observer Recording raised in {method} and is switched off"
        assert record.exc_info[1] is error

    def test_an_interrupt_in_an_observer_is_an_interrupt(self, make):
        """Ctrl-C while an observer draws ends the run as elsewhere."""
        guard = Guard(Recording("on_progress", error=KeyboardInterrupt()))
        guard.start({"seg": make.state()}, 0.0)
        guard.changed()
        with pytest.raises(KeyboardInterrupt):
            guard.tick({"seg": make.state()}, 1.0)

    def test_without_an_observer(self, make):
        """progress=False: nobody is told, nothing fails."""
        guard, states = Guard(None), {"seg": make.state()}
        guard.start(states, 0.0)
        guard.changed()
        guard.tick(states, 1.0)
        guard.finish(states)


def steps_of_a_run(make, clock, observer, *, seconds: float = 10.0, step: float = 0.125, total: int = 80, **counters):
    """Drive *observer* as a run of *seconds* would whose blocks return evenly."""
    guard = Guard(observer)
    states = {"seg": make.state(total=total, completed=0, ready=total, **counters)}
    guard.start(states, clock.now)
    steps = round(seconds / step)
    for n in range(1, steps + 1):
        clock.now += step
        done = total * n // steps
        states["seg"].completed_count = done
        states["seg"].processing_count = min(2, total - done)
        states["seg"].ready_count = total - done - states["seg"].processing_count
        guard.changed()
        guard.tick(states, clock.now)
    guard.finish(states)


class TestPlain:
    def test_a_run_of_ten_seconds(self, make, clock):
        """Into a file, a line every 2 s: 4 to 8 lines, no control codes, the last one with n == total (KF-53)."""
        stream = io.StringIO()
        steps_of_a_run(make, clock, PlainProgress(stream, interval_seconds=2.0, clock=clock))
        text = stream.getvalue()
        lines = text.splitlines()
        assert 4 <= len(lines) <= 8
        assert {char for char in text if not char.isprintable()} == {"\n"}
        assert text.isascii()
        assert lines[0] == "seg: 0/80 blocks (0 %), waiting for workers (0 started), 0:00 elapsed"
        assert lines[1] == "seg: 16/80 blocks (20 %), 0:02 elapsed"
        assert lines[-1] == "seg: 80/80 blocks (100 %), in 0:10"

    def test_no_line_twice(self, make, clock):
        """While nothing changes nothing is printed, and a task that is done is not printed again at the end (KF-53)."""
        stream = io.StringIO()
        observer = PlainProgress(stream, interval_seconds=2.0, clock=clock)
        states = {"a": make.state("a", 4), "b": make.state("b", 4, 0, ready=4)}
        observer.on_start({"a": make.state("a", 4, 0, ready=4), "b": make.state("b", 4, 0)})
        for _ in range(20):
            clock.now += 2.0
            observer.on_progress(states)
        observer.on_finish({"a": make.state("a", 4), "b": make.state("b", 4)})
        assert [line.split(" blocks")[0] for line in stream.getvalue().splitlines()] == [
            "a: 0/4",
            "a: 4/4",
            "b: 0/4",
            "b: 4/4",
        ]

    def test_a_long_run_has_few_lines(self, make, clock):
        """Ten hours at 5 s would be 7,200 lines; the interval grows with the time that has passed (KF-53)."""
        stream = io.StringIO()
        observer = PlainProgress(stream, clock=clock)
        steps_of_a_run(make, clock, observer, seconds=36_000.0, step=5.0, total=100_000)
        assert 50 < len(stream.getvalue().splitlines()) < 700

    def test_resumed_work_is_told_apart(self, make, clock):
        """Skipped blocks are named, beside the time that is left and its range (KF-47)."""
        stream = io.StringIO()
        observer = PlainProgress(stream, interval_seconds=2.0, clock=clock)
        observer.on_start({"seg": make.state("seg", 1000, 900, skipped=900, ready=100)})
        clock.now = 10.0
        left = Left(90.0, 85.0, 97.0)
        observer.on_progress({"seg": make.state("seg", 1000, 910, skipped=900, processing=1, ready=89, left=left)})
        line = stream.getvalue().splitlines()[-1]
        assert line == "seg: 910/1,000 blocks (91 %), 900 skipped, 0:10 elapsed, 1:30 left (1:25 - 1:37)"

    def test_nothing_to_do(self, make, clock):
        """All done before, or no blocks at all: one line, with n == total (KF-56)."""
        stream = io.StringIO()
        observer = PlainProgress(stream, clock=clock)
        states = {"seg": make.state("seg", 12, skipped=12), "empty": make.state("empty", 0)}
        observer.on_start(states)
        observer.on_finish(states)
        assert stream.getvalue().splitlines() == [
            "seg: 12/12 blocks (100 %), 12 skipped, in 0:00",
            "empty: 0/0 blocks (100 %), in 0:00",
        ]

    def test_an_interrupted_run_ends_with_what_was_done(self, make, clock):
        """The last line tells how far it came, and claims no more (KF-51)."""
        stream = io.StringIO()
        observer = PlainProgress(stream, clock=clock)
        observer.on_start({"seg": make.state("seg", 12, 0, ready=12)})
        clock.now = 3.0
        observer.on_finish({"seg": make.state("seg", 12, 5, failed=1, ready=6)})
        assert stream.getvalue().splitlines()[-1] == "seg: 5/12 blocks (41 %), 1 failed, after 0:03"

    def test_an_ascii_stream(self, make, clock):
        """A task id that the stream has no characters for is escaped (R63)."""
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        observer = PlainProgress(stream, clock=clock)
        observer.on_start({"é": make.state("é\x1b", 12, 0, ready=12)})
        assert raw.getvalue().startswith(b"\\xe9\\x1b: 0/12 blocks")

    def test_a_stream_that_is_gone(self, make, clock):
        """A pipe that nobody reads any more disturbs nothing (R63)."""
        stream = io.StringIO()
        observer = PlainProgress(stream, clock=clock)
        stream.close()
        steps_of_a_run(make, clock, observer)


class TestJson:
    def test_one_line_a_task_and_event(self, make):
        """Each event gives a line a task, with the keys of B168 and the counters of that moment."""
        stream = io.StringIO()
        observer = JsonProgressObserver(stream=stream, clock=lambda: 1234.5)
        first = make.state("a", 12, 3, skipped=1, ready=4, processing=2, failed=1, orphaned=2)
        first.worker_restart_count, first.worker_failure_count = 5, 6
        observer.on_start({"a": first, "b": make.state("b", 1, 0)})
        observer.on_progress({"a": first})
        observer.on_finish({"a": first})
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert [(line["event"], line["task"]) for line in lines] == [
            ("start", "a"), ("start", "b"), ("progress", "a"), ("finish", "a"),
        ]  # fmt: skip
        assert list(lines[0].items()) == [
            ("t", 1234.5), ("event", "start"), ("task", "a"), ("total", 12), ("ready", 4), ("processing", 2),
            ("completed", 3), ("skipped", 1), ("failed", 1), ("orphaned", 2), ("restarts", 5), ("failures", 6),
        ]  # fmt: skip
        assert not stream.closed

    def test_standard_output_is_the_default(self, make, capsys):
        """Without path and stream the lines go to the standard output of that moment (B168)."""
        JsonProgressObserver().on_start({"a": make.state("a")})
        assert json.loads(capsys.readouterr().out)["task"] == "a"

    def test_a_file(self, make, tmp_path):
        """A path is written from its beginning, readable line by line during the run, and closed at the end (B168)."""
        path = tmp_path / "progress.jsonl"
        path.write_text("old\n" * 100)
        observer = JsonProgressObserver(path)
        observer.on_start({"a": make.state("a")})
        assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["start"]
        observer.on_finish({"a": make.state("a")})
        assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["start", "finish"]

    def test_a_file_that_fails_is_closed(self, make, tmp_path):
        """If writing fails the file is closed, since an observer that raised is not called again (R18)."""
        observer = JsonProgressObserver(tmp_path / "progress.jsonl")
        guard = Guard(observer)
        guard.start({"a": make.state("a")}, 0.0)
        guard.finish({b"not for JSON": make.state("b")})
        assert observer._file is None

    def test_path_and_stream(self, tmp_path):
        """Both together are a contradiction (B168)."""
        with pytest.raises(ValueError, match=r"was given path='x\.jsonl' and a stream: give one of them"):
            JsonProgressObserver("x.jsonl", io.StringIO())
        assert issubclass(ConfigurationError, ValueError)

    def test_hostile_ids_stay_on_their_line(self, make):
        """Line breaks and control codes in ids are escaped by JSON (R50)."""
        stream = io.StringIO()
        JsonProgressObserver(stream=stream).on_start({"a\n\x1b": make.state("a\n\x1b")})
        (line,) = stream.getvalue().splitlines()
        assert "\x1b" not in line
        assert json.loads(line)["task"] == "a\n\x1b"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class TestChoose:
    @pytest.mark.parametrize("progress", [False, None])
    def test_off(self, progress):
        """False and None mean nobody (B165)."""
        assert choose(progress) is None

    def test_plain_lines_into_a_pipe(self):
        """What is no terminal gets plain lines, even if colour is forced (D16)."""
        assert isinstance(choose(True, io.StringIO()), PlainProgress)

    def test_plain_lines_for_a_dumb_terminal(self, monkeypatch):
        """TERM=dumb gets plain lines (D16)."""
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(choose(True, Terminal()), PlainProgress)

    def test_bars_in_a_terminal(self, monkeypatch):
        """A terminal gets bars (D16)."""
        from workspan.views.rich_progress import RichProgress

        monkeypatch.setenv("TERM", "xterm")
        assert isinstance(choose(True, Terminal()), RichProgress)

    def test_an_object_is_used_as_it_is(self):
        """Any object with the three methods is the observer (B165)."""
        observer = Recording()
        assert choose(observer) is observer

    @pytest.mark.parametrize("progress", ["bars", 1, object(), Recording])
    def test_something_else(self, progress):
        """Anything else is a TypeError that says what an observer is; a class is not one of its objects (B165)."""
        with pytest.raises(
            UsageTypeError, match=r"^progress=.* is no observer: pass True, False or an object with on_"
        ):
            choose(progress)
