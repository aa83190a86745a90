"""Guests that know the secret and do everything wrong, and a run that goes on all the same."""

from __future__ import annotations

import math
import os
import random
import select
import selectors
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from time import monotonic, process_time

import msgspec
import pytest

import workspan as ws
from helpers.client_kit import NOISES, STATS, Peer, is_closed, line_task, random_bytes, serving
from helpers.engine_kit import SECONDS, wait_until
from workspan.engines import gate as gate_module
from workspan.engines import listener as listener_module
from workspan.engines.wire import Ask, Broken, Bye, Grant, Hello, Join, Refused, Result, Started, Stop, Welcome

pytestmark = pytest.mark.usefixtures("logs")

ASK = msgspec.msgpack.encode(Ask())


def rss_bytes():
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def counts(report, task_id="t"):
    """Return completed, total, failures and guests of a task."""
    task = report[task_id]
    return task.blocks.count, task.blocks.total, task.blocks.failures, task.workers.unmanaged_clients


class TestGuests:
    def test_a_task_without_a_function_is_served_by_a_guest(self, tmp_path):
        """B86, B45: the guest does all blocks, is counted as unmanaged, and is told when there are no more."""
        task = line_task(20, None, tracking_path=tmp_path / "store", resource_tracking=True)
        with serving(task) as run, run.guest() as guest:
            assert guest.work(stats=STATS) == 20
            report = run.wait()
        assert report
        assert counts(report) == (20, 20, 0, 1)
        assert report["t"].blocks.wall.total == 20 * STATS[0]
        assert {record.worker_id for record in task.report().block_records()} == {None}

    def test_a_guest_is_no_worker_in_the_store(self, tmp_path):
        """The worker id of a guest's block is 2**32 - 1, whatever its number in the run (B45)."""
        task = line_task(3, None, tracking_path=tmp_path / "store", resource_tracking=True)
        with serving(task) as run, run.guest() as guest:
            guest.work(stats=STATS)
            run.wait()
        found = [path for path in (tmp_path / "store").rglob("worker_id/c/*")]
        assert found
        assert found[0].read_bytes()[:12] == b"\xff" * 12

    def test_guests_share_the_blocks(self):
        """Two guests take turns, and each block is done once."""
        with serving(line_task(10, None)) as run, run.guest() as first, run.guest() as second:
            done = [guest.take() for guest in (first, second)]
            first.say(Result(done[0], True))
            second.say(Result(done[1], True))
            first.work(4)
            second.work()
            assert counts(run.wait()) == (10, 10, 0, 2)

    def test_a_guest_waits_until_there_is_work(self):
        """A request is kept and answered when a block becomes ready (B87)."""
        tasks = (line_task(1, None, "first"), line_task(1, None, "second"))
        with serving(tasks[0] + tasks[1]) as run, run.guest("first") as first, run.guest("second") as second:
            second.say(Ask())
            index = first.take()
            assert not select.select([second.socket], [], [], 0.05)[0]
            first.say(Result(index, True))
            assert second.hear() == Grant(0)
            second.say(Result(0, True))
            assert run.wait()
            assert first.ask() in (Stop(), None)

    def test_a_guest_of_a_finished_task_is_told_so(self):
        """A client that comes when all is done gets no block and no error (B87)."""
        tasks = (line_task(1, None, "first"), line_task(1, None, "second"))
        with serving(tasks[0] + tasks[1]) as run, run.guest("first") as guest:
            guest.work(1)
            wait_until(lambda: run.live["first"].completed_count == 1, "the first task is done")
            with run.guest("first") as late:
                assert late.ask() == Stop()

    def test_a_guest_that_leaves_is_nobodys_failure(self):
        """Bye between blocks costs nothing (B82)."""
        with serving(line_task(4, None)) as run:
            with run.guest() as guest:
                guest.work(2)
                wait_until(lambda: run.live["t"].completed_count == 2, "both results have arrived")
                guest.say(Bye())
                assert is_closed(guest.socket)
            with run.guest() as other:
                other.work()
                assert counts(run.wait()) == (4, 4, 0, 2)

    def test_a_guest_that_asks_and_goes_costs_no_attempt(self):
        """A request and the end of its connection that arrive together are no attempt of any block (B82, R1)."""
        with serving(line_task(1, None, max_retries=0)) as run:
            for _ in range(20):
                with run.guest() as guest:
                    guest.say(Ask(), Bye())
            with run.guest() as other:
                assert other.work() == 1
                assert counts(run.wait()) == (1, 1, 0, 21)

    def test_large_words_are_no_fault_after_the_login(self):
        """Names of any length and layouts of any rank fit into the first message of each side (R43)."""
        far, rank = 2**40, 8
        region = ws.Roi((far,) * rank, (far,) * rank)
        task = ws.Task("t" * 200, region, region, region, None, read_write_conflict=False)
        with serving(task) as run:
            context = run.context(task.task_id)
            with Peer(context) as guest:
                guest.say(Join(task.task_id, None, "ü" * 256, 2**62))
                assert isinstance(guest.hear(), Welcome)
            client = ws.Client(context)
            with client.acquire_block() as block:
                assert block.write_roi == region
            client.close()
            assert run.wait()


