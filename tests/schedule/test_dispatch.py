"""Who gets which block, and when."""

from __future__ import annotations

from collections import deque

import pytest

from helpers.bench import Bench, line
from workspan.errors import ConfigurationError
from workspan.measure.profile import BlockStats
from workspan.schedule.dispatch import HOARD_SECONDS
from workspan.schedule.events import (
    Admit,
    Dropped,
    Ended,
    KillWorker,
    Returned,
    Send,
    StartWorker,
    StopWorker,
    TakeBack,
)
from workspan.schedule.spec import TaskSpec


class TestWorkers:
    def test_no_provably_idle_worker_is_started(self):
        """B78: two blocks need at most two of five workers."""
        bench = Bench(TaskSpec("t", line(2), max_workers=5))
        assert bench.start() == [StartWorker(0, 0), StartWorker(1, 0)]

    def test_downstream_tasks_get_no_worker_before_they_have_a_ready_block(self):
        """B79: the second task's worker starts when the first block is done."""
        bench = Bench(TaskSpec("a", line(2)), TaskSpec("b", line(2)), edges=[(0, 1)])
        assert bench.start() == [StartWorker(0, 0)]
        bench.ready(0)
        assert StartWorker(1, 1) in bench.returned(0, after=1.0)

    def test_a_dirty_end_is_replaced_within_the_budget_and_then_the_task_is_abandoned(self):
        """B62, B80, B81, KF-14: at most max_workers + max_worker_restarts starts, then the reason is told."""
        bench = Bench(TaskSpec("t", line(9), max_workers=2, max_worker_restarts=3))
        bench.start()
        while bench.alive:
            bench.ended(min(bench.alive), clean=False, reason="exit code 1")
        state = bench.state
        assert (state.worker_start_count, state.worker_restart_count, state.worker_failure_count) == (5, 3, 5)
        assert (state.abandoned, state.abandon_reason) == (True, "worker restart cap exhausted")
        assert (state.orphaned_count, state.last_worker_error) == (9, "worker 4: exit code 1")
        assert bench.dispatcher.finished

    def test_a_downstream_task_without_restarts_is_not_abandoned_before_its_first_worker(self):
        """B62: waiting for upstream is never a reason."""
        bench = Bench(TaskSpec("a", line(1)), TaskSpec("b", line(1), max_worker_restarts=0), edges=[(0, 1)])
        bench.start()
        bench.tick()
        assert not bench.ledger.tasks[1].state.abandoned

    def test_resources_are_never_exceeded_and_are_shared_round_by_round(self):
        """B49, B77, B89: two tasks of hungry workers share three units as 2 + 1."""
        spec = {"max_workers": 4, "requires": {"gpu": 1}}
        bench = Bench(TaskSpec("a", line(9), **spec), TaskSpec("b", line(9), **spec), resources={"gpu": 3})
        assert bench.start() == [StartWorker(0, 0), StartWorker(1, 1), StartWorker(2, 0)]
        bench.ended(1, clean=False, reason="exit code 1")
        assert bench.log[-1] == StartWorker(3, 1)

    def test_a_worker_that_never_fits_is_refused(self):
        """B89: task, key and both amounts are named."""
        with pytest.raises(ConfigurationError, match=r"task 't' requires 2 of 'gpu', but the run has 1"):
            Bench(TaskSpec("t", line(1), requires={"gpu": 2}), resources={"gpu": 1})

    def test_workers_are_stopped_when_nothing_more_can_become_ready(self):
        """B87: a worker that asks when only blocks in flight are left is let go, not held back for retries."""
        bench = Bench(TaskSpec("t", line(2), max_workers=2))
        bench.start()
        bench.ready(0)
        bench.ready(1)
        assert bench.returned(0, after=1.0) == [StopWorker(0)]
        assert bench.record.of("worker_stopping") == [[0, 1.0]]


