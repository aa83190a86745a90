"""Who waits for a job, and which jobs wait for somebody: plain bookkeeping, without I/O.

A *seat* is a worker that the scheduler asked for. Jobs are asked for by the task, in as many as there are seats without
one, and whichever connects first takes the seat that has waited longest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

__all__ = ["Seat", "Seats"]


@dataclass(slots=True, eq=False)
class Seat:
    """A worker that the scheduler asked for."""

    worker: int
    task: int
    job: str | None = None
    """The job that has taken it."""
    done: int = 0
    """Blocks that came back from it."""
    stop_sent: bool = False

    @property
    def taken(self) -> bool:
        """Whether its worker is there."""
        return self.job is not None


class Seats:
    """The seats and jobs of one run."""

    def __init__(self) -> None:
        self.by_worker: dict[int, Seat] = {}
        self.waiting: dict[str, int] = {}
        """Jobs in the queue, or just begun, whose worker has not connected -> their task."""
        self._asked: Counter[int] = Counter()
        """Task -> jobs that were asked for, and of which Slurm has said nothing yet."""
        self._unwanted: Counter[int] = Counter()
        """Task -> how many of those nobody will need."""
        self._known: set[str] = set()
        """Every job that Slurm has told of."""
        self._early: set[str] = set()
        """Jobs that connected before Slurm had told of them."""

    @property
    def at_work(self) -> list[str]:
        """Jobs whose worker is there."""
        return [seat.job for seat in self.by_worker.values() if seat.job is not None]

    def empty(self, task: int) -> list[Seat]:
        """Return the seats of a task that no job has taken, longest waiting first."""
        return [seat for seat in self.by_worker.values() if seat.task == task and not seat.taken]

    def balance(self, task: int) -> tuple[int, list[str]]:
        """Return how many jobs are missing, and those that are too many, which are forgotten."""
        queued = [job for job, its in self.waiting.items() if its == task]
        missing = len(self.empty(task)) - len(queued) - (self._asked[task] - self._unwanted[task])
        if missing >= 0:
            # A job on its way that nobody needed is needed again.
            again = min(missing, self._unwanted[task])
            self._unwanted[task] -= again
            return missing - again, []
        surplus = queued[max(0, len(queued) + missing) :]
        self._unwanted[task] += -missing - len(surplus)
        for job in surplus:
            del self.waiting[job]
        return 0, surplus

    def asked(self, task: int, count: int) -> None:
        """Note that jobs are being submitted."""
        self._asked[task] += count

    def submitted(self, task: int, jobs: tuple[str, ...]) -> list[str]:
        """Note that Slurm has taken *jobs*; return those that nobody needs by now."""
        self._known.update(jobs)
        late = [job for job in jobs if job not in self._early]
        self._early.difference_update(jobs)
        self._asked[task] -= len(late)
        surplus = min(self._unwanted[task], len(late))
        self._unwanted[task] -= surplus
        kept = len(late) - surplus
        self.waiting.update((job, task) for job in late[:kept])
        return late[kept:]

    def is_ours(self, job: str | None, task: int) -> bool:
        """Whether a worker that says it runs in *job* was started by this run."""
        return job is not None and (job in self._known or job in self._early or self._asked[task] > 0)

    def join(self, job: str, task: int) -> Seat | None:
        """Give a seat to a job that has connected; ``None`` if none is empty."""
        if self.waiting.pop(job, None) is None and job not in self._known and job not in self._early:
            self._early.add(job)
            self._asked[task] -= 1
        for seat in self.empty(task):
            seat.job = job
            return seat
        return None

    def gone(self, job: str) -> Seat | None:
        """Take the seat that waits longest from the task of a job that ended before it connected."""
        task = self.waiting.pop(job, None)
        if task is not None:
            for seat in self.empty(task):
                return self.by_worker.pop(seat.worker)
        return None
