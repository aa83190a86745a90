"""Tasks on a line, runs without a display, and what user code leaves behind to be counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from funlib.geometry import Roi

import workspan


def line(count: int, function: Any, task_id: str = "t", context: int = 0, **kwargs: Any) -> workspan.Task:
    """A task over *count* blocks of ten on a line."""
    kwargs.setdefault("read_write_conflict", context > 0)
    return workspan.Task(
        task_id,
        Roi((0,), (count * 10 + 2 * context,)),
        Roi((0,), (10 + 2 * context,)),
        Roi((context,), (10,)),
        function,
        **kwargs,
    )


def run(what: Any, engine: Any = "serial", **kwargs: Any) -> Any:
    """Run with no display, and return the report."""
    kwargs = {"progress": False, "summary": False, "return_report": True, **kwargs}
    return workspan.run_blockwise(what, engine=engine, **kwargs)


def note(folder: Path) -> Callable[[workspan.Block], int]:
    """Return a block function that leaves one file a call, named after block and attempt, and returns the attempt."""

    def write(block: workspan.Block) -> int:
        attempt = 0
        while True:
            try:
                (folder / f"{block.task_id}.{block.block_id[1]}.{attempt}").touch(exist_ok=False)
                return attempt
            except FileExistsError:
                attempt += 1

    return write
