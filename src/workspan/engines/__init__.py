"""Who does the work: the calling thread, or worker processes. An engine knows processes and sockets, and no rules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workspan.engines.base import Engine, Job, WorkerTask
    from workspan.engines.dask import Dask
    from workspan.engines.processes import Processes
    from workspan.engines.ray import Ray
    from workspan.engines.serial import Serial
    from workspan.engines.slurm import Slurm

__all__ = ["Dask", "Engine", "Job", "Processes", "Ray", "Serial", "Slurm", "WorkerTask"]

_HOME = {
    "Dask": "dask",
    "Engine": "base",
    "Job": "base",
    "Processes": "processes",
    "Ray": "ray",
    "Serial": "serial",
    "Slurm": "slurm",
    "WorkerTask": "base",
}


def __getattr__(name: str) -> Any:
    # Lazy: a worker process imports this package too, and needs none of these modules.
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
