"""What user code and the machine do to a run: it goes on, and says what happened."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import workspan
from helpers.engine_kit import Gate, is_gone, wait_until
from helpers.pipelines import brute_inputs, descendants
from helpers.runs import line, note, run
from workspan.errors import AbandonedError, EngineError, StalledError
from workspan.run.record import RunRecord
from workspan.run.session import Session
from workspan.schedule.dispatch import TICK_SECONDS, Dispatcher
from workspan.schedule.ledger import Ledger
from workspan.store.tracking import TrackingStore
from workspan.views.progress import Guard

FULL = os.environ.get("WORKSPAN_FULL") == "1"
ENGINES = ("serial", "processes")
POINTS = [
    ("engine", "open", 1),
    ("engine", "poll", 1),
    ("engine", "poll", 4),
    ("engine", "start_worker", 1),
    ("engine", "send", 3),
    ("engine", "stop_worker", 1),
    (Dispatcher, "start", 1),
    (Dispatcher, "handle", 4),
    (Dispatcher, "tick", 3),
    (RunRecord, "block_granted", 3),
    (RunRecord, "block_done", 3),
    (RunRecord, "attempt_failed", 1),
    (RunRecord, "worker_started", 1),
    (RunRecord, "worker_ended", 1),
    (RunRecord, "shut_down", 1),
    (TrackingStore, "flush", 1),
    (TrackingStore, "record_done", 3),
    (TrackingStore, "record_failure", 1),
    (TrackingStore, "grant", 2),
    (Session, "keep_safe", 2),
    (Session, "end", 1),
]
"""Where an internal bug may raise: owner, method, and at which call."""
COSTLY = ("handle", "block_done", "flush", "shut_down")
"""Those that are tried with worker processes, too, if not all are."""


class TestDeaths:
    def test_a_poison_block_among_a_hundred(self, calls):
        """R5, R1, D37: the block that kills each worker it meets fails after its retries, with the signal named; all
        others are done, and none of them is charged with a death.
        """
        attempt = note(calls)

        def work(block):
            attempt(block)
            if block.index == 37:
                os.kill(os.getpid(), signal.SIGKILL)

        report = run(line(100, work, max_workers=2, tracking_path=calls.parent / "store"), "processes")["t"]
        blocks = report.blocks
        assert (blocks.count, blocks.failed, blocks.orphaned, blocks.failures) == (99, 1, 0, 3)
        (failure,) = report.failed_blocks
        assert (failure.cell, failure.attempts, failure.cause) == ((37,), 3, "lost")
        assert "killed by SIGKILL" in failure.error
        assert report.workers.exits["error"] == 3
        assert len(list(calls.iterdir())) == 102
        with TrackingStore.open(calls.parent / "store", line(100, None).layout) as store:
            assert store.failures_of_blocks().tolist() == [3 if i == 37 else 0 for i in range(100)]

    def test_crashes_are_named_and_their_stacks_are_logged(self, logs):
        """R15: each crash fails its block with the signal's name, and faulthandler's dump is in the worker's log."""

        def dies(block):
            import ctypes
            import mmap
            import tempfile

            if block.index == 0:
                ctypes.string_at(0)
            elif block.index == 1:
                os.abort()
            elif block.index == 2:
                with tempfile.TemporaryFile() as file:
                    file.truncate(mmap.PAGESIZE)
                    cells = mmap.mmap(file.fileno(), mmap.PAGESIZE)
                    file.truncate(0)
                    cells[0] = 1
            elif block.index == 3:
                deep = iter(())
                for _ in range(1_000_000):
                    deep = filter(bool, deep)
                next(deep)

        report = run(line(5, dies, max_workers=2, max_retries=0), "processes")["t"]
        assert (report.blocks.count, report.blocks.failed) == (1, 4)
        names = ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGSEGV"]
        dumps = ["Segmentation fault", "Aborted", "Bus error", "Segmentation fault"]
        failures = sorted(report.failed_blocks, key=lambda failure: failure.cell)
        for failure, name, dump in zip(failures, names, dumps, strict=True):
            assert f"killed by {name}" in failure.error
            text = Path(failure.log).read_text()
            assert f"Fatal Python error: {dump}" in text
            assert "in dies" in text

    def test_every_way_to_miss_a_deadline(self, tmp_path):
        """R7, B84, KF-24: in Python, in C with the interpreter locked, stopped, deaf to SIGTERM, and with a grandchild:
        each attempt is over within its timeout and 3 s, each block is retried, and nothing is left.
        """
        pids = tmp_path / "pids"
        pids.mkdir()
        ways = ("python", "c", "stopped", "deaf", "parent")

        def work(block):
            import ctypes
            import subprocess

            way = ways[block.index]
            first = pids / f"{way}.{os.getpid()}"
            if any(path.name.startswith(f"{way}.") for path in pids.iterdir()):
                (tmp_path / f"again.{way}").touch()
                return
            first.touch()
            if way == "python":
                while True:
                    pass
            if way == "c":
                ctypes.PyDLL(None).pause()
            if way == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if way == "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if way == "parent":
                (pids / f"child.{subprocess.Popen(['sleep', '1000']).pid}").touch()
            while True:
                signal.pause()

        timeout = 1.0
        report = run(line(5, work, max_workers=5, max_retries=1, timeout=timeout), "processes")["t"]
        ended = time.time()
        assert (report.blocks.count, report.blocks.failures, report.workers.exits["timeout"]) == (5, 5, 5)
        assert sorted(path.name for path in tmp_path.glob("again.*")) == sorted(f"again.{way}" for way in ways)
        for path in pids.iterdir():
            pid = int(path.name.split(".")[1])
            wait_until(lambda pid=pid: is_gone(pid), f"{path.name} is gone", 2)
        begun = max(path.stat().st_mtime for path in pids.iterdir())
        assert ended - begun < timeout + 3 + 10  # ten for a machine that does other things

    def test_a_worker_that_locks_its_interpreter_is_not_dead(self, tmp_path):
        """R8, B90: without a timeout a block may keep the interpreter as long as it likes: there is no sign of life
        that it could fail to give.
        """
        gate, done = Gate(tmp_path / "gate"), tmp_path / "done"
        done.mkdir()
        path = gate.path.encode()

        def work(block):
            import ctypes

            if block.index == 2:
                libc = ctypes.PyDLL(None)  # which keeps the interpreter's lock
                libc.close(libc.open(path, os.O_RDONLY))
            (done / str(block.index)).touch()

        def let_go():
            # Two ticks of the scheduler after all others are done: time enough to be given up wrongly.
            wait_until(lambda: len(list(done.iterdir())) == 7, "all others are done")
            time.sleep(2 * TICK_SECONDS)
            gate.open()

        helper = threading.Thread(target=let_go)
        helper.start()
        report = run(line(8, work, max_workers=2, max_retries=0, timeout=float("inf")), "processes")["t"]
        helper.join()
        assert (report.blocks.count, report.blocks.failures) == (8, 0)
        assert report.workers.exits["clean"] == report.workers.count

    @pytest.mark.parametrize("how", ["import", "interpreter"])
    def test_workers_that_never_come_up(self, tmp_path, monkeypatch, how):
        """R10, B80, KF-14: after max_workers + max_worker_restarts starts the task is abandoned, with what the last
        one wrote, and what depends on it is orphaned; there is no endless respawn.
        """
        module = tmp_path / "never_up.py"
        module.write_text("def work(block): pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        work = importlib.import_module("never_up").work
        if how == "import":
            module.write_text("import sys\nprint('my last words', file=sys.stderr)\nimport no_such_module_anywhere\n")
            os.utime(module, (1, 1))  # not the time of the compiled file
        else:
            broken = tmp_path / "python"
            broken.write_text("#!/bin/sh\necho my last words >&2\nexit 9\n")
            broken.chmod(0o755)
            monkeypatch.setattr(sys, "executable", str(broken))
        first = line(6, work, "first", max_workers=2, max_worker_restarts=3)
        before = time.monotonic()
        try:
            with pytest.raises(AbandonedError) as caught:
                run(first + line(6, lambda block: None, "second"), "processes")
        finally:
            sys.modules.pop("never_up")
        assert time.monotonic() - before < 30
        states = caught.value.task_states
        assert (states["first"].worker_start_count, states["first"].worker_restart_count) == (5, 3)
        assert [states[name].orphaned_count for name in ("first", "second")] == [6, 6]
        assert states["second"].worker_start_count == 0
        assert caught.value.run_report["first"].blocks.failures == 0  # no block was ever begun
        text = str(caught.value)
        assert "my last words" in text
        assert ("No module named 'no_such_module_anywhere'" if how == "import" else "exit code 9") in text


@pytest.mark.parametrize("engine", ENGINES)
class TestUserCode:
    @pytest.mark.parametrize("retries", [0, 1, 2])
    def test_retries_over_three_tasks(self, engine, retries, calls, tmp_path):
        """R11, B36, D3, KF-13: a block that always raises fails after its retries, one that raises as often as it may
        does not; what waits for a failed one, and nothing else, is orphaned; the workers stay.
        """
        attempt = note(calls)

        def work(block):
            number = attempt(block)
            (calls.parent / f"pid.{block.task_id}.{os.getpid()}").touch()
            if (block.task_id, block.index) == ("a", 2):
                raise LookupError("always")
            if block.index == 1 and number < retries:
                raise ValueError(f"attempt {number}")
            if (block.task_id, block.index) == ("b", 6):
                raise ArithmeticError("later")

        tasks = [
            line(8, work, name, context=context, read_write_conflict=conflict, max_retries=retries)
            for name, context, conflict in (("a", 0, False), ("b", 4, True), ("c", 0, False))
        ]
        pipeline = workspan.Pipeline(tasks, list(itertools.pairwise(tasks)))
        report = run(pipeline, engine)
        inputs = brute_inputs(pipeline.spec())
        failed = {(0, 2)} | ({(1, 6)} - descendants(inputs, {(0, 2)}))
        orphaned = descendants(inputs, failed)
        flaky = {(n, 1) for n in range(3)} - failed - orphaned
        assert not report
        for number, task in enumerate(tasks):
            own = report[task.task_id]
            bad, lost = ({i for n, i in blocks if n == number} for blocks in (failed, orphaned))
            assert (own.blocks.failed, own.blocks.orphaned) == (len(bad), len(lost))
            assert own.blocks.count == task.layout.num_blocks - len(bad | lost)
            assert own.blocks.failures == (retries + 1) * len(bad) + retries * len(flaky & {(number, 1)})
            made = {path.name.split(".")[1] for path in calls.glob(f"{task.task_id}.*")}
            ids = {str(task.layout.block_id(i)) for i in set(range(task.layout.num_blocks)) - lost}
            assert made == ids
            for failure in own.failed_blocks:
                assert failure.attempts == retries + 1
                assert "in work" in failure.error
            if engine == "processes":
                assert own.workers.count == own.workers.exits["clean"] == 1
                assert len(list(tmp_path.glob(f"pid.{task.task_id}.*"))) == 1
        assert "LookupError: always" in report["a"].failed_blocks[0].error

    def test_odd_exceptions_fail_their_block_only(self, engine, tmp_path, capsys):
        """R12, R13, R16: whatever is raised is told, in the limit, in report, file and summary; the worker stays."""

        def work(block):
            class Unprintable(Exception):
                def __str__(self):
                    raise RuntimeError("no text")

            class Unpicklable(Exception):
                def __init__(self):
                    super().__init__(lambda: None, threading.Lock())

                def __reduce__(self):
                    raise TypeError("not by pickle")

            class Base(BaseException):
                pass

            errors = (
                lambda: Unprintable(),
                lambda: Unpicklable(),
                lambda: ValueError("x" * 10_000_000),
                lambda: ValueError("lone \ud800 surrogate \x1b[2J"),
                lambda: ExceptionGroup("several", [ValueError("one"), OSError("two")]),
                lambda: Base("base"),
                lambda: SystemExit(),
                lambda: SystemExit(0),
                lambda: SystemExit("text"),
                lambda: GeneratorExit(),
            )
            if block.index < len(errors):
                raise errors[block.index]()

        expected = [
            "Unprintable", "Unpicklable", "ValueError: xxx", r"lone \ud800 surrogate", "ValueError: one", "Base: base",
            "SystemExit", "SystemExit: 0", "SystemExit: text", "GeneratorExit",
        ]  # fmt: skip
        task = line(12, work, max_retries=0, tracking_path=tmp_path / "store")
        report = run(task, engine, summary=True)["t"]
        assert (report.blocks.count, report.blocks.failed, report.blocks.failures) == (2, 10, 10)
        failures = sorted(report.failed_blocks, key=lambda failure: failure.cell)
        for failure, text in zip(failures, expected, strict=True):
            assert text in failure.error
            assert len(failure.error.encode()) <= 64 * 1024
            assert failure.cause == "error"
        if engine == "processes":
            assert report.workers.exits == {"clean": 1, **{k: 0 for k in report.workers.exits if k != "clean"}}
        (text,) = (tmp_path / "store" / "runs.jsonl").read_text().splitlines()
        assert json.loads(text)["blocks"]["failed"] == 10
        assert task.report().to_json() == report.to_json()
        out = capsys.readouterr().out
        assert "12          2        0      10" in out
        assert "\x1b[2J" not in out

    def test_a_block_that_moves_the_process_moves_neither_store_nor_logs(self, engine, tmp_path, monkeypatch):
        """R16: relative paths are those of the start of the run, whatever user code does to folder and environment."""
        home, away = tmp_path / "home", tmp_path / "away"
        home.mkdir()
        away.mkdir()
        monkeypatch.chdir(home)
        monkeypatch.setenv("HOME", str(home))
        workspan.logging.set_log_basedir("logs")

        def work(block):
            os.chdir(away)
            os.environ["HOME"] = os.environ["TMPDIR"] = "/nowhere"
            print("here")
            if block.index == 2:
                raise ValueError("told")

        task = line(5, work, max_retries=0, tracking_path="store", resource_tracking=True)
        try:
            report = run(task, engine)["t"]
        finally:
            os.environ.pop("TMPDIR", None)
            monkeypatch.undo()
        assert (report.blocks.count, report.blocks.failed) == (4, 1)
        assert sorted(os.listdir(away)) == []
        assert {"store"} <= set(os.listdir(home)) <= {"store", "logs"}
        with TrackingStore.open(home / "store", task.layout, resource_tracking=True) as store:
            assert store.done_blocks().tolist() == [1, 1, 0, 1, 1]
        assert (home / "store" / "runs.jsonl").exists()
        if engine == "processes":
            assert (home / "logs" / "t" / "worker_0.out").read_text() == "here\n" * 5

    @pytest.mark.parametrize("hook", ["on_start", "on_progress", "on_finish"])
    def test_an_observer_that_raises_is_switched_off(self, engine, hook, caplog, monkeypatch):
        """R18: its name is logged once, it is not called again, and the run is none the worse."""
        monkeypatch.setitem(Guard.__init__.__kwdefaults__, "interval_seconds", 0.0)
        called = []

        class Broken:
            def __getattr__(self, name):
                if not name.startswith("on_"):
                    raise AttributeError(name)

                def call(states):
                    called.append(name)
                    if name == hook:
                        raise ZeroDivisionError("mine")

                return call

        assert run(line(3, lambda block: None), engine, progress=Broken())["t"].blocks.count == 3
        assert called.count(hook) == 1
        assert called[-1] == hook
        told = [record for record in caplog.records if "Broken" in record.getMessage()]
        assert len(told) == 1

    def test_a_check_that_raises_means_not_done_and_is_told_once(self, engine, calls, caplog):
        """R18, KF-16: all blocks run, in each run; the error is shown once a run, with its text."""
        attempt = note(calls)

        def check(block):
            raise TypeError("my check is wrong")

        with pytest.warns(UserWarning, match="tracking_path"):
            task = line(16, attempt, check_function=check)
        for times in (1, 2):
            report = run(task, engine)
            assert (report["t"].blocks.count, report["t"].blocks.skipped) == (16, 0)
            assert len(list(calls.iterdir())) == 16 * times
            told = [record for record in caplog.records if "my check is wrong" in record.getMessage()]
            assert len(told) == times
            assert all(record.levelno >= logging.WARNING for record in told)


class Fault(Exception):
    """An internal bug."""


def raises(*args, **kwargs):
    raise Fault("internal")


class TestInternalFaults:
    @pytest.mark.parametrize(
        ("engine", "owner", "name", "nth"),
        [
            (engine, *point)
            for engine in ENGINES
            for point in POINTS
            if engine == "serial" or FULL or point[1] in COSTLY
        ],
        ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", str(value)),
    )
    def test_a_bug_ends_the_run_with_that_error(self, engine, owner, name, nth, tmp_path, monkeypatch):
        """R23, B72: wherever it raises, the caller gets that error, no worker is left (leak fixture), what was counted
        is in the store, the store is not locked, and a later run does the rest.
        """
        from workspan.engines import Processes, Serial

        how = (Serial if engine == "serial" else Processes)()
        target = how if owner == "engine" else owner
        real, hits = getattr(target, name), []

        def faulty(*args, **kwargs):
            hits.append(1)
            if len(hits) == nth:
                raise Fault(f"internal, in {name}")
            return real(*args, **kwargs)

        def work(block):
            if block.index == 2 and not (tmp_path / "healed").exists():
                raise ValueError("an attempt that fails")

        task = line(8, work, max_workers=2, max_retries=0, tracking_path=tmp_path / "store", resource_tracking=True)
        with monkeypatch.context() as patch:
            patch.setattr(target, name, faulty)
            with pytest.raises(Fault, match=f"internal, in {name}") as caught:
                run(task, how)
        report = getattr(caught.value, "run_report", None)
        (tmp_path / "healed").touch()
        store = tmp_path / "store"
        if report is None:  # nothing had begun
            assert name == "open"
            assert not store.exists()
        elif name != "end":
            assert report.outcome == "error"
        done = 0
        if store.exists():
            with TrackingStore.open(store, task.layout, resource_tracking=True) as opened:
                done = int(opened.done_blocks().sum())
            assert done - report["t"].blocks.count in ({0, 1} if name == "block_done" else {0})
        again = run(task)["t"].blocks
        assert (again.count, again.skipped) == (8, done)

    @pytest.mark.parametrize("kwargs", [{"engine": "serial"}, {"engine": "processes"}, {"multiprocessing": False}])
    def test_a_stall_is_an_error(self, kwargs, tmp_path, monkeypatch):
        """B70: blocks that are unfinished while none is ready or in flight end the run with an error, never in silence
        and never in a hang; what was done is recorded.
        """
        monkeypatch.setattr(Ledger, "_unlock", lambda *args: None)
        task = line(6, lambda block: None, context=5, tracking_path=tmp_path / "store")
        with pytest.raises(StalledError, match="none is ready") as caught:
            workspan.run_blockwise(task, progress=False, summary=False, **kwargs)
        report = caught.value.run_report
        assert (report.outcome, report["t"].blocks.count) == ("error", 3)
        with TrackingStore.open(tmp_path / "store", task.layout) as store:
            assert store.done_blocks().sum() == 3

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_bug_in_the_views_does_not_cost_the_record(self, engine, tmp_path, monkeypatch):
        """R23: when the summary cannot be printed the run's report and store are there all the same."""
        from workspan.views import summary

        monkeypatch.setattr(summary, "render_summary", raises)
        task = line(4, lambda block: None, tracking_path=tmp_path / "store")
        with pytest.raises(Fault) as caught:
            run(task, engine, summary=True)
        assert caught.value.run_report["t"].blocks.count == 4
        assert task.report().blocks.count == 4


def test_an_engine_that_lies_is_an_error(tmp_path):
    """R23: measurements that the task needs and the engine does not bring end the run, which names block and remedy."""
    from workspan.engines import Serial
    from workspan.schedule.events import Returned

    class Forgetful(Serial):
        def poll(self, timeout):
            events = super().poll(timeout)
            return [
                Returned(e.worker, e.index, e.ok) if isinstance(e, Returned) and e.index == 2 else e for e in events
            ]

    task = line(4, lambda block: None, tracking_path=tmp_path / "store", resource_tracking=True)
    with pytest.raises(EngineError, match=r"block 2 of task 't' came back .*profile_block") as caught:
        run(task, Forgetful())
    assert caught.value.run_report["t"].blocks.count == 2
