"""Worker processes under everything that user code and the machine do to them."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import math
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from helpers.engine_kit import is_gone, line, wait_until
from helpers.lateness import Lateness
from workspan.engines import Job, Processes, WorkerTask
from workspan.engines import child as child_module
from workspan.engines import processes as processes_module
from workspan.errors import EngineError
from workspan.measure.sections import section
from workspan.schedule.events import Ready, Returned


def nothing(block):
    """Do nothing."""


def pid_of(run, worker=0):
    """Return the process of a worker."""
    return run.engine._children[worker].pid


@pytest.fixture
def held(make_run, gate):
    """Return a run whose worker 0 is in the middle of block 0, until the gate is opened; other blocks do nothing."""
    entered, release = gate("entered"), gate("release")

    def hold(block):
        if block.index == 0:
            Path(entered.path).write_text("here\n")
            Path(release.path).read_text()

    run = make_run(Processes(kill_seconds=0.2), hold)
    run.start()
    run.engine.send(0, 0)
    run.engine.poll(0)
    entered.wait()
    run.release = release
    return run


@pytest.fixture
def import_module(tmp_path, monkeypatch):
    """Return a function that imports a module of a given text, and one that changes the text behind its back."""
    name = "engine_test_module"
    path = tmp_path / f"{name}.py"

    def load(text):
        path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(name)

    def change(text):
        path.write_text(text)
        os.utime(path, (1, 1))  # not the time of the compiled file

    yield load, change
    sys.modules.pop(name, None)


class TestDeath:
    def test_sigkill_in_mid_block_is_seen_within_a_second(self, held):
        """The end is reported at once, with the signal's name, and no result (R1, KF-15)."""
        with Lateness() as late:
            os.kill(pid_of(held), signal.SIGKILL)
            end = held.ended()
        assert late.elapsed < 1
        assert (end.clean, end.reason, end.exit_code) == (False, "killed by SIGKILL", -9)
        assert held.of(0) == [Ready(0), end]

    def test_other_workers_go_on(self, held):
        """The death of one worker is nothing to another (contract 4)."""
        held.engine.start_worker(1, 0)
        held.until(lambda e: e == Ready(1))
        os.kill(pid_of(held), signal.SIGKILL)
        held.ended()
        held.engine.send(1, 5)
        assert held.returned(1).ok

    @pytest.mark.parametrize(("code", "reason"), [(0, "exit code 0 in the middle of a block"), (3, "exit code 3")])
    def test_os_exit_is_a_loss_whatever_the_code(self, make_run, code, reason):
        """A process that leaves in mid-block is lost, also with code 0 (R14, KF-14)."""
        run = make_run(Processes(), lambda block: os._exit(code))
        run.start()
        run.engine.send(0, 0)
        end = run.ended()
        assert (end.clean, end.reason, end.exit_code) == (False, reason, code)

    def test_exit_between_blocks_is_not_clean(self, make_run):
        """A worker that leaves without being told to has failed, although it held nothing (B81)."""

        def leave_later(block):
            def leave():
                os.read(end, 1)
                os._exit(0)

            end, other = os.pipe()
            threading.Thread(target=leave, daemon=True).start()
            globals()["other"] = other  # closed by the end of the process, or by us
            threading.Timer(0.05, os.close, [other]).start()

        run = make_run(Processes(), leave_later)
        run.start()
        run.block()
        end = run.ended()
        assert (end.clean, end.reason) == (False, "exit code 0 before it was told to stop")

    @pytest.mark.parametrize(
        ("crash", "name", "dump"),
        [
            (lambda: ctypes.string_at(0), "SIGSEGV", "Segmentation fault"),
            (os.abort, "SIGABRT", "Aborted"),
        ],
        ids=["segfault", "abort"],
    )
    def test_crash_is_named_and_dumped(self, make_run, crash, name, dump):
        """A crash in C names its signal, and Python's stack is in the log and in the report (R15)."""

        def crashes(block):
            crash()

        run = make_run(Processes(), crashes)
        run.start()
        run.engine.send(0, 0)
        end = run.ended()
        assert end.reason == f"killed by {name}"
        assert f"Fatal Python error: {dump}" in end.stderr_tail
        assert "in crashes" in end.stderr_tail

    @pytest.mark.parametrize("n", [1, 18], ids=["one result", "more than one read takes"])
    def test_results_sent_before_death_count(self, make_run, n):
        """What a worker reported before it died comes first, then its end (R4)."""

        def fails(block):
            raise ValueError("x" * 5000)

        run = make_run(Processes(), fails)
        run.start()
        child = run.engine._children[0]
        run.engine.send(0, 0)
        child.line.flush()
        wait_until(lambda: arrived(child.line.incoming) > 0, "the first result has arrived")
        size = arrived(child.line.incoming)
        assert size > 4000
        for index in range(1, n):
            run.engine.send(0, index)
        child.line.flush()
        wait_until(lambda: arrived(child.line.incoming) == n * size, "all results have arrived")
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(child.pid), "the worker is dead")
        end = run.ended()
        ready, *results, last = run.events
        assert (ready, last) == (Ready(0), end)
        assert [(type(result), result.index) for result in results] == [(Returned, index) for index in range(n)]

    def test_half_a_frame_is_dropped(self, make_run):
        """A worker killed while it sends counts as killed, and nothing of the frame is used (R3)."""

        def half(block):
            os.write(connection_of_worker(), b"\x00\x00\x00\x40half")
            os.kill(os.getpid(), 9)

        run = make_run(Processes(), half)
        run.start()
        run.engine.send(0, 0)
        assert run.ended().reason == "killed by SIGKILL"

    def test_nonsense_on_the_connection_ends_that_worker_only(self, make_run):
        """A frame that no worker sends closes the connection and kills its process (R42)."""

        def garbage(block):
            if block.index == 0:
                os.write(connection_of_worker(), b"\x00\x00\x00\x20" + bytes(40))
                time.sleep(60)

        run = make_run(Processes(kill_seconds=0.2), garbage)
        run.start(0)
        run.start(1)
        run.engine.send(0, 0)
        end = run.ended(0)
        assert re.fullmatch(
            r"broke the protocol: frame 2 was not sent by the peer .* \(killed by SIGTERM\)", end.reason
        )
        assert run.block(1, worker=1).ok

    def test_closed_connection_is_a_loss(self, make_run):
        """A worker whose connection is closed is ended: there is no way back (D35)."""

        def close(block):
            os.close(connection_of_worker())
            time.sleep(60)

        run = make_run(Processes(kill_seconds=0.2), close)
        run.start()
        run.engine.send(0, 0)
        assert run.ended().reason == "killed by SIGTERM"


