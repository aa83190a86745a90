"""Slurm for tests: programs that stand for its commands, and a real one of a single node where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# -- programs that stand for sbatch, squeue and scancel ----------------------------------------------------------------

_PROGRAM = r"""
import json, os, re, signal, subprocess, sys
from pathlib import Path

home = Path(__file__).resolve().parent.parent
jobs = home / "jobs"
me, words = Path(sys.argv[0]).name, sys.argv[1:]
with (home / "calls").open("a") as file:
    file.write(" ".join([me, *words]) + "\n")
trouble = home / f"{me}-says"  # lines "how often|exit code|text"
if trouble.exists():
    often, code, text = trouble.read_text().split("|")
    if int(often) > 0:
        trouble.write_text(f"{int(often) - 1}|{code}|{text}")
        sys.exit(print(text, file=sys.stderr) or int(code))

def state(job):
    if job["pid"] is None:
        return job["state"]
    try:
        with open(f"/proc/{job['pid']}/stat") as file:
            alive = file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        alive = False
    return "RUNNING" if alive else job["state"] if job["state"] != "RUNNING" else "FAILED"

def begin(path):
    job = json.loads(path.read_text())
    number, _, element = path.name.partition("_")
    env = {**os.environ, "SLURM_JOB_ID": number}
    if element:
        env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": element}
    log = job["output"].replace("%A", number).replace("%a", element).replace("%j", number)
    with open(log, "ab") as out:
        child = subprocess.Popen(["bash", "-c", job["script"]], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                 env=env, start_new_session=True)
    path.write_text(json.dumps({**job, "pid": child.pid, "state": "RUNNING"}))

if me == "sbatch":
    number = str(100 + len(list(jobs.glob("*"))))
    options = dict(w[2:].partition("=")[::2] for w in words)
    last = int(options["array"].split("-")[1]) if "array" in options else 0
    script = sys.stdin.read()
    for name in [f"{number}_{n}" for n in range(1, last + 1)] or [number]:
        made = {"script": script, "output": options["output"], "pid": None, "state": "PENDING"}
        (jobs / name).write_text(json.dumps(made))
        if not (home / "hold").exists():
            begin(jobs / name)
    print(number)
elif me == "release":
    for path in jobs.glob("*"):
        if json.loads(path.read_text())["state"] == "PENDING":
            begin(path)
elif me == "squeue":
    wanted = next(w for w in words if w.startswith("--jobs=")).partition("=")[2].split(",")
    for path in sorted(jobs.glob("*")):
        if path.name.partition("_")[0] in wanted:
            print(f"{path.name}|{state(json.loads(path.read_text()))}|None")
elif me == "scancel":
    only = [w.partition("=")[2] for w in words if w.startswith("--state=")]
    for name in (w for w in words if not w.startswith("-")):
        for path in [p for p in jobs.glob("*") if name in (p.name, p.name.partition("_")[0])]:
            job = json.loads(path.read_text())
            now = state(job)
            if now not in ("RUNNING", "PENDING") or (only and now not in only):
                continue
            if job["pid"] is not None:
                try:
                    os.killpg(job["pid"], signal.SIGTERM)
                except ProcessLookupError:
                    pass
            path.write_text(json.dumps({**job, "state": "CANCELLED"}))
"""


class StandIn:
    """A folder with programs named as Slurm's, which start jobs at once, or when they are released.

    Parameters
    ----------
    home
        An empty folder.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "jobs").mkdir(parents=True)
        self.bin = home / "bin"
        self.bin.mkdir()
        for name in ("sbatch", "squeue", "scancel", "release"):
            program = self.bin / name
            program.write_text(f"#!{sys.executable} -SE\n{_PROGRAM}")
            program.chmod(0o755)

    def hold(self) -> None:
        """Keep jobs in the queue."""
        (self.home / "hold").touch()

    def release(self) -> None:
        """Start what is in the queue, and whatever comes."""
        (self.home / "hold").unlink(missing_ok=True)
        subprocess.run([self.bin / "release"], check=True)

    def trouble(self, command: str, text: str, often: int = 1, code: int = 1) -> None:
        """Let *command* fail with *text*, as often as said."""
        (self.home / f"{command}-says").write_text(f"{often}|{code}|{text}")

    def calls(self, command: str) -> list[str]:
        """Return the command lines of *command* so far."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] == command]

    def states(self) -> dict[str, str]:
        """Return job -> state."""
        names = ",".join(sorted({path.name.partition("_")[0] for path in (self.home / "jobs").glob("*")}))
        out = subprocess.run(
            [self.bin / "squeue", f"--jobs={names}"], capture_output=True, text=True, check=True
        ).stdout
        return dict(line.split("|")[:2] for line in out.splitlines())

    def pid(self, job: str) -> int:
        """Return the process of a job."""
        import json

        return int(json.loads((self.home / "jobs" / job).read_text())["pid"])


# -- the real one ------------------------------------------------------------------------------------------------------

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
SlurmctldPort={port}
SlurmdPort={other}
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    """Return why no real Slurm can be started here; ``None`` if it can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurmctld slurmd slurm-client munge)"
    return "Slurm's daemons are started by root only" if os.geteuid() else None


@contextmanager
def real_slurm(home: Path) -> Iterator[dict[str, str]]:
    """Run a Slurm of one node in folder *home*; yields the environment in which its commands find it."""
    for name in ("state", "spool"):
        (home / name).mkdir(parents=True)
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    host = socket.gethostname().partition(".")[0]
    conf = home / "slurm.conf"
    conf.write_text(_CONF.format(host=host, home=home, port=ports[0], other=ports[1]))
    key = home / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    env = {**os.environ, "SLURM_CONF": str(conf)}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env}
    files = [f"--{name}-file={home}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    daemons = [
        subprocess.Popen(["munged", "--foreground", "--force", f"--socket={home}/munge.socket", *files], **quiet),
    ]
    try:
        _wait_for(lambda: (home / "munge.socket").exists(), "munged")
        daemons.append(subprocess.Popen(["slurmctld", "-D", "-c", "-f", str(conf)], **quiet))
        daemons.append(subprocess.Popen(["slurmd", "-D", "-f", str(conf)], **quiet))
        ask = ["sinfo", "--noheader", "--format=%t"]
        _wait_for(
            lambda: subprocess.run(ask, capture_output=True, text=True, env=env).stdout.strip() == "idle", "Slurm"
        )
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _wait_for(condition, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come up")
        time.sleep(0.05)
