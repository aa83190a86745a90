"""The port of a run under everything that a network does to a port."""

from __future__ import annotations

import errno
import logging
import os
import random
import selectors
import socket
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from time import monotonic

import pytest

from helpers.client_kit import NOISES, is_closed, random_bytes, receive_exactly
from helpers.engine_kit import SECONDS, wait_until
from workspan.engines import listener as listener_module
from workspan.engines import login as login_module
from workspan.engines.listener import MOST_STRANGERS, Listener
from workspan.engines.login import CLIENT, HELLO_BYTES, PROOF_BYTES, Login
from workspan.engines.wire import VERSION
from workspan.errors import EngineError, WireError

SECRET = bytes(range(32))


class Door:
    """A listener, driven by hand."""

    def __init__(self, host="127.0.0.1", let_in=None):
        self.selector = selectors.DefaultSelector()
        self.let_in = []
        """Sockets, logins, addresses and times of those that were let in."""
        self.listener = Listener(SECRET, "run", host, self.selector, let_in or (lambda *a: self.let_in.append(a)))
        self.callers = []

    def dial(self, words=b""):
        """Connect, and say something."""
        caller = socket.create_connection(("127.0.0.1", self.listener.port), SECONDS)
        self.callers.append(caller)
        if words:
            caller.sendall(words)
        return caller

    def turn(self, seconds=0.0):
        """Deal with what is there now, or comes within *seconds*."""
        ready = self.selector.select(seconds)
        for key, mask in ready:
            key.data(mask)
        if monotonic() >= self.listener.due:
            self.listener.expire(monotonic())
        return bool(ready)

    def turn_until(self, condition):
        """Turn until *condition* holds."""
        end = monotonic() + SECONDS
        while not condition():
            assert monotonic() < end
            self.turn(0.005)

    @property
    def strangers(self):
        """How many have not logged in."""
        return len(self.listener._strangers)

    def settle(self):
        """Turn until all who dialled were heard of, and nothing is left to be done; sit out short pauses."""
        while self.turn(0.001) or self.listener._resume_at < monotonic() + 0.2:
            pass

    def log_in(self, caller=None):
        """Log in as a client that knows the secret."""
        caller = caller or self.dial()
        before = len(self.let_in)
        login = Login(SECRET, "run", CLIENT)
        caller.sendall(login.hello())
        caller.setblocking(False)
        answer = b""
        end = monotonic() + SECONDS
        while len(answer) < HELLO_BYTES and monotonic() < end:
            self.turn(0.005)
            try:
                answer += caller.recv(HELLO_BYTES)
            except BlockingIOError:
                continue
        caller.settimeout(SECONDS)
        login.take_hello(answer)
        caller.sendall(login.proof())
        self.turn_until(lambda: len(self.let_in) > before)
        login.check_proof(receive_exactly(caller, PROOF_BYTES))
        return login


@pytest.fixture
def make_door():
    """Return a function that opens doors; all are closed afterwards."""
    doors = []

    def make(**kwargs):
        doors.append(Door(**kwargs))
        return doors[-1]

    yield make
    for door in doors:
        door.listener.close()
        for connection in (*door.callers, *(entry[0] for entry in door.let_in)):
            connection.close()
        assert not door.selector.get_map()
        door.selector.close()


@pytest.fixture
def door(make_door):
    """A door on loopback."""
    return make_door()


