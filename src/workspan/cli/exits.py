"""From an error to an exit code and one line."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workspan.cli import terminal
from workspan.errors import (
    ConfigurationError,
    InvalidMetadataError,
    LayoutMismatchError,
    MapError,
    MissingExtraError,
    NoStoreError,
    StoreFullError,
    StoreLockedError,
    UsageTypeError,
    WorkspanError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DONE = 0
INCOMPLETE = 1
REFUSED = 2
STORE = 3
INTERRUPTED = 130
TERMINATED = 143

_FULL = {errno.ENOSPC, errno.EDQUOT}


def explain(error: Exception, *, traceback: bool) -> int:
    """Print *error* to stderr and say with which code the process should end.

    An error that nobody raised on purpose is a fault of the program: it is printed with its traceback always.

    Parameters
    ----------
    error
        What ended the command.
    traceback
        Print the traceback of an error on purpose, too.
    """
    code = code_of(error)
    if traceback or code is None:
        from traceback import format_exception

        terminal.complain("".join(format_exception(error)).rstrip("\n"))
    else:
        terminal.complain(f"workspan: {_one_line(error)}")
    return INCOMPLETE if code is None else code


def code_of(error: Exception) -> int | None:
    """Exit code for *error*; ``None`` if it is not one that the user can do anything about."""
    if isinstance(error, (InvalidMetadataError, StoreLockedError, StoreFullError)):
        return STORE
    if isinstance(error, (ConfigurationError, MissingExtraError, NoStoreError, UsageTypeError)):
        return REFUSED
    if isinstance(error, WorkspanError):
        return INCOMPLETE
    if isinstance(error, OSError):
        return STORE if is_full(error) else INCOMPLETE
    return None


def is_full(error: OSError) -> bool:
    """Whether *error* says that a disk, or the user's share of it, is full."""
    return error.errno in _FULL


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Say what the file system refuses with the option that asked for it.

    Raises
    ------
    StoreFullError
        There is no room for the file.
    ConfigurationError
        It cannot be written for another reason.
    """
    try:
        yield
    except (BrokenPipeError, WorkspanError):  # the reader has seen enough; or it is said already
        raise
    except OSError as error:
        if is_full(error):
            raise StoreFullError(f"no space is left for {option} {path}") from error
        raise ConfigurationError(f"{option} {path} cannot be written: {error.strerror or error}") from error


def _one_line(error: Exception) -> str:
    """Text of *error* without line breaks; a traceback of a user, and two layouts side by side, have them."""
    if isinstance(error, (MapError, LayoutMismatchError)):
        return str(error)
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, WorkspanError) else f"{text} (--traceback shows where)"