class TestWrongDeeds:
    @pytest.fixture
    def run(self, tmp_path):
        """A run of six tracked blocks without a worker; each can be lost three times."""
        task = line_task(6, None, max_retries=3, tracking_path=tmp_path / "store", resource_tracking=True)
        with serving(task) as run:
            yield run

    def finish(self, run, failures, guests):
        """Let another guest do the rest, and check that every block counts once."""
        with run.guest() as other:
            other.work(stats=STATS)
            report = run.wait()
        assert counts(report) == (6, 6, failures, guests)
        assert report

    def test_unknown_task(self, run):
        """The client is told, closed and counted (R46)."""
        with Peer(run.context()) as guest:
            assert guest.join("../t") == Refused("this run has no task '../t'")
            assert guest.hear() is None
        assert run.engine.refused_messages == 1
        self.finish(run, 0, 1)

    def test_worker_that_was_never_started(self, run):
        """Nobody works under the number of a worker that does not exist: such a client is a guest (B142)."""
        with Peer(run.context()) as guest:
            answer = guest.join(worker=7)
            assert isinstance(answer, Welcome)
            assert answer.worker != 7
        assert run.engine.refused_messages == 0
        self.finish(run, 0, 2)

    @pytest.mark.parametrize(
        ("takes", "deed"),
        [
            (True, Result(5, True, None, STATS)),
            (False, Result(0, True, None, STATS)),
            (True, Result(0, True)),
            (True, Ask()),
            (True, Bye()),
            (True, Join("t", None, "h", 1)),
            (False, Hello(1)),
            (False, Started()),
            (False, Broken("text")),
            (True, Result(2**63 - 1, True, None, STATS)),
        ],
        ids=[
            "result of another block",
            "result of no block",
            "result without measurements",
            "ask while holding",
            "bye while holding",
            "second join",
            "hello",
            "started",
            "broken",
            "result of a block that does not exist",
        ],
    )
    def test_message_out_of_turn(self, run, takes, deed):
        """It is refused and counted, and the third one ends the connection (R46)."""
        with run.guest() as guest:
            if takes:
                assert guest.take() == 0
            guest.say(deed, deed)
            wait_until(lambda: run.engine.refused_messages == 2, "two were refused")
            guest.say(deed)
            assert guest.hear() is None
        assert run.engine.refused_messages == 3
        self.finish(run, int(takes), 2)

    def test_two_wrong_deeds_are_forgiven(self, run):
        """A peer that errs twice does its blocks (R46)."""
        with run.guest() as guest:
            index = guest.take()
            guest.say(Ask(), Result(index, True), Result(index, True, None, STATS))
            guest.work(1, stats=STATS)
            assert run.engine.refused_messages == 2
            guest.work(stats=STATS)
            assert counts(run.wait()) == (6, 6, 0, 1)

    def test_double_ask(self, run):
        """One request at a time: the second one is refused, and gets no second block (B100, R46)."""
        with run.guest() as guest, run.guest() as other:
            held = [other.take()]
            guest.say(Ask(), Ask())
            assert isinstance(guest.hear(), Grant)
            wait_until(lambda: run.engine.refused_messages == 1, "the second one was refused")
            assert run.live["t"].processing_count == 2
            other.say(Result(held[0], True, None, STATS))
        self.finish(run, 1, 3)

    @pytest.mark.parametrize(
        "stats",
        [
            (math.nan, *STATS[1:]),
            (-1.0, *STATS[1:]),
            (math.inf, *STATS[1:]),
            (*STATS[:2], -1, *STATS[3:]),
            (*STATS[:2], 2**63, *STATS[3:]),
            (*STATS[:5], math.nan, 0),
            ("1", *STATS[1:]),
            STATS[:3],
            (*STATS, 0),
        ],
        ids=["NaN", "negative", "infinite", "negative bytes", "absurd", "NaN percent", "text", "short", "long"],
    )
    def test_measurements_that_are_none(self, run, stats):
        """They end that connection only, and the block runs again (R46)."""
        with run.guest() as guest:
            guest.say(Result(guest.take(), True, None, stats))
            assert guest.hear() is None
        self.finish(run, 1, 2)

    def test_a_block_counts_once_however_often_it_is_returned(self, run):
        """The second return of a block is refused (R9, B102)."""
        with run.guest() as guest:
            index = guest.take()
            guest.say(Result(index, True, None, STATS), Result(index, False, "twice", STATS))
            guest.work(1, stats=STATS)
            assert run.engine.refused_messages == 1
            assert run.live["t"].completed_count <= 2
        self.finish(run, 0, 2)

    def test_untracked_measurements_are_left_out(self):
        """A client that measures although nobody asked does its block all the same."""
        with serving(line_task(1, None)) as run, run.guest() as guest:
            guest.work(stats=STATS)
            report = run.wait()
        assert report["t"].blocks.count == 1
        assert report["t"].blocks.wall is None


