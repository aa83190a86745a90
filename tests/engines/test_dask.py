"""The Dask engine on a real cluster: how workers get their places and start there, and how runs end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from helpers.dask_kit import DaskCluster, what_is_left
from helpers.engine_kit import Gate, Run, is_gone, line, wait_until
from helpers.full import full
from helpers.hold import Holder, in_thread, interrupt_twice
from helpers.runs import line as task_on
from helpers.runs import run
from workspan.engines import Dask, Job, WorkerTask, cluster, dask_link, remote
from workspan.errors import EngineError
from workspan.schedule.events import Ended, Ready, Returned

distributed = pytest.importorskip("distributed")

pytestmark = [pytest.mark.usefixtures("logs"), pytest.mark.once]


@pytest.fixture
def address(dask_cluster: DaskCluster) -> str:
    """Of the shared cluster, whose only Dask worker has four threads."""
    return dask_cluster.address


@pytest.fixture
def shared(address: str) -> Any:
    """A client of the shared cluster."""
    with distributed.Client(address, set_as_default=False) as made:
        yield made


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
    def test_a_dask_worker_without_the_package_lives_to_tell(self) -> None:
        """R10: what Dask sends can be read where Workspan is not installed; only the task fails, with a reason."""
        from distributed.protocol.pickle import dumps

        program = (
            "import pickle, sys\n"
            "sys.modules['workspan'] = None\n"
            "start = pickle.load(sys.stdin.buffer)\n"
            "try:\n    start({})\nexcept ImportError as error:\n    print(error)\n"
        )
        sent = dumps(dask_link.worker_starter())
        done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
        said = done.stdout.decode()
        assert "workspan" in said
        assert dask_link.reason_of(ImportError(said)).startswith("could not start: workspan is not installed, or not")

    @pytest.mark.leaks(
        "threads", "files", reason="Dask keeps a thread for long messages, and the folder of its spilling"
    )
    def test_a_run_starts_a_cluster_of_its_own(self, capfd: pytest.CaptureFixture[str]) -> None:
        """D15, D44: ``engine="dask"`` starts one in this process, which prints nothing and is gone with the run."""
        report = run(task_on(6, lambda block: None, max_workers=2, requires={"GPU": 1}), "dask")
        assert report
        assert report["t"].workers.exits == {"clean": 2}
        assert capfd.readouterr() == ("", "")

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

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (
                ValueError("missing port number in address 'here'"),
                "'tcp://here' is not the address of a Dask scheduler, such as 'tcp://host:8786' or 'dask://host:8786': "
                "missing port number in address 'here'",
            ),
            (
                TimeoutError(),
                "the Dask scheduler at tcp://here does not answer: no answer in time; is it running, and can it be "
                "reached from here?",
            ),
            (
                MemoryError("3 EiB"),
                "what answers at tcp://here does not speak as a Dask scheduler of this version does (MemoryError: "
                "3 EiB); is it the scheduler's port, and the same version of 'distributed' there?",
            ),
        ],
    )
    def test_why_there_is_no_connection(self, error: Exception, said: str) -> None:
        """A wrong address, one that nobody answers at, and one where something else does, are told apart."""
        assert dask_link.why_not_connected("tcp://here", error) == said

    def test_the_cause_of_a_failed_connection_is_told(self) -> None:
        """What the system said is behind what Dask says of it."""
        error = OSError("timed out")
        error.__cause__ = OSError("connection refused")
        assert "does not answer: timed out: connection refused; is it" in dask_link.why_not_connected("a", error)

    def test_a_closed_client_is_refused(self, address: str) -> None:
        """A client that has no scheduler any more is named as what it is."""
        client = distributed.Client(address, set_as_default=False)
        client.close()
        with pytest.raises(EngineError, match=r"Dask\(<Client.*>\): it is closed; make a new one, or pass the address"):
            Dask(client).open(Job("closed", ()))

    @pytest.mark.leaks(
        "threads", "files", reason="Dask keeps a thread for long messages, and the folder of its spilling"
    )
    def test_a_cluster_in_the_loop_that_waits_is_refused(self) -> None:
        """R22: in a notebook, a cluster of the same event loop could not answer: the error says what can be done."""

        async def main() -> None:
            async with distributed.LocalCluster(
                n_workers=0, processes=False, asynchronous=True, dashboard_address="127.0.0.1:0"
            ) as made:
                async with distributed.Client(made, asynchronous=True, set_as_default=False) as client:
                    for where in (made, client):
                        with pytest.raises(
                            EngineError, match=r"holds up, and could not answer: call await asyncio.to_th"
                        ):
                            Dask(where).open(Job("loop", ()))
                engine = Dask(made)
                await asyncio.to_thread(engine.open, Job("thread", ()))
                await asyncio.to_thread(engine.close)

        asyncio.run(main())

    def test_what_no_dask_worker_has_is_told_while_others_work(
        self, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """R70: a task that asks for more than any Dask worker has says so, though another task of the run goes on."""
        monkeypatch.setattr(cluster, "NOTICE_SECONDS", 0.05)
        caplog.set_level(logging.WARNING, "workspan")
        engine = Dask(address)
        with engine:
            tasks = WorkerTask("can", line(), str), WorkerTask("cannot", line(), str, requires={"GPU": 3})
            driver = Run(engine, Job("lack", tasks))
            driver.start(0, 0)
            engine.start_worker(1, 1)
            engine.poll(0.1)
            assert "no worker of task 'cannot' has got a place on the Dask cluster" in caplog.text
            assert "none of its 1 workers has 3 GPU, busy or not; the task waits" in caplog.text

    def test_names_that_no_dask_worker_has_are_told(self, address: str) -> None:
        """R70: of Dask workers that are named the lack is that there are none; an address is a name."""
        for names, lack in (
            (["nobody"], "a name or address of ['nobody'], which are all that may be used,"),
            (["127.0.0.1"], ""),
        ):
            engine = Dask(address, workers=names)
            with engine:
                engine.open(Job("names", (WorkerTask("t", line(), str),)))
                assert engine._link is not None
                assert engine._link.places({}) == (1, lack)

    def test_ctrl_c_ends_the_wait_for_a_scheduler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """R20: where something answers that is no scheduler, a signal ends the run at once, not when Dask gives up."""
        monkeypatch.setattr(dask_link, "CONNECT_SECONDS", 3600.0)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            called: list[socket.socket] = []

            def interrupt() -> None:
                called.append(mute.accept()[0])
                os.kill(os.getpid(), signal.SIGINT)

            caller, _ = in_thread(interrupt)
            try:
                with pytest.raises(KeyboardInterrupt):
                    run(task_on(2, str), f"dask://127.0.0.1:{mute.getsockname()[1]}")
            finally:
                caller.join()
                called[0].close()

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


class TestEnds:
    @pytest.mark.parametrize("times", [pytest.param(1, marks=full), 2])
    def test_ctrl_c_leaves_nothing_on_the_cluster(
        self, times: int, address: str, shared: Any, holder: Holder, tmp_path: Path
    ) -> None:
        """R20: after one SIGINT the block in flight may finish, after two it is ended; nothing is left anywhere."""
        own, driver = start_script(address, holder, tmp_path)
        if times == 2:
            interrupt_twice(driver, tmp_path / "output")
        else:
            driver.send_signal(signal.SIGINT)
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
            from helpers.hold import announce_signals, say_where
            from workspan.engines import Dask
            from workspan.run import session
            session.GRACE_SECONDS = 60
            announce_signals()
            run(line(5, say_where({holder.gate.path!r}), max_workers=1), Dask({address!r}))
            """
        )
    )
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
