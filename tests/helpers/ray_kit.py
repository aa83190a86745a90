"""A real Ray on this machine: one for all tests that do it no harm, clusters of several raylets for those that do."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

import psutil
import pytest

from helpers.full import FULL
from workspan.engines.ray_session import _end, _environment, _quiet

TOKEN = "0123456789abcdef" * 4
"""What all tests' clusters ask for, so that none is written to the user's home."""

ENVIRONMENT = {
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "PYTHONWARNINGS": "ignore",
}

ALWAYS = {
    f"{name}[ray]"
    for name in (
        "test_worker_reports_ready_results_and_end_in_this_order",
        "test_killed_worker_loses_what_it_holds",
        "test_close_ends_all_workers_and_says_so",
        "test_block_is_measured",
        "test_wrong_signature_is_reported",
    )
}
"""Of the contract suite, which is the same code above the link as for Dask: what shows that Ray's link carries it."""

leaky = pytest.mark.leaks(
    "processes",
    "threads",
    "descriptors",
    "files",
    reason="Ray keeps workers that it started ahead, their connections, and its session folder, until its own end",
)


def require_ray() -> Any:
    """Return the package, or skip the test."""
    if find_spec("ray") is None:
        pytest.skip("the package 'ray' is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import ray
        except ImportError as error:  # no wheel fits
            pytest.skip(f"the package 'ray' cannot be imported here: {error}")
    return ray


def ray_environment(**more: str) -> AbstractContextManager[None]:
    """Set what Ray's processes are to inherit.

    In this process the token's mode is left to Ray, which may have been imported before.
    """
    return _environment({**ENVIRONMENT, **more})


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """This process connected to a Ray of two CPUs, as a user's program would be; the engine leaves it as it is."""
    ray = require_ray()
    logging.getLogger("ray").setLevel(logging.ERROR)
    with ray_environment():
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            ray.init(
                address="local",
                num_cpus=4,
                object_store_memory=80 * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                resources={"shared": 4},
                _temp_dir=tempfile.mkdtemp(prefix="r"),
            )
        try:
            yield ray
        finally:
            _end(ray)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the shared Ray before the leak check of the first test that uses it looks around."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        # The type first: an array is equal to nothing as a whole.
        if callspec is not None and any(isinstance(v, str) and v == "ray" for v in callspec.params.values()):
            # A new list: the items of one function share theirs.
            item.fixturenames = ["ray_cluster", *item.fixturenames]  # type: ignore[attr-defined]
            if item.name not in ALWAYS and "test_contract" in item.nodeid and not FULL:
                item.add_marker(pytest.mark.skip(reason="starting actors takes seconds: WORKSPAN_FULL=1 runs it"))


HOST = """
import json, sys, warnings
warnings.simplefilter("ignore")
from ray.cluster_utils import Cluster
small = {"object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
node = cluster.head_node
while True:
    pids = {kind: [info.process.pid for info in infos] for kind, infos in node.all_processes.items()}
    print("NODE", json.dumps([cluster.address, pids]), flush=True)
    options = json.loads(sys.stdin.readline())
    node = cluster.add_node(num_cpus=1, **small, **options)
"""


class RayMachines:
    """A Ray of several raylets on this machine, which tests add and kill: a head without CPUs to begin with.

    A program of its own has started them: Ray ends programs that were connected to a head that is gone.
    """

    def __init__(self) -> None:
        require_ray()
        self._mark = uuid4().hex
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        with ray_environment(RAY_AUTH_MODE="token"):
            self._host = subprocess.Popen(
                [sys.executable, "-c", HOST],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "RAY_KIT": self._mark},
                text=True,
            )
        try:
            self.address, self._head = self._read()
        except BaseException:
            self.__exit__()
            raise

    def _read(self) -> tuple[str, dict[str, list[int]]]:
        assert self._host.stdout is not None
        for text in self._host.stdout:
            if text.startswith("NODE "):
                address, pids = json.loads(text[5:])
                return address, pids
        raise AssertionError("the cluster did not start")

    def add(self, **options: Any) -> int:
        """Start a raylet, which joins the cluster as a machine; return its process."""
        assert self._host.stdin is not None
        self._host.stdin.write(json.dumps(options) + "\n")
        self._host.stdin.flush()
        return self._read()[1]["raylet"][0]

    def kill_head(self) -> None:
        """Kill the process by which all others find each other."""
        os.kill(self._head["gcs_server"][0], signal.SIGKILL)

    def __enter__(self) -> RayMachines:
        return self

    def __exit__(self, *error: object) -> None:
        # Also those whose parent is gone already.
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("RAY_KIT") == self._mark:
                    process.kill()
        self._host.wait()
        for stream in (self._host.stdin, self._host.stdout):
            assert stream is not None
            stream.close()
