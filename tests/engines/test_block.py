"""The call of user code, seen from inside one process. What both engines have in common is in `test_contract.py`."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from helpers.engine_kit import line
from workspan.engines import block as module
from workspan.grid import Block, BlockStatus
from workspan.measure.profile import Profile
from workspan.measure.sections import Collector


def run_block(function, block, profile, **kwargs):
    """Run one block with a collector of its own."""
    with Collector() as collector:
        return module.run_block(function, block, profile, collector, **kwargs)


def block(index=0):
    """Return a block."""
    return Block.at(line(), index, "task")


class Data:
    """Stands for a big array."""


def test_success_sets_the_status():
    """The block says how it went, and carries what it cost."""
    b = block()
    outcome = run_block(lambda b: None, b, Profile())
    assert (outcome.ok, outcome.error) == (True, None)
    assert b.status == BlockStatus.SUCCESS
    assert b.stats is outcome.stats


def test_failure_sets_the_status():
    """A block whose function raised is FAILED."""
    b = block()
    outcome = run_block(lambda b: 1 / 0, b, None)
    assert b.status == BlockStatus.FAILED
    assert outcome.error.endswith("ZeroDivisionError: division by zero")


def test_named_exceptions_pass():
    """The serial engine lets a real Ctrl-C through; anything else fails the block (R16)."""

    def interrupt(b):
        raise KeyboardInterrupt

    assert run_block(interrupt, block(), None).error.endswith("KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        run_block(interrupt, block(), None, pass_on=(KeyboardInterrupt,))


def test_data_of_a_failed_block_is_freed():
    """Nothing holds the arrays of the function that raised (no cycle to collect)."""
    seen = []

    def work(b):
        data = Data()
        seen.append(weakref.ref(data))
        raise ValueError

    gc.disable()
    try:
        assert not run_block(work, block(), None).ok
        assert seen[0]() is None
    finally:
        gc.enable()


def test_forked_child_does_not_report():
    """What a child forked by user code raises goes on up its own stack, with its exit code (R17)."""
    parent = os.getpid()

    def forks(b):
        if os.fork() == 0:
            raise SystemExit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7

    try:
        outcome = run_block(forks, block(), None)
    except SystemExit as error:
        os._exit(error.code)
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert outcome.ok


def test_unawaited_coroutine_is_closed():
    """An async function is refused without a warning about a coroutine that was never awaited."""

    async def work(b):
        pass

    outcome = run_block(work, block(), None)
    assert not outcome.ok
    gc.collect()
