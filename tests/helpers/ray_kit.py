"""A real Ray on this machine: one for all tests that do it no harm, clusters of several raylets for those that do."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

TOKEN = "0123456789abcdef" * 4
"""What all tests' clusters ask for, so that none is written to the user's home."""

ENVIRONMENT = {
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "PYTHONWARNINGS": "ignore",
}

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


@contextmanager
def ray_environment() -> Iterator[None]:
    """Set what Ray's processes are to inherit."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """This process connected to a Ray of two CPUs, as a user's program would be; the engine leaves it as it is."""
    ray = require_ray()
    from workspan.engines.ray_session import _end, _quiet

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
        if callspec is not None and "ray" in callspec.params.values():
            item.fixturenames.insert(0, "ray_cluster")  # type: ignore[attr-defined]


class RayMachines:
    """A Ray of several raylets on this machine, which tests add and kill: a head without CPUs to begin with."""

    def __init__(self) -> None:
        require_ray()
        from ray.cluster_utils import Cluster

        self._environment = ray_environment()
        self._environment.__enter__()
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        self._started: list[Any] = []
        options = {"num_cpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=options)
        self._note(self._cluster.head_node)
        self.address: str = self._cluster.address

    def _note(self, node: Any) -> None:
        self._started += [info.process for infos in node.all_processes.values() for info in infos]

    def add(self, **options: Any) -> Any:
        """Start a raylet, which joins the cluster as a machine."""
        node = self._cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, **options)
        self._note(node)
        return node

    def kill_raylet(self, node: Any) -> None:
        """Kill a raylet, and nothing else of its machine."""
        node.all_processes["raylet"][0].process.kill()

    def kill_head(self) -> None:
        """Kill the process by which all others find each other."""
        self._cluster.head_node.all_processes["gcs_server"][0].process.kill()

    def __enter__(self) -> RayMachines:
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._started):
            process.kill()
            process.wait()
        self._warnings.__exit__(None, None, None)
        self._environment.__exit__(None, None, None)
