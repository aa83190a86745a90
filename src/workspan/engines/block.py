"""The one place where user code of a block is called: by the serial engine, and by every worker."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from os import getpid
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.engines.connection import log
from workspan.engines.failure import failure_text, is_refusal
from workspan.engines.wire import stats_fault
from workspan.grid.block import BlockStatus

if TYPE_CHECKING:
    from workspan.engines.base import BlockFunction
    from workspan.grid.block import Block
    from workspan.measure.notes import Note
    from workspan.measure.profile import BlockStats, Profile
from workspan.measure.notes import take as take_notes
from workspan.measure.sections import Collector

_UNRUN = (CoroutineType, GeneratorType, AsyncGeneratorType)


class Outcome(msgspec.Struct, frozen=True):
    """What became of one call of a block function."""

    ok: bool
    error: str | None = None
    """Text of the failure; ``None`` when *ok*."""
    stats: BlockStats | None = None
    """What the block cost, if it was measured."""
    steps: dict[str, tuple[float, int]] | None = None
    """Section name -> (self seconds, calls); ``None`` if the block opened no section."""
    notes: list[Note] | None = None
    """Measurements of steps that this worker made since its last block; ``None`` if there are none."""
    final: bool = False
    """Another attempt would fail in the same way."""


def run_block(
    function: BlockFunction,
    block: Block,
    profile: Profile | None,
    collector: Collector,
    *,
    pass_on: tuple[type[BaseException], ...] = (),
) -> Outcome:
    """Call *function* with *block*, measure it and say what became of it.

    Everything that the function raises is a failure of the block, ``SystemExit`` and ``KeyboardInterrupt`` included: a
    block function that ends the program has not done its block.

    Parameters
    ----------
    function
        User code. What it returns is ignored, except that a coroutine or generator is a failure: its body never ran.
    block
        Its status tells afterwards how it went, its ``stats`` what it cost.
    profile
        Measures the call. ``None``: not measured. If user code measured the block itself, that stands.
    collector
        Collects the sections that the function opens; it is entered.
    pass_on
        Exceptions that leave this function instead of failing the block.

    Notes
    -----
    A child process that user code forked does not report for the block: what it raises goes on up its own stack.
    """
    returned: Any = None
    raised: BaseException | None = None
    error: str | None = None
    collector.begin()
    try:
        if profile is None:
            returned = function(block)
        else:
            with profile:
                returned = function(block)
    except BaseException as problem:
        if getpid() != collector.pid or isinstance(problem, pass_on):
            raise
        raised = problem
    finally:
        steps = collector.end()
    try:
        if raised is not None:
            error = failure_text(raised)
        elif block.status is BlockStatus.FAILED:
            error = "block function set status FAILED"
        elif returned is not None and isinstance(returned, _UNRUN):
            error = _unrun_text(function, returned)
        stats = None
        if profile is not None:
            stats = block.stats
            if stats is None:  # nothing that user code could have got wrong
                stats = block.stats = profile.stats
            else:
                stats, fault = settle_stats(block, profile)
                error = error or fault
        block.status = BlockStatus.SUCCESS if error is None else BlockStatus.FAILED
        return Outcome(error is None, error, stats, steps, take_notes(), is_refusal(raised))
    finally:
        # This frame is part of the exception's traceback; a reference back would keep the function's data alive.
        del raised, returned


def end_fork(collector: Collector, block: Block, error: BaseException | None = None) -> None:
    """End this process if user code forked it in *block* and then came back: the run is its parent's.

    For engines that call user code in the driver's own process, where such a copy would run all other blocks again.

    Parameters
    ----------
    collector
        Was entered by the process that runs the blocks.
    block
        The block that runs.
    error
        What the block function raised: the exit code is the one that Python would end with.
    """
    if getpid() == collector.pid:
        return
    code: object = 0
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
    elif error is not None:
        code = failure_text(error)
    else:
        log(f"a process forked in block {block.block_id} came back from the block function: it ends here")
    if not isinstance(code, int):
        log(str(code))
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def settle_stats(block: Block, profile: Profile) -> tuple[BlockStats | None, str | None]:
    """Give *block* its measurement, its own one if user code made one; return it, and what is wrong with the latter."""
    fault = None
    if block.stats is not None:
        fault = stats_fault(block.stats)
    if block.stats is None or fault is not None:
        block.stats = profile.stats
    return block.stats, fault


def _unrun_text(function: BlockFunction, returned: Any) -> str:
    kind = {CoroutineType: "coroutine", GeneratorType: "generator", AsyncGeneratorType: "async generator"}
    if isinstance(returned, CoroutineType | GeneratorType):
        returned.close()
    name = getattr(function, "__qualname__", repr(function))
    return (
        f"block function {name!r} returned a {kind[type(returned)]}, so its body never ran: "
        "give a plain function (one that calls asyncio.run, or loops over the generator)"
    )