class TestLogin:
    def test_a_client_with_the_secret_is_let_in(self, door):
        """The socket, the keys, the address and the time of the connection are passed on, and nothing is read ahead."""
        before = monotonic()
        caller = door.dial()
        login = door.log_in(caller)
        connection, driver, address, since = door.let_in[0]
        assert driver.frame_secret() == login.frame_secret()
        assert address == "127.0.0.1"
        assert before <= since <= monotonic()
        assert door.strangers == 0
        caller.sendall(b"afterwards")
        connection.settimeout(SECONDS)
        assert connection.recv(100) == b"afterwards"

    def test_words_may_come_byte_by_byte(self, door):
        """However TCP cuts the words, they are understood."""
        caller = door.dial()
        login = Login(SECRET, "run", CLIENT)
        for byte in login.hello():
            caller.sendall(bytes([byte]))
            door.turn(SECONDS)
        login.take_hello(receive_exactly(caller, HELLO_BYTES))
        for byte in login.proof():
            caller.sendall(bytes([byte]))
            door.turn(SECONDS)
        assert len(door.let_in) == 1

    def test_a_wrong_proof_ends_the_connection(self, door, caplog):
        """One failure closes it, and all that was learnt is the driver's first words (R40)."""
        caller = door.dial()
        login = Login(bytes(32), "run", CLIENT)
        caller.sendall(login.hello())
        door.turn_until(lambda: any(stranger.greeted for stranger in door.listener._strangers))
        heard = receive_exactly(caller, HELLO_BYTES)
        login.take_hello(heard)
        caller.sendall(login.proof())
        door.turn_until(lambda: door.strangers == 0)
        assert is_closed(caller)
        assert not door.let_in
        assert heard[:5] == b"WSPN" + bytes([VERSION])
        assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
            "a connection from 127.0.0.1 was turned away: the peer does not know this run's secret"
        ]

    def test_a_whole_login_cannot_be_played_again(self, door, caplog):
        """The recorded words of a client that was let in are refused (R41)."""
        recorded = []

        class Recorder:
            def __init__(self, caller):
                self.caller = caller

            def sendall(self, words):
                recorded.append(words)
                self.caller.sendall(words)

            def __getattr__(self, name):
                return getattr(self.caller, name)

        door.log_in(Recorder(door.dial()))
        again = door.dial(b"".join(recorded))
        door.turn_until(lambda: caplog.records)
        assert len(receive_exactly(again, 1000)) == HELLO_BYTES
        assert len(door.let_in) == 1

    def test_another_version_is_told_to_both_sides(self, door, caplog, monkeypatch):
        """The driver logs both numbers, and the client hears enough to say them too (R40, B101)."""
        monkeypatch.setattr(login_module, "VERSION", VERSION + 1)
        client = Login(SECRET, "run", CLIENT)
        hello = client.hello()
        monkeypatch.undo()
        caller = door.dial(hello)
        door.turn_until(lambda: caplog.records)
        heard = receive_exactly(caller, HELLO_BYTES)
        assert is_closed(caller)
        assert f"version {VERSION + 1} of the protocol, this process version {VERSION}:" in caplog.text
        monkeypatch.setattr(login_module, "VERSION", VERSION + 1)
        with pytest.raises(WireError, match=f"version {VERSION} of the protocol, this process version {VERSION + 1}:"):
            client.take_hello(heard)

    def test_a_connection_that_breaks_when_it_is_let_in_is_closed(self, make_door, caplog):
        """What the kernel says about one socket is nothing to the others."""

        def let_in(*what):
            door.let_in.append(what)
            raise OSError(errno.EINVAL, "no such option")

        door = make_door(let_in=let_in)
        door.log_in()
        assert is_closed(door.callers[0])
        assert "no such option" in caplog.text
        assert door.strangers == 0


