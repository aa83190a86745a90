"""What every engine promises (see `engines/base.py`), checked on each of them."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
import weakref
from functools import partial

import pytest

from helpers.engine_kit import Run, line
from workspan.dataset.transform import plain
from workspan.engines import Job, WorkerTask, fork_server
from workspan.errors import EngineError
from workspan.grid import Block, BlockStatus
from workspan.measure.profile import BlockStats, profile_block
from workspan.measure.sections import section
from workspan.schedule.events import Ended, Ready, Returned


@pytest.fixture(autouse=True, scope="module")
def server():
    """One fork server for all of them; it is there before the leak check of the first one looks around."""
    started = fork_server.server_for(())
    if started is not None:
        assert started.wait()
    yield
    fork_server.stop_all()


def nothing(block):
    """Do nothing."""


class TestLife:
    def test_worker_reports_ready_results_and_end_in_this_order(self, make_run, engine):
        """A worker is ready once, answers each block in the order sent, and ends clean after a stop (B81)."""
        run = make_run(engine, nothing)
        run.start(3)
        for index in (5, 0, 99):
            engine.send(3, index)
        engine.stop_worker(3)
        end = run.ended(3)
        results = [Returned(3, index, True) for index in (5, 0, 99)]
        assert run.events == [Ready(3), *results, end]
        assert end.clean
        assert end.reason in ("exit code 0", "stopped")

    def test_no_event_follows_the_end(self, make_run, engine):
        """After Ended nothing more comes from a worker, whatever it is told."""
        run = make_run(engine, nothing)
        run.start()
        engine.stop_worker(0)
        run.ended()
        engine.send(0, 1)
        engine.stop_worker(0)
        engine.kill_worker(0)
        assert engine.poll(0.02) == []
        assert engine.close() == []

    def test_nothing_is_sent_after_a_stop(self, make_run, engine):
        """A block for a worker that was told to stop would be lost: the caller is told."""
        run = make_run(engine, nothing)
        run.start()
        engine.send(0, 1)
        engine.stop_worker(0)
        with pytest.raises(EngineError, match="worker 0 was told to stop: it takes no more blocks"):
            engine.send(0, 2)
        assert run.ended().clean
        assert Returned(0, 1, True) in run.events

    def test_worker_runs_what_it_holds_without_being_asked(self, make_run, engine, tmp_path):
        """Indices granted ahead run one after another without a message in between (W10)."""
        trace = tmp_path / "trace"

        def note(block):
            with trace.open("a") as file:
                file.write(f"{block.index}\n")

        run = make_run(engine, note)
        run.start()
        for index in range(10):
            engine.send(0, index)
        for index in range(10):
            assert run.returned() == Returned(0, index, True)
        assert trace.read_text().split() == [str(n) for n in range(10)]

    def test_each_worker_runs_the_function_of_its_task(self, make_run, engine):
        """The task number decides which function a worker gets."""

        def first(block):
            raise ValueError("one")

        def second(block):
            raise ValueError("two")

        run = make_run(engine, first, second)
        run.start(0, task=1)
        run.start(1, task=0)
        assert "two" in run.block(worker=0).error
        assert "one" in run.block(worker=1).error

    def test_killed_worker_loses_what_it_holds(self, make_run, engine):
        """A killed worker ends unclean and returns nothing of what it was sent afterwards."""
        run = make_run(engine, nothing)
        run.start()
        engine.kill_worker(0)
        engine.send(0, 1)
        assert not run.ended().clean
        assert [type(event) for event in run.events] == [Ready, Ended]

    def test_close_ends_all_workers_and_says_so(self, make_run, engine):
        """close() gives one Ended for every worker that is left (B72)."""
        run = make_run(engine, nothing)
        run.start(0)
        run.start(1)
        engine.stop_worker(0)
        run.ended(0)
        ends = engine.close(10)
        assert [(type(event), event.worker) for event in ends] == [(Ended, 1)]
        assert engine.close() == []

    def test_engine_can_be_opened_again(self, make_run, engine):
        """A closed engine runs the next job."""
        run = make_run(engine, nothing)
        run.start()
        engine.close()
        again = Run(engine, Job("again", (WorkerTask("task", line(), nothing),)))
        again.start()
        assert again.block(4) == Returned(0, 4, True)

    def test_context_manager_closes(self, engine):
        """Leaving the `with` block ends the workers (checked by the leak fixture)."""
        with engine:
            Run(engine, Job("run", (WorkerTask("task", line(), nothing),))).start()

    def test_second_open_is_refused(self, make_run, engine):
        """One engine runs one job at a time."""
        make_run(engine, nothing)
        with pytest.raises(EngineError, match="running a job already: give each run an engine of its own"):
            engine.open(Job("second", ()))

    def test_start_before_open_is_refused(self, engine):
        """An engine that is not open says so."""
        with pytest.raises(EngineError, match=r"call open\(job\) first"):
            engine.start_worker(0, 0)


class TestPoll:
    def test_returns_empty_when_the_time_is_up(self, make_run, engine):
        """poll() waits as long as it is told, and no longer."""
        run = make_run(engine, nothing)
        run.start()
        before = time.monotonic()
        assert engine.poll(0.05) == []
        assert 0.045 <= time.monotonic() - before < 5

    def test_wake_from_another_thread(self, make_run, engine):
        """wake() ends a wait that has no limit (R22)."""
        make_run(engine, nothing)
        thread = threading.Thread(target=engine.wake)
        thread.start()
        assert engine.poll(None) == []
        thread.join()

    def test_wake_before_poll_counts_once(self, make_run, engine):
        """A wake-up that comes before poll() ends the next one only."""
        run = make_run(engine, nothing)
        engine.wake()
        engine.wake()
        assert engine.poll(None) == []
        run.start()
        assert run.block().ok

    def test_wake_of_a_closed_engine_does_nothing(self, engine):
        """wake() is safe at any time."""
        engine.wake()


class TestBlocks:
    def test_block_is_the_one_of_the_layout(self, make_run, engine, tmp_path):
        """Only the index travels; the worker computes id and regions itself, as the driver would."""
        out = tmp_path / "block"

        def describe(block):
            rois = [block.total_roi, block.read_roi, block.write_roi]
            boxes = [[*roi.begin, *roi.end] for roi in rois]
            out.write_text(json.dumps([block.index, block.block_id, block.status.name, boxes]))

        run = make_run(engine, describe)
        run.start()
        run.block(42)
        expected = Block.at(line(), 42, "task0")
        boxes = [[-2, 1002], [418, 432], [420, 430]]
        assert json.loads(out.read_text()) == [42, list(expected.block_id), "PROCESSING", boxes]

    def test_exception_fails_the_block_and_the_worker_stays(self, make_run, engine):
        """An exception ends the attempt with its traceback as text; the worker takes the next block (R11, D3)."""

        def odd(block):
            if block.index % 2:
                raise LookupError(f"no block {block.index}")

        run = make_run(engine, odd)
        run.start()
        assert [run.block(index).ok for index in (1, 2, 3)] == [False, True, False]
        error = run.events[-1].error
        assert error.splitlines()[0] == "Traceback (most recent call last):"
        assert error.endswith("LookupError: no block 3")

    @pytest.mark.parametrize("code", [None, 0, 1, "text"])
    def test_system_exit_fails_the_block(self, make_run, engine, code):
        """sys.exit() in a block is a failure, never a success, and the worker stays (R13)."""

        def leave(block):
            if block.index == 0:
                raise SystemExit(code)

        run = make_run(engine, leave)
        run.start()
        failed = run.block(0)
        assert not failed.ok
        assert failed.error.splitlines()[-1].startswith("SystemExit")
        assert run.block(1).ok

    def test_base_exceptions_fail_the_block(self, make_run, engine):
        """Exceptions that are no Exception fail the block too (R12)."""

        class Odd(BaseException):
            pass

        def raises(block):
            raise [Odd("odd"), GeneratorExit()][block.index]

        run = make_run(engine, raises)
        run.start()
        assert "Odd: odd" in run.block(0).error
        assert run.block(1).error.endswith("GeneratorExit")

    def test_a_refused_result_is_final(self, make_run, engine):
        """What the package refuses comes home in one line and says that another attempt is of no use (B36, R46)."""
        run = make_run(engine, partial(plain, where="end_task"))
        run.start()
        failed = run.block(1)
        assert (failed.ok, failed.final) == (False, True)
        assert re.fullmatch(
            "DataError: end_task returned .Block.*: return numbers, texts, lists or dicts", failed.error
        )
        assert not run.block(2).ok  # the worker stays

    def test_status_failed_fails_the_block(self, make_run, engine):
        """block.status = FAILED without raising is a failure, and does not end the worker (B44)."""

        def mark(block):
            if block.index == 0:
                block.status = BlockStatus.FAILED

        run = make_run(engine, mark)
        run.start()
        assert run.block(0) == Returned(0, 0, False, "block function set status FAILED")
        assert run.block(1).ok

    def test_return_value_is_ignored(self, make_run, engine):
        """Whatever a block function returns, also False, it has succeeded (B44)."""
        run = make_run(engine, lambda block: False)
        run.start()
        assert run.block().ok

    def test_async_function_is_a_failure(self, make_run, engine):
        """A coroutine function whose body never ran must not count as done."""

        async def work(block):
            pass

        run = make_run(engine, work)
        run.start()
        error = run.block().error
        assert "work' returned a coroutine, so its body never ran: give a plain function" in error

    def test_generator_function_is_a_failure(self, make_run, engine):
        """A generator function whose body never ran must not count as done."""

        def work(block):
            yield block

        run = make_run(engine, work)
        run.start()
        assert "returned a generator" in run.block().error

    def test_traceback_starts_at_user_code(self, make_run, engine):
        """The first frame shown is the block function's own (B109)."""

        def inner():
            raise ValueError("deep")

        def outer(block):
            inner()

        run = make_run(engine, outer)
        run.start()
        frames = [text for text in run.block().error.splitlines() if text.startswith("  File ")]
        assert [text.rpartition(" in ")[2] for text in frames] == ["outer", "inner"]

    def test_data_of_a_failed_block_is_freed(self, make_run, engine):
        """Once a failure is reported, nothing holds the arrays of the function that raised (no cycle to collect)."""
        seen = []

        class Data:
            pass

        def work(block):
            if block.index == 0:
                gc.disable()
                data = Data()
                seen.append(weakref.ref(data))
                raise ValueError
            gc.enable()
            assert seen[0]() is None

        run = make_run(engine, work)
        run.start()
        assert not run.block(0).ok
        assert run.block(1).error is None

    def test_wrong_signature_is_reported(self, make_run, engine):
        """A function that cannot be called with a block fails the block, not the engine."""
        run = make_run(engine, lambda: None)
        run.start()
        assert "takes 0 positional arguments but 1 was given" in run.block().error


