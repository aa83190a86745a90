"""Frames and messages: what is sent arrives, and nothing else does."""

from __future__ import annotations

from itertools import pairwise
from math import nan

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workspan.engines import wire
from workspan.errors import WireError
from workspan.measure.profile import BlockStats

SECRET = bytes(range(32))

seconds = st.floats(0, 1e10)
sizes = st.integers(0, 2**62)
stats = st.tuples(seconds, st.none() | seconds, *[st.none() | sizes] * 3, st.none() | st.floats(0, 1e6), sizes)
steps = st.dictionaries(st.text(max_size=20), st.tuples(seconds, st.integers(1, 2**62)), max_size=5)
indices = st.integers(0, 2**63 - 1)
results = st.builds(
    wire.Result, indices, st.booleans(), st.none() | st.text(max_size=300), st.none() | stats, st.none() | steps
)
to_driver = st.one_of(
    results,
    st.builds(wire.Hello, st.integers(0, 2**31)),
    st.builds(wire.Broken, st.text(max_size=300)),
    st.builds(wire.Started),
    st.builds(wire.Bye),
)
to_worker = st.one_of(st.builds(wire.Grant, indices), st.builds(wire.Stop))


def session(messages):
    """Return the frames of *messages* from a worker that says hello first."""
    sealer, _ = wire.worker_ends(SECRET)
    return [sealer.seal(message) for message in (wire.Hello(wire.VERSION), *messages)]


def opener():
    """Return the driver's reader of that session."""
    return wire.driver_ends(SECRET)[1]


def read_until_error(reader, data):
    """Return the messages in *data* before an error, and whether there was one."""
    messages = []
    try:
        for message in reader.feed(data):
            messages.append(message)
    except WireError:
        return messages, True
    return messages, False


patient = settings(suppress_health_check=[HealthCheck.too_slow])  # a loaded machine must not change the outcome


class TestRoundTrip:
    @patient
    @given(st.lists(to_driver, max_size=8), st.lists(st.integers(0, 2000), max_size=10))
    def test_driver_reads_what_the_worker_sent(self, messages, cuts):
        """Whatever the stream is cut into, the messages come out as they went in, in order (R3, R43)."""
        data = b"".join(session(messages))
        reader = opener()
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        read = [m for a, b in pairwise(edges) for m in reader.feed(data[a:b])]
        assert read == [wire.Hello(wire.VERSION), *messages]
        assert reader.pending == 0

    @patient
    @given(st.lists(to_worker, max_size=8))
    def test_worker_reads_what_the_driver_sent(self, messages):
        """The other direction works alike."""
        sealer, _ = wire.driver_ends(SECRET)
        _, reader = wire.worker_ends(SECRET)
        assert list(reader.feed(b"".join(map(sealer.seal, messages)))) == messages

    def test_single_bytes(self):
        """A stream that arrives byte by byte is read all the same."""
        reader = opener()
        data = b"".join(session([wire.Result(3, False, "x" * 100)]))
        read = [m for byte in data for m in reader.feed(bytes([byte]))]
        assert read == [wire.Hello(wire.VERSION), wire.Result(3, False, "x" * 100)]

    @given(st.integers(0, 400))
    def test_every_prefix_of_a_frame_gives_no_message(self, size):
        """A frame that the end of the connection cuts off yields nothing and is no fault (R3)."""
        hello, result = session([wire.Result(3, False, "x" * 200)])
        reader = opener()
        prefix = result[: min(size, len(result) - 1)]
        assert list(reader.feed(hello + prefix)) == [wire.Hello(wire.VERSION)]
        assert reader.pending == len(prefix)

    @given(stats)
    def test_stats_survive(self, values):
        """A measurement is the same on both sides; what was not measured stays None, or NaN for the GPU."""
        measured = BlockStats(*values[:5], nan if values[5] is None else values[5], values[6])
        message = wire.Result(1, True, None, wire.pack_stats(measured))
        (_, read) = opener().feed(b"".join(session([message])))
        assert wire.unpack_stats(read.stats) == measured
        assert wire.stats_fault(measured) is None


