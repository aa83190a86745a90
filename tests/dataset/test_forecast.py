"""A dataset's operators are tasks: their runs are a history, in rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workspan as ws
from workspan import config
from workspan.errors import ConfigurationError
from workspan.run.history import read_summaries


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[None]:
    """A history of its own for each test."""
    config.reset()
    config.configure(timing={"directory": tmp_path / "home"}, log_basedir=tmp_path / "logs")
    yield
    config.reset()


def slow(batch: Any) -> Any:
    """Take 100 us a row."""
    time.sleep(1e-4 * len(batch["id"]))
    return batch


def other(batch: Any) -> Any:
    """Take no time."""
    return batch


def rows(count: int, function: Any = slow) -> ws.Dataset:
    """Whole numbers in ten tasks, mapped."""
    return ws.range(count, blocks=10).map_batches(function)


def test_an_execution_is_forecast_from_rows() -> None:
    """Five times the rows take about as much longer: sizes are rows, wherever the results were (D32, E33)."""
    data = rows(2000)
    first = data.forecast()
    assert (first.wall_seconds, first.basis) == (None, "default, no data")
    data.to_arrow(engine="serial")
    rows(4000).to_arrow(engine="serial")
    found, small = rows(20_000).forecast(1), rows(4000).forecast(1)
    assert found.basis == "20 blocks of 2 runs"
    large_block, small_block = (next(iter(made.tasks.values())).block_seconds for made in (found, small))
    assert large_block is not None
    assert small_block is not None
    assert small_block > 0.04
    assert 2.0 < large_block / small_block < 5.5
    assert not any("changed" in note for note in found.notes)
    (summary,) = {row.size for row in read_summaries(next(iter(found.tasks)))[0][0].later}
    assert summary == 200.0


def test_another_function_has_another_history() -> None:
    """Operators of one name with other functions are not mixed up (E48)."""
    rows(2000).to_arrow(engine="serial")
    assert rows(2000, other).forecast().source == "default"


def test_a_write_is_another_operator(tmp_path: Path) -> None:
    """What is written is fused with the write: writes= names it, and done tasks are left out (D32, D46)."""
    data = rows(2000)
    folder, tracking = tmp_path / "out", tmp_path / "track"
    data.write_parquet(folder, engine="serial", tracking_path=tracking, progress=False)
    assert data.forecast().source == "default"
    again = data.forecast(writes="parquet")
    assert (again.blocks, again.basis) == (10, "10 blocks of 1 run")
    assert data.forecast(writes="parquet", tracking_path=tracking).source == "none"
    with pytest.raises(ConfigurationError, match="writes='text'"):
        data.forecast(writes="text")  # type: ignore[arg-type]


def test_a_limit_in_the_middle_cannot_be_forecast() -> None:
    """How much reaches what is behind it is not known; at the end the most is said (D33)."""
    with pytest.raises(ConfigurationError, match="a limit in the middle"):
        rows(2000).limit(5).map_batches(other).forecast()
    assert any("once it has 5 rows" in note for note in rows(2000).limit(5).forecast().notes)
