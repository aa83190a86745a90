"""The Dask engine on real clusters: what happens to blocks when workers, machines and schedulers come and go."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from helpers.dask_kit import DaskCluster
from helpers.engine_kit import Gate, Run, is_gone, line, wait_until
from helpers.runs import line as task_on
from helpers.runs import run
from workspan.engines import Dask, Job, WorkerTask, cluster
from workspan.errors import EngineError
from workspan.schedule.events import Ready, Returned

distributed = pytest.importorskip("distributed")

FULL = os.environ.get("WORKSPAN_FULL") == "1"
full = pytest.mark.skipif(not FULL, reason="a heavier fault: WORKSPAN_FULL=1 runs it")
rough = pytest.mark.leaks("processes", reason="workers that join the shared cluster stay until its end")


@pytest.fixture(scope="module")
def rough_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A scheduler without workers: each test adds some of its own, told apart by a resource."""
    made = DaskCluster(tmp_path_factory.mktemp("rough"))
    yield made
    made.close()


@pytest.fixture
def client(rough_cluster: DaskCluster) -> Any:
    """A client as a user would have one."""
    with distributed.Client(rough_cluster.address, set_as_default=False) as made:
        yield made


def workers_with(client: Any, resource: str) -> list[str]:
    """Addresses of the Dask workers that have a resource."""
    found = client.scheduler_info(n_workers=-1)["workers"]
    return [address for address, entry in found.items() if resource in entry["resources"]]


def has_workers(client: Any, resource: str, count: int = 1) -> None:
    wait_until(lambda: len(workers_with(client, resource)) >= count, f"{count} workers with {resource}")


def say_where(path: str) -> Any:
    """A block function that tells its process and that of its Dask worker, waits at a gate, and goes on."""

    def work(block: Any) -> None:
        import os

        if block.index == 0:
            with open(path, "w") as file:
                file.write(f"{os.getpid()} {os.getppid()}\n")
            with open(path + ".go") as go:
                go.read()

    return work


class Holder:
    """The driver's side of :func:`say_where`."""

    def __init__(self, folder: Path) -> None:
        self.gate = Gate(folder / "where")
        os.mkfifo(str(folder / "where.go"))
        self.go_path = str(folder / "where.go")
        self.work = say_where(self.gate.path)

    def wait(self) -> tuple[int, int]:
        """Return the worker's process and that of its Dask worker."""
        own, parent = self.gate.wait().split()
        return int(own), int(parent)

    def go(self) -> None:
        """Let the block go on."""
        os.close(os.open(self.go_path, os.O_WRONLY))


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    return Holder(tmp_path)


