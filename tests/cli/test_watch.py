"""``workspan watch`` with programs that really run beside it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from workspan import config
from workspan.cli import main
from workspan.store.lock import StoreLock

PROGRAM = """
import logging, sys
from workspan import live

states = [
    {"event": "start", "id": 1, "label": "reduce", "elapsed": 24.0, "dt_est": 38.0, "low": 33.0, "high": 45.0},
    {"event": "start", "id": 2, "parent": 1, "label": "normalise", "elapsed": 13.0, "dt_est": 2700.0},
]
live.register_snapshot(lambda: states)
handler = live.SocketHandler("audit", fmt="%(levelname)s: %(message)s")
live.start()
print("ready", flush=True)
for line in sys.stdin:
    if line == "log\\n":
        handler.handle(logging.makeLogRecord({"levelno": 30, "levelname": "WARNING", "msg": "a\\x1b[2Jb\\nc"}))
    elif line == "complete\\n":
        live.publish({**states.pop(), "event": "complete", "elapsed": 27.0})
    elif line == "flood\\n":
        for n in range(5000):
            live.publish({"event": "progress", "id": 9, "label": "x" * 500})
        live.publish({"event": "complete", "id": 9, "label": "flood", "elapsed": 1.0})
    print("done", flush=True)
"""

RUN = """
import sys
import workspan as ws
from funlib.geometry import Roi

def work(block):
    if sys.stdin.readline() == "fail\\n":
        print("done", flush=True)
        raise ValueError("bad \\x1b[2J[red]")
    print("done", flush=True)