class TestKill:
    def test_block_in_python(self, make_run, gate):
        """A block that never ends is ended by SIGTERM (R7)."""
        entered = gate("entered")

        def forever(block):
            Path(entered.path).write_text("here\n")
            while True:
                pass

        run = make_run(Processes(), forever)
        run.start()
        run.engine.send(0, 0)
        run.engine.poll(0)
        entered.wait()
        run.engine.kill_worker(0)
        assert run.ended().reason == "killed by SIGTERM"

    def test_block_in_c(self, make_run, gate):
        """A C call that never returns and keeps the interpreter to itself is no refuge (R7)."""
        entered = gate("entered")

        def stuck(block):
            Path(entered.path).write_text("here\n")
            ctypes.PyDLL(None).pause()  # holds the GIL

        run = make_run(Processes(), stuck)
        run.start()
        run.engine.send(0, 0)
        run.engine.poll(0)
        entered.wait()
        run.engine.kill_worker(0)
        assert run.ended().reason == "killed by SIGTERM"

    def test_stopped_process(self, held):
        """A process under SIGSTOP is ended too (R7)."""
        os.kill(pid_of(held), signal.SIGSTOP)
        wait_until(lambda: is_stopped(pid_of(held)), "the worker has stopped")
        held.engine.kill_worker(0)
        assert held.ended().reason == "killed by SIGTERM"

    def test_process_that_ignores_sigterm(self, make_run, gate):
        """SIGKILL follows SIGTERM after the time to kill (R7)."""
        entered = gate("entered")

        def deaf(block):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path(entered.path).write_text("here\n")
            signal.pause()

        run = make_run(Processes(kill_seconds=0.2), deaf)
        run.start()
        run.engine.send(0, 0)
        run.engine.poll(0)
        entered.wait()
        before = time.monotonic()
        run.engine.kill_worker(0)
        run.engine.kill_worker(0)  # once more changes nothing
        assert run.ended().reason == "killed by SIGKILL"
        assert 0.2 <= time.monotonic() - before < 2

    def test_goodbye_does_not_put_off_the_kill(self, make_run, gate):
        """A worker that was to be killed and lingers after its last block gets SIGKILL when that was due (R7)."""
        entered = gate("entered")

        def lingers(block):
            signal.signal(signal.SIGTERM, lambda *_: None)
            threading.Thread(target=time.sleep, args=(1000,)).start()
            Path(entered.path).write_text("here\n")

        run = make_run(Processes(kill_seconds=0.3), lingers)
        run.start()
        run.engine.send(0, 0)
        entered.wait()
        run.engine.stop_worker(0)
        run.engine.kill_worker(0)
        before = time.monotonic()
        assert run.ended().reason == "killed by SIGKILL"
        assert time.monotonic() - before < 10

    def test_kill_does_not_wait(self, held):
        """kill_worker returns at once; the end comes by poll."""
        os.kill(pid_of(held), signal.SIGSTOP)
        with Lateness() as late:
            held.engine.kill_worker(0)
        assert late.elapsed < 0.1
        held.ended()

    @pytest.mark.parametrize("how", ["kill", "clean", "exit", "close"])
    def test_grandchildren_die_with_the_worker(self, make_run, gate, how):
        """Whatever the worker's end, what it started ends with it (R7, R17)."""
        entered = gate("entered")

        def starts(block):
            pid = subprocess.Popen(["sleep", "1000"]).pid
            Path(entered.path).write_text(f"{pid}\n")
            if how == "exit":
                os._exit(1)

        run = make_run(Processes(), starts)
        run.start()
        run.engine.send(0, 0)
        run.engine.poll(0)
        pid = int(entered.wait())
        if how == "kill":
            run.engine.kill_worker(0)
        elif how == "clean":
            run.engine.stop_worker(0)
        if how == "close":
            run.engine.close()
        else:
            run.ended()
        wait_until(lambda: is_gone(pid), "the grandchild is gone", 10)

    def test_close_at_once_ends_a_stuck_worker(self, make_run, gate):
        """close(0) does not wait for anybody (B71: a second interrupt kills at once)."""
        entered = gate("entered")

        def deaf(block):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path(entered.path).write_text("here\n")
            signal.pause()

        run = make_run(Processes(), deaf)
        run.start()
        run.engine.send(0, 0)
        run.engine.poll(0)
        entered.wait()
        with Lateness() as late:
            (end,) = run.engine.close(0)
        assert late.elapsed < 1
        assert end.reason == "killed by SIGKILL"

    def test_close_after_grace_escalates(self, held):
        """A worker that does not finish in the grace is killed, and close() is bounded (R20)."""
        before = time.monotonic()
        with Lateness() as late:
            (end,) = held.engine.close(0.1)
        assert time.monotonic() - before >= 0.1
        assert late.elapsed < 3
        assert end.reason == "killed by SIGTERM"

    def test_interrupted_close_still_cleans_up(self, held, monkeypatch):
        """An exception in the grace, a second Ctrl-C, leaves no process (B71, B72; the leak fixture looks)."""
        pid = pid_of(held)

        def interrupt(seconds):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(held.engine, "_wait_for_ends", interrupt)
        with pytest.raises(KeyboardInterrupt):
            held.engine.close(5)
        assert is_gone(pid)
        assert held.engine.close() == []

    def test_worker_that_does_not_leave_is_killed(self, make_run, monkeypatch):
        """A worker that has said goodbye but is kept alive by a thread is ended after a time (contract 5)."""
        monkeypatch.setattr(processes_module, "EXIT_SECONDS", 0.2)

        def lingers(block):
            threading.Thread(target=time.sleep, args=(1000,)).start()

        run = make_run(Processes(), lingers)
        run.start()
        run.block()
        run.engine.stop_worker(0)
        end = run.ended()
        assert (end.clean, end.reason) == (False, "killed by SIGTERM")

    def test_close_with_grace_lets_held_blocks_finish(self, make_run):
        """The grace at the end of a run is for the blocks in flight (B71)."""
        run = make_run(Processes(), nothing)
        run.start()
        run.engine.send(0, 7)
        run.engine.send(0, 8)
        *results, end = run.engine.close(10)
        assert results == [Returned(0, 7, True), Returned(0, 8, True)]
        assert end.clean


