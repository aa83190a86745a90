"""The process that is watched: opened once, cheap, silent, its own after a fork."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workspan import config, live
from workspan.live import outlet
from workspan.live.server import Server

Connect = Callable[..., Any]


def run(code: str, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process of its own."""
    env = {**os.environ, "WORKSPAN_LIVE_DIRECTORY": str(place)}
    return subprocess.run([sys.executable, *words, "-c", code], env=env, capture_output=True, text=True, check=True)


def test_importing_opens_nothing(place: Path) -> None:
    """Importing starts no thread and makes no socket or folder (E21, E103, R68)."""
    code = "import threading, workspan.live as live; print(threading.active_count(), live.listening())"
    assert run(code, place).stdout == "1 False\n"
    assert not place.exists()


def test_starting_twice_is_starting_once(started: Server, place: Path) -> None:
    """Another start changes nothing (D30)."""
    live.start()
    assert outlet._server is started
    assert os.listdir(place) == [started.path.name]
    assert sum(thread.name == "workspan-live" for thread in threading.enumerate()) == 1


def test_bad_settings(place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is wrong is told of, and costs the program nothing but its viewers (E20, E104)."""
    monkeypatch.setenv("WORKSPAN_LIVE_ENABLED", "perhaps")
    config.reset()
    live.start()
    assert not live.listening()
    (record,) = caplog.records
    assert "WORKSPAN_LIVE_ENABLED: live.enabled='perhaps' is neither true nor false" in record.getMessage()


def test_nobody_looks(started: Server) -> None:
    """Without a viewer nothing is kept (E109)."""
    assert not live.listening()
    live.publish({"label": "x"})
    assert not started._queue


def test_no_folder(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where no folder can be used, one warning says why, and nothing else changes (E104)."""
    place.mkdir(mode=0o755)
    for _ in range(2):
        live.start()
    live.publish({"label": "x"})
    assert not live.listening()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"this program cannot be watched: {str(place)!r} is open to others (mode 0755); chmod 700 it"
    )


def test_a_long_folder_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the temp folder's name is too long for a socket, the next one is used, and viewers look there (KF-71)."""
    long = tmp_path / ("t" * 150)
    long.mkdir()
    monkeypatch.setattr(outlet.folders, "places", lambda: [long / "workspan-0", place])
    live.start()
    assert isinstance(outlet._server, Server)
    assert outlet._server.path.parent == place


def test_a_folder_that_goes_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends may remove the folder just when another wants to use it."""
    real, gone = outlet.folders.bind, []

    def bind(*args: Any) -> Any:
        if not gone:
            gone.append(True)
            place.rmdir()
        return real(*args)

    monkeypatch.setattr(outlet.folders, "bind", bind)
    live.start()
    assert gone
    assert isinstance(outlet._server, Server)


def test_it_can_be_switched_off(place: Path) -> None:
    """The setting live.enabled keeps a program to itself."""
    config.configure(live={"enabled": False})
    live.start()
    assert outlet._server is None
    assert not place.exists()


FORK = """
import os, threading
seen = []
os.register_at_fork(before=lambda: seen.append(threading.active_count()))  # runs after those that are registered later
from workspan import live
from workspan.live import outlet
live.start()
mine = outlet._server.path
pid = os.fork()
if not pid:
    kept = mine.exists() and outlet._server is not None
    live.publish({"label": "x"})       # it has something to show
    other = outlet._server.path
    kept = kept and other != mine and other.exists() and str(os.getpid()) in other.name
    live.stop()
    os._exit(0 if kept and mine.exists() and not other.exists() else 1)
_, status = os.waitpid(pid, 0)
import socket
viewer = socket.socket(socket.AF_UNIX)
viewer.connect(str(mine))
while not live.listening():
    pass
viewer.close()
print(status, mine.exists(), seen)  # a thread that lives through a fork makes Python warn
"""


def test_a_fork_has_a_socket_of_its_own(place: Path) -> None:
    """A child opens one under its own pid when it has something to show; its parent's stays and works (E31, E110)."""
    ended = run(FORK, place, "-W", "error")
    assert (ended.stdout, ended.stderr) == ("0 True [1]\n", "")
    assert os.listdir(place) == []


def test_the_end_of_a_program(place: Path) -> None:
    """A program removes its socket when it ends, and a daemon thread keeps nothing waiting (E112, E98)."""
    ended = run("from workspan import live; live.start(); print(live.outlet._server.path.exists())", place)
    assert (ended.stdout, ended.stderr) == ("True\n", "")
    assert os.listdir(place) == []


@pytest.mark.parametrize(
    ("argv", "module", "name"),
    [
        (["/data/reduction.py"], None, "reduction.py"),
        (["-c"], None, "python"),
        ([""], None, "python"),
        ([], None, "python"),
        (["/lib/app/__main__.py"], "app.__main__", "app"),
        (["/lib/app/tool.py"], "app.tool", "app.tool"),
    ],
)
def test_the_name_of_a_program(argv: list[str], module: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is its script, or the module that was started with -m (D30)."""
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(module, None) if module else None
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert outlet.script_name() == name
