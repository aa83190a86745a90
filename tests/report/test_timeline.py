from __future__ import annotations

import pytest

from workspan.measure.stats import Stat
from workspan.report.timeline import TaskTimeline, WorkerTimeline


@pytest.fixture
def worker():
    """Worker 3, asked for at 100 s of a clock that only the test moves."""
    return WorkerTimeline(3, 100.0)


def run_one_block(worker: WorkerTimeline) -> None:
    """Startup 0.5 s, idle 0.25 s, compute 2 s; free again at 102.75 s."""
    worker.ready(100.5)
    worker.sent(0.25)
    worker.returned(100.75, 102.75)


class TestPhases:
    def test_a_whole_life(self, worker):
        """Startup, idle, compute, final wait and teardown run from and to the events of B136, without a gap."""
        run_one_block(worker)
        worker.stopping(103.0)
        worker.ended(104.5, "clean")
        record = worker.record()
        assert (record.id, record.exit, record.blocks, record.blocks_failed) == (3, "clean", 1, 0)
        assert (record.startup, record.final_wait, record.teardown) == (0.5, 0.25, 1.5)
        assert record.idle == Stat(1, 0.25, 0.0, 0.25, 0.25, 0.25)
        assert record.compute == Stat(1, 2.0, 0.0, 2.0, 2.0, 2.0)
        phases = record.startup + record.idle.total + record.compute.total + record.final_wait + record.teardown
        assert phases == 104.5 - 100.0

    def test_startup_ends_with_the_first_request(self, worker):
        """A second request does not lengthen the startup (B136)."""
        worker.ready(100.5)
        worker.ready(107.0)
        assert worker.record().startup == 0.5

    def test_startup_includes_the_queue(self, worker):
        """An hour in the queue of a cluster is an hour of startup (B137)."""
        worker.ready(3700.0)
        assert worker.record().startup == 3600.0

    def test_idle_before_the_first_block_counts(self, worker):
        """Each block has an idle sample, the first one included (B138)."""
        worker.ready(100.5)
        worker.sent(4.0)
        worker.returned(104.5, 105.0)
        worker.sent(1.0)
        worker.returned(106.0, 106.5)
        idle = worker.record().idle
        assert (idle.n, idle.mean, idle.min, idle.max, idle.total) == (2, 2.5, 1.0, 4.0, 5.0)

    def test_a_block_granted_ahead_has_not_waited(self, worker):
        """A block that begins in the moment of the return before it gives an idle sample of 0 (D29, B136)."""
        worker.ready(100.0)
        worker.sent(0.0)
        worker.sent(0.0)  # told before the return of the first one, as the driver does
        worker.returned(100.0, 101.0)
        worker.returned(101.0, 103.0)
        record = worker.record()
        assert (record.idle.n, record.idle.total) == (2, 0.0)
        assert (record.compute.min, record.compute.max) == (1.0, 2.0)

    def test_final_wait_is_no_idle(self, worker):
        """The wait after the last block is kept apart from the idle samples (B138)."""
        run_one_block(worker)
        worker.stopping(162.75)
        worker.ended(163.0, "clean")
        record = worker.record()
        assert record.final_wait == 60.0
        assert (record.idle.n, record.idle.max) == (1, 0.25)

    def test_final_wait_without_any_block(self, worker):
        """A worker that asked and got nothing has waited since that request (B136)."""
        worker.ready(100.5)
        worker.stopping(103.5)
        record = worker.record()
        assert record.final_wait == 3.0
        assert record.idle.n == record.compute.n == 0

    def test_a_worker_that_never_asked(self, worker):
        """Without a request there is no startup and no final wait; the teardown counts all the same (B136)."""
        worker.stopping(101.0)
        worker.ended(101.5, "clean")
        record = worker.record()
        assert (record.startup, record.final_wait, record.teardown) == (None, None, 0.5)
        assert record.idle == record.compute == Stat()

    def test_a_worker_that_died_before_it_asked(self, worker):
        """A worker that fails while it starts has no phase at all (B136, B141)."""
        worker.ended(101.0, "error")
        record = worker.record()
        assert (record.startup, record.final_wait, record.teardown, record.exit) == (None, None, None, "error")

    def test_a_worker_that_was_told_to_end_while_it_started(self, worker):
        """The stop met it before its first request: no wait, and teardown only from that request on (B136)."""
        worker.stopping(101.0)
        worker.ready(103.0)
        worker.ended(103.5, "clean")
        record = worker.record()
        assert (record.startup, record.final_wait, record.teardown) == (3.0, 0.0, 0.5)

    def test_a_worker_that_was_told_to_end_while_it_computed(self, worker):
        """Teardown does not include the block that the worker still finished (B136)."""
        worker.ready(100.5)
        worker.sent(0.0)
        worker.stopping(101.0)
        worker.returned(100.5, 105.0)
        worker.ended(105.5, "clean")
        record = worker.record()
        assert (record.compute.total, record.final_wait, record.teardown) == (4.5, 0.0, 0.5)

    def test_a_worker_that_still_runs(self, worker):
        """Half-way through, the record holds what has happened and no exit."""
        run_one_block(worker)
        record = worker.record()
        assert (record.blocks, record.final_wait, record.teardown, record.exit) == (1, None, None, None)

    def test_no_phase_is_negative(self, worker):
        """Times that went backwards give phases of 0, never below (KF-40, R34)."""
        worker.ready(99.0)
        worker.sent(-1.0)
        worker.returned(99.0, 98.0)
        worker.stopping(97.0)
        worker.ended(96.0, "clean")
        record = worker.record()
        assert (record.startup, record.idle.min, record.compute.min) == (0.0, 0.0, 0.0)
        assert (record.final_wait, record.teardown) == (0.0, 0.0)