roi, one = Roi((0, 0), (3, 1)), Roi((0, 0), (1, 1))
task = ws.Task("smooth[b]", roi, one, one, work, read_write_conflict=False, max_retries=0)
print("ready", flush=True)
ws.run_blockwise(task, engine="serial", progress=False, summary=False)
"""


class Program:
    """A program with two active steps, or a run, that does what it is told."""

    def __init__(self, folder: Path, name: str = "reduction.py", text: str = PROGRAM) -> None:
        (folder / name).write_text(text)
        self.process = subprocess.Popen([sys.executable, str(folder / name)], stdin=-1, stdout=-1, text=True)
        self.answer()

    def answer(self) -> None:
        """Wait for its answer."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def tell(self, word: str) -> None:
        """Have it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        self.answer()

    def end(self) -> None:
        """Let it end."""
        with self.process:
            pass


class Watch:
    """A ``workspan watch`` in a terminal of its own, or with a pipe."""

    def __init__(self, *words: str, terminal: bool = False, keys: bool = False, **env: str) -> None:
        self.text = ""
        self._output, end = pty.openpty() if terminal else os.pipe()
        env = {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", "PYTHONIOENCODING": "utf-8", **env}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workspan", "watch", *words],
            stdin=end if keys else subprocess.DEVNULL,  # without a keyboard it is the plain picture
            stdout=end,
            stderr=end,
            env={**os.environ, **env},
        )
        os.close(end)

    def until(self, pattern: str) -> re.Match[str]:
        """Read to what matches *pattern*."""
        while not (match := re.search(pattern, self.text)):
            assert select.select([self._output], [], [], 20)[0], f"no {pattern!r} in {self.text!r}"
            data = os.read(self._output, 1 << 16)
            assert data, f"it ended before {pattern!r}: {self.text!r}"
            self.text += data.decode("utf-8", "replace")
        self.text = self.text[match.end() :]
        return match

    def press(self, key: bytes) -> int:
        """Press a key that ends it; return the exit code."""
        os.write(self._output, key)
        while self.process.poll() is None:  # a terminal holds its program until somebody reads
            if select.select([self._output], [], [], 0.05)[0]:
                with suppress(OSError):
                    os.read(self._output, 1 << 16)
        return self.process.returncode

    def interrupt(self) -> int:
        """Press Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(20)

    def close(self) -> None:
        """End it whatever it does."""
        self.process.kill()
        self.process.wait()
        os.close(self._output)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets."""
    base = Path(tempfile.mkdtemp(prefix="w"))
    monkeypatch.setenv("WORKSPAN_LIVE_DIRECTORY", str(base / "s"))
    monkeypatch.setenv("WORKSPAN_LIVE_ENABLED", "true")
    monkeypatch.setenv("WORKSPAN_LOG_BASEDIR", str(base / "logs"))
    config.reset()
    yield base
    config.reset()
    shutil.rmtree(base)


@pytest.fixture
def program(place: Path) -> Iterator[Callable[..., Program]]:
    """Start a program: ``program(name="reduction.py")``."""
    made: list[Program] = []

    def make(name: str = "reduction.py", text: str = PROGRAM) -> Program:
        made.append(Program(place, name, text))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def watch(place: Path) -> Iterator[Callable[..., Watch]]:
    """Start a watch: ``watch("-n", "x", terminal=False)``."""
    made: list[Watch] = []

    def make(*words: str, **options: Any) -> Watch:
        made.append(Watch(*words, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_lines(program: Callable[..., Program], watch: Callable[..., Watch]) -> None:
    """Without a terminal: it waits, finds the program, tells what is active and what happens, says that the program has
    ended, waits for more, and Ctrl-C is no failure (E109, E110, E111, D16)."""
    seen = watch()
    seen.until(r"waiting for a program \(Ctrl-C ends\)\n")
    first = program()
    seen.until(rf"\d\d:\d\d:\d\d reduction.py \(pid {first.process.pid}\) runs\n")
    seen.until(r"\): reduce: 24 s of 38 s, 14 s left \(9 - 21\)\n")
    seen.until(r"\): reduce > normalise: 13 s of 45 min 0 s\n")
    first.tell("log")
    seen.until(r"WARNING: a\\x1b\[2Jb\n    c\n")
    first.tell("complete")
    seen.until(r"reduce > normalise: complete after 27.0 s\n")
    first.end()
    seen.until(r"reduction.py \(pid \d+\) ended\n")
    seen.until(r"waiting for a program")
    second = program("second.py")
    seen.until(rf"second.py \(pid {second.process.pid}\) runs")
    assert seen.interrupt() == 0
    second.tell("complete")


def test_the_screen(program: Callable[..., Program], watch: Callable[..., Watch]) -> None:
    """In a terminal the tree is drawn with bars and redrawn; the program does not notice that its viewer is killed, and
    another one gets the whole state (D30, E110, R62)."""
    first = program()
    seen = watch(terminal=True)
    seen.until(r"pid .*reduction.py")
    seen.until(r"reduce .*━╸?.* s of 38 s")
    seen.until(r"normalise .*13 s of 45 min 0 s")
    seen.close = lambda: None  # type: ignore[method-assign]
    Watch.close(seen)
    first.tell("flood")
    again = watch(terminal=True)
    again.until(r"normalise")
    first.tell("complete")
    again.until(r"✔ 27\.0 s")
    assert again.interrupt() == 0
    assert "Traceback" not in again.text


def test_a_stopped_watch(program: Callable[..., Program], watch: Callable[..., Watch]) -> None:
    """A stopped viewer stops no program, and when it goes on it sees how things stand (E108, R62)."""
    first = program()
    seen = watch("--plain")
    seen.until("reduce > normalise")
    seen.process.send_signal(signal.SIGSTOP)
    first.tell("flood")  # it answers when all is published
    first.tell("complete")
    seen.process.send_signal(signal.SIGCONT)
    first.end()
    seen.until("ended")
    assert seen.interrupt() == 0


def test_once(program: Callable[..., Program], place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--once prints the state and ends; names and pids choose, and what runs besides can be seen (E111)."""
    first, second = program(), program("other.py")
    assert main(["watch", "--once", "--pid", str(first.process.pid)]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[0] == f"pid {first.process.pid}  reduction.py"
    assert re.fullmatch(r"  reduce       [━╸─#.]{20}  2\d s of 38 s, 1\d s left \(\d+ - \d+\)", out[1])
    assert re.fullmatch(r"    normalise  [━╸─#.]{20}  1\d s of 45 min 0 s", out[2])
    assert main(["watch", "--once", "-n", "other"]) == 0
    assert capfd.readouterr().out.startswith(f"pid {second.process.pid}  other.py\n")
    assert main(["watch", "--once", "-n", "nobody"]) == 0
    told = capfd.readouterr().out
    assert told.startswith("no program to watch runs; others that run: ")
    assert f"{first.process.pid} reduction.py" in told
    assert f"{second.process.pid} other.py" in told


def test_nothing_runs(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing to see is no failure, and looking leaves nothing behind (E111)."""
    assert main(["watch", "--once"]) == 0
    assert capfd.readouterr().out == "no program to watch runs\n"
    assert list(place.iterdir()) == []


def test_a_process_that_is_not_there(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for a process that does not exist (issue 10)."""
    beyond = 2**22 + 1  # no kernel gives such a number
    assert main(["watch", "--once", "-p", str(beyond)]) == 2
    assert f"--pid {beyond}: there is no process of that number" in " ".join(capfd.readouterr().err.split())
    assert main(["watch", "--once", "-p", str(os.getpid())]) == 0
    assert capfd.readouterr().out.startswith(f"process {os.getpid()} shows nothing")


def test_a_tracking_folder(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A tracking folder names the program that works into it; where none does, what else to type is told (issue 10)."""
    store = tmp_path / "run" / "smooth"
    (store / "done").mkdir(parents=True)
    (store / "done" / "zarr.json").write_text("{}")
    with StoreLock(store):
        assert main(["watch", str(tmp_path / "run"), "--once"]) == 0
    assert capfd.readouterr().out.startswith(f"process {os.getpid()} shows nothing")
    for words, told in (
        ([str(tmp_path / "run")], f"no program works into '{tmp_path / 'run'}' now: `workspan report"),
        ([str(tmp_path / "runs")], "does not exist"),
        ([str(place)], "holds no tracking store"),
        (["4121"], "a process is named with --pid 4121"),
        ([str(tmp_path / "run"), "-n", "a"], "leave out --name and --pid"),
    ):
        assert main(["watch", *words]) == 2
        assert told in capfd.readouterr().err


def test_the_process_ends(program: Callable[..., Program], watch: Callable[..., Watch]) -> None:
    """With a process named, its end is the end (issue 10)."""
    first = program()
    seen = watch("--plain", "-p", str(first.process.pid))
    seen.until(r"\(pid \d+\) runs\n")
    first.end()
    seen.until(rf"process {first.process.pid} has ended\n")
    assert seen.process.wait(20) == 0


def test_the_reader_leaves(program: Callable[..., Program]) -> None:
    """``workspan watch | head -1`` ends when head has (R63)."""
    program()
    command = [sys.executable, "-m", "workspan", "watch", "--plain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        program("late.py")
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_run(program: Callable[..., Program], watch: Callable[..., Watch]) -> None:
    """A run is shown on whatever terminal there is: its block, counts, a failure with its traceback, how it ended; and
    no viewer that is stopped, killed or hard to write to does anything to it (D30, R50, R62, R63)."""
    first = program("segment.py", RUN)
    log, stopped = watch("--plain"), watch("--plain")
    dumb = watch(terminal=True, TERM="dumb")
    plain = watch(terminal=True, PYTHONIOENCODING="ascii")
    pale = watch(terminal=True, NO_COLOR="1")
    log.until(r"segment.py \(pid \d+\): run [0-9a-f]{8} \(serial\), 0:\d\d so far\n")
    log.until(r"smooth\[b\]: 0/3 blocks, 0 %")
    stopped.until("smooth")
    stopped.process.send_signal(signal.SIGSTOP)
    assert "now" in pale.until(r"now  smooth\[b\]  block 0 \(0, 0\), [\d.]+ s")[0]
    first.tell("fail")
    log.until(r"smooth\[b\]: block 0 \(0, 0\) failed, given up\n    Traceback [^\0]*ValueError: bad \\x1b\[2J\[red\]\n")
    pale.until(r"1 attempt failed:.*\s+.*ValueError: bad \\x1b\[2J\[red\]|ValueError: bad")
    for poor in (dumb, plain):
        poor.until(r"smooth\[b\]: block 0")
        assert "\x1b" not in poor.text
    assert not re.search(r"\x1b\[[\d;]*3\dm", pale.text)
    stopped.process.kill()
    first.tell("go")
    first.tell("go")
    first.process.wait(20)
    log.until(r"smooth\[b\]: 2/3 blocks, 66 %, 1 worker, 1 failed\n")
    log.until(r"run [0-9a-f]{8} \(serial\) incomplete after 0:\d\d\n")
    pale.until(r"incomplete after 0:\d\d: smooth\[b\] 2/3")
    assert first.process.returncode == 0


def test_the_full_screen(program: Callable[..., Program], watch: Callable[..., Watch]) -> None:
    """With the extra ``live`` and a keyboard there is the view in which lines can be chosen; q ends it (D30)."""
    pytest.importorskip("textual")
    program()
    seen = watch(terminal=True, keys=True)
    seen.until(r"reduction\.py")
    seen.until(r"Next failure")
    assert seen.press(b"q") == 0
