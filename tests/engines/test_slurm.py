"""Workers in Slurm jobs: by programs that stand for Slurm's, and on a real Slurm of one node where there is one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

import workspan as ws
from helpers.slurm_kit import StandIn, real_slurm, why_no_slurm
from workspan.engines import Slurm, remote
from workspan.engines.slurm_script import leave_seconds, limit_seconds, limit_text, script
from workspan.engines.slurm_seats import Seat, Seats
from workspan.errors import AbandonedError, ConfigurationError, EngineError

pytestmark = [
    pytest.mark.usefixtures("logs"),
    pytest.mark.leaks("threads", reason="a worker's interpreter ends itself"),
]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Stand-ins for Slurm's commands, first on PATH."""
    made = StandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("WORKSPAN_HOST", "127.0.0.1")
    return made


def engine(**options) -> Slurm:
    return Slurm(poll_seconds=0.1, **options)


def task(function, blocks: int = 4, **options) -> ws.Task:
    one = ws.Roi((0,), (1,))
    return ws.Task("t", ws.Roi((0,), (blocks,)), one, one, function, read_write_conflict=False, **options)


def run(made: ws.Task, by: Slurm) -> ws.RunReport:
    return ws.run_blockwise(made, engine=by, progress=False, summary=False, return_report=True)


def later(condition, act) -> threading.Thread:
    """Call *act* once *condition* holds."""

    def wait() -> None:
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


class TestTimes:
    @pytest.mark.parametrize(
        ("time", "seconds", "text"),
        [
            ("01:00:00", 3600, "01:00:00"),
            ("90", 5400, "90"),
            (90, 5400, "01:30:00"),
            ("1:30", 90, "1:30"),
            ("1-12", 129600, "1-12"),
            ("1-12:30", 131400, "1-12:30"),
            ("2-0:0:1", 172801, "2-0:0:1"),
            (timedelta(seconds=90.5), 90.5, "00:01:31"),
            (None, None, None),
            ("UNLIMITED", None, "UNLIMITED"),
        ],
    )
    def test_limits(self, time, seconds, text):
        """Every spelling of sbatch's --time is known, and numbers and timedeltas become one of them."""
        assert limit_seconds(time) == seconds
        assert limit_text(time) == text

    @pytest.mark.parametrize("time", ["soon", "-1", 0, float("nan"), True, "1:2:3:4"])
    def test_what_is_no_limit(self, time):
        """What sbatch would not take is refused before anything is submitted, with its value."""
        with pytest.raises(ConfigurationError, match="time="):
            Slurm(time=time)

    def test_workers_leave_before_their_limit(self):
        """W9: a tenth of the limit before it, two minutes at most; or as asked, but within the limit."""
        assert [leave_seconds(t, None) for t in (None, 5, "10:00:00")] == [0, 30, 120]
        assert leave_seconds("10:00:00", 600) == 600
        with pytest.raises(ConfigurationError, match="not below the time limit"):
            leave_seconds(1, 60)

    def test_the_script_has_no_secret(self):
        """R47: what Slurm shows to others names a file that only its owner can read; the worker replaces the shell."""
        text = script("/a b/python", Path("/x y/context"), "module load cuda\n")
        assert text == "#!/bin/bash\nmodule load cuda\nexec '/a b/python' -m workspan worker --context '/x y/context'\n"