class TestLosses:
    def test_a_lost_block_goes_back_into_the_queue(self):
        """R1, B82, KF-15: a death in mid-block is one failed attempt, charged as lost, and a new worker starts."""
        bench = Bench(TaskSpec("t", line(3)))
        bench.start()
        bench.ready(0)
        decisions = bench.ended(0, clean=False, reason="killed by SIGKILL", after=2.0)
        assert decisions == [StartWorker(1, 0)]
        (failed,) = bench.record.of("attempt_failed")
        assert failed == [0, 0, 0, 0.0, None, "lost", "worker 0: killed by SIGKILL", False]
        assert bench.record.of("worker_ended") == [[0, 2.0, "error", "killed by SIGKILL"]]

    def test_a_clean_exit_with_an_open_lease_is_a_loss(self):
        """R14: exit code 0 does not help a worker that held a block."""
        bench = Bench(TaskSpec("t", line(3)))
        bench.start()
        bench.ready(0)
        bench.ended(0, clean=True)
        assert bench.record.of("attempt_failed")[0][5] == "lost"
        assert bench.record.of("worker_ended")[0][2] == "error"

    def test_blocks_granted_ahead_are_no_attempts(self):
        """D4: only the block that ran is charged when a worker dies with several."""
        bench = Bench(TaskSpec("t", line(50), max_retries=0))
        bench.start()
        bench.ready(0)
        for _ in range(5):
            bench.returned(0, after=0.00001)
        held = list(bench.held[0])
        assert len(held) > 1
        bench.ended(0, clean=False, reason="killed by SIGKILL")
        assert [args[1] for args in bench.record.of("attempt_failed")] == held[:1]
        bench.ready(1)
        assert bench.held[1][0] == held[1]

    def test_a_worker_that_dies_between_two_blocks_fails_none(self):
        """D4, R4: what the engine knows to be unread was never begun, not even the first block that is held."""
        bench = Bench(TaskSpec("t", line(50), max_retries=0))
        bench.start()
        bench.ready(0)
        for _ in range(5):
            bench.returned(0, after=0.00001)
        held = tuple(bench.held[0])
        bench.ended(0, clean=False, reason="killed by SIGKILL", unstarted=held)
        assert bench.record.of("attempt_failed") == []
        assert bench.state.worker_failure_count == 1
        bench.ready(1)
        assert bench.held[1][0] == held[0]

    @pytest.mark.parametrize("end", ["ended", "dropped"])
    def test_an_end_that_came_with_the_last_result_costs_nothing(self, end):
        """R4, D4: a worker that died right after its result is granted nothing in between; others are."""
        bench = Bench(TaskSpec("t", line(4), max_workers=2, max_retries=0))
        bench.start()
        (bench.ready if end == "ended" else bench.ask)(0)
        (bench.ready if end == "ended" else bench.ask)(1)
        gone = Ended(0, False, "killed by SIGKILL") if end == "ended" else Dropped(0, "connection closed")
        bench.dispatcher.foresee([Returned(0, 0, True), Returned(1, 1, True), gone])
        bench.returned(0)
        if end == "dropped":
            bench.ask(0)
        assert not bench.held[0]
        bench.returned(1)
        if end == "dropped":
            bench.ask(1)
        assert bench.held[1] == deque([2])
        if end == "dropped":
            bench.dropped(0)
        else:
            bench.ended(0, clean=False, reason="killed by SIGKILL")
        assert bench.record.of("attempt_failed") == []
        if end == "dropped":  # the call that made it may make another connection
            bench.ask(0)
            assert bench.held[0] == deque([3])
        else:
            assert bench.state.worker_failure_count == 1

    def test_a_dropped_connection_loses_its_block_and_may_come_back(self):
        """B81, B82: the connection is gone, the spawn call is not: one failure, no new worker, and a new request."""
        bench = Bench(TaskSpec("t", line(2), max_retries=1))
        bench.start()
        bench.ask(0)
        assert bench.held[0] == deque([0])
        assert bench.dropped(0) == []
        assert [args[1] for args in bench.record.of("attempt_failed")] == [0]
        assert bench.state.worker_start_count == 1
        assert bench.ask(0) == [Send(0, 1)]

    def test_a_dropped_connection_is_asked_for_nothing(self):
        """B82: a parked client whose connection went is not sent a block; the next one that asks is."""
        bench = Bench(TaskSpec("t", line(1), max_workers=2, max_retries=1))
        bench.join(0)
        (guest,) = bench.guests
        bench.start()
        bench.ask(guest)
        assert bench.held[guest] == deque([0])
        bench.join(0)
        other = max(bench.guests)
        assert StopWorker(other) in bench.ask(other), "nothing is left to wait for (B87)"

    def test_a_release_touches_as_many_parked_requests_as_it_feeds(self, monkeypatch):
        """B88: parked requests are served in the order in which they came, and the others are not even looked at."""
        bench = Bench(TaskSpec("up", line(4)), TaskSpec("down", line(4), has_function=False), edges=[(0, 1)])
        bench.start()
        bench.ready(0)
        for _ in range(50):
            bench.join(1)
        guests = sorted(bench.guests)
        for guest in guests:
            bench.ask(guest)
        touched = []
        serve = bench.dispatcher._serve

        def watched(slot, *args):
            touched.append(slot.worker)
            serve(slot, *args)

        monkeypatch.setattr(bench.dispatcher, "_serve", watched)
        for number in range(3):
            touched.clear()
            assert Send(guests[number], number) in bench.returned(0, after=0.1)
            assert sorted(touched) == [0, guests[number]]
            if not number:
                bench.returned(guests[0])
                bench.ask(guests[0])  # behind all others

    def test_a_late_return_of_a_reclaimed_block_is_ignored(self):
        """B84, R9: the deadline passes, the worker is retired and killed, and its return changes nothing."""
        bench = Bench(TaskSpec("t", line(1), timeout=5.0, max_retries=0))
        bench.start()
        bench.ready(0)
        assert bench.tick(4.9) == []
        (kill, *_) = bench.tick(0.2)
        assert isinstance(kill, KillWorker)
        assert kill.worker == 0
        before = str(bench.state)
        assert bench.event(Returned(0, 0, True)) == []
        assert str(bench.state) == before
        assert bench.state.timeout_reclaim_count == 1
        assert bench.record.of("attempt_failed")[0][5] == "timeout"
        assert bench.record.of("worker_ended")[0][2] == "timeout"
        assert not bench.dispatcher.finished
        bench.ended(0, clean=False, reason="killed by SIGKILL")
        assert bench.dispatcher.finished

    def test_the_deadline_runs_from_the_begin_of_a_block_granted_ahead(self):
        """D29: a block that waited behind another is not charged for the wait."""
        bench = Bench(TaskSpec("t", line(50), timeout=1.0))
        bench.start()
        bench.ready(0)
        for _ in range(5):
            bench.returned(0, after=0.00001)
        assert len(bench.held[0]) > 1
        bench.returned(0, after=0.9)
        assert bench.tick(0.9) == [TakeBack(0)]
        assert bench.dispatcher.wait_seconds(bench.now) == pytest.approx(0.1)


