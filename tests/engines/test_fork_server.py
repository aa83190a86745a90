"""Workers that are forked from a process which has loaded what they need: as fresh ones, only sooner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helpers.engine_kit import is_gone, wait_until
from workspan import config
from workspan.engines import Processes, fork_server
from workspan.engines.fork_server import Born, server_for
from workspan.errors import UsageTypeError

pytestmark = pytest.mark.skipif(not fork_server.is_possible(), reason="forks of this kind are made on Linux only")


@pytest.fixture(autouse=True, scope="module")
def kept():
    """One server for all tests that do not end it; it is there before the leak check of the first one looks around."""
    server = server_for(())
    assert server.wait()
    yield server
    fork_server.stop_all()


@pytest.fixture(autouse=True)
def servers(no_leaks, kept):
    """End what a test started."""
    yield
    for key in [key for key, server in fork_server._servers.items() if server is not kept]:
        fork_server._servers.pop(key).close()


def forked(**how):
    """Return an engine whose workers are forks."""
    return Processes(fork_server=True, **how)


def is_fork(run, worker=0):
    """Whether a worker was forked by a server."""
    return isinstance(run.engine._children[worker]._process, Born)


def nothing(block):
    """Do nothing."""


def stop(run, worker=0):
    """Let a worker end."""
    run.engine.stop_worker(worker)
    return run.ended(worker)


def out(run, worker=0, task="task0"):
    """Return what a worker printed."""
    return Path(run.engine._folders[0].parent, task, f"worker_{worker}.out").read_text()


class TestBirth:
    def test_is_a_child_of_the_driver_like_any_other(self, make_run):
        """A forked worker has the driver as its parent, a session, a thread and a name of its own (R19, D28)."""

        def tell_all(block):
            threads = len(os.listdir("/proc/self/task"))
            words = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")[-3:]
            print(os.getpid(), os.getppid(), os.getsid(0), os.getpgrp(), threads, *words, sys.stdin.read())

        run = make_run(forked(), tell_all)
        run.start()
        assert is_fork(run)
        assert run.block().ok
        pid = str(run.engine._children[0].pid)
        assert out(run).split() == [pid, str(os.getpid()), pid, pid, "1", "workspan-worker", "0", "task0"]
        assert stop(run).clean

    def test_holds_nothing_but_its_own(self, make_run):
        """It has the descriptors that a fresh one has, by number of each kind, and the modules (R17, D28)."""

        def look(block):
            names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            kinds = [os.readlink(name).split(":")[0] for name in names if os.path.lexists(name)]
            print(sorted(kind for kind in kinds if not kind.startswith("/") or kind.startswith("/memfd")))
            heavy = ("numpy", "zarr", "funlib", "asyncio", "hashlib", "subprocess", "socket", "rich", "scipy")
            print(*[name for name in heavy if name in sys.modules])
            print(*[name for name in sys.modules if name.startswith(("workspan.schedule", "workspan.store"))])

        seen = []
        for engine in (Processes(), forked()):
            run = make_run(engine, look)
            run.start(len(seen))
            assert run.block(worker=len(seen)).ok
            seen.append(out(run, len(seen)))
            engine.close()
        assert seen[0] == seen[1] == "['pipe', 'socket', 'socket']\n\n\n"

    def test_folder_variables_and_path_are_those_of_now(self, make_run, tmp_path, monkeypatch):
        """Each worker has the driver's folder, variables, arguments and import path at its start (R16, D28)."""

        def look(block):
            names = [name for name in os.environ if name.startswith("SEEN_")]
            print(os.getcwd(), *names, os.environb[b"SEEN_NEW"], sys.argv[-1], sys.path[-1])
            os.system("echo $SEEN_NEW")

        monkeypatch.setenv("SEEN_OLD", "1")
        first = make_run(forked(), nothing)
        first.start()
        first.engine.close()
        server = server_for(())
        monkeypatch.delenv("SEEN_OLD")
        monkeypatch.setenv("SEEN_NEW", "caf\udce9")
        monkeypatch.setattr(sys, "argv", ["script", "argument"])
        monkeypatch.setattr(sys, "path", [*sys.path, "/last"])
        monkeypatch.chdir(tmp_path)
        run = make_run(forked(), look)
        run.start()
        assert is_fork(run)
        assert run.engine._server is server
        assert run.block().ok
        text = Path(run.engine._folders[0], "worker_0.out").read_bytes()
        assert text == b"%b SEEN_NEW b'caf\\xe9' argument /last\ncaf\xe9\n" % os.fsencode(tmp_path)

    @pytest.mark.parametrize("what", ["variable", "mask", "signal", "limit"])
    def test_what_a_fork_cannot_take_over_makes_a_new_server(self, monkeypatch, what):
        """A server of another world is not used: threads of OpenBLAS, masks, ignored signals, limits (D28)."""
        import resource

        server = server_for(())
        mask, action = os.umask(0o22), signal.getsignal(signal.SIGUSR2)
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        os.umask(mask)
        try:
            assert server_for(()) is server
            if what == "variable":
                monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")  # the suite sets it to 1
            elif what == "mask":
                os.umask(mask ^ 0o77)
            elif what == "signal":
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            else:
                resource.setrlimit(resource.RLIMIT_CORE, (0 if limits[0] else 4096, limits[1]))
            assert server_for(()) is not server
        finally:
            monkeypatch.undo()
            os.umask(mask)
            signal.signal(signal.SIGUSR2, action)
            resource.setrlimit(resource.RLIMIT_CORE, limits)
        assert server_for(()) is server

    def test_removed_folder_is_started_the_old_way(self, make_run, tmp_path, monkeypatch):
        """Where the driver's folder is gone, a fresh interpreter is there too (D28)."""
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        run = make_run(forked(), nothing)
        run.start()
        assert not is_fork(run)
        monkeypatch.chdir(tmp_path)

    def test_random_numbers_differ(self, make_run):
        """Two forks draw different numbers from the generators that are seeded when they are imported (D28)."""

        def draw(block):
            import random

            import numpy.random

            print(random.random(), numpy.random.random())

        run = make_run(forked(preload=["random", "numpy.random"]), draw)
        drawn = []
        for worker in (0, 1):
            run.start(worker)
            assert is_fork(run, worker)
            assert run.block(worker=worker).ok
            drawn += out(run, worker).split()
        assert len(set(drawn)) == 4


