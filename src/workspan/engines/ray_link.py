"""The driver's side of the actors that are our workers on a Ray cluster."""

from __future__ import annotations

import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from workspan.engines.ray_worker import HostActor
from workspan.engines.remote import Lost, lack_of, pack_commands, pack_reports
from workspan.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workspan.engines.cluster import Inbox
    from workspan.engines.remote import Command, Placed

LOOK_SECONDS = 1.0
"""How often it is looked whether the head of the cluster is still there."""
HEAD_SECONDS = 15.0
"""How long the head may be away (one with a database behind it can come back); after 60 s Ray ends the whole driver."""
CONNECT_SECONDS = 3.0
"""Time in which the head must take a connection."""
RPC_SECONDS = 5.0
"""Longest wait for an answer of the cluster."""

_KINDS = {"cpu": "num_cpus", "num_cpus": "num_cpus", "gpu": "num_gpus", "num_gpus": "num_gpus", "memory": "memory"}
"""What Ray has options of its own for, by the lower-case names that people use in ``requires``."""


class RayLink:
    """Actors, one a worker, and the calls that carry messages to and from them.

    One thread makes all calls of Ray, so that no signal comes in between and no answer of a slow cluster is waited for.
    Answers come in a thread of Ray's, straight to the engine's inbox.
    """

    def __init__(
        self,
        where: str,
        head: tuple[str, int] | None,
        inbox: Inbox,
        *,
        runtime_env: dict[str, Any] | None,
        patience: float,
    ) -> None:
        import ray

        self.where = where
        self._ray = ray
        self._inbox = inbox
        self._head = head
        self._patience = patience
        self._runtime_env = runtime_env
        self._actors: dict[int, Any] = {}
        self._told: dict[int, int] = {}
        """How many messages were sent to each actor."""
        self._polls: dict[int, Any] = {}
        """The call of each actor that waits for its reports."""
        self._dying: list[Any] = []
        self._remote: Any = None
        self._calls: queue.SimpleQueue[Callable[[], None] | tuple[int, Command] | None] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="workspan-ray", daemon=True)
        self._guard = threading.Thread(target=self._look_after_head, name="workspan-ray-head", daemon=True)
        self._thread.start()
        self._guard.start()

    # In the driver's thread:

    def submit(self, worker: int, start: dict[str, Any], requires: Mapping[str, int]) -> None:
        """Ask Ray for a place."""
        self._calls.put(partial(self._submit, worker, start, dict(requires)))

    def tell(self, placed: Placed, command: Command) -> None:
        """Send *command* to a host."""
        self._calls.put((placed.worker, command))

    def note(self, placed: Placed) -> None:
        """Take no notice: the call that waits for a host's reports tells of its loss, whenever that was."""

    def forget(self, worker: int) -> None:
        """End the actor of a worker that has ended, or the request for one."""
        self._calls.put(partial(self._forget, worker))

    def places(self, requires: Mapping[str, int]) -> tuple[int, str] | None:
        """Return how many machines the cluster has, and what all of them lack."""
        found: queue.SimpleQueue[list[dict[str, Any]]] = queue.SimpleQueue()

        def look() -> None:
            with suppress(Exception):
                found.put([node["Resources"] for node in self._ray.nodes() if node["Alive"]])

        threading.Thread(target=look, name="workspan-ray-count", daemon=True).start()
        try:
            machines = found.get(timeout=RPC_SECONDS)
        except queue.Empty:
            return None
        return len(machines), lack_of(held(requires), machines)

    def close(self) -> None:
        """End all actors, and wait until Ray has noticed."""
        is_lost = self._is_over.is_set()
        self._is_over.set()
        self._calls.put(self._forget_all)
        self._calls.put(None)
        self._thread.join(0.0 if is_lost else 2 * RPC_SECONDS)
        self._guard.join(LOOK_SECONDS if is_lost else CONNECT_SECONDS)

    # In the thread of its own:

    def _work(self) -> None:
        """Make calls, in order; commands that came together for one host go together."""
        item = self._calls.get()
        while True:
            commands: defaultdict[int, list[Command]] = defaultdict(list)
            while isinstance(item, tuple):
                commands[item[0]].append(item[1])
                try:
                    item = self._calls.get_nowait()
                except queue.Empty:
                    break
            for worker, batch in commands.items():
                self._tell(worker, batch)
            if item is None:
                self._wait_for_deaths()
                return
            if not isinstance(item, tuple):
                item()
            item = self._calls.get()

    def _submit(self, worker: int, start: dict[str, Any], requires: dict[str, int]) -> None:
        try:
            if self._remote is None:
                self._remote = self._ray.remote(HostActor)
            options = actor_options(requires)
            if self._runtime_env:
                options["runtime_env"] = self._runtime_env
            self._actors[worker] = self._remote.options(**options).remote(start, worker)
            self._told[worker] = 0
            self._poll(worker)
        except Exception as error:
            self._lose(worker, f"could not be started: {type(error).__name__}: {error}")

    def _poll(self, worker: int) -> None:
        """Ask for the next reports of an actor."""
        actor = self._actors.get(worker)
        if actor is None:
            return
        try:
            call = self._polls[worker] = actor.reports.remote()
            call.future().add_done_callback(partial(self._take, worker))
        except Exception as error:
            self._lose(worker, reason_of(error))

    def _take(self, worker: int, answer: Any) -> None:
        """Hand on what an actor reports; in a thread of Ray's, where nothing of Ray may be called."""
        error = answer.exception()
        if error is not None:
            self._calls.put(partial(self._fail, worker, error))
            return
        batch = answer.result()
        self._calls.put(partial(self._poll, worker))
        for data in (batch,) if isinstance(batch, bytes) else batch:
            self._inbox.put(data)

    def _fail(self, worker: int, error: BaseException) -> None:
        if worker in self._actors:
            self._lose(worker, reason_of(error))

    def _lose(self, worker: int, reason: str) -> None:
        self._inbox.put(pack_reports([Lost(worker, None, reason)]))

    def _tell(self, worker: int, batch: list[Command]) -> None:
        actor = self._actors.get(worker)
        if actor is None:
            return
        number = self._told[worker]
        self._told[worker] = number + 1
        with suppress(Exception):  # if it is gone, the call that waits for its reports says so
            actor.tell.options(num_returns=0).remote(number, pack_commands(batch))

    def _forget(self, worker: int) -> None:
        actor, call = self._actors.pop(worker, None), self._polls.pop(worker, None)
        self._told.pop(worker, None)
        if actor is not None:
            with suppress(Exception):
                self._ray.kill(actor, no_restart=True)
            self._dying = [*_unfinished(self._dying), call.future()]

    def _forget_all(self) -> None:
        for worker in list(self._actors):
            self._forget(worker)

    def _wait_for_deaths(self) -> None:
        """Wait until the calls of actors that were ended have failed: then their resources are free again."""
        end = monotonic() + RPC_SECONDS
        for future in self._dying:
            with suppress(Exception):
                future.exception(max(0.0, end - monotonic()))

    # In the guard's thread:

    def _look_after_head(self) -> None:
        """Notice that the head is gone: Ray itself would end this process, a minute later and without a word."""
        last_seen = monotonic()
        while self._head is not None and not self._is_over.wait(LOOK_SECONDS):
            try:
                socket.create_connection(self._head, CONNECT_SECONDS).close()
                last_seen = monotonic()
            except OSError as error:
                if monotonic() - last_seen >= self._patience and not self._is_over.is_set():
                    self._is_over.set()
                    self._inbox.put(
                        EngineError(
                            f"the connection to the head of the Ray cluster at {self.where} is lost ({error}): what "
                            "was done is recorded; run again when the cluster is back, and only the rest is done"
                        )
                    )


