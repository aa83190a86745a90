"""What the tests of datasets share."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from workspan.dataset import task
from workspan.steps import TransformClock


class FakeTime:
    """A clock that goes on only when somebody sleeps; it stands for the module ``time`` where tasks run."""

    def __init__(self) -> None:
        self.ns = 0

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)

    def perf_counter(self) -> float:
        return self.ns / 1e9

    time = process_time = perf_counter

    def sleeper(self, seconds: float, name: str = "sleeper") -> Any:
        """Return a batch function that sleeps."""

        def function(batch: Any) -> Any:
            self.sleep(seconds)
            return batch

        function.__name__ = name
        return function


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Let tasks of this process run on a clock of the test's."""
    fake = FakeTime()
    monkeypatch.setattr(task, "time", fake)
    monkeypatch.setattr(task, "TransformClock", lambda **how: TransformClock(clock=lambda: fake.ns, **how))
    return fake


class Seen:
    """A batch function that notes how many rows it was given."""

    def __init__(self, name: str = "seen") -> None:
        self.__name__ = name
        self.rows: list[int] = []

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.rows.append(len(next(iter(batch.values()))))
        return batch


def tables(*rows: int) -> list[pa.Table]:
    """Tables of int64 numbers in a column ``x`` that go on from one to the next."""
    made, start = [], 0
    for n in rows:
        made.append(pa.table({"x": pa.array(list(range(start, start + n)), pa.int64())}))
        start += n
    return made


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write their logs where nobody looks."""
    monkeypatch.chdir(tmp_path)
