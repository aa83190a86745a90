"""The files of a run: who can read them, how long they are there, and what is believed of them."""

from __future__ import annotations

import base64
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import workspan as ws
from helpers.client_kit import line_task, serving
from helpers.engine_kit import is_gone, wait_until
from workspan.engines.vault import Vault, read_function, read_secret
from workspan.errors import ConfigurationError, EngineError

SECRET = bytes(range(32))
OTHER = bytes(range(1, 33))


@pytest.fixture
def vault(tmp_path):
    """The files of a run, in a folder that does not exist yet."""
    vault = Vault(tmp_path / "logs", SECRET)
    yield vault
    vault.close()


def folders(parent):
    """Return the folders of runs in *parent*."""
    return sorted(path.name for path in Path(parent).glob(".workspan-run*"))


def ended_pid():
    """Return the number of a process that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


class TestFiles:
    def test_only_the_owner_can_enter_and_read(self, tmp_path):
        """0600 files in a 0700 folder, whatever the umask (R47)."""
        before = os.umask(0)
        try:
            vault = Vault(tmp_path, SECRET)
        finally:
            os.umask(before)
        assert stat.S_IMODE(vault.folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(vault.secret_file.stat().st_mode) == 0o600
        assert vault.secret_file.read_bytes() == SECRET
        assert read_secret(str(vault.secret_file)) == SECRET
        vault.close()
        assert not vault.folder.exists()

    def test_a_file_that_is_there_is_not_overwritten(self, vault):
        """O_EXCL: neither a file nor a link that somebody planted is written through (R47)."""
        with pytest.raises(FileExistsError):
            vault.write("secret", b"other")
        target = vault.folder / "target"
        (vault.folder / "planted").symlink_to(target)
        with pytest.raises(FileExistsError):
            vault.write("planted", b"data")
        assert not target.exists()
        assert read_secret(str(vault.secret_file)) == SECRET

    def test_two_runs_do_not_meet(self, tmp_path):
        """Each has a folder of its own, and closing one leaves the other."""
        first, second = Vault(tmp_path, SECRET), Vault(tmp_path, OTHER)
        first.close()
        assert read_secret(str(second.secret_file)) == OTHER
        second.close()
        second.close()

    def test_without_a_log_folder(self):
        """The temporary folder does then."""
        vault = Vault(None, SECRET)
        assert read_secret(str(vault.secret_file)) == SECRET
        vault.close()

    def test_what_cannot_be_made_is_told(self, tmp_path):
        """The error names the folder and what to do."""
        (tmp_path / "file").touch()
        with pytest.raises(EngineError, match=r"cannot be made in .*file' \(File exists\): set another log folder"):
            Vault(tmp_path / "file", SECRET)

    def test_a_full_disk_leaves_no_folder(self, tmp_path, monkeypatch):
        """What was begun is removed."""

        def write(self, name, data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Vault, "write", write)
        with pytest.raises(EngineError, match="No space left"):
            Vault(tmp_path, SECRET)
        assert folders(tmp_path) == []


class TestSecret:
    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
    def test_readable_by_others(self, vault, mode):
        """It is refused, since somebody else may know it (R47)."""
        vault.secret_file.chmod(mode)
        with pytest.raises(ConfigurationError, match="can be read by others than you"):
            read_secret(str(vault.secret_file))

    def test_a_link(self, vault, tmp_path):
        """Links are not followed (R47)."""
        (tmp_path / "link").symlink_to(vault.secret_file)
        with pytest.raises(ConfigurationError, match="cannot be read"):
            read_secret(str(tmp_path / "link"))

    @pytest.mark.parametrize("size", [0, 31, 33, 5000])
    def test_another_size(self, vault, size):
        """It is no secret of a run."""
        vault.secret_file.write_bytes(bytes(size))
        with pytest.raises(ConfigurationError, match="is no secret of a run"):
            read_secret(str(vault.secret_file))

    def test_gone(self, vault):
        """The run is over."""
        vault.close()
        with pytest.raises(FileNotFoundError):
            read_secret(str(vault.secret_file))

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
    def test_of_another_user(self, vault):
        """It is refused: whoever owns the file chose the secret (R47)."""
        os.chown(vault.secret_file, 12345, -1)
        with pytest.raises(ConfigurationError):
            read_secret(str(vault.secret_file))


class TestFunction:
    def test_round_trip(self, vault):
        """Settings and function come back, and are written once."""
        settings = {"cwd": "/ä", "logging": None, "sys_path": ["a"]}
        path = vault.write_function(3, settings, b"packed")
        assert read_function(str(path), SECRET) == (settings, b"packed")
        assert vault.write_function(3, {}, b"other") == path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_every_byte_counts(self, vault):
        """A function file that was changed anywhere, or cut, is refused before anything is read of it (R45)."""
        path = vault.write_function(0, {"a": 1}, b"packed")
        data = path.read_bytes()
        wrong = [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(len(data))]
        wrong += [b"", data[:31], data[:32], data[:-1], data + b"\0", bytes(32) + data[32:]]
        for content in wrong:
            path.write_bytes(content)
            with pytest.raises(ConfigurationError, match="was not written by this run: nothing of it was loaded"):
                read_function(str(path), SECRET)

    def test_of_another_run(self, vault):
        """The MAC is made with the run's secret (R45)."""
        path = vault.write_function(0, {}, b"packed")
        with pytest.raises(ConfigurationError):
            read_function(str(path), OTHER)

    def test_gone(self, vault):
        """The error says how long it is there."""
        with pytest.raises(ConfigurationError, match="exists only while the run goes on"):
            read_function(str(vault.folder / "function-9"), SECRET)


