"""What engines on other people's clusters share: what is sent to a worker there, what comes back, who holds what.

Such an engine (Dask, Ray) brings one :class:`~workspan.engines.host.Host` to a place of the cluster for each worker,
and carries bytes between it and the :class:`Roster` in the driver, in order, over the cluster's own transport:

- :func:`start_values` is the host's argument, as builtin values; the function is in it, packed once for all workers;
- commands go to the host and reports come back, lists of them packed to bytes by :func:`pack_commands` and
  :func:`pack_reports`. They are data only: nothing that comes back is ever unpickled;
- whatever the cluster says of a place (it is lost, it never came to be) the engine gives the roster as a :class:`Lost`,
  behind all reports that came before.

The roster turns reports into the events that `base.py` promises, whatever the cluster does: an end comes once, nothing
comes after it, and a second copy of a worker that the cluster started by itself is turned away.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.engines import wire
from workspan.engines.payload import driver_settings, pack_function, task_settings
from workspan.errors import EngineError
from workspan.measure.notes import Note, bring_home
from workspan.schedule.events import Ended, Ready, Returned, TakenBack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from workspan.engines.base import Job
    from workspan.schedule.events import Event

__all__ = ["Command", "Kill", "Lost", "Placed", "Recall", "Report", "Roster", "Seat", "start_values"]

VERSION: str = sys.modules[__name__.partition(".")[0]].__version__
"""Of this package, which is loaded already: its face is not for the inner rooms to import."""

_PLAIN: dict[str, Any] = {"array_like": True, "forbid_unknown_fields": True, "frozen": True}

# -- to the host -----------------------------------------------------------------------------------------------------


class Recall(msgspec.Struct, tag=101, gc=False, **_PLAIN):
    """Give back what your worker has not begun."""


class Kill(msgspec.Struct, tag=102, gc=False, **_PLAIN):
    """End your worker, with all that it started."""

    seconds: float
    """Time from SIGTERM to SIGKILL; 0: SIGKILL at once."""


Command = wire.Grant | wire.Stop | Recall | Kill

# -- from the host ---------------------------------------------------------------------------------------------------


class Placed(msgspec.Struct, tag=True, frozen=True):
    """The worker has got a place on the cluster; its process is about to be started. The first report of a host."""

    worker: int
    token: str
    """Of this host alone: a cluster may start a second one for a worker whose place it has lost."""
    place: str
    """The cluster's name for the place, by which it tells of its loss."""
    host: str
    pid: int
    """Of the process that the host lives in, not of the worker's own."""
    logs_in_files: bool
    """Whether the worker's output is in the run's log folder; else it is in that of the cluster's own worker."""


class Found(msgspec.Struct, tag=True, frozen=True):
    """Measurements of steps that the worker made."""

    worker: int
    notes: list[Note]


class Ending(msgspec.Struct, tag=True, frozen=True):
    """The worker is gone, as its host saw it. The last report of a host."""

    event: Ended
    taken: int
    """How many blocks the host was ever sent: those after them never reached it."""


class Lost(msgspec.Struct, tag=True, frozen=True):
    """The host is gone, as the cluster says. Made in the driver."""

    worker: int
    token: str | None
    """Of which host; ``None``: of whichever there is."""
    reason: str


Report = Placed | Ready | Returned | TakenBack | Found | Ending | Lost

_pack = msgspec.msgpack.Encoder().encode
_commands = msgspec.msgpack.Decoder(list[Command])
_reports = msgspec.msgpack.Decoder(list[Report])


def pack_commands(commands: list[Command]) -> bytes:
    """Return *commands* as they travel."""
    return _pack(commands)


def unpack_commands(data: bytes) -> list[Command]:
    """Return what :func:`pack_commands` packed."""
    return _commands.decode(data)


def pack_reports(reports: list[Report]) -> bytes:
    """Return *reports* as they travel."""
    return _pack(reports)


