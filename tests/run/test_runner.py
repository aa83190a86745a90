"""Running tasks: one contract for every engine."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from funlib.geometry import Roi

import workspan
from helpers.runs import line, note, run
from workspan.errors import AbandonedError, ConfigurationError, LayoutMismatchError, UsageTypeError

ENGINES = ("serial", "processes")


@pytest.mark.parametrize("engine", ENGINES)
class TestContract:
    def test_every_block_runs_once_and_is_counted_once(self, engine, tmp_path):
        """B65, B66, B125: report, states, store and files agree."""
        calls = tmp_path / "calls"
        calls.mkdir()
        task = line(12, note(calls), max_workers=2, tracking_path=tmp_path / "store", resource_tracking=True)
        report = run(task, engine)
        assert report
        assert len(list(calls.iterdir())) == 12
        blocks = report["t"].blocks
        assert (blocks.count, blocks.total, blocks.skipped, blocks.failed, blocks.failures) == (12, 12, 0, 0, 0)
        assert blocks.wall.n == blocks.cpu.n == blocks.peak_rss.n == 12
        assert len(task.report().block_records()) == 12
        assert task.report().to_json() == report["t"].to_json()

    def test_sections_ride_home_with_the_block(self, engine, tmp_path):
        """Sections opened inside a block are lines of the report, with self time and calls."""

        def work(block):
            with workspan.section("read"):
                pass
            for _ in range(2):
                with workspan.section("filter"), workspan.section("inner"):
                    pass

        task = line(5, work, tracking_path=tmp_path / "store", resource_tracking=True)
        report = run(task, engine)
        steps = report["t"].steps
        assert {name: step.calls for name, step in steps.items()} == {"read": 5, "filter": 10, "inner": 10}
        assert steps["read"].self_seconds.n == 5
        assert sum(step.self_seconds.total for step in steps.values()) <= report["t"].blocks.wall.total
        assert set(task.report().block((0,)).steps) == {"read", "filter", "inner"}

    def test_dependencies_hold_block_by_block(self, engine, tmp_path):
        """B28: a block of the second task finds the outputs of all first-task blocks that it reads."""
        data = tmp_path / "data.npy"
        np.lib.format.open_memmap(data, "w+", np.int64, (120,))[:] = 0

        def write(block):
            array = np.lib.format.open_memmap(data, "r+")
            array[block.write_roi.begin[0] : block.write_roi.end[0]] = 1

        def check(block):
            array = np.lib.format.open_memmap(data, "r")
            part = array[max(0, block.read_roi.begin[0]) : min(120, block.read_roi.end[0])]
            assert part.all()

        first = line(12, write, "first", max_workers=2)
        second = workspan.Task(
            "second",
            Roi((-5,), (130,)),
            Roi((-5,), (20,)),
            Roi((0,), (10,)),
            check,
            read_write_conflict=False,
            max_workers=2,
        )
        report = run(first + second, engine)
        assert report
        assert list(report.tasks) == ["first", "second"]

    def test_failures_are_retried_and_then_orphan_what_waits(self, engine, tmp_path):
        """B36, KF-13: same result type and counts in both engines; retries are counted in the store."""
        calls = tmp_path / "calls"
        calls.mkdir()
        count = note(calls)

        def work(block):
            attempt = count(block)
            if block.block_id[1] == 3 or (block.block_id[1] == 1 and attempt == 0):
                raise ValueError(f"bad block {block.block_id[1]}")

        first = line(5, work, "first", max_retries=1, tracking_path=tmp_path / "store")
        report = run(first + line(5, count, "second"), engine)
        assert not report
        a, b = report["first"].blocks, report["second"].blocks
        assert (a.count, a.failed, a.orphaned, a.failures) == (4, 1, 0, 3)
        assert (b.count, b.failed, b.orphaned) == (4, 0, 1)
        assert report.outcome == "incomplete"
        (failure,) = report["first"].failed_blocks
        assert failure.cell == (3,)
        assert failure.attempts == 2
        assert failure.error.endswith("ValueError: bad block 3")
        assert "in work" in failure.error
        assert [blk.block_id for blk in first.failed_blocks()] == [("first", 3)]
        assert first.report().block((1,)).failures == 1

    def test_status_failed_without_raising_fails_the_block(self, engine):
        """B44: the attempt fails, and is retried like any other."""

        def work(block):
            block.status = workspan.BlockStatus.FAILED

        blocks = run(line(2, work, max_retries=1), engine)["t"].blocks
        assert (blocks.failed, blocks.failures) == (2, 4)

    def test_a_second_run_skips_what_was_done(self, engine, tmp_path):
        """B121, KF-16, KF-20, KF-38: nothing is called, the report says skipped, and the old records stay."""
        calls = tmp_path / "calls"
        calls.mkdir()
        task = line(6, note(calls), tracking_path=tmp_path / "store", resource_tracking=True)
        run(task, engine)
        before = task.report().block_records()
        report = run(task, engine)
        assert report
        assert len(list(calls.iterdir())) == 6
        blocks = report["t"].blocks
        assert (blocks.count, blocks.skipped, blocks.round_trip.n) == (6, 6, 0)
        assert task.report().block_records() == before

    def test_only_what_is_missing_runs_again(self, engine, tmp_path):
        """B121, R24: failed blocks run again, done ones do not."""
        calls = tmp_path / "calls"
        calls.mkdir()
        count, bad = note(calls), tmp_path / "bad"
        bad.touch()

        def work(block):
            count(block)
            assert block.block_id[1] != 2 or not bad.exists()

        task = line(4, work, max_retries=0, tracking_path=tmp_path / "store")
        assert not run(task, engine)
        bad.unlink()
        assert run(task, engine)["t"].blocks.skipped == 3
        assert sorted(p.name for p in calls.iterdir()) == ["t.0.0", "t.1.0", "t.2.0", "t.2.1", "t.3.0"]

    def test_masked_blocks_are_not_run_and_not_marked(self, engine, tmp_path):
        """B50, B119: they count as skipped, unlock dependents, and the store does not call them done."""
        mask = np.array([0, 1, 0])
        task = line(3, lambda b: None, "first", skip_mask=mask, tracking_path=tmp_path / "store")
        report = run(task + line(3, lambda b: None, "second"), engine)
        assert report
        assert report["first"].blocks.skipped == 1
        assert workspan.Task.reset(task) == tmp_path / "store"
        assert not (tmp_path / "store").exists()

    def test_another_layout_is_refused_before_anything_runs(self, engine, tmp_path):
        """B115, KF-17: both layouts are told and nothing is called."""
        run(line(4, lambda b: None, tracking_path=tmp_path / "store"), engine)

        def never(block):
            raise AssertionError("ran")

        with pytest.raises(LayoutMismatchError, match="40") as caught:
            run(line(6, never, tracking_path=tmp_path / "store"), engine)
        assert "60" in str(caught.value)

    def test_nothing_to_do_is_a_success(self, engine, caplog):
        """B16, B58, KF-56: an empty list, and a region smaller than a block."""
        assert run([], engine)
        task = workspan.Task("t", Roi((0,), (5,)), Roi((0,), (10,)), Roi((0,), (10,)), lambda b: None)
        report = run(task, engine)
        assert report
        assert report["t"].blocks.total == 0
        assert "'t'" in caplog.text

    def test_a_loop_of_conflicts_gives_the_sequential_result(self, engine, tmp_path):
        """B18: with read_write_conflict, neighbours never run at the same time, so a stencil in place is safe."""
        data = tmp_path / "data.npy"
        np.lib.format.open_memmap(data, "w+", np.int64, (100,))[:] = 0

        def work(block):
            array = np.lib.format.open_memmap(data, "r+")
            roi = block.read_roi
            array[roi.begin[0] : roi.end[0]] += 1

        report = run(line(9, work, context=5, max_workers=2), engine)
        assert report
        result = np.load(data)
        assert result.sum() == 9 * 20


class TestReturnValues:
    def test_the_answer_is_a_plain_bool(self):
        """B66, D13: True only if everything completed."""
        good, bad = line(2, lambda b: None), line(2, lambda b: 1 / 0, max_retries=0)
        for task, answer in ((good, True), (bad, False)):
            assert workspan.run_blockwise(task, engine="serial", progress=False, summary=False) is answer
            states = workspan.run_blockwise(task, engine="serial", progress=False, summary=False, return_states=True)
            assert (states["t"].completed_count == 2) is answer

    def test_bad_arguments_are_refused(self):
        """B65, D39: what cannot be run, and engines that do not exist, are named."""
        with pytest.raises(TypeError, match="5 cannot be run"):
            workspan.run_blockwise(5)
        with pytest.raises(ConfigurationError, match="engine='threads' is not known: use one of 'processes', 'serial'"):
            run(line(1, lambda b: None), "threads")
        with pytest.raises(UsageTypeError, match="contradict"):
            workspan.run_blockwise(line(1, lambda b: None), multiprocessing=False, engine="serial")
        with pytest.raises(ConfigurationError, match=r"resource_tracking=True but no folder"):
            run(line(1, lambda b: None, resource_tracking=True))
        for kwargs in ({"engine": "serial"}, {"multiprocessing": False}):
            with pytest.raises(ConfigurationError, match=r"host='10\.0\.0\.1': no worker can connect to"):
                workspan.run_blockwise(line(1, lambda b: None), host="10.0.0.1", **kwargs)

    def test_two_tasks_cannot_share_a_store(self, tmp_path):
        """The folder and both tasks are named."""
        a, b = (line(1, lambda b: None, name, tracking_path=tmp_path / "s") for name in "ab")
        with pytest.raises(ConfigurationError, match="'a' and 'b' share"):
            run(a | b)


class TestRefusals:
    @pytest.mark.parametrize("kwargs", [{"engine": "serial"}, {"multiprocessing": False}], ids=str)
    def test_what_needs_clients_is_refused_where_none_can_connect(self, kwargs):
        """B69, B86: in the calling thread there is nothing to connect to: the run would wait for ever."""
        with pytest.raises(ConfigurationError, match="'t' has no process_function, and no client can connect to"):
            workspan.run_blockwise(line(2, None), progress=False, **kwargs)
        with pytest.raises(ConfigurationError, match=r"task 't' is a worker function, .* none can connect to"):
            workspan.run_blockwise(line(2, lambda: None), progress=False, **kwargs)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"resources": {"gpu": 0}},
            {"resources": 5},
            {"progress": "yes"},
            {"engine": "threads"},
        ],
        ids=lambda kwargs: next(iter(kwargs)),
    )
    def test_a_refused_run_leaves_nothing_behind(self, tmp_path, logs, kwargs):
        """D39: no store, no report line, no lock; the same task runs right afterwards."""
        task = line(2, lambda b: None, tracking_path=tmp_path / "store", requires={"gpu": 1})
        try:
            workspan.run_blockwise(task, **{"engine": "serial", "progress": False, **kwargs})
        except (ValueError, TypeError) as error:
            kept = error
        assert not (tmp_path / "store").exists()
        assert task.report() is None
        assert not list(tmp_path.glob("*store*"))
        assert run(task, resources={"gpu": 1}), kept

    def test_a_function_that_cannot_be_sent_leaves_no_store(self, tmp_path):
        """B73, D39: the engine refuses after the stores were made, and they are removed again."""
        task = line(2, functools.partial(lambda lock, b: None, threading.Lock()), tracking_path=tmp_path / "store")
        with pytest.raises(RuntimeError):
            run(task, "processes")
        assert not list(tmp_path.glob("*store*"))

    def test_a_store_that_is_refused_takes_no_other_with_it(self, tmp_path):
        """B115: a second task with another layout is refused; the first one's store is not left half-made, and an old
        one stays.
        """
        run(line(4, lambda b: None, "b", tracking_path=tmp_path / "b"))
        pair = line(3, lambda b: None, "a", tracking_path=tmp_path / "a") | line(
            3, lambda b: None, "b", tracking_path=tmp_path / "b"
        )
        with pytest.raises(LayoutMismatchError):
            run(pair)
        assert not (tmp_path / "a").exists()
        assert run(line(4, lambda b: None, "b", tracking_path=tmp_path / "b"))["b"].blocks.skipped == 4


class TestErrors:
    @pytest.mark.parametrize("mode", ["serial", "debug"])
    def test_a_store_that_fails_on_the_last_block_leaves_it_undone(self, tmp_path, monkeypatch, mode):
        """R25, B125: what was not recorded is not counted, in states, report and outcome."""
        from workspan.errors import StoreFullError
        from workspan.store.tracking import TrackingStore

        record = TrackingStore.record_done

        def fails(store, index, *args):
            if index == 3:
                raise StoreFullError("the disk is full")
            record(store, index, *args)

        monkeypatch.setattr(TrackingStore, "record_done", fails)
        task = line(4, lambda b: None, tracking_path=tmp_path / "store")
        how = {"multiprocessing": False} if mode == "debug" else {"engine": mode}
        with pytest.raises(StoreFullError) as caught:
            workspan.run_blockwise(task, progress=False, summary=False, **how)
        assert caught.value.task_states["t"].completed_count == 3
        assert caught.value.run_report["t"].blocks.count == 3
        assert caught.value.run_report.outcome == task.report().outcome == "error"

    def test_the_users_error_is_not_hidden_by_a_later_one(self, tmp_path, monkeypatch):
        """B69: a store that fails while it is closed is logged; the exception of the block reaches the caller."""
        from workspan.errors import StoreFullError
        from workspan.store.tracking import TrackingStore

        close = TrackingStore.close

        def fails(store):
            close(store)
            raise StoreFullError("the disk is full")

        monkeypatch.setattr(TrackingStore, "close", fails)
        task = line(2, lambda b: {}["mine"], tracking_path=tmp_path / "store")
        with pytest.raises(KeyError, match="mine") as caught:
            workspan.run_blockwise(task, multiprocessing=False, progress=False, summary=False)
        assert caught.value.daisy_states["t"].total_block_count == 2

    def test_an_exception_that_refuses_attributes_is_raised_unchanged(self):
        """B69: the record is attached only if the exception allows it."""

        @dataclass(frozen=True)
        class Frozen(Exception):
            code: int = 3

        raised = Frozen()

        def work(block):
            raise raised

        with pytest.raises(Frozen) as caught:
            workspan.run_blockwise(line(1, work), multiprocessing=False, progress=False, summary=False)
        assert caught.value is raised

    def test_an_exit_in_debug_mode_is_a_counted_failure(self):
        """D4, R13: SystemExit reaches the caller, and the attempt is counted."""
        task = line(2, lambda b: sys.exit(4))
        with pytest.raises(SystemExit) as caught:
            workspan.run_blockwise(task, multiprocessing=False, progress=False, summary=False)
        assert caught.value.code == 4
        assert task.report().blocks.failures == 1


class TestReports:
    def test_the_newest_run_is_reported_wherever_it_was_kept(self, tmp_path):
        """B148: a run without tracking after one with it is the last one."""
        task = line(2, lambda b: None, tracking_path=tmp_path / "store")
        run(task)
        last = run(task, block_tracking=False)
        assert task.report().run_id == last.run_id
        again = line(2, lambda b: None, tracking_path=tmp_path / "store")
        assert again.report().run_id == last.run_id


class TestDebugMode:
    def test_the_first_exception_reaches_the_caller_unchanged(self, tmp_path):
        """B69, KF-27: the original object with the user's frame, after one call; the attempt is counted."""
        raised = KeyError("mine")
        calls = []

        def work(block):
            calls.append(block.block_id[1])
            if block.block_id[1] == 1:
                raise raised

        task = line(4, work, max_retries=3, tracking_path=tmp_path / "store")
        with pytest.raises(KeyError) as caught:
            workspan.run_blockwise(task, multiprocessing=False, progress=False, summary=False)
        assert caught.value is raised
        assert calls == [0, 1]
        assert any(entry.name == "work" for entry in caught.traceback)
        assert task.report().outcome == "error"
        assert task.report().blocks.failures == 1
        assert caught.value.run_report["t"].blocks.count == 1

    def test_it_has_no_workers(self):
        """B143: no worker records and no round trips."""
        report = workspan.run_blockwise(
            line(3, lambda b: None), multiprocessing=False, progress=False, summary=False, return_report=True
        )
        assert (report["t"].workers.count, report["t"].blocks.round_trip.n) == (0, 0)