class TestNoise:
    @pytest.mark.parametrize("noise", NOISES)
    def test_is_answered_by_the_end_of_the_connection(self, door, noise, caplog):
        """Other protocols and a huge length are closed at once and hear nothing (R38, KF-73)."""
        caller = door.dial(NOISES[noise])
        door.turn_until(lambda: caplog.records)
        assert is_closed(caller)
        door.log_in()

    def test_connect_and_close_a_thousand_times(self, door, caplog):
        """A port scan costs no descriptor and one line in the log, and clients are let in meanwhile (R38)."""
        descriptors = len(os.listdir("/proc/self/fd"))
        for number in range(1000):
            socket.create_connection(("127.0.0.1", door.listener.port)).close()
            if number % 100 == 50:
                door.log_in()
            elif number % 10 == 0:
                door.settle()
        door.settle()
        assert door.strangers == 0
        assert len(door.let_in) == 10
        assert len(os.listdir("/proc/self/fd")) == descriptors + 2 * 10
        assert len(caplog.records) == 1

    @pytest.mark.timeout(600)
    def test_thousands_of_random_words(self, door):
        """Whatever a stranger says, it is closed or waits; it is never let in, and nothing breaks (R42)."""
        source = random.Random(7)
        for _ in range(20_000 if os.environ.get("WORKSPAN_FULL") == "1" else 1000):
            with socket.create_connection(("127.0.0.1", door.listener.port)) as caller:
                caller.sendall(random_bytes(source, 120))
            door.settle()
        door.turn_until(lambda: door.strangers == 0)
        assert not door.let_in
        door.log_in()

    def test_one_line_a_peer_and_minute(self, door, caplog, monkeypatch):
        """Noise does not fill the log; the next line says how much there was (R38)."""
        now = monotonic()
        monkeypatch.setattr(listener_module, "monotonic", lambda: now)
        for _ in range(50):
            door.dial(NOISES["HTTP"])
        door.turn_until(lambda: sum(count for _, count in door.listener._logged.values()) == 49)
        assert len(caplog.records) == 1
        now += listener_module.LOG_SECONDS + 1
        door.dial(NOISES["TLS"])
        door.turn_until(lambda: len(caplog.records) == 2)
        assert caplog.messages == [
            "a connection from 127.0.0.1 was turned away: the peer does not speak Workspan's protocol",
            "a connection from 127.0.0.1 was turned away: the peer does not speak Workspan's protocol; so were 49 more "
            "since the last line about it",
        ]

    def test_the_log_of_many_machines_is_bounded(self, door, monkeypatch):
        """Addresses are not remembered without end."""
        monkeypatch.setattr(listener_module, "_MOST_LOGGED", 3)
        for number in range(10):
            stranger = listener_module.Stranger(socket.socket(), f"10.0.0.{number}", None, 0.0)
            door.selector.register(stranger.socket, selectors.EVENT_READ)
            door.listener._strangers[stranger] = None
            door.listener._turn_away(stranger, "of a test")
            assert len(door.listener._logged) <= 3