def unpack_reports(data: bytes) -> list[Report]:
    """Return what :func:`pack_reports` packed.

    Raises
    ------
    EngineError
        It did not.
    """
    try:
        return _reports.decode(data)
    except msgspec.ValidationError as error:
        raise EngineError(
            f"a worker on the cluster sent a report that this driver cannot read: {error}; is the same version of "
            "workspan installed there?"
        ) from None


# -- the payload -----------------------------------------------------------------------------------------------------


def start_values(job: Job, *, kill_seconds: float, start_seconds: float) -> list[dict[str, Any]]:
    """Return what hosts are told, one for each task of *job*: builtin values only, which any transport can carry.

    Raises
    ------
    EngineError
        A function cannot be sent, or a task has none that takes blocks.
    """
    for task in job.tasks:
        if task.function is None or task.kind == "worker":
            raise EngineError(
                f"task {task.task_id!r} has no function of one block, and no client can connect to a worker on a "
                "cluster: give it a process_function with one parameter, the block, or use engine='processes'"
            )
    shared = driver_settings()
    return [
        {
            **versions(),
            "run_id": job.run_id,
            "settings": {**shared, **task_settings(task)},
            "function": pack_function(task.task_id, task.function) if task.function is not None else b"",
            "log_dir": None if job.log_dir is None else str(job.log_dir),
            "kill_seconds": kill_seconds,
            "start_seconds": start_seconds,
        }
        for task in job.tasks
    ]


def token_file(log_dir: Path, run_id: str) -> Path:
    """Return the file that a driver leaves in its log folder, by which a host sees whether that folder is shared."""
    return log_dir / f".workspan-run-{run_id}"


def versions() -> dict[str, Any]:
    """Return what must be the same where a worker is, for :func:`check_match`."""
    return {"version": VERSION, "python": list(sys.version_info[:2])}


def check_match(start: dict[str, Any]) -> None:
    """Refuse to work for a driver of another version, on a cluster's worker.

    Raises
    ------
    EngineError
        Workspan or Python differ from the driver's.
    """
    if start["version"] != VERSION:
        raise EngineError(
            f"workspan {VERSION} is installed there, the driver has {start['version']}: install the same version "
            "on both sides"
        )
    if list(sys.version_info[:2]) != list(start["python"]):
        there, here = (".".join(map(str, version)) for version in (sys.version_info[:2], start["python"]))
        raise EngineError(
            f"Python {there} runs there, the driver has {here}: functions can be sent between equal versions only"
        )


def lack_of(requires: Mapping[str, int], places: Iterable[Mapping[str, float]]) -> str:
    """Return what none of *places*, each given by all that it has, has of what a worker *requires*; or else ``""``.

    >>> lack_of({"GPU": 2}, [{"GPU": 1}, {"CPU": 8}])
    '2 GPU'
    """
    places = list(places)

    def fits(needs: Mapping[str, int]) -> bool:
        return any(all(place.get(name, 0) >= amount for name, amount in needs.items()) for place in places)

    if fits(requires):
        return ""
    lacking = {name: amount for name, amount in requires.items() if not fits({name: amount})}
    words = [f"{amount} {name}" for name, amount in sorted((lacking or requires).items())]
    return " and ".join(words) + ("" if lacking else " together")


# -- in the driver ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Seat:
    """One worker as the driver knows it."""

    worker: int
    task: int
    asked_at: float
    """When a place was asked for, on the monotonic clock."""
    placed: Placed | None = None
    held: deque[int] = field(default_factory=deque)
    """Blocks sent and not returned, in order."""
    sent: int = 0
    """How many blocks were sent to it ever."""
    ready: bool = False
    stop_sent: bool = False
    kill_sent: bool = False
    withdrawn: bool = False
    """Its place goes to another task: it is told to stop, though the scheduler does not know yet."""
    idle_since: float = inf
    """Since when it holds nothing, on the monotonic clock."""


