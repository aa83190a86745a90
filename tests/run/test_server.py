"""Runs that others join: worker functions, servers and their addresses."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import psutil
import pytest

import workspan as ws
from helpers.client_kit import line_task, serving
from helpers.engine_kit import Gate, is_gone, wait_until
from workspan.engines.wire import Result, Stop
from workspan.errors import AbandonedError, ConfigurationError, EngineError

pytestmark = pytest.mark.usefixtures("logs")

PATH = os.pathsep.join(entry for entry in sys.path if entry)
CLIENT = "import workspan as ws; ws.Client().run(lambda block: None)"


def nothing(block):
    """Do nothing."""


def run(*tasks, **kwargs):
    """Run tasks in worker processes and return the report."""
    what = list(tasks) if len(tasks) > 1 else tasks[0]
    return ws.run_blockwise(what, progress=False, summary=False, return_report=True, host="127.0.0.1", **kwargs)


def listening(pid=None):
    """Return the addresses that a process listens on."""
    return [c.laddr for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]


class TestWorkerFunctions:
    def test_in_process(self, tmp_path):
        """B75, B45: the worker makes a client, its blocks are measured, and it is a worker like any other."""

        def work():
            client = ws.Client()
            (tmp_path / f"{client.worker_id}").touch()
            while True:
                with client.acquire_block() as block:
                    if block is None:
                        break
                    with ws.section("step"):
                        pass

        task = line_task(12, work, max_workers=2, tracking_path=tmp_path / "store", resource_tracking=True)
        report = run(task)
        assert report
        blocks, workers = report["t"].blocks, report["t"].workers
        assert (blocks.count, blocks.failures, blocks.wall.n) == (12, 0, 12)
        assert report["t"].steps["step"].calls == 12
        assert workers.unmanaged_clients == 0
        assert {record.worker_id for record in task.report().block_records()} <= {0, 1}
        assert {path.name for path in tmp_path.iterdir()} <= {"0", "1", "store", "logs"}

    def test_that_starts_a_subprocess(self):
        """B75, B45: whoever makes the client, it is the worker's, if it has the worker's context."""

        def work():
            subprocess.run([sys.executable, "-c", CLIENT], check=True, env={**os.environ, "PYTHONPATH": PATH})

        report = run(line_task(5, work))
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (5, 0)
        assert report["t"].workers.unmanaged_clients == 0

    def test_that_takes_its_context(self, tmp_path):
        """B75: it is handed over as a keyword, and is the one of the environment."""

        def work(*, context):
            assert context == ws.Context.from_env()
            ws.Client(context).run(nothing)

        assert run(line_task(3, work))["t"].blocks.count == 3

    def test_beside_a_task_with_a_block_function(self):
        """Both kinds of workers serve one pipeline."""

        def work():
            ws.Client().run(nothing)

        report = run(line_task(4, nothing, "a") + line_task(4, work, "b"))
        assert [report[name].blocks.count for name in "ab"] == [4, 4]

    def test_two_clients_of_one_worker(self):
        """B45: the second one is a guest, and the number of the worker is the first one's."""

        def work():
            clients = [ws.Client(), ws.Client()]
            assert clients[0].worker_id == int(clients[0].context["worker_id"])
            assert clients[1].worker_id != clients[0].worker_id
            for client in clients:
                with client.acquire_block():
                    pass
            for client in reversed(clients):
                client.run(nothing)

        report = run(line_task(6, work, max_workers=1))
        assert report["t"].blocks.count == 6
        assert report["t"].workers.unmanaged_clients == 1

    def test_a_client_may_come_again(self):
        """A worker function that makes one client after the other goes on working."""

        def work():
            for _ in range(3):
                client = ws.Client()
                with client.acquire_block():
                    pass
                client.close()

        report = run(line_task(3, work, max_workers=1, max_worker_restarts=0))
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (3, 0)

    def test_without_a_client(self, caplog):
        """B85: a function that returns without one is warned of, with what it must do."""
        with pytest.raises(AbandonedError):
            run(line_task(2, lambda: None, max_workers=1, max_worker_restarts=1))
        lines = [r.getMessage() for r in caplog.records if "no client of it ever connected" in r.getMessage()]
        assert [line.split(":")[0] for line in lines] == ["worker 0 of task 't'", "worker 1 of task 't'"]
        assert "must block until its worker has ended (srun, sbatch --wait, subprocess.run)" in lines[0]

    def test_a_clean_end_is_no_failure(self):
        """B81: a function that returns after some blocks is followed by another one, and nothing failed."""

        def work():
            with ws.Client().acquire_block():
                pass

        report = run(line_task(4, work, max_workers=1, max_worker_restarts=3))
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (4, 0)

    @pytest.mark.parametrize(
        ("end", "texts"),
        [
            ("raise ValueError('bad luck')", ("its function raised", "exit code 1", "ValueError: bad luck")),
            ("sys.exit(3)", ("exit code 3", "SystemExit(3)")),
            ("os._exit(4)", ("exit code 4",)),
            ("os.kill(os.getpid(), 9)", ("killed by SIGKILL",)),
        ],
        ids=["exception", "sys.exit", "os._exit", "signal"],
    )
    def test_a_dirty_end(self, end, texts):
        """B81: it is counted and told, with the last lines of the worker's error stream."""

        def work():
            print("last words", file=sys.stderr)
            exec(end, {"sys": sys, "os": os})

        with pytest.raises(AbandonedError) as caught:
            run(line_task(1, work, max_workers=1, max_worker_restarts=1))
        state = caught.value.task_states["t"]
        assert (state.worker_failure_count, state.worker_start_count) == (2, 2)
        assert state.first_worker_error.startswith("worker 0: ")
        assert state.last_worker_error.startswith("worker 1: ")
        for text in (*texts, "last words"):
            assert text in state.last_worker_error

    def test_an_exception_in_a_block(self):
        """B99, B75, B81: block failed, worker ended badly, and another one goes on."""

        def work():
            client = ws.Client()
            while True:
                with client.acquire_block() as block:
                    if block is None:
                        break
                    if block.index == 1:
                        raise ValueError("in a block")

        report = run(line_task(4, work, max_workers=1, max_retries=0, max_worker_restarts=3))
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (3, 1)
        assert "ValueError: in a block" in report["t"].failed_blocks[0].error

    def test_a_worker_that_is_late(self):
        """B84, D34: block and worker are replaced when the deadline is over."""

        def work():
            client = ws.Client()
            while True:
                with client.acquire_block() as block:
                    if block is None:
                        break
                    if int(client.context["worker_id"]) == 0:
                        while True:
                            pass

        with serving(line_task(2, work, max_workers=1, timeout=0.5)) as served:
            report = served.wait()
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (2, 1)
        state = served.states["t"]
        assert (state.timeout_reclaim_count, state.worker_failure_count) == (1, 1)

    def test_a_first_contact_after_the_return(self, tmp_path):
        """B85: a worker that was only submitted ends the run, with an explanation."""
        late = f"""
import os, time
while os.path.exists("/proc/" + os.environ["STARTED_BY"]):
    time.sleep(0.01)
import workspan as ws
try:
    ws.Client().run(lambda block: None)
finally:
    open({str(tmp_path / "over")!r}, "w").close()
"""

        def submit():
            if ws.Context.from_env()["worker_id"] != "0":
                signal.pause()
            env = {**os.environ, "PYTHONPATH": PATH, "STARTED_BY": str(os.getpid())}
            process = subprocess.Popen([sys.executable, "-c", late], env=env, start_new_session=True)
            (tmp_path / "pid").write_text(str(process.pid))

        with pytest.raises(
            EngineError, match=r"worker 0 of task 't' connected after its worker function had returned: "
        ):
            run(line_task(2, submit, max_workers=1))
        wait_until((tmp_path / "over").exists, "the straggler has noticed")
        wait_until(lambda: is_gone(int((tmp_path / "pid").read_text())), "the straggler has ended")

    def test_serial_engines_refuse_it(self):
        """No client can connect to a run in the calling thread."""
        for kwargs in ({"engine": "serial"}, {"multiprocessing": False}):
            with pytest.raises(ConfigurationError, match="worker function"):
                ws.run_blockwise(line_task(1, lambda: None), progress=False, summary=False, **kwargs)

    def test_an_interrupt_ends_all(self, tmp_path, monkeypatch):
        """R16, B91: a stopped run leaves neither worker nor what it started, and says so with states."""
        monkeypatch.setattr("workspan.run.session.GRACE_SECONDS", 0.2)
        entered = tmp_path / "entered"

        def work():
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"import os, time; open({str(entered)!r}, 'w').write(str(os.getpid())); time.sleep(99)",
                ],
                env={**os.environ, "PYTHONPATH": PATH},
            )
            signal.pause()

        with serving(line_task(2, work, max_workers=1)) as served:
            wait_until(lambda: entered.exists() and entered.read_text(), "the worker's child runs")
        assert served.server.last_report.outcome == "interrupted"
        wait_until(lambda: is_gone(int(entered.read_text())), "the worker's child is gone")


