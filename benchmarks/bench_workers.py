"""What workers cost beyond a block: the first block of a run, clients, strangers at the door, 2,000 connections."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import daisy
from harness import HERE, Row, compare, save

import workspan
from workspan.engines import Processes, fork_server, wire
from workspan.engines.login import CLIENT, HELLO_BYTES, PROOF_BYTES, Login
from workspan.engines.vault import read_secret


def line(library: ModuleType, blocks: int, function: Any, workers: int) -> Any:
    """Return a task of `blocks` blocks in a row."""
    roi = library.Roi((0,), (blocks,))
    one = library.Roi((0,), (1,))
    return library.Task("line", roi, one, one, function, read_write_conflict=False, max_workers=workers)


def run(library: ModuleType, task: Any, **how: Any) -> float:
    """Run a task in worker processes and return the seconds that the call took."""
    begin = time.perf_counter()
    done = library.run_blockwise(task, progress=False, summary=False, block_tracking=False, **how)
    seconds = time.perf_counter() - begin
    if not done:
        raise RuntimeError(f"{library.__name__} did not complete its blocks")
    return seconds


def first_block(library: ModuleType, **how: Any) -> float:
    """Return the milliseconds from the call to the first line of the first block."""
    with tempfile.TemporaryDirectory() as folder:
        stamp = Path(folder, "stamp")

        def note(block: Any) -> None:
            stamp.write_text(repr(time.monotonic()))

        task = line(library, 1, note, 1)
        begin = time.monotonic()
        run(library, task, **how)
        return (float(stamp.read_text()) - begin) * 1e3


def boot() -> float:
    """Return the milliseconds from the start of a fork server until it can fork."""
    fork_server.stop_all()
    begin = time.perf_counter()
    server = fork_server.server_for(())
    if server is None or not server.wait():
        raise RuntimeError("there is no fork server")
    return (time.perf_counter() - begin) * 1e3


def beside_limits(rounds: int) -> list[Row]:
    """Compare what a fork server costs, and what its workers do, with what is allowed."""
    engine = Processes(fork_server=True)
    limits = (
        ("boot of a fork server", boot, 120.0),
        ("call to first block, its workers forked", lambda: first_block(workspan, engine=engine), 30.0),
    )
    return [
        compare(what, ours, lambda most=most: most, unit="ms", rounds=rounds, target=1.0) for what, ours, most in limits
    ]


def clients(library: ModuleType, blocks: int) -> float:
    """Return the microseconds a block that two hand-written loops of a worker function need for no-op blocks."""
    name = library.__name__

    def work() -> None:
        import importlib

        client = importlib.import_module(name).Client()
        while True:
            with client.acquire_block() as block:
                if block is None:
                    return

    return run(library, line(library, blocks, work, 2)) / blocks * 1e6


def doze(block: Any) -> None:
    """Take a millisecond without a processor."""
    time.sleep(0.001)


PROBE = """
import contextlib, os, socket, sys
os.nice(19)  # whoever knocks does so from another machine: it must not be missed as a processor here
for _ in range(int(sys.argv[2])):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
"""


def besieged(blocks: int, probes: int) -> float:
    """Return the microseconds a block while somebody connects and closes `probes` times."""
    server = workspan.Server()
    task = line(workspan, blocks, doze, 2)
    seconds = []

    def serve() -> None:
        begin = time.perf_counter()
        server.run_blockwise(task, progress=False, summary=False, block_tracking=False)
        seconds.append(time.perf_counter() - begin)

    thread = threading.Thread(target=serve)
    thread.start()
    while server.port is None:
        time.sleep(0.001)
    prober = None
    if probes:
        prober = subprocess.Popen([sys.executable, "-c", PROBE, str(server.port), str(probes)])
    thread.join()
    if prober is not None and prober.poll() is None:
        prober.kill()  # the run was over first: it was not held up by what is left
    if prober is not None:
        prober.wait()
    return seconds[0] / blocks * 1e6


async def one_client(
    context: workspan.Context, secret: bytes, joining: asyncio.Semaphore, until: float, waits: list[float]
) -> None:
    """Take blocks of one to three seconds until the time is over; keep how long each was waited for."""
    async with joining:
        reader, writer = await asyncio.open_connection(context["hostname"], int(context["port"]))
        login = Login(secret, context["run_id"], CLIENT)
        writer.write(login.hello())
        login.take_hello(await reader.readexactly(HELLO_BYTES))
        writer.write(login.proof())
        login.check_proof(await reader.readexactly(PROOF_BYTES))
    sealer, opener = wire.worker_ends(login.frame_secret())
    writer.write(sealer.seal(wire.Join(context["task_id"], None, socket.gethostname(), os.getpid())))
    messages: list[Any] = []

    async def receive() -> Any:
        while not messages:
            data = await reader.read(65536)
            if not data:
                return None
            messages.extend(opener.feed(data))
        return messages.pop(0)

    await receive()
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(1, 3))
        begin = time.monotonic()
        writer.write(sealer.seal(wire.Ask()))
        message = await receive()
        if not isinstance(message, wire.Grant):
            break
        waits.append(time.monotonic() - begin)
        await asyncio.sleep(random.uniform(1, 3))
        writer.write(sealer.seal(wire.Result(message.index, True)))
    writer.close()


def crowd(count: int, seconds: float) -> float:
    """Return the 99th percentile, in milliseconds, of the time from a request to its block, with `count` clients."""
    stop = threading.Event()
    server = workspan.Server(stop)
    task = line(workspan, 100 * count, None, 1)
    kwargs = {"progress": False, "summary": False, "block_tracking": False}
    thread = threading.Thread(target=server.run_blockwise, args=(task,), kwargs=kwargs)
    os.environ["WORKSPAN_HOST"] = "127.0.0.1"
    thread.start()
    while server.port is None:
        time.sleep(0.001)
    words = [sys.executable, __file__, "--crowd", str(count), str(seconds), server.context("line").to_env()]
    try:
        return float(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    finally:
        stop.set()
        thread.join()


def be_the_crowd(count: int, seconds: float, text: str) -> None:
    """Be the other end of :func:`crowd`: all clients in one process, as a single busy host would be."""
    from workspan.engines.descriptors import make_room

    make_room(2 * count + 100)
    context = workspan.Context.from_env_string(text)
    secret = read_secret(context["secret_file"])
    waits: list[float] = []

    async def everyone() -> None:
        until = time.monotonic() + seconds
        joining = asyncio.Semaphore(32)
        await asyncio.gather(*(one_client(context, secret, joining, until, waits) for _ in range(count)))

    asyncio.run(everyone())
    print(statistics.quantiles(waits, n=100)[-1] * 1e3)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=4000)
    parser.add_argument("--probes", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    parser.add_argument("--only-forks", action="store_true", help="measure the fork server and nothing else")
    parser.add_argument("--crowd", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.crowd:
        be_the_crowd(int(arguments.crowd[0]), float(arguments.crowd[1]), arguments.crowd[2])
        return
    blocks, rounds = arguments.blocks, arguments.rounds
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        forks = beside_limits(2 * rounds)
    print(save("forks", "limit", forks, arguments.out))
    if arguments.only_forks:
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        rows.append(
            compare(
                "call to first block",
                lambda: first_block(workspan),
                lambda: first_block(daisy),
                unit="ms",
                rounds=2 * rounds,
                target=1.0,
            )
        )
        rows.append(
            compare(
                f"2 worker functions with clients, {blocks} blocks",
                lambda: clients(workspan, blocks),
                lambda: clients(daisy, blocks),
                unit="us/block",
                rounds=rounds,
                target=1.25,
            )
        )
        doors = [
            compare(
                f"{arguments.probes} connect-and-close during {blocks} blocks of 1 ms",
                lambda: besieged(blocks, arguments.probes),
                lambda: besieged(blocks, 0),
                unit="us/block",
                rounds=rounds,
                target=1.1,
            ),
        ]
        crowds = [
            compare(
                f"{arguments.clients} clients, request to block, 99th percentile",
                lambda: crowd(arguments.clients, arguments.seconds),
                lambda: 50.0,
                unit="ms",
                rounds=1,
                target=1.0,
            )
        ]
    print(save("workers", f"daisy {daisy.__version__}", rows, arguments.out))
    print(save("door", "nobody at the door", doors, arguments.out))
    print(save("crowd", "limit", crowds, arguments.out))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