class Roster:
    """Who works where, and holds what; turns reports into events."""

    def __init__(self) -> None:
        self.seats: dict[int, Seat] = {}

    def add(self, worker: int, task: int, now: float) -> Seat:
        """Note a worker that a place was asked for.

        Raises
        ------
        EngineError
            Its number was used before and is in use still.
        """
        if worker in self.seats:
            raise EngineError(f"worker {worker} was started before: give each worker a number of its own")
        seat = self.seats[worker] = Seat(worker, task, now)
        return seat

    def grant(self, worker: int, index: int) -> Seat | None:
        """Note that a block is sent; return to whom, or ``None`` for a worker that has ended or is about to.

        Raises
        ------
        EngineError
            It was told to stop.
        """
        seat = self.seats.get(worker)
        if seat is None:
            return None
        if seat.stop_sent:
            raise EngineError(f"worker {worker} was told to stop: it takes no more blocks")
        if seat.kill_sent:
            return None
        seat.held.append(index)
        seat.sent += 1
        seat.idle_since = inf
        return None if seat.withdrawn else seat

    def waiting(self) -> list[Seat]:
        """Return those that have no place yet."""
        return [seat for seat in self.seats.values() if seat.placed is None]

    def at(self, place: str) -> list[Seat]:
        """Return those whose place is *place*."""
        return [seat for seat in self.seats.values() if seat.placed is not None and seat.placed.place == place]

    def replaceable(self, now: float, patience: float) -> Seat | None:
        """Return a worker that idles while one of another task has waited for a place: both for *patience* seconds.

        On a cluster of fixed size the idle one could wait for blocks that only the other one can make ready.
        """
        starved = {seat.task for seat in self.waiting() if now - seat.asked_at >= patience and not seat.stop_sent}
        for seat in self.seats.values():
            idles = seat.ready and not (seat.stop_sent or seat.withdrawn) and now - seat.idle_since >= patience
            if idles and starved - {seat.task}:
                return seat
        return None

    def take(self, reports: Iterable[Report], now: float) -> tuple[list[Event], list[Placed]]:
        """Take in reports.

        Returns
        -------
        tuple
            What they tell the scheduler, and the hosts to be turned away: nobody waits for them any more.
        """
        events: list[Event] = []
        strangers: list[Placed] = []
        for report in reports:
            if isinstance(report, Ending):
                self._end(report, events)
                continue
            seat = self.seats.get(report.worker)
            if isinstance(report, Placed):
                if seat is None:
                    strangers.append(report)
                elif seat.placed is not None:
                    # The cluster runs it again elsewhere, before it told of the loss.
                    strangers.append(report)
                    self._lose(seat, f"its place {seat.placed.place} on the cluster was lost", events)
                else:
                    seat.placed = report
            elif seat is None:
                continue
            elif isinstance(report, Lost):
                if report.token is None or (seat.placed is not None and seat.placed.token == report.token):
                    self._lose(seat, report.reason, events)
            elif isinstance(report, Returned):
                if seat.held and seat.held[0] == report.index:
                    seat.held.popleft()
                    seat.idle_since = inf if seat.held else now
                    events.append(report)
            elif isinstance(report, TakenBack):
                back = set(report.indices)
                seat.held = deque(index for index in seat.held if index not in back)
                events.append(report)
            elif isinstance(report, Found):
                bring_home(report.notes)
            elif not seat.ready:
                seat.ready, seat.idle_since = True, now
                events.append(report)
        return events, strangers

    def _end(self, ending: Ending, events: list[Event]) -> None:
        seat = self.seats.pop(ending.event.worker, None)
        if seat is None:
            return
        # Sent, but never received: the last ones.
        missed = min(seat.sent - ending.taken, len(seat.held))
        unstarted = set(ending.event.unstarted) | set(list(seat.held)[len(seat.held) - missed :])
        held = [index for index in seat.held if index in unstarted]
        event = msgspec.structs.replace(ending.event, unstarted=tuple(held))
        if seat.withdrawn and event.clean:
            event = msgspec.structs.replace(event, withdrawn=True, reason="made room for a worker of another task")
        events.append(event)

    def _lose(self, seat: Seat, reason: str, events: list[Event]) -> None:
        del self.seats[seat.worker]
        events.append(Ended(seat.worker, False, reason))
