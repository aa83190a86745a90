"""The bars of the examples are driven by log records alone, shown here with stand-ins for their widgets."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from workspan import config
from workspan.estimate import WallClockTime
from workspan.estimate.logs import LOGGER
from workspan.estimate.recorder import ProgressRecorder

FOLDER = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """Import an example."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def attach() -> Iterator[Any]:
    """Return what adds a handler until the test ends."""
    handlers: list[logging.Handler] = []
    level = LOGGER.level

    def attach(handler: logging.Handler) -> None:
        handlers.append(handler)
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)

    yield attach
    for handler in handlers:
        LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def run(recorder: ProgressRecorder, clock: Any, *, fails: bool = False) -> None:
    """A step that is expected to take 2 s and takes 3."""
    with WallClockTime("s", N_ref=1.0, order="O_N", enable_logging=True):
        for _ in range(12):
            clock.work(0.25)
            recorder.countdown.tick()
        if fails:
            raise ValueError("meant")


@pytest.fixture
def quick(recorder: ProgressRecorder) -> ProgressRecorder:
    """Tick every half second; expect 2 s."""
    config.configure(logging={"interval": 0.5}, timing={"default_seconds": 2.0, "default_size": 1.0})
    return recorder


class QBar:
    """What the Qt example uses of ``QProgressBar``."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.calls.append((name, *values))


def test_the_qt_bar(quick: ProgressRecorder, clock: Any, attach: Any) -> None:
    """It fills, has no end once overdue, is full when complete, and is reset by a failure (E97)."""
    example, bar = load("progress_qt"), QBar()
    attach(example.SignalHandler(lambda *news: example.show(bar, *news)))
    run(quick, clock)
    values = [call[1] for call in bar.calls if call[0] == "setValue"]
    assert values == [0, 250, 500, 750, 1000]
    assert ("setRange", 0, 0) in bar.calls
    assert ("setFormat", "run: s: 2 s left") in bar.calls
    with pytest.raises(ValueError, match="meant"):
        run(quick, clock, fails=True)
    assert bar.calls[-2:] == [("reset",), ("setFormat", "run: s: failed")]


def test_the_notebook_bar(quick: ProgressRecorder, clock: Any, attach: Any) -> None:
    """The same for ipywidgets (E97)."""
    bar, text = SimpleNamespace(value=None, bar_style=""), SimpleNamespace(value="")
    attach(load("progress_jupyter").WidgetHandler(bar, text))
    run(quick, clock)
    assert (bar.value, bar.bar_style) == (1.0, "success")
    with pytest.raises(ValueError, match="meant"):
        run(quick, clock, fails=True)
    assert (bar.value, bar.bar_style) == (0.0, "danger")
    assert "failed" in text.value
