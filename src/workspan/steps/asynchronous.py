"""The timer of a step whose iterables are asynchronous.

A window is open from the moment its consumer awaits an item until it has it, waiting included; while the consumer has
the item and the step is suspended, none is. Windows belong to the asyncio task that pulls: a step that has another task
pull upstream is overlapped, as one that has another thread do so.
"""

from __future__ import annotations

from _thread import get_ident
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any

from workspan.errors import UsageTypeError
from workspan.measure import ticks
from workspan.measure.windows import CLOSED, ENDED, FAILED, FRESH, STARTED, collecting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from workspan.measure.windows import Windows

__all__ = ["AsyncTimer", "unstarted_async"]


class AsyncTimer:
    """A step of a running asynchronous chain.

    Parameters
    ----------
    windows
        The chain's cells and clock.
    index
        Place of the step in the chain.
    apply
        Asynchronous iterable in, asynchronous iterable out; runs in the first pull.
    upstream
        The timer before, or the raw input.
    section
        Section that is open during every pull of a chain that runs inside a collection.
    """

    def __init__(
        self,
        windows: Windows,
        index: int,
        apply: Callable[[Any], Any],
        upstream: Any,
        section: AbstractContextManager[Any],
    ) -> None:
        self._windows = windows
        self._index = index
        self._apply = apply
        self._upstream = upstream
        self._section: AbstractContextManager[Any] | None = section
        self._iterator: Any = None
        self._state = FRESH
        self._error: tuple[BaseException, TracebackType | None] | None = None

    def __aiter__(self) -> AsyncTimer:
        return self

    async def __anext__(self) -> Any:
        if self._state == FRESH and not collecting():
            self._section = None
        window = _Window(self._windows, self._index, self._section)
        with window:
            if self._state == FRESH:
                self._state = FAILED
                try:
                    made = self._apply(self._upstream)
                    if not hasattr(made, "__aiter__"):
                        self._windows.refuse(self._index, made, awaited=True)
                    self._iterator = made.__aiter__()
                except BaseException as error:
                    self._error = error, error.__traceback__
                    raise
                self._state = STARTED
            elif self._state == FAILED:
                if self._error is None:
                    raise RuntimeError("a step was pulled while its apply was running")
                raise self._error[0].with_traceback(self._error[1])
            elif self._state != STARTED:
                raise StopAsyncIteration
            try:
                found = await self._iterator.__anext__()
            except StopAsyncIteration:
                self._state = ENDED
                raise
            window.item = True
            return found

    async def aclose(self) -> None:
        """Close the step, then those upstream of it; later pulls find the end."""
        if self._state == CLOSED:
            return
        state, self._state = self._state, CLOSED
        iterator, self._iterator, self._error = self._iterator, None, None
        upstream, self._upstream = self._upstream, None
        try:
            ended = state == ENDED and isinstance(iterator, AsyncGeneratorType)  # has nothing left to do
            close = getattr(iterator, "aclose", None) if iterator is not upstream and not ended else None
            if close is not None:
                with _Window(self._windows, self._index, self._section, closing=True):
                    await close()
        finally:
            if self._index:
                await upstream.aclose()

    def __reduce__(self) -> Any:
        raise UsageTypeError("a timer belongs to one run of a chain and cannot be pickled; send its steps instead")


class _Window:
    """A window of the running task, and the section with it."""

    __slots__ = ("_closing", "_index", "_me", "_own", "_section", "_windows", "item")

    def __init__(
        self, windows: Windows, index: int, section: AbstractContextManager[Any] | None, *, closing: bool = False
    ) -> None:
        self._windows = windows
        self._index = index
        self._section = section
        self._closing = closing
        self.item = False

    def __enter__(self) -> None:
        if self._section is not None:
            self._section.__enter__()
        self._me = ticks.running_task() or get_ident()
        self._own = self._windows.enter(self._index, self._me, closing=self._closing, threads=False)

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._windows.leave(self._index, self._me, item=self.item, closing=self._closing, threads=False)
        if self._section is not None:
            self._section.__exit__(None, None, None)


async def unstarted_async(source: Any) -> AsyncIterator[Any]:
    """Yield the input: the asynchronous chain of no steps."""
    async for item in source:
        yield item