class TestWrongDeeds:
    @pytest.mark.parametrize("index", [99, 1])
    def test_result_of_a_block_that_does_not_run(self, make_run, index):
        """A result for a block that the worker was not sent, or not yet, is refused, and ends that worker (R46)."""

        def forge(block):
            from workspan.engines import wire, worker

            gc.unfreeze()  # what a worker starts with is out of its sight
            (connection,) = [o for o in gc.get_objects() if type(o) is worker.Connection]
            connection.send(wire.Result(index, True))
            time.sleep(60)

        run = make_run(Processes(kill_seconds=0.2), forge)
        run.start()
        run.engine.send(0, 0)
        run.engine.send(0, 1)
        end = run.ended()
        assert end.reason.startswith(
            f"broke the protocol: it returned block {index}, which is not the one that it runs"
        )
        assert run.of(0) == [Ready(0), end]

    @pytest.mark.parametrize("name", ["Started", "Bye"])
    def test_message_out_of_turn(self, make_run, name):
        """A message that is valid but has no place here is refused (R46)."""

        def talk(block):
            from workspan.engines import wire, worker

            gc.unfreeze()  # what a worker starts with is out of its sight
            (connection,) = [o for o in gc.get_objects() if type(o) is worker.Connection]
            connection.send(getattr(wire, name)())
            time.sleep(60)

        run = make_run(Processes(kill_seconds=0.2), talk)
        run.start()
        run.engine.send(0, 0)
        assert run.ended().reason.startswith(f"broke the protocol: a {name} message came out of turn")

    def test_block_that_does_not_exist(self, make_run):
        """A worker refuses an index outside its layout; it does not compute a region for it."""
        run = make_run(Processes(), nothing)
        run.start()
        run.engine.send(0, 100)
        end = run.ended()
        assert (end.clean, end.reason) == (False, "exit code 1")
        assert end.stderr_tail == "worker 0: Grant(index=100) was sent, but task 'task0' has 100 blocks"

    @pytest.mark.parametrize("name", ["\ud800", "x" * 1_200_000], ids=["no text", "too long"])
    def test_section_names_that_cannot_travel(self, make_run, name):
        """A block whose sections cannot be told is done all the same, without them, and the log says so."""

        def work(block):
            with section(name):
                pass

        run = make_run(Processes(), work)
        run.start()
        assert run.block(4) == Returned(0, 4, True)
        assert log(run, "err").startswith("the sections of block 4 are left out of the report: a Result message ")


