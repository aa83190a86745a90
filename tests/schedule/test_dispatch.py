"""Who gets which block, and when."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helpers.pipelines import Record, brute_inputs, check_counts, descendants, pipelines
from workspan.errors import ConfigurationError
from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.schedule.dispatch import HOARD_SECONDS, TICK_SECONDS, Dispatcher
from workspan.schedule.events import (
    Admit,
    Dropped,
    Ended,
    Joined,
    KillWorker,
    Ready,
    Returned,
    Send,
    StartWorker,
    StopWorker,
    TakeBack,
    TakenBack,
)
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
        self.killed, self.stopped, self.readied = set(), set(), set()
        self.asked_back: set[int] = set()
        self.guests: dict[int, int] = {}
        """Clients from outside: worker -> task."""
        self.asking: set[int] = set()
        self.late: set[tuple[int, int]] = set()
        """Blocks that were taken back from a worker which still runs."""

    def state_of(self, worker):
        """What a live worker is doing, as far as decisions and events tell."""
        if worker in self.killed:
            return "killed"
        if self.held[worker]:
            return "running"
        if worker in self.guests:
            return "stopped" if worker in self.stopped else "asking" if worker in self.asking else "guest"
        if worker in self.stopped and worker in self.readied:
            return "stopped"
        return "idle" if worker in self.readied else "starting"

    def retired(self, task):
        """Live processes of a task that count as dead, since they are being killed."""
        return sum(self.alive.get(worker) == task for worker in self.killed)

    def do(self, decisions):
        for d in decisions:
            self.log.append(d)
            if isinstance(d, StartWorker):
                assert d.worker not in self.held
                self.held[d.worker] = deque()
                self.alive[d.worker] = d.task
            elif isinstance(d, KillWorker):
                self.killed.add(d.worker)
                self.late.update((d.worker, index) for index in self.held[d.worker])
                self.held[d.worker].clear()
            elif isinstance(d, Send):
                assert d.worker in self.alive or d.worker in self.guests
                self.held[d.worker].append(d.index)
                self.asking.discard(d.worker)
            elif isinstance(d, TakeBack):
                self.asked_back.add(d.worker)
            elif isinstance(d, Admit):
                if d.worker is not None:
                    self.held[d.worker] = deque()
                    self.guests[d.worker] = d.guest
            else:
                assert isinstance(d, StopWorker)
                self.stopped.add(d.worker)
        return decisions

    def start(self):
        return self.do(self.dispatcher.start(self.now))

    def event(self, event, after=0.0):
        self.now += after
        return self.do(self.dispatcher.handle(event, self.now))

    def ready(self, worker, after=0.0):
        self.readied.add(worker)
        return self.event(Ready(worker), after)

    def returned(self, worker, ok=True, after=0.0, **kwargs):
        index = self.held[worker].popleft()
        return self.event(Returned(worker, index, ok, None if ok else "boom", **kwargs), after)

    def answer(self, worker, kept=1):
        """The engine says what it could take back: all but the first *kept* blocks."""
        self.asked_back.discard(worker)
        back = tuple(self.held[worker])[kept:]
        self.held[worker] = deque(tuple(self.held[worker])[:kept])
        return self.event(TakenBack(worker, back))

    def join(self, task):
        return self.event(Joined(task, task))  # the guest's number tells its task

    def ask(self, worker):
        self.asking.add(worker)
        return self.event(Ready(worker, on_demand=True))

    def dropped(self, worker):
        """A connection is gone while the call that made the worker goes on."""
        self.asking.discard(worker)
        self.held[worker].clear()
        return self.event(Dropped(worker, "connection closed"))

    def ended(self, worker, clean=True, reason="exit code 0", after=0.0, unstarted=()):
        self.alive.pop(worker, None)
        self.guests.pop(worker, None)
        self.asked_back.discard(worker)
        self.late = {pair for pair in self.late if pair[0] != worker}
        self.held[worker].clear()
        return self.event(Ended(worker, clean, reason, unstarted=unstarted), after)

    def tick(self, after=TICK_SECONDS):
        self.now += after
        return self.do(self.dispatcher.tick(self.now))

    @property
    def state(self):
        return self.ledger.tasks[0].state


class AnyOrder(RuleBasedStateMachine):
    """Drives a pipeline through events in any order and checks the rules after each of them."""

    def __init__(self):
        super().__init__()
        self.bench = None
        self.events = []
        """What happened, to be played again."""

    @initialize(pipeline=pipelines(most_tasks=5, most=3))
    def start(self, pipeline):
        self.pipeline = pipeline
        self.inputs = brute_inputs(pipeline)
        self.bench = Bench(*pipeline.tasks, edges=pipeline.edges, resources={"gpu": 3})
        self.bench.start()

    def happen(self, kind, *args):
        self.events.append((kind, args))
        getattr(self.bench, kind)(*args)

    def workers(self, state):
        return sorted(w for w in (*self.bench.alive, *self.bench.guests) if self.bench.state_of(w) == state)

    def pick(self, data, state):
        return data.draw(st.sampled_from(self.workers(state)), label=state)

    @precondition(lambda self: self.bench and self.workers("starting"))
    @rule(data=st.data())
    def a_worker_is_ready(self, data):
        self.happen("ready", self.pick(data, "starting"))

    @precondition(lambda self: self.bench and self.workers("starting"))
    @rule(data=st.data())
    def a_worker_does_not_come_up(self, data):
        self.happen("ended", self.pick(data, "starting"), False, "exit code 1")

    @precondition(lambda self: self.bench and self.workers("running"))
    @rule(data=st.data(), ok=st.booleans() | st.just(True), after=st.sampled_from((0.0, 0.00001, 0.1)))
    def a_block_returns(self, data, ok, after):
        self.happen("returned", self.pick(data, "running"), ok, after)

    @precondition(lambda self: self.bench and self.workers("running"))
    @rule(data=st.data())
    def a_worker_dies_in_mid_block(self, data):
        self.happen("ended", self.pick(data, "running"), False, "killed by SIGKILL")

    @precondition(lambda self: self.bench and self.workers("stopped"))
    @rule(data=st.data())
    def a_stopped_worker_leaves(self, data):
        self.happen("ended", self.pick(data, "stopped"))

    @precondition(lambda self: self.bench and self.workers("killed"))
    @rule(data=st.data())
    def a_killed_worker_is_gone(self, data):
        self.happen("ended", self.pick(data, "killed"), False, "killed by SIGKILL")

    @precondition(lambda self: self.bench and self.bench.asked_back)
    @rule(data=st.data())
    def blocks_are_taken_back(self, data):
        worker = data.draw(st.sampled_from(sorted(self.bench.asked_back)))
        self.happen("answer", worker, data.draw(st.integers(1, 3), label="kept"))

    @precondition(lambda self: self.bench and len(self.bench.guests) < 3)
    @rule(data=st.data())
    def a_guest_joins(self, data):
        self.happen("join", data.draw(st.integers(0, len(self.pipeline.tasks) - 1), label="task"))

    @precondition(lambda self: self.bench and self.workers("guest"))
    @rule(data=st.data())
    def a_guest_asks(self, data):
        self.happen("ask", self.pick(data, "guest"))

    @precondition(lambda self: self.bench and self.bench.guests)
    @rule(data=st.data())
    def a_guest_leaves(self, data):
        self.happen("ended", data.draw(st.sampled_from(sorted(self.bench.guests)), label="guest"), True, "left")

    @precondition(lambda self: self.bench and self.bench.late)
    @rule(data=st.data())
    def a_reclaimed_block_returns_late(self, data):
        worker, index = data.draw(st.sampled_from(sorted(self.bench.late)))
        before = [str(blocks.state) for blocks in self.bench.ledger.tasks]
        self.happen("event", Returned(worker, index, True))
        assert [str(blocks.state) for blocks in self.bench.ledger.tasks] == before

    @precondition(lambda self: self.bench)
    @rule(after=st.sampled_from((0.1, TICK_SECONDS, 700.0)))
    def time_passes(self, after):
        self.happen("tick", after)

    @invariant()
    def the_rules_hold(self):
        """B30, B61, B80: counts add up, one lease a block, no block before its inputs, budgets are kept."""
        if self.bench is None:
            return
        bench = self.bench
        check_counts(bench.ledger)
        done = [(task, index) for task, index, *_ in bench.record.of("block_done")]
        assert len(done) == len(set(done)), "a block was completed twice"
        done = set(done)
        task_of = {**bench.alive, **bench.guests}
        leases = [(task_of[w], i) for w, held in bench.held.items() if bench.state_of(w) == "running" for i in held]
        assert all(len(bench.held[worker]) <= 1 for worker in bench.guests), "a client on demand was granted ahead"
        assert len(leases) == len(set(leases)), "a block has two leases"
        assert all(self.inputs[block] <= done for block in leases), "a block runs before its inputs"
        tries = Counter((args[0], args[1]) for args in bench.record.of("attempt_failed"))
        for number, blocks in enumerate(bench.ledger.tasks):
            spec, state = blocks.spec, blocks.state
            assert state.worker_start_count <= spec.max_workers + spec.max_worker_restarts
            assert sum(task == number for task in bench.alive.values()) <= spec.max_workers + bench.retired(number)
            assert all(n <= spec.max_retries + 1 for (task, _), n in tries.items() if task == number)
        serving = [self.pipeline.tasks[task] for worker, task in bench.alive.items() if worker not in bench.killed]
        assert sum(spec.requires.get("gpu", 0) for spec in serving) <= 3, "more resources are used than there are"

    def teardown(self):
        """Let every worker behave from here on: the run ends with every block accounted for, and can be repeated."""
        if self.bench is None:
            return
        bench = self.bench
        for _ in range(10_000):
            if bench.dispatcher.finished:
                break
            for worker in sorted(bench.asked_back):
                self.happen("answer", worker)
            for worker in sorted((*bench.alive, *bench.guests)):
                if worker in bench.alive or worker in bench.guests:
                    kind = bench.state_of(worker)
                    if kind == "running":
                        self.happen("returned", worker, True, 0.1)
                    elif kind == "guest":
                        self.happen("ask", worker)
                    elif kind == "starting":
                        self.happen("ready", worker)
                    elif kind == "stopped":
                        self.happen("ended", worker)
                    elif kind == "killed":
                        self.happen("ended", worker, False, "killed by SIGKILL")
            self.happen("tick", 0.1)
        assert bench.dispatcher.finished, "the run did not end"
        self.the_rules_hold()
        states = [blocks.state for blocks in bench.ledger.tasks]
        assert all(state.is_done() for state in states)
        done = {(task, index) for task, index, *_ in bench.record.of("block_done")}
        final = {(args[0], args[1]) for args in bench.record.of("attempt_failed") if args[-1]}
        orphaned = descendants(self.inputs, final)
        assert not done & orphaned
        abandoned = {number for number, state in enumerate(states) if state.abandoned}
        for number in set(range(len(states))) - abandoned:
            # A task that was over before the one above it was given up has kept its counts.
            mine = {block for block in self.inputs if block[0] == number}
            assert mine <= done | final | orphaned
        again = Bench(*self.pipeline.tasks, edges=self.pipeline.edges, resources={"gpu": 3})
        again.start()
        for kind, args in self.events:
            getattr(again, kind)(*args)
        assert again.log == bench.log, "the same events gave other decisions"


TestAnyOrder = pytest.mark.once(AnyOrder.TestCase)
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40)


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
