"""The full-screen view, driven by a pilot: no terminal, no socket, and the clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rich.text import Text

pytest.importorskip("textual")

from textual.widgets import OptionList, Static

from workspan.views.watch import ProgramState
from workspan.views.watch_app import WatchApp, describe_line

ERROR = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    boom()\nValueError: [red]bad[/red]'


def run(*failures: int, completed: int = 3, id: str = "smooth", **fields: Any) -> dict[str, Any]:
    """A record of a run."""
    task = {"number": 0, "id": id, "total": 9, "completed": completed, "ready": 5, "processing": 1, "left": 60.0}
    worker = {"worker": 0, "task": 0, "does": "block", "block": 4, "cell": [4], "seconds": 1.0}
    told = [{"number": n, "task": id, "block": n, "cell": [n], "worker": 0, "error": f"{ERROR} {n}"} for n in failures]
    record = {"kind": "run", "event": "state", "run": "r", "engine": "processes", "elapsed": 10.0}
    return {**record, "tasks": [task], "workers": [worker], "failures": told, **fields}


class Stage:
    """An app over one program, and what a person sees of it."""

    def __init__(self) -> None:
        self.program = ProgramState(4121, "segment.py")
        self.programs = [self.program]
        self.news: list[str] = []
        self.app = WatchApp(lambda: self.programs, self.listen, lambda: "waiting for a program", lambda: 5.0)

    def listen(self) -> list[str]:
        """What is new."""
        news, self.news = self.news, []
        return news

    def lines(self) -> list[str]:
        """The list."""
        return [str(option.prompt) for option in self.app.query_one(OptionList).options]

    def chosen(self) -> str:
        """The line that is chosen."""
        option = self.app.query_one(OptionList).highlighted_option
        return "" if option is None else str(option.prompt).strip()

    def text(self, id: str = "#text") -> str:
        """The text below the list."""
        return str(self.app.query_one(id, Static).content)

    def act(self, steps: Callable[[Any], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
        """Run the app and do *steps* with its pilot."""

        async def go() -> None:
            async with self.app.run_test(size=size) as pilot:
                while not self.app.query(OptionList):  # a busy machine: the pilot does not wait for ever
                    await pilot.pause(0.01)
                await steps(pilot)

        asyncio.run(go())


@pytest.mark.parametrize("size", [(80, 24), (20, 8)])
def test_a_failure_can_be_read(size: tuple[int, int]) -> None:
    """Tasks, workers and failures are lines that can be chosen; what is known of the chosen one, a failure's traceback
    too, is below the list; nothing from outside is markup (D30, R50, R63)."""
    stage = Stage()
    stage.program.receive(run(1, 2), 0.0)

    async def steps(pilot: Any) -> None:
        await pilot.pause()
        assert "segment.py, process 4121" in stage.text()
        await pilot.press("down", "down")
        assert stage.chosen().startswith("smooth ▶")
        assert "completed 3, being done 1, ready 5" in stage.text()
        assert "ValueError: [red]bad[/red] 2" in stage.text()
        await pilot.press("down")
        assert stage.chosen().startswith("worker 0")
        assert "block 4, 6.0 s" in stage.text()
        await pilot.press("f")
        assert stage.chosen().startswith("smooth: block 1 failed")
        assert "ValueError: [red]bad[/red] 1" in stage.text()
        await pilot.press("f", "f")
        assert stage.chosen().startswith("smooth: block 1 failed")

    stage.act(steps, size)


def test_the_choice_stays() -> None:
    """Counts change in place, lines come and go, and the chosen line stays chosen (D30)."""
    stage = Stage()
    stage.program.receive(run(1), 0.0)

    async def steps(pilot: Any) -> None:
        await pilot.press("f")
        stage.program.receive(run(1, completed=4), 0.0)
        stage.app.draw()
        assert any("4/9" in line for line in stage.lines())
        stage.program.receive({"kind": "step", "event": "start", "id": 1, "label": "[b]step"}, 0.0)
        stage.program.receive(run(1, 2, workers=[]), 0.0)
        stage.app.draw()
        await pilot.pause()
        assert any("[b]step" in line for line in stage.lines())
        assert stage.chosen().startswith("smooth: block 1 failed")
        stage.programs = []
        stage.app.draw()
        assert stage.lines() == ["waiting for a program"]
        assert stage.text() == ""

    stage.act(steps)


def test_equal_names() -> None:
    """Two lines that call themselves the same are two lines."""
    stage = Stage()
    record = run()
    stage.program.receive({**record, "tasks": [record["tasks"][0], {**record["tasks"][0], "number": 1}]}, 0.0)

    async def steps(pilot: Any) -> None:
        await pilot.pause()
        assert len([line for line in stage.lines() if "3/9" in line]) == 2

    stage.act(steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends(key: str) -> None:
    """q and Ctrl-C end it; what has happened meanwhile is told below (D30, E111)."""
    stage = Stage()

    async def steps(pilot: Any) -> None:
        stage.news = ["a.py (pid 1) [b]ended[/b]"]
        stage.app.hear()
        assert stage.text("#news") == "a.py (pid 1) [b]ended[/b]"
        await pilot.press(key)
        await pilot.pause()
        assert not stage.app.is_running

    stage.act(steps)


def test_all_that_is_known() -> None:
    """Programs, runs, steps and things that are over have a text; of what is not known there is none."""
    program = ProgramState(1, "a.py")
    program.receive(run(1, id="t", event="end", outcome="incomplete"), 0.0)
    program.receive({"kind": "step", "event": "start", "id": 1, "label": "root", "elapsed": 3.0}, 0.0)
    program.receive({"kind": "step", "event": "failed", "id": 2, "label": "x", "elapsed": 3.0, "error": "E"}, 0.0)
    program.dropped = 7

    def told(about: object) -> str:
        return Text("\n").join(describe_line(about, [program], 0.0)).plain

    (state,) = program.runs.values()
    assert told(program).endswith("7 records about steps were left out, so as not to slow it down")
    assert told(state) == "run (processes) incomplete after 0:10\nid r\n1 attempt failed"
    assert told(program.steps[1]) == "root\n3.0 s so far"
    assert told(program.ended["x"]) == "x\nfailed after 3.0 s (E)"
    assert told(None) == ""