class TestIsolation:
    def test_ctrl_c_does_not_reach_workers(self, held):
        """A worker leads a session of its own and ignores SIGINT (R21, KF-30)."""
        pid = pid_of(held)
        assert os.getsid(pid) == pid
        os.kill(pid, signal.SIGINT)
        held.release.open()
        assert held.returned().ok

    def test_keyboard_interrupt_raised_by_code_fails_the_block(self, make_run):
        """KeyboardInterrupt in a worker can only come from code; the worker stays (R16)."""

        def interrupt(block):
            if block.index == 0:
                raise KeyboardInterrupt

        run = make_run(Processes(), interrupt)
        run.start()
        assert run.block(0).error.endswith("KeyboardInterrupt")
        assert run.block(1).ok

    def test_forked_copy_cannot_use_the_connection(self, make_run, gate):
        """A forked copy that returns from the block function reports nothing (R17)."""

        def forks(block):
            child = os.fork()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

        run = make_run(Processes(), forks)
        run.start()
        assert run.block(3) == Returned(0, 3, True)
        assert run.block(4) == Returned(0, 4, True)
        assert "a process forked in block ('task0', 3) came back" in log(run, "err")

    def test_forked_copy_keeps_its_exit_code(self, make_run):
        """sys.exit in a forked copy ends that copy with its code, and fails no block (R17)."""

        def forks(block):
            child = os.fork()
            if not child:
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

        run = make_run(Processes(), forks)
        run.start()
        assert run.block().ok

    def test_surviving_fork_does_not_hide_the_end(self, make_run, gate):
        """A copy in a session of its own, which outlives the worker, holds nothing of the connection (R17)."""
        entered, release = gate("entered"), gate("release")

        def daemonize(block):
            alone, tell = os.pipe()
            if os.fork() == 0:
                os.setsid()
                os.write(tell, b"x")
                Path(entered.path).write_text(f"{os.getpid()}\n")
                Path(release.path).read_text()
                os._exit(0)
            os.read(alone, 1)  # before that it would end with this process's group
            os._exit(5)

        run = make_run(Processes(), daemonize)
        run.start()
        run.engine.send(0, 0)
        run.engine.poll(0)
        pid = int(entered.wait())
        try:
            assert run.ended().exit_code == 5
        finally:
            release.open()
            wait_until(lambda: is_gone(pid), "the daemon is gone")

    def test_standard_input_is_empty(self, make_run):
        """A block that reads standard input gets nothing, and does not wait (R16)."""

        def reads(block):
            assert sys.stdin.read() == ""

        run = make_run(Processes(), reads)
        run.start()
        assert run.block() == Returned(0, 0, True)

    @pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
    @pytest.mark.parametrize("block", range(2))
    def test_closed_streams(self, make_run, stream, block):
        """A block that closes a standard stream, as object or descriptor, does at worst harm its worker (R16)."""
        number = ["stdin", "stdout", "stderr"].index(stream)

        def closes(block):
            if block.index == 0:
                getattr(sys, stream).close()
            elif block.index == 1:
                os.close(number)
            else:
                raise ValueError("after")

        run = make_run(Processes(), closes)
        run.start()
        assert run.block(block).ok
        assert run.block(2).error.endswith("ValueError: after")
        run.engine.stop_worker(0)
        assert run.ended().clean

    def test_changed_folder_and_environment_stay_in_the_worker(self, make_run, tmp_path, log_dir):
        """chdir and environ of a block reach neither the driver nor the place of later logs (R16)."""

        def wanders(block):
            os.chdir("/")
            os.environ["WORKSPAN_TEST_WANDERED"] = "1"
            print("still here")

        run = make_run(Processes(), wanders)
        run.start()
        assert run.block(0).ok
        assert run.block(1).ok
        assert "WORKSPAN_TEST_WANDERED" not in os.environ
        assert log(run, "out") == "still here\nstill here\n"

    def test_workers_load_nothing_that_user_code_does_not_need(self, make_run, log_dir):
        """A worker for a plain function starts without numpy, geometry, sockets or an event loop (D28)."""

        def check(block):
            heavy = ("numpy", "zarr", "funlib", "asyncio", "hashlib", "subprocess", "socket", "rich", "scipy")
            print(*[name for name in heavy if name in sys.modules])
            print(*[name for name in sys.modules if name.startswith(("workspan.schedule", "workspan.store"))])

        run = make_run(Processes(), check)
        run.start()
        assert run.block().ok
        assert log(run, "out") == "\n\n"


