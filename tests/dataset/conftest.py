"""What the tests of datasets share."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest


class Sleeper:
    """A batch function that sleeps, and knows for how long it did."""

    def __init__(self, seconds: float, name: str = "sleeper") -> None:
        self.seconds = seconds
        self.__name__ = name
        self.slept: list[float] = []

    def __call__(self, batch: Any) -> Any:
        begin = time.perf_counter()
        time.sleep(self.seconds)
        self.slept.append(time.perf_counter() - begin)
        return batch


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
