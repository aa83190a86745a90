"""Ctrl-C and SIGTERM: nothing is lost, and no process survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest

from helpers.engine_kit import wait_until

SCRIPT = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    import workspan as ws

    folder, mode, grace = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    from workspan.run import interrupt, session
    session.GRACE_SECONDS = grace

    def noting(self, *signal, handle=interrupt.Interrupts._handle):
        try:
            handle(self, *signal)
        finally:
            (folder / f"signal.{self.count}").touch()

    interrupt.Interrupts._handle = noting
    ws.logging.set_log_basedir(folder / "logs")

    def work(block):
        (folder / f"began.{block.block_id[1]}.{os.getpid()}").touch()
        if block.block_id[1] >= 2 and not (folder / "go").exists():
            while True:
                time.sleep(0.01)

    task = ws.Task(
        "t", ws.Roi((0,), (60,)), ws.Roi((0,), (10,)), ws.Roi((0,), (10,)), work,
        read_write_conflict=False, max_workers=2, tracking_path=folder / "store", resource_tracking=True,
    )
    kwargs = {"multiprocessing": False} if mode == "debug" else {"engine": mode}
    try:
        ok = ws.run_blockwise(task, progress=False, **kwargs)
    except KeyboardInterrupt as stop:
        blocks = stop.run_report["t"].blocks
        print("interrupted", blocks.count, blocks.failures, stop.daisy_states["t"].completed_count, flush=True)
        sys.exit(130)
    print("ended", ok, task.report().blocks.skipped, flush=True)
    """
)


@pytest.fixture
def script(tmp_path):
    """Start the script in a mode and return the process once two blocks are done and others hang."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    started = []

    def start(mode, *, wait=True, grace=0.2):
        process = subprocess.Popen(
            [sys.executable, str(file), str(tmp_path), mode, str(grace)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        hanging = 1 if mode in ("serial", "debug") else 2
        pause = threading.Event()
        while wait and len(list(tmp_path.glob("began.[2-9].*"))) < hanging:
            assert process.poll() is None, process.communicate()
            pause.wait(0.01)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def workers(folder, driver):
    """Pids of the processes that ran blocks, without the driver's."""
    return {int(path.name.rsplit(".", 1)[1]) for path in folder.glob("began.*")} - {driver}


@pytest.mark.parametrize("mode", ["debug", "serial", "processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_run_keeps_what_was_done_and_goes_on_there(script, tmp_path, mode, number):
    """B71, R20, KF-30: exit 130 or 143, the report says interrupted, no worker survives, and the next run skips
    exactly what was done.
    """
    process = script(mode)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], (out, err)
    if number == signal.SIGINT:
        assert "interrupted 2 0 2" in out
    assert "Interrupted" in out
    assert "Traceback" not in err
    for pid in workers(tmp_path, process.pid):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert '"outcome":"interrupted"' in (tmp_path / "store" / "runs.jsonl").read_text().replace(" ", "")
    (tmp_path / "go").touch()
    out, err = script(mode, wait=False).communicate(timeout=120)
    assert "ended True 2" in out, (out, err)


def test_a_second_signal_ends_at_once(script, tmp_path):
    """B71, R20: blocks in flight get a grace of seconds, but not after a second Ctrl-C."""
    process = script("processes", grace=60)
    process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "signal.1").exists, "the first one has arrived")  # two sent together arrive as one
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert told.startswith("stopping: 2 blocks in flight have 60 s to end; Ctrl-C ends at once\n")


def test_what_is_told_of_a_stop_are_the_blocks_that_run(capsys):
    """B71: blocks that were granted ahead are taken back and not waited for, and those of a lost worker are lost."""
    from workspan.run.display import Display
    from workspan.schedule.slots import Slot

    slots = {worker: Slot(worker, 0) for worker in range(4)}
    slots[0].held += [3, 4]
    slots[1].held += [5]
    slots[1].retired = True
    slots[2].held += [6, 7]
    slots[2].gone = True
    display = Display(SimpleNamespace(dispatcher=SimpleNamespace(slots=slots)), None, told=True, summary=False)
    display.tell_stopping()
    slots[0].held.clear()
    display.tell_stopping()
    assert capsys.readouterr().err == "stopping: 1 block in flight has 5 s to end; Ctrl-C ends at once\n"


def test_a_run_in_a_thread_touches_no_signal_handler(tmp_path, monkeypatch):
    """R22, R66: outside the main thread the run works and leaves the handlers alone; in it they are restored."""
    import workspan as ws

    monkeypatch.chdir(tmp_path)
    roi = ws.Roi((0,), (10,))
    task = ws.Task("t", roi, roi, roi, lambda block: None)
    before = signal.getsignal(signal.SIGINT)
    answers = []

    def run():
        answers.append(ws.run_blockwise(task, engine="serial", progress=False, summary=False))
        answers.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    run()
    assert answers == [True] * 4


@pytest.mark.parametrize("kwargs", [{"multiprocessing": False}, {"engine": "serial"}], ids=["debug", "serial"])
class TestInThisThread:
    """Signals at the moments at which no block runs."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    def test_a_check_function_is_interrupted(self, kwargs):
        """R20: Ctrl-C ends a check function that runs, and the run."""
        import workspan as ws

        asked = []

        def check(block):
            asked.append(block)
            signal.raise_signal(signal.SIGINT)
            return True

        roi = ws.Roi((0,), (40,))
        with pytest.warns(UserWarning, match="tracking_path"):
            task = ws.Task("t", roi, ws.Roi((0,), (10,)), ws.Roi((0,), (10,)), lambda b: None, check)
        with pytest.raises(KeyboardInterrupt):
            ws.run_blockwise(task, progress=False, summary=False, **kwargs)
        assert len(asked) == 1

    def test_a_signal_while_a_block_is_recorded_waits_for_the_record(self, kwargs, tmp_path, monkeypatch):
        """B71: the block is recorded whole, also the last one; then the run is interrupted."""
        import workspan as ws
        from workspan.store.tracking import TrackingStore

        record = TrackingStore.record_done

        def signalled(store, *args):
            signal.raise_signal(signal.SIGINT)
            record(store, *args)

        monkeypatch.setattr(TrackingStore, "record_done", signalled)
        roi = ws.Roi((0,), (10,))
        task = ws.Task("t", roi, roi, roi, lambda b: None, tracking_path=tmp_path / "store")
        with pytest.raises(KeyboardInterrupt) as caught:
            ws.run_blockwise(task, progress=False, summary=False, **kwargs)
        assert caught.value.run_report["t"].blocks.count == 1
        assert task.report().block((0,)).done
