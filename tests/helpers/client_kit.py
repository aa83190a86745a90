"""Clients by hand, runs that they can join, and noise that others make on a port."""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from funlib.geometry import Roi

import workspan as ws
from helpers.engine_kit import SECONDS, wait_until
from workspan.engines.login import CLIENT, HELLO_BYTES, PROOF_BYTES, Login
from workspan.engines.vault import read_secret
from workspan.engines.wire import Ask, Grant, Join, Message, Result, Stop, ToWorker, Welcome, worker_ends

NOISES = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),
    "huge length": b"\xff\xff\xff\xff",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "pickle": b"\x00\x00\x00\x0ecos\nsystem\n(S'false'\ntR.",
}
STATS = (0.25, 0.125, 1 << 20, 3, 4, None, 0)
"""A measurement as it travels."""


def line_task(count: int, function: Any, task_id: str = "t", **kwargs: Any) -> ws.Task:
    """Return a task over *count* blocks of ten on a line."""
    kwargs.setdefault("read_write_conflict", False)
    return ws.Task(task_id, Roi((0,), (count * 10,)), Roi((0,), (10,)), Roi((0,), (10,)), function, **kwargs)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Read *size* bytes, or fewer if the connection ends before."""
    data = b""
    with suppress(ConnectionError):
        while len(data) < size and (part := connection.recv(size - len(data))):
            data += part
    return data


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side closes the connection; whether it did so without another word."""
    connection.settimeout(SECONDS)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def random_bytes(source: random.Random, most: int) -> bytes:
    """Return some bytes, now and then with a beginning that is right."""
    return source.choice((b"", b"", b"W", b"WSPN", b"WSPN\x01")) + source.randbytes(source.randint(0, most))


class Peer:
    """A client by hand: it logs in and then says what it is told."""

    def __init__(self, context: ws.Context, *, port: int | None = None) -> None:
        self.task_id = context["task_id"]
        login = Login(read_secret(context["secret_file"]), context["run_id"], CLIENT)
        self.socket = socket.create_connection((context["hostname"], port or int(context["port"])), SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.sendall(login.hello())
            login.take_hello(receive_exactly(self.socket, HELLO_BYTES))
            self.socket.sendall(login.proof())
            login.check_proof(receive_exactly(self.socket, PROOF_BYTES))
        except BaseException:
            self.socket.close()
            raise
        self.sealer, self.opener = worker_ends(login.frame_secret(), is_known=True)
        self._heard: deque[ToWorker] = deque()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def say(self, *messages: Message) -> None:
        """Send messages; whoever has closed the connection does not hear them."""
        with suppress(ConnectionError):
            self.socket.sendall(b"".join(self.sealer.seal(message) for message in messages))

    def hear(self) -> ToWorker | None:
        """Wait for a message; ``None``: the connection has ended."""
        while not self._heard:
            try:
                data = self.socket.recv(4096)
            except ConnectionError:
                return None
            if not data:
                return None
            self._heard.extend(self.opener.feed(data))
        return self._heard.popleft()

    def join(self, task_id: str | None = None, worker: int | None = None) -> ToWorker | None:
        """Say for whom it works and return the answer."""
        self.say(Join(self.task_id if task_id is None else task_id, worker, "here", 1))
        return self.hear()

    def ask(self) -> ToWorker | None:
        """Ask for a block and return the answer."""
        self.say(Ask())
        return self.hear()

    def take(self) -> int:
        """Take a block and return its index."""
        answer = self.ask()
        assert isinstance(answer, Grant), answer
        return answer.index

    def work(self, most: int | None = None, *, stats: Any = None) -> int:
        """Do blocks until there are no more; return how many."""
        done = 0
        while done != most:
            answer = self.ask()
            if answer is None or isinstance(answer, Stop):
                break
            assert isinstance(answer, Grant), answer
            self.say(Result(answer.index, True, None, stats))
            done += 1
        return done


class Served:
    """A run of a server in a thread of its own."""

    def __init__(self, tasks: Any, server: ws.Server, kwargs: dict[str, Any]) -> None:
        self.server = server
        self.states: dict[str, ws.TaskState] | None = None
        self.error: BaseException | None = None
        self.is_stopped = False
        self._thread = threading.Thread(target=self._run, args=(tasks, kwargs), name="server")
        self._thread.start()
        wait_until(lambda: server.port is not None or not self._thread.is_alive(), "the server listens")

    def _run(self, tasks: Any, kwargs: dict[str, Any]) -> None:
        try:
            self.states = self.server.run_blockwise(tasks, progress=False, summary=False, **kwargs)
        except BaseException as error:
            self.error = error

    @property
    def engine(self) -> Any:
        """The engine, while the run goes on."""
        return self.server._engine

    @property
    def live(self) -> dict[str, ws.TaskState]:
        """The counters, while the run goes on."""
        session = self.server._session
        assert session is not None
        return session.states

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return not self._thread.is_alive()

    def context(self, task_id: str = "t") -> ws.Context:
        """Return the context of a guest."""
        return self.server.context(task_id)

    def guest(self, task_id: str = "t") -> Peer:
        """Return a guest that has joined."""
        peer = Peer(self.context(task_id))
        answer = peer.join()
        assert isinstance(answer, Welcome), answer
        return peer

    def wait(self, seconds: float = SECONDS) -> ws.RunReport:
        """Wait for the end of the run and return its report."""
        self._thread.join(seconds)
        assert self.is_over, f"the run has not ended in {seconds} s: {self.live}"
        if self.error is not None:
            raise self.error
        assert self.server.last_report is not None
        return self.server.last_report


@contextmanager
def serving(*tasks: Any, server: ws.Server | None = None, **kwargs: Any) -> Iterator[Served]:
    """Run tasks in a server; at the end of the block the run is ended, if it goes on."""
    run = Served(list(tasks) if len(tasks) > 1 else tasks[0], server or ws.Server(host="127.0.0.1"), kwargs)
    try:
        yield run
    finally:
        run.server.stop()
        run._thread.join(SECONDS)
        assert run.is_over, "the run does not end"
