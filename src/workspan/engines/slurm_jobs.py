"""What is said to Slurm: submit, look, cancel; by its own commands, in a thread, as each may take long or fail."""

from __future__ import annotations

import logging
import os
import queue
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from workspan.errors import EngineError

__all__ = ["Gone", "Jobs", "Refused", "Submitted", "Waiting"]

logger = logging.getLogger(__name__)

COMMAND_SECONDS = 60.0
"""Time for one command: a busy controller may need half a minute."""
BACK_OFF_SECONDS = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)
"""Waits between tries to submit, where Slurm is out of reach or busy."""
CANCEL_SECONDS = 10.0
"""Longest time for the last commands of a run."""

# What sbatch says when it is worth trying again; anything else is an answer.
_BUSY = re.compile(
    r"socket timed out|unable to contact|connection (refused|reset|timed out)|temporarily|try again|"
    r"communication|zero bytes|backup controller|did not answer",
    re.IGNORECASE,
)
_ALIVE = {
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
    "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
}  # fmt: skip
_FOLDER = ".workspan-slurm"


@dataclass(frozen=True)
class Submitted:
    """Jobs wait in Slurm's queue."""

    task: int
    jobs: tuple[str, ...]
    """As Slurm names them: ``"123"``, or ``"123_4"`` for one of an array."""


@dataclass(frozen=True)
class Refused:
    """Slurm will not have the jobs of a task; trying again is of no use."""

    task: int
    reason: str


@dataclass(frozen=True)
class Gone:
    """A job ended."""

    job: str
    reason: str


@dataclass(frozen=True)
class Waiting:
    """Jobs that have not begun yet, with Slurm's reason for one of them."""

    count: int
    reason: str


News = Submitted | Refused | Gone | Waiting


@dataclass
class _Submission:
    task: int
    count: int
    script: str
    words: tuple[str, ...]
    tries: int = 0
    due: float = 0.0


@dataclass
class _Watched:
    absent: int = 0
    """Looks in a row that did not find it."""


