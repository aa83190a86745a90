"""The compiled module and its twin: one suite runs over both."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import workspan
from workspan.measure.sections import Collector, collect


@dataclass
class Clock:
    """A clock that stands still unless it is told how many ns go by."""

    now: int = 1_000
    on_read: list[Callable[[], None]] = field(default_factory=list)
    """Each is called once, in a read of the clock: what a signal handler or the collector might do there."""

    def __call__(self) -> int:
        if self.on_read:
            self.on_read.pop()()
        return self.now

    def pass_by(self, ns: int) -> None:
        self.now += ns


@dataclass(frozen=True)
class Sections:
    """The names of ``workspan.measure.sections``, bound to one of the two implementations."""

    ticks: ModuleType
    collect: type[collect]
    Collector: type[Collector]
    section: Callable[[str], Any]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module", params=["native", "pure"])
def sections(request: pytest.FixtureRequest) -> Sections:
    if request.param == "native":
        ticks = pytest.importorskip("workspan.measure._ticks", reason="the native module is not built")
    else:
        ticks = importlib.import_module("workspan.measure._ticks_py")
    return Sections(
        ticks,
        type("Collect", (collect,), {"_ticks": ticks}),
        type("Again", (Collector,), {"_ticks": ticks}),
        ticks.Section,
    )


@dataclass(frozen=True)
class Fresh:
    """Runs scripts in interpreters of their own, whose size and counters nothing else touches."""

    folder: Path

    def write(self, name: str, script: str) -> Path:
        """Save a script and return its path."""
        prelude = "import json, os, subprocess, sys, threading, time\nfrom workspan.measure.profile import *\n"
        path = self.folder / name
        path.write_text(prelude + textwrap.dedent(script))
        return path

    def __call__(self, script: str, *args: object) -> Any:
        """Run a script, with *args* in ``sys.argv[1:]``, and return the one JSON value that it prints."""
        source = str(Path(next(iter(workspan.__path__))).parent)
        done = subprocess.run(
            [sys.executable, "-W", "error", self.write("script.py", script), *map(str, args)],
            env={**os.environ, "PYTHONPATH": source},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    return Fresh(tmp_path)
