"""The timeline as a run records it: scheduler events at times of a fake clock, then real runs."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import workspan
from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.measure.stats import Stat
from workspan.report.aggregate import TaskAggregate
from workspan.report.parts import WorkerRecord
from workspan.report.task import TaskReport
from workspan.run.clock import RunClock
from workspan.run.record import RunRecord, TaskBook
from workspan.schedule.dispatch import Dispatcher
from workspan.schedule.events import Decision, Dropped, Ended, Event, Joined, KillWorker, Ready, Returned, StopWorker
from workspan.schedule.ledger import Ledger
from workspan.schedule.spec import PipelineSpec, TaskSpec
from workspan.store.tracking import TrackingStore


class Stage:
    """One task of *blocks* blocks in a row, its scheduler and its record; the test says what happens when."""

    def __init__(
        self, blocks: int = 3, *, conflict: bool = False, store: TrackingStore | None = None, **rules: object
    ) -> None:
        margin = int(conflict)  # then the odd blocks go first
        layout = Layout(
            (-margin,), (blocks + 2 * margin,), (-margin,), (1 + 2 * margin,), (0,), (1,), "valid", conflict
        )
        ledger = Ledger(PipelineSpec((TaskSpec("t", layout, **rules),)))
        self.tracked = store is not None
        aggregate = TaskAggregate(blocks, resource_tracking=self.tracked)
        book = TaskBook("t", layout, ledger.tasks[0].state, self.tracked, store, aggregate)
        clock = RunClock(monotonic=lambda: 100.0, epoch=lambda: 1_000_100.0)
        self.record = RunRecord("r", [book], clock, has_workers=True, log_dir=None)
        self.dispatcher = Dispatcher(ledger, self.record)
        self.dispatcher.start(100.0)

    def at(self, seconds: float, *events: Event) -> list[Decision]:
        """Let *events* happen *seconds* after the start; return what the last one led to."""
        out: list[Decision] = []
        for event in events:
            out = self.dispatcher.handle(event, 100.0 + seconds)
        return out

    def returned(
        self, seconds: float, worker: int, index: int, *, wall: float = 0.5, ok: bool = True
    ) -> list[Decision]:
        stats = BlockStats(wall) if self.tracked else None
        return self.at(seconds, Returned(worker, index, ok, None if ok else "boom", stats))

    def tick(self, seconds: float) -> list[Decision]:
        return self.dispatcher.tick(100.0 + seconds)

    def report(self, seconds: float, outcome: str | None = None) -> TaskReport:
        """The report of a run that began its shutdown, and ended, *seconds* after its start."""
        self.record.shut_down(100.0 + seconds)
        return self.record.report(outcome=outcome, ended_at=100.0 + seconds)["t"]

    def worker(self, seconds: float = 100.0, number: int = 0) -> WorkerRecord:
        return self.report(seconds).worker(number)


def only(value: float) -> Stat:
    """One sample."""
    return Stat(1, value, 0.0, value, value, value)


class TestPhases:
    """From which event to which."""

    def test_a_whole_life(self) -> None:
        """Every phase is the time between its two events, and together they are the worker's life (B136)."""
        stage = Stage(2)
        stage.at(1.5, Ready(0))
        stage.returned(3.5, 0, 0)
        assert stage.returned(7.5, 0, 1) == [StopWorker(0)]
        stage.at(8.25, Ended(0, True, "exit code 0"))
        record = stage.worker()
        assert (record.startup, record.final_wait, record.teardown, record.exit) == (1.5, 0.0, 0.75, "clean")
        assert (record.idle.n, record.idle.total) == (2, 0.0)
        assert (record.compute.n, record.compute.min, record.compute.max) == (2, 2.0, 4.0)
        assert record.startup + record.compute.total + record.teardown == 8.25

    def test_startup_runs_from_the_spawn_call_and_includes_the_queue(self) -> None:
        """An hour in a queue is an hour of startup, of each worker by itself (B136, B137)."""
        stage = Stage(4, max_workers=2)
        stage.at(3600.0, Ready(1))
        stage.at(3700.0, Ready(0))
        startup = stage.report(4000.0).workers.startup
        assert (startup.n, startup.min, startup.max) == (2, 3600.0, 3700.0)

    def test_a_client_on_demand_starts_up_until_its_first_request(self) -> None:
        """Of a worker that asks for each block, later requests are no startup, and the gaps are idle (B136, B138)."""
        stage = Stage(2)
        stage.at(2.0, Ready(0, on_demand=True))
        stage.returned(3.0, 0, 0)
        stage.at(3.25, Ready(0, on_demand=True))
        stage.returned(5.25, 0, 1)
        record = stage.worker()
        assert record.startup == 2.0
        assert (record.idle.n, record.idle.min, record.idle.max) == (2, 0.0, 0.25)
        assert (record.compute.n, record.compute.total) == (2, 3.0)

    def test_idle_includes_the_time_parked(self) -> None:
        """A worker without a block waits from its first request until one is sent: an idle sample (B137, B138)."""
        stage = Stage(3, conflict=True)
        stage.at(1.0, Joined(0, 0))  # a guest takes the only block that is ready
        stage.at(1.0, Ready(1, on_demand=True))
        stage.at(2.0, Ready(0))
        stage.returned(7.0, 1, 1)
        stage.returned(8.0, 0, 0)
        record = stage.worker()
        assert (record.idle.n, record.idle.max, record.idle.min) == (2, 5.0, 0.0)
        assert record.compute == only(1.0)

    def test_the_final_wait_is_no_idle(self) -> None:
        """What a worker waits after its last block, until it is told to end, stands by itself (B138)."""
        stage = Stage(5, conflict=True, max_retries=0)
        stage.at(1.0, Ready(0))  # block 1
        stage.at(1.0, Joined(0, 0))
        stage.at(1.0, Ready(1, on_demand=True))  # block 3, which the last two wait for
        stage.returned(2.0, 0, 1)
        stage.returned(5.0, 0, 0)
        assert stage.returned(65.0, 1, 3, ok=False) == [StopWorker(0)]
        report = stage.report(66.0)
        assert report.worker(0).final_wait == 60.0
        assert report.workers.idle == Stat(2, 0.0, 0.0, 0.0, 0.0, 0.0)
        assert report.workers.final_wait == only(60.0)

    def test_a_worker_that_got_no_block(self) -> None:
        """Without a block the final wait counts from the first request; there is no sample (B136)."""
        stage = Stage(3, conflict=True, max_retries=0)
        stage.at(1.0, Joined(0, 0))  # a guest takes the only block that is ready
        stage.at(1.0, Ready(1, on_demand=True))
        stage.at(2.0, Ready(0))
        stage.returned(7.0, 1, 1, ok=False)  # and the others will never be
        stage.at(7.5, Ended(0, True, "exit code 0"))
        record = stage.worker()
        assert (record.startup, record.final_wait, record.teardown) == (2.0, 5.0, 0.5)
        assert record.idle == record.compute == Stat()

    def test_a_request_after_the_end_of_the_run(self) -> None:
        """Who gets no answer any more has a teardown from the begin of the shutdown (B140)."""
        stage = Stage(2)
        stage.at(1.0, Ready(0, on_demand=True))
        stage.returned(2.0, 0, 0)
        stage.record.shut_down(104.0)
        stage.at(6.5, Ended(0, True, "exit code 0"))
        record = stage.worker()
        assert (record.final_wait, record.teardown, record.exit) == (2.0, 2.5, "clean")

    def test_the_drivers_own_time_is_no_compute(self) -> None:
        """An event that waited for the driver counts from its arrival: compute ends there, idle begins (B136)."""
        stage = Stage(2)
        stage.at(1.0, Ready(0))
        stage.dispatcher.handle(Returned(0, 0, True), 105.0, arrived=103.0)
        record = stage.worker()
        assert record.compute == only(2.0)
        assert (record.idle.n, record.idle.max) == (2, 2.0)


