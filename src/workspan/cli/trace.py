"""``workspan trace``: a run as a file that opens in Perfetto, or as spans to a collector."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from workspan.arguments import at_least
from workspan.cli import exits
from workspan.cli.terminal import remark, say
from workspan.errors import ConfigurationError
from workspan.views.format import count, size

if TYPE_CHECKING:
    from workspan.report.trace import Trace
    from workspan.views.trace import Lanes

GZIP = ".gz"


def run(path: str, *, out: Path, lanes: Lanes, limit: int, compress: bool, otlp: str | None) -> int:
    """Write the trace of what is recorded at *path*, or send it.

    Raises
    ------
    ConfigurationError
        Nothing is recorded there, or no block's times are; or the file is a folder.
    MissingExtraError
        Spans are to be sent and the extra is not installed.
    """
    from workspan.report.recorded import find
    from workspan.report.trace import read_trace

    trace = read_trace(find(path), limit=at_least("--limit", limit, 1))
    if otlp is not None:
        from workspan.cli.otlp import send

        say(f"{count(send(trace, otlp), 'span')} sent to {otlp}")
    else:
        _write(trace, out, lanes, compress)
        remark(f"{out}: {count(trace.count, 'block')}, {size(out.stat().st_size)}; open it in https://ui.perfetto.dev")
    for note in trace.notes[2:]:
        remark(note)
    return exits.DONE


def _write(trace: Trace, out: Path, lanes: Lanes, compress: bool) -> None:
    """Write to a neighbour first, so that there is never half a trace under the name."""
    from workspan.report.whole import whole_file
    from workspan.views.trace import render_trace

    if out.is_dir():
        raise ConfigurationError(f"--out {str(out)!r} is a folder: name a file")
    if not out.parent.is_dir():
        raise ConfigurationError(f"--out {str(out)!r}: there is no folder {str(out.parent)!r}")
    with exits.writing("--out", out), whole_file(out) as part, _opened(part, compress or out.suffix == GZIP) as file:
        for piece in render_trace(trace, lanes=lanes):
            file.write(piece)


def _opened(path: Path, compress: bool) -> TextIO:
    if not compress:
        return open(path, "w", encoding="ascii")
    import gzip

    return gzip.open(path, "wt", compresslevel=3, encoding="ascii")