class TestRefusal:
    @given(st.data())
    def test_any_flipped_bit_is_refused(self, data):
        """A frame with one changed bit is no message, and ends the connection (R41)."""
        frames = session([wire.Result(7, True, None, (0.5, 0.5, 1, 2, 3, None, 0), {"read": (0.1, 2)})])
        victim = data.draw(st.integers(0, 1))
        bit = data.draw(st.integers(0, 8 * len(frames[victim]) - 1))
        broken = bytearray(frames[victim])
        broken[bit // 8] ^= 1 << bit % 8
        reader = opener()
        stream = b"".join([*frames[:victim], bytes(broken), *frames[victim + 1 :]])
        messages, failed = read_until_error(reader, stream)
        # A flip in the length may make the frame longer than what has arrived: then it is incomplete, not accepted.
        assert len(messages) == victim
        assert failed or reader.pending

    @pytest.mark.parametrize("order", [[0, 1, 1], [0, 2, 1], [0, 2], [1, 0]], ids=str)
    def test_order_is_part_of_the_mac(self, order):
        """Frames that are repeated, swapped or left out are refused at the first one out of place (R41)."""
        frames = session([wire.Result(0, True), wire.Result(1, True)])
        wrong = next(n for n, frame in enumerate(order) if n != frame)
        messages, failed = read_until_error(opener(), b"".join(frames[n] for n in order))
        assert failed
        assert len(messages) == wrong

    def test_own_frames_sent_back_are_refused(self):
        """What the driver sent is nothing that it accepts: each direction has its own key (R41)."""
        sealer, reader = wire.driver_ends(SECRET)
        with pytest.raises(WireError, match="frame 0 was not sent by the peer of this connection in this place"):
            list(reader.feed(sealer.seal(wire.Stop())))

    def test_another_secret_is_refused(self):
        """A peer with a wrong secret gets no further than its first frame (R40)."""
        sealer, _ = wire.worker_ends(bytes(32))
        with pytest.raises(WireError, match="frame 0 was not sent by the peer"):
            list(opener().feed(sealer.seal(wire.Hello(wire.VERSION))))

    @pytest.mark.parametrize("size", [0, 1, wire.MAC_BYTES, wire.MAX_FIRST_FRAME + 1, 2**32 - 1])
    def test_first_frame_must_be_small(self, size):
        """Before the peer is known a frame is at most 512 bytes, refused by its length alone (R43)."""
        with pytest.raises(WireError, match=rf"frame 0 claims {size:,} bytes, allowed are 17 to 512"):
            list(opener().feed(size.to_bytes(4, "big") + bytes(8)))

    def test_later_frames_have_a_limit_too(self):
        """After the first frame 1 MiB is the limit (R43)."""
        reader = opener()
        list(reader.feed(session([])[0]))
        assert list(reader.feed(wire.MAX_FRAME.to_bytes(4, "big") + bytes(8))) == []
        reader = opener()
        list(reader.feed(session([])[0]))
        with pytest.raises(WireError, match="claims 1,048,577 bytes, allowed are 17 to 1,048,576"):
            list(reader.feed((wire.MAX_FRAME + 1).to_bytes(4, "big") + bytes(8)))

    def test_a_large_frame_arrives_within_its_limit(self):
        """Messages up to the limit pass."""
        message = wire.Result(0, True, None, None, {"x" * 500_000: (1.0, 1), "y" * 500_000: (1.0, 1)})
        assert list(opener().feed(b"".join(session([message]))))[1] == message

    def test_nothing_is_read_after_an_error(self):
        """A connection that failed once stays failed, even for good frames."""
        frames = session([wire.Result(0, True)])
        reader = opener()
        assert read_until_error(reader, b"\xff" * 12) == ([], True)
        assert read_until_error(reader, frames[0]) == ([], True)

    @given(st.binary(max_size=2000))
    def test_random_bytes_before_login(self, data):
        """No bytes of a stranger yield a message, or any error but WireError (R42)."""
        messages, _ = read_until_error(opener(), data)
        assert messages == []

    @given(st.binary(max_size=300))
    def test_random_payload_with_a_valid_mac(self, payload):
        """A peer that knows the secret and sends nonsense is refused by the types (R42)."""
        hello, frame = session([msgspec.Raw(payload)])
        messages, failed = read_until_error(opener(), hello + frame)
        assert messages[0] == wire.Hello(wire.VERSION)
        assert failed or isinstance(messages[1], wire.ToDriver)

    @pytest.mark.parametrize(
        "value",
        [
            [19, -1, True, None, None, None],
            [19, 2**63, True, None, None, None],
            [19, 1.5, True, None, None, None],
            [19, True, True, None, None, None],
            [19, 1, 1, None, None, None],
            [19, 1, True, b"bytes", None, None],
            [19, 1, True, "x" * 8193, None, None],
            [19, 1, True, None, [nan, 0.0, 0, 0, 0, None, 0], None],
            [19, 1, True, None, [-1.0, 0.0, 0, 0, 0, None, 0], None],
            [19, 1, True, None, [float("inf"), 0.0, 0, 0, 0, None, 0], None],
            [19, 1, True, None, [1e11, 0.0, 0, 0, 0, None, 0], None],
            [19, 1, True, None, [0.0, 0.0, -1, 0, 0, None, 0], None],
            [19, 1, True, None, [0.0, 0.0, 2**63, 0, 0, None, 0], None],
            [19, 1, True, None, [0.0, 0.0, 0, 0, 0, -1.0, 0], None],
            [19, 1, True, None, [0.0, 0.0, 0, 0, 0, None], None],
            [19, 1, True, None, None, {"read": [-0.1, 1]}],
            [19, 1, True, None, None, {"read": [nan, 1]}],
            [19, 1, True, None, None, {"read": [0.1, 0]}],
            [19, 1, True, None, None, {"read": 0.1}],
            [19, 1, True, None, None, {1: [0.1, 1]}],
            [19, 1, True, None, None, None, "more"],
            [19],
            [1, 5],  # a message of the other direction
            [99, 1],
            ["Result", 1],
            {"index": 1},
            [],
            None,
            "text",
        ],
        ids=repr,
    )
    def test_wrong_types_and_ranges(self, value):
        """Unknown types, wrong types, missing or surplus fields and impossible numbers are refused (R42, R46)."""
        hello, frame = session([msgspec.Raw(msgspec.msgpack.encode(value))])
        reader = opener()
        assert list(reader.feed(hello)) == [wire.Hello(wire.VERSION)]
        with pytest.raises(WireError, match="frame 1 is no valid message"):
            list(reader.feed(frame))


class TestPackets:
    """Grants to a worker of this machine, which the driver can read back as long as the worker has not."""

    def ends(self):
        return wire.driver_ends(SECRET, packets=True)[0], wire.worker_ends(SECRET, packets=True)[1]

    @given(st.lists(indices, max_size=8), st.data())
    def test_what_was_taken_back_is_not_missed(self, numbers, data):
        """Every frame has the same size, so one read is one message, and any of them may be left out."""
        sealer, reader = self.ends()
        packets = [sealer.seal(wire.Grant(number)) for number in numbers]
        assert {len(packet) for packet in packets} <= {wire.PACKET_BYTES}
        kept = data.draw(st.sets(st.sampled_from(range(len(numbers)))) if numbers else st.just(set()))
        read = [message for n in sorted(kept) for message in reader.feed(packets[n])]
        assert read == [wire.Grant(numbers[n]) for n in sorted(kept)]

    @pytest.mark.parametrize("order", [[0, 0], [1, 0], [2, 1]], ids=str)
    def test_numbers_never_go_back(self, order):
        """A packet that was read, or one from before it, is refused (R41)."""
        sealer, reader = self.ends()
        packets = [sealer.seal(wire.Grant(n)) for n in range(3)]
        list(reader.feed(packets[order[0]]))
        with pytest.raises(WireError, match="was not sent by the peer"):
            list(reader.feed(packets[order[1]]))

    def test_a_changed_number_is_refused(self):
        """The number is under the MAC: it cannot be moved on (R41)."""
        sealer, reader = self.ends()
        packet = bytearray(sealer.seal(wire.Grant(1)))
        packet[11] += 1
        with pytest.raises(WireError, match="was not sent by the peer"):
            list(reader.feed(bytes(packet)))

    def test_a_message_that_does_not_fit_is_not_sent(self):
        """Only grants and the stop travel in packets."""
        sealer, _ = self.ends()
        with pytest.raises(WireError, match=r"takes .* bytes, the limit is 36"):
            sealer.seal(wire.Refused("x" * 100))


class TestSealing:
    def test_too_large_a_message_is_not_sent(self):
        """A message over the limit is refused by its sender, which can go on."""
        sealer, _ = wire.worker_ends(SECRET)
        reader = opener()
        list(reader.feed(sealer.seal(wire.Hello(1))))
        with pytest.raises(WireError, match=r"a Result message takes 1,1\d\d,\d\d\d bytes, the limit is 1,048,576"):
            sealer.seal(wire.Result(0, True, None, None, {"x" * 1_100_000: (1.0, 1)}))
        assert list(reader.feed(sealer.seal(wire.Result(0, True)))) == [wire.Result(0, True)]

    def test_text_that_is_not_unicode_is_not_sent(self):
        """A lone surrogate in a name is refused by its sender, which can go on."""
        sealer, _ = wire.worker_ends(SECRET)
        with pytest.raises(WireError, match="a Result message cannot be encoded"):
            sealer.seal(wire.Result(0, True, None, None, {"\ud800": (1.0, 1)}))
        assert list(opener().feed(sealer.seal(wire.Hello(1)))) == [wire.Hello(1)]

    def test_short_secret_is_refused(self):
        """A secret has 32 bytes (R47)."""
        with pytest.raises(WireError, match="a secret has 32 bytes, not 5"):
            wire.driver_ends(b"short")

    def test_secrets_differ(self):
        """Each connection gets a secret of its own."""
        assert len({wire.new_secret() for _ in range(100)}) == 100
