"""The client, as scripts of users write it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import workspan as ws
from helpers.client_kit import line_task, serving
from helpers.engine_kit import wait_until
from workspan import Client, Context
from workspan.engines import client as client_module
from workspan.engines.vault import Vault
from workspan.errors import ConfigurationError, EngineError, WireError
from workspan.grid import BlockStatus

pytestmark = pytest.mark.usefixtures("logs")


@pytest.fixture
def context(tmp_path):
    """A context with a secret, at a port where nobody listens."""
    vault = Vault(tmp_path / "vault", bytes(range(32)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield Context(hostname="127.0.0.1", port=port, task_id="t", run_id="run", secret_file=vault.secret_file, logdir="")
    vault.close()


@pytest.fixture
def make_client():
    """Return a function that makes clients; all leave afterwards."""
    clients = []

    def make(context):
        clients.append(Client(context))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def python(code, context, **kwargs):
    """Start *code* in a process that has *context* in its environment."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**env, "WORKSPAN_CONTEXT": context.to_env()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


class TestContext:
    def test_from_the_environment(self, make_client, monkeypatch, tmp_path):
        """B97: without an argument the client finds its run by the environment, and knows its own place in it."""
        with serving(line_task(2, None)) as run:
            for name in ("WORKSPAN_CONTEXT", "DAISY_CONTEXT"):
                context = run.context()
                context["logdir"] = tmp_path / name
                monkeypatch.setenv(name, context.to_env())
                client = make_client(None)
                monkeypatch.delenv(name)
                assert client.context == context
                assert (client.host, client.port) == (run.server.hostname, run.server.port)
                assert (client.task_id, client.connected) == ("t", True)
                assert isinstance(client.worker_id, int)
                assert ws.logging.get_log_basedir() == tmp_path / name

    def test_no_context(self, monkeypatch):
        """B94: a KeyError that names both variables."""
        for name in ("WORKSPAN_CONTEXT", "DAISY_CONTEXT"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(KeyError, match="WORKSPAN_CONTEXT and DAISY_CONTEXT are not set"):
            Client()

    @pytest.mark.parametrize("name", ["hostname", "port", "task_id", "run_id", "secret_file"])
    def test_a_context_that_lacks_something(self, context, name):
        """The error names what is missing."""
        context[name] = ""
        with pytest.raises(ConfigurationError, match=f"the context has no '{name}'"):
            Client(context)

    @pytest.mark.parametrize("name", ["port", "worker_id"])
    def test_a_number_that_is_none(self, context, name):
        """The error names value and entry."""
        context[name] = "x7"
        with pytest.raises(ConfigurationError, match=f"{name}='x7' in the context is not a number"):
            Client(context)

    @pytest.mark.parametrize("worker", [None, "", "-1", "-7"])
    def test_a_guest(self, make_client, worker):
        """B97: without a worker id, or with a negative one, the client is a guest and is counted as one."""
        with serving(line_task(1, None)) as run:
            context = run.context()
            if worker is not None:
                context["worker_id"] = worker
            make_client(context).run(lambda block: None)
            assert run.wait()["t"].workers.unmanaged_clients == 1


class TestNobody:
    def test_a_refused_connection(self, context, caplog):
        """B98: a straggler of a run that is over ends cleanly."""
        client = Client(context)
        assert client.connected is False
        assert f"no run listens at 127.0.0.1 port {client.port} (Connection refused)" in caplog.text
        assert caplog.records[0].levelno == logging.WARNING
        for _ in range(2):
            with client.acquire_block() as block:
                assert block is None
        client.run(lambda block: pytest.fail("there is no block"))
        client.close()

    def test_a_secret_that_is_gone(self, context, caplog):
        """B98: the files of a run go with it."""
        os.unlink(context["secret_file"])
        assert Client(context).connected is False
        assert "is over" in caplog.text

    def test_a_secret_that_others_can_read(self, context):
        """R47: it is not used."""
        os.chmod(context["secret_file"], 0o644)
        with pytest.raises(ConfigurationError, match="can be read by others"):
            Client(context)

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(40), "does not speak Workspan's protocol"),
            (b"", "closed the connection: this worker's secret is not the run's"),
            (b"WSPN\x63" + bytes(32), "version 99 of the protocol, this process version 1"),
        ],
        ids=["HTTP", "closed", "version"],
    )
    def test_somebody_else_listens(self, context, words, text):
        """The error says who is there, and no socket is left (R40, B101)."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            context["port"] = server.getsockname()[1]

            def answer():
                connection, _ = server.accept()
                with connection:
                    connection.sendall(words)
                    connection.recv(37)

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(WireError, match=text):
                Client(context)
            thread.join()

    def test_somebody_who_says_nothing(self, context, monkeypatch):
        """Logging in has a deadline on this side too (R44)."""
        monkeypatch.setattr(client_module, "CONNECT_SECONDS", 0.1)
        with socket.create_server(("127.0.0.1", 0)) as server:
            context["port"] = server.getsockname()[1]
            with pytest.raises(WireError, match=f"port {context['port']} did not answer: timed out"):
                Client(context)

    def test_another_runs_secret(self, context):
        """R40: the run closes the connection, and the client says why that may be."""
        with serving(line_task(1, None)) as run:
            for name in ("port", "run_id"):
                context[name] = run.context()[name]
            with pytest.raises(WireError, match="this worker's secret is not the run's"):
                Client(context)
            wrong_run = run.context()
            wrong_run["run_id"] = "another"
            with pytest.raises(WireError):
                Client(wrong_run)

    def test_an_unknown_task(self):
        """The run's own words are the error."""
        with serving(line_task(1, None)) as run:
            context = run.context()
            context["task_id"] = "u"
            with pytest.raises(EngineError, match="the run refuses this client: this run has no task 'u'"):
                Client(context)

    def test_a_run_that_ends_while_the_client_joins(self, context, caplog):
        """B98: neither an error nor a block, whether the run says so or just closes the connection."""
        with serving(line_task(1, None)) as run:
            run.engine._emit = lambda event: None  # nobody will answer the Join
            run.engine._gate._emit = run.engine._emit
            clients = []
            thread = threading.Thread(target=lambda: clients.append(Client(run.context())))
            thread.start()
            wait_until(lambda: run.engine._gate._guests, "the client waits for its welcome")
            run.server.stop()
            thread.join()
        assert not clients[0].connected
        assert "the run has no more work for task 't'" in caplog.text
        with clients[0].acquire_block() as block:
            assert block is None


