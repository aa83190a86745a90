"""Frames: what goes in comes out, in any pieces; what does not belong is refused, and nothing is ever run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan.errors import WireError
from workspan.live.frames import HEAD_BYTES, MAX_FRAME, FrameReader, encode

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = scalars | st.text(max_size=20) | st.lists(scalars, max_size=3)
records = st.dictionaries(st.text(max_size=5), values, max_size=3).map(
    lambda fields: {**fields, "v": 1, "kind": "step"}
)


def decoded(record: dict[Any, Any]) -> dict[str, Any]:
    """What a reader makes of *record*."""
    (frame,) = FrameReader().feed(encode({"kind": "step", **record}))
    return frame


@given(st.lists(records, max_size=3), st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_pieces_make_no_difference(sent: list[dict[str, Any]], sizes: list[int]) -> None:
    """Whatever the pieces in which frames arrive, the same records come out (E106, E111)."""
    stream = b"".join(map(encode, sent))
    reader, got = FrameReader(), []
    for size in itertools.cycle(sizes):
        got += reader.feed(stream[:size])
        stream = stream[size:]
        if not stream:
            break
    assert got == sent


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_no_bytes_crash_a_reader(chunks: list[bytes]) -> None:
    """Any bytes are frames, the beginning of one, or a protocol error (E107, E111)."""
    reader = FrameReader()
    with contextlib.suppress(WireError):
        for chunk in chunks:
            for frame in reader.feed(chunk):
                assert frame["v"] == 1


@given(st.binary(max_size=100))
def test_no_text_crashes_a_reader(text: bytes) -> None:
    """Any bytes behind a right length are a record or a protocol error (E107)."""
    with contextlib.suppress(WireError):
        list(FrameReader().feed(struct.pack(">I", len(text)) + text))


@pytest.mark.parametrize("length", [0, MAX_FRAME + 1, 0xFFFFFFFF])
def test_a_wrong_length_is_refused_at_once(length: int) -> None:
    """The length alone is enough to refuse a frame, and the text names the limit (E106, KF-73)."""
    with pytest.raises(WireError, match=f"a frame of {length} bytes, the limit is 262144"):
        list(FrameReader().feed(struct.pack(">I", length)))


def test_frames_before_a_fault_count() -> None:
    """What came before a bad frame is still delivered (E111)."""
    frames = FrameReader().feed(encode({"kind": "a"}) + struct.pack(">I", 3) + b"{,}")
    assert next(frames)["kind"] == "a"
    with pytest.raises(WireError, match="not JSON"):
        next(frames)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_a_pickle_is_a_protocol_error(tmp_path: Path) -> None:
    """Nothing received is unpickled (E107, KF-70)."""
    trap = pickle.dumps(Trap(str(tmp_path / "pwned")))
    with pytest.raises(WireError, match="protocol error"):
        list(FrameReader().feed(struct.pack(">I", len(trap)) + trap))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[1]", "a JSON list"),
        (b"3", "a JSON int"),
        (b'{"v":2,"kind":"step"}', "of version 2, this is version 1"),
        (b'{"v":1}', "version 1"),
        (b'{"v":1,"kind":7}', "version 1"),
        (b"[" * 100_000, "not JSON"),
        (b'"\xff"', "not JSON"),
    ],
)
def test_what_is_no_record(text: bytes, says: str) -> None:
    """Other JSON, other versions and hostile nesting are refused, with the reason (E106)."""
    with pytest.raises(WireError, match=f"^protocol error: .*{says}"):
        list(FrameReader().feed(struct.pack(">I", len(text)) + text))


def test_extras_become_plain() -> None:
    """Tuples become lists, what is not finite null, numpy numbers numbers, other things a short repr (E106)."""
    cycle: list[Any] = []
    cycle.append(cycle)
    got = decoded(
        {
            "key": ("a", None, "b"),
            "nan": float("nan"),
            "inf": np.float32("inf"),
            "float": np.float64(1.5),
            "int": np.int32(3),
            "huge": 10**30,
            "object": Path("/x"),
            "long": "x" * 300,
            "array": np.arange(100_000),
            7: "seven",
        }
    )
    assert got["key"] == ["a", None, "b"]
    assert got["nan"] is None
    assert got["inf"] is None
    assert (got["float"], got["int"]) == (1.5, 3)
    assert str(got["huge"]).startswith("1000000")
    assert got["object"] == "PosixPath('/x')"
    assert got["long"] == "x" * 300
    assert len(got["array"]) <= 400
    assert got["7"] == "seven"
    assert decoded({"cycle": cycle, "a": 1})["a"] == 1


class Rude:
    """Raises when it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("value", [Rude(), "\ud800", {Rude(): 1}, datetime(2026, 1, 1, tzinfo=UTC), b"\xff", 1 + 2j])
def test_nothing_stops_the_sender(value: Any) -> None:
    """A value that cannot be told does not keep the rest from being told (E106, E108)."""
    assert decoded({"value": value, "label": "x"})["label"] == "x"


@pytest.mark.parametrize(
    "extra",
    [
        {"message": "m" * 10**6},
        {"message": "\0" * 300_000},
        {f"k{n}": "v" * 1000 for n in range(1000)},
        {"list": [["x" * 10_000] * 10] * 100},
        {"deep": {"a" * 3000 + str(n): {"b" * 3000: ["c" * 3000] * 100} for n in range(50)}},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_the_sender_truncates(extra: dict[str, Any]) -> None:
    """No frame is above the limit; one that was cut says so and keeps who it is about (E106)."""
    frame = encode({"kind": "log", "id": 3, "label": "x", **extra})
    assert len(frame) <= MAX_FRAME + HEAD_BYTES
    got = json.loads(frame[HEAD_BYTES:])
    assert (got["v"], got["kind"], got["id"], got["label"], got["truncated"]) == (1, "log", 3, "x", True)


def test_what_fits_is_whole() -> None:
    """A long text below the limit is sent as it is (E106)."""
    got = decoded({"message": "m" * 200_000})
    assert len(got["message"]) == 200_000
    assert "truncated" not in got
