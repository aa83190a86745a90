"""The looking end, with real sockets: it finds, hears, outlives and never believes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from workspan import live
from workspan.live import viewer as module
from workspan.live.frames import encode
from workspan.live.server import Server
from workspan.live.viewer import Closed, Event, Opened, Received, Trouble, Viewer

START, END = {"kind": "sync", "stage": "begin"}, {"kind": "sync", "stage": "end"}


class Clock:
    """Runs only when the viewer would have to wait for it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A viewer and what it has seen."""

    def __init__(self, place: Path, **options: Any) -> None:
        self.clock = Clock()
        self.viewer = Viewer(places=[place], clock=self.clock, **options)
        self.events: list[Event] = []
        self._next = 0

    def look(self, seconds: float = 0.5) -> list[Event]:
        """Let time pass until the folder is looked into, and return what is new."""
        self.clock.now += seconds
        return self.take(self.viewer.poll(0))

    def until(self, kind: type, **fields: Any) -> Any:
        """Go on to the next event of *kind* with these fields; return it."""
        for _ in range(500):
            while self._next < len(self.events):
                event = self.events[self._next]
                self._next += 1
                if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
                    return event
            self.take(self.viewer.poll(0.01))
        raise AssertionError(f"no {kind.__name__} in {self.events}")

    def take(self, events: list[Event]) -> list[Event]:
        """Keep what has come."""
        self.events += events
        return events

    def kinds(self) -> list[str]:
        """Kinds of frames that have come."""
        return [event.frame["kind"] for event in self.events if isinstance(event, Received)]


@pytest.fixture
def watch(place: Path) -> Iterator[Callable[..., Watched]]:
    """Make a viewer: ``watch(name=None, pid=None)``."""
    made: list[Watched] = []

    def make(**options: Any) -> Watched:
        made.append(Watched(place, **options))
        return made[-1]

    yield make
    for one in made:
        one.viewer.close()


def test_started_before_or_after(watch: Callable[..., Watched], fake: Callable[..., Any]) -> None:
    """A program is found whether it was there before the viewer or not (E109, E111)."""
    early = fake("early.py")
    seen = watch()
    assert seen.look() == []
    early.hello()
    assert seen.until(Opened).program.script == "early.py"
    late = fake("late.py")
    seen.look()
    late.hello()
    assert seen.until(Opened).program.script == "late.py"


def test_partial_reads(watch: Callable[..., Watched], fake: Callable[..., Any]) -> None:
    """A frame that comes in pieces is heard when it is whole (E111)."""
    program, seen = fake(), watch()
    seen.look()
    program.hello()
    seen.until(Opened)
    data = encode({"kind": "step", "id": 1})
    for n in range(len(data)):
        assert "step" not in seen.kinds()
        program.send(data[n : n + 1])
        seen.take(seen.viewer.poll(0))
    while "step" not in seen.kinds():
        seen.until(Received)


def test_it_says_when(watch: Callable[..., Watched], fake: Callable[..., Any]) -> None:
    """The time of a record is told on the viewer's clock: the quickest frame shows how the two differ (E109)."""
    program, seen = fake(), watch()
    seen.look()
    program.hello(mono=5000.0)
    at = seen.until(Opened) and seen.clock.now
    seen.clock.now += 10
    program.say({"kind": "step", "mono": 5003.0}, {"kind": "step", "mono": "x"}, {"kind": "step", "mono": 10**30})
    for _ in range(4):
        seen.until(Received)
    times = [event.at for event in seen.events if isinstance(event, Received)]
    assert times == [at, at + 3, at + 10, at + 10]


def test_a_program_ends(watch: Callable[..., Watched], fake: Callable[..., Any]) -> None:
    """Whoever says goodbye has ended; whoever only hangs up is tried again after 1 s, and its stream resumes (E110)."""
    program, seen = fake(), watch()
    seen.look()
    program.hello()
    seen.until(Opened)
    program.hang_up()
    assert seen.until(Closed).reason == "hung up"
    for number in (2, 3):
        seen.look(0.5)
        seen.look(0.5)
        program.hello()
        program.say(START, END)
        assert seen.until(Opened).program.number == number
        program.hang_up()
        seen.until(Closed)
    seen.look(1)
    program.hello()
    seen.until(Opened)
    program.say({"kind": "bye"})
    program.close()
    assert seen.until(Closed).reason == "ended"


def test_a_killed_program(watch: Callable[..., Watched], place: Path) -> None:
    """A program that is killed is said to have been; its socket is taken away, and a new one is found (E110, R32)."""
    code = "import sys; from workspan import live; live.start(); print(live.outlet._server.path, flush=True); input()"
    env = {**os.environ, "WORKSPAN_LIVE_DIRECTORY": str(place)}
    seen = watch()
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        seen.look()
        assert seen.until(Opened).program.pid == process.pid
        process.kill()
        process.wait()
    assert seen.until(Closed).reason == "was killed"
    assert path.exists()
    seen.look(2)
    assert not path.exists()


