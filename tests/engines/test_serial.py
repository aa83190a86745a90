"""The serial engine: what is different from workers. What is alike is in `test_contract.py`."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pytest

from workspan.engines import Processes, Serial
from workspan.errors import EngineError
from workspan.schedule.events import Ended, Ready, Returned


def nothing(block):
    """Do nothing."""


def test_blocks_run_in_the_calling_thread_inside_poll(make_run):
    """A block runs when it is polled for, one a poll, in the caller's thread (B69)."""
    seen = []
    run = make_run(Serial(), lambda block: seen.append((block.index, threading.get_ident())))
    run.start()
    run.engine.send(0, 1)
    run.engine.send(0, 2)
    assert seen == []
    assert run.engine.poll(None) == [Returned(0, 1, True)]
    assert seen == [(1, threading.get_ident())]
    assert run.engine.poll(None) == [Returned(0, 2, True)]


def test_workers_take_turns_in_the_order_of_the_sends(make_run):
    """Blocks of several pseudo workers run in the order in which they were sent."""
    run = make_run(Serial(), nothing, nothing)
    run.start(0, task=0)
    run.start(1, task=1)
    for worker, index in ((1, 5), (0, 6), (1, 7)):
        run.engine.send(worker, index)
    assert [run.engine.poll(None) for _ in range(3)] == [
        [Returned(1, 5, True)],
        [Returned(0, 6, True)],
        [Returned(1, 7, True)],
    ]


def test_keyboard_interrupt_leaves_poll(make_run):
    """Ctrl-C in a block reaches the caller; the block is neither done nor failed (B71)."""

    def interrupted(block):
        signal.raise_signal(signal.SIGINT)

    run = make_run(Serial(), interrupted)
    run.start()
    run.engine.send(0, 0)
    with pytest.raises(KeyboardInterrupt):
        run.engine.poll(None)
    (end,) = run.engine.close()
    assert end == Ended(0, False, "ended with 1 blocks not run")


def test_wake_comes_before_the_next_block(make_run):
    """A run that is to stop is not held up by the blocks that are queued."""
    seen = []
    run = make_run(Serial(), lambda block: seen.append(block.index))
    run.start()
    run.engine.send(0, 0)
    run.engine.wake()
    assert run.engine.poll(None) == []
    assert seen == []
    assert run.engine.poll(None) == [Returned(0, 0, True)]


def test_wake_from_a_signal_handler(make_run):
    """A signal that comes while poll() waits can end the wait (R20)."""
    run = make_run(Serial(), nothing)
    before = signal.signal(signal.SIGUSR1, lambda *_: run.engine.wake())
    thread = threading.Thread(target=signal.pthread_kill, args=(threading.get_ident(), signal.SIGUSR1))
    try:
        thread.start()
        assert run.engine.poll(None) == []
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()


def test_wake_from_a_signal_handler_reaches_processes(make_run):
    """The same holds for the engine with workers, whose poll() waits in the kernel (B71: within 100 ms)."""
    run = make_run(Processes(), nothing)
    before = signal.signal(signal.SIGUSR1, lambda *_: run.engine.wake())
    thread = threading.Thread(target=signal.pthread_kill, args=(threading.get_ident(), signal.SIGUSR1))
    try:
        start = time.monotonic()
        thread.start()
        assert run.engine.poll(30) == []
        assert time.monotonic() - start < 5
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()


class TestDebugging:
    def test_streams_are_left_alone(self, make_run, capsys):
        """Prints of a block go where the caller's go (B69)."""
        run = make_run(Serial(), lambda block: print("hello", file=sys.stderr))
        run.start()
        run.block()
        assert capsys.readouterr().err == "hello\n"


def test_task_without_function_is_refused(make_run):
    """A task that waits for workers of others cannot run serially; the text says what to do (B69)."""
    with pytest.raises(EngineError, match=r"task 'task0' has no block function.*use engine='processes'"):
        make_run(Serial(), None)


def test_killed_between_blocks(make_run):
    """What is queued for a killed worker is dropped, and others go on."""
    run = make_run(Serial(), nothing)
    run.start(0)
    run.start(1)
    run.engine.send(0, 1)
    run.engine.send(1, 2)
    run.engine.kill_worker(0)
    assert run.engine.poll(None) == [Ended(0, False, "killed between two blocks")]
    assert run.engine.poll(None) == [Returned(1, 2, True)]
    assert run.of(1) == [Ready(1)]