class TestCheckFunctions:
    def test_what_is_found_done_is_skipped_and_remembered(self, tmp_path):
        """B35, B119: skipped by the check function, marked done in the store, so that it is not asked again."""
        asked = []

        def check(block):
            asked.append(block.block_id[1])
            return block.block_id[1] % 2 == 0

        for engine in ENGINES:
            store = tmp_path / engine
            with pytest.warns(UserWarning, match="tracking_path"):
                task = line(6, lambda b: None, check_function=check, tracking_path=store)
            report = run(task, engine)
            assert (report["t"].blocks.count, report["t"].blocks.skipped) == (6, 3)
            assert sorted(asked) == list(range(6))
            asked.clear()
            assert run(task, engine)["t"].blocks.skipped == 6
            assert asked == []

    def test_an_exit_in_a_check_function_means_not_done(self):
        """B46: SystemExit ends neither the thread that answers nor the run; in this thread it is the caller's."""

        def check(block):
            raise SystemExit(3)

        with pytest.warns(UserWarning, match="tracking_path"):
            task = line(3, lambda b: None, check_function=check)
        assert run(task, "processes")["t"].blocks.skipped == 0
        with pytest.raises(SystemExit):
            run(task, "serial")

    def test_a_slow_check_does_not_stall_the_workers(self):
        """W18: the check of the fifth block waits for the first four to be done, and the run goes on."""
        four_done = threading.Event()

        class Watch:
            def on_start(self, states):
                pass

            def on_progress(self, states):
                if states["t"].completed_count >= 4:
                    four_done.set()

            on_finish = on_progress

        def check(block):
            return block.block_id[1] == 4 and four_done.wait(30) and False

        with pytest.warns(UserWarning, match="tracking_path"):
            task = line(8, lambda b: None, check_function=check, max_workers=2)
        report = workspan.run_blockwise(task, progress=Watch(), summary=False, return_report=True)
        assert report
        assert four_done.is_set()