class TestListening:
    def test_a_default_run_does_not(self, tmp_path, monkeypatch):
        """R37, D26, KF-28: no socket of driver or worker can be connected to, whatever the environment says."""
        monkeypatch.setenv("WORKSPAN_HOST", "")
        found = tmp_path / "found"

        def look(block):
            me = psutil.Process()
            found.write_text(repr([listening(me.pid), listening(me.ppid())]))

        report = ws.run_blockwise(line_task(1, look), progress=False, summary=False, return_report=True)
        assert report["t"].blocks.count == 1
        assert found.read_text() == "[[], []]"

    def test_an_empty_host_is_none(self, tmp_path):
        """B103: an empty text asks for nothing, in every engine."""
        found = tmp_path / "found"

        def look(block):
            found.write_text(repr(listening(os.getppid())))

        ws.run_blockwise(line_task(1, look), progress=False, summary=False, host="")
        assert found.read_text() == "[]"
        ws.run_blockwise(line_task(1, nothing), progress=False, summary=False, host="", engine="serial")

    def test_a_server_listens_on_loopback_only(self):
        """R37, B104: nobody else is expected, so nobody else can connect."""
        with serving(line_task(1, None), server=ws.Server(host="127.0.0.1")) as served:
            assert listening() == [("127.0.0.1", served.server.port)]
        assert listening() == []

    def test_a_server_of_block_functions_does_not_look_for_addresses(self, monkeypatch, tmp_path):
        """KF-28: without a route to anywhere a local run works."""
        inside, release = Gate(tmp_path / "inside"), Gate(tmp_path / "release")

        def detect():
            pytest.fail("nobody needs an address")

        monkeypatch.setattr("workspan.engines.tcp.detected_host", detect)

        def hold(block):
            Path(inside.path).write_text("here\n")
            Path(release.path).read_text()

        with serving(line_task(1, hold), server=ws.Server()) as served:
            inside.wait()
            assert listening() == [("127.0.0.1", served.server.port)]
            release.open()
            assert served.wait()

    @pytest.mark.parametrize("way", ["argument", "server", "WORKSPAN_HOST", "DAISY_HOST"])
    def test_the_address_is_told_as_it_was_given(self, way, monkeypatch):
        """B103, B104: the host of argument, server or environment is what clients dial; all interfaces listen."""
        if way.isupper():
            monkeypatch.setenv(way, "some.host")
        server = ws.Server(host="some.host" if way == "server" else None)
        with serving(line_task(1, None), server=server, host="some.host" if way == "argument" else None) as served:
            assert served.server.hostname == served.context()["hostname"] == "some.host"
            assert [address.ip for address in listening()] == ["0.0.0.0"]

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
    def test_other_names_of_loopback(self, host):
        """B104: what is dialled is listened on, also if it is IPv6."""
        if ":" in host and not Path("/proc/net/if_inet6").read_text().strip():
            pytest.skip("no IPv6 here")
        with serving(line_task(1, None), server=ws.Server(host=host)) as served:
            assert [address.ip for address in listening()] == [host.replace("localhost", "127.0.0.1")]
            ws.Client(served.context()).run(nothing)
            assert served.wait()


