"""The functions that all sides of ``bench_dataset`` call: a module of its own, as workers of every side import it."""

from __future__ import annotations

from typing import Any

import numpy as np

Batch = dict[str, np.ndarray[Any, Any]]


def length(batch: Batch) -> Batch:
    """First function of the job."""
    return {**batch, "e": np.sqrt(batch["a"] ** 2 + batch["b"] ** 2) + np.sin(batch["d"])}


def weight(batch: Batch) -> Batch:
    """Second function of the job."""
    return {**batch, "f": np.exp(-batch["e"]) * batch["c"] + np.log1p(np.abs(batch["e"]))}


def scaled(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a number in it."""
    return {"id": row["id"], "x": row["id"] * 2.5}


def wanted(row: dict[str, Any]) -> bool:
    """Keep two rows of three."""
    return bool(row["id"] % 3)


def shifted(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with another number in it."""
    return {"id": row["id"], "y": row["x"] + 1}
