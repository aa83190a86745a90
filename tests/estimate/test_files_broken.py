"""Garbage, full disks and folders that cannot be made harm neither what is kept nor the program."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.timings import KEY, count, documents, step
from workspan import config
from workspan.estimate import snapred
from workspan.estimate.files import Fragment, TimingFolder, read_fragment
from workspan.estimate.keys import Key
from workspan.estimate.recorder import ProgressRecorder


@pytest.mark.parametrize(
    "garbage",
    [
        b"", b"{", b"[]", b'{"steps": 3}', b"\x00\xff" * 50, b"[" * 100_000, b'{"steps": [{}, 3, null]}',
        b'{"steps": [{"details": {"key": ["a", "b", 3]}, "measurements": []}]}',
    ],
    ids=range(8),
)  # fmt: skip
def test_a_bad_file_is_set_aside(
    recorder: ProgressRecorder, home: Path, again: Any, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    """One warning, the older file is used, nothing is deleted, and nothing reaches the caller (E65, R57)."""
    step(1)
    again()
    later = home / "execution_timing_20990101T000000Z.json"
    later.write_bytes(garbage)
    step(2)
    assert len(caplog.records) == 1
    assert "execution_timing_20990101T000000Z.json" in caplog.text
    kept = [path for path in home.iterdir() if path.read_bytes() == garbage and path.name.startswith(later.name)]
    assert len(kept) == 1
    if kept[0].name.endswith(".bad"):
        assert count(again()) == 2


def test_one_bad_measurement_is_skipped(
    recorder: ProgressRecorder, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """NaN, negative, huge, wrong types: left out without losing the rest (E65, E70, R57)."""
    home.mkdir()
    bad = ['"x"', "-1", "1e999", "NaN", "null", "true", "1" + "0" * 400]
    items = [f'{{"dt": {value}, "dt_est": null, "N_ref": 1}}' for value in bad]
    good = ['{"dt": 2, "dt_est": 3.0, "N_ref": 1}', '{"dt": 2, "dt_est": NaN, "N_ref": NaN}', "3"]
    text = f'{{"steps": [{{"details": {{"key": {json.dumps(KEY)}}}, "measurements": [{",".join(items + good)}]}}, 7]}}'
    (home / "execution_timing_20250101T000000Z.json").write_text(text)
    measured = recorder.forecast(KEY).measurements()
    assert [(m.dt, m.dt_est, m.N_ref) for m in measured] == [(2.0, 3.0, 1.0), (2.0, None, None)]
    assert "8 measurements without a time" in caplog.text
    step(1)
    recorder.flush()
    written = documents(home)[-1].read_text()
    assert "NaN" not in written
    assert "Infinity" not in written


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(data: bytes) -> None:
    """Documents and fragments of anything (R57)."""
    read_fragment(data)
    with contextlib.suppress(ValueError):
        snapred.decode(data)


def test_a_cut_fragment_gives_all_whole_lines(tmp_path: Path, recorder: ProgressRecorder) -> None:
    """At whatever byte it is cut, what is whole before is read (E66, R57)."""
    fragment = Fragment(tmp_path)
    head = fragment.head(Key(*KEY), "O_N", None, "src1:0", None)
    for n in range(5):
        fragment.append((head, float(n), 0.5, None, 1.75e9 + n, 1, False))
    fragment.finish()
    data = fragment.path.read_bytes()
    assert data.endswith(b"]\n")
    ends = [at for at, byte in enumerate(data) if byte == 10]
    for cut in range(len(data)):
        whole = max(0, sum(end - 1 <= cut - 1 for end in ends) - 2)
        found = sum(kept.count for kept in read_fragment(data[:cut] + bytes(7)))
        assert found in (whole, whole + 1), cut
    assert read_fragment(data)[0].series[None].measurements[0].id == f"{fragment.id}-0"


def test_a_newer_version_is_not_written_over(
    recorder: ProgressRecorder, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory only, one notice, and the file is as it was (R60)."""
    home.mkdir()
    newer = home / "execution_timing_20990101T000000Z.json"
    newer.write_text(json.dumps({"format": snapred.FORMAT, "version": 99, "steps": []}))
    step(1)
    step(2)
    assert count(recorder) == 2
    assert not recorder.flush()
    assert [path.name for path in home.iterdir() if path.name[0] != "."] == [newer.name]
    assert len(caplog.records) == 1
    assert "kept in memory only: execution_timing_20990101T000000Z.json must not be replaced" in caplog.text


