"""The engine that a person means by a word: ``"serial"``, ``"processes"``, ``"dask://host:8786"``, ``"slurm"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from workspan.engines.base import Engine

ENGINES = ("processes", "serial", "dask", "ray", "slurm")
"""Names; a cluster's may be followed by ``://`` and the address of a running one, Slurm's by a partition."""

_CLUSTERS = {
    "dask": "host and port, such as 'dask://host:8786'",
    "ray": "host and port, such as 'ray://host:10001'",
    "slurm": "a partition, such as 'slurm://short'",
}


def engine_of(name: str) -> Engine:
    """Return a new engine, not open yet; nothing is connected to and no optional package is loaded.

    Raises
    ------
    ConfigurationError
        No engine has that name, or its address is missing.
    """
    kind, mark, address = name.partition("://")
    if mark and kind in _CLUSTERS and not address:
        raise ConfigurationError(f"engine={name!r} has no address: give {_CLUSTERS[kind]}")
    if kind == "dask":
        from workspan.engines.dask import Dask

        return Dask(name if mark else None)
    if kind == "slurm":
        from workspan.engines.slurm import Slurm

        return Slurm(address or None)
    if kind == "ray":
        from workspan.engines.ray import Ray

        return Ray(name if mark else None)
    if name == "serial":
        from workspan.engines.serial import Serial

        return Serial()
    if name == "processes":
        from workspan.engines.processes import Processes

        return Processes()
    known = ", ".join(map(repr, ENGINES))
    raise ConfigurationError(
        f"engine={name!r} is not known: use one of {known}, 'dask://host:8786' or 'ray://host:10001'"
    )