class TestCallback:
    """B47: ``init_callback_fn``."""

    def test_it_is_called_once_before_the_first_worker(self, tmp_path):
        """It gets a context by which a client finds the task, once a task, before anything of the task runs."""
        seen = []

        def note(context):
            seen.append((context["task_id"], context["worker_id"], (tmp_path / "ran").exists()))

        def work(block):
            (tmp_path / "ran").touch()

        first = line_task(3, work, "first", max_workers=2, init_callback_fn=note)
        second = line_task(3, nothing, "second", init_callback_fn=note)
        assert run(first + second)
        assert seen == [("first", "0", False), ("second", "0", True)]

    def test_what_it_starts_does_the_blocks(self):
        """A task without a function is served by a client that the callback started (B86)."""
        threads = []

        def start(context):
            threads.append(threading.Thread(target=lambda: ws.Client(context).run(nothing)))
            threads[0].start()

        report = run(line_task(4, None, init_callback_fn=start))
        threads[0].join(20)
        assert report
        assert report["t"].workers.unmanaged_clients == 1

    def test_what_it_raises_ends_the_run(self):
        """Its exception is the caller's, and no worker was started."""

        def fail(context):
            raise LookupError("no queue")

        with pytest.raises(LookupError, match="no queue") as caught:
            run(line_task(2, nothing, init_callback_fn=fail))
        assert caught.value.run_report["t"].workers.startup.n == 0

    @pytest.mark.parametrize("kwargs", [{"engine": "serial"}, {"multiprocessing": False}], ids=str)
    def test_it_is_not_called_in_the_calling_thread(self, kwargs):
        """Where no client can connect there is nothing to tell."""
        task = line_task(2, nothing, init_callback_fn=lambda context: pytest.fail("called"))
        assert ws.run_blockwise(task, progress=False, summary=False, **kwargs)


