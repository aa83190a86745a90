"""The Ray engine on a real Ray: what happens to blocks when actors, machines and heads come and go."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import workspan as ws
from helpers.engine_kit import Run, is_gone, line, wait_until
from helpers.full import full
from helpers.hold import Holder, in_thread, interrupt_twice
from helpers.ray_kit import RayMachines, leaky, ray_environment, require_ray
from helpers.runs import line as task_on
from helpers.runs import run
from workspan.engines import Job, Ray, WorkerTask, cluster, ray_session
from workspan.engines.choose import engine_of
from workspan.engines.ray_link import actor_options, held, reason_of
from workspan.engines.ray_worker import HostActor
from workspan.errors import ConfigurationError, EngineError
from workspan.schedule.events import Ended

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("logs")]


def free_cpus(ray: Any) -> float:
    return float(ray.available_resources().get("CPU", 0))


@leaky
class TestSharedRay:
    """On the Ray that this process is connected to already."""

    def test_a_killed_actor_is_a_lost_lease(self, ray_cluster: Any, holder: Holder) -> None:
        """R70, R71, R1: the block runs again elsewhere, one attempt is lost, and the worker dies with its actor.

        The Ray of the program is used and left as it is, and all that was held there is given back.
        """
        task = task_on(6, holder.work, max_workers=1, requires={"shared": 1})
        thread, found = in_thread(lambda: run(task, Ray()))
        own, parent = holder.wait()
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: is_gone(own), "the worker died with its actor")
        second, _ = holder.wait()
        assert second != own
        holder.go()
        thread.join()
        (report,) = found
        assert report
        blocks = report["t"].blocks
        assert (blocks.count, blocks.failures) == (6, 1)
        assert report["t"].workers.count == 2
        assert ray_cluster.is_initialized()
        wait_until(lambda: free_cpus(ray_cluster) == 4, "the places are free again")

    def test_without_a_place_the_run_waits_and_says_so(
        self, ray_cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """R70: what no machine has is waited for, and named; a worker without a place ends at once when it is told."""
        monkeypatch.setattr(cluster, "NOTICE_SECONDS", 0.2)
        caplog.set_level(logging.WARNING, "workspan")
        engine = Ray()
        with engine:
            engine.open(Job("late", (WorkerTask("t", line(), str, requires={"scanner": 2}),)))
            engine.start_worker(0, 0)
            assert engine.poll(0.6) == []
            engine.stop_worker(0)
            (end,) = engine.poll(1)
        assert end == Ended(0, True, "stopped before it had a place")
        assert "no worker of task 't' has got a place on the Ray cluster" in caplog.text
        assert "none of its 1 machines has 2 scanner, busy or not; the task waits" in caplog.text

    def test_a_killed_worker_leaves_the_actor_alone(self, ray_cluster: Any, holder: Holder) -> None:
        """R7, D34: a block that ignores SIGTERM is ended all the same; the actor lives to tell of it.

        The worker of another version is refused in words (R10).
        """
        holder_work = holder.work

        def stubborn(block: Any) -> None:
            import signal

            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            holder_work(block)

        engine = Ray(kill_seconds=0.2)
        with engine:
            driver = Run(engine, Job("stubborn", (WorkerTask("t", line(), stubborn),)))
            driver.start()
            engine.send(0, 0)
            own, parent = holder.wait()
            assert not is_gone(parent)
            engine.kill_worker(0)
            end = driver.ended()
            assert not end.clean
            assert end.reason == "killed by SIGKILL"
            assert is_gone(own)
            engine._starts[0]["version"] = "9.9"
            engine.start_worker(1, 0)
            reason = driver.ended(1).reason
            assert "is installed there, the driver has 9.9: install the same version on both sides" in reason

    def test_a_dataset_gives_the_same_rows_and_figures(
        self, ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A25, M105: rows, calls and blocks agree to the last one, and so does the time of the step that takes it."""
        monkeypatch.chdir(tmp_path)
        found = {}
        for name, engine in (("processes", "processes"), ("ray", Ray())):
            data = ws.range(40, blocks=4).map_batches(double, batch_size=7).map(lambda row: {"z": row["y"] + 1})
            data = data.filter(ws.col("z") > 20)
            found[name] = data.to_arrow(engine=engine, max_workers=2), data.stats_summary()
        (table, one), (other, two) = found["processes"], found["ray"]
        assert table.equals(other)
        assert table.column("z").to_pylist() == [2 * n + 1 for n in range(10, 40)]
        times = []
        for mine, yours in zip(one.operators, two.operators, strict=True):
            assert [(s.label, s.pulls) for s in mine.steps] == [(s.label, s.pulls) for s in yours.steps]
            assert [(s.rows_out, s.calls, s.blocks_out) for s in mine.stages] == [
                (s.rows_out, s.calls, s.blocks_out) for s in yours.stages
            ]
            times += [
                (step.total_seconds / 8, its.total_seconds / 8)
                for step, its in zip(mine.steps, yours.steps, strict=True)
                if "double" in step.label
            ]
        assert times
        for mine, yours in times:
            assert yours == pytest.approx(mine, rel=0.05, abs=5e-3)

    def test_another_cluster_is_refused(self, ray_cluster: Any) -> None:
        """A program has one Ray at a time: the error says which one it is connected to, and what to do."""
        with pytest.raises(EngineError, match=r"is connected to another Ray already \(.*call ray.shutdown\(\) before"):
            Ray("127.0.0.1:9").open(Job("other", ()))
        address = ray_cluster.get_runtime_context().gcs_address
        for same in (address, "auto", None):
            with Ray(same) as engine:
                engine.open(Job("same", ()))
        assert ray_cluster.is_initialized()

    def test_a_worker_function_is_refused(self, ray_cluster: Any) -> None:
        """D26: no client can connect to a worker on a cluster."""
        with pytest.raises(EngineError, match="task 't' has no function of one block"):
            Ray().open(Job("clients", (WorkerTask("t", line(), None),)))

    @pytest.mark.parametrize("how", ["once", pytest.param("twice", marks=full), pytest.param("killed", marks=full)])
    def test_the_end_of_the_driver_leaves_nothing_on_the_cluster(
        self, how: str, ray_cluster: Any, holder: Holder, tmp_path: Path
    ) -> None:
        """R20, R19: after one SIGINT the block in flight may finish, after two, or a SIGKILL, it is ended."""
        address = ray_cluster.get_runtime_context().gcs_address
        driver = start_script(
            f"run(line(5, say_where({holder.gate.path!r}), max_workers=1), Ray({address!r}))", tmp_path
        )
        own, _ = holder.wait()
        if how == "twice":
            interrupt_twice(driver, tmp_path / "output")
        else:
            driver.send_signal(signal.SIGKILL if how == "killed" else signal.SIGINT)
        if how == "once":
            holder.go()
        driver.wait(40)
        assert how == "killed" or "KeyboardInterrupt" in (tmp_path / "output").read_text()
        wait_until(lambda: is_gone(own), "the worker ended")
        wait_until(lambda: free_cpus(ray_cluster) == 4, "the places are free again")


