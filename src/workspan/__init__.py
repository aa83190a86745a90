"""Workspan runs array and batch processing and knows what it costs, block by block.

Everything below loads on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "errors": ("AbandonedError", "ConfigurationError", "LayoutMismatchError", "WorkspanError"),
    "config": ("configure",),
    "grid": ("Block", "BlockStatus"),
    "measure.profile": ("BlockStats", "profile_block"),
    "measure.sections": ("section",),
    "measure.stats": ("Stat",),
    "report.comparison": ("compare",),
    "report.parts": ("WorkerRecord",),
    "run.shown": ("RunReport", "TaskReport"),
    "run.graphs": (
        "BlockwiseDependencyGraph",
        "DependencyGraph",
        "Scheduler",
        "expand_roi_to_grid",
        "expand_write_roi_to_grid",
    ),
    "report.forecast": ("Forecast",),
    "run.forecasts": ("forecast",),
    "run.pipeline": ("Pipeline",),
    "run.runner": ("run_blockwise",),
    "run.server": ("SerialServer", "Server"),
    "engines.client": ("Client",),
    "engines.context": ("Context",),
    "run.task": ("Task",),
    "schedule.state": ("TaskState",),
    "store.records": ("BlockRecord",),
    "steps": ("Chain", "Phase", "Step", "TransformClock"),
    "estimate.manager": ("WallClockTime",),
    "estimate.order": ("ComputationalOrder",),
    "estimate.recorder": ("ProgressRecorder",),
    "views.html.page": ("write_html",),
    "views.progress": ("JsonProgressObserver",),
    "arrays.hand": ("read_block", "write_block"),
    "arrays.mapping": ("map_blocks",),
    "arrays.reduction": ("reduce_blocks",),
    "dataset.dataset": ("Dataset",),
    "dataset.reading": (
        "col",
        "from_arrow",
        "from_items",
        "from_pandas",
        "range",
        "read_csv",
        "read_json",
        "read_parquet",
    ),
    "compat.logging": ("get_worker_log_basename",),
    "compat.basedirs": (
        "get_done_marker_basedir",
        "get_tracking_basedir",
        "set_done_marker_basedir",
        "set_tracking_basedir",
    ),
}
_MODULES = {
    "block": "compat.block",
    "cl_monitor": "compat.cl_monitor",
    "engines": "engines",
    "errors": "errors",
    "estimate": "estimate",
    "live": "live",
    "logging": "compat.logging",
    "v1_compat": "compat.v1_compat",
    "v2": "compat.v2",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AbandonedError",
    "Block",
    "BlockRecord",
    "BlockStats",
    "BlockStatus",
    "BlockwiseDependencyGraph",
    "Chain",
    "Client",
    "ComputationalOrder",
    "ConfigurationError",
    "Context",
    "Coordinate",
    "Dataset",
    "DependencyGraph",
    "Forecast",
    "JsonProgressObserver",
    "LayoutMismatchError",
    "Phase",
    "Pipeline",
    "ProgressRecorder",
    "Roi",
    "RunReport",
    "Scheduler",
    "SerialServer",
    "Server",
    "Stat",
    "Step",
    "Task",
    "TaskReport",
    "TaskState",
    "TransformClock",
    "WallClockTime",
    "WorkerRecord",
    "WorkspanError",
    "__version__",
    "block",
    "cl_monitor",
    "col",
    "compare",
    "configure",
    "engines",
    "errors",
    "estimate",
    "expand_roi_to_grid",
    "expand_write_roi_to_grid",
    "forecast",
    "from_arrow",
    "from_items",
    "from_pandas",
    "get_done_marker_basedir",
    "get_tracking_basedir",
    "get_worker_log_basename",
    "live",
    "logging",
    "map_blocks",
    "profile_block",
    "read_block",
    "read_csv",
    "read_json",
    "read_parquet",
    "reduce_blocks",
    "run_blockwise",
    "section",
    "set_done_marker_basedir",
    "set_tracking_basedir",
    "v1_compat",
    "v2",
    "write_block",
    "write_html",
]

if TYPE_CHECKING:
    from funlib.geometry import Coordinate, Roi

    from workspan import engines, errors, estimate, live
    from workspan.arrays.hand import read_block, write_block
    from workspan.arrays.mapping import map_blocks
    from workspan.arrays.reduction import reduce_blocks
    from workspan.compat import block, cl_monitor, logging, v1_compat, v2
    from workspan.compat.basedirs import (
        get_done_marker_basedir,
        get_tracking_basedir,
        set_done_marker_basedir,
        set_tracking_basedir,
    )
    from workspan.compat.logging import get_worker_log_basename
    from workspan.config import configure
    from workspan.dataset.dataset import Dataset
    from workspan.dataset.reading import (
        col,
        from_arrow,
        from_items,
        from_pandas,
        range,  # noqa: F401  (not in __all__, which would hide the builtin from a star import)
        read_csv,
        read_json,
        read_parquet,
    )
    from workspan.engines.client import Client
    from workspan.engines.context import Context
    from workspan.errors import AbandonedError, ConfigurationError, LayoutMismatchError, WorkspanError
    from workspan.estimate.manager import WallClockTime
    from workspan.estimate.order import ComputationalOrder
    from workspan.estimate.recorder import ProgressRecorder
    from workspan.grid import Block, BlockStatus
    from workspan.measure.profile import BlockStats, profile_block
    from workspan.measure.sections import section
    from workspan.measure.stats import Stat
    from workspan.report.comparison import compare
    from workspan.report.forecast import Forecast
    from workspan.report.parts import WorkerRecord
    from workspan.report.task import RunReport, TaskReport
    from workspan.run.forecasts import forecast
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
    from workspan.steps import Chain, Phase, Step, TransformClock
    from workspan.store.records import BlockRecord
    from workspan.views.html.page import write_html
    from workspan.views.progress import JsonProgressObserver


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(f"workspan.{_MODULES[name]}")
    elif name in _HOME:
        value = getattr(import_module(f"workspan.{_HOME[name]}"), name)
    elif name in ("Coordinate", "Roi"):
        value = getattr(import_module("funlib.geometry"), name)
    else:
        raise AttributeError(f"module 'workspan' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