class TestSeats:
    def test_whoever_comes_first_takes_the_seat_that_waits_longest(self):
        """R69: seats and jobs are not tied to each other; what is too many is cancelled, the newest first."""
        seats = Seats()
        for worker in (1, 2):
            seats.by_worker[worker] = Seat(worker, 0)
        assert seats.balance(0) == (2, [])
        seats.asked(0, 2)
        assert seats.submitted(0, ("7_1", "7_2")) == []
        assert seats.balance(0) == (0, [])
        assert seats.join("7_2", 0).worker == 1
        del seats.by_worker[2]
        assert seats.balance(0) == (0, ["7_1"])

    def test_a_job_that_connects_before_sbatch_has_answered(self):
        """R69: it is one of those that were asked for, and is not counted twice when the answer comes."""
        seats = Seats()
        seats.by_worker[1] = Seat(1, 0)
        seats.asked(0, seats.balance(0)[0])
        assert seats.is_ours("9", 0)
        assert seats.join("9", 0).worker == 1
        assert seats.submitted(0, ("9",)) == []
        assert seats.waiting == {}
        seats.by_worker[2] = Seat(2, 0)
        assert seats.balance(0) == (1, [])

    def test_a_job_that_runs_again_is_a_new_worker(self):
        """R69: after a requeue it takes the seat of its replacement, whose job is then too many."""
        seats = Seats()
        seats.by_worker[1] = Seat(1, 0)
        seats.asked(0, 1)
        seats.submitted(0, ("5",))
        seats.join("5", 0)
        del seats.by_worker[1]  # lost
        seats.by_worker[2] = Seat(2, 0)
        assert seats.balance(0) == (1, [])
        seats.asked(0, 1)
        seats.submitted(0, ("6",))
        assert seats.join("5", 0).worker == 2
        assert seats.balance(0) == (0, ["6"])

    def test_what_is_on_its_way_and_not_needed_is_cancelled_when_it_comes(self):
        """R69: a seat that is given up before sbatch has answered leaves no job behind."""
        seats = Seats()
        seats.by_worker[1] = Seat(1, 0)
        seats.asked(0, 1)
        del seats.by_worker[1]
        assert seats.balance(0) == (0, [])
        seats.by_worker[2] = Seat(2, 0)
        assert seats.balance(0) == (0, [])
        del seats.by_worker[2]
        assert seats.balance(0) == (0, [])
        assert seats.submitted(0, ("4",)) == ["4"]


def note(folder: Path):
    """Return a block function that leaves a file per attempt, named by job and block."""

    def work(block):
        import os
        import secrets

        name = f"{os.environ.get('SLURM_ARRAY_TASK_ID') or os.environ['SLURM_JOB_ID']}-{block.block_id[1]}"
        (folder / f"{name}-{secrets.token_hex(2)}").touch()

    return work


