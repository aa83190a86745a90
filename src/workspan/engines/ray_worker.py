"""What runs on a Ray cluster: one actor for each worker of a run, in a process of its own.

Nothing here imports Ray before it is called: the module is imported wherever a worker of a run may be.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from typing import Any


class HostActor:
    """One worker of a run, as an actor with ``async`` methods.

    Parameters
    ----------
    start
        One of ``remote.start_values``.
    worker
        The worker's number.
    """

    def __init__(self, start: dict[str, Any], worker: int) -> None:
        self._start = start
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[bytes] = deque()
        """Reports, packed."""
        self._early: dict[int, bytes] = {}
        """Commands that came before an earlier one: Ray does not keep the order of calls of such actors."""
        self._next = 0
        self._parent = os.getppid()

    async def reports(self) -> bytes | list[bytes]:
        """Wait for reports of the host, and return them; the first call starts it. One call at a time."""
        if self._loop is None:
            self._begin()
        while not self._waiting:
            self._more.clear()
            await self._more.wait()
        batch = list(self._waiting)
        for _ in batch:
            self._waiting.popleft()
        return batch[0] if len(batch) == 1 else batch

    async def tell(self, number: int, data: bytes) -> None:
        """Take packed commands, which are the driver's number *number* to this host."""
        self._early[number] = data
        while (data_now := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._host.tell(data_now)

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()
        # A worker process dies with the thread that started it: this one lives as long as the actor's process.
        threading.Thread(target=self._be_host, name="workspan-host", daemon=True).start()

    def _be_host(self) -> None:
        from workspan.engines.host import Host
        from workspan.engines.remote import Lost, pack_reports

        try:
            self._host = Host(self._start, self._worker, _place(), self._emit, self._keeps_place)
            self._host.run()
        except Exception as error:
            # As text: the driver unpickles nothing of ours.
            reason = f"could not start: {type(error).__name__}: {error}"
            self._emit(pack_reports([Lost(self._worker, None, reason)]))

    def _keeps_place(self) -> str:
        """Whether the raylet that started this process lives; if not, Ray would take a minute to end the process."""
        if os.getppid() != self._parent:
            os._exit(1)  # and with it the worker; the driver's call fails at once
        return "yes"

    def _emit(self, data: bytes) -> None:
        assert self._loop is not None
        self._waiting.append(data)
        self._loop.call_soon_threadsafe(self._more.set)


def _place() -> str:
    """Return what the actor that this is called in is for people: which one, and where."""
    import ray

    actor: Any = ray.get_runtime_context().get_actor_id()
    util: Any = ray.util
    return f"{actor[:8]} at {util.get_node_ip_address()}"
