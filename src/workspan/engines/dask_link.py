"""The driver's connection to a Dask scheduler, and the queues in it that carry all messages."""

from __future__ import annotations

import asyncio
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from workspan.engines.common import wait_for
from workspan.engines.dask_worker import (
    CONNECT_SECONDS,
    RPC_SECONDS,
    Outbox,
    close_client,
    open_queue,
    queue_name,
)
from workspan.engines.remote import Lost, lack_of, pack_commands, pack_reports
from workspan.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from workspan.engines.cluster import Inbox
    from workspan.engines.remote import Command, Placed

LOOK_SECONDS = 0.5
"""How often it is looked whether the scheduler is still there."""
LEAVE_SECONDS = 35.0
"""Time in which a worker whose Dask worker is retired must have said its last word: Dask gives it 30 s."""


class DaskLink:
    """The driver's connection to a scheduler: a client of its own, in whose event loop everything here happens."""

    def __init__(
        self,
        address: str,
        security: Any,
        run_id: str,
        inbox: Inbox,
        given_up: threading.Event,
        *,
        workers: list[str] | None,
    ) -> None:
        self.where = address
        self.answers = f"workspan-{run_id}-{secrets.token_hex(4)}"
        self._inbox = inbox
        self._workers = workers
        self._is_over = False
        self._futures: dict[int, Any] = {}
        self._watchers: dict[int, asyncio.Future[None]] = {}
        self._placed: dict[int, Placed] = {}
        self._boxes: dict[str, Outbox] = {}
        self._ends: list[asyncio.Future[None]] = []
        self._asked = 0
        """How many places were asked for."""
        self._removed: set[str] = set()
        """Addresses of Dask workers that are gone; none is used again."""
        self._client: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="workspan-dask", daemon=True)
        self._thread.start()
        try:
            begun = asyncio.run_coroutine_threadsafe(self._begin(security), self._loop)
            try:
                wait_for(begun.done, given_up, CONNECT_SECONDS + RPC_SECONDS, f"the Dask scheduler at {address}")
                begun.result(0)
            finally:
                begun.cancel()
        except BaseException as error:
            self._is_over = True
            with suppress(Exception):
                self._run(asyncio.sleep(0.01))  # what was cancelled ends
            self._stop()
            if isinstance(error, EngineError) or not isinstance(error, Exception):
                raise
            raise EngineError(why_not_connected(address, error)) from error

    # In the driver's thread:

    def submit(self, worker: int, start: dict[str, Any], requires: Mapping[str, int]) -> None:
        """Ask Dask for a place."""
        self._loop.call_soon_threadsafe(self._submit, worker, {**start, "queue": self.answers}, dict(requires))

    def tell(self, placed: Placed, command: Command) -> None:
        """Send *command* to a host."""
        self._loop.call_soon_threadsafe(self._post, queue_name(self.answers, placed.worker, placed.token), command)

    def note(self, placed: Placed) -> None:
        """Take notice of where a host is, and see whether that place is gone already."""
        self._loop.call_soon_threadsafe(self._note, placed)

    def forget(self, worker: int) -> None:
        """Let Dask forget the task of a worker that has ended; if it runs or waits it is cancelled."""
        self._loop.call_soon_threadsafe(self._forget, worker)

    def places(self, requires: Mapping[str, int]) -> tuple[int, str] | None:
        """Return how many Dask workers the cluster has, and what all of them lack."""
        with suppress(Exception):
            found = self._run(self._client.scheduler.identity())["workers"]
            usable = [entry for address, entry in found.items() if self._may_use(address, entry)]
            if found and not usable:
                return len(found), f"a name or address of {self._workers!r}, which are all that may be used,"
            return len(found), lack_of(requires, [entry.get("resources", {}) for entry in usable])
        return None

    def _may_use(self, address: str, entry: Mapping[str, Any]) -> bool:
        """Whether a Dask worker is one of those that the user named, by any of the names that Dask takes."""
        host = address.rpartition("://")[2].rpartition(":")[0]
        return self._workers is None or not {address, host, entry.get("name"), entry.get("host")}.isdisjoint(
            self._workers
        )

    def close(self) -> None:
        """Cancel what is left and disconnect."""
        is_lost, self._is_over = self._is_over, True
        with suppress(Exception):
            self._run(self._leave() if is_lost else self._finish())
        self._stop()

    def _stop(self) -> None:
        """Disconnect, and end the thread."""
        if self._client is not None:
            with suppress(Exception):
                self._run(close_client(self._client), 2 * RPC_SECONDS + 1)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(RPC_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any], seconds: float = RPC_SECONDS) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    # In the client's event loop:

    async def _begin(self, security: Any) -> None:
        from distributed import Client

        self._client = Client(
            self.where,
            security=security,
            asynchronous=True,
            set_as_default=False,
            timeout=CONNECT_SECONDS,
            name="workspan",
            direct_to_workers=False,
        )
        await self._client  # in a line of its own: one that does not come up must be closed too
        self._answers = await open_queue(self.answers, self._client)
        self._client.subscribe_topic("all", self._take_event)
        self._reader = asyncio.ensure_future(self._read())
        self._guard = asyncio.ensure_future(self._look_after_connection())

    async def _look_after_connection(self) -> None:
        """Notice that the scheduler is gone also while Dask tries long to connect."""
        while self._client.status == "running":
            await asyncio.sleep(LOOK_SECONDS)
        self._fail(EngineError("the client is " + self._client.status))

    async def _read(self) -> None:
        """Hand on what workers report, until the end."""
        try:
            while batch := await self._answers.get():
                for data in batch:
                    self._inbox.put(data)
                for more in await self._answers.get(batch=True):
                    for data in more:
                        self._inbox.put(data)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._is_over:
            self._is_over = True
            self._inbox.put(
                EngineError(
                    f"the connection to the Dask scheduler at {self.where} is lost ({error}): "
                    "what was done is recorded; run again when the cluster is back, and only the rest is done"
                )
            )

    def _submit(self, worker: int, start: dict[str, Any], requires: dict[str, int]) -> None:
        try:
            future = self._client.submit(
                worker_starter(),
                start,
                key=f"workspan-worker-{self.answers}-{worker}",
                pure=False,
                retries=0,
                resources=requires or None,
                workers=self._workers,
            )
        except Exception as error:
            self._lose(worker, None, f"could not be started: {type(error).__name__}: {error}")
            return
        self._asked += 1
        self._futures[worker] = future
        self._watchers[worker] = asyncio.ensure_future(self._watch(worker, future))

    async def _watch(self, worker: int, future: Any) -> None:
        """Wait for the end of a task of Dask, and report it unless its host has done so before."""
        try:
            await future
            reason = "its task on the cluster ended without a word"
        except asyncio.CancelledError:
            if worker not in self._futures:
                raise  # this watch was cancelled, not the task
            reason = "its task on the cluster was cancelled"
        except Exception as error:
            reason = reason_of(error)
        self._lose(worker, None, reason)

    def _take_event(self, event: tuple[float, Any]) -> None:
        message = event[1]
        if not isinstance(message, dict) or self._is_over:
            return
        if message.get("action") == "remove-worker":
            self._removed.add(str(message.get("worker")))
            for placed in self._hosts_at(message.get("worker")):
                reason = f"its Dask worker {placed.place} was lost: killed, or its machine is gone"
                if message.get("expected"):
                    # In good order: its block may still finish. Dask would run the task again elsewhere meanwhile.
                    self._release(placed.worker)
                    reason = f"its Dask worker {placed.place} was retired before its block was finished"
                    self._loop.call_later(LEAVE_SECONDS, self._lose, placed.worker, placed.token, reason)
                else:
                    self._lose(placed.worker, placed.token, reason)

    def _note(self, placed: Placed) -> None:
        if placed.worker not in self._futures:
            return
        self._placed[placed.worker] = placed
        if placed.place in self._removed:
            self._lose(placed.worker, placed.token, f"its Dask worker {placed.place} was lost")

    def _hosts_at(self, place: Any) -> list[Placed]:
        return [placed for placed in self._placed.values() if placed.place == place]

    def _lose(self, worker: int, token: str | None, reason: str) -> None:
        """Report a loss, behind all that was reported before."""
        if worker in self._futures or token is not None:
            self._box(self.answers).put(pack_reports([Lost(worker, token, reason)]))

    def _post(self, name: str, command: Command) -> None:
        self._box(name).put(pack_commands([command]))

    def _box(self, name: str) -> Outbox:
        box = self._boxes.get(name)
        if box is None:
            box = self._boxes[name] = Outbox(self._client, name, self._fail)
        return box

    def _forget(self, worker: int) -> None:
        placed = self._placed.pop(worker, None)
        if placed is not None:
            self._box(queue_name(self.answers, worker, placed.token))
        self._release(worker)
        for name in [name for name in self._boxes if name.startswith(queue_name(self.answers, worker, ""))]:
            self._ends.append(asyncio.ensure_future(self._boxes.pop(name).end()))
        self._ends = [end for end in self._ends if not end.done()]

    def _release(self, worker: int) -> None:
        """Let Dask forget a task; nothing that becomes of it is reported any more."""
        future = self._futures.pop(worker, None)
        if future is not None:
            self._watchers.pop(worker).cancel()
            future.release()

    async def _leave(self) -> None:
        """Wait for nothing any more: the scheduler is gone."""
        for waiting in (self._reader, self._guard, *self._watchers.values(), *self._ends):
            waiting.cancel()

    async def _finish(self) -> None:
        for worker in list(self._futures):
            self._forget(worker)
        await asyncio.gather(*self._ends)
        await self._box(self.answers).end(users=self._asked + 2)  # the hosts, and this link for either direction
        self._reader.cancel()
        self._guard.cancel()
        self._client.unsubscribe_topic("all")