def test_pauses_grow(watch: Callable[..., Watched], fake: Callable[..., Any]) -> None:
    """A program that talks nonsense is tried again after 1 s, doubling to 30 s (E109)."""
    program, seen = fake(), watch()
    program.listener.setblocking(False)
    tried = []
    for _ in range(2 * 200):
        seen.look(0.5)
        try:
            program.accept()
        except BlockingIOError:
            continue
        tried.append(seen.clock.now)
        program.send(struct.pack(">I", 2**32 - 1))
        assert "protocol error" in seen.until(Trouble).text
        program.hang_up()
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 30]
    assert set(pauses[6:]) == {30}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack(">I", 0xFFFFFFFF), "a frame of 4294967295 bytes, the limit is 262144"),
        (struct.pack(">I", 5) + b"\x80\x04K\x01.", "not JSON"),
        (encode({"kind": "step"}), "does not say who it is"),
        (encode({"kind": "error", "message": "16 viewers are connected"}), "16 viewers are connected"),
        (encode({"kind": "hello", "v": 2}), "of version 2, this is version 1"),
    ],
    ids=["length", "pickle", "stranger", "refused", "version"],
)
def test_nonsense(watch: Callable[..., Watched], fake: Callable[..., Any], data: bytes, says: str) -> None:
    """Nonsense is a message and the end of that connection; the next program is shown (E107, E111, KF-70, KF-73)."""
    bad, good, seen = fake("bad.py"), fake("good.py", pid=os.getppid()), watch()
    seen.look()
    bad.accept()
    bad.send(data)
    good.hello()
    assert says in (text := seen.until(Trouble).text)
    assert text.startswith(f"bad.py (pid {bad.pid}): ")
    assert bad.connection.recv(1) == b""
    assert {event.program.script for event in seen.events if isinstance(event, Opened)} <= {"good.py"}
    good.say({"kind": "step", "id": 1})
    assert seen.until(Received).program.script == "good.py"


def test_another_users_program(
    watch: Callable[..., Watched], fake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket behind which another user's process sits is not listened to (E105)."""
    monkeypatch.setattr(module.folders, "same_user", lambda connection: False)
    program, seen = fake(), watch()
    (trouble,) = seen.look()
    assert trouble == Trouble(f"{program.path} belongs to another user's process")
    program.accept()
    assert program.connection.recv(1) == b""


class TestWanted:
    """Names and pids."""

    @pytest.mark.parametrize("name", ["reduction.py", "reduction", "red*", "my_reduction.py"])
    def test_by_name(self, watch: Callable[..., Watched], fake: Callable[..., Any], name: str) -> None:
        """-n names a script, with or without its ending, or is a pattern (E111, D30)."""
        script = "my reduction.py" if name.startswith("my") else "reduction.py"
        wanted, other, seen = fake(script), fake("other.py", pid=os.getppid()), watch(name=name)
        seen.look()
        for program in (other, wanted):
            program.hello()
            program.say({"kind": "step", "id": 1}, END)
        assert seen.until(Opened).program.script == script
        seen.until(Received)
        seen.look()
        assert all(event.program.script == script for event in seen.events)
        assert [found.name for found in seen.viewer.others] == ["other.py"]

    def test_by_handler(self, watch: Callable[..., Watched], fake: Callable[..., Any]) -> None:
        """-n may name a log handler: then its records are shown, and nothing else of that program (E103, E111)."""
        program, seen = fake(), watch(name="audit")
        seen.look()
        program.hello()
        program.say(START, {"kind": "handler", "handler": "audit"}, {"kind": "handler", "handler": "debug"}, END)
        program.say({"kind": "step", "id": 1}, *({"kind": "log", "handler": h, "n": 1} for h in ("debug", "audit")))
        while "log" not in seen.kinds():
            seen.until(Received)
        assert seen.kinds() == ["handler", "log"]
        assert {event.frame["handler"] for event in seen.events if isinstance(event, Received)} == {"audit"}

    def test_by_pid(self, watch: Callable[..., Watched], fake: Callable[..., Any]) -> None:
        """-p is one process; others are not even connected to, but can be named (E111)."""
        wanted, other, seen = fake(), fake("other.py", pid=os.getppid()), watch(pid=os.getpid())
        seen.look()
        wanted.hello()
        assert seen.until(Opened).program.pid == os.getpid()
        other.listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
        assert [(found.pid, found.name) for found in seen.viewer.others] == [(other.pid, "other.py")]


def test_with_a_real_program(started: Server, watch: Callable[..., Watched]) -> None:
    """Both ends together: the state, what happens, the end (E109, E110)."""
    seen = watch()
    seen.look()
    seen.until(Opened)
    while not seen.viewer.is_settled():
        seen.take(seen.viewer.poll(0.01))
    assert seen.kinds() == ["hello", "sync", "step", "sync"]
    live.publish({"event": "complete", "id": 1, "label": "active"})
    while seen.kinds()[4:] != ["step"]:
        seen.until(Received)
    live.stop()
    assert seen.until(Closed).reason == "ended"
    assert seen.kinds()[4:] == ["step", "bye"]