class TestLoss:
    def test_every_part_of_a_result(self):
        """A result that is cut anywhere is no result: the block runs again (R3)."""
        frame_bytes = 12 + len(msgspec.msgpack.encode(Result(0, True))) + 16
        with serving(line_task(1, None, max_retries=frame_bytes)) as run:
            for size in range(frame_bytes):
                with run.guest() as guest:
                    frame = guest.sealer.seal(Result(guest.take(), True))
                    assert len(frame) == frame_bytes
                    guest.socket.sendall(frame[:size])
            with run.guest() as guest:
                guest.work()
                assert counts(run.wait()) == (1, 1, frame_bytes, frame_bytes + 1)

    def test_a_result_that_arrived_counts_although_the_connection_broke(self):
        """What a guest said before it died comes first (R4)."""
        with serving(line_task(2, None)) as run:
            with run.guest() as guest:
                guest.say(Result(guest.take(), True))
            wait_until(lambda: run.live["t"].completed_count == 1, "the result counts")
            with run.guest() as guest:
                assert guest.work() == 1
                assert counts(run.wait()) == (2, 2, 0, 2)

    def test_a_deadline_ends_the_connection_and_its_late_result_counts_for_nothing(self):
        """The block is reclaimed; who is late talks to a closed connection (R9, B84, B102)."""
        with serving(line_task(2, None, timeout=1.0, max_retries=2)) as run, run.guest() as guest:
            index = guest.take()
            assert guest.hear() is None
            guest.say(Result(index, True))
            guest.say(Result(index, True))
            with run.guest() as other:
                other.work()
                report = run.wait()
            assert counts(report) == (2, 2, 1, 2)
            assert run.states["t"].timeout_reclaim_count == 1
            assert run.states["t"].worker_failure_count == 0

    def test_a_cut_in_mid_block(self, tmp_path):
        """A proxy cuts: one failure, the block runs again, and its first result never counts (R39, D35, B82)."""
        task = line_task(3, None, tracking_path=tmp_path / "store", resource_tracking=True)
        with serving(task) as run, Proxy(int(run.context()["port"])) as proxy:
            with Peer(run.context(), port=proxy.port) as guest:
                assert isinstance(guest.join(), Welcome)
                index = guest.take()
                proxy.cut()
                guest.say(Result(index, True, None, STATS))
                assert guest.hear() is None
            with run.guest() as other:
                assert other.work(stats=STATS) == 3
                report = run.wait()
        assert counts(report) == (3, 3, 1, 2)
        assert [(r.coord, r.failures) for r in task.report().block_records()] == [((0,), 1), ((1,), 0), ((2,), 0)]

    def test_the_budget_of_a_block_is_spent_by_losses(self):
        """A block that kills every guest fails; the others are done (R5, D37)."""
        with serving(line_task(2, None, max_retries=1)) as run:
            with run.guest() as first:
                assert first.take() == 0
                with run.guest() as guest:
                    assert guest.work(1) == 1
            with run.guest() as second:
                assert second.take() == 0
            report = run.wait()
        assert not report
        assert counts(report) == (1, 2, 2, 3)


