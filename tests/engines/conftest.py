"""Engines that are closed after each test, and gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.engine_kit import Gate, Run, line
from helpers.hold import Holder
from helpers.ray_kit import leaky
from workspan.engines import Dask, Engine, Job, Processes, Ray, Serial, WorkerTask
from workspan.grid import Layout


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Folder of the workers' logs."""
    return tmp_path / "logs"


@pytest.fixture
def make_run(log_dir: Path) -> Iterator[Callable[..., Run]]:
    """Return a function that opens an engine for some block functions, one task each; all are closed afterwards."""
    engines: list[Engine] = []

    def make(
        engine: Engine, *functions: Any, layout: Layout | None = None, shows_logs: bool = False, **task_settings: Any
    ) -> Run:
        engines.append(engine)
        layout = layout or line()
        tasks = tuple(WorkerTask(f"task{n}", layout, f, **task_settings) for n, f in enumerate(functions))
        return Run(engine, Job("run", tasks, log_dir, shows_logs=shows_logs))

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(params=["serial", "processes", "forked", "dask", pytest.param("ray", marks=leaky)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine that keeps the contract."""
    if request.param == "dask":
        return Dask(request.getfixturevalue("dask_cluster").address)
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return Ray()
    return Serial() if request.param == "serial" else Processes(fork_server=request.param == "forked")


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[str], Gate]:
    """Return a function that makes a gate of a name."""
    return lambda name: Gate(tmp_path / name)


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    """A block function that waits, and the test's side of it."""
    return Holder(tmp_path)