def test_a_folder_that_cannot_be_made(
    recorder: ProgressRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read-only or impossible home: memory only, one notice (R60)."""
    (tmp_path / "file").write_text("")
    config.configure(timing={"directory": tmp_path / "file" / "timing"})
    for n in range(3):
        step(n)
    assert count(recorder) == 3
    assert len(caplog.records) == 1
    assert "timings are kept in memory only: Not a directory" in caplog.text


@pytest.mark.parametrize("when", ["fragment", "document"])
def test_a_full_disk(
    recorder: ProgressRecorder, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """No room for the fragment, or for the document: memory only, one notice, no exception (E20, R60)."""

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if when == "fragment":
        monkeypatch.setattr(os, "posix_fallocate", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    step(1)
    step(2)
    assert not recorder.flush()
    assert count(recorder) == 2
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert documents(home) == []
    assert not list(home.glob(".*.tmp"))


def test_a_name_that_no_file_can_hold_costs_nothing_else(home: Path, recorder: ProgressRecorder, clock: Any) -> None:
    """Half a surrogate pair in a key, as in the name of a script, is escaped, and all steps are saved (E20, E65)."""
    for key in (("m\udcff", "f", "s\ud800"), ("m", "f", "plain")):
        activation = recorder.record(key)
        clock.work(1.0)
        recorder.stop(activation)
    assert recorder.flush()
    assert sorted(step.key for step in TimingFolder(home).load().values()) == [
        ("m", "f", "plain"),
        ("m\\udcff", "f", "s\\ud800"),
    ]


def test_a_million_entries_keep_nobody_waiting(home: Path, recorder: ProgressRecorder, caplog: Any) -> None:
    """Of a step only the last measurements of a file are read, and a huge file is set aside (E65, R57)."""
    home.mkdir(parents=True)
    entry = b'{"dt":1.0,"dt_est":null,"N_ref":%d}'
    step = b'{"steps":[{"details":{"key":["m","f",null],"N_ref_hash":null,"order":"O_N"},"measurements":[%s]}]}'
    (home / "execution_timing_2025-03-04T12:00:00Z.json").write_bytes(
        step % b",".join([entry % 1] * 20_000 + [entry % 2])
    )
    assert {m.N_ref for m in recorder.forecast(("m", "f", None)).measurements()} == {1.0, 2.0}
    assert "all but the last 20,000 of its 20,001 measurements" in caplog.text
    (home / "execution_timing_2025-03-05T12:00:00Z.json").write_bytes(step % b",".join([entry % 3] * 500_000))
    steps = TimingFolder(home).load()
    assert steps["m", "f", None].count == 50
    assert len(list(home.glob("*2025-03-05*.bad"))) == 1


def test_wild_fields_cost_nothing_else(home: Path, recorder: ProgressRecorder, clock: Any) -> None:
    """Times that no calendar has, and a fragment of wrong types, neither stop a load nor any later save (E65, R57)."""
    home.mkdir(parents=True)
    entries = [
        {"dt": 1.0, "dt_est": None, "N_ref": 2.0, "start": start} for start in (1e300, "0001-01-01T00:00:00-12:00")
    ]
    details = {"key": ["m", "f", None], "N_ref_hash": None, "order": "O_N"}
    step = {
        "details": details,
        "measurements": entries,
        "accepted": 5,
        "discarded": 1e300,
        "dropped": [1],
        "used": 1e300,
    }
    (home / "execution_timing_2025-03-04T12:00:00Z.json").write_text(json.dumps({"steps": [step]}))
    good = {"series": 0, "key": ["m", "g", None], "order": "O_N", "variant": None, "fp": None, "sw": None}
    lines = [
        {"workspan_fragment": 1, "id": "ab"},
        good,
        [0, 1.0, 2.0, None, 1e9, 1, False],
        [0, 1.0, 2.0, None, 1e300, 1, False],
        [0, 1.0, 2.0, None, 1e9, "x", False],
        {**good, "series": 1, "variant": {}},
        {**good, "series": 2, "key": ["m", 3, None]},
        {**good, "series": [3]},
        [1, 1.0, 2.0, None, 1e9, 1, False],
        [[3], 1.0, 2.0, None, 1e9, 1, False],
        [0, 1.0, 3.0, None, 1e9, 1, False],
    ]
    (home / "fragment_host_1_ab.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recorder.stop(recorder.record(("m", "own", None)))
    assert recorder.flush()
    assert {k.qualname: kept.count for k, kept in TimingFolder(home).load().items()} == {"f": 2, "g": 2, "own": 1}