class Jobs:
    """The jobs of one run.

    Parameters
    ----------
    tell
        Called in the thread with each piece of news.
    folder
        Where the ids of jobs are kept, so that a run that is killed leaves no job behind: the next one that uses the
        folder cancels them.
    poll_seconds
        How often jobs that have not begun are looked at.

    Raises
    ------
    EngineError
        Slurm's commands are not there, or the folder cannot be written.
    """

    def __init__(self, tell: Callable[[News], object], folder: Path, poll_seconds: float) -> None:
        missing = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
        if missing:
            raise EngineError(
                f"{', '.join(missing)}: not found on PATH, so there is no Slurm here: start the program where sbatch "
                "works (a login node), or use another engine"
            )
        self._tell = tell
        self._poll_seconds = poll_seconds
        self._list = folder / _FOLDER / f"{socket.gethostname()}-{os.getpid()}"
        try:
            self._list.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"{str(folder)!r} cannot keep the ids of jobs: {error.strerror or error}") from error
        self._orders: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._submissions: list[_Submission] = []
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._is_closing = False
        self._numbers: list[str] = []
        """Of every submission of this run."""
        self._complaints: set[str] = set()
        self._next_look = 0.0
        self._thread = threading.Thread(target=self._run, name="workspan-slurm", daemon=True)
        self._thread.start()

    # -- orders; none of them waits ----------------------------------------------------------------------------------

    def submit(self, task: int, count: int, script: str, words: Iterable[str]) -> None:
        """Submit *script* to run *count* times; *words* are further arguments of ``sbatch``."""
        self._orders.put(("submit", _Submission(task, count, script, tuple(words))))

    def watch(self, jobs: Iterable[str]) -> None:
        """Tell when one of *jobs* has ended."""
        with self._lock:
            for job in jobs:
                self._watched.setdefault(job, _Watched())

    def ignore(self, job: str) -> None:
        """Look at *job* no more: its worker is there, or nobody waits for it."""
        with self._lock:
            self._watched.pop(job, None)

    def cancel(self, jobs: Iterable[str]) -> None:
        """Cancel *jobs*."""
        named = list(jobs)
        for job in named:
            self.ignore(job)
        if named:
            self._orders.put(("cancel", named))

    def look_soon(self) -> None:
        """Look at the jobs now, not only when their time has come."""
        self._orders.put(("look", None))

    def close(self, jobs: Iterable[str]) -> None:
        """Cancel *jobs*, and those that are just being submitted; end the thread, in bounded time."""
        with self._lock:
            self._is_closing = True
            self._watched.clear()
        self._orders.put(("close", list(jobs)))
        self._thread.join(2 * CANCEL_SECONDS)
        if self._thread.is_alive():
            left = " ".join(self._numbers)
            logger.warning("Slurm does not answer: jobs may be left in its queue; end them with: scancel %s", left)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._sweep()
        while True:
            now = monotonic()
            due = min((s.due for s in self._submissions), default=now + 3600.0)
            if self._watched:
                due = min(due, self._next_look)
            try:
                what, value = self._orders.get(timeout=max(0.0, due - now))
            except queue.Empty:
                what, value = "due", None
            if what == "close":
                assert isinstance(value, list)
                self._end(value)
                return
            if what == "submit":
                assert isinstance(value, _Submission)
                self._submissions.append(value)
            elif what == "cancel":
                assert isinstance(value, list)
                self._cancel(value)
            elif what == "look":
                self._next_look = 0.0
            now = monotonic()
            for submission in [s for s in self._submissions if s.due <= now]:
                self._submit(submission)
            if self._watched and self._next_look <= monotonic():
                self._look()
                self._next_look = monotonic() + self._poll_seconds

    def _submit(self, submission: _Submission) -> None:
        words = ["sbatch", "--parsable", *submission.words]
        if submission.count > 1:
            words.append(f"--array=1-{submission.count}")
        code, out, err = _command(words, submission.script)
        if code == 0 and (number := out.strip().split(";")[0]).isdigit():
            self._submissions.remove(submission)
            several = range(1, submission.count + 1) if submission.count > 1 else ()
            jobs = tuple(f"{number}_{element}" for element in several) or (number,)
            self._numbers.append(number)
            self._keep(number)
            self.watch(jobs)
            self._next_look = monotonic() + min(1.0, self._poll_seconds)
            self._tell(Submitted(submission.task, jobs))
            return
        text = " ".join((err or out).split()) or f"exit code {code}"
        if code == 0 or not _BUSY.search(text) or submission.tries >= len(BACK_OFF_SECONDS):
            self._submissions.remove(submission)
            self._tell(Refused(submission.task, text))
            return
        wait = BACK_OFF_SECONDS[submission.tries]
        submission.tries += 1
        submission.due = monotonic() + wait
        self._complain("sbatch", f"sbatch: {text}; it is tried again")

    def _look(self) -> None:
        with self._lock:
            names = list(self._watched)
        words = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r"]
        code, out, err = _command([*words, f"--jobs={','.join(sorted({n.split('_')[0] for n in names}))}"])
        if code != 0 and "invalid job id" not in err.lower():
            self._complain("squeue", f"squeue: {' '.join(err.split()) or f'exit code {code}'}; it is tried again")
            return
        states: dict[str, tuple[str, str]] = {}
        for line in out.splitlines():
            job, _, rest = line.strip().partition("|")
            state, _, reason = rest.partition("|")
            states[job] = state, reason
        pending = [states[name][1] for name in names if states.get(name, ("",))[0] == "PENDING"]
        if pending:
            self._tell(Waiting(len(pending), pending[0]))
        for name in names:
            with self._lock:
                watched = self._watched.get(name)
            if watched is None:
                continue
            state, reason = states.get(name, ("", ""))
            if state in _ALIVE:
                watched.absent = 0
                continue
            # Slurm forgets jobs some minutes after their end; one look may have met a controller that has just begun.
            watched.absent += 1
            if state or watched.absent > 1:
                self.ignore(name)
                self._tell(Gone(name, f"{state} ({reason})" if reason not in ("", "None") else state or "ended"))

    def _cancel(self, jobs: list[str]) -> None:
        code, _, err = _command(["scancel", *jobs])
        if code != 0 and "invalid job id" not in err.lower():
            self._complain("scancel", f"scancel {' '.join(jobs)}: {' '.join(err.split()) or f'exit code {code}'}")

    def _end(self, jobs: list[str]) -> None:
        if jobs:
            self._cancel(jobs)
        if self._numbers:  # one that Slurm put into its queue again is not to run for nobody
            self._cancel(["--state=PENDING", *self._numbers])
        with suppress(OSError):
            self._list.unlink()
        with suppress(OSError):
            self._list.parent.rmdir()

    def _complain(self, what: str, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            logger.warning("%s", text)

    # -- what a killed run left --------------------------------------------------------------------------------------

    def _keep(self, number: str) -> None:
        with suppress(OSError), self._list.open("a") as file:
            file.write(f"{number}\n")

    def _sweep(self) -> None:
        """Cancel the jobs of runs of this machine that were killed."""
        host = f"{socket.gethostname()}-"
        for path in list(self._list.parent.glob(f"{host}*")):
            pid = path.name.removeprefix(host)
            if not pid.isdigit() or path == self._list:
                continue
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                with suppress(OSError):
                    numbers = [line for line in path.read_text().split() if line.isdigit()]
                    if numbers:
                        logger.warning("cancelling jobs of a run that was killed: %s", " ".join(numbers))
                        self._cancel(numbers)
                    path.unlink()
            except OSError:
                continue


def _command(words: list[str], text: str | None = None) -> tuple[int, str, str]:
    """Run a command of Slurm's; return its exit code, output and errors."""
    try:
        done = subprocess.run(
            words,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            start_new_session=True,  # Ctrl-C in the terminal is for the program
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"{words[0]} did not answer within {COMMAND_SECONDS:g} s"
    except OSError as error:
        return 1, "", f"{words[0]} cannot be run: {error.strerror or error}"
    return done.returncode, done.stdout, done.stderr