def double(batch: dict[str, Any]) -> dict[str, Any]:
    """Take about 20 ms."""
    import time

    time.sleep(0.02)
    return {**batch, "y": 2 * batch["id"]}


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import logging
logging.basicConfig(level="INFO", stream=sys.stdout)
from helpers.runs import line, run
from helpers.hold import announce_signals, say_where
from workspan.engines import Ray, cluster, ray_link
from workspan.run import session
session.GRACE_SECONDS = 60
announce_signals()
cluster.NOTICE_SECONDS = 1.0
ray_link.HEAD_SECONDS = 2.0
report = None
try:
    report = {code}
finally:
    if report is not None:
        own = report["t"]
        print("RESULT", bool(report), own.blocks.count, own.blocks.failures, own.workers.count)
"""


def start_script(code: str, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Run a program with a connection to Ray of its own; what it prints is in the file ``output``."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(path=[os.path.abspath(p) for p in sys.path if p], code=code))
    with (tmp_path / "output").open("w") as output, ray_environment(RAY_AUTH_MODE="token"):
        return subprocess.Popen([sys.executable, str(script)], stdout=output, stderr=output, cwd=tmp_path)


def result(driver: subprocess.Popen[bytes], tmp_path: Path, seconds: float = 50) -> list[str]:
    """Wait for the program; return what its report says."""
    driver.wait(seconds)
    output = (tmp_path / "output").read_text()
    lines = [text for text in output.splitlines() if text.startswith("RESULT")]
    assert lines, output
    return lines[-1].split()[1:]


class TestOwnRay:
    @pytest.mark.leaks("processes", reason="Ray's own helpers take more than a second to notice its end")
    def test_a_run_starts_a_ray_of_its_own_and_ends_it(self, tmp_path: Path) -> None:
        """D15, R19: ``engine="ray"`` starts one for the run, which prints nothing and is gone with it."""
        require_ray()
        driver = start_script("run(line(5, lambda block: None, max_workers=2), 'ray')", tmp_path)
        assert result(driver, tmp_path) == ["True", "5", "0", "2"]
        lines = (tmp_path / "output").read_text().splitlines()
        # On a busy machine it may come up so slowly that the run says that it waits.
        assert [text for text in lines if "RESULT" not in text and "has got a place" not in text] == []


@full
@pytest.mark.timeout(180)
@pytest.mark.leaks("processes", "files", reason="Ray's own helpers take more than a second to notice its end")
class TestMachines:
    """Clusters of several raylets, and programs that are drivers on them."""

    def test_a_killed_raylet_is_a_lost_machine(self, tmp_path: Path, holder: Holder) -> None:
        """R70, R71: with the raylet go its actors and our worker; the block runs again on another machine."""
        with RayMachines() as machines:
            first = machines.add(resources={"place": 1})
            task = f"line(6, say_where({holder.gate.path!r}), max_workers=1, requires={{'place': 1}})"
            driver = start_script(f"run({task}, Ray({machines.address!r}))", tmp_path)
            own, _ = holder.wait()
            machines.add(resources={"place": 1})
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: is_gone(own), "the worker died with its machine", 30)
            second, _ = holder.wait()
            assert second != own
            holder.go()
            assert result(driver, tmp_path) == ["True", "6", "1", "2"]

    def test_a_machine_that_joins_late_gets_work(self, tmp_path: Path) -> None:
        """R70: a run without a place waits and says so, and goes on when a machine joins."""
        with RayMachines() as machines:
            task = "line(6, lambda block: None, max_workers=1, requires={'late': 1})"
            driver = start_script(f"run({task}, Ray({machines.address!r}))", tmp_path)
            wait_until(lambda: "1 late" in (tmp_path / "output").read_text(), "it says that it waits", 40)
            machines.add(resources={"late": 1})
            assert result(driver, tmp_path) == ["True", "6", "0", "1"]

    def test_the_end_of_the_head_ends_the_run(self, tmp_path: Path, holder: Holder) -> None:
        """R70: the run ends with an error that says what to do, and the next one does only the rest."""
        with RayMachines() as machines:
            machines.add(resources={"place": 1})
            task = f"line(6, say_where({holder.gate.path!r}), requires={{'place': 1}}, tracking_path='track')"
            driver = start_script(f"run({task}, Ray({machines.address!r}))", tmp_path)
            holder.wait()
            machines.kill_head()
            driver.wait(60)
        output = (tmp_path / "output").read_text()
        assert "EngineError: the connection to the head of the Ray cluster at" in output
        assert "run again when the cluster is back, and only the rest is done" in output
        again = run(task_on(6, lambda block: None, max_workers=1, tracking_path=tmp_path / "track"))
        assert again
        assert again["t"].blocks.count == 6

    def test_a_wrong_token_is_explained(self, tmp_path: Path) -> None:
        """The error says which settings hold the token."""
        with RayMachines() as machines:
            wrong = "__import__('os').environ.update(RAY_AUTH_TOKEN='no' * 32)"
            code = f"{wrong} or run(line(1, lambda block: None), Ray({machines.address!r}))"
            driver = start_script(code, tmp_path)
            driver.wait(60)
        output = (tmp_path / "output").read_text()
        assert "it asks for a token, and there is none here or a wrong one: set RAY_AUTH_MODE=token" in output


class TestWords:
    def test_what_a_task_requires_is_what_the_actor_holds(self) -> None:
        """R70, R71: Ray's own kinds by their names, all others as custom resources; and Ray repeats nothing."""
        fixed = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
        assert held({"gpu": 1, "scanner": 2}) == {"CPU": 1, "GPU": 1, "scanner": 2}
        assert actor_options({}) == {"num_cpus": 1, **fixed}
        assert actor_options({"cpu": 4, "GPU": 1, "memory": 10, "scanner": 2}) == {
            "num_cpus": 4,
            "num_gpus": 1,
            "memory": 10,
            "resources": {"scanner": 2},
            **fixed,
        }

    @pytest.mark.parametrize(
        ("said", "meant"),
        [
            (
                "The actor died unexpectedly before finishing this task.\n\tclass_name: HostActor\n\tactor_id: ab\n"
                "\tpid: 7\n\tnamespace: x\n\tip: 10.0.0.1\nThe actor is dead because its worker process has died.",
                "its Ray actor was lost: The actor died unexpectedly before finishing this task. ip: 10.0.0.1 The "
                "actor is dead because its worker process has died.",
            ),
            (
                "The actor died.\nWorker exit type: NODE_OUT_OF_MEMORY Worker exit detail: killed",
                "its actor was ended by Ray's memory monitor, because the machine ran out of memory: The actor died. "
                "Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: killed",
            ),
            (
                "The actor died because its node has died. Node Id: 12",
                "its actor was lost with its machine, or with the raylet there: The actor died because its node has "
                "died. Node Id: 12",
            ),
            (
                "ModuleNotFoundError: No module named 'workspan'",
                "could not start: workspan is not installed, or not in this version, on the Ray cluster: "
                "ModuleNotFoundError: No module named 'workspan'",
            ),
        ],
    )
    def test_the_end_of_an_actor_is_explained(self, said: str, meant: str) -> None:
        """R70: memory monitor, lost machine and missing package are told apart, on one line."""
        assert reason_of(RuntimeError(said)) == meant

    def test_the_word_for_the_engine(self) -> None:
        """D15: ``ray`` and ``ray://host:port`` are engines; without an address nothing is guessed."""
        assert isinstance(engine_of("ray"), Ray)
        assert isinstance(engine_of("ray://head:10001"), Ray)
        with pytest.raises(ConfigurationError, match=r"has no address: give host and port, such as 'ray://host:10001'"):
            engine_of("ray://")
        with pytest.raises(EngineError, match=r"Ray\(7\): pass the address of a cluster as text"):
            Ray(7)  # type: ignore[arg-type]
        with pytest.raises(EngineError, match=r"Ray\(''\): pass the address of a cluster as text"):
            Ray("")

    def test_without_the_package_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """D15: the error says what to install."""
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(EngineError, match=r"engine 'ray' needs 'ray' .*: pip install 'workspan\[ray\]'"):
            Ray().open(Job("bare", ()))

    def test_a_head_that_is_not_there_is_named(self) -> None:
        """Before Ray tries for a minute, a head that takes no connection is an error with its address."""
        for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
            with pytest.raises(EngineError, match=rf"the head of the Ray cluster at {address} does not answer: "):
                ray_session._connect(None, address, threading.Event())