class TestFailures:
    def test_a_failed_block_is_computed_time(self, worker):
        """The round trip of a failed block counts in compute and in blocks_failed, not in blocks (B139)."""
        worker.ready(100.0)
        worker.sent(0.0)
        worker.returned(100.0, 103.0, ok=False)
        record = worker.record()
        assert (record.blocks, record.blocks_failed, record.compute.total) == (0, 1, 3.0)

    def test_a_lost_block_gives_no_compute_sample(self, worker):
        """A block lost or timed out counts in blocks_failed alone (B139)."""
        worker.ready(100.0)
        worker.sent(0.0)
        worker.lost()
        record = worker.record()
        assert (record.blocks_failed, record.compute.n, record.idle.n) == (1, 0, 1)


class TestClosure:
    @pytest.mark.parametrize("exit", ["error", "timeout", "interrupted"])
    def test_only_clean_exits_have_a_teardown(self, worker, exit):
        """A worker that crashed, was retired or was there at an abort has no teardown (B141)."""
        run_one_block(worker)
        worker.stopping(103.0)
        worker.ended(104.0, exit)
        record = worker.record()
        assert (record.exit, record.teardown, record.final_wait) == (exit, None, 0.25)

    def test_a_worker_that_left_on_its_own(self, worker):
        """A clean exit that nobody asked for has neither teardown nor final wait (B141)."""
        run_one_block(worker)
        worker.ended(104.0, "clean")
        record = worker.record()
        assert (record.exit, record.teardown, record.final_wait) == ("clean", None, None)

    def test_the_first_closure_wins(self, worker):
        """A worker retired after a deadline stays a timeout when its process dies later (B141)."""
        worker.ready(100.0)
        worker.sent(0.0)
        worker.lost()
        worker.ended(160.0, "timeout")
        worker.ended(161.0, "error")
        worker.ended(162.0, "clean")
        assert worker.record().exit == "timeout"

    def test_the_first_stop_wins(self, worker):
        """The begin of the run's shutdown does not move a stop that the worker got before (B136)."""
        run_one_block(worker)
        worker.stopping(103.0)
        worker.stopping(110.0)
        worker.ended(111.0, "clean")
        assert (worker.record().final_wait, worker.record().teardown) == (0.25, 8.0)