class TestStamps:
    def test_the_drivers_own_time_is_idle_time_of_the_worker(self):
        """B136, B137: compute ends when the return arrived, idle until the next block is sent."""
        bench = Bench(TaskSpec("t", line(3)))
        bench.start()
        bench.ready(0)
        bench.held[0].popleft()
        bench.do(bench.dispatcher.handle(Returned(0, 0, True), 5.0, 4.0))
        assert bench.record.of("block_done")[0][3:5] == [0.0, 4.0]
        assert bench.record.of("block_sent")[-1] == [0, 1, 0, 5.0, 1.0]


class TestGuests:
    """B86, B87, B142: clients that the run did not start."""

    def task(self, **kwargs):
        return TaskSpec("t", line(2), has_function=False, **kwargs)

    def test_a_task_without_a_function_waits_for_clients(self):
        """B86: no worker is started, nothing is abandoned, and a guest does the work."""
        bench = Bench(self.task())
        assert bench.start() == []
        assert bench.tick(3600.0) == []
        assert not bench.dispatcher.finished
        assert bench.join(0) == [Admit(0, 0)]
        for index in (0, 1):
            assert bench.ask(0) == [Send(0, index)]
            bench.returned(0)
        assert bench.dispatcher.finished, "a guest that is still there does not keep the run from its end"
        assert bench.ask(0) == [StopWorker(0)]

    def test_a_client_is_granted_nothing_that_it_did_not_ask_for(self):
        """B100: one request at a time: a client that returned a block and does not ask gets none."""
        bench = Bench(self.task())
        bench.start()
        bench.join(0)
        bench.ask(0)
        assert bench.returned(0) == []
        assert bench.held[0] == deque()

    def test_a_guest_that_goes_costs_its_block_and_nothing_else(self):
        """B82, B142: the block is lost and waits for the next client; no worker failed and no timeline is kept."""
        bench = Bench(self.task(max_retries=1))
        bench.start()
        bench.join(0)
        bench.ask(0)
        bench.ended(0, clean=False, reason="connection closed")
        assert bench.state.worker_failure_count == 0
        assert [args[1] for args in bench.record.of("attempt_failed")] == [0]
        bench.join(0)
        assert bench.ask(1) == [Send(1, 1)], "a retry waits behind fresh blocks"

    def test_a_guest_over_its_deadline_is_dropped(self):
        """B84: the block goes to the next one, the late return is counted as stale (R9, D37)."""
        bench = Bench(self.task(timeout=1.0, max_retries=1))
        bench.start()
        bench.join(0)
        bench.ask(0)
        (kill,) = bench.tick(1.0)
        assert kill.worker == 0
        bench.event(Returned(0, 0, True))
        assert bench.dispatcher.stale_results == 1
        assert bench.state.completed_count == 0
        assert bench.state.timeout_reclaim_count == 1

    def test_guests_take_the_place_of_workers(self):
        """B78: as many workers and guests together as there are blocks, no more."""
        bench = Bench(TaskSpec("t", line(3), max_workers=3))
        bench.join(0)
        bench.join(0)
        assert [d for d in bench.start() if isinstance(d, StartWorker)] == [StartWorker(2, 0)]

    def test_nobody_joins_a_run_that_ends(self):
        """B91: a run that was stopped sends guests away."""
        bench = Bench(TaskSpec("t", line(3)))
        bench.start()
        bench.do(bench.dispatcher.stop(0.0))
        assert bench.join(0) == [Admit(0, None)]

    def test_a_guest_may_finish_its_block_when_the_run_is_stopped(self):
        """B71: blocks in flight have their grace, whoever runs them; nothing more is handed out."""
        bench = Bench(self.task())
        bench.start()
        bench.join(0)
        bench.ask(0)
        bench.do(bench.dispatcher.stop(0.0))
        assert not bench.dispatcher.finished
        bench.returned(0)
        assert bench.dispatcher.finished
        assert bench.state.completed_count == 1

    def test_a_guest_keeps_a_task_from_being_abandoned(self):
        """B62: a task is given up when nobody is left to work for it; a guest is somebody."""
        bench = Bench(TaskSpec("t", line(3), max_worker_restarts=0))
        bench.start()
        bench.join(0)
        bench.ended(0, clean=False, reason="exit code 1")
        assert not bench.state.abandoned
        bench.ended(1, reason="left")
        assert bench.state.abandoned


