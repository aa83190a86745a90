"""The names of daisy with its 1.x spellings, in one namespace.

``Task`` takes ``num_workers``, ``upstream_tasks`` and ``done_marker_path`` with a ``DeprecationWarning``.
"""

from __future__ import annotations

from funlib.geometry import Coordinate, Roi

from workspan.compat.basedirs import (
    get_done_marker_basedir,
    get_tracking_basedir,
    set_done_marker_basedir,
    set_tracking_basedir,
)
from workspan.compat.logging import get_worker_log_basename
from workspan.engines.client import Client
from workspan.engines.context import Context
from workspan.grid import Block, BlockStatus
from workspan.measure.profile import BlockStats, profile_block
from workspan.run.graphs import (
    BlockwiseDependencyGraph,
    DependencyGraph,
    Scheduler,
    expand_roi_to_grid,
    expand_write_roi_to_grid,
)
from workspan.run.pipeline import Pipeline
from workspan.run.runner import run_blockwise
from workspan.run.server import SerialServer, Server
from workspan.run.task import Task
from workspan.schedule.state import TaskState
from workspan.views.progress import JsonProgressObserver

__all__ = [
    "Block",
    "BlockStats",
    "BlockStatus",
    "BlockwiseDependencyGraph",
    "Client",
    "Context",
    "Coordinate",
    "DependencyGraph",
    "JsonProgressObserver",
    "Pipeline",
    "Roi",
    "Scheduler",
    "SerialServer",
    "Server",
    "Task",
    "TaskState",
    "expand_roi_to_grid",
    "expand_write_roi_to_grid",
    "get_done_marker_basedir",
    "get_tracking_basedir",
    "get_worker_log_basename",
    "profile_block",
    "run_blockwise",
    "set_done_marker_basedir",
    "set_tracking_basedir",
]