class TestTaskTimeline:
    def test_samples_of_all_workers_are_pooled(self):
        """Startup, final wait and teardown are over workers, idle and compute over the samples of all (B147)."""
        task = TaskTimeline()
        for worker, startup in ((0, 1.0), (1, 3.0)):
            task.started(worker, 0.0)
            task.ready(worker, startup)
        for worker, idle, begin, end in ((0, 0.0, 1.0, 2.0), (0, 1.0, 3.0, 5.0), (1, 2.0, 5.0, 8.0)):
            task.sent(worker, idle)
            task.returned(worker, begin, end, ok=True)
        for worker in (0, 1):
            task.stopping(worker, 8.0)
            task.ended(worker, 9.0 + worker, "clean")
        summary = task.summary()
        assert summary.count == 2
        assert (summary.startup.n, summary.startup.mean) == (2, 2.0)
        assert (summary.idle.n, summary.idle.mean, summary.idle.total) == (3, 1.0, 3.0)
        assert (summary.compute.n, summary.compute.mean, summary.compute.std) == (3, 2.0, 1.0)
        assert (summary.final_wait.n, summary.final_wait.total) == (2, 3.0)
        assert (summary.teardown.n, summary.teardown.mean) == (2, 1.5)
        assert [record.blocks for record in summary.records] == [2, 1]

    def test_exits_are_counted_by_kind(self):
        """Kinds that did not occur are left out; the records are in order of ids (B151)."""
        task = TaskTimeline()
        for worker, exit in ((4, "error"), (1, "clean"), (2, "timeout"), (0, "clean"), (5, "interrupted")):
            task.started(worker, 0.0)
            task.ended(worker, 1.0, exit)
        summary = task.summary()
        assert summary.exits == {"clean": 2, "error": 1, "timeout": 1, "interrupted": 1}
        assert list(summary.exits) == ["clean", "error", "timeout", "interrupted"]
        assert [record.id for record in summary.records] == [0, 1, 2, 4, 5]

    def test_a_last_request_after_the_end_of_the_run(self):
        """A worker that got no answer any more has a teardown from the begin of the shutdown (B140)."""
        task = TaskTimeline()
        task.started(0, 0.0)
        task.ready(0, 1.0)
        task.sent(0, 0.0)
        task.returned(0, 1.0, 2.0, ok=True)
        task.shut_down(2.5)
        task.ended(0, 4.0, "clean")
        (record,) = task.summary().records
        assert (record.final_wait, record.teardown) == (0.5, 1.5)

    def test_whoever_is_left_at_an_abort_is_interrupted(self):
        """An abort closes the open timelines and leaves the closed ones as they are (B141)."""
        task = TaskTimeline()
        for worker in range(3):
            task.started(worker, 0.0)
        task.ended(0, 1.0, "clean")
        task.ended(1, 1.0, "error")
        task.shut_down(2.0)
        task.interrupt(3.0)
        assert [record.exit for record in task.summary().records] == ["clean", "error", "interrupted"]

    def test_an_attempt_without_a_return_is_lost(self):
        """``returned_at=None``, as the scheduler reports it, gives no compute sample (B139)."""
        task = TaskTimeline()
        task.started(0, 0.0)
        task.returned(0, 1.0, None, ok=False)
        (record,) = task.summary().records
        assert (record.blocks_failed, record.compute.n) == (1, 0)

    def test_unmanaged_clients_are_counted_and_not_timed(self):
        """Events of clients without an id of this run leave no record (B142)."""
        task = TaskTimeline()
        task.unmanaged()
        task.unmanaged()
        stranger = 2**32 - 1
        task.ready(stranger, 1.0)
        task.sent(stranger, 1.0)
        task.returned(stranger, 1.0, 2.0, ok=True)
        task.stopping(stranger, 3.0)
        task.ended(stranger, 4.0, "clean")
        summary = task.summary()
        assert (summary.unmanaged_clients, summary.count, summary.records) == (2, 0, ())

    def test_without_workers_there_is_nothing(self):
        """Serial mode: no workers, no records, no samples, no exits (B143)."""
        summary = TaskTimeline().summary()
        assert (summary.count, summary.records, summary.exits, summary.unmanaged_clients) == (0, (), {}, 0)
        for stat in (summary.startup, summary.idle, summary.compute, summary.final_wait, summary.teardown):
            assert stat == Stat()
