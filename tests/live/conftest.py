"""A folder for sockets, a plain client and a plain program."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workspan import config, live
from workspan.live import folder as folders
from workspan.live import outlet
from workspan.live.frames import FrameReader, encode
from workspan.live.server import Server


class Client:
    """A viewer that reads what it is told to read."""

    def __init__(self, path: Path, *, small: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if small:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(10)
        self.socket.connect(str(path))
        self.frames: list[dict[str, Any]] = []
        self._reader = FrameReader()

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Read to the first frame that is wanted; return all up to it, and keep what came after."""
        while not any(map(wanted, self.frames)):
            data = self.socket.recv(1 << 16)
            assert data, f"the program hung up after {self.frames}"
            self.frames += self._reader.feed(data)
        last = next(n for n, frame in enumerate(self.frames) if wanted(frame))
        taken, self.frames = self.frames[: last + 1], self.frames[last + 1 :]
        return taken

    def synced(self) -> list[dict[str, Any]]:
        """Read to the end of a whole state."""
        return self.until(lambda frame: frame["kind"] == "sync" and frame["stage"] == "end")

    def rest(self) -> list[dict[str, Any]]:
        """Read to the end of the connection."""
        while data := self._recv():
            self.frames += self._reader.feed(data)
        return self.frames

    def _recv(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionResetError:
            return b""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name, the only one in which sockets are opened and looked for."""
    base = Path(tempfile.mkdtemp(prefix="l"))
    monkeypatch.setenv("WORKSPAN_LIVE_DIRECTORY", str(base / "s"))
    monkeypatch.setenv("WORKSPAN_LIVE_ENABLED", "true")
    config.reset()
    monkeypatch.setattr(outlet, "_snapshots", [])  # without those of the tests before
    yield base / "s"
    live.stop()
    config.reset()
    shutil.rmtree(base)


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Connect a plain client: ``connect(path, small=False)``."""
    clients: list[Client] = []

    def make(path: Path, **options: Any) -> Client:
        clients.append(Client(path, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.socket.close()


@pytest.fixture
def started(place: Path) -> Iterator[Server]:
    """This process, opened to viewers, with an active step 1."""

    def snapshot() -> list[dict[str, Any]]:
        return [{"event": "start", "id": 1, "label": "active"}]

    live.register_snapshot(snapshot)
    live.start()
    assert isinstance(outlet._server, Server)
    yield outlet._server
    live.unregister_snapshot(snapshot)
    live.stop()


class Fake:
    """A program that says what the test wants."""

    def __init__(self, place: Path, name: str = "fake.py", pid: int | None = None) -> None:
        folders.prepare(place)
        self.pid = pid or os.getpid()
        self.listener, self.path = folders.bind(place, name, self.pid)
        self.listener.settimeout(10)
        self.name = name
        self.connection: socket.socket | None = None

    def accept(self) -> None:
        """Take the viewer that waits."""
        self.connection, _ = self.listener.accept()

    def say(self, *frames: dict[str, Any]) -> None:
        """Send frames."""
        self.send(b"".join(map(encode, frames)))

    def send(self, data: bytes) -> None:
        """Send bytes."""
        assert self.connection is not None
        self.connection.sendall(data)

    def hello(self, **fields: Any) -> None:
        """Take the viewer that waits and say who this is."""
        self.accept()
        self.say({"kind": "hello", "pid": self.pid, "script": self.name, **fields})

    def hang_up(self) -> None:
        """End the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """End."""
        self.hang_up()
        self.listener.close()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def fake(place: Path) -> Iterator[Callable[..., Fake]]:
    """Make a program: ``fake(name="fake.py", pid=None)``."""
    made: list[Fake] = []

    def make(*args: Any, **options: Any) -> Fake:
        made.append(Fake(place, *args, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