class TestUserCode:
    TEXT = "def work(block):\n    print({})\n"

    @pytest.mark.parametrize("asked", [False, True])
    def test_changed_module_is_seen_unless_it_was_asked_for(self, make_run, tmp_path, monkeypatch, asked):
        """A module that is edited between two runs is new in the second; what was preloaded on request is not (D28)."""
        name = f"fork_test_module_{asked}".lower()
        path = tmp_path / f"{name}.py"
        monkeypatch.syspath_prepend(tmp_path)
        printed = []
        for number in (1, 2):
            path.write_text(self.TEXT.format(number))
            os.utime(path, (number, number))  # not the time of the compiled file
            module = __import__(name)
            run = make_run(forked(preload=[name] if asked else []), module.work)
            run.start(number)
            assert is_fork(run, number)
            assert run.block(worker=number).ok
            printed.append(out(run, number))
            run.engine.close()
        del sys.modules[name]
        assert printed == (["1\n", "1\n"] if asked else ["1\n", "2\n"])

    def test_new_module_is_found(self, make_run, tmp_path, monkeypatch):
        """What the server saw in a folder is not what is there now, whatever the folder's time says (D28)."""

        def load(block):
            import fork_test_second  # noqa: F401

        folder = tmp_path / "modules"
        folder.mkdir()
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # nor shall the folder's time change
        monkeypatch.syspath_prepend(folder)
        for name in ("first", "second"):
            (folder / f"fork_test_{name}.py").write_text("")
            os.utime(folder, (1, 1))
            run = make_run(forked(preload=["fork_test_first"]), load)
            run.start()
            assert is_fork(run)
            assert run.block().ok is (name == "second")
            run.engine.close()

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            (
                "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
                "2 threads",
            ),
            ("raise ImportError('not today')", "ImportError: not today"),
        ],
        ids=["threads", "error"],
    )
    def test_module_that_cannot_be_preloaded(self, make_run, tmp_path, monkeypatch, caplog, text, why):
        """A preload that leaves a thread, or fails, costs the server only, and the reason is told once (D28)."""
        (tmp_path / "fork_test_thread.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        assert not server_for((), ["fork_test_thread"]).wait()
        run = make_run(forked(preload=["fork_test_thread"]), nothing)
        run.start()
        assert not is_fork(run)
        told = [record.getMessage() for record in caplog.records if "no fork server" in record.getMessage()]
        assert len(told) == 1
        assert why in told[0]

    def test_preload_is_a_list(self):
        """A name where a list of names is wanted is refused with what was given."""
        with pytest.raises(UsageTypeError, match="preload='numpy' is a text"):
            Processes(preload="numpy")

    def test_setting(self, make_run):
        """The setting ``fork_server`` decides where the engine was not told, and is off by default."""
        assert config.get("fork_server") is False
        engine = Processes()
        make_run(engine, nothing)
        assert engine._server is None
        engine.close()
        config.configure(fork_server=True)
        try:
            make_run(engine, nothing)
            assert engine._server is not None
        finally:
            config.reset()


class TestEnds:
    @pytest.mark.parametrize(
        "end",
        [
            lambda block: os._exit(87),
            lambda block: os.kill(os.getpid(), signal.SIGKILL),
            lambda block: os.abort(),
        ],
        ids=["87", "SIGKILL", "SIGABRT"],
    )
    def test_is_told_as_for_a_fresh_worker(self, make_run, end):
        """Exit codes and signals of a fork are those of a fresh interpreter (R1, R15, B83)."""
        told = []
        for engine in (Processes(), forked()):
            run = make_run(engine, end)
            run.start(len(told))
            run.engine.send(len(told), 0)
            child = run.engine._children[len(told)]
            ended = run.ended(len(told))
            assert child.peak_rss_bytes > 5_000_000
            told.append((ended.clean, ended.exit_code, ended.reason, ended.stderr_tail.splitlines()[:1]))
            engine.close()
        assert told[0] == told[1]

    def test_costs_are_counted_from_nothing(self, make_run):
        """CPU, I/O and memory of a block are its own: nothing of the server's past, and the same peak (B130, D28)."""
        blocks = []
        for engine in (Processes(), forked(preload=["numpy"])):
            run = make_run(engine, take_memory, resource_tracking=True)
            run.start(len(blocks))
            blocks.append(run.block(worker=len(blocks)).stats)
            engine.close()
        fresh, fork = blocks
        assert fork.cpu_seconds < fork.wall_seconds + 0.1
        assert fork.io_read_bytes < fresh.io_read_bytes + 100_000
        assert 64_000_000 < fork.peak_rss_bytes < fresh.peak_rss_bytes + 40_000_000  # numpy is in this one


def take_memory(block):
    """Hold 64 MB."""
    assert len(b"x" * 64_000_000)


class TestLibraries:
    def test_dataset(self, tmp_path, logs):
        """Workers of datasets are forked with Arrow loaded, and do what others do (D28, M105)."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        import workspan as ws

        engine = forked()
        data = ws.from_arrow([pa.table({"a": range(1000)})]).map_batches(doubled)
        data.write_parquet(tmp_path / "out", engine=engine, max_workers=1, progress=False)
        assert preloaded() == ("workspan.dataset.task", "pyarrow.parquet")
        assert pq.read_table(tmp_path / "out").column("a").to_pylist() == list(range(0, 2000, 2))

    def test_arrays(self, tmp_path, logs):
        """Workers of arrays are forked with Zarr loaded, and do what others do (D28)."""
        import numpy as np
        import zarr

        import workspan as ws

        source = zarr.create_array(str(tmp_path / "in.zarr"), shape=(8,), chunks=(4,), dtype="f8")
        source[:] = 1
        task = ws.map_blocks(np.sqrt, source, out=str(tmp_path / "out.zarr"), max_workers=1)
        assert ws.run_blockwise(task, engine=forked(), progress=False, summary=False, block_tracking=False)
        assert preloaded() == ("workspan.arrays.block", "workspan.arrays.refs", "workspan.arrays.outputs", "zarr")
        assert (zarr.open_array(str(tmp_path / "out.zarr"))[:] == 1).all()


def preloaded():
    """Return the names of the modules that the server which was used last has loaded."""
    (_, (names, _)), server = list(fork_server._servers.items())[-1]
    return names if server._is_up else None


def doubled(batch):
    """Double a column."""
    return {"a": batch["a"] * 2}


class TestDeath:
    @pytest.fixture(autouse=True)
    def none_before(self, servers):
        """The server that the others share is not for this."""
        fork_server.stop_all()

    def test_killed_server_is_replaced_in_the_next_run(self, make_run):
        """After a SIGKILL between two runs the second one starts another server (D28)."""
        run = make_run(forked(), nothing)
        run.start()
        first = run.engine._server
        run.engine.close()
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(first.pid), "the server is dead")
        run = make_run(forked(), nothing)
        run.start(1)
        assert is_fork(run, 1)
        assert run.engine._server.pid != first.pid

    def test_killed_in_mid_block(self, make_run, gate):
        """Nothing is lost of a worker whose server is killed; the next one is a fresh interpreter (D28)."""
        entered, leave = gate("entered"), gate("leave")
        names = entered.path, leave.path

        def work(block):
            if block.index == 0:
                Path(names[0]).write_text("here\n")
                Path(names[1]).read_text()

        run = make_run(forked(), work)
        run.start(0)
        run.engine.send(0, 0)
        entered.wait()
        os.kill(run.engine._server.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(run.engine._server.pid), "the server is dead")
        run.start(1)
        assert is_fork(run, 0)
        assert not is_fork(run, 1)
        assert run.block(1, worker=1).ok
        leave.open()
        assert run.returned(0).ok
        for worker in (0, 1):
            ended = stop(run, worker)
            assert (ended.clean, ended.exit_code) == (True, 0)

    def test_stopped_server_holds_nobody_up(self, make_run, monkeypatch):
        """A server that does not answer in time is killed, and the worker started without it (D28)."""
        monkeypatch.setattr(fork_server, "REPLY_SECONDS", 0.1)
        run = make_run(forked(), nothing)
        run.start(0)
        server = run.engine._server
        os.kill(server.pid, signal.SIGSTOP)
        run.start(1)
        assert not is_fork(run, 1)
        assert is_gone(server.pid)
        assert run.block(worker=1).ok

    def test_server_that_does_not_come_up(self, make_run, monkeypatch):
        """A boot that takes too long is not waited for again in that run (D28)."""
        run = make_run(forked(), nothing)
        os.kill(run.engine._server.pid, signal.SIGSTOP)
        monkeypatch.setattr(run.engine._server, "wait", lambda: False)
        run.start(0)
        assert not is_fork(run)
        assert run.engine._server is None

    def test_idle_server_ends(self, monkeypatch):
        """A server that nobody asks ends by itself (D28)."""
        monkeypatch.setattr(fork_server, "IDLE_SECONDS", 0.05)
        server = server_for(())
        assert server.wait()
        wait_until(lambda: server.is_over, "the server has ended")
        assert server_for(()) is not server

    def test_only_so_many(self, monkeypatch):
        """The server that was not used for longest ends when there are too many (D28)."""
        monkeypatch.setattr(fork_server, "MOST_SERVERS", 2)
        first, second = server_for((), ["a"]), server_for((), ["b"])
        assert server_for((), ["a"]) is first
        third = server_for((), ["c"])
        assert [server.is_over for server in (first, second, third)] == [False, True, False]

    def test_thread_that_started_it(self):
        """A server dies with the thread that started it, so that no other thread uses it; all use the main one's."""
        found = []
        leave = threading.Event()

        def start():
            found.append(server_for(()))
            assert found[0].wait()
            leave.wait(20)

        thread = threading.Thread(target=start)
        thread.start()
        wait_until(lambda: bool(found), "the other thread has a server")
        main = server_for(())
        leave.set()
        thread.join()
        assert main is not found[0]
        wait_until(lambda: found[0].is_over, "the server has died with its thread")
        other = threading.Thread(target=lambda: found.append(server_for(())))
        other.start()
        other.join()
        assert found[1] is main

    def test_fork_of_the_driver_has_none(self):
        """A fork of the driver neither uses nor ends what belongs to the driver (R65)."""
        code = """
import os
from workspan.engines import fork_server
server = fork_server.server_for(())
assert server.wait()
child = os.fork()
if not child:
    is_open = server._channel.fileno() != -1
    fork_server.stop_all()
    os._exit(is_open or fork_server.server_for(()) is server)
assert os.waitpid(child, 0)[1] == 0
assert fork_server.server_for(()) is server and server.fork([0, 1, 2, 0, 1]) is not None
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, b"")
