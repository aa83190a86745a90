"""The programs in which runs are started: threads, event loops, terminals, interpreters of all kinds, forks."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import psutil
import pytest

import workspan
from helpers.engine_kit import Gate, is_gone, wait_until
from helpers.runs import line, note, run
from workspan.engines import tcp
from workspan.run import session as session_module
from workspan.views.progress import Guard

ENGINES = ("serial", "processes")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


class TestThreads:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_run_in_a_thread(self, engine, monkeypatch):
        """R22, R66: outside the main thread a run works, and sets no signal handler at any time."""
        set_handlers = []
        monkeypatch.setattr(signal, "signal", lambda *args: set_handlers.append(args))
        answers = []
        thread = threading.Thread(target=lambda: answers.append(run(line(4, lambda block: None), engine)))
        thread.start()
        thread.join(40)
        assert answers[0]["t"].blocks.count == 4
        assert set_handlers == []

    def test_two_runs_at_once(self):
        """R22: runs in two threads do not get into each other's way."""
        counts = {}

        def go(count):
            counts[count] = run(line(count, lambda block: None, f"t{count}"), "processes")[f"t{count}"].blocks.count

        threads = [threading.Thread(target=go, args=(count,)) for count in (3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert counts == {3: 3, 5: 5}

    def test_a_run_in_a_thread_is_stopped_from_another(self, tmp_path, monkeypatch):
        """R22, R20: stop() ends a run whose block hangs, bounded by the grace; what was done is kept."""
        monkeypatch.setattr(session_module, "GRACE_SECONDS", 0.2)
        entered = Gate(tmp_path / "entered")
        path = entered.path

        def work(block):
            if block.index == 3:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                Path(path).write_text(f"{os.getpid()}\n")
                while True:
                    signal.pause()

        task = line(6, work, tracking_path=tmp_path / "store")
        server = workspan.Server()
        thread = threading.Thread(
            target=server.run_blockwise, args=(task,), kwargs={"progress": False, "summary": False}
        )
        thread.start()
        pid = int(entered.wait())
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
        assert is_gone(pid)
        assert server.last_report.outcome == "interrupted"
        assert (server.last_report["t"].blocks.count, server.last_report["t"].blocks.failures) == (3, 0)
        assert run(line(6, lambda block: None, tracking_path=tmp_path / "store"))["t"].blocks.skipped == 3


class TestEventLoops:
    @pytest.mark.parametrize("kwargs", [{"engine": "serial"}, {"engine": "processes"}, {"multiprocessing": False}])
    def test_inside_a_running_loop(self, kwargs):
        """R22, R66: called from a coroutine, as in a notebook, or in a thread of the loop; the loop's own handlers are
        the same afterwards, and still work.
        """
        kwargs |= {"progress": False, "summary": False}

        async def main():
            loop = asyncio.get_running_loop()
            came = asyncio.Event()
            loop.add_signal_handler(signal.SIGTERM, came.set)
            before = handlers()
            assert workspan.run_blockwise(line(3, lambda block: None), **kwargs)
            assert await asyncio.to_thread(workspan.run_blockwise, line(3, lambda block: None), **kwargs)
            assert handlers() == before
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(came.wait(), 20)
            loop.remove_signal_handler(signal.SIGTERM)

        before = handlers()
        asyncio.run(main())
        assert handlers() == before


class TestHandlers:
    @pytest.mark.parametrize("kwargs", [{"engine": "serial"}, {"engine": "processes"}, {"multiprocessing": False}])
    @pytest.mark.parametrize("end", ["done", "failed", "refused", "interrupted"])
    def test_the_handlers_after_are_those_before(self, kwargs, end):
        """R66, B71: on every path, and a signal that the program ignores stays ignored while it runs."""
        during = []

        class Watch:
            def on_start(self, states):
                during.append(handlers())
                if end == "refused":
                    raise KeyboardInterrupt

            def on_progress(self, states):
                pass

            def on_finish(self, states):
                if end == "interrupted":
                    raise KeyboardInterrupt

        def work(block):
            if end == "failed":
                raise SystemExit(1)

        def mine(number, frame):
            pass

        previous = [
            signal.signal(number, handler) for number, handler in zip(SIGNALS, (mine, signal.SIG_IGN), strict=True)
        ]
        try:
            try:
                workspan.run_blockwise(line(2, work, max_retries=0), progress=Watch(), summary=False, **kwargs)
            except (KeyboardInterrupt, SystemExit):
                assert end != "done"
            assert handlers() == [mine, signal.SIG_IGN]
        finally:
            for number, handler in zip(SIGNALS, previous, strict=True):
                signal.signal(number, handler)
        assert len(during) == 1

    @pytest.mark.parametrize("kwargs", [{"engine": "serial"}, {"engine": "processes"}, {"multiprocessing": False}])
    @pytest.mark.parametrize("raises", [True, False])
    def test_the_programs_own_handler_is_called(self, kwargs, raises, tmp_path, monkeypatch):
        """R66, R20: once, when the run has ended and is recorded; what it raises reaches the caller with the report."""
        monkeypatch.setattr(session_module, "GRACE_SECONDS", 0.1)
        called = []

        class Mine(Exception):
            pass

        def mine(number, frame):
            called.append((number, len((tmp_path / "store" / "runs.jsonl").read_text().splitlines())))
            if raises:
                raise Mine

        def work(block):
            if block.index == 1:
                os.kill(driver, signal.SIGTERM)
                while True:  # ended with its worker, or by the signal
                    time.sleep(0.01)

        driver = os.getpid()
        previous = signal.signal(signal.SIGTERM, mine)
        task = line(3, work, tracking_path=tmp_path / "store")
        try:
            with pytest.raises(Mine if raises else SystemExit) as caught:
                workspan.run_blockwise(task, progress=False, summary=False, **kwargs)
            assert signal.getsignal(signal.SIGTERM) is mine
        finally:
            signal.signal(signal.SIGTERM, previous)
        assert called == [(signal.SIGTERM, 1)]
        assert caught.value.run_report.outcome == "interrupted"
        assert caught.value.run_report["t"].blocks.count == 1


PROGRAM = """
import sys, threading, warnings
import workspan as ws

print("top level", flush=True)
FACTOR = 2
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()

class Helper:
    def twice(self, value):
        return FACTOR * value

def work(block):
    assert Helper().twice(block.index) == 2 * block.index
    assert sys.warnoptions == ["error"]
    assert [t.name for t in threading.enumerate()] == ["MainThread"]

ws.logging.set_log_basedir(None)
row, one = ws.Roi((0,), (40,)), ws.Roi((0,), (10,))
task = ws.Task("t", row, one, one, work, read_write_conflict=False, max_workers=2, max_retries=0)
print(ws.run_blockwise(task, progress=False, summary=False), flush=True)
done.set()
thread.join()
"""


@pytest.mark.parametrize("how", ["script", "-c", "stdin", "interactive"])
def test_any_kind_of_program(how, tmp_path):
    """R64, KF-29, D44: workers are fresh interpreters, so it works without a main guard and with threads that run; the
    top level runs once, and there is no warning where warnings are errors.
    """
    if how == "script":
        (tmp_path / "program.py").write_text(PROGRAM)
    words = {"script": [str(tmp_path / "program.py")], "-c": ["-c", PROGRAM], "stdin": ["-"], "interactive": ["-i"]}
    # Line by line, a blank line ends a statement.
    lines = re.sub(r"\n(?=\S)", "\n\n", PROGRAM.replace("\n\n", "\n"))
    done = subprocess.run(
        [sys.executable, "-W", "error", *words[how]],
        input={"stdin": PROGRAM, "interactive": lines}.get(how, ""),
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout == "top level\nTrue\n", done.stderr
    assert done.returncode == 0
    assert re.sub(r"^Python .*|Type .*|>>> |\.\.\. |\s", "", done.stderr, flags=re.M) == ""


TERMINAL = """
import fcntl, signal, sys, termios, time
from pathlib import Path

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import workspan as ws
from workspan.run import session
session.GRACE_SECONDS = 0.2
folder = Path(sys.argv[1])
ws.logging.set_log_basedir(folder / "logs")

def work(block):
    (folder / f"began.{block.index}").touch()
    if block.index >= 2:
        while True:
            time.sleep(0.01)

row, one = ws.Roi((0,), (400,)), ws.Roi((0,), (10,))
task = ws.Task("t", row, one, one, work, read_write_conflict=False, max_workers=2, tracking_path=folder / "store")
try:
    ws.run_blockwise(task)
except KeyboardInterrupt as stop:
    print("caught", stop.run_report["t"].blocks.count)
    sys.exit(130)
"""


def test_ctrl_c_in_a_terminal(tmp_path):
    """R21, R20, KF-30: the terminal's own Ctrl-C ends the run once and for all: no traceback of anybody, the cursor is
    shown again, the summary stands on lines of its own, the exit code is 130.
    """
    file = tmp_path / "program.py"
    file.write_text(TERMINAL)
    ours, theirs = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, b"\x28\x00\x64\x00\0\0\0\0")  # 40 rows, 100 columns
    process = subprocess.Popen(
        [sys.executable, str(file), str(tmp_path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    screen = bytearray()

    def read(seconds):
        """Take what the terminal shows; False at its end."""
        if not select.select([ours], [], [], seconds)[0]:
            return True
        try:
            screen.extend(os.read(ours, 65536))
        except OSError:  # Linux: nobody holds the other side any more
            return False
        return True

    try:
        wait_until(lambda: read(0.02) and len(list(tmp_path.glob("began.*"))) >= 4, "blocks hang", 40)
        # As long as the display is being built up the cursor may not be hidden yet.
        wait_until(lambda: read(0.02) and b"\x1b[?25l" in screen, "the display is there", 20)
        os.write(ours, b"\x03")
        end = time.monotonic() + 40
        while read(1) and time.monotonic() < end:
            pass
        assert process.wait(20) == 130, screen.decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
    text = screen.decode()
    assert "Traceback" not in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    after = text[text.rindex("\x1b[?25h") :]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", after).replace("\r\n", "\n")
    assert "Interrupted. What had been done by then:\n" in plain
    assert "\nExecution Summary\n" in plain
    assert plain.endswith("caught 2\n")
    for log in (tmp_path / "logs" / "t").iterdir():
        assert log.read_text() == ""


class TestForks:
    @pytest.mark.parametrize("kwargs", [{"engine": "serial"}, {"multiprocessing": False}], ids=["serial", "debug"])
    @pytest.mark.parametrize(("way", "code"), [("return", 0), ("exit", 7), ("raise", 1), ("interrupt", 1)])
    def test_a_copy_that_comes_back_from_a_block_runs_nothing(self, kwargs, way, code, tmp_path, calls, capfd):
        """R17, R65, B125: where blocks run in the driver's process, a copy that user code forked and forgot to end has
        no part in the run: no block, failure, report or summary twice. It ends with the code that Python would give.
        """
        parent = os.getpid()
        attempt = note(calls)
        codes = []

        def work(block):
            attempt(block)
            if block.index == 1:
                child = os.fork()
                if child:
                    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                elif way == "exit":
                    sys.exit(7)
                elif way == "raise":
                    raise ValueError("of the copy")
                elif way == "interrupt":
                    raise KeyboardInterrupt

        task = line(5, work, tracking_path=tmp_path / "store", resource_tracking=True)
        try:
            report = workspan.run_blockwise(task, progress=False, return_report=True, **kwargs)
        finally:
            if os.getpid() != parent:
                os._exit(99)
        assert codes == [code]
        assert report["t"].blocks.count == 5
        assert report["t"].blocks.failures == 0
        assert len(list(calls.iterdir())) == 5
        assert len((tmp_path / "store" / "runs.jsonl").read_text().splitlines()) == 1
        out, err = capfd.readouterr()
        assert out.count("Execution Summary") == 1
        assert {"return": "came back", "raise": "ValueError: of the copy"}.get(way, "") in err

    def test_the_program_forks_while_a_run_records(self, tmp_path, monkeypatch):
        """R65, R19: a copy of the driver that is made in mid-run, and outlives it, records nothing, holds no lock and
        keeps no worker; the run goes on as if nothing had been.
        """
        monkeypatch.setitem(Guard.__init__.__kwdefaults__, "interval_seconds", 0.0)
        copies, ready = [], Gate(tmp_path / "ready")

        class Forks:
            def on_start(self, states):
                pass

            def on_progress(self, states):
                if not copies and states["t"].completed_count:
                    pid = os.fork()
                    if not pid:
                        try:
                            signal.signal(signal.SIGTERM, signal.SIG_DFL)
                            Path(ready.path).write_text("here\n")
                            while True:
                                signal.pause()
                        finally:
                            os._exit(0)
                    copies.append(pid)

            on_finish = on_start

        task = line(60, lambda block: None, tracking_path=tmp_path / "store", resource_tracking=True, max_workers=2)
        try:
            report = run(task, "processes", progress=Forks())["t"]
            assert ready.wait() == "here"
            assert (report.blocks.count, report.blocks.failures, report.outcome) == (60, 0, "completed")
            assert set(report.workers.exits) - {"clean"} == {k for k, n in report.workers.exits.items() if not n}
            # The copy is still there, with all descriptors that the run had: the store is free all the same.
            assert run(task, "processes")["t"].blocks.skipped == 60
            assert len(task.report().block_records()) == 60
            assert len((tmp_path / "store" / "runs.jsonl").read_text().splitlines()) == 2
        finally:
            for pid in copies:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        assert copies


class TestNetwork:
    @pytest.mark.parametrize("kind", ["block", "worker"])
    def test_without_route_and_resolver(self, kind, monkeypatch, calls, caplog):
        """KF-28, R37, D26: a run on this machine needs neither; block functions need no listener at all, and clients
        get one on loopback, with a warning that says how to name an address.
        """
        attempt = note(calls)
        listening = []

        def refuse(*args):
            raise OSError(101, "Network is unreachable")

        class Watch:
            def on_start(self, states):
                pass

            on_finish = on_start

            def on_progress(self, states):
                listening.extend(c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == "LISTEN")

        def through_client():
            workspan.Client().run(attempt)

        for name in ("gethostbyname", "gethostbyname_ex", "getfqdn"):
            monkeypatch.setattr(socket, name, refuse)
        monkeypatch.setattr(tcp, "_source_of_default_route", refuse)
        monkeypatch.setitem(Guard.__init__.__kwdefaults__, "interval_seconds", 0.0)
        task = line(5, attempt if kind == "block" else through_client)
        assert run(task, "processes", progress=Watch())["t"].blocks.count == 5
        assert len(list(calls.iterdir())) == 5
        assert set(listening) == (set() if kind == "block" else {"127.0.0.1"})
        assert ("name one with host=" in caplog.text) == (kind == "worker")