class TestBlocks:
    def test_a_loop(self, make_client):
        """B99: blocks with their regions, PROCESSING on entry, and None at the end of the work."""
        seen = []
        with serving(line_task(3, None)) as run:
            client = make_client(run.context())
            while True:
                with client.acquire_block() as block:
                    if block is None:
                        break
                    seen.append((block.block_id, block.status, block.write_roi.begin[0], block.task_id))
            report = run.wait()
        assert seen == [(("t", n), BlockStatus.PROCESSING, 10 * n, "t") for n in range(3)]
        assert report["t"].blocks.count == 3

    @pytest.mark.parametrize("status", [None, *BlockStatus])
    def test_the_status_decides(self, make_client, status):
        """B99: PROCESSING and SUCCESS are done, everything else has failed."""
        with serving(line_task(1, None, max_retries=0)) as run:
            client = make_client(run.context())
            with client.acquire_block() as block:
                if status is not None:
                    block.status = status
            good = status in (None, BlockStatus.PROCESSING, BlockStatus.SUCCESS)
            assert block.status is (BlockStatus.SUCCESS if good else BlockStatus.FAILED)
            report = run.wait()
        assert report["t"].blocks.count == good
        if not good:
            assert report["t"].failed_blocks[0].error == f"the block was given back with status {status.name}"

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
    def test_an_exception_is_reported_and_goes_on(self, make_client, kind, caplog):
        """B99: the block has failed with a traceback that starts at the user's code, the log says it, and it raises."""
        with serving(line_task(2, None, max_retries=0)) as run:
            client = make_client(run.context())
            blocks = []

            def work():
                with client.acquire_block() as block:
                    blocks.append(block)
                    raise kind("what was wrong")

            with pytest.raises(kind, match="what was wrong"):
                work()
            assert blocks[0].status is BlockStatus.FAILED
            wait_until(lambda: run.live["t"].failed_count == 1, "the failure was reported")
            client.run(lambda block: None)
            failed = run.wait()["t"].failed_blocks
        assert [block.cell for block in failed] == [(0,)]
        lines = failed[0].error.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert f'File "{__file__}"' in lines[1]
        assert lines[-1] == f"{kind.__name__}: what was wrong"
        assert failed[0].error in caplog.text

    def test_a_long_traceback_is_cut(self, make_client):
        """B99, D36: 8 KiB at most, and the last lines stay."""
        with serving(line_task(1, None, max_retries=0)) as run:
            client = make_client(run.context())

            def deeper(n):
                exec(compile(f"def f_{n}(go, n):\n    go(n)\n", f"file {n}", "exec"), names := {})
                names[f"f_{n}"](deeper, n - 1) if n else int("x" * 200_000)

            with pytest.raises(ValueError, match="invalid literal"), client.acquire_block():
                deeper(150)
            error = run.wait()["t"].failed_blocks[0].error
        assert len(error.encode()) <= 8192
        assert "lines were cut" in error.splitlines()[0]
        assert error.splitlines()[-1].startswith("ValueError: invalid literal")

    def test_one_block_at_a_time(self, make_client):
        """B100: a second one is refused, and the first one is not lost by that."""
        with serving(line_task(1, None)) as run:
            client = make_client(run.context())
            with client.acquire_block() as block:
                with pytest.raises(EngineError, match="holds a block: give it back"), client.acquire_block():
                    pass
                assert block.index == 0
            assert run.wait()["t"].blocks.count == 1

    def test_failures_do_not_end_run(self, make_client):
        """`Client.run` goes on after a block that raised."""
        with serving(line_task(4, None, max_retries=0)) as run:
            make_client(run.context()).run(lambda block: 1 // (block.index % 2))
            assert run.wait()["t"].blocks.count == 2

    def test_the_end_of_the_run_is_the_end_of_the_work(self, make_client):
        """B98: a client that waits for a block when the run is stopped gets None."""
        with serving(line_task(1, None)) as run:
            holder, waiter = make_client(run.context()), make_client(run.context())
            got = []

            def wait():
                with waiter.acquire_block() as block:
                    got.append(block)

            with holder.acquire_block() as block:
                assert block is not None
                thread = threading.Thread(target=wait)
                thread.start()
                wait_until(lambda: run.live["t"].ready_count == 0, "nothing is left")
                run.server.stop()
                thread.join()
                assert got == [None]
            with holder.acquire_block() as block:
                assert block is None

    def test_a_client_that_has_left(self, make_client):
        """After close there are no blocks; closing twice does nothing."""
        with serving(line_task(1, None)) as run:
            client = make_client(run.context())
            client.close()
            client.close()
            with client.acquire_block() as block:
                assert block is None

    def test_a_network_that_fails_is_an_error(self, make_client):
        """B98: other ends of the connection than a closed one raise."""
        with serving(line_task(1, None)) as run:
            client = make_client(run.context())

            def receive():
                raise client_module.DriverGoneError(OSError(110, "Connection timed out"))

            client._connection.receive = receive
            with pytest.raises(EngineError, match=r"broke: Connection timed out"), client.acquire_block():
                pass


class TestMeasured:
    @pytest.mark.parametrize("way", ["with", "run", "by hand"])
    def test_like_any_other_worker(self, make_client, tmp_path, way):
        """B45: blocks of a client are measured, and their sections ride home."""
        task = line_task(3, None, tracking_path=tmp_path / "store", resource_tracking=True)

        def work(block):
            with ws.section("step"), ws.section("inner"):
                return sum(range(20_000))

        def by_hand(block):
            with ws.profile_block(block):
                work(block)

        with serving(task) as run:
            client = make_client(run.context())
            if way == "run":
                client.run(work)
            else:
                for _ in range(3):
                    with client.acquire_block() as block:
                        (by_hand if way == "by hand" else work)(block)
            report = run.wait()
        blocks = report["t"].blocks
        assert blocks.wall.n == blocks.cpu.n == blocks.peak_rss.n == 3
        assert blocks.wall.total > 0
        assert {name: step.calls for name, step in report["t"].steps.items()} == {"step": 3, "inner": 3}
        assert {record.worker_id for record in task.report().block_records()} == {None}


class TestTimeout:
    LOOP = """
import ctypes, re, time
import workspan as ws
from workspan.engines import watchdog
watchdog.BACKSTOP_SECONDS = 0.2
client = ws.Client()
while True:
    with client.acquire_block() as block:
        if block is None:
            break
        if block.index == 0:
            {what}
"""

    def test_in_python(self, make_client):
        """B83, B84: a guest that is late ends with exit code 87 and one line, and its block runs again."""
        with serving(line_task(2, None, timeout=1.0)) as run:
            guest = python(self.LOOP.format(what="while True: pass"), run.context())
            _, err = guest.communicate(timeout=30)
            assert guest.returncode == 87
            assert err == "block 0 of task 't' was not finished within its timeout of 1 s: this worker ends\n"
            make_client(run.context()).run(lambda block: None)
            report = run.wait()
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (2, 1)
        assert run.states["t"].timeout_reclaim_count == 1

    def test_in_c(self):
        """B83: also where no Python can run."""
        with serving(line_task(1, None, timeout=0.3)) as run:
            guest = python(self.LOOP.format(what="ctypes.PyDLL(None).sleep(60)"), run.context())
            guest.communicate(timeout=30)
            assert guest.returncode in (-signal.SIGALRM, 87)
            wait_until(lambda: run.live["t"].timeout_reclaim_count == 1, "the block was reclaimed")

    def test_disarmed_on_release(self):
        """B83: time between blocks is free."""
        what = "pass\n    time.sleep(1.2)"
        with serving(line_task(1, None, timeout=1.0)) as run:
            guest = python(self.LOOP.format(what=what), run.context())
            _, err = guest.communicate(timeout=30)
            assert (guest.returncode, err) == (0, "")
            assert run.wait()["t"].blocks.failures == 0


class TestForks:
    def test_a_fork_cannot_release(self, tmp_path):
        """B99: what a block forks neither gives the block back nor takes another one, and does not hang."""

        def work():
            client = ws.Client()
            child = 0
            with client.acquire_block():
                if os.getpid() == parent():
                    child = os.fork()
                if child:
                    assert os.waitpid(child, 0)[1] == 0
                    raise ValueError("of the parent")
            if not child:
                with client.acquire_block() as block:
                    (tmp_path / "child").write_text(repr(block))
                sys.exit(0)

        def parent():
            return int(Path("/proc/self/stat").read_text().split()[0])

        def loop():
            pid = os.getpid()
            try:
                work()
            except ValueError:
                assert os.getpid() == pid
            finally:
                if os.getpid() != pid:
                    os._exit(0)
            ws.Client(guest_context()).run(lambda block: None)

        def guest_context():
            context = ws.Context.from_env()
            context["worker_id"] = -1
            return context

        task = line_task(2, loop, max_workers=1, max_retries=0, timeout=30)
        with serving(task) as run:
            report = run.wait()
        assert (tmp_path / "child").read_text() == "None"
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (1, 1)
        assert "ValueError: of the parent" in report["t"].failed_blocks[0].error