class TestRunningAhead:
    def test_blocks_do_not_wait_behind_a_slow_one(self):
        """Blocks that were granted behind one which turns out to be slow are taken back and go to other workers."""
        bench = Bench(TaskSpec("t", line(500), max_workers=2))
        bench.start()
        bench.ready(0)
        bench.ready(1)
        for n in range(40):
            bench.returned(n % 2, after=0.00001)
        slow, *waiting = bench.held[0]
        assert waiting
        for _ in range(40):
            bench.returned(1, after=HOARD_SECONDS / 20)
        assert bench.tick(0.0) == [TakeBack(0)]
        bench.answer(0)
        assert bench.held[0] == deque([slow])
        while bench.held[1]:
            bench.returned(1, after=0.00001)
        done = [args[1] for args in bench.record.of("block_done")]
        assert set(waiting) <= set(done), "somebody else did them"
        assert slow not in done

    def test_fast_blocks_are_not_taken_back(self):
        """As long as blocks take what was expected nothing goes back over the wire."""
        bench = Bench(TaskSpec("t", line(500)))
        bench.start()
        bench.ready(0)
        for _ in range(450):
            bench.returned(0, after=0.0001)
            assert bench.tick(0.0) == []

    def test_the_loop_wakes_up_for_the_hoard(self):
        """The wait of the loop ends when a hoard is to be looked at, and not before."""
        bench = Bench(TaskSpec("t", line(500)))
        bench.start()
        bench.ready(0)
        for _ in range(20):
            bench.returned(0, after=0.00001)
        assert 0.5 * HOARD_SECONDS < bench.dispatcher.wait_seconds(bench.now) <= HOARD_SECONDS

    def test_long_blocks_are_not_hoarded(self):
        """Blocks of ten milliseconds are granted one at a time."""
        bench = Bench(TaskSpec("t", line(50), max_workers=2))
        bench.start()
        bench.ready(0)
        bench.ready(1)
        for _ in range(5):
            bench.returned(0, after=0.01)
            assert len(bench.held[0]) == 1

    def test_short_blocks_hide_the_wire(self):
        """Blocks of ten microseconds: a worker always holds the next index, with an idle sample of 0 (D29)."""
        bench = Bench(TaskSpec("t", line(500)))
        bench.start()
        bench.ready(0)
        for _ in range(20):
            bench.returned(0, after=0.00001)
        assert len(bench.held[0]) >= 2
        assert [args[4] for args in bench.record.of("block_sent")][-1] == 0.0

    def test_the_last_blocks_are_shared(self):
        """Nothing is granted ahead when every live worker could not have as much."""
        bench = Bench(TaskSpec("t", line(30), max_workers=2))
        bench.start()
        bench.ready(0)
        bench.ready(1)
        for n in range(26):
            bench.returned(n % 2, after=0.00001)
        assert all(len(held) <= 2 for held in bench.held.values())


class TestStop:
    def test_a_block_in_flight_at_an_abort_is_neither_done_nor_failed(self):
        """B71: it is given back; its worker's exit is `interrupted`."""
        bench = Bench(TaskSpec("t", line(3)))
        bench.start()
        bench.ready(0)
        assert bench.do(bench.dispatcher.stop(1.0)) == [StopWorker(0)]
        bench.ended(0, clean=False, reason="killed by SIGKILL")
        assert bench.record.of("attempt_failed") == []
        assert bench.record.of("worker_ended")[0][2] == "interrupted"
        assert (bench.state.ready_count, bench.state.failed_count) == (3, 0)
        assert bench.dispatcher.finished

    def test_a_block_that_returns_within_the_grace_is_recorded(self):
        """B71, reliability section 1: what came back is done, and nothing more is handed out."""
        bench = Bench(TaskSpec("t", line(3)))
        bench.start()
        bench.ready(0)
        bench.dispatcher.stop(1.0)
        stats = BlockStats(1.0)
        assert bench.returned(0, after=2.0, stats=stats) == []
        assert bench.record.of("block_done") == [[0, 0, 0, 0.0, 2.0, stats, None]]
        bench.ended(0)
        assert bench.record.of("worker_ended")[0][2] == "clean"