class TestSending:
    def test_waiting_worker_gets_its_block_at_once(self, make_run, gate):
        """A block for a worker that has none does not wait for the driver's next poll."""
        entered = gate("entered")

        def arrive(block):
            Path(entered.path).write_text(f"{block.index}\n")

        run = make_run(Processes(), arrive)
        run.start()
        run.engine.send(0, 6)
        assert entered.wait() == "6"
        assert run.returned().ok

    def test_more_grants_than_a_socket_holds(self, make_run, gate):
        """A worker that does not read holds nobody up; what it is sent waits in the driver (contract 5)."""
        entered, release = gate("entered"), gate("release")

        def hold(block):
            if block.index == 0:
                Path(entered.path).write_text("here\n")
                Path(release.path).read_text()

        run = make_run(Processes(), hold, layout=line(20_000))
        run.start()
        run.engine.send(0, 0)
        entered.wait()
        for index in range(1, 20_000):
            run.engine.send(0, index)
        assert run.engine.poll(0) == []
        assert run.engine._children[0].line.out, "this test needs more grants: all of them went into the socket"
        release.open()
        for index in range(20_000):
            assert run.returned() == Returned(0, index, True)


class TestStart:
    def test_missing_interpreter_is_reported_as_an_end(self, make_run, monkeypatch):
        """A worker that cannot be started ends with the reason; nothing is raised (R10)."""
        run = make_run(Processes(), nothing)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        run.engine.start_worker(0, 0)
        end = run.ended()
        assert not end.clean
        assert end.reason.startswith("could not be started: [Errno 2] No such file or directory: '/nowhere/python'")
        assert run.of(0) == [end]

    @pytest.mark.parametrize("call", ["pipe", "set_blocking"])
    def test_no_descriptor_left_is_reported_as_an_end(self, make_run, monkeypatch, call):
        """A worker that cannot be started for want of descriptors leaves none behind (leak fixture; R10)."""
        run = make_run(Processes(), nothing)

        def refuse(*args):
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(child_module.os, call, refuse)
            run.engine.start_worker(0, 0)
        assert run.ended().reason == "could not be started: [Errno 24] Too many open files"

    def test_unknown_interpreter_is_refused(self, make_run, monkeypatch):
        """A program without an interpreter of its own, an embedded one, cannot start workers and is told so."""
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(EngineError, match=r"sys\.executable is empty.*run with engine='serial'"):
            make_run(Processes(), nothing)

    def test_import_error_is_told(self, make_run, import_module):
        """A function whose module fails to import in the worker ends the worker with that error (R10)."""
        load, change = import_module
        run = make_run(Processes(), load("def work(block): pass\n").work)
        change("import no_such_module_anywhere\n")
        run.engine.start_worker(0, 0)
        end = run.ended()
        assert run.of(0) == [end]
        assert (end.clean, end.exit_code) == (False, 1)
        assert end.reason == (
            "could not start (exit code 1): ModuleNotFoundError: No module named 'no_such_module_anywhere'"
        )
        assert 'engine_test_module.py", line 1' in end.stderr_tail

    @pytest.mark.parametrize("logs", [True, False])
    def test_exit_while_importing_is_told(self, import_module, tmp_path, monkeypatch, logs):
        """sys.exit at the module level of user code ends the worker with a reason, with and without logs (R13)."""
        load, change = import_module
        task = WorkerTask("task", line(), load("def work(block): pass\n").work)
        change("import sys\nsys.exit(0)\n")
        with Processes() as engine:
            engine.open(Job("run", (task,), tmp_path / "logs" if logs else None))
            if not logs:
                monkeypatch.setattr(child_module.subprocess, "Popen", quiet_popen)
            engine.start_worker(0, 0)
            (end,) = engine.poll(20)
        assert end.reason == "could not start (exit code 1): SystemExit: 0"
        assert "sys.exit(0)" in end.stderr_tail

    def test_function_that_cannot_be_sent_is_refused_at_once(self, make_run):
        """A function around a lock is refused before anything starts, with its name and the remedies (B73)."""
        lock = threading.Lock()

        def guarded(block):
            with lock:
                pass

        message = (
            r"function '.*\.guarded' of task 'task0' cannot be sent to a worker process: TypeError: cannot "
            r"pickle '_thread\.lock' object\. Define it at module level, create locks, open files and connections "
            r"inside it instead of outside, or run with engine='serial'"
        )
        with pytest.raises(EngineError, match=message):
            make_run(Processes(), guarded)

    def test_refused_job_leaves_the_engine_usable(self, make_run):
        """After a refusal the same engine can be opened with a better job."""
        lock = threading.Lock()
        engine = Processes()
        with pytest.raises(EngineError):
            make_run(engine, lambda block: lock)
        run = make_run(engine, nothing)
        run.start()

    def test_task_without_function_has_no_workers(self, make_run):
        """A task that waits for workers of others cannot be given one (B86)."""
        run = make_run(Processes(), None)
        with pytest.raises(EngineError, match="task 'task0' has no block function"):
            run.engine.start_worker(0, 0)

    def test_number_is_used_once(self, make_run):
        """Two live workers cannot have the same number."""
        run = make_run(Processes(), nothing)
        run.start()
        with pytest.raises(EngineError, match="worker 0 was started before"):
            run.engine.start_worker(0, 0)

    def test_large_function_does_not_hold_up_the_driver(self, make_run, monkeypatch, tmp_path):
        """A payload larger than a pipe is written while the driver polls, also if nobody ever reads it (B74)."""
        big = os.urandom(5_000_000)
        deaf = tmp_path / "deaf"
        deaf.write_text("#!/bin/sh\nexec sleep 1000\n")
        deaf.chmod(0o755)

        def uses(block):
            assert len(big) == 5_000_000

        run = make_run(Processes(kill_seconds=0.2), uses)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(deaf))
            run.engine.start_worker(0, 0)
        run.engine.start_worker(1, 0)
        run.until(lambda e: e == Ready(1))
        run.engine.send(1, 0)
        assert run.returned(1).ok
        run.engine.kill_worker(0)
        assert run.ended(0).reason == "killed by SIGTERM"

    def test_worker_that_dies_before_it_took_its_payload(self, make_run, monkeypatch):
        """A process that ends at once, unread payload and all, is an end like any other (R10)."""
        big = os.urandom(5_000_000)
        run = make_run(Processes(), lambda block: big)
        monkeypatch.setattr(sys, "executable", "/bin/false")
        run.engine.start_worker(0, 0)
        assert run.ended().reason == "exit code 1"

    def test_start_has_a_deadline(self, make_run, import_module, gate):
        """KF-57: an import that hangs ends the worker, and its last words say where it was."""
        entered, release = gate("entered"), gate("release")
        load, change = import_module
        run = make_run(Processes(start_seconds=1.0), load("def work(block): pass\n").work)
        change(f"open({entered.path!r}, 'w').write('here' + chr(10))\nopen({release.path!r}).read()\n")
        run.engine.start_worker(0, 0)
        run.engine.poll(0)
        entered.wait()
        end = run.ended()
        assert run.events == [end]
        assert end.reason.startswith("did not start within 1 s: the imports of its function hang")
        assert end.reason.endswith("(killed by SIGABRT)")
        assert "Fatal Python error: Aborted" in end.stderr_tail
        assert "line 2 in <module>" in end.stderr_tail

    def test_a_worker_that_started_has_no_such_deadline(self, make_run):
        """The time to start does not run on: a worker may wait for its first block, or work on it, for longer."""
        engine = Processes(start_seconds=30.0)
        run = make_run(engine, nothing)
        run.start()
        assert engine._children[0].due == math.inf
        engine.stop_worker(0)
        assert run.ended().clean

    def test_a_worker_function_that_is_not_needed_any_more(self, make_run, monkeypatch, gate):
        """B91: told to stop before it has even started, it is given its time to come, and then ended."""
        monkeypatch.setenv("WORKSPAN_HOST", "127.0.0.1")
        monkeypatch.setattr("workspan.engines.processes.EXIT_SECONDS", 2.0)
        never = gate("never")

        def wait():
            Path(never.path).read_text()

        run = make_run(Processes(), wait, kind="worker")
        run.engine.start_worker(0, 0)
        run.engine.stop_worker(0)
        assert run.ended().reason == "killed by SIGTERM"

    def test_a_client_that_came_is_not_hurried(self, make_run, monkeypatch, gate):
        """B81, B91: what a worker function does after its client was told to stop may take longer than coming did."""
        monkeypatch.setenv("WORKSPAN_HOST", "127.0.0.1")
        told, release = gate("told"), gate("release")

        def work():
            from workspan import Client

            with Client().acquire_block() as block:
                assert block is None
            Path(told.path).write_text("told\n")
            Path(release.path).read_text()

        engine = Processes()
        run = make_run(engine, work, kind="worker")
        engine.start_worker(0, 0)
        engine.stop_worker(0)
        thread = threading.Thread(target=told.wait)
        thread.start()
        while thread.is_alive():
            engine.poll(0.01)
        thread.join()
        assert engine._children[0].due == math.inf
        release.open()
        assert run.ended().clean

    def test_stop_before_ready(self, make_run):
        """A worker that is stopped while it starts ends clean."""
        run = make_run(Processes(), nothing)
        run.engine.start_worker(0, 0)
        run.engine.stop_worker(0)
        end = run.ended()
        assert run.of(0) == [Ready(0), end]
        assert end.clean

    def test_kill_before_ready(self, make_run):
        """A worker that is killed while it starts just ends."""
        run = make_run(Processes(), nothing)
        run.engine.start_worker(0, 0)
        run.engine.kill_worker(0)
        assert run.ended().reason == "killed by SIGTERM"

    def test_other_version_is_refused(self, make_run, monkeypatch):
        """A worker of another installation is refused with both versions (B101)."""
        run = make_run(Processes(), nothing)
        monkeypatch.setattr(processes_module.wire, "VERSION", 99)
        run.engine.start_worker(0, 0)
        assert "it speaks version 1, this process version 99" in run.ended().reason