@pytest.mark.once
class TestStandIn:
    def test_a_run(self, slurm, tmp_path):
        """Issue 11: all blocks are done by jobs of one array, measured like any others, and nothing is left."""
        made = task(note(tmp_path), 6, max_workers=2, resource_tracking=True, tracking_path=tmp_path / "track")
        report = run(made, engine(partition="p", time="00:10:00", memory="1G", options=["--account=x"]))
        assert report
        assert len(list(tmp_path.glob("[12]-*"))) == 6
        assert report.tasks["t"].blocks.wall.n == 6
        (call,) = slurm.calls("sbatch")
        for word in ("--array=1-2", "--partition=p", "--mem=1G", "--account=x", "--signal=B:USR1@60", "--requeue"):
            assert word in call.split()
        assert set(slurm.states().values()) <= {"FAILED", "RUNNING"}  # ended, or about to
        assert not list((tmp_path / "logs").glob(".workspan*"))

    def test_gpus(self, slurm, tmp_path):
        """R69: what a task requires is asked of Slurm by the name that other engines have for it, too."""
        slurm.hold()
        made = task(note(tmp_path), 1, max_workers=1, requires={"GPU": 2})
        helper = later(lambda: slurm.calls("sbatch"), slurm.release)
        assert run(made, engine())
        helper.join()
        assert "--gres=gpu:2" in slurm.calls("sbatch")[0].split()

    def test_a_worker_that_does_not_fit_says_why(self, slurm, monkeypatch):
        """R10: another version of Workspan, or a module that only the driver has, is in the error with what to do."""

        class Odd:
            def __reduce__(self):
                return __import__, ("not_there",)

            def __call__(self, block):
                """Be a function."""

        with pytest.raises(AbandonedError, match="No module named 'not_there'"):
            run(task(Odd(), 1, max_workers=1, max_worker_restarts=0), engine())
        monkeypatch.setattr(remote, "VERSION", "9.9")
        with pytest.raises(AbandonedError, match=r"the driver has 9\.9: install the same version on both sides"):
            run(task(str, 1, max_workers=1, max_worker_restarts=0), engine())

    def test_jobs_that_wait_for_long_are_no_dead_workers(self, slurm, tmp_path):
        """R69: the queue's time is start-up, and counts as no failure."""
        slurm.hold()
        thread = later(lambda: len(slurm.calls("squeue")) > 2, slurm.release)
        report = run(task(note(tmp_path), 2, max_worker_restarts=0), engine())
        thread.join()
        assert report
        assert report.tasks["t"].workers.startup.max > 0.2
        assert len(slurm.calls("sbatch")) == 1

    def test_a_slow_controller_is_asked_again(self, slurm, tmp_path, monkeypatch):
        """R69: sbatch and squeue that fail for now cost time, and no worker."""
        monkeypatch.setattr("workspan.engines.slurm_jobs.BACK_OFF_SECONDS", (0.05, 0.05, 0.05))
        slurm.trouble("sbatch", "sbatch: error: Socket timed out on send/recv operation", often=2)
        slurm.trouble("squeue", "slurm_load_jobs error: Unable to contact slurm controller", often=3)
        assert run(task(note(tmp_path), 2, max_worker_restarts=0), engine())
        assert len(slurm.calls("sbatch")) == 3

    def test_a_refusal_ends_the_run(self, slurm, tmp_path):
        """R69: what is no use to try again is told in Slurm's words."""
        slurm.trouble("sbatch", "sbatch: error: invalid partition specified: nosuch")
        with pytest.raises(EngineError, match="invalid partition specified: nosuch"):
            run(task(note(tmp_path)), engine(partition="nosuch"))
        assert len(slurm.calls("sbatch")) == 1

    def test_jobs_that_end_before_they_connect(self, slurm, tmp_path):
        """R69, B90: they use up the starts of the task, and their own last words are shown."""
        with pytest.raises(AbandonedError, match=r"ended before its worker connected: FAILED\nno such module"):
            run(task(note(tmp_path), max_worker_restarts=1), engine(setup="echo no such module; exit 3"))
        assert len(slurm.calls("sbatch")) == 2

    def test_no_slurm(self, tmp_path, monkeypatch):
        """Without its commands the error says what is missing and what to do."""
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(EngineError, match="sbatch, squeue, scancel: not found on PATH"):
            run(task(lambda block: None), engine())

    def test_worker_functions_are_refused(self, slurm):
        """They start their workers themselves, so that the engine would start starters."""
        with pytest.raises(EngineError, match="worker function"):
            run(task(lambda: None), engine())

    @pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
    def test_workers_leave_in_good_order(self, slurm, tmp_path, name):
        """W9, R69: near its limit, or preempted, a worker ends its block and leaves; that uses up no start."""
        gate = tmp_path / "gate"

        def work(block):
            import time

            (gate.parent / f"begun-{block.block_id[1]}").touch()
            while block.block_id[1] == 1 and not gate.exists():
                time.sleep(0.01)

        def push() -> None:
            os.kill(slurm.pid("100"), getattr(signal, name))
            gate.touch()

        thread = later((tmp_path / "begun-1").exists, push)
        report = run(task(work, 4, max_workers=1, max_worker_restarts=0, max_retries=0), engine())
        thread.join()
        assert report
        assert report.tasks["t"].blocks.failures == 0
        assert [worker.exit for worker in report.tasks["t"].workers.records] == ["clean", "clean"]
        assert len(slurm.calls("sbatch")) == 2

    def test_a_killed_job_loses_one_attempt(self, slurm, tmp_path):
        """R1, R69: what it held runs again, in a job that replaces it."""

        def work(block):
            import os
            import signal

            mark = tmp_path / "died"
            if block.block_id[1] == 2 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        report = run(task(work, 4, max_workers=1), engine())
        assert report
        assert report.tasks["t"].blocks.failures == 1
        assert "Slurm job 100" in report.tasks["t"].workers.records[0].text

    def test_an_interrupted_run_cancels_its_jobs(self, slurm, tmp_path):
        """R69: jobs in the queue and jobs at work are cancelled when the run ends."""
        slurm.hold()
        thread = later(lambda: slurm.calls("squeue"), lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run(task(note(tmp_path), max_workers=2), engine())
        thread.join()
        assert set(slurm.states().values()) == {"CANCELLED"}

    def test_the_jobs_of_a_killed_run_are_cancelled_by_the_next(self, slurm, tmp_path):
        """R19, R69: a driver that is killed leaves the ids of its jobs, and the next one in the folder cancels them."""
        slurm.hold()
        program = (
            "import os, signal, threading, time, workspan as ws\n"
            "ws.logging.set_log_basedir('logs')\n"
            "one = ws.Roi((0,), (1,))\n"
            "def kill():\n"
            "    while not list(__import__('pathlib').Path('logs/.workspan-slurm').glob('*')): time.sleep(.01)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "threading.Thread(target=kill).start()\n"
            "task = ws.Task('t', ws.Roi((0,), (4,)), one, one, lambda block: None, read_write_conflict=False)\n"
            "ws.run_blockwise(task, engine=ws.engines.Slurm(poll_seconds=.1), progress=False)\n"
        )
        killed = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=30, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert set(slurm.states().values()) == {"PENDING"}
        (slurm.home / "hold").unlink()
        assert run(task(note(tmp_path), 1, max_workers=1), engine())
        assert slurm.states()["100"] == "CANCELLED"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A real Slurm of one node; gives its environment."""
    reason = why_no_slurm()
    if reason:
        pytest.skip(reason)
    with real_slurm(tmp_path_factory.mktemp("slurm")) as env:
        yield env


@pytest.fixture
def real(cluster, monkeypatch):
    """Let this process use the real Slurm; gives a function that runs one of its commands."""
    monkeypatch.setenv("SLURM_CONF", cluster["SLURM_CONF"])
    monkeypatch.setenv("WORKSPAN_HOST", "127.0.0.1")

    def command(*words: str) -> str:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    return command


def none_left(command) -> None:
    """Wait until Slurm has taken notice that the last job has ended."""
    end = time.monotonic() + 60
    while jobs := command("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING"):
        assert time.monotonic() < end, jobs
        time.sleep(0.05)


@pytest.mark.once
class TestReal:
    def test_a_run(self, real, tmp_path):
        """Issue 11: on Debian's own Slurm all blocks are done by jobs, measured, and no job is left."""
        made = task(note(tmp_path), 6, max_workers=2, resource_tracking=True, tracking_path=tmp_path / "track")
        report = run(made, engine(partition="short", time="5"))
        assert report
        assert report.tasks["t"].blocks.wall.n == 6
        assert [worker.exit for worker in report.tasks["t"].workers.records] == ["clean", "clean"]
        none_left(real)

    @pytest.mark.parametrize("how", [["scancel"], ["scontrol", "requeue"], ["scancel", "--signal=USR1", "--batch"]])
    def test_a_job_that_slurm_takes_away(self, real, tmp_path, how):
        """R69, W9: scancel, requeue and the signal near the limit let a worker finish its block: no attempt is lost."""
        gate = tmp_path / "gate"

        def work(block):
            import os
            import time

            (gate.parent / f"begun-{os.environ['SLURM_JOB_ID']}").touch()
            while block.block_id[1] == 1 and not gate.exists():
                time.sleep(0.01)

        def take() -> None:
            real(*how, next(tmp_path.glob("begun-*")).name.partition("-")[2])
            gate.touch()

        thread = later(lambda: list(tmp_path.glob("begun-*")), take)
        report = run(task(work, 4, max_workers=1, max_retries=0), engine(partition="short"))
        thread.join()
        assert report
        assert report.tasks["t"].blocks.failures == 0
        none_left(real)