class TestMeasurement:
    def test_no_statistics_unless_asked_for(self, make_run, engine):
        """Without resource tracking a block has no statistics (B126)."""
        run = make_run(engine, nothing)
        run.start()
        assert run.block().stats is None

    def test_block_is_measured(self, make_run, engine):
        """With resource tracking each block brings its own cost home, failed ones too (B126, B127)."""

        def burn(block):
            end = time.perf_counter() + 0.02
            while time.perf_counter() < end:
                pass
            if block.index:
                raise ValueError

        run = make_run(engine, burn, resource_tracking=True)
        run.start()
        for index in (0, 1):
            before = time.perf_counter()
            stats = run.block(index).stats
            assert isinstance(stats, BlockStats)
            assert 0.02 <= stats.wall_seconds <= time.perf_counter() - before

    def test_users_own_measurement_wins(self, make_run, engine):
        """What profile_block measured inside the function stands (B133)."""

        def part(block):
            with profile_block(block):
                pass
            end = time.process_time() + 0.05
            while time.process_time() < end:
                pass

        run = make_run(engine, part, resource_tracking=True)
        run.start()
        assert run.block().stats.cpu_seconds < 0.05

    @pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300, "long", None, True])
    def test_impossible_measurement_fails_the_block(self, make_run, engine, value):
        """A made-up measurement is refused with its field and value; the worker stays (R46)."""

        def pretend(block):
            if block.index == 0:
                block.stats = BlockStats(wall_seconds=value)

        run = make_run(engine, pretend, resource_tracking=True)
        run.start()
        failed = run.block(0)
        assert failed.error == f"block.stats.wall_seconds is {value!r}: a measurement is a finite number, 0 or more"
        assert failed.stats.wall_seconds >= 0
        assert run.block(1).ok

    def test_sections_ride_home(self, make_run, engine):
        """The sections that a block opened come back with it, with self time and number of calls."""

        def work(block):
            with section("outer"):
                for _ in range(3):
                    with section("inner"):
                        time.sleep(0.001)

        run = make_run(engine, work)
        run.start()
        steps = run.block().steps
        assert {name: calls for name, (_, calls) in steps.items()} == {"outer": 1, "inner": 3}
        assert steps["inner"][0] >= 0.003

    def test_no_sections_no_steps(self, make_run, engine):
        """A block that opened no section has no steps, not empty ones."""
        run = make_run(engine, nothing)
        run.start()
        assert run.block().steps is None

    def test_sections_of_one_block_are_not_the_next_ones(self, make_run, engine):
        """Each block has its own tree of sections."""

        def work(block):
            if block.index == 0:
                with section("only here"):
                    pass

        run = make_run(engine, work)
        run.start()
        assert list(run.block(0).steps) == ["only here"]
        assert run.block(1).steps is None