class TestLimits:
    def test_workers_that_start_at_once_wait_for_each_other(self, door):
        """R44: the 65th waits in the system's queue, and nobody who has just come is closed for it."""
        callers = [door.dial() for _ in range(MOST_STRANGERS + 10)]
        while door.turn(0.001):
            pass
        assert door.strangers == MOST_STRANGERS
        logins = [door.log_in(caller) for caller in callers]
        assert len(door.let_in) == len(logins) == MOST_STRANGERS + 10

    def test_a_flood_has_a_small_share_of_the_time(self, door, monkeypatch):
        """R38: after connections that were good for nothing the door is shut for far longer than they took."""
        now = [100.0]

        def clock():
            now[0] += 0.001
            return now[0]

        monkeypatch.setattr(listener_module, "monotonic", clock)
        for _ in range(16):
            door.dial().close()
        wait_until(lambda: door.selector.select(0), "somebody is at the door")
        before = now[0]
        ((key, mask),) = door.selector.select(0)
        key.data(mask)
        spent = now[0] - before
        assert door.listener.due - now[0] > 5 * spent

    def test_at_most_64_strangers(self, door, monkeypatch):
        """One more closes the oldest, and a client still gets in between them (R44)."""
        monkeypatch.setattr(listener_module, "CHANCE_SECONDS", 0.0)
        callers = []
        for _ in range(MOST_STRANGERS + 10):
            callers.append(door.dial())
            door.settle()
        assert door.strangers == MOST_STRANGERS == 64
        assert all(is_closed(caller) for caller in callers[:10])
        callers[10].setblocking(False)
        with pytest.raises(BlockingIOError):
            callers[10].recv(1)
        door.log_in()

    @pytest.mark.parametrize("words", [b"", b"WSPN", b"WSPN" + bytes([VERSION]) + bytes(32)], ids=len)
    def test_a_login_has_a_deadline(self, make_door, monkeypatch, caplog, words):
        """Whoever does not finish in time is closed, wherever it stopped (R44)."""
        monkeypatch.setattr(listener_module, "LOGIN_SECONDS", 0.05)
        door = make_door()
        caller = door.dial(words)
        door.turn_until(lambda: caplog.records)
        receive_exactly(caller, HELLO_BYTES)
        assert is_closed(caller)
        assert "did not log in within 0.05 s" in caplog.text

    def test_a_byte_now_and_then_does_not_move_the_deadline(self, make_door, monkeypatch):
        """Slow-loris: talking is not logging in (R44)."""
        monkeypatch.setattr(listener_module, "LOGIN_SECONDS", 0.2)
        door = make_door()
        caller = door.dial()
        door.turn_until(lambda: door.strangers == 1)
        due = door.listener.due
        for byte in b"WSPN":
            caller.sendall(bytes([byte]))
            door.turn(0.02)
        assert door.strangers == 0 or door.listener.due == due
        door.turn_until(lambda: door.strangers == 0)
        assert monotonic() >= due

    def test_accepting_pauses_when_descriptors_run_out(self, door, monkeypatch, caplog):
        """The run is not kept busy by a port that cannot be served, says so once a minute, and goes on later (R38)."""
        monkeypatch.setattr(listener_module, "_PAUSE_SECONDS", 0.05)
        now = [monotonic()]
        monkeypatch.setattr(listener_module, "monotonic", lambda: now[0])

        class Exhausted:
            calls = 0

            def __init__(self, inner):
                self.inner = inner

            def accept(self):
                self.calls += 1
                raise OSError(errno.EMFILE, "Too many open files")

            def __getattr__(self, name):
                return getattr(self.inner, name)

        real = door.listener._socket
        door.listener._socket = Exhausted(real)
        caller = door.dial()
        door.turn_until(lambda: caplog.records)
        assert "Too many open files; raise the limit of open files (ulimit -n)" in caplog.text
        assert not door.selector.get_map()
        assert door.listener.due < now[0] + 1
        for after, lines in ((1, 1), (58, 1), (60.5, 2)):
            now[0], calls = now[0] + after, door.listener._socket.calls
            door.listener.expire(now[0])
            door.turn_until(lambda calls=calls: door.listener._socket.calls > calls)
            assert len(caplog.records) == lines
        door.listener._socket = real
        door.listener.expire(now[0] + 1)
        monkeypatch.undo()
        door.log_in(caller)

    def test_a_paused_listener_can_be_closed(self, make_door):
        """The end of the run does not wait for the end of the pause."""
        door = make_door()
        door.selector.unregister(door.listener._socket)
        door.listener._resume_at = monotonic() + 1000

    def test_the_limit_of_open_files_is_raised(self, door):
        """Many workers from outside need many descriptors: what the system allows is taken (R53)."""
        soft, hard = getrlimit(RLIMIT_NOFILE)
        if hard < 1000:
            pytest.skip(f"only {hard} files can be open here")
        setrlimit(RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 140, hard))
        try:
            for _ in range(100):
                door.log_in()
            assert getrlimit(RLIMIT_NOFILE)[0] == hard
        finally:
            setrlimit(RLIMIT_NOFILE, (soft, hard))


class TestBinding:
    @pytest.mark.parametrize(
        ("host", "bound"),
        [
            ("127.0.0.1", "127.0.0.1"),
            ("localhost", "127.0.0.1"),
            ("127.0.0.2", "127.0.0.2"),
            ("10.1.2.3", "0.0.0.0"),
            ("some.machine", "0.0.0.0"),
            ("::1", "::1"),
            ("fd00::7", "::"),
        ],
    )
    def test_loopback_only_for_loopback(self, make_door, host, bound):
        """Other interfaces are listened on only if the address that workers dial is another one (R37, B104)."""
        if ":" in host and not os.path.exists("/proc/net/if_inet6"):
            pytest.skip("no IPv6 here")
        assert make_door(host=host).listener._socket.getsockname()[0] == bound

    def test_the_system_chooses_the_port(self, make_door):
        """Two runs on one machine do not meet (B104)."""
        assert make_door().listener.port != make_door().listener.port

    def test_what_cannot_be_listened_on_is_told(self, make_door, monkeypatch):
        """The error says what to do, and no socket is left."""

        def bind(self, address):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

        monkeypatch.setattr(socket, "socket", type("Socket", (socket.socket,), {"bind": bind}))
        with (
            selectors.DefaultSelector() as selector,
            pytest.raises(EngineError, match=r"cannot listen for workers \(.*Cannot assign.*\): leave out host="),
        ):
            Listener(SECRET, "run", "127.0.0.1", selector, lambda *a: None)