class TestFailures:
    """What goes wrong with a block."""

    def test_a_failed_block_is_computed_time_and_no_round_trip(self) -> None:
        """It counts in compute and blocks_failed, and in neither trend, round trip nor overhead (B139)."""
        stage = Stage(1, store=None)
        stage.at(1.0, Ready(0))
        stage.returned(31.0, 0, 0, ok=False)
        stage.returned(33.0, 0, 0)
        report = stage.report(40.0)
        record = report.worker(0)
        assert (record.blocks, record.blocks_failed, record.compute.n, record.compute.total) == (1, 1, 2, 32.0)
        assert report.blocks.round_trip == only(2.0)
        assert report.blocks.failures == 1

    def test_a_crash_gives_no_compute_sample(self) -> None:
        """A block lost with its worker counts in blocks_failed alone; such an end has no teardown (B139, B141)."""
        stage = Stage(1)
        stage.at(1.0, Ready(0))
        stage.at(5.0, Ended(0, False, "killed by SIGKILL"))
        report = stage.report(9.0)
        record = report.worker(0)
        assert (record.exit, record.blocks_failed, record.compute.n, record.idle.n) == ("error", 1, 0, 1)
        assert (record.teardown, record.final_wait) == (None, None)
        assert record.text == "killed by SIGKILL"
        assert report.workers.count == 2, "its replacement is a worker of its own"

    def test_a_lost_connection_is_a_lost_block(self) -> None:
        """The block is gone without a compute sample, and the worker may come back without a second startup (B139)."""
        stage = Stage(1)
        stage.at(1.0, Ready(0, on_demand=True))
        stage.at(3.0, Dropped(0, "connection closed"))
        stage.at(4.0, Ready(0, on_demand=True))
        stage.returned(6.0, 0, 0)
        record = stage.worker()
        assert (record.startup, record.blocks, record.blocks_failed, record.compute) == (1.0, 1, 1, only(2.0))

    def test_a_timeout_closes_the_worker_at_the_deadline(self) -> None:
        """A slot retired after a deadline is a timeout, whatever its process does later (B141)."""
        stage = Stage(1, timeout=60.0)
        stage.at(1.0, Ready(0))
        assert any(isinstance(decision, KillWorker) for decision in stage.tick(61.0))
        stage.at(63.0, Ended(0, False, "killed by SIGTERM"))
        record = stage.worker()
        assert (record.exit, record.teardown, record.blocks_failed, record.compute.n) == ("timeout", None, 1, 0)
        assert "timeout of 60 s" in record.text

    def test_a_death_after_the_deadline_is_a_timeout(self) -> None:
        """A client that dies late has overrun its block: the attempt is a timeout, not a loss (B84, B139)."""
        stage = Stage(1, timeout=60.0, max_retries=0)
        stage.at(1.0, Ready(0, on_demand=True))
        stage.at(70.0, Ended(0, False, "exit code 87"))
        report = stage.report(80.0)
        assert [failure.cause for failure in report.failed_blocks] == ["timeout"]
        assert report.worker(0).blocks_failed == 1

    def test_a_late_return_changes_nothing(self) -> None:
        """The result of a reclaimed block is no sample of anything (B139, R9)."""
        stage = Stage(1, timeout=60.0)
        stage.at(1.0, Ready(0))
        stage.tick(61.0)
        stage.returned(62.0, 0, 0)
        report = stage.report(99.0)
        assert report.worker(0).compute.n == report.blocks.round_trip.n == report.blocks.count == 0


