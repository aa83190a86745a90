"""Keyword arguments that many methods of a dataset share: their names, types and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from workspan.arguments import at_least
from workspan.dataset.execute import RunOptions
from workspan.dataset.functions import UserFunction
from workspan.dataset.ops import Compute
from workspan.dataset.retry import checked_patterns
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run.arguments import timeout_seconds

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from datetime import timedelta

    from workspan.engines.base import Engine

__all__ = ["ComputeKeywords", "RunKeywords", "check_format", "column_names", "function_of", "run_options"]

_FORMATS = ("numpy", "default", "pandas", "pyarrow", None)


class ComputeKeywords(TypedDict, total=False):
    """What an operator with a function may be given besides."""

    constructor_args: Sequence[Any]
    """What a class is constructed with, once in each worker."""
    constructor_kwargs: Mapping[str, Any]
    concurrency: int | None
    """Most workers of this operator, which is then not fused with the one before."""
    requires: Mapping[str, int]
    """What one worker takes of the run's ``resources``, name -> amount."""
    retries: int
    """How often a task is tried again after an error of its functions."""
    retry_on: bool | str | Sequence[str]
    """Only errors in whose text one of these patterns is found; without, every exception."""
    timing: Literal["phases", "stages"] | None
    """How finely the steps of this operator are timed."""
    block_bytes: int | None
    """Bytes of the blocks that leave this operator, instead of the ``block_bytes`` of the dataset's options."""


class RunKeywords(TypedDict, total=False):
    """How an execution may be run; everything is optional."""

    engine: str | Engine | None
    """As of :func:`workspan.run_blockwise`: ``"processes"`` (the default), ``"serial"``, or an engine."""
    max_workers: int | None
    """Most workers of an operator; ``None``: as many as there are processors."""
    tracking_path: str | os.PathLike[str] | None
    """Folder that remembers finished tasks, so that another run goes on where this one ended; ``None``: none."""
    resource_tracking: bool
    """Measure CPU, I/O and peak memory of every task; needs *tracking_path*."""
    progress: Any
    """As of :func:`workspan.run_blockwise`."""
    resources: Mapping[str, int] | None
    """Name -> amount that the ``requires`` of live workers may add up to."""
    timeout: float | timedelta | None
    """Deadline of one task, in seconds; ``None``: none."""


def run_options(given: Mapping[str, Any], **defaults: Any) -> RunOptions:
    """Return how an execution is run.

    Raises
    ------
    UsageTypeError
        A name is not known.
    ConfigurationError
        A value cannot be used.
    """
    for name in given:
        if name not in RunOptions.__slots__:
            known = ", ".join(f"{known}=" for known in RunOptions.__slots__)
            raise UsageTypeError(f"{name}= is not known here: how a dataset is executed is told by {known}")
    options = RunOptions(**{**defaults, **given})
    if options.timeout is not None:
        timeout_seconds(options.timeout)
    if options.max_workers is not None:
        at_least("max_workers", options.max_workers, 1)
    return options


def function_of(function: Any, operator: str, given: ComputeKeywords) -> tuple[UserFunction, Compute]:
    """Return the function of an operator, and what the operator asks of its workers."""
    rest: dict[str, Any] = dict(given)
    arguments, keywords = rest.pop("constructor_args", ()), rest.pop("constructor_kwargs", None)
    return UserFunction(function, operator, arguments, keywords), compute_of(rest, operator)


def compute_of(given: dict[str, Any], operator: str) -> Compute:
    """Return what an operator asks of its workers.

    Raises
    ------
    UsageTypeError
        A name is not known, or a value has the wrong type.
    ConfigurationError
        A value cannot be used.
    """
    concurrency = given.pop("concurrency", None)
    requires = given.pop("requires", None) or {}
    retries = given.pop("retries", 0)
    retry_on = given.pop("retry_on", bool(retries))
    timing = given.pop("timing", None)
    block_bytes = given.pop("block_bytes", None)
    if given:
        known = ", ".join(f"{name}=" for name in ComputeKeywords.__annotations__)
        raise UsageTypeError(
            f"{operator}({next(iter(given))}=...) is not known; besides its own arguments it has {known}"
        )
    if concurrency is not None:
        at_least(f"{operator}: concurrency", concurrency, 1)
    retries = at_least(f"{operator}: retries", retries, 0)
    if block_bytes is not None:
        block_bytes = at_least(f"{operator}: block_bytes", block_bytes, 1)
    if timing not in (None, "phases", "stages"):
        raise ConfigurationError(f"{operator}(timing={timing!r}): it is 'phases' or 'stages'")
    if not isinstance(requires, Mapping):
        kind = type(requires).__name__
        raise UsageTypeError(f"{operator}: requires={requires!r} is a {kind}: pass a dict, resource -> amount")
    for name, amount in requires.items():
        at_least(f"{operator}: requires[{name!r}]", amount, 0)
    patterns = checked_patterns(retry_on, f"{operator}: retry_on")
    return Compute(concurrency, tuple(sorted(requires.items())), retries, patterns, timing, block_bytes)


def check_format(batch_format: Any) -> None:
    """Refuse a form of batches that is not known.

    Raises
    ------
    ConfigurationError
        Naming it, and those that there are.
    """
    if batch_format not in _FORMATS:
        raise ConfigurationError(
            f"batch_format={batch_format!r} is not known: use 'numpy', 'pandas', 'pyarrow' or None (Arrow)"
        )


def column_names(columns: Sequence[Any], operator: str) -> tuple[str, ...]:
    """Return names of columns, given one by one or as a list.

    Raises
    ------
    UsageTypeError
        One of them is no text.
    """
    if len(columns) == 1 and isinstance(columns[0], (list, tuple)):
        columns = columns[0]
    for name in columns:
        if not isinstance(name, str):
            raise UsageTypeError(f"{operator}({name!r}): a column is named by text, not by a {type(name).__name__}")
    return tuple(columns)
