"""The manual test of the source document, unattended: an application, a viewer, and what both leave behind (E113)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median
from typing import Any

import pytest

APPLICATION = """
import logging, os, sys, time
from workspan import ProgressRecorder, WallClockTime, live
from workspan.estimate import recorder

late = 0.0

def clock():
    # The time without what the machine was late by: a busy one lets sleepers wait.
    return time.perf_counter() - late

recorder.use(ProgressRecorder(clock=clock))

def size(self, s):
    return None if s is None else FACTOR * s

@WallClockTime(method="cook", N_ref=size, order="ORDER")
class Recipe:
    def cook(self, s):
        work(s)

def work(s):
    global late
    seconds = 0.02 + 0.03 * (s or 0)
    begin = time.perf_counter()
    time.sleep(seconds)
    late += time.perf_counter() - begin - seconds

class Service:
    @WallClockTime(N_ref=size, order="ORDER")
    def reduce(self, s):
        with WallClockTime("load", N_ref=size, N_ref_args=((self, s), {}), order="ORDER"):
            work(s)
        if s == -1:
            raise ValueError(s)
        with WallClockTime("cook", N_ref=size, N_ref_args=((self, s), {}), order="ORDER"):
            Recipe().cook(s)
        if s == 7:
            os.kill(os.getpid(), 9)

logger = logging.getLogger("workspan.progress")
logger.addHandler(live.SocketHandler("demo-progress"))
logger.setLevel(logging.INFO)
live.start()
print(os.getpid(), flush=True)
for line in sys.stdin:
    for word in line.split():
        try:
            Service().reduce(None if word == "none" else float(word))
        except ValueError:
            pass
    print("done", flush=True)
"""
SIZE = 1e9


class Process:
    """A process whose output is read line by line."""

    def __init__(self, *words: str, cwd: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd,
            env=env,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self._process.stderr, self.errors)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, into: list[str]) -> None:
        for line in stream:
            with self._changed:
                into.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until so many lines hold a text."""
        with self._changed:
            found = self._changed.wait_for(lambda: sum(text in line for line in self.lines) >= times, 60)
        assert found, (text, self.lines, self.errors)

    def say(self, text: str) -> None:
        """Write a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")

    def end(self, number: int | None = None) -> int:
        """Close its input, or send it a signal; return its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if number is not None:
            self._process.send_signal(number)
        self._process.stdin.close()
        code = self._process.wait(60)
        for thread in self._threads:
            thread.join(60)
        self._process.stdout.close()
        self._process.stderr.close()
        return code


class Scene:
    """The application and viewers in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "timing"
        run = folder / "run"
        run.mkdir(mode=0o700)
        self.run = run
        self.env = {
            **os.environ,
            "WORKSPAN_TIMING_DIRECTORY": str(self.home),
            "WORKSPAN_LIVE_ENABLED": "true",
            "WORKSPAN_LOGGING_ROOTS": "Service",
            "WORKSPAN_LOGGING_INTERVAL": "0.04",
            "XDG_RUNTIME_DIR": str(run),
        }

    def application(self, *, factor: str = "1e9", order: str = "O_N") -> Process:
        """Start it; its N_ref holds a constant that can be another one."""
        (self.folder / "app.py").write_text(APPLICATION.replace("FACTOR", factor).replace("ORDER", order))
        process = Process("app.py", cwd=self.folder, env=self.env)
        process.wait_for("")
        return process

    def viewer(self, pid: str) -> Process:
        """Start a viewer of the application's log handler."""
        process = Process(
            *("-m", "workspan", "watch", "--plain", "-n", "demo-progress", "-p", pid), cwd=self.folder, env=self.env
        )
        process.wait_for(f"(pid {pid}) runs")
        return process

    def files(self) -> list[Path]:
        """Documents, oldest first."""
        return sorted(self.home.glob("*.json"))

    def steps(self) -> dict[tuple[Any, ...], Any]:
        """Steps of the newest document, by qualified and step name."""
        content = json.loads(self.files()[-1].read_text())
        return {tuple(step["details"]["key"][1:]): step for step in content["steps"]}


KEYS = {("Service.reduce", None), ("Service.reduce", "load"), ("Service.reduce", "cook"), ("Recipe", None)}