class TestExits:
    """How a worker ends."""

    def test_a_worker_that_leaves_on_its_own(self) -> None:
        """A clean exit that nobody asked for has neither final wait nor teardown (B141)."""
        stage = Stage(5)
        stage.at(1.0, Ready(0, on_demand=True))
        stage.returned(2.0, 0, 0)
        stage.at(3.0, Ended(0, True, "exit code 0"))
        record = stage.worker()
        assert (record.exit, record.final_wait, record.teardown) == ("clean", None, None)

    def test_a_clean_exit_that_still_held_a_block_is_an_error(self) -> None:
        """Exit code 0 in mid-block is no clean end (R14, B141)."""
        stage = Stage(1)
        stage.at(1.0, Ready(0))
        stage.at(2.0, Ended(0, True, "exit code 0"))
        assert stage.worker().exit == "error"

    def test_a_worker_that_never_asked(self) -> None:
        """One that fails to start has no startup, no wait and no teardown (B136, B141)."""
        stage = Stage(1)
        stage.at(4.0, Ended(0, False, "exit code 1"))
        record = stage.worker()
        assert (record.startup, record.final_wait, record.teardown, record.exit) == (None, None, None, "error")

    def test_whoever_is_alive_at_an_abort_is_interrupted(self) -> None:
        """The first closure wins: a crash before the abort stays one, and so does the abort (B141)."""
        stage = Stage(9, max_workers=3)
        stage.at(1.0, Ready(0), Ready(1), Ready(2))
        stage.at(2.0, Ended(1, False, "killed by SIGSEGV"))
        stage.dispatcher.stop(103.0)
        stage.at(4.0, Ended(0, False, "killed by SIGTERM"))
        report = stage.report(5.0, outcome="interrupted")
        assert [record.exit for record in report.workers.records[:3]] == ["interrupted", "error", "interrupted"]
        assert report.workers.exits["error"] == 1
        assert report.workers.teardown.n == 0

    def test_a_guest_is_counted_and_not_timed(self) -> None:
        """A client that nobody of this run started is no worker; its blocks have a round trip (B142)."""
        stage = Stage(2, has_function=False)
        for guest in (0, 1):
            stage.at(1.0, Joined(guest, 0))
            stage.at(1.0, Ready(guest, on_demand=True))
        stage.returned(3.0, 0, 0)
        stage.at(4.0, Ended(1, True, "left"))
        report = stage.report(5.0)
        assert (report.workers.unmanaged_clients, report.workers.count, report.workers.records) == (2, 0, ())
        assert report.blocks.round_trip == only(2.0)
        assert report.workers.compute == Stat()