class TestSerialEngine:
    def test_blocks_that_wait_for_their_turn_are_not_over_their_timeout(self):
        """B48, D18: there are no deadlines, and a block's time begins when the one before it returned."""
        pause = threading.Event()
        task = line(4, lambda b: pause.wait(0.05) and None, max_workers=4, timeout=0.08, max_retries=0)
        report = run(task)
        assert report
        # Counted from their grants, all made at the begin, they would sum up to more than the run took.
        assert 4 * 0.05 <= report["t"].work_seconds <= report["t"].wall_seconds


class TestWorkers:
    def test_the_timeline_covers_the_run(self):
        """B136-B141: every worker has startup, compute and a clean exit with its teardown."""
        report = run(line(20, lambda b: None, max_workers=2), "processes")["t"]
        assert report.workers.count == 2
        assert report.workers.exits == {"clean": 2}
        for record in report.workers.records:
            assert 0 < record.startup < report.wall_seconds
            assert record.teardown is not None
            assert record.compute.n == record.blocks == record.idle.n
        assert sum(record.blocks for record in report.workers.records) == 20

    def test_a_killed_worker_costs_one_attempt(self, tmp_path):
        """R1, KF-15: SIGKILL in mid-block; the block runs again elsewhere, and everything completes."""
        flag = tmp_path / "killed"

        def work(block):
            if block.block_id[1] == 3 and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        task = line(8, work, max_workers=2, tracking_path=tmp_path / "store", resource_tracking=True)
        report = run(task, "processes")
        assert report
        assert report["t"].blocks.failures == 1
        exits = report["t"].workers.exits
        assert exits.pop("error") == 1
        # Two at a time: the other one, and as many new ones as were worth while for what the dead one had left.
        assert exits in ({"clean": 2}, {"clean": 3})
        assert task.report().block((3,)).failures == 1

    def test_workers_that_die_at_every_block_end_the_run(self):
        """R5, R14, KF-14: os._exit(0) is a loss; the losses share the retries, and the run ends by itself."""
        task = line(3, lambda b: os._exit(0), max_workers=2, max_retries=1)
        report = run(task, "processes")
        blocks = report["t"].blocks
        assert (blocks.count, blocks.failed, blocks.failures) == (0, 3, 6)
        assert "exit code 0" in report["t"].failed_blocks[0].error

    def test_an_exhausted_start_budget_abandons_the_task(self):
        """B62, B63, KF-14: the error names task, reason, counts and the last worker error, and carries the report."""
        task = line(10, lambda b: os._exit(1), max_workers=2, max_worker_restarts=1, max_retries=9)
        with pytest.raises(AbandonedError) as caught:
            run(task, "processes")
        text = str(caught.value)
        assert "'t' was abandoned: worker restart cap exhausted" in text
        assert "10 of 10 blocks orphaned" in text
        assert "exit code 1" in text
        assert caught.value.run_report.outcome == "abandoned"
        assert caught.value.daisy_states["t"].worker_start_count == 3
        assert task.report().outcome == "abandoned"

    def test_a_block_over_its_timeout_is_retried_and_its_process_is_gone(self, tmp_path):
        """B84, R7, KF-24: the deadline ends a sleeping block; the others are done."""
        pids = tmp_path / "pids"
        pids.mkdir()

        def work(block):
            if block.block_id[1] == 2:
                (pids / str(os.getpid())).touch()
                signal.pause()

        task = line(4, work, max_workers=2, max_retries=1, timeout=0.5)
        report = run(task, "processes")["t"]
        assert (report.blocks.count, report.blocks.failed, report.blocks.failures) == (3, 1, 2)
        assert report.workers.exits["timeout"] == 2
        assert report.failed_blocks[0].cause == "timeout"
        for path in pids.iterdir():
            with pytest.raises(ProcessLookupError):
                os.kill(int(path.name), 0)

    def test_an_unserialisable_function_is_refused_before_anything_starts(self):
        """B73: the error names the function and the remedies."""
        lock = threading.Lock()

        def work(block, lock=lock):
            return lock

        with pytest.raises(RuntimeError, match=r"work"):
            run(line(1, work), "processes")