@pytest.mark.once
def test_the_manual_test_runs_unattended(tmp_path: Path) -> None:
    """All fifteen steps of the acceptance test, in well under a minute (E113, E114, E115)."""
    scene = Scene(tmp_path)
    assert not scene.home.exists()  # 1

    first = scene.application()  # 2
    viewer = scene.viewer(first.lines[0])  # 3
    first.say("1")  # 4
    first.wait_for("done")
    viewer.wait_for("reduce -- complete")
    shown = [line.split(" ", 3)[-1] for line in viewer.lines if " -- " in line]  # 5
    assert shown[0].startswith("reduce -- estimated completion in 3.0 seconds (default: no data yet)")
    assert any(" left" in line or "longer than expected" in line for line in shown)
    assert [line.strip().split(" -- ")[0] for line in shown if "complete after" in line] == ["load", "cook", "reduce"]
    assert [line[:6] for line in shown if "load --" in line] == ["  load", "  load"]
    assert not any("Recipe" in line for line in shown)
    assert first.end() == 0  # 6
    assert viewer.end(signal.SIGINT) == 0
    assert [path for path in scene.run.rglob("*") if path.is_socket()] == []
    assert len(scene.files()) == 1
    steps = scene.steps()
    assert steps.keys() == KEYS
    for step in steps.values():
        assert step["details"]["key"][0].startswith("__main__:app-")
        (measured,) = step["measurements"]
        assert measured["dt"] > 0
        assert measured["dt_est"] == 3.0
        assert step["estimate"]["tck"] == [[0.0, 0.0, SIZE, SIZE], [0.0, 3.0], 1]

    second = scene.application()  # 7
    viewer = scene.viewer(second.lines[0])
    second.say("2 4 3 5 4 none")  # 8
    second.wait_for("done")
    viewer.wait_for("reduce -- complete", 6)
    assert sum("reduce -- no data available" in line for line in viewer.lines) == 1  # 9
    assert second.end() == 0  # 10
    assert viewer.end(signal.SIGINT) == 0
    assert len(scene.files()) <= 5
    grown = scene.steps()
    for key in KEYS:
        measured = grown[key]["measurements"]
        assert len(measured) == 6
        assert abs(measured[1]["dt_est"] / measured[1]["dt"] - 1) > 0.2
        # Of the last three, as one sleep of tenths of a second may be late beside other tests.
        assert median(abs(each["dt_est"] / each["dt"] - 1) for each in measured[-3:]) < 0.2
        assert grown[key]["estimate"]["tck"][2] > 1
        assert grown[key]["estimate"]["count"] > steps[key]["estimate"]["count"]

    third = scene.application(factor="2e9")  # 11
    third.say("1 2")
    third.wait_for("done")
    assert third.end() == 0
    assert sum("N_ref has changed" in line for line in third.errors) == len(KEYS)

    fourth = scene.application(order="O_N_LOG_N")  # 12
    fourth.say("3 3 3")
    fourth.wait_for("done")
    assert fourth.end() == 0
    assert fourth.errors == []
    for key in KEYS:
        first_of_it, *others = scene.steps()[key]["measurements"][-3:]
        # What it takes, not what one sleep took that may be late beside other tests.
        takes = median(each["dt"] for each in (first_of_it, *others))
        assert abs(first_of_it["dt_est"] / takes - 1) < 0.2

    newest = scene.files()[-1]  # 13
    newest.write_bytes(newest.read_bytes()[:500])
    fifth = scene.application(order="O_N_LOG_N")
    fifth.say("7")  # 14
    assert fifth._process.wait(60) == -signal.SIGKILL
    fifth.end()
    assert len([line for line in fifth.errors if newest.name in line]) == 1
    assert "older" not in "".join(fifth.errors)
    sixth = scene.application(order="O_N_LOG_N")
    sixth.say("1")
    sixth.wait_for("done")
    before = len(fifth.errors)
    sixth.say("-1")  # 15: N_ref is negative and the method raises
    sixth.wait_for("done", 2)
    assert before == 1
    assert sixth.end() == 0
    counts = {key: len(step["measurements"]) for key, step in scene.steps().items()}
    whole, inner = counts["Service.reduce", None], counts["Service.reduce", "load"]
    assert inner == whole + 1  # the section that had ended before the kill was kept, the method that had not was not
