"""How much went through each step: rows and bytes of the items that come out of it, where items have them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Counted", "Sizes", "Tally", "sizes_of"]

Sizes = Callable[[Any], "tuple[int | None, int | None]"]
"""Item -> its rows and its bytes; ``None``: it has none."""


def sizes_of(item: Any) -> tuple[int | None, int | None]:
    """Return the rows and the bytes of an item: its ``num_rows`` and its ``nbytes``, as Arrow and NumPy name them.

    A mapping of columns has the bytes of all of them, and as many rows as its first one.

    Examples
    --------
    >>> sizes_of(memoryview(b"12345")), sizes_of({"a": memoryview(b"12345")}), sizes_of(7)
    ((None, 5), (5, 5), (None, None))
    """
    if isinstance(item, Mapping):
        columns = list(item.values())
        parts = [_number(column, "nbytes") for column in columns]
        known = [part for part in parts if part is not None]
        if not columns or len(known) < len(parts):
            return None, None
        return (len(columns[0]) if hasattr(columns[0], "__len__") else None), sum(known)
    return _number(item, "num_rows"), _number(item, "nbytes")


def _number(item: Any, name: str) -> int | None:
    found: Any = getattr(item, name, None)
    return int(found) if hasattr(found, "__index__") else None


class Tally:
    """Rows and bytes that have come out of a step so far; ``None`` as long as no item had any."""

    __slots__ = ("_lock", "_sizes", "nbytes", "rows")

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        self.rows: int | None = None
        self.nbytes: int | None = None

    def add(self, item: Any) -> None:
        """Add an item."""
        rows, nbytes = self._sizes(item)
        with self._lock:
            if rows is not None:
                self.rows = (self.rows or 0) + rows
            if nbytes is not None:
                self.nbytes = (self.nbytes or 0) + nbytes


class Counted:
    """The ``apply`` of a step, whose items are added to a tally.

    Counting is part of the step: it happens in its window.
    """

    __slots__ = ("_apply", "_tally")

    def __init__(self, apply: Callable[[Any], Any], tally: Tally) -> None:
        self._apply = apply
        self._tally = tally

    def __call__(self, items: Any) -> Any:
        """Return the iterator of the step, which counts."""
        found = self._apply(items)
        if hasattr(found, "__aiter__"):
            return _AsyncItems(found.__aiter__(), items, self._tally)
        if hasattr(found, "__iter__") or hasattr(found, "__getitem__"):
            return _Items(iter(found), items, self._tally)
        return found  # is refused by the timer


class _Items:
    __slots__ = ("_iterator", "_tally", "_upstream")

    def __init__(self, iterator: Any, upstream: Any, tally: Tally) -> None:
        self._iterator = iterator
        self._upstream = upstream
        self._tally = tally

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        item = next(self._iterator)
        self._tally.add(item)
        return item

    def close(self) -> None:
        close = getattr(self._iterator, "close", None) if self._iterator is not self._upstream else None
        if close is not None:
            close()


class _AsyncItems:
    __slots__ = ("_iterator", "_tally", "_upstream")

    def __init__(self, iterator: Any, upstream: Any, tally: Tally) -> None:
        self._iterator = iterator
        self._upstream = upstream
        self._tally = tally

    def __aiter__(self) -> _AsyncItems:
        return self

    async def __anext__(self) -> Any:
        item = await self._iterator.__anext__()
        self._tally.add(item)
        return item

    async def aclose(self) -> None:
        close = getattr(self._iterator, "aclose", None) if self._iterator is not self._upstream else None
        if close is not None:
            await close()
