"""Where workers write, and what is read back of it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from helpers.engine_kit import Run, line
from workspan.engines import Job, Processes, WorkerTask
from workspan.engines.logs import open_log, prepare_folder, worker_log_basename
from workspan.errors import EngineError


def speak(block):
    """Write to both streams, and leave by the emergency exit if it is block 1."""
    print(f"out {block.index}")
    print(f"err {block.index}", file=sys.stderr)
    if block.index == 1:
        os._exit(1)


def test_output_goes_to_two_files_of_the_worker(make_run, log_dir):
    """A worker writes to <log_dir>/<task_id>/worker_<id>.out and .err (B106)."""
    run = make_run(Processes(), speak, speak)
    run.start(3, task=1)
    run.block(0, worker=3)
    assert (log_dir / "task1" / "worker_3.out").read_text() == "out 0\n"
    assert (log_dir / "task1" / "worker_3.err").read_text() == "err 0\n"
    assert worker_log_basename(log_dir, 3, "task1") == log_dir / "task1" / "worker_3"


def test_lines_are_there_while_the_block_runs(make_run, log_dir, gate, monkeypatch):
    """`tail -f` shows a line as soon as it is printed (B106)."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    entered, release = gate("entered"), gate("release")

    def hold(block):
        print("half way")
        Path(entered.path).write_text("here\n")
        Path(release.path).read_text()

    run = make_run(Processes(), hold)
    run.start()
    run.engine.send(0, 0)
    run.engine.poll(0)
    entered.wait()
    assert (log_dir / "task0" / "worker_0.out").read_text() == "half way\n"
    release.open()
    assert run.returned().ok


def test_later_runs_append_after_a_line_with_time_and_pid(make_run, log_dir):
    """The second run keeps the first one's output, and begins with a separator (B106)."""
    for _ in range(2):
        run = make_run(Processes(), speak)
        run.start()
        pid = run.engine._children[0].pid
        run.block(0)
        run.engine.close()
    for kind in ("out", "err"):
        text = (log_dir / "task0" / f"worker_0.{kind}").read_text()
        separator = rf"---- \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d pid {pid} ----\n"
        assert re.fullmatch(rf"{kind} 0\n{separator}{kind} 0\n", text)


def test_tail_is_of_this_worker_only(make_run):
    """What an earlier run wrote to the same file is not told as the end of this worker (B81)."""
    run = make_run(Processes(), speak)
    run.start()
    run.block(0)
    run.engine.close()
    run = make_run(Processes(), speak)
    run.start()
    run.engine.send(0, 1)
    assert run.ended().stderr_tail == "err 1"


def test_failure_is_in_the_log_once(make_run, log_dir):
    """A failed block's traceback is in the worker's log, once, from the user's first frame on (B109)."""

    def fails(block):
        raise ValueError("look here")

    run = make_run(Processes(), fails)
    run.start()
    error = run.block(7).error
    text = (log_dir / "task0" / "worker_0.err").read_text()
    assert text == f"block ('task0', 7) failed\n{error}\n"


def test_much_output_does_not_block(make_run, log_dir):
    """50 MB in one block, without a line end and not UTF-8, hold nobody up (R56)."""

    def floods(block):
        chunk = b"\xff" * 1_000_000
        for _ in range(50):
            sys.stdout.buffer.write(chunk)

    run = make_run(Processes(), floods)
    run.start()
    assert run.block().ok
    assert (log_dir / "task0" / "worker_0.out").stat().st_size == 50_000_000


def test_tail_of_a_huge_log_is_short(make_run):
    """Of a huge error stream the last 50 lines at most are told (B81, R56)."""

    def floods(block):
        for n in range(20_000):
            os.write(2, b"\xff line %d\n" % n)
        os._exit(1)

    run = make_run(Processes(), floods)
    run.start()
    run.engine.send(0, 0)
    lines = run.ended().stderr_tail.splitlines()
    assert len(lines) == 50
    assert lines[-1] == "\ufffd line 19999"


def test_odd_text_can_be_printed(make_run, log_dir, monkeypatch):
    """A print of any text works in any locale: a log must not fail a block (R16)."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    def prints(block):
        print("µ \ud800")

    run = make_run(Processes(), prints)
    run.start()
    assert run.block().error is None
    assert (log_dir / "task0" / "worker_0.out").read_text() == "\\xb5 \\ud800\n"


def test_no_log_folder_means_the_drivers_streams(tmp_path, capfd):
    """Without a log folder the output goes where the driver's goes, live (B107)."""
    with Processes() as engine:
        run = Run(engine, Job("run", (WorkerTask("task", line(), speak),)))
        run.start()
        run.block(0)
        run.engine.send(0, 1)
        end = run.ended()
    out, err = capfd.readouterr()
    assert (out, err) == ("out 0\nout 1\n", "err 0\nerr 1\n")
    assert end.stderr_tail == ""


def test_folder_that_cannot_be_made(make_run, tmp_path, log_dir):
    """A log folder that cannot be made is refused before anything starts, with path and reason (R27)."""
    log_dir.write_text("a file")
    with pytest.raises(EngineError, match=rf"the folder '{log_dir}/task0' .* cannot be made \(Not a directory\)"):
        make_run(Processes(), speak)


@pytest.mark.parametrize("task_id", ["", ".", "..", "a/b", "../x", "a\0b"])
def test_task_id_cannot_leave_the_log_folder(tmp_path, task_id):
    """No id is a way out of the log folder (R49)."""
    with pytest.raises(EngineError, match="cannot be the name of a log folder"):
        prepare_folder(tmp_path, task_id)


def test_log_that_cannot_be_opened_is_an_end(make_run, log_dir):
    """A log that cannot be opened ends that worker with the reason; nothing is raised in mid-run (R10)."""
    run = make_run(Processes(), speak)
    (log_dir / "task0" / "worker_0.err").mkdir()
    run.engine.start_worker(0, 0)
    assert re.match(r"could not be started: .*Is a directory: '.*worker_0\.err'", run.ended().reason)


def test_missing_log_has_no_tail(tmp_path):
    """A log that was removed meanwhile is no error."""
    log = open_log(prepare_folder(tmp_path, "task"), 0)
    log.close()
    log.err_path.unlink()
    assert log.tail() == ""
