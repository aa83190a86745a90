"""A real Dask cluster of processes of their own: a scheduler, and Dask workers that tests add, kill and retire."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers.full import FULL

SECONDS = 60.0


class DaskCluster:
    """A scheduler and its workers, each a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        options = ("--host", "127.0.0.1", "--port", "0", "--no-show", "--no-dashboard")
        self.scheduler = self._spawn("dask_scheduler", *options, "--scheduler-file", str(self._file))
        try:
            _wait(lambda: self._file.exists() and self._file.read_text().endswith("}"), "the scheduler is up")
        except BaseException:
            self.close()
            raise
        self.address: str = json.loads(self._file.read_text())["address"]

    def add_worker(self, *options: str, threads: int = 1, nanny: bool = False) -> subprocess.Popen[bytes]:
        """Start a Dask worker; it joins a little later."""
        options = ("--nthreads", str(threads), "--nanny" if nanny else "--no-nanny", *options)
        fixed = ("--no-dashboard", "--death-timeout", "20", "--local-directory", str(self._folder))
        return self._spawn("dask_worker", self.address, "--name", f"w{len(self._processes)}", *fixed, *options)

    def _spawn(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        number = len(self._processes)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)}
        env["PYTHONWARNINGS"] = "ignore"
        with (self._folder / f"{number}-{module}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=env, cwd=self._folder,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def have(self, client: Any, count: int) -> None:
        """Have at least *count* unharmed Dask workers, each with one of the resource ``spare``."""
        while sum(process.poll() is None for process in self._processes) - 1 < count:
            self.add_worker("--resources", "spare=1")
        _wait(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) >= count, f"{count} Dask workers")

    def log(self) -> str:
        """Return what all of them wrote."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def close(self) -> None:
        """Kill all."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"not so after {SECONDS} s: {what}"
        time.sleep(0.01)


def what_is_left(client: Any) -> tuple[list[str], list[str]]:
    """Tasks and queues that the scheduler knows."""

    def look(dask_scheduler: Any) -> tuple[list[str], list[str]]:
        return list(map(str, dask_scheduler.tasks)), list(dask_scheduler.extensions["queues"].queues)

    found: tuple[list[str], list[str]] = client.run_on_scheduler(look)
    return found


@pytest.fixture(scope="session")
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A Dask cluster for all tests that do it no harm: one Dask worker, whose process has four threads."""
    if find_spec("distributed") is None:
        pytest.skip("the package 'distributed' is not installed")
    cluster = DaskCluster(tmp_path_factory.mktemp("dask"))
    try:
        cluster.add_worker(threads=4)
        yield cluster
    finally:
        cluster.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the shared cluster before the leak check of the first test that uses it looks around.

    Of a table of cases only the first one runs on Dask: what differs between them happens in the worker's process,
    whose code is that of every engine; ``WORKSPAN_FULL=1`` runs all.
    """
    seen: set[tuple[pytest.Module | None, str]] = set()
    spared: list[pytest.Item] = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        # The type first: an array is equal to nothing as a whole.
        if callspec is None or not any(isinstance(v, str) and v == "dask" for v in callspec.params.values()):
            continue
        # A new list: the items of one function share theirs.
        item.fixturenames = ["dask_cluster", *item.fixturenames]  # type: ignore[attr-defined]
        name = item.getparent(pytest.Module), item.nodeid.partition("[")[0]
        if name in seen and not FULL:
            spared.append(item)
        seen.add(name)
    if spared:
        config.hook.pytest_deselected(items=spared)
        items[:] = [item for item in items if item not in spared]
