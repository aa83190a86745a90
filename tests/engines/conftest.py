"""Engines that are closed after each test, and gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers.dask_kit import DaskCluster
from helpers.engine_kit import Gate, Run, line
from workspan.engines import Dask, Engine, Job, Processes, Serial, WorkerTask
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


@pytest.fixture(params=["serial", "processes", "dask"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine that keeps the contract."""
    if request.param == "dask":
        return Dask(request.getfixturevalue("dask_cluster").address)
    return Serial() if request.param == "serial" else Processes()


@pytest.fixture(scope="session")
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A Dask cluster for all tests that do it no harm: one Dask worker, whose process has four threads."""
    if find_spec("distributed") is None:
        pytest.skip("the package 'distributed' is not installed")
    cluster = DaskCluster(tmp_path_factory.mktemp("dask"))
    cluster.add_worker(threads=4)
    yield cluster
    cluster.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the cluster before the leak check of the first test that uses it looks around."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("engine") == "dask":
            item.fixturenames.insert(0, "dask_cluster")  # type: ignore[attr-defined]


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[str], Gate]:
    """Return a function that makes a gate of a name."""
    return lambda name: Gate(tmp_path / name)