class TestSweep:
    def test_what_a_killed_run_left(self, tmp_path):
        """The folder of a process that is gone is removed by the next run (R47)."""
        left = tmp_path / f".workspan-run-{socket.gethostname()}-{ended_pid()}-abc_1"
        left.mkdir()
        (left / "secret").write_bytes(SECRET)
        Vault(tmp_path, SECRET).close()
        assert folders(tmp_path) == []

    def test_in_the_temporary_folder_too(self, tmp_path, monkeypatch):
        """Runs without a log folder are cleaned up after as well (R47)."""
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        (tmp_path / f".workspan-run-{socket.gethostname()}-{ended_pid()}-abc").mkdir()
        Vault(None, SECRET).close()
        assert folders(tmp_path) == []

    def test_what_is_not_ours_stays(self, tmp_path):
        """Runs that go on, other machines', names that mean something else, and links are left alone (R47, R48)."""
        host, gone = socket.gethostname(), ended_pid()
        names = [
            f".workspan-run-{host}-{os.getpid()}-abc",
            f".workspan-run-{host}-7-{gone}-abc",  # of a machine called <this one>-7
            f".workspan-run-other{host}-{gone}-abc",
            f".workspan-run-{host}-x-abc",
            f".workspan-run-{host}-",
        ]
        for name in names:
            (tmp_path / name).mkdir()
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        names.append(f".workspan-run-{host}-{gone}-link")
        (tmp_path / names[-1]).symlink_to(elsewhere)
        Vault(tmp_path, SECRET).close()
        assert folders(tmp_path) == sorted(names)
        assert elsewhere.exists()


DRIVER = """
import sys
import workspan as ws

def work(block):
    if sys.stdin is None or block.index == 1:
        raise ValueError

ws.logging.set_log_basedir(sys.argv[1])
task = ws.Task("t", ws.Roi((0,), (10,)), ws.Roi((0,), (10,)), ws.Roi((0,), (10,)), None, read_write_conflict=False)
ws.run_blockwise(task, progress=False, summary=False)
"""


@pytest.mark.usefixtures("logs")
class TestRun:
    def test_gone_after_a_run(self, logs):
        """The end of the run is the end of its files (R47)."""
        with serving(line_task(2, None)) as run:
            assert len(folders(logs)) == 1
            with run.guest() as guest:
                guest.work()
                assert run.wait()
        assert folders(logs) == []

    def test_gone_after_an_error(self, logs):
        """However the run ends (R47)."""

        def fail():
            raise ValueError("in the worker function")

        task = line_task(1, fail, max_workers=1, max_worker_restarts=0)
        with serving(task) as run, pytest.raises(ws.AbandonedError):
            run.wait()
        assert folders(logs) == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_gone_after_a_signal(self, logs, number):
        """An interrupt removes them, and after SIGKILL the next run does (R47)."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(logs)], env=env, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: any(logs.glob(".workspan-run*/context-0")), "the run waits for workers")
            driver.send_signal(number)
        finally:
            driver.communicate(timeout=60)
        assert is_gone(driver.pid)
        if number == signal.SIGKILL:
            assert len(folders(logs)) == 1
            with serving(line_task(1, None)):
                assert len(folders(logs)) == 1
        assert folders(logs) == []

    def test_the_secret_is_nowhere_else(self, logs, tmp_path, caplog, gate):
        """It is in one file: in no argument, environment, log, store, report or message of any process (R47, D6)."""
        caplog.set_level(0)
        inside, release = gate("inside"), gate("release")
        program = (
            "import os, workspan as ws\nclient = ws.Client()\n"
            "with client.acquire_block() as block:\n"
            f"    open({inside.path!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}}\\n')\n"
            f"    open({release.path!r}).read()\n"
            "print(dict(os.environ), vars(client))\n"
            "client.run(lambda block: 1 / 0 if block.index == 2 else None)\n"
        )

        def start():
            subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})

        path = os.pathsep.join(entry for entry in sys.path if entry)
        task = line_task(4, start, max_retries=0, tracking_path=tmp_path / "store", resource_tracking=True)
        with serving(task) as run:
            context = run.context()
            secret = read_secret(context["secret_file"])
            pids = [os.getpid(), *map(int, inside.wait().split())]
            assert len(set(pids)) == 3
            places = {f"{p} {n}": Path(f"/proc/{p}/{n}").read_bytes() for p in pids for n in ("cmdline", "environ")}
            assert b"secret_file=" in places[f"{pids[2]} environ"]
            release.open()
            report = run.wait()
        assert report["t"].blocks.count == 3
        places["report"] = f"{report!r} {report['t'].to_json()}".encode()
        places["log"] = caplog.text.encode()
        files = [p for folder in (logs, tmp_path / "store") for p in folder.rglob("*") if p.is_file()]
        places |= {str(p): p.read_bytes() for p in files}
        assert len(files) > 5
        assert any(b"acquire" in place or b"WORKSPAN_CONTEXT" in place for place in places.values())
        for spelling in (secret, secret.hex().encode(), base64.b64encode(secret), repr(secret)[2:-1].encode()):
            assert not [name for name, place in places.items() if spelling in place]