def actor_options(requires: Mapping[str, int]) -> dict[str, Any]:
    """Return Ray's options of an actor: attempts are counted by our scheduler alone, and it holds what it needs.

    Ray keeps no record of its calls: there are two a block.
    """
    options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
    custom = {}
    for name, amount in requires.items():
        if (kind := _KINDS.get(name.lower())) is not None:
            options[kind] = amount
        else:
            custom[name] = amount
    if custom:
        options["resources"] = custom
    return options


def held(requires: Mapping[str, int]) -> dict[str, int]:
    """Return what an actor holds of a machine's resources, by Ray's names of them."""
    options = actor_options(requires)
    own = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), "memory": options.get("memory", 0)}
    return {name: amount for name, amount in {**own, **options.get("resources", {})}.items() if amount}


def reason_of(error: BaseException) -> str:
    """Say why a call of an actor failed, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Ray puts details of the actor first, with a tab before each, and what matters last.
    text = " ".join(line for line in lines if not line.startswith(("class_name:", "actor_id:", "namespace:", "pid:")))
    short = text if len(text) <= 400 else text[:400] + "..."
    if "No module named 'workspan" in str(error):
        return f"could not start: workspan is not installed, or not in this version, on the Ray cluster: {short}"
    if "OUT_OF_MEMORY" in text or "running low on memory" in text:
        return f"its actor was ended by Ray's memory monitor, because the machine ran out of memory: {short}"
    if "node has died" in text or "node it" in text:
        return f"its actor was lost with its machine, or with the raylet there: {short}"
    if "all references to the actor were removed" in text:
        # We keep one. So the cluster could not ask this program for it.
        return (
            "its Ray actor was refused: the cluster cannot talk to this program, maybe because only one of the two "
            f"wants a token (RAY_AUTH_MODE): {short}"
        )
    return f"its Ray actor was lost: {short}"


def _unfinished(futures: list[Any]) -> list[Any]:
    return [future for future in futures if not future.done()]
