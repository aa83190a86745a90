"""Runs whose workers log into the test's own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import workspan


@pytest.fixture(autouse=True)
def logs(tmp_path: Path) -> Iterator[Path]:
    """Keep the workers' logs in the test's own folder."""
    workspan.logging.set_log_basedir(tmp_path / "logs")
    yield tmp_path / "logs"
    workspan.logging.set_log_basedir("./workspan_logs")


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Folder for the files that block functions leave."""
    folder = tmp_path / "calls"
    folder.mkdir()
    return folder