class TestKernels:
    def test_without_process_descriptors(self, make_run, monkeypatch, gate):
        """Where the kernel has no process descriptors, ends are found by looking (D14)."""
        monkeypatch.setattr(os, "pidfd_open", no_pidfd)
        run = make_run(Processes(kill_seconds=0.2), lambda block: os._exit(3) if block.index else None)
        run.start(0)
        run.start(1)
        assert run.block(0).ok
        run.engine.send(0, 1)
        assert run.ended(0).reason == "exit code 3"
        run.engine.stop_worker(1)
        assert run.ended(1).clean

    def test_exit_status_taken_by_somebody_else(self, make_run):
        """A program that ignores SIGCHLD loses exit codes, and is told so; the end is seen all the same."""
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            run = make_run(Processes(), nothing)
            run.start()
            run.engine.stop_worker(0)
            end = run.ended()
        finally:
            signal.signal(signal.SIGCHLD, before)
        assert (end.clean, end.exit_code) == (False, None)
        assert end.reason.startswith("ended; its exit status was lost, because this program ignores SIGCHLD")


def is_stopped(pid):
    """Whether a process is under SIGSTOP."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def no_pidfd(pid, flags=0):
    """Fail as an old kernel does."""
    raise OSError(38, "Function not implemented")


def arrived(connection):
    """Return the number of bytes that wait in a socket."""
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder)


def connection_of_worker():
    """Return, in a worker, the descriptor of its connection: what malicious user code can find out."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                return int(name)
        except OSError:
            pass
    raise AssertionError("no socket")


def log(run, kind, worker=0, task="task0"):
    """Return what a worker wrote."""
    return Path(run.engine._folders[0].parent, task, f"worker_{worker}.{kind}").read_text()


_popen = subprocess.Popen


def quiet_popen(*args, **kwargs):
    """Start a process without the test's own streams."""
    return _popen(*args, **{**kwargs, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})