def worker_starter() -> Callable[[dict[str, Any]], None]:
    """Return a function that is one worker of a run, and that Dask sends by value.

    Were it sent as a name in a module of ours, a Dask worker on which Workspan is not installed could not read the
    message that holds it, and would close: Dask then hands the task to the next one, until all are gone. So the import
    fails in the task instead, and only that.
    """

    def start_worker(start: dict[str, Any]) -> None:
        from workspan.engines.dask_worker import be_worker

        be_worker(start)

    return start_worker


def why_not_connected(address: str, error: Exception) -> str:
    """Say why there is no connection to the scheduler at *address*, with what to do."""
    if isinstance(error, ValueError | TypeError):  # Dask has not even tried
        return (
            f"{address!r} is not the address of a Dask scheduler, such as 'tcp://host:8786' or 'dask://host:8786': "
            f"{error}"
        )
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    said = ": ".join(dict.fromkeys(text for cause in causes if (text := str(cause)))) or "no answer in time"
    if isinstance(error, OSError):
        return (
            f"the Dask scheduler at {address} does not answer: {said}; is it running, and can it be reached from here?"
        )
    return (
        f"what answers at {address} does not speak as a Dask scheduler of this version does "
        f"({type(error).__name__}: {said}); is it the scheduler's port, and the same version of 'distributed' there?"
    )


def reason_of(error: Exception) -> str:
    """Say why a task of Dask failed."""
    if type(error).__name__ == "KilledWorker":
        return f"its Dask worker was lost several times before it had begun: {error}"
    if isinstance(error, (ImportError, AttributeError)) and "workspan" in str(error):
        return f"could not start: workspan is not installed, or not in this version, on the Dask workers: {error}"
    return f"could not start: {type(error).__name__}: {error}"
