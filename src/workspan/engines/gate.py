"""The door through which workers come that this engine did not fork.

It is open only when a run needs it. Whoever has logged in (`listener`) is a *peer*: the client of a worker function
that this run started, or a guest. Whatever a peer says wrong costs at most its own connection.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from workspan.engines import wire
from workspan.engines.context import Context
from workspan.engines.line import Line
from workspan.engines.listener import LOGIN_SECONDS, Listener
from workspan.engines.payload import plain_layout
from workspan.engines.remote import versions
from workspan.engines.tcp import tune
from workspan.engines.vault import Vault
from workspan.errors import EngineError, WireError
from workspan.measure.notes import bring_home
from workspan.schedule.events import Dropped, Ended, Joined, Ready, Returned

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.engines.base import Job
    from workspan.engines.child import Child
    from workspan.engines.login import Login
    from workspan.schedule.events import Event

logger = logging.getLogger(__name__)

FRAME_SECONDS = 30.0
"""Time in which a message that has begun must be complete."""
MOST_REFUSED = 3
"""Wrong deeds of one peer until it is dropped."""


class Peer:
    """A connection that knows the secret."""

    __slots__ = (
        "address", "asking", "begun_at", "guest", "index", "job", "line", "refused", "stop_sent", "task", "worker",
    )  # fmt: skip

    def __init__(self, line: Line, address: str, begun_at: float) -> None:
        self.line = line
        self.address = address
        self.task: int | None = None
        """Its task, once it has said whom it wants to work for."""
        self.worker: int | None = None
        """Its number, once it has one."""
        self.guest: int | None = None
        """Its number as a guest; ``None``: it belongs to a worker that this run started."""
        self.job: str | None = None
        """Job of a cluster that it runs in."""
        self.asking = False
        self.index: int | None = None
        """The block that it holds."""
        self.stop_sent = False
        self.refused = 0
        self.begun_at = begun_at
        """When it began its login, or the message that is not complete."""

    @property
    def limit(self) -> float:
        """Seconds in which what it has begun must be complete."""
        return LOGIN_SECONDS if self.task is None else FRAME_SECONDS


class Gate:
    """Listens for peers and turns what they say into events.

    Parameters
    ----------
    job
        The run.
    settings, functions
        What a worker of each task must know, and its packed function; for guests.
    host
        Address that peers dial. All interfaces are listened on unless it is loopback.
    selector
        Watches the sockets; what it is given as data are functions of the mask.
    emit
        Takes the events.

    Raises
    ------
    EngineError
        Nothing can listen there.
    """

    def __init__(
        self,
        job: Job,
        settings: list[dict[str, Any]],
        functions: list[bytes | None],
        host: str,
        selector: selectors.BaseSelector,
        emit: Callable[[Event], None],
    ) -> None:
        self._job = job
        self._settings = settings
        self._functions = functions
        self._context_files: dict[int, Path] = {}
        self._selector = selector
        self._emit = emit
        self._numbers = {task.task_id: number for number, task in enumerate(job.tasks)}
        self._peers: dict[Peer, None] = {}
        self._begun: set[Peer] = set()
        """Peers with a login or a message that is not complete."""
        self._of_worker: dict[int, Peer] = {}
        self._guests: dict[int, Peer] = {}
        self._next_guest = 0
        self._children: dict[int, Child] = {}
        """Worker functions that run."""
        self._past: dict[int, bool] = {}
        """Worker functions that have returned -> whether a client of theirs came."""
        self.refused_messages = 0
        """Messages of peers that could not be accepted."""
        self.host = host
        secret = wire.new_secret()
        self._vault = Vault(job.log_dir, secret)
        try:
            self._listener = Listener(secret, job.run_id, host, selector, self._let_in)
        except BaseException:
            self._vault.close()
            raise
        self.port = self._listener.port

    # -- what the engine says --------------------------------------------------------------------------------------

    def expect(self, child: Child) -> None:
        """Expect the client of a worker function that was started."""
        self._children[child.worker] = child

    def grant(self, worker: int, index: int) -> None:
        """Give a block to a peer that asked for one."""
        peer = self._of_worker.get(worker)
        if peer is not None and peer.asking:  # not a later client, which has not asked yet
            peer.index = index
            peer.asking = False
            self._say(peer, wire.Grant(index))

    def stop(self, worker: int) -> None:
        """Tell a peer that there is no more work."""
        peer = self._of_worker.get(worker)
        if peer is not None:
            peer.stop_sent = True
            self._say(peer, wire.Stop())

    def drop_worker(self, worker: int, reason: str) -> None:
        """End the connection of a worker, if it has one."""
        peer = self._of_worker.get(worker)
        if peer is not None:
            self._drop(peer, reason)

    def admit(self, guest: int, worker: int | None) -> None:
        """Let a guest in under the number of a worker, or send it away."""
        peer = self._guests.pop(guest, None)
        if peer is None:  # it has left meanwhile
            if worker is not None:
                self._emit(Ended(worker, True, "left before it was let in"))
            return
        if worker is None:
            self._say(peer, wire.Stop())
            self._forget(peer)
        else:
            self._welcome(peer, worker)

    def job_of(self, guest: int) -> str | None:
        """Return the job of a cluster in which a guest says that it runs; ``None`` if there is none."""
        peer = self._guests.get(guest)
        return None if peer is None else peer.job

    def child_ended(self, child: Child) -> None:
        """Take in what the client of a worker function said last; its worker has ended.

        A process that outlives the worker function cannot go on: the function must block as long as its worker lives.
        """
        del self._children[child.worker]
        peer = child.peer
        if peer is not None:
            self._take(peer, peer.line.read_rest())
        if child.peer is not None:
            self._drop(child.peer, "the worker function has returned")
        self._past[child.worker] = child.was_met
        if child.exit_code == 0 and not child.was_met and not child.stop_sent:
            logger.warning(
                "worker %d of task %r: the worker function returned, and no client of it ever connected: it must block "
                "until its worker has ended (srun, sbatch --wait, subprocess.run), and the worker must make a Client()",
                child.worker,
                child.task_id,
            )

    @property
    def due(self) -> float:
        """When :meth:`expire` is to be called next, on the monotonic clock."""
        if not self._begun:
            return self._listener.due
        return min(self._listener.due, min(peer.begun_at + peer.limit for peer in self._begun))

    def expire(self, now: float) -> None:
        """Close connections that took too long."""
        self._listener.expire(now)
        for peer in list(self._begun):
            if peer.begun_at + peer.limit <= now:
                self._drop(peer, f"a message was not complete after {peer.limit:g} s")

    def close(self) -> None:
        """Tell all peers that there is no more work, and stop listening."""
        for peer in list(self._peers):
            if not peer.stop_sent:
                self._say(peer, wire.Stop())
            self._drop(peer, "the run has ended")
        self._listener.close()
        self._vault.close()

    # -- how to get here -------------------------------------------------------------------------------------------

    def context(self, task: int, worker: int | None) -> Context:
        """Return what a client needs to work for task number *task*: that of a worker, or without one a guest."""
        entry = self._job.tasks[task]
        values: dict[str, object] = {"hostname": self.host, "port": self.port, "task_id": entry.task_id}
        if worker is not None:
            values["worker_id"] = worker
        values |= {
            "resource_tracking": int(entry.resource_tracking),
            "logdir": self._job.log_dir or "",
            "run_id": self._job.run_id,
            "secret_file": self._vault.secret_file,
        }
        function = self._functions[task]
        if worker is None and function is not None and entry.kind == "block":
            values["function_file"] = self._vault.write_function(task, {**self._settings[task], **versions()}, function)
        return Context(**values)

    def context_file(self, task: int) -> Path:
        """Return a file with the context of guests of task number *task*, which only its owner can read."""
        path = self._context_files.get(task)
        if path is None:
            text = f"{self.context(task, None).to_env()}\n"
            path = self._context_files[task] = self._vault.write(f"context-{task}", text.encode())
        return path

    # -- peers -----------------------------------------------------------------------------------------------------

    def _let_in(self, connection: socket.socket, login: Login, address: str, since: float) -> None:
        tune(connection)
        line = Line(connection, connection, *wire.driver_ends(login.frame_secret(), is_known=True))
        peer = Peer(line, address, since)
        self._peers[peer] = None
        self._begun.add(peer)
        line.watch(self._selector, partial(self._peer_ready, peer))

    def _peer_ready(self, peer: Peer, mask: int) -> None:
        if peer not in self._peers:
            return
        if mask & selectors.EVENT_WRITE:
            peer.line.flush()
        if mask & selectors.EVENT_READ:
            data = peer.line.read()
            if data:
                self._take(peer, data)
            elif data is not None:
                self._drop(peer, "its connection was closed")

    def _take(self, peer: Peer, data: bytes) -> None:
        messages = 0
        try:
            for message in peer.line.opener.feed(data):
                messages += 1
                self._take_message(peer, message)
                if peer not in self._peers:
                    return
        except WireError as error:
            self._drop(peer, f"broke the protocol: {error}")
            return
        if peer.task is not None:
            if not peer.line.opener.pending:
                self._begun.discard(peer)
            elif messages or peer not in self._begun:
                peer.begun_at = monotonic()
                self._begun.add(peer)

    def _take_message(self, peer: Peer, message: wire.ToDriver) -> None:
        if isinstance(message, wire.Join) and peer.task is None:
            self._join(peer, message)
        elif isinstance(message, wire.Ask) and peer.worker is not None and not peer.asking and peer.index is None:
            peer.asking = True
            if peer.stop_sent:
                self._say(peer, wire.Stop())
            else:
                self._emit(Ready(peer.worker, on_demand=True))
        elif isinstance(message, wire.Result) and peer.worker is not None and peer.index == message.index:
            self._take_result(peer, peer.worker, message)
        elif isinstance(message, wire.Bye) and peer.index is None:
            self._drop(peer, "it left")
        elif isinstance(message, wire.Leave) and peer.guest is not None:
            self._leave(peer)
        else:
            self._refuse(peer, f"a {type(message).__name__} message came out of turn")

    def _take_result(self, peer: Peer, worker: int, result: wire.Result) -> None:
        assert peer.task is not None
        tracked = self._job.tasks[peer.task].resource_tracking
        if result.stats is None and tracked:
            self._refuse(peer, f"block {result.index} came back without measurements")
            return
        peer.index = None
        stats = wire.unpack_stats(result.stats) if result.stats is not None and tracked else None
        bring_home(result.notes)
        self._emit(Returned(worker, result.index, result.ok, result.error, stats, result.steps, result.final))

    def _join(self, peer: Peer, join: wire.Join) -> None:
        task = self._numbers.get(join.task_id)
        if task is None:
            self._send_away(peer, f"this run has no task {join.task_id!r}")
            return
        child = None if join.worker is None else self._children.get(join.worker)
        if child is None and join.worker in self._past:
            self._come_too_late(peer, join)
            return
        peer.task = task
        peer.job = join.job
        peer.address = f"{join.host} pid {join.pid} ({peer.address})"
        if child is not None and child.task_id == join.task_id and child.peer is None:
            child.peer = peer
            child.was_met = True
            child.due = inf  # what it does after its last block may take its time
            self._welcome(peer, child.worker)
            return
        peer.guest = self._next_guest
        self._next_guest += 1
        self._guests[peer.guest] = peer
        self._emit(Joined(peer.guest, task))

    def _come_too_late(self, peer: Peer, join: wire.Join) -> None:
        """Answer a client whose worker function has returned.

        Raises
        ------
        EngineError
            It is the first one of that worker: the function did not wait for it, so nothing here is as it seems.
        """
        assert join.worker is not None
        was_met = self._past[join.worker]
        if was_met:
            self._say(peer, wire.Stop())
        self._forget(peer)
        if not was_met:
            raise EngineError(
                f"a client of worker {join.worker} of task {join.task_id!r} connected after its worker function had "
                "returned: a worker function must block until its worker has ended (srun instead of sbatch, "
                "sbatch --wait, subprocess.run instead of Popen)"
            )

    def _welcome(self, peer: Peer, worker: int) -> None:
        assert peer.task is not None
        peer.worker = worker
        self._of_worker[worker] = peer
        task = self._job.tasks[peer.task]
        timeout = task.timeout if task.timeout is not None and task.timeout < inf else None
        grid = wire.Grid(**plain_layout(task.layout))
        self._say(peer, wire.Welcome(task.task_id, worker, grid, task.resource_tracking, timeout))
        logger.info("worker %d of task %r is a client at %s", worker, task.task_id, peer.address)
        child = self._children.get(worker)
        if child is not None and child.stop_sent:
            self.stop(worker)

    def _refuse(self, peer: Peer, text: str) -> None:
        """Ignore a message that cannot be accepted; drop a peer that sends several."""
        peer.refused += 1
        self.refused_messages += 1
        who = "a client" if peer.worker is None else f"worker {peer.worker}"
        logger.warning("%s at %s: %s; ignored", who, peer.address, text)
        if peer.refused >= MOST_REFUSED:
            self._drop(peer, f"sent {peer.refused} messages that could not be accepted, the last one because {text}")

    def _send_away(self, peer: Peer, reason: str) -> None:
        self.refused_messages += 1
        logger.warning("a client at %s was sent away: %s", peer.address, reason)
        self._say(peer, wire.Refused(reason))
        self._forget(peer)

    def _say(self, peer: Peer, message: wire.Message) -> None:
        peer.line.queue(message)
        peer.line.flush()

    def _forget(self, peer: Peer) -> None:
        """Close the connection of a peer that is nobody's worker."""
        del self._peers[peer]
        self._begun.discard(peer)
        peer.line.close()

    def _leave(self, peer: Peer) -> None:
        """Let a guest go that was waiting; a block that was on its way to it was not begun."""
        sent, peer.index = peer.index, None
        unstarted = () if sent is None else (sent,)
        self._drop(peer, "it left", unstarted)

    def _drop(self, peer: Peer, reason: str, unstarted: tuple[int, ...] = ()) -> None:
        """Close the connection and tell the scheduler that its worker is gone, or waits for another one."""
        self._forget(peer)
        if peer.guest is not None:
            self._guests.pop(peer.guest, None)
        worker = peer.worker
        if worker is None:
            return
        del self._of_worker[worker]
        if peer.guest is not None:
            self._emit(Ended(worker, peer.index is None, reason, unstarted=unstarted))
            return
        self._emit(Dropped(worker, reason))
        child = self._children.get(worker)
        if child is not None:
            child.peer = None
