"""What blocks return, one file a block: written by rename, so that a file that is there is complete.

A NumPy array or number is an ``.npy`` file, a table (pyarrow or pandas) a ``.parquet`` file; ``None``, for a block that
has nothing to tell, is an empty file ``.none``. The name is the block's number. As with the chunks of an array, nothing
is forced to the disk: a file that a power cut damaged is found when it is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.errors import TrackingError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SUFFIXES = (".npy", ".parquet", ".none")


def write_result(folder: Path, index: int, value: Any) -> None:
    """Keep what block *index* returned, whole or not at all.

    Raises
    ------
    UsageTypeError
        It is nothing that is kept.
    """
    suffix, save = _saver(index, value)
    part = folder / f"{index}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            save(file)
        os.replace(part, folder / f"{index}{suffix}")
    finally:
        part.unlink(missing_ok=True)
    for other in SUFFIXES:  # of an attempt before
        if other != suffix:
            (folder / f"{index}{other}").unlink(missing_ok=True)


def read_result(folder: Path, index: int) -> Any:
    """Return what block *index* returned.

    Raises
    ------
    TrackingError
        Its file is missing or damaged.
    """
    for suffix in SUFFIXES:
        path = folder / f"{index}{suffix}"
        if not path.exists():
            continue
        try:
            if suffix == ".none":
                return None
            if suffix == ".npy":
                return np.load(path, allow_pickle=False)[()]
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path)
        except Exception as error:
            raise TrackingError(f"the result {str(path)!r} of block {index} is damaged: {error}") from error
    raise TrackingError(f"the result of block {index} is missing in {str(folder)!r}")


def indices_in(folder: Path) -> set[int]:
    """Return the numbers of the blocks whose results are there."""
    if not folder.is_dir():
        return set()
    names = (name.partition(".") for name in os.listdir(folder) if name.endswith(SUFFIXES))
    return {int(number) for number, _, _ in names if number.isdigit()}


def combine_as_tree(values: Iterable[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """Combine neighbours, then neighbours of what came out, and so on, in order; ``None`` is left out.

    At no time more values are held than a tree is high.

    Examples
    --------
    >>> combine_as_tree("abcde", lambda a, b: f"({a}{b})")
    '(((ab)(cd))e)'
    """
    stack: list[tuple[int, Any]] = []
    for value in values:
        if value is None:
            continue
        height = 0
        while stack and stack[-1][0] == height:
            value = combine(stack.pop()[1], value)
            height += 1
        stack.append((height, value))
    result = None
    while stack:
        _, value = stack.pop()
        result = value if result is None else combine(value, result)
    return result


def _saver(index: int, value: Any) -> tuple[str, Callable[[Any], Any]]:
    if value is None:
        return ".none", lambda file: None
    kind = type(value).__module__.split(".")[0]
    if kind in ("pyarrow", "pandas"):
        import pyarrow
        import pyarrow.parquet

        table = value if isinstance(value, pyarrow.Table) else pyarrow.Table.from_pandas(value)
        return ".parquet", lambda file: pyarrow.parquet.write_table(table, file)
    data = np.asarray(value)
    if data.dtype.hasobject:
        raise UsageTypeError(
            f"block {index}: the function returned a {type(value).__name__}, and what is kept of a block is a number, "
            "a NumPy array, a table or None"
        )
    return ".npy", lambda file: np.save(file, data, allow_pickle=False)
