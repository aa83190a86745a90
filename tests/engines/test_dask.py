"""The Dask engine on real clusters: what happens to blocks when workers, machines and schedulers come and go."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import workspan as ws
from helpers.dask_kit import DaskCluster
from helpers.engine_kit import Gate, Run, is_gone, line, wait_until
from helpers.runs import line as task_on
from helpers.runs import run
from workspan.engines import Dask, Job, WorkerTask, cluster, dask_link, remote
from workspan.errors import EngineError, MapError
from workspan.schedule.events import Ended, Ready, Returned

distributed = pytest.importorskip("distributed")

FULL = os.environ.get("WORKSPAN_FULL") == "1"
full = pytest.mark.skipif(not FULL, reason="a heavier fault: WORKSPAN_FULL=1 runs it")
rough = pytest.mark.leaks("processes", reason="workers that join the shared cluster stay until its end")


pytestmark = [pytest.mark.usefixtures("logs"), pytest.mark.once]


@pytest.fixture(scope="module")
def rough_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A scheduler, and the Dask workers that earlier tests have left alive; the last test of all ends it."""
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
    def test_a_run_without_workers_waits_for_one(
        self, rough_cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """R70: with no Dask worker the run waits and says so, and goes on when one joins."""
        monkeypatch.setattr(cluster, "NOTICE_SECONDS", 0.2)
        task = task_on(3, lambda block: None, max_workers=2, requires={"late": 1})
        caplog.set_level(logging.WARNING, "workspan")
        thread, found = in_thread(lambda: run(task, Dask(rough_cluster.address)))
        wait_until(lambda: "needed are 1 late" in caplog.text, "the run says that it waits")
        rough_cluster.add_worker("--resources", "late=1 spare=1")
        thread.join()
        assert found[0]
        assert "no worker of task 't' has got a place on the Dask cluster" in caplog.text

    @rough
    def test_workers_without_a_place_do_not_hold_up_the_end(
        self, rough_cluster: DaskCluster, client: Any, tmp_path: Path
    ) -> None:
        """R70, W9: three workers for one place: one does the work, and the run ends without places for the others."""
        rough_cluster.have(client, 1)
        only = workers_with(client, "spare")[:1]
        task = task_on(6, lambda block: (tmp_path / f"pid.{os.getpid()}").touch(), max_workers=3, requires={"spare": 1})
        report = run(task, Dask(rough_cluster.address, workers=only))
        assert report
        assert report["t"].workers.exits == {"clean": 3}
        assert len(list(tmp_path.glob("pid.*"))) == 1

    @rough
    def test_a_killed_dask_worker_is_a_lost_lease(
        self, rough_cluster: DaskCluster, client: Any, holder: Holder
    ) -> None:
        """R70, R1: the block runs again elsewhere, one attempt is lost, and the worker process dies with its place."""
        rough_cluster.have(client, 2)
        task = task_on(6, holder.work, max_workers=1, requires={"spare": 1})
        thread, found = in_thread(lambda: run(task, Dask(rough_cluster.address)))
        own, parent = holder.wait()
        os.killpg(parent, signal.SIGKILL)
        wait_until(lambda: is_gone(own), "the worker died with its Dask worker")
        second, second_parent = holder.wait()
        assert second != own
        assert second_parent != parent
        holder.go()
        thread.join()
        (report,) = found
        blocks = report["t"].blocks
        assert report
        assert (blocks.count, blocks.failures) == (6, 1)
        assert report["t"].workers.count == 2
        wait_until(lambda: what_is_left(client) == ([], []), "the scheduler has forgotten the run, and those before it")

    @full
    @rough
    def test_a_retired_worker_finishes_its_block(self, rough_cluster: DaskCluster, client: Any, holder: Holder) -> None:
        """R70, W9: a Dask worker that is retired in mid-block returns that block, and costs no start."""
        rough_cluster.have(client, 2)
        task = task_on(6, holder.work, max_workers=1, max_worker_restarts=0, requires={"spare": 1})
        thread, found = in_thread(lambda: run(task, Dask(client)))
        _, parent = holder.wait()
        (address,) = [address for address, pid in client.run(os.getpid).items() if pid == parent]
        retiring, _ = in_thread(lambda: client.retire_workers([address]))
        wait_until(lambda: f"Stopping worker at {address}" in rough_cluster.log(), "Dask ends the worker")
        holder.go()
        thread.join()
        retiring.join()
        (report,) = found
        assert report
        blocks = report["t"].blocks
        assert (blocks.count, blocks.failures) == (6, 0)
        assert report["t"].workers.count == 2

    @rough
    @full
    def test_what_waits_for_a_busy_worker_moves_to_a_late_one(
        self, rough_cluster: DaskCluster, client: Any, holder: Holder
    ) -> None:
        """R70: a worker of ours that Dask had put behind a busy one takes the place of a Dask worker that joins."""
        rough_cluster.add_worker("--resources", "steal=1")
        has_workers(client, "steal")
        engine = Dask(rough_cluster.address)
        with engine:
            driver = Run(engine, Job("late", (WorkerTask("t", line(), holder.work, requires={"steal": 1}),)))
            driver.start(0)
            engine.send(0, 0)
            _, busy = holder.wait()
            engine.start_worker(1, 0)
            late = rough_cluster.add_worker("--resources", "steal=1")
            assert driver.until(lambda event: event.worker == 1) == Ready(1)
            places = [seat.placed for seat in engine._roster.seats.values()]
            assert [place and place.pid for place in places] == [busy, late.pid]
            holder.go()

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

    @rough
    def test_the_end_of_the_scheduler_ends_the_run(
        self, rough_cluster: DaskCluster, client: Any, tmp_path: Path, holder: Holder
    ) -> None:
        """R70: the run ends with an error that says what to do, and the next one does only the rest."""
        rough_cluster.have(client, 1)
        client.close()
        task = task_on(3, holder.work, max_workers=1, tracking_path=tmp_path / "track")
        thread, found = in_thread(lambda: run(task, Dask(rough_cluster.address)))
        own, _ = holder.wait()
        os.killpg(rough_cluster.scheduler.pid, signal.SIGKILL)
        thread.join()
        (error,) = found
        assert isinstance(error, EngineError)
        assert "the connection to the Dask scheduler" in str(error)
        assert "run again when the cluster is back" in str(error)
        wait_until(lambda: is_gone(own), "the worker ended")
        again = run(task_on(3, lambda block: None, max_workers=1, tracking_path=tmp_path / "track"))
        assert again
        assert again["t"].blocks.count == 3


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
            if block.index:
                time.sleep(0.2)
            end = time.process_time() + 0.15
            while not block.index and time.process_time() < end:
                pass

        engine = Dask(address)
        with engine:
            driver = Run(engine, Job("apart", (WorkerTask("t", line(), work, resource_tracking=True),)))
            for worker in (0, 1):
                engine.start_worker(worker, 0)
            for _ in range(2):
                ready = driver.until(lambda event: True)
                assert isinstance(ready, Ready)
                engine.send(ready.worker, ready.worker)
            for gate in gates:
                gate.wait()
            found = {}
            while len(found) < 2:
                event = driver.until(lambda event: isinstance(event, Returned))
                assert isinstance(event, Returned)
                found[event.index] = event.stats
        assert found[0].cpu_seconds > 0.1
        assert found[1].cpu_seconds < 0.1
        assert found[1].wall_seconds >= 0.2

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
                engine.start_worker(worker, 0)
            for _ in range(4):
                assert isinstance(driver.until(lambda event: True), Ready)
            engine.start_worker(4, 1)
            event = driver.until(lambda event: event.worker < 4)
            assert event.clean  # type: ignore[union-attr]
            assert event.withdrawn  # type: ignore[union-attr]
            assert driver.until(lambda event: event.worker == 4) == Ready(4)


class TestStart:
    def test_another_version_is_refused_in_words(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """R10: where Workspan differs from the driver's the worker cannot start, and its end says what to install."""
        monkeypatch.setattr(remote, "VERSION", "9.9")
        engine = Dask(address)
        with engine:
            driver = Run(engine, Job("old", (WorkerTask("t", line(), str),)))
            engine.start_worker(0, 0)
            end = driver.until(lambda event: event.worker == 0)
        assert isinstance(end, Ended)
        assert not end.clean
        assert "is installed there, the driver has 9.9: install the same version on both sides" in end.reason

    def test_a_function_that_cannot_be_loaded_there_is_told_of(self, address: str) -> None:
        """R10: a module that only the driver has is named in the worker's end, with its traceback."""

        class Odd:
            def __reduce__(self) -> Any:
                return __import__, ("not_there",)

            def __call__(self, block: Any) -> None:
                """Be a function."""

        engine = Dask(address)
        with engine:
            driver = Run(engine, Job("odd", (WorkerTask("t", line(), Odd()),)))
            engine.start_worker(0, 0)
            end = driver.ended()
        assert "could not start" in end.reason
        assert "No module named 'not_there'" in end.reason

    def test_a_scheduler_that_is_not_there_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before anything runs, a scheduler that does not answer is an error with its address."""
        monkeypatch.setattr(dask_link, "CONNECT_SECONDS", 0.3)
        with pytest.raises(EngineError, match=r"the Dask scheduler at tcp://127\.0\.0\.1:9 does not answer"):
            Dask("dask://127.0.0.1:9").open(Job("nobody", ()))

    def test_without_the_package_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """D15: the error says what to install."""
        monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(EngineError, match=r"engine 'dask' needs 'distributed' .*: pip install 'workspan\[dask\]'"):
            Dask("127.0.0.1:9").open(Job("bare", ()))

    def test_what_is_no_cluster_is_refused(self) -> None:
        """A wrong argument is shown, with what can be passed."""
        with pytest.raises(EngineError, match=r"Dask\(7\): pass a distributed.Client, a cluster, or the address"):
            Dask(7).open(Job("seven", ()))

    def test_a_worker_function_is_refused(self, address: str) -> None:
        """D26: no client can connect to a worker on a cluster."""
        with pytest.raises(EngineError, match="task 't' has no function of one block"):
            Dask(address).open(Job("clients", (WorkerTask("t", line(), None),)))


def double(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the same with another column."""
    return {**batch, "y": 2 * batch["id"]}


def told(path: Path, function: Any) -> Any:
    """Return *function* of a batch, which notes its name and the batch's rows first."""

    def call(batch: dict[str, Any]) -> dict[str, Any]:
        with path.open("a") as file:
            file.write(f"{batch['id'][0] // 5} {function.__name__} {batch['id'].tolist()}\n")
        result: dict[str, Any] = function(batch)
        return result

    return call


def doze(batch: dict[str, Any]) -> dict[str, Any]:
    """Take about 20 ms."""
    import time

    time.sleep(0.02)
    return batch


def test_a_dataset_gives_the_same_rows_and_figures(tmp_path: Path, address: str) -> None:
    """A25, M105: rows, batches and calls agree to the last one and in order, step times to 5 % or 5 ms.

    Times are those of the block that was disturbed least, in up to four runs on a busy machine: the first block of a
    worker pays for what is used first.
    """
    others = ("processes", "dask") if FULL else ("dask",)  # worker processes are compared in the tests of datasets
    least: dict[str, dict[str, float]] = {engine: {} for engine in ("serial", *others)}

    def measure(engine: str) -> tuple[Any, ...]:
        notes = tmp_path / engine
        notes.unlink(missing_ok=True)
        data = ws.range(40, blocks=8).map_batches(told(notes, double), batch_size=3)
        data = data.map_batches(told(notes, doze)).map(lambda row: {"id": row["id"], "z": row["y"] + 1})
        data = data.filter(ws.col("z") > 20)
        table = data.to_arrow(engine=Dask(address) if engine == "dask" else engine, max_workers=2)
        (operator,) = data.stats_summary().operators  # type: ignore[union-attr]
        for step in operator.steps:
            assert step.seconds is not None
            least[engine][step.label] = min(step.seconds.min, least[engine].get(step.label, 1e9))
        counts = [(s.rows_out, s.calls, s.blocks_out) for s in operator.stages]
        # Blocks are done in any order, what happens in one is not.
        calls = sorted(notes.read_text().splitlines(), key=lambda line: int(line.split()[0]))
        return table.to_pydict(), calls, counts, [(s.label, s.pulls) for s in operator.steps]

    for _ in range(4):
        serial = measure("serial")
        assert serial[0]["z"] == [2 * n + 1 for n in range(10, 40)]
        assert len(serial[1]) == 8 * 4
        for engine in others:
            assert measure(engine) == serial
        wanted = pytest.approx(least["serial"], rel=0.05, abs=5e-3)
        if all(least[engine] == wanted for engine in others):
            return
    assert [least[engine] for engine in others] == [wanted] * len(others)


def test_a_dataset_without_a_shared_folder_says_so(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A25, R10: where workers do not see the folder of the results, the error says what to do, before any work is done.

    The folder that only the driver sees is one that is away when the workers look for it.
    """
    worked, home, away = (tmp_path / name for name in ("worked", "home", "away"))
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))

    class Far(Dask):
        def open(self, job: Job) -> None:
            super().open(job)
            home.rename(away)

        def close(self, grace: float = 0.0) -> Any:
            if away.exists():
                away.rename(home)
            return super().close(grace)

    def work(batch: dict[str, Any]) -> dict[str, Any]:
        worked.touch()
        return batch

    with pytest.raises(MapError, match=r"the folder of the dataset's results, .*home.*, cannot be seen on .*share"):
        ws.range(4, blocks=1).map_batches(work).to_arrow(engine=Far(address), max_workers=1)
    assert not worked.exists()


@full
def test_a_dataset_is_written_and_read_on_a_cluster(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A25: what is written there can be read, and iterated over, there."""
    monkeypatch.chdir(tmp_path)
    ws.range(20, blocks=2).map_batches(double).write_parquet("out", engine=Dask(address), progress=False)
    data = ws.read_parquet("out")
    rows = [row for batch in data.iter_batches(engine=Dask(address)) for row in batch["y"].tolist()]
    assert sorted(rows) == [2 * n for n in range(20)]


class TestEnds:
    @pytest.mark.parametrize("times", [pytest.param(1, marks=full), 2])
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

    @full
    def test_ctrl_c_in_a_terminal_is_for_the_driver_alone(self, holder: Holder, tmp_path: Path) -> None:
        """R21: a cluster of our own is not reached by a terminal's Ctrl-C: the block in flight is finished."""
        own, driver = start_script(None, holder, tmp_path)
        os.killpg(driver.pid, signal.SIGINT)
        threading.Event().wait(0.5)  # whoever the signal was not meant for would be dying now
        assert not is_gone(own)
        holder.go()
        driver.wait(30)
        output = (tmp_path / "output").read_text()
        assert output.count("Traceback") == 1
        assert "\nKeyboardInterrupt\n" in output
        wait_until(lambda: is_gone(own), "the worker ended")

    @pytest.mark.leaks("files", reason="a killed driver leaves the folder in which viewers look for it")
    def test_a_killed_driver_leaves_no_worker(self, address: str, shared: Any, holder: Holder, tmp_path: Path) -> None:
        """R19: workers on the cluster end by themselves when their driver is killed."""
        own, driver = start_script(address, holder, tmp_path)
        driver.kill()
        driver.wait()
        wait_until(lambda: is_gone(own), "the worker ended")
        wait_until(lambda: what_is_left(shared)[0] == [], "the scheduler has forgotten its task")


def start_script(address: str | None, holder: Holder, tmp_path: Path) -> tuple[int, Any]:
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
            if __name__ == "__main__":
                run(line(5, say_where({holder.gate.path!r}), max_workers=1), Dask({address!r}))
            """
        )
    )
    source = Path(__file__).read_text()
    begin, end = source.index("def say_where"), source.index("class Holder")
    (tmp_path / "test_dask_work.py").write_text("from typing import Any\n\n\n" + source[begin:end])
    with (tmp_path / "output").open("w") as output:
        driver = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=output,
            stderr=output,
            cwd=tmp_path,
            start_new_session=True,
            env={**os.environ, "DASK_TEMPORARY_DIRECTORY": str(tmp_path)},
        )
    own, _ = holder.wait()
    return own, driver
