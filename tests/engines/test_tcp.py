"""Which address workers dial, and who finds out that a machine has vanished."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from time import monotonic

import pytest

from helpers.client_kit import Peer, line_task, serving
from helpers.engine_kit import wait_until
from workspan.engines import tcp
from workspan.engines.tcp import answers, asked_host, detected_host, is_loopback, listening_address, tune
from workspan.engines.wire import Result


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """Start without any host in the environment."""
    for name in tcp.HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a machine: addresses of its name and of its default route, and those that answer."""

    def make(name, route, reachable):
        def find(value):
            def answer():
                if isinstance(value, Exception):
                    raise value
                return value

            return answer

        monkeypatch.setattr(tcp, "_address_of_own_name", find(name))
        monkeypatch.setattr(tcp, "_source_of_default_route", find(route))
        monkeypatch.setattr(tcp, "answers", lambda address: address in reachable)

    return make


class TestAsked:
    def test_order(self, monkeypatch):
        """B103, D26: the argument, then WORKSPAN_HOST, then DAISY_HOST."""
        assert asked_host(None) is None
        monkeypatch.setenv("DAISY_HOST", "daisy")
        assert asked_host(None) == "daisy"
        monkeypatch.setenv("WORKSPAN_HOST", "workspan")
        assert asked_host(None) == "workspan"
        assert asked_host("argument") == "argument"

    def test_empty_texts_are_ignored(self, monkeypatch):
        """B103."""
        monkeypatch.setenv("WORKSPAN_HOST", "")
        assert asked_host("") is None
        monkeypatch.setenv("DAISY_HOST", "daisy")
        assert asked_host("") == "daisy"

    def test_what_is_asked_for_is_taken_as_it_is(self):
        """B103: also what cannot be right."""
        assert asked_host(" not a host!") == " not a host!"


class TestDetected:
    def test_own_name_first(self, machine, caplog):
        """B103: the address of the machine's name, if it answers."""
        machine("10.0.0.1", "10.0.0.2", ("10.0.0.1", "10.0.0.2"))
        assert detected_host() == "10.0.0.1"
        assert not caplog.records

    @pytest.mark.parametrize("name", ["127.0.1.1", "10.0.0.9", socket.gaierror("no such name"), UnicodeError("label")])
    def test_then_the_default_route(self, machine, name, caplog):
        """B103: a name that means loopback, does not answer or does not resolve is skipped."""
        machine(name, "10.0.0.2", ("127.0.1.1", "10.0.0.2"))
        assert detected_host() == "10.0.0.2"
        assert not caplog.records

    @pytest.mark.parametrize("route", [OSError("Network is unreachable"), "127.0.0.1", "10.0.0.2"])
    def test_then_loopback_with_a_warning(self, machine, route, caplog):
        """B103, KF-28: without any route local runs work, and the user is told what that means."""
        machine(socket.gaierror("no such name"), route, ())
        assert detected_host() == "127.0.0.1"
        assert "workers on this machine only, at 127.0.0.1; name one with host= or WORKSPAN_HOST" in caplog.text

    def test_this_machine(self):
        """Whatever this machine is called, the address that is found can be dialled."""
        assert answers(detected_host())


class TestAnswers:
    def test_loopback(self):
        """The probe connects and hears its word (B103)."""
        assert answers("127.0.0.1")

    @pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid"])
    def test_an_address_of_others(self, address, monkeypatch):
        """Nobody here can listen on it."""
        monkeypatch.setattr(tcp, "_PROBE_SECONDS", 0.5)
        assert not answers(address)

    def test_a_listener_that_says_something_else(self, monkeypatch):
        """An echo of other bytes is no answer."""
        monkeypatch.setattr(tcp, "_echo", lambda listener: _say_noise(listener))
        assert not answers("127.0.0.1")


def _say_noise(listener):
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"HTTP/1.1")
        connection.recv(64)


@pytest.mark.parametrize(
    ("host", "loopback", "listens"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("127.8.8.8", True, "127.8.8.8"),
        ("::1", True, "::1"),
        ("localhost", True, "127.0.0.1"),
        ("10.0.0.1", False, ""),
        ("0.0.0.0", False, ""),
        ("node7", False, ""),
        ("", False, ""),
    ],
)
def test_what_is_loopback(host, loopback, listens):
    """B104: names are not resolved, and only loopback is listened on alone."""
    assert is_loopback(host) is loopback
    assert listening_address(host) == listens


