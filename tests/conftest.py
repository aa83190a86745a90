"""What holds for every test: no leaks, a temp folder of its own, reproducible random examples."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from helpers import dask_kit, ray_kit
from helpers.dask_kit import dask_cluster
from helpers.leaks import no_leaks, pytest_configure, pytest_runtest_makereport, pytest_unconfigure
from helpers.ray_kit import ray_cluster

__all__ = [
    "dask_cluster",
    "no_leaks",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_unconfigure",
    "ray_cluster",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start shared clusters before the leak check of the first test that uses them looks around."""
    dask_kit.pytest_collection_modifyitems(config, items)
    ray_kit.pytest_collection_modifyitems(items)
    # They come last: both have listeners and threads in this process, and Ray changes its environment.
    items.sort(key=lambda item: "ray_cluster" in item.fixturenames or "dask_cluster" in item.fixturenames)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """Keep the logs of workers, and what clients in this process take for their log folder, in the test's own one."""
    from workspan import config

    config.reset()
    config.configure(log_basedir=tmp_path / "logs")
    yield tmp_path / "logs"
    config.reset()


# A shell that runs the suite in the background starts it with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline, no check of how fast examples are made, and no database: a machine that is slow, or stands still for half
# a minute, must not change the outcome, nor must an earlier run.
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# A campaign that needs more than 60 s says so itself: @pytest.mark.timeout and settings(max_examples=...).
settings.register_profile("full", parent=settings.get_profile("ci"), max_examples=500)
settings.load_profile("full" if os.environ.get("WORKSPAN_FULL") == "1" else "ci")
