"""Events in any order: the rules of dispatching hold after each of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helpers.bench import Bench
from helpers.pipelines import brute_inputs, check_counts, descendants, pipelines
from workspan.schedule.dispatch import TICK_SECONDS
from workspan.schedule.events import Returned


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
