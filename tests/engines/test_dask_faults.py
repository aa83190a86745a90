"""The Dask engine when workers, machines and schedulers come and go."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers.dask_kit import DaskCluster, what_is_left
from helpers.engine_kit import Run, is_gone, line, wait_until
from helpers.full import full
from helpers.hold import Holder, in_thread
from helpers.runs import line as task_on
from helpers.runs import run
from workspan.engines import Dask, Job, WorkerTask, cluster
from workspan.errors import EngineError
from workspan.schedule.events import Ready

distributed = pytest.importorskip("distributed")

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