class Deaf:
    """A Ray whose ``init`` waits for :attr:`heard`, as before something that is no head."""

    def __init__(self) -> None:
        self.heard, self.left = threading.Event(), threading.Event()

    def init(self, **options: Any) -> None:
        self.heard.wait()

    def shutdown(self) -> None:
        self.left.set()


def test_a_head_that_answers_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """R20: the wait ends, and a connection that comes about later is given back."""
    monkeypatch.setattr(ray_session, "INIT_SECONDS", 0.05)
    ray = Deaf()
    with pytest.raises(EngineError, match=r"at auto cannot be used: Ray has not connected in 0\.05 s; is it the port"):
        ray_session._connect(ray, "auto", threading.Event())
    ray.heard.set()
    assert ray.left.wait(10)


def test_an_address_without_a_port_is_refused() -> None:
    """Ray Client would try for half a minute."""
    with pytest.raises(EngineError, match=r"Ray\('ray://head'\) has no port: .* 'ray://host:10001'"):
        ray_session._connect(None, "ray://head", threading.Event())


def test_commands_that_overtake_each_other_are_put_in_order() -> None:
    """B81: Ray does not keep the order of calls of an actor with ``async`` methods; the numbers do."""
    actor = HostActor({}, 0)
    got: list[bytes] = []

    class Ears:
        tell = staticmethod(got.append)

    actor._host = Ears()  # type: ignore[assignment]
    for number in (1, 3, 0, 2):
        asyncio.run(actor.tell(number, b"%d" % number))
    assert got == [b"0", b"1", b"2", b"3"]
