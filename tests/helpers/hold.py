"""A block that says where it runs and waits, and the test's side of it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from helpers.engine_kit import Gate, wait_until
from workspan.run.interrupt import Interrupts


def say_where(path: str) -> Any:
    """A block function that tells its process and its parent from block 0, waits at a gate, and goes on."""

    def work(block: Any) -> None:
        import os

        if block.index == 0:
            with open(path, "w") as file:
                file.write(f"{os.getpid()} {os.getppid()}\n")
            with open(path + ".go") as go:
                go.read()

    return work


class Holder:
    """The driver's side of :func:`say_where`."""

    def __init__(self, folder: Path) -> None:
        self.gate = Gate(folder / "where")
        self.go_path = str(folder / "where.go")
        os.mkfifo(self.go_path)
        self.work = say_where(self.gate.path)

    def wait(self) -> tuple[int, int]:
        """Return the worker's process and its parent, which is the cluster's own."""
        own, parent = self.gate.wait().split()
        return int(own), int(parent)

    def go(self) -> None:
        """Let the block go on."""
        os.close(os.open(self.go_path, os.O_WRONLY))


def announce_signals() -> None:
    """Let this program say ``HEARD`` when a run in it has taken note of a signal: those that come together are one."""
    take_note = Interrupts._handle

    def announce(self: Interrupts, number: int, frame: FrameType | None) -> None:
        take_note(self, number, frame)
        os.write(1, b"HEARD\n")

    Interrupts._handle = announce  # type: ignore[method-assign]


def interrupt_twice(driver: subprocess.Popen[bytes], output: Path) -> None:
    """Send two signals to a program that announces them, and writes to *output*."""
    driver.send_signal(signal.SIGINT)
    wait_until(lambda: "HEARD" in output.read_text(), "the first signal was heard")
    driver.send_signal(signal.SIGINT)


def in_thread(function: Any) -> tuple[threading.Thread, list[Any]]:
    """Run *function* in a thread; what it returns, or raises, is in the list."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, found
