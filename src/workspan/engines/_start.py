"""The first lines of a worker process: run as a script, before anything of this package can be imported.

The worker's import path is the driver's, whatever made it (an editable install, a notebook, a path set by hand), so it
has to be restored before the first import. Until then only builtin modules are used.
"""

import marshal
import os
import sys

HEAD_BYTES = 8
STDIN = 0


def read_exactly(descriptor: int, size: int) -> bytes:
    """Read *size* bytes; end the process if the stream ends before: then the driver is gone."""
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            os._exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def take() -> tuple[dict[str, object], bytes]:
    """Take the payload from standard input, and the import path from that: return settings and packed function."""
    head_size = int.from_bytes(read_exactly(STDIN, HEAD_BYTES), "big")
    function_size = int.from_bytes(read_exactly(STDIN, HEAD_BYTES), "big")
    settings = marshal.loads(read_exactly(STDIN, head_size))
    function = read_exactly(STDIN, function_size)
    sys.path[:] = settings["sys_path"]
    return settings, function


def main() -> None:
    """Take the payload from standard input and hand over to the worker's loop, or first to that of a fork server."""
    settings, function = take()
    if "preload" in settings:
        from workspan.engines.fork_home import serve, take_over

        descriptors = serve(settings)  # comes back in workers only
        settings, function = take()
        words = ("workspan-worker", str(settings["worker"]), str(settings["task_id"]))
        take_over(settings["environment"], *words)  # type: ignore[arg-type]
        settings["descriptors"] = descriptors

    from workspan.engines.worker import run_worker

    sys.exit(run_worker(settings, function))


if __name__ == "__main__":
    main()