class TestServer:
    def test_address_and_context_only_while_running(self):
        """B86, D26: afterwards there is nothing to dial."""
        server = ws.Server(host="127.0.0.1")
        assert (server.hostname, server.port, server.last_report, server.last_task_order) == (None, None, None, [])
        with pytest.raises(ConfigurationError, match="nothing runs now, so there is no context of task 't'"):
            server.context("t")
        with serving(line_task(1, None), server=server) as served:
            assert server.hostname == "127.0.0.1"
            assert 0 < server.port < 65536
            context = server.context("t")
            assert (context["port"], "worker_id" in context) == (str(server.port), False)
            with served.guest() as guest:
                guest.work()
                served.wait()
        assert (server.hostname, server.port) == (None, None)
        with pytest.raises(ConfigurationError, match="nothing runs now"):
            server.context("t")

    def test_the_address_is_known_to_the_observer(self):
        """B86: who is told that the run begins can start workers elsewhere, with port and context."""
        server = ws.Server(host="127.0.0.1")
        seen = []

        class Watcher:
            def on_start(self, states):
                seen.append((server.hostname, server.port, server.context("t")["port"], states["t"].completed_count))

            on_progress = on_finish = staticmethod(lambda states: None)

        server.run_blockwise(line_task(2, nothing), progress=Watcher(), summary=False)
        ((hostname, port, told, done),) = seen
        assert (hostname, told, done) == ("127.0.0.1", str(port), 0)
        assert server.port is None

    def test_report_and_order(self):
        """The last run's report and its tasks in display order are kept."""
        server = ws.Server()
        states = server.run_blockwise(
            [line_task(2, nothing, "b"), line_task(3, nothing, "a")], None, False, summary=False
        )
        assert list(states) == server.last_task_order == ["a", "b"]
        assert [state.completed_count for state in states.values()] == [3, 2]
        assert server.last_report
        assert server.last_report["a"].blocks.count == 3

    def test_an_unknown_task(self):
        """The error lists the tasks of the run."""
        with (
            serving(line_task(1, None)) as served,
            pytest.raises(ConfigurationError, match="the run has no task 'u': its tasks are 't'"),
        ):
            served.context("u")

    def test_a_second_run_at_the_same_time(self):
        """It is refused, and the first one is not disturbed."""
        with serving(line_task(2, None)) as served, served.guest() as guest:
            with pytest.raises(ConfigurationError, match="is running a pipeline already"):
                served.server.run_blockwise(line_task(1, nothing), progress=False)
            guest.work()
            assert served.wait()

    def test_one_run_after_the_other(self):
        """A server can be used again, also after an error."""
        server = ws.Server()
        with pytest.raises(ConfigurationError, match="requires 1 of 'gpu'"):
            server.run_blockwise(line_task(1, nothing, requires={"gpu": 1}), {"gpu": 0}, False)
        for count in (1, 2):
            states = server.run_blockwise(line_task(count, nothing), progress=False, summary=False)
            assert states["t"].completed_count == count

    @pytest.mark.parametrize("way", ["event", "stop"])
    def test_stop(self, way):
        """R22: a stopped run returns its states within a second, and says that it was interrupted."""
        event = threading.Event()
        server = ws.Server(stop_event=event, host="127.0.0.1")
        with serving(line_task(3, None), server=server) as served, served.guest() as guest:
            guest.work(1)
            index = guest.take()
            before = monotonic()
            event.set() if way == "event" else server.stop()
            assert guest.hear() in (Stop(), None)
            guest.say(Result(index, True))
            report = served.wait()
            assert monotonic() - before < 3
        assert report.outcome == "interrupted"
        assert served.states["t"].completed_count == report["t"].blocks.count == 2, "a block in flight has its grace"
        assert report["t"].blocks.failures == 0

    def test_stop_before_the_start(self):
        """An event that is set already ends the run before its first block."""
        event = threading.Event()
        event.set()
        server = ws.Server(stop_event=event)
        states = server.run_blockwise(line_task(1, None), progress=False, summary=False)
        assert states["t"].completed_count == 0

    def test_inside_a_running_event_loop(self):
        """R22: a run works in a coroutine and in a thread that a loop started; no signal handler is touched there."""

        def handlers():
            return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

        async def main():
            before = handlers()
            first = ws.run_blockwise(line_task(2, nothing), progress=False, summary=False)
            server = ws.Server(host="127.0.0.1")
            running = asyncio.create_task(
                asyncio.to_thread(server.run_blockwise, line_task(2, None), progress=False, summary=False)
            )
            while server.port is None:
                await asyncio.sleep(0.01)
            now = handlers()
            client = await asyncio.to_thread(ws.Client, server.context("t"))
            await asyncio.to_thread(client.run, nothing)
            return first, await running, now == before == handlers()

        first, states, untouched = asyncio.run(main())
        assert untouched
        assert first is True
        assert states["t"].completed_count == 2

    def test_serial(self):
        """The serial server runs in the calling thread, and the first exception is the caller's."""
        threads = []
        states = ws.SerialServer().run_blockwise(line_task(2, lambda block: threads.append(threading.get_ident())))
        assert states["t"].completed_count == 2
        assert set(threads) == {threading.get_ident()}
        with pytest.raises(ZeroDivisionError):
            ws.SerialServer().run_blockwise(line_task(2, lambda block: 1 / 0))

    def test_the_warning_of_a_task_without_function_names_its_context(self, caplog):
        """B86: whoever reads the log can start a worker."""
        with serving(line_task(1, None)):
            wait_until(lambda: "it waits for workers from outside" in caplog.text, "the warning")
            text = caplog.text
            path = text[text.index("the context in ") + 15 :].split(" (Client(")[0]
            client = ws.Client(ws.Context.from_file(path))
            assert client.connected
            client.run(nothing)
