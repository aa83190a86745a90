"""A recorder of its own for each test, with a clock that only moves when told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from workspan import config
from workspan.estimate import keys, notices
from workspan.estimate import recorder as recorders
from workspan.estimate.logs import LOGGER
from workspan.estimate.recorder import ProgressRecorder


@dataclass
class Clock:
    """Seconds that pass when somebody works."""

    now: float = 1024.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@dataclass
class Seen(logging.Handler):
    """Keeps what was logged of steps."""

    records: list[logging.LogRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    __hash__ = logging.Handler.__hash__

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def events(self) -> list[str]:
        return [record.workspan["event"] for record in self.records]  # type: ignore[attr-defined]


@pytest.fixture
def clock() -> Clock:
    """The clock of the recorder."""
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of timing files."""
    return tmp_path / "timing"


@pytest.fixture
def recorder(home: Path, clock: Clock) -> Iterator[ProgressRecorder]:
    """The recorder that everything uses during the test."""
    config.reset()
    config.configure(timing={"directory": home})
    notices.forget()
    keys._claims.clear()
    keys._sections.clear()
    keys._warned.clear()
    made = ProgressRecorder(clock=clock, now=lambda: 1.75e9 + clock(), threaded=False)
    before = recorders.use(made)
    yield made
    made.close()
    recorders.use(before)
    config.reset()


@pytest.fixture
def again(recorder: ProgressRecorder, clock: Clock) -> Iterator[Any]:
    """Return what ends the recorder and makes the one of the next process."""
    made: list[ProgressRecorder] = []

    def again() -> ProgressRecorder:
        (made[-1] if made else recorder).close()
        notices.forget()
        made.append(ProgressRecorder(clock=clock, now=lambda: 1.75e9 + clock(), threaded=False))
        recorders.use(made[-1])
        return made[-1]

    yield again
    for each in made:
        each.close()


@pytest.fixture
def seen() -> Iterator[Seen]:
    """What is logged of steps."""
    handler = Seen()
    LOGGER.addHandler(handler)
    level, LOGGER.level = LOGGER.level, logging.DEBUG
    propagates, LOGGER.propagate = LOGGER.propagate, False
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)
    LOGGER.propagate = propagates
