"""A dispatcher that a test drives by hand: who gets which block, and when."""

from __future__ import annotations

from collections import deque

from helpers.pipelines import Record
from workspan.grid import Layout
from workspan.schedule.dispatch import TICK_SECONDS, Dispatcher
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
from workspan.schedule.spec import PipelineSpec


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
