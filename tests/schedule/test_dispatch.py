"""Who gets which block, and when."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.pipelines import Record, brute_inputs, check_counts, descendants, pipelines
from workspan.errors import ConfigurationError
from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.schedule.dispatch import TICK_SECONDS, Dispatcher
from workspan.schedule.events import Ended, KillWorker, Ready, Returned, Send, StartWorker, StopWorker
from workspan.schedule.ledger import Ledger
from workspan.schedule.spec import PipelineSpec, TaskSpec


def line(count, conflict=False):
    return Layout((0,), (count,), (0,), (1,), (0,), (1,), "valid", conflict)


class Bench:
    """A dispatcher with a clock of its own and an engine that only keeps lists."""

    def __init__(self, *specs, edges=(), resources=None):
        self.ledger = Ledger(PipelineSpec(tuple(specs), tuple(edges)))
        self.record = Record()
        self.dispatcher = Dispatcher(self.ledger, self.record, resources=resources)
        self.now = 0.0
        self.held: dict[int, deque[int]] = {}
        self.alive: dict[int, int] = {}
        self.log: list = []

    def do(self, decisions):
        for d in decisions:
            self.log.append(d)
            if isinstance(d, StartWorker):
                assert d.worker not in self.held
                self.held[d.worker] = deque()
                self.alive[d.worker] = d.task
            elif isinstance(d, Send):
                assert d.worker in self.alive
                self.held[d.worker].append(d.index)
        return decisions

    def start(self):
        return self.do(self.dispatcher.start(self.now))

    def event(self, event, after=0.0):
        self.now += after
        return self.do(self.dispatcher.handle(event, self.now))

    def ready(self, worker, after=0.0):
        return self.event(Ready(worker), after)

    def returned(self, worker, ok=True, after=0.0, **kwargs):
        index = self.held[worker].popleft()
        return self.event(Returned(worker, index, ok, None if ok else "boom", **kwargs), after)

    def ended(self, worker, clean=True, reason="exit code 0", after=0.0):
        self.alive.pop(worker)
        self.held[worker].clear()
        return self.event(Ended(worker, clean, reason), after)

    def tick(self, after=TICK_SECONDS):
        self.now += after
        return self.do(self.dispatcher.tick(self.now))

    @property
    def state(self):
        return self.ledger.tasks[0].state


@given(pipelines(), st.randoms(use_true_random=False))
def test_any_order_of_events_ends_with_every_block_accounted_for(pipeline, random):
    """B30, B61, B80: whatever workers do (return, fail, die idle or in mid-block, hang over their deadline), each block
    has at most one lease, none runs before its inputs, the budgets hold, and the run ends.
    """
    bench = Bench(*pipeline.tasks, edges=pipeline.edges)
    dispatcher, ledger = bench.dispatcher, bench.ledger
    inputs = brute_inputs(pipeline)
    starting: set[int] = set()
    bench.start()
    for _ in range(20_000):
        check_counts(ledger)
        running = [(bench.alive[w], held[0]) for w, held in bench.held.items() if held and w in bench.alive]
        leases = Counter((bench.alive[w], i) for w, held in bench.held.items() for i in held if w in bench.alive)
        assert all(n == 1 for n in leases.values())
        done = {(task, index) for task, index, *_ in bench.record.of("block_done")}
        assert all(inputs[block] <= done for block in running)
        starting = {d.worker for d in bench.log if isinstance(d, StartWorker)} & set(bench.alive)
        if dispatcher.finished:
            break
        stopped = {d.worker for d in bench.log if isinstance(d, StopWorker)}
        killed = {d.worker for d in bench.log if isinstance(d, KillWorker)}
        worker = random.choice(sorted(bench.alive)) if bench.alive else None
        chance = random.random()
        readied = {w for w, *_ in bench.record.of("worker_ready")}
        if worker is None:
            bench.tick()
        elif worker in killed:
            bench.ended(worker, clean=False, reason="killed by SIGKILL")
        elif worker not in readied:
            bench.ready(worker) if chance < 0.9 else bench.ended(worker, clean=False, reason="exit code 1")
        elif bench.held[worker]:
            if chance < 0.75:
                bench.returned(worker, ok=chance < 0.65, after=random.choice((0.0, 0.00001, 0.1)))
            elif chance < 0.85:
                bench.ended(worker, clean=False, reason="killed by SIGKILL")
            else:
                bench.tick()
        elif worker in stopped:
            bench.ended(worker)
        else:
            bench.tick()
    else:
        pytest.fail("the run did not end")
    assert starting == set()
    done = [(task, index) for task, index, *_ in bench.record.of("block_done")]
    assert len(done) == len(set(done))
    final = {(args[0], args[1]) for args in bench.record.of("attempt_failed") if args[-1]}
    abandoned = any(blocks.state.abandoned for blocks in ledger.tasks)
    if not abandoned:
        assert set(done) | final | descendants(inputs, final) == set(inputs)
    tries = Counter((args[0], args[1]) for args in bench.record.of("attempt_failed"))
    for number, blocks in enumerate(ledger.tasks):
        spec, state = blocks.spec, blocks.state
        assert state.completed_count == sum(task == number for task, _ in done)
        assert state.worker_start_count <= spec.max_workers + spec.max_worker_restarts
        assert all(n <= spec.max_retries + 1 for (task, _), n in tries.items() if task == number)


@given(pipelines(), st.randoms(use_true_random=False))
def test_the_same_events_give_the_same_decisions(pipeline, random):
    """B34: the sequence of decisions is a function of the sequence of events."""
    seed = random.randrange(1 << 30)

    def run():
        import random as module

        rng = module.Random(seed)
        bench = Bench(*pipeline.tasks, edges=pipeline.edges)
        bench.start()
        ready: set[int] = set()
        for _ in range(60):
            if not bench.alive:
                break
            worker = rng.choice(sorted(bench.alive))
            if worker not in ready:
                ready.add(worker)
                bench.ready(worker)
            elif bench.held[worker]:
                bench.returned(worker, ok=rng.random() < 0.8, after=0.01)
            else:
                bench.tick()
        return bench.log

    assert run() == run()


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
        assert bench.log[-1] == StartWorker(3, 0) or bench.log[-1] == StartWorker(3, 1)
        assert len(bench.alive) == 3

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
        assert bench.returned(0) == []
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
        assert bench.tick(0.9) == []
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


class TestRunningAhead:
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
