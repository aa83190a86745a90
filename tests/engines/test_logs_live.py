"""Logs of live workers, from the worker's print to the driver's stream."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from helpers.engine_kit import wait_until
from workspan.engines import Processes
from workspan.engines.failure import TracebackStyle, use_style


def test_output_is_shown_while_the_block_runs(make_run, log_dir, gate, capfdbinary):
    """In mode "both" a line is in the file and on the driver's stream before its block ends (B107)."""
    entered, release = gate("entered"), gate("release")

    def hold(block):
        print("half way")
        print("trouble", file=sys.stderr)
        Path(entered.path).write_text("here\n")
        Path(release.path).read_text()
        print("unfinished", end="")

    run = make_run(Processes(), hold, shows_logs=True)
    run.start()
    run.engine.send(0, 0)
    run.engine.poll(0)
    entered.wait()
    out = err = b""

    def is_shown():
        nonlocal out, err
        run.engine.poll(0.05)
        shown = capfdbinary.readouterr()
        out, err = out + shown.out, err + shown.err
        return (out, err) == (b"half way\n", b"trouble\n")

    wait_until(is_shown, "both lines are shown")
    release.open()
    assert run.returned().ok
    run.engine.close()
    assert capfdbinary.readouterr().out == b"unfinished\n"
    assert (log_dir / "task0" / "worker_0.out").read_bytes() == b"half way\nunfinished"


def test_rich_failure(make_run, log_dir):
    """A worker tells of failures in the driver's style, the same in its log and in the report (B105, B109)."""

    def fails(block):
        voxels = 17
        raise ValueError(f"look here: {voxels}")

    use_style(TracebackStyle("rich", show_locals=True))
    try:
        run = make_run(Processes(), fails)
    finally:
        use_style(TracebackStyle())
    run.start()
    error = run.block(7).error
    assert "voxels = 17" in error
    assert error.endswith("╯\nValueError: look here: 17")
    assert (log_dir / "task0" / "worker_0.err").read_text() == f"block ('task0', 7) failed\n{error}\n"


def test_a_worker_that_prints_without_end(make_run, log_dir):
    """R56: 200 MB without a line end in one block: no deadlock, and the log keeps its head and tail and says so."""

    def prints(block):
        chunk = b"\xff" * 1_000_000
        os.write(1, b"the beginning")
        for _ in range(200):
            os.write(1, chunk)
        os.write(1, b"the end")

    run = make_run(Processes(), prints)
    run.start()
    assert run.block(0).ok
    run.engine.stop_worker(0)
    assert run.ended().clean
    log = log_dir / "task0" / "worker_0.out"
    data = log.read_bytes()
    assert len(data) < 64 << 20
    assert data.startswith(b"the beginning")
    assert data.endswith(b"the end")
    (note,) = [line for line in data.splitlines() if line.startswith(b"---- ")]
    kept = len(data) - len(note) - data.count(b"\n")
    assert b"bytes were cut here" in note
    assert int(note.split()[1].replace(b",", b"")) == 200_000_020 - kept