class TestStamps:
    """What the store keeps of it."""

    def test_stamps_are_those_of_the_attempt_that_succeeded(self, tmp_path: Path) -> None:
        """Epoch seconds from one anchor, worker and times of the second attempt, not of the first (B144)."""
        layout = Layout((0,), (1,), (0,), (1,), (0,), (1,), "valid", False)
        with TrackingStore.open(tmp_path / "t", layout, resource_tracking=True) as store:
            stage = Stage(1, store=store)
            stage.at(1.0, Ready(0))
            stage.at(5.0, Ended(0, False, "killed by SIGKILL"))
            stage.at(6.0, Ready(1))
            stage.returned(8.5, 1, 0, wall=2.25)
            record = store.block((0,))
        assert (record.worker_id, record.sent_at, record.returned_at) == (1, 1_000_106.0, 1_000_108.5)
        assert record.failures == 1
        blocks = stage.report(9.0).blocks
        assert (blocks.overhead, blocks.wall) == (only(0.25), only(2.25))

    def test_a_guest_has_no_number_in_the_store(self, tmp_path: Path) -> None:
        """The store says that no managed worker did the block (B142)."""
        layout = Layout((0,), (1,), (0,), (1,), (0,), (1,), "valid", False)
        with TrackingStore.open(tmp_path / "t", layout, resource_tracking=True) as store:
            stage = Stage(1, store=store, has_function=False)
            stage.at(1.0, Joined(0, 0), Ready(0, on_demand=True))
            stage.returned(2.0, 0, 0)
            assert store.block((0,)).worker_id is None
            assert store.block((0,)).returned_at == 1_000_102.0


def compute(block: workspan.Block) -> None:
    """Take some milliseconds."""
    with workspan.section("compute"):
        sum(range(200_000))


CLIENT = """
import workspan

client = workspan.Client()
while True:
    with client.acquire_block() as block:
        if block is None:
            break
        with workspan.section("compute"):
            sum(range(200_000))
"""


@pytest.fixture
def task(tmp_path: Path):
    """Return a function that makes a task of eight blocks, whose workers are of one of three kinds."""
    workspan.logging.set_log_basedir(tmp_path / "logs")
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    command = [sys.executable, str(script)]

    def start_worker() -> None:
        subprocess.run(command, check=True)

    def make(kind: str) -> workspan.Task:
        roi = workspan.Roi((0,), (1,))
        return workspan.Task(
            kind,
            workspan.Roi((0,), (8,)),
            roi,
            roi,
            start_worker if kind == "client" else compute,
            read_write_conflict=False,
            max_workers=2,
            tracking_path=tmp_path / kind,
            resource_tracking=True,
        )

    yield make
    workspan.logging.set_log_basedir("./workspan_logs")


def run(task: workspan.Task, engine: str) -> TaskReport:
    """Run a task and return its report."""
    report = workspan.run_blockwise(task, engine=engine, progress=False, summary=False, return_report=True)
    assert report
    return report[task.task_id]


@pytest.mark.parametrize("kind", ["processes", "client"])
def test_a_real_run_has_a_whole_timeline(task, kind: str) -> None:
    """Own workers and clients alike: every phase is there, in its order, and fills the worker's life (B126, B136)."""
    report = run(task(kind), "processes")
    assert report.workers.exits == {"clean": report.workers.count}
    assert sum(record.blocks for record in report.workers.records) == report.blocks.count == 8
    assert report.workers.idle.n == report.workers.compute.n == report.blocks.round_trip.n == 8
    for record in report.workers.records:
        assert record.startup > 0
        assert record.teardown is not None
        phases = record.startup + record.idle.total + record.compute.total + (record.final_wait or 0) + record.teardown
        assert phases <= report.wall_seconds + 1e-6
    busiest = max(report.workers.records, key=lambda record: record.blocks)
    assert busiest.compute.total >= 8 / report.workers.count * report.blocks.wall.min
    assert report.blocks.overhead.min >= 0
    assert report.blocks.overhead.total == pytest.approx(
        report.blocks.round_trip.total - report.blocks.wall.total, abs=1e-4
    )
    assert report.steps["compute"].calls == 8
    windows = report.timeline()
    assert {window.worker_id for window in windows} <= {record.id for record in report.workers.records}
    assert all(report.started_at <= w.sent_at <= w.returned_at <= report.ended_at for w in windows)


def test_a_real_serial_run_has_stamps_and_no_workers(task) -> None:
    """Serial: no workers, no round trips; the stamps are begin and end of the call, of no worker (B143)."""
    report = run(task("serial"), "serial")
    assert (report.workers.count, report.workers.records, report.blocks.round_trip.n) == (0, (), 0)
    assert report.blocks.overhead is None or report.blocks.overhead.n == 0
    records = report.block_records()
    assert [record.worker_id for record in records] == [None] * 8
    for record in records:
        assert record.stats.wall_seconds <= record.returned_at - record.sent_at + 1e-5
    ends = sorted((record.sent_at, record.returned_at) for record in records)
    assert all(first[1] <= second[0] + 1e-6 for first, second in pairwise(ends))