def test_connections_notice_a_vanished_machine():
    """R36, B90, D36: keepalive 30/10/3, data unacknowledged for 60 s, and no waiting for full packets."""
    with socket.socket() as connection:
        tune(connection)
        get = connection.getsockopt
        assert get(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert get(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        if not all(hasattr(socket, name) for name in names):
            pytest.skip("this system has other names for them")
        assert [get(socket.IPPROTO_TCP, getattr(socket, n)) for n in names] == [30, 10, 3, 60_000]


def test_a_machine_without_any_route():
    """KF-28: in an empty network namespace the answer is loopback, at once."""
    code = "from workspan.engines.tcp import detected_host; print(detected_host())"
    command = ["unshare", "--net", "sh", "-c", f'ip link set lo up; exec "$0" -c "{code}"']
    try:
        found = subprocess.run([*command, sys.executable], capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "unshare" in found.stderr:
        pytest.skip(f"no network namespaces here: {found.stderr.strip()}")
    assert found.stdout == "127.0.0.1\n"


class Far:
    """Another machine: a network namespace at the other end of a cable."""

    def __init__(self, number):
        self.name = f"workspan-{number}"
        self.cable, self.far_cable = f"wsn{number % 1_000_000}", f"wsf{number % 1_000_000}"
        self.host, self.far_host = (f"10.{200 + number % 50}.{number // 50 % 250}.{n}" for n in (1, 2))

    def ip(self, *words):
        """Run the tool `ip`."""
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def build(self):
        """Make the machine and plug it in."""
        self.ip("netns", "add", self.name)
        self.ip("link", "add", self.cable, "type", "veth", "peer", "name", self.far_cable, "netns", self.name)
        self.ip("address", "add", f"{self.host}/30", "dev", self.cable)
        self.ip("link", "set", self.cable, "up")
        self.ip("-n", self.name, "address", "add", f"{self.far_host}/30", "dev", self.far_cable)
        self.ip("-n", self.name, "link", "set", self.far_cable, "up")
        self.ip("-n", self.name, "link", "set", "lo", "up")

    def vanish(self):
        """Pull the plug: nobody is told."""
        self.ip("link", "set", self.cable, "down")

    def start(self, *words, context=None):
        """Start a Python there."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        if context is not None:
            env["WORKSPAN_CONTEXT"] = context.to_env()
        command = ["ip", "netns", "exec", self.name, sys.executable, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.fixture
def far():
    """Another machine; skips where none can be made."""
    if shutil.which("ip") is None:
        pytest.skip("the tool `ip` is not here")
    machine = Far(os.getpid())
    try:
        machine.build()
    except OSError as error:
        subprocess.run(["ip", "netns", "delete", machine.name], capture_output=True)
        pytest.skip(f"no network namespace can be made here: {error}")
    yield machine
    # At once, and not when the kernel has buried the last socket of the namespace.
    subprocess.run(["ip", "link", "delete", machine.cable], capture_output=True)
    subprocess.run(["ip", "netns", "delete", machine.name], capture_output=True)


@pytest.mark.usefixtures("logs")
class TestFar:
    def test_a_worker_on_another_machine(self, far, tmp_path):
        """B103, B104, B45: it dials the address that the run was given, and does all blocks."""
        seen = tmp_path / "seen"
        code = (
            "import os, workspan as ws\n"
            "client = ws.Client()\n"
            f"client.run(lambda block: open({str(seen)!r}, 'a').write(os.readlink('/proc/self/ns/net') + ' '))"
        )
        with serving(line_task(5, None), host=far.host) as run:
            assert run.context()["hostname"] == far.host
            worker = far.start("-c", code, context=run.context())
            try:
                report = run.wait(40)
            finally:
                _, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
        assert (report["t"].blocks.count, report["t"].workers.unmanaged_clients) == (5, 1)
        assert len(seen.read_text().split()) == 5
        assert os.readlink("/proc/self/ns/net") not in seen.read_text()

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch):
        """Notice within some seconds instead of a minute, here and there."""
        self.settings = {"KEEPALIVE_IDLE": 1, "KEEPALIVE_INTERVAL": 1, "KEEPALIVE_PROBES": 2, "USER_TIMEOUT_MS": 2000}
        for name, value in self.settings.items():
            monkeypatch.setattr(tcp, name, value)

    def client(self, code):
        """Return the text of an impatient client."""
        return (
            f"import os, time, workspan as ws\nfrom workspan.engines import tcp\nvars(tcp).update({self.settings})\n"
            f"client = ws.Client()\nwith client.acquire_block() as block:\n    {code}\n"
            "with client.acquire_block() as block:\n    print(block)\n"
        )

    def near(self, run, task_id):
        """Return a guest on this machine, over loopback."""
        context = run.context(task_id)
        context["hostname"] = "127.0.0.1"
        peer = Peer(context)
        peer.join()
        return peer

    def vanish(self, far, run):
        """Pull the plug and wait until the run has noticed."""
        peers = run.engine._gate._peers
        before, count = monotonic(), len(peers)
        far.vanish()
        wait_until(lambda: len(peers) < count, "the loss was noticed")
        assert monotonic() - before < 10

    def test_a_machine_that_vanishes_with_a_block(self, far, tmp_path):
        """R36: the block is lost within seconds and runs again, and the far worker ends by itself."""
        inside, noticed = tmp_path / "inside", tmp_path / "noticed"
        code = f"open({str(inside)!r}, 'w').close()\n    while not os.path.exists({str(noticed)!r}): time.sleep(0.01)"
        with serving(line_task(2, None), host=far.host) as run:
            worker = far.start("-c", self.client(code), context=run.context())
            try:
                wait_until(inside.exists, "the far worker has a block")
                self.vanish(far, run)
            finally:
                noticed.touch()
                out, err = worker.communicate(timeout=30)
            with self.near(run, "t") as near:
                assert near.work() == 2
                report = run.wait()
        # Where the system says that the connection has ended, and not how, the client takes it for the end of the run.
        assert (worker.returncode, out) in ((1, ""), (0, "None\n")), err
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (2, 1)

    def test_a_machine_that_vanishes_while_its_worker_waits(self, far):
        """R36: an idle connection is missed as well, on both ends."""
        tasks = line_task(1, None, "up") + line_task(1, None, "t")
        with serving(tasks, host=far.host) as run, self.near(run, "up") as up:
            up.take()
            worker = far.start("-c", self.client("pass"), context=run.context())
            try:
                wait_until(lambda: any(peer.asking for peer in list(run.engine._gate._peers)), "the far worker waits")
                self.vanish(far, run)
            finally:
                out, err = worker.communicate(timeout=30)
            up.say(Result(0, True))
            with self.near(run, "t") as near:
                assert near.work() == 1
                report = run.wait()
        assert (worker.returncode, out) == (1, ""), err
        assert "EngineError: the connection to the run at" in err
        assert (report["t"].blocks.count, report["t"].blocks.failures) == (1, 0)
