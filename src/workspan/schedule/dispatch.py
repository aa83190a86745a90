"""Who gets which block, and when: workers, leases, deadlines, budgets. No I/O; the time is an argument.

The dispatcher is driven by one loop::

    events = engine.poll(dispatcher.wait_seconds(now))
    arrived = clock()
    dispatcher.foresee(events)
    for event in events:
        for decision in dispatcher.handle(event, clock(), arrived): engine.act(decision)
    for decision in dispatcher.tick(now): ...

It never decides anything outside :meth:`Dispatcher.handle`, :meth:`~Dispatcher.tick`, :meth:`~Dispatcher.start` and
:meth:`~Dispatcher.stop`, so a test can drive it through any order of events.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from workspan.errors import StalledError
from workspan.schedule.events import (
    Admit,
    Checked,
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
from workspan.schedule.slots import Slot, TaskSlots
from workspan.schedule.spec import check_resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workspan.schedule.events import Cause, Decision, Event, Recorder
    from workspan.schedule.ledger import Ledger

TICK_SECONDS = 0.5
"""How often worker starts are reconsidered without an event."""

AHEAD_SECONDS = 0.001
"""Grants run ahead of a worker by about this much work: enough to hide the wire, too little to hoard."""

HOARD_SECONDS = 0.005
"""How long a block may run before those behind it are taken back from its worker: far more than was expected of it."""

HOARD_WIRES = 50
"""The same as ``HOARD_SECONDS`` in times of a slow wire."""


_ENDS = (Ended, Dropped)


class Dispatcher:
    """Hands blocks to workers until every task is done or given up.

    Parameters
    ----------
    ledger
        The blocks.
    recorder
        Told of everything that happened, before the decisions that follow from it are returned.
    resources
        Amounts that the ``requires`` of live workers may add up to, by name; ``None``: no limits.
    one_at_a_time
        The engine runs the blocks of all workers one after another, and cannot end one that runs: there are no
        deadlines, and a block begins when the one before it, whoever's, has returned.
    wire_seconds
        How long a worker far away waits for a block that it asks for, in seconds: grants run ahead by more.

    Raises
    ------
    ConfigurationError
        A single worker of a task needs more than *resources* has.
    """

    def __init__(
        self,
        ledger: Ledger,
        recorder: Recorder,
        *,
        resources: Mapping[str, int] | None = None,
        one_at_a_time: bool = False,
        wire_seconds: float = 0.0,
    ) -> None:
        self.ledger = ledger
        self.recorder = recorder
        self.slots: dict[int, Slot] = {}
        self.stale_results = 0
        """Results that came back after their block had been taken away: ignored."""
        self._guests = 0
        self._tasks = [TaskSlots(blocks) for blocks in ledger.tasks]
        self._free = dict(resources) if resources is not None else None
        self._next_worker = 0
        self._next_tick = inf
        self._next_deadline = inf
        self._next_review = inf
        self._stopping = False
        self._one_at_a_time = one_at_a_time
        self.last_return = -inf
        """When a block came back last."""
        self._wire_seconds = wire_seconds
        self._hoard_seconds = max(HOARD_SECONDS, HOARD_WIRES * wire_seconds)
        check_resources(ledger.pipeline, resources)

    # -- what the loop calls ---------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Decision]:
        """Begin the run."""
        self._next_tick = now + TICK_SECONDS
        return self._settle(now, balance=True)

    def foresee(self, events: Sequence[Event]) -> None:
        """Look at events that came together, before they are handled one by one.

        A worker whose end is among them is granted nothing more: its engine has told already what it never began.
        """
        for event in events:
            if isinstance(event, _ENDS) and (slot := self.slots.get(event.worker)) is not None:
                slot.gone = True
                self._unpark(slot, self._tasks[slot.task])

    def handle(self, event: Event, now: float, arrived: float | None = None) -> list[Decision]:
        """Take in one event; return what the engine must do, in order.

        Parameters
        ----------
        event
            What happened.
        now
            When the decisions are taken.
        arrived
            When the event reached the driver; default: *now*. What lies between is the driver's own time, and idle
            time of the worker.
        """
        at = now if arrived is None else arrived
        if isinstance(event, Returned):  # first, since there is one a block
            holder = self.slots.get(event.worker)
            return [] if holder is None else self._returned(holder, event, now, at)
        if isinstance(event, Checked):
            self.ledger.changed.add(event.task)
            return self._settle(now, balance=self._tasks[event.task].live == 0)
        if isinstance(event, Joined):
            return self._joined(event, now)
        slot = self.slots.get(event.worker)
        if slot is None:
            return []
        if isinstance(event, Ready):
            slot.ready = True
            slot.on_demand = event.on_demand
            if not slot.has_asked:
                slot.has_asked = True
                slot.free_since = at
                self.recorder.worker_ready(slot.worker, at)
            return self._settle(now, asking=slot)
        if isinstance(event, TakenBack):
            return self._taken_back(slot, event, now)
        if isinstance(event, Dropped):
            self._lose(slot, f"worker {slot.worker}: {event.reason}", at)
            slot.ready = slot.gone = False
            self._unpark(slot, self._tasks[slot.task])
            return self._settle(now, balance=True)
        assert isinstance(event, Ended)
        return self._ended(slot, event, now, at)

    def tick(self, now: float) -> list[Decision]:
        """Look after deadlines, hoards and worker starts; cheap when none is due."""
        out: list[Decision] = []
        if now >= self._next_deadline:
            out += self._reclaim(now)
        if now >= self._next_review:
            out += self._review(now)
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            out += self._settle(now, balance=True)
        return out

    def wait_seconds(self, now: float) -> float:
        """How long the loop may wait for events before it must call :meth:`tick`."""
        return max(0.0, min(self._next_tick, self._next_deadline, self._next_review) - now)

    def stop(self, now: float) -> list[Decision]:
        """End the run early: nothing more is handed out, workers end after what they hold."""
        self._stopping = True
        return [decision for slot in self.slots.values() for decision in self._stop(slot, now)]

    @property
    def finished(self) -> bool:
        """Whether the run is over: no worker is left but guests, and no block that could still run."""
        if len(self.slots) > self._guests:
            return False
        return self.ledger.is_done() or (self._stopping and not any(slot.held for slot in self.slots.values()))

    @property
    def stopping(self) -> bool:
        """Whether the run was ended early."""
        return self._stopping

    # -- events ----------------------------------------------------------------------------------------------------

    def _returned(self, slot: Slot, event: Returned, now: float, at: float) -> list[Decision]:
        task, index = slot.task, event.index
        if slot.retired or not slot.held or slot.held[0] != index:
            # A lease that is already void: the block was reclaimed, or was never this worker's.
            self.stale_results += 1
            return []
        slot.held.popleft()
        began = max(slot.began_at, self.last_return) if self._one_at_a_time else slot.began_at
        slot.free_since = self.last_return = at
        slot.ready = not slot.on_demand
        slot.deadline = inf
        if slot.held:
            self._begin(slot, at, idle_seconds=0.0)
        if event.ok:
            if self.ledger.is_in_flight(task, index):
                # Recorded first: a store that fails leaves a block that is not complete, not one that seems so.
                self.recorder.block_done(task, index, slot.worker, began, at, event.stats, event.steps)
                self.ledger.complete(task, index)
        else:
            why = event.error or "the block failed without a reason"
            self._failed(slot, index, began, at, "error", why, event.final)
        self._tasks[task].learn(at - began, AHEAD_SECONDS, self._wire_seconds)
        return self._settle(now, asking=slot)

    def _joined(self, event: Joined, now: float) -> list[Decision]:
        if self._stopping or self._tasks[event.task].blocks.state.abandoned:
            return [Admit(event.guest, None)]
        worker = self._next_worker
        self._next_worker += 1
        entry = self._tasks[event.task]
        entry.guests += 1
        self._guests += 1
        entry.blocks.state.started = True
        self.slots[worker] = Slot(worker, event.task, is_guest=True, free_since=now)
        self.recorder.guest_joined(worker, event.task)
        return [Admit(event.guest, worker)]

    def _taken_back(self, slot: Slot, event: TakenBack, now: float) -> list[Decision]:
        """Put blocks that the worker had not begun back where they came from."""
        back = set(event.indices) & set(slot.held)
        if not back:
            return []
        for index in reversed(slot.held):
            if index in back:
                self._give_back(slot.task, index)
        slot.held = deque(index for index in slot.held if index not in back)
        return self._settle(now)

    def _lose(self, slot: Slot, text: str, at: float, unstarted: tuple[int, ...] = ()) -> bool:
        """Deal with the blocks that *slot* held when its worker, or its connection, went; whether there was an attempt.

        The first one ran. Those behind it, and whatever is in *unstarted*, were never begun and are no attempts.
        """
        held = list(slot.held)
        slot.held.clear()
        attempted = bool(held) and held[0] not in unstarted
        if held and not slot.retired:
            late = at >= slot.deadline
            for index in reversed(held[1:] if attempted else held):
                self._give_back(slot.task, index)
            if attempted and self._stopping:
                # At an abort a block in flight is neither done nor failed.
                self._give_back(slot.task, held[0])
            elif attempted and self._failed(slot, held[0], slot.began_at, None, "timeout" if late else "lost", text):
                self._tasks[slot.task].blocks.state.timeout_reclaim_count += late
        slot.deadline = inf
        return attempted

    def _ended(self, slot: Slot, event: Ended, now: float, at: float) -> list[Decision]:
        attempted = self._lose(slot, f"worker {slot.worker}: {event.reason}", at, event.unstarted)
        clean = event.clean and not attempted
        text = event.reason if not event.stderr_tail else f"{event.reason}\n{event.stderr_tail}"
        if event.withdrawn and clean:
            self._tasks[slot.task].starts -= 1
        if not slot.retired:
            if self._stopping and not clean:
                self.recorder.worker_ended(slot.worker, at, "interrupted", text)
            else:
                self.recorder.worker_ended(slot.worker, at, "clean" if clean else "error", text)
                if not clean:
                    self._dirty(slot, f"worker {slot.worker}: {text}")
            self._release_slot(slot)
        del self.slots[slot.worker]
        self._guests -= slot.is_guest
        return self._settle(now, balance=True)

    def _review(self, now: float) -> list[Decision]:
        """Take the blocks back that wait behind one which runs much longer than was expected."""
        out: list[Decision] = []
        self._next_review = inf
        for slot in self.slots.values():
            if len(slot.held) > 1:
                due = slot.began_at + self._hoard_seconds
                if due <= now:
                    out.append(TakeBack(slot.worker))
                else:
                    self._next_review = min(self._next_review, due)
        return out

    def _reclaim(self, now: float) -> list[Decision]:
        """Take back blocks that are over their deadline and retire the workers that hold them."""
        out: list[Decision] = []
        for slot in [s for s in self.slots.values() if s.deadline <= now]:
            entry = self._tasks[slot.task]
            index, *rest = slot.held
            slot.held.clear()
            slot.deadline = inf
            for other in reversed(rest):
                self._give_back(slot.task, other)
            text = f"not returned within the task's timeout of {entry.blocks.spec.timeout:g} s"
            why = f"worker {slot.worker}: block {index} {text}"
            self.recorder.worker_ended(slot.worker, now, "timeout", why)
            if self._failed(slot, index, slot.began_at, None, "timeout", text):
                entry.blocks.state.timeout_reclaim_count += 1
                self._dirty(slot, why)
            slot.retired = True
            self._release_slot(slot)
            out.append(KillWorker(slot.worker, why))
        self._next_deadline = min((s.deadline for s in self.slots.values()), default=inf)
        return out + self._settle(now, balance=True)

    def _failed(
        self, slot: Slot, index: int, began: float, now: float | None, cause: Cause, error: str, refused: bool = False
    ) -> bool:
        """Count a failed attempt; return False if the block was in flight no longer."""
        final = self.ledger.fail(slot.task, index, raised=cause == "error", refused=refused)
        if final is not None:
            self.recorder.attempt_failed(slot.task, index, slot.worker, began, now, cause, error, final)
        return final is not None

    def _give_back(self, task: int, index: int) -> None:
        self.ledger.give_back(task, index)
        self.recorder.block_given_back(task, index)

    def _dirty(self, slot: Slot, text: str) -> None:
        if slot.is_guest:
            return
        state = self._tasks[slot.task].blocks.state
        state.worker_failure_count += 1
        state.first_worker_error = state.first_worker_error or text
        state.last_worker_error = text

    @staticmethod
    def _unpark(slot: Slot, entry: TaskSlots) -> None:
        if slot.parked:
            entry.parked.remove(slot)  # the first one, but for workers that died
            slot.parked = False

    def _release_slot(self, slot: Slot) -> None:
        entry = self._tasks[slot.task]
        self._unpark(slot, entry)
        if slot.is_guest:
            entry.guests -= 1
            return
        entry.live -= 1
        if self._free is not None:
            for name, amount in entry.blocks.spec.requires.items():
                self._free[name] += amount

    # -- decisions -------------------------------------------------------------------------------------------------

    def _settle(self, now: float, *, asking: Slot | None = None, balance: bool = False) -> list[Decision]:
        """Do all that has become possible: serve the slot that asks, then parked ones, then start and stop workers."""
        out: list[Decision] = []
        ledger = self.ledger
        if asking is not None:
            self._serve(asking, now, out)
        while ledger.changed:
            for task in sorted(ledger.changed):
                ledger.changed.discard(task)
                entry = self._tasks[task]
                while entry.parked and entry.blocks.state.ready_count:
                    slot = entry.parked[0]
                    self._serve(slot, now, out)
                    if not slot.held:
                        break  # ready blocks whose answer from the check function is not there yet
                balance = balance or (entry.blocks.state.ready_count > 0 and entry.live == 0)
        if balance and not self._stopping:
            self._balance(now, out)
            self._abandon_dead_tasks()
        self._stop_idle(now, out)
        if not out and not self.finished and ledger.is_stalled() and all(s.parked for s in self.slots.values()):
            raise StalledError(
                "blocks are unfinished, yet none is ready or in flight: please report this with the pipeline's layout"
            )
        return out

    def _serve(self, slot: Slot, now: float, out: list[Decision]) -> None:
        """Grant *slot* as many blocks as it may hold; park it if it holds none."""
        if slot.stopping or slot.retired or slot.gone or not slot.ready:
            return
        entry = self._tasks[slot.task]
        state = entry.blocks.state
        while True:
            held = len(slot.held)
            # Ahead only while every live worker could have as much.
            if held and (slot.on_demand or held >= entry.ahead or state.ready_count < held * entry.live):
                break
            index = None if self._stopping else self.ledger.acquire(slot.task)
            if index is None:
                break
            self.recorder.block_granted(slot.task, index, slot.worker)
            slot.held.append(index)
            if len(slot.held) == 1:
                self._begin(slot, now, idle_seconds=now - slot.free_since)
            out.append(Send(slot.worker, index))
        if slot.held:
            self._unpark(slot, entry)
            if len(slot.held) > 1 and self._next_review == inf and not self._one_at_a_time:
                self._next_review = slot.began_at + self._hoard_seconds
        elif not slot.parked:
            slot.parked = True
            entry.parked.append(slot)

    def _begin(self, slot: Slot, now: float, *, idle_seconds: float) -> None:
        slot.began_at = now
        slot.deadline = inf if self._one_at_a_time else now + self._tasks[slot.task].blocks.spec.timeout
        if slot.deadline < self._next_deadline:
            self._next_deadline = slot.deadline
        self.recorder.block_sent(slot.task, slot.held[0], slot.worker, now, idle_seconds)

    def _balance(self, now: float, out: list[Decision]) -> None:
        """Start workers until no task is eligible, always for the task with the fewest: so they share round by round.

        Among equals the first in pipeline order comes first. A worker that died makes room for the task that has
        least, not for the first one.
        """
        while True:
            eligible = [(entry.live, number) for number, entry in enumerate(self._tasks) if self._eligible(entry)]
            if not eligible:
                return
            _, number = min(eligible)
            self._start_worker(number, self._tasks[number], now, out)

    def _eligible(self, entry: TaskSlots) -> bool:
        blocks = entry.blocks
        state, spec = blocks.state, blocks.spec
        if not spec.has_function or state.abandoned or not state.ready_count:
            return False
        if entry.live >= spec.max_workers or not entry.starts_left:
            return False
        if entry.live + entry.guests >= state.ready_count + state.processing_count:
            return False
        free = self._free
        return free is None or all(amount <= free[name] for name, amount in spec.requires.items())

    def _start_worker(self, task: int, entry: TaskSlots, now: float, out: list[Decision]) -> None:
        worker = self._next_worker
        self._next_worker += 1
        spec, state = entry.blocks.spec, entry.blocks.state
        entry.live += 1
        entry.starts += 1
        state.started = True
        state.worker_start_count += 1
        state.worker_restart_count = max(0, entry.starts - spec.max_workers)
        if self._free is not None:
            for name, amount in spec.requires.items():
                self._free[name] -= amount
        self.slots[worker] = Slot(worker, task, free_since=now)
        self.recorder.worker_started(worker, task, now)
        out.append(StartWorker(worker, task))

    def _abandon_dead_tasks(self) -> None:
        for number, entry in enumerate(self._tasks):
            state = entry.blocks.state
            if state.abandoned or not state.ready_count or entry.live or entry.guests:
                continue
            if entry.blocks.spec.has_function and not entry.starts_left:
                self.ledger.abandon(number, "worker restart cap exhausted")

    def _stop_idle(self, now: float, out: list[Decision]) -> None:
        """Let parked workers go whose task has nothing more that could become ready."""
        for task, entry in enumerate(self._tasks):
            if not (entry.parked or (self._wire_seconds and entry.live)):
                continue
            state = entry.blocks.state
            if self._stopping or state.abandoned or not (state.ready_count or state.pending_count):
                while entry.parked:
                    slot = entry.parked.popleft()
                    slot.parked = False
                    out += self._stop(slot, now)
                if self._wire_seconds:  # far away some may wait for a place yet, and might do so for long
                    idle = [slot for slot in self.slots.values() if slot.task == task and not slot.has_asked]
                    out += [decision for slot in idle for decision in self._stop(slot, now)]

    def _stop(self, slot: Slot, now: float) -> list[Decision]:
        if slot.stopping or slot.retired:
            return []
        slot.stopping = True
        self.recorder.worker_stopping(slot.worker, now)
        return [StopWorker(slot.worker)]
