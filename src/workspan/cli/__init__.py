"""The ``workspan`` command.

This module holds what every command shares: from the words typed to an exit code. It loads nothing heavy; the
command line parser, and a command's own modules, load when a command needs them.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

__all__ = ["main"]


_READERS = {"compare", "forecast", "history", "report", "trace"}
"""Commands that run none of the user's code, and do no linear algebra."""


class Terminated(BaseException):
    """SIGTERM arrived; not an ``Exception``, so that no handler of errors takes it for one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``workspan`` command.

    Errors on purpose become one line on stderr; with ``--traceback`` or ``WORKSPAN_TRACEBACK=1`` they come with
    their traceback.

    Parameters
    ----------
    argv
        The words after ``workspan``; ``None``: those of this process.

    Returns
    -------
    int
        0: everything done; 1: the run is not complete; 2: refused before the run; 3: a store is locked, corrupt or
        full; 130, 143: ended by SIGINT, SIGTERM.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    traceback = os.environ.get("WORKSPAN_TRACEBACK", "0") not in ("", "0")
    own = words[: words.index("--")] if "--" in words else words
    if "--traceback" in own:
        words.remove("--traceback")
        traceback = True

    from workspan.cli import exits

    if words and words[0] in _READERS:  # NumPy starts threads when it is loaded, which is a third of its time
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = exits.INTERRUPTED
    try:
        with _sigterm_raises():
            from workspan.cli import app

            code = app.run(words)
    except KeyboardInterrupt:
        code = exits.INTERRUPTED
    except Terminated:
        code = exits.TERMINATED
    except SystemExit as end:  # a run that a signal ended, after it shut its workers down
        code = end.code if isinstance(end.code, int) else exits.DONE if end.code is None else exits.INCOMPLETE
    except Exception as error:
        code = exits.explain(error, traceback=traceback)
    finally:
        from workspan.cli import terminal

        if not terminal.finish():  # a result that is cut off must not look whole
            terminal.complain("workspan: no space is left for what was printed")
            terminal.finish()
            code = code or exits.STORE
    return code


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that a run shuts its workers down; the previous handler comes back."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        previous = signal.signal(signal.SIGTERM, handler)
    except ValueError:  # not in the main thread: the caller's own handling stays
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