def in_thread(function: Any) -> tuple[threading.Thread, list[Any]]:
    """Run *function* in a thread; what it returns, or raises, is in the list."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, found


class TestFaults:
    @rough
    def test_a_killed_dask_worker_is_a_lost_lease(
        self, rough_cluster: DaskCluster, client: Any, holder: Holder
    ) -> None:
        """R70, R1: the block runs again elsewhere, one attempt is lost, and the worker process dies with its place."""
        one = rough_cluster.add_worker("--resources", "killed=1")
        has_workers(client, "killed")
        task = task_on(6, holder.work, max_workers=1, requires={"killed": 1})
        thread, found = in_thread(lambda: run(task, Dask(rough_cluster.address)))
        own, parent = holder.wait()
        assert parent == one.pid
        rough_cluster.add_worker("--resources", "killed=1")
        os.killpg(one.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(own), "the worker died with its Dask worker")
        second, _ = holder.wait()
        assert second != own
        holder.go()
        thread.join()
        (report,) = found
        blocks = report["t"].blocks
        assert report
        assert (blocks.count, blocks.failures) == (6, 1)
        assert report["t"].workers.count == 2
        assert client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.extensions["queues"].queues)) == []

    @rough
    def test_a_retired_worker_finishes_its_block(self, rough_cluster: DaskCluster, client: Any, holder: Holder) -> None:
        """R70, W9: a Dask worker that is retired in mid-block returns that block, and costs no start."""
        rough_cluster.add_worker("--resources", "retired=1")
        has_workers(client, "retired")
        task = task_on(6, holder.work, max_workers=1, max_worker_restarts=0, requires={"retired": 1})
        thread, found = in_thread(lambda: run(task, Dask(client)))
        holder.wait()
        (address,) = workers_with(client, "retired")
        retiring, _ = in_thread(lambda: client.retire_workers([address]))
        wait_until(lambda: f"Stopping worker at {address}" in rough_cluster.log(), "Dask ends the worker")
        rough_cluster.add_worker("--resources", "retired=1")
        holder.go()
        thread.join()
        retiring.join()
        (report,) = found
        assert report
        blocks = report["t"].blocks
        assert (blocks.count, blocks.failures) == (6, 0)
        assert report["t"].workers.count == 2

    @rough
    def test_a_run_without_workers_waits_for_one(
        self, rough_cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """R70: with no Dask worker the run waits and says so, and goes on when one joins."""
        monkeypatch.setattr(cluster, "NOTICE_SECONDS", 0.2)
        task = task_on(3, lambda block: None, max_workers=2, requires={"late": 1})
        caplog.set_level(logging.WARNING, "workspan")
        thread, found = in_thread(lambda: run(task, Dask(rough_cluster.address)))
        wait_until(lambda: "needed are 1 late" in caplog.text, "the run says that it waits")
        rough_cluster.add_worker("--resources", "late=1")
        thread.join()
        assert found[0]
        assert "no worker has got a place on the Dask cluster" in caplog.text

    def test_the_end_of_the_scheduler_ends_the_run(self, tmp_path: Path, holder: Holder) -> None:
        """R70: the run ends with an error that says what to do, and the next one does only the rest."""
        own_cluster = DaskCluster(tmp_path / "own")
        try:
            worker = own_cluster.add_worker()
            task = task_on(3, holder.work, max_workers=1, tracking_path=tmp_path / "track")
            thread, found = in_thread(lambda: run(task, Dask(own_cluster.address)))
            own, _ = holder.wait()
            os.killpg(own_cluster.scheduler.pid, signal.SIGKILL)
            thread.join()
            (error,) = found
            assert isinstance(error, EngineError)
            assert "the connection to the Dask scheduler" in str(error)
            assert "run again when the cluster is back" in str(error)
            wait_until(lambda: is_gone(own), "the worker ended")
            worker.wait(40)
        finally:
            own_cluster.close()
        again = run(task_on(3, lambda block: None, max_workers=1, tracking_path=tmp_path / "track"))
        assert again
        assert again["t"].blocks.count == 3

    @rough
    @full
    def test_a_killed_nanny_takes_its_worker_along(
        self, rough_cluster: DaskCluster, client: Any, holder: Holder
    ) -> None:
        """R70: a nanny that is killed in mid-block costs one attempt, and leaves no process of ours behind."""
        nanny = rough_cluster.add_worker("--resources", "nanny=1", nanny=True)
        has_workers(client, "nanny")
        task = task_on(4, holder.work, max_workers=1, requires={"nanny": 1})
        thread, found = in_thread(lambda: run(task, Dask(rough_cluster.address)))
        own, _ = holder.wait()
        rough_cluster.add_worker("--resources", "nanny=1")
        nanny.kill()
        wait_until(lambda: is_gone(own), "the worker died with its nanny")
        holder.wait()
        holder.go()
        thread.join()
        assert found[0]
        assert found[0]["t"].blocks.failures == 1

    @rough
    @full
    def test_a_dask_worker_that_its_nanny_restarts_is_used_again(
        self, rough_cluster: DaskCluster, client: Any, holder: Holder
    ) -> None:
        """R70: where a nanny restarts a Dask worker that died, the block runs again there."""
        rough_cluster.add_worker("--resources", "again=1", nanny=True)
        has_workers(client, "again")
        task = task_on(4, holder.work, max_workers=1, requires={"again": 1})
        thread, found = in_thread(lambda: run(task, Dask(rough_cluster.address)))
        own, parent = holder.wait()
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: is_gone(own), "the worker died with its Dask worker")
        _, new_parent = holder.wait()
        assert new_parent != parent
        holder.go()
        thread.join()
        assert found[0]
        assert found[0]["t"].blocks.failures == 1


@pytest.fixture
def address(dask_cluster: DaskCluster) -> str:
    """Of the shared cluster, whose only Dask worker has four threads."""
    return dask_cluster.address


@pytest.fixture
def shared(address: str) -> Any:
    """A client of the shared cluster."""
    with distributed.Client(address, set_as_default=False) as made:
        yield made


def what_is_left(client: Any) -> tuple[list[str], list[str]]:
    """Tasks and queues that the scheduler knows."""

    def look(dask_scheduler: Any) -> tuple[list[str], list[str]]:
        return list(map(str, dask_scheduler.tasks)), list(dask_scheduler.extensions["queues"].queues)

    found: tuple[list[str], list[str]] = client.run_on_scheduler(look)
    return found


class TestPlaces:
    def test_workers_in_one_dask_worker_are_measured_apart(self, address: str, tmp_path: Path) -> None:
        """D22, M105: two workers at threads of one Dask worker, one busy and one asleep: each has its own figures."""
        gates = [Gate(tmp_path / "a"), Gate(tmp_path / "b")]
        paths = [gate.path for gate in gates]

        def work(block: Any) -> None:
            import time

            with open(paths[block.index], "w") as file:
                file.write("here\n")
            end = time.perf_counter() + 0.3
            if block.index:
                time.sleep(0.3)
            while time.perf_counter() < end:
                pass

        engine = Dask(address)
        with engine:
            driver = Run(engine, Job("apart", (WorkerTask("t", line(), work, resource_tracking=True),)))
            driver.start(0)
            driver.start(1)
            engine.send(0, 0)
            engine.send(1, 1)
            for gate in gates:
                gate.wait()
            found = {}
            while len(found) < 2:
                event = driver.until(lambda event: isinstance(event, Returned))
                assert isinstance(event, Returned)
                found[event.index] = event.stats
        assert found[0].cpu_seconds > 0.1
        assert found[1].cpu_seconds < 0.1
        assert found[1].wall_seconds >= 0.3

    def test_a_killed_worker_leaves_the_dask_worker_alone(self, address: str, holder: Holder) -> None:
        """R7, D34: a block that ignores SIGTERM is ended all the same, within the deadline, and Dask's worker stays."""

        def stubborn(block: Any) -> None:
            import signal

            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            holder_work(block)

        holder_work = holder.work
        engine = Dask(address, kill_seconds=0.2)
        with engine:
            driver = Run(engine, Job("stubborn", (WorkerTask("t", line(), stubborn),)))
            driver.start()
            engine.send(0, 0)
            own, parent = holder.wait()
            engine.kill_worker(0)
            end = driver.ended()
            assert not end.clean
            assert end.reason == "killed by SIGKILL"
            assert is_gone(own)
            assert not is_gone(parent)

    def test_a_task_that_is_cancelled_on_the_cluster_is_a_lost_worker(
        self, address: str, shared: Any, holder: Holder
    ) -> None:
        """R70: whoever cancels our task on the scheduler ends our worker; the run knows and goes on without it."""
        engine = Dask(address)
        with engine:
            driver = Run(engine, Job("cancelled", (WorkerTask("t", line(), holder.work),)))
            driver.start()
            engine.send(0, 0)
            own, _ = holder.wait()
            (key,), _ = what_is_left(shared)
            shared.cancel([distributed.Future(key, shared)], force=True)
            assert not driver.ended().clean
            wait_until(lambda: is_gone(own), "the worker ended")

    def test_an_idle_worker_makes_room_for_one_of_another_task(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R10: on a cluster of fixed size no task waits forever for places that idle workers of another one hold."""
        monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 0.2)
        engine = Dask(address)
        tasks = tuple(WorkerTask(name, line(), lambda block: None) for name in ("one", "two"))
        with engine:
            driver = Run(engine, Job("crowded", tasks))
            for worker in range(4):
                driver.start(worker, task=0)
            engine.start_worker(4, 1)
            event = driver.until(lambda event: event.worker < 4)
            assert event.clean  # type: ignore[union-attr]
            assert event.withdrawn  # type: ignore[union-attr]
            assert driver.until(lambda event: event.worker == 4) == Ready(4)


class TestEnds:
    @pytest.mark.parametrize("times", [1, 2])
    def test_ctrl_c_leaves_nothing_on_the_cluster(
        self, times: int, address: str, shared: Any, holder: Holder, tmp_path: Path
    ) -> None:
        """R20: after one SIGINT the block in flight may finish, after two it is ended; nothing is left anywhere."""
        own, driver = start_script(address, holder, tmp_path)
        driver.send_signal(signal.SIGINT)
        if times == 2:
            threading.Event().wait(0.3)  # two signals that are sent together arrive as one
            driver.send_signal(signal.SIGINT)
        else:
            holder.go()
        driver.wait(30)
        assert "KeyboardInterrupt" in (tmp_path / "output").read_text()
        wait_until(lambda: is_gone(own), "the worker ended")
        wait_until(lambda: what_is_left(shared) == ([], []), "the scheduler has forgotten the run")

    def test_a_killed_driver_leaves_no_worker(self, address: str, shared: Any, holder: Holder, tmp_path: Path) -> None:
        """R19: workers on the cluster end by themselves when their driver is killed."""
        own, driver = start_script(address, holder, tmp_path)
        driver.kill()
        driver.wait()
        wait_until(lambda: is_gone(own), "the worker ended")
        wait_until(lambda: what_is_left(shared)[0] == [], "the scheduler has forgotten its task")


def start_script(address: str, holder: Holder, tmp_path: Path) -> tuple[int, Any]:
    """Run a program that waits in its first block; return the worker's process and the program's."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path[:0] = {[os.path.abspath(p) for p in sys.path if p]!r}
            import logging
            logging.basicConfig(level="INFO", stream=sys.stdout)
            from helpers.runs import line, run
            from test_dask_work import say_where
            from workspan.engines import Dask
            from workspan.run import session
            session.GRACE_SECONDS = 60
            run(line(5, say_where({holder.gate.path!r}), max_workers=1), Dask({address!r}))
            """
        )
    )
    source = Path(__file__).read_text()
    begin, end = source.index("def say_where"), source.index("class Holder")
    (tmp_path / "test_dask_work.py").write_text("from typing import Any\n\n\n" + source[begin:end])
    with (tmp_path / "output").open("w") as output:
        driver = subprocess.Popen([sys.executable, str(script)], stdout=output, stderr=output, cwd=tmp_path)
    own, _ = holder.wait()
    return own, driver
