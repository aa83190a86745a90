"""A worker that reaches its run through an encrypted tunnel, as on a network that nobody trusts."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from helpers.client_kit import line_task, serving
from helpers.engine_kit import Gate, wait_until
from workspan.cli import main

pytestmark = pytest.mark.usefixtures("logs")

TASK = "nobody-else-may-read-this"
PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg96MrTDO9QkP98W6r
N1Znl6mPOv1LBAZR/3AuuVRy8YWhRANCAAS3nc64HRKTtKGVZGVVAr6/SMXe23zD
bxghXy8vU/Q7sageQoYSN1I5O3VkEQumorHKBL6vUVXNTAhyVVJVW8wg
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBjzCCATagAwIBAgIUE28ykMrIRulpWdKoTHZowomUXIcwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDE1MjQ1NloYDzIxMjYxMTA2
MTUyNDU2WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS3nc64HRKTtKGVZGVVAr6/SMXe23zDbxghXy8vU/Q7sageQoYSN1I5
O3VkEQumorHKBL6vUVXNTAhyVVJVW8wgo2QwYjAdBgNVHQ4EFgQUhlM6aaEA3xQv
zkHxrqOcjplDBzkwHwYDVR0jBBgwFoAUhlM6aaEA3xQvzkHxrqOcjplDBzkwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0cAMEQC
ICyUFINhvzcK1WDvMwdeoisob/wDtccJcXnaBUENRH4jAiBRM01wP5Nqo8Q7+KHK
gDrDPwKIQtTdWar7hm8M7XiCSg==
-----END CERTIFICATE-----
"""
"""A key and its certificate for 127.0.0.1, which protect nothing but this test."""


async def pump(reader, writer, heard):
    """Hand on what comes until it ends, and keep a copy."""
    with suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            heard += data
            writer.write(data)
            await writer.drain()
    writer.close()


async def relay(to, heard, accepts=None, dials=None):
    """Listen on a port of loopback and hand on to another one, with TLS on either side; return the server."""

    async def connect(reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to, ssl=dials)
        await asyncio.gather(pump(reader, far_writer, heard), pump(far_reader, writer, heard))

    return await asyncio.start_server(connect, "127.0.0.1", 0, ssl=accepts)


@contextmanager
def tunnel(port, pem):
    """Yield the near end's port, what went in and out there, and what was seen on the way."""
    pem.write_text(PEM)
    far, near = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=pem)
    far.load_cert_chain(pem)
    loop, servers = asyncio.new_event_loop(), []
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    plain, seen = bytearray(), bytearray()
    try:
        for make in (
            partial(relay, heard=bytearray(), accepts=far),
            partial(relay, heard=seen),
            partial(relay, heard=plain, dials=near),
        ):
            servers.append(asyncio.run_coroutine_threadsafe(make(port), loop).result(30))
            port = servers[-1].sockets[0].getsockname()[1]
        yield port, plain, seen
    finally:

        async def end():
            for server in servers:
                server.close()
            ours = asyncio.current_task()
            others = [task for task in asyncio.all_tasks() if task is not ours]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_worker_through_tls(tmp_path):
    """R52: through a TLS tunnel a worker does its blocks, and whoever listens on the way reads nothing of them."""
    inside, release, done = Gate(tmp_path / "inside"), Gate(tmp_path / "release"), tmp_path / "done"
    done.mkdir()

    def work(block, begun=Path(inside.path), go_on=Path(release.path)):
        if block.index == 0:
            begun.write_text("here\n")
            go_on.read_text()
        else:
            (done / str(block.index)).touch()

    with serving(line_task(4, work, TASK, max_workers=1)) as run:
        inside.wait()
        context = run.context(TASK)
        (tmp_path / "context").write_text(context.to_env())
        with tunnel(int(context["port"]), tmp_path / "pem") as (port, plain, seen):
            command = [sys.executable, "-m", "workspan", "worker", "--context", str(tmp_path / "context")]
            guest = subprocess.Popen(
                [*command, "--dial", f"127.0.0.1:{port}"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                wait_until(lambda: len(os.listdir(done)) == 3 or guest.poll() is not None, "the guest works", 60)
            finally:
                release.open()
                out, _ = guest.communicate(timeout=60)
            assert (guest.returncode, out) == (0, "")
        report = run.wait()
    assert report[TASK].blocks.count == 4
    assert report[TASK].workers.unmanaged_clients == 1
    assert TASK.encode() in plain
    assert TASK.encode() not in seen
    assert len(seen) > len(plain)


@pytest.mark.parametrize("text", ["localhost", ":1", "a:b", "a:0", "a:70000", "a:-1", ""])
def test_no_address(tmp_path, capsys, text):
    """What is dialled must be a host and a port; the error has the value and an example (R52)."""
    (tmp_path / "context").write_text("task_id=t")
    assert main(["worker", "--context", str(tmp_path / "context"), "--dial", text]) == 2
    assert f"--dial {text!r} is no HOST:PORT: give one such as localhost:40001" in capsys.readouterr().err