class Proxy:
    """Carries bytes to a port of this machine until it is told to cut."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends = ()
        self._thread = threading.Thread(target=self._carry)
        self._stop, self._stopped = socket.socketpair()

    def _carry(self):
        caller, _ = self._listener.accept()
        target = socket.create_connection(("127.0.0.1", self._target))
        self._ends = (caller, target)
        while True:
            ready = select.select([caller, target, self._stopped], [], [])[0]
            if self._stopped in ready:
                break
            for end in ready:
                data = end.recv(4096)
                if not data:
                    return
                (target if end is caller else caller).sendall(data)

    def cut(self):
        """End both connections at once, by reset."""
        self._stop.sendall(b"x")
        self._thread.join()
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            end.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        for end in (*self._ends, self._listener, self._stop, self._stopped):
            end.close()


class TestNoise:
    def test_strangers_do_not_touch_a_run(self, caplog):
        """Other protocols, port scans and thousands of random words, and a guest that works on (R38, R42, KF-73)."""
        source = random.Random(11)
        with serving(line_task(100, None)) as run, run.guest() as guest:
            address = ("127.0.0.1", run.server.port)
            for _ in range(99):
                for noise in NOISES.values():
                    with socket.create_connection(address) as caller:
                        caller.sendall(noise)
                for _ in range(25):
                    with socket.create_connection(address) as caller, suppress(ConnectionError):
                        caller.sendall(random_bytes(source, 200))
                assert guest.work(1) == 1
            guest.work()
            assert counts(run.wait()) == (100, 100, 0, 1)
        assert len([r for r in caplog.records if "was turned away" in r.getMessage()]) == 1

    def test_frames_that_are_no_messages(self):
        """Right MAC, wrong words: each ends its own connection and nothing else (R42, R45)."""
        source = random.Random(13)
        payloads = [source.randbytes(source.randint(1, 60)) for _ in range(150)]
        payloads += [msgspec.msgpack.encode(value) for value in odd_values()]
        survivors = 0
        with serving(line_task(20, None)) as run, run.guest() as guest:
            for number, payload in enumerate(payloads):
                with Peer(run.context()) as bad:
                    bad.say(msgspec.Raw(payload))
                    bad.socket.shutdown(socket.SHUT_WR)
                    survivors += bad.hear() is not None
                if number % 20 == 0:
                    guest.work(1)
            guest.work()
            assert counts(run.wait()) == (20, 20, 0, 1)
        assert survivors == 0

    def test_every_bit_of_a_frame_counts(self):
        """A frame that was changed anywhere is refused: nothing in it is believed (R41, R42)."""
        size = 12 + len(ASK) + 16
        with serving(line_task(2, None)) as run, run.guest() as guest:
            for bit in range(32, 8 * size):  # the length is before
                with run.guest() as bad:
                    frame = bytearray(bad.sealer.seal(Ask()))
                    assert len(frame) == size
                    frame[bit // 8] ^= 1 << bit % 8
                    bad.socket.sendall(frame)
                    assert bad.hear() is None
            guest.work()
            assert counts(run.wait()) == (2, 2, 0, 1 + 8 * size - 32)

    def test_frames_cannot_be_repeated_swapped_or_left_out(self):
        """The order of a connection is part of its frames (R41)."""
        with serving(line_task(2, None)) as run, run.guest() as guest:
            for order in ((0, 0), (1, 0), (1,)):
                with Peer(run.context()) as bad:
                    frames = [bad.sealer.seal(message) for message in (Join("t", None, "h", 1), Ask())]
                    bad.socket.sendall(b"".join(frames[n] for n in order))
                    heard = [bad.hear(), bad.hear()]
                    assert heard[0] is None or (order == (0, 0) and isinstance(heard[0], Welcome) and heard[1] is None)
            guest.work()
            assert run.wait()

    def test_a_length_is_a_claim_and_takes_no_memory(self):
        """2**32 - 1 is refused at once; a claim that is allowed costs what has arrived of it (R43, KF-73)."""
        with serving(line_task(2, None)) as run, run.guest() as guest, ExitStack() as stack:
            with run.guest() as bad:
                bad.socket.sendall(b"\xff\xff\xff\xff" + bytes(8))
                assert bad.hear() is None
            before = rss_bytes()
            for _ in range(60):
                peer = stack.enter_context(run.guest())
                peer.socket.sendall((1 << 20).to_bytes(4, "big") + bytes(100))
            guest.work(1)
            for _ in range(300):
                with socket.create_connection(("127.0.0.1", run.server.port)) as caller:
                    caller.sendall((64 << 20).to_bytes(4, "big"))
            guest.work()
            assert rss_bytes() - before < 8 << 20
            assert run.wait()


def odd_values():
    """Return values that are almost messages."""
    tags = (*range(15, 26), -1, 2**31, "16", None, 1.5)
    fields = ((), (0,), (None,), ("t", None, "h", -1), (2**64 - 1, True), (0, True, "x" * 8193), (0, True, None, []))
    fields += (("t" * 257, None, "h", 1), ({"a": 1},), (b"\x80\x04.",), (0, True, None, None, {"s": (1.0, 0)}))
    return [[tag, *rest] for tag in tags for rest in fields if (tag, rest) != (22, ())]


class TestSlow:
    def test_silence_does_not_hold_up_a_worker(self):
        """Two hundred connections that say nothing, or a byte now and then, and a guest that works on (R44)."""
        with serving(line_task(60, None)) as run, run.guest() as guest, ExitStack() as stack:
            callers = []
            for number in range(200):
                caller = socket.create_connection(("127.0.0.1", run.server.port))
                stack.callback(caller.close)
                callers.append(caller)
                if number % 5 == 0:
                    assert guest.work(1) == 1
            for byte in b"WSPN":
                for caller in callers:
                    with suppress(ConnectionError):
                        caller.sendall(bytes([byte]))
                assert guest.work(1) == 1
            strangers = run.engine._gate._listener._strangers
            assert len(strangers) <= listener_module.MOST_STRANGERS
            guest.work()
            assert counts(run.wait()) == (60, 60, 0, 1)

    def test_a_guest_that_never_says_for_whom_it_works(self, monkeypatch):
        """The login is not over before the first message (R44)."""
        monkeypatch.setattr(gate_module, "LOGIN_SECONDS", 0.1)
        with serving(line_task(1, None)) as run:
            with Peer(run.context()) as silent:
                assert silent.hear() is None
            with Peer(run.context()) as slow:
                slow.socket.sendall(slow.sealer.seal(Join("t", None, "h", 1))[:20])
                assert slow.hear() is None

    def test_a_begun_message_has_a_deadline(self, monkeypatch):
        """Half a result is a loss after the deadline, and its block runs again (R44)."""
        monkeypatch.setattr(gate_module, "FRAME_SECONDS", 0.2)
        with serving(line_task(1, None)) as run, run.guest() as guest:
            frame = guest.sealer.seal(Result(guest.take(), True))
            for byte in frame[:3]:
                guest.socket.sendall(bytes([byte]))
            assert guest.hear() is None
            with run.guest() as other:
                other.work()
                assert counts(run.wait()) == (1, 1, 1, 2)

    def test_a_guest_that_computes_has_none(self, monkeypatch):
        """Silence between messages is work (B90)."""
        monkeypatch.setattr(gate_module, "LOGIN_SECONDS", 0.05)
        monkeypatch.setattr(gate_module, "FRAME_SECONDS", 0.05)
        with serving(line_task(1, None)) as run, run.guest() as guest:
            index = guest.take()
            assert not select.select([guest.socket], [], [], 0.3)[0]
            guest.say(Result(index, True))
            assert counts(run.wait()) == (1, 1, 0, 1)

    def test_a_message_that_waits_for_its_end_does_not_keep_the_driver_busy(self, monkeypatch):
        """Between the login's deadline and the message's the driver sleeps (R44)."""
        monkeypatch.setattr(gate_module, "LOGIN_SECONDS", 0.0)
        with serving(line_task(1, None)) as run:
            monkeypatch.undo()
            guest = run.guest()
            with guest:
                guest.socket.sendall(guest.sealer.seal(Ask())[:5])
                wait_until(lambda: run.engine._gate._begun, "the message has begun")
                monkeypatch.setattr(gate_module, "LOGIN_SECONDS", 0.0)
                assert run.engine._gate.due > monotonic() + gate_module.FRAME_SECONDS / 2


class TestMany:
    def test_a_thousand_clients(self):
        """All are served by one thread, and their loss at once is dealt with in 5 s (R53, B92)."""
        count = 1000
        if getrlimit(RLIMIT_NOFILE)[1] < 2 * count + 200:
            pytest.skip("not so many files can be open here")
        threads = threading.active_count()
        task = line_task(2 * count, None, max_retries=1)
        with serving(task) as run, ExitStack() as stack, selectors.DefaultSelector() as selector:
            context = run.context()
            peers = []
            for _ in range(count):
                peer = stack.enter_context(Peer(context))
                assert isinstance(peer.join(), Welcome)
                peer.say(Ask())
                selector.register(peer.socket, selectors.EVENT_READ, peer)
                peers.append(peer)
            done = 0
            end = monotonic() + 30
            waiting = set(peers)
            while waiting:
                assert monotonic() < end, f"{len(waiting)} clients wait for a block"
                for key, _ in selector.select(1):
                    peer = key.data
                    message = peer.hear()
                    if isinstance(message, Grant) and peer in waiting:
                        waiting.discard(peer)
                        peer.say(Result(message.index, True), Ask())
                        done += 1
            wait_until(lambda: run.live["t"].completed_count == count, "each has done a block")
            wait_until(lambda: run.live["t"].processing_count == count, "each holds a second block")
            others = [thread.name for thread in threading.enumerate() if not thread.name.startswith("workspan-live")]
            assert len(others) == threads + 1
            for peer in peers:
                selector.unregister(peer.socket)
                peer.socket.close()
            before = process_time()
            wait_until(lambda: run.live["t"].processing_count == 0, "the loss was noticed", 40)
            assert process_time() - before < 5  # of the processor, which is not this test's alone
            with run.guest() as guest:
                assert guest.work() == count
                assert counts(run.wait()) == (2 * count, 2 * count, count, count + 1)


def test_the_timeout_of_strangers_is_patched_where_it_is_used():
    """The constants that tests make small are those of the specification (R44)."""
    assert listener_module.LOGIN_SECONDS == gate_module.LOGIN_SECONDS == 5
    assert gate_module.FRAME_SECONDS == 30
    assert gate_module.MOST_REFUSED == 3
    assert SECONDS > 5
