"""What is kept on disk survives kills, crowds, garbage and full disks."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan import config
from workspan.estimate import WallClockTime, files, knowledge, snapred
from workspan.estimate.files import Fragment, TimingFolder, read_fragment
from workspan.estimate.forecast import Forecast
from workspan.estimate.keys import Key
from workspan.estimate.measurements import Measurement, StepHistory, trim
from workspan.estimate.recorder import ProgressRecorder

M = __name__


@WallClockTime(N_ref=lambda n, *_: n, order="O_N")
def step(n: float, work: Any = None) -> None:
    """Take as long as told."""
    if work is not None:
        work(n)


KEY = (M, "step", None)


def documents(home: Path) -> list[Path]:
    """Timing files, oldest first."""
    return sorted(home.glob("execution_timing_*.json"))


def count(recorder: ProgressRecorder, key: Any = KEY) -> int:
    """Number of stored measurements."""
    try:
        return len(recorder.forecast(key).measurements())
    except Exception:
        return 0


def test_what_was_measured_is_there_next_time(recorder: ProgressRecorder, home: Path, clock: Any, again: Any) -> None:
    """One document with owner-only rights; the next process estimates from it at once (E53, E59, E64, E67)."""
    assert not home.exists()
    for n in (1.0, 2.0, 3.0, 4.0):
        step(n, clock.work)
    fresh = again()
    (document,) = documents(home)
    assert home.stat().st_mode & 0o777 == 0o700
    assert document.stat().st_mode & 0o777 == 0o600
    content = json.loads(document.read_text())
    (item,) = content["steps"]
    assert item["details"]["key"] == [M, "step", None]
    assert item["details"]["order"] == "O_N"
    assert len(item["details"]["N_ref_hash"]) == 16
    assert {"dt", "dt_est", "N_ref", "id", "start", "n_ref_fp", "overlap", "substep"} <= item["measurements"][0].keys()
    assert [m["dt"] for m in item["measurements"]] == [1.0, 2.0, 3.0, 4.0]
    assert datetime.fromisoformat(item["measurements"][0]["start"]).tzinfo is not None
    assert item["estimate"]["count"] == [4, 4]
    assert fresh.estimate(KEY, 2.5).value == pytest.approx(2.5, rel=0.01)
    assert list(home.glob("fragment_*")) == []


def test_importing_and_decorating_touch_no_file(tmp_path: Path) -> None:
    """No file is opened for writing, no socket made, no timing folder looked at (E21)."""
    code = """
import sys
seen = []
import workspan
def hook(event, args):
    if event.startswith("socket") or event == "os.mkdir" or event == "open" and "timing" in str(args[0]):
        seen.append((event, args))
sys.addaudithook(hook)
from workspan.estimate import WallClockTime
@WallClockTime(N_ref=lambda x: x)
def f(x): pass
@WallClockTime(method="g")
class A:
    def g(self): pass
assert not seen, seen
"""
    environment = {**os.environ, "WORKSPAN_TIMING_DIRECTORY": str(tmp_path / "timing")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_max_files_are_kept(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Each save writes a new document and deletes the oldest; other names stay (E60, E69)."""
    config.configure(timing={"max_files": 2})
    home.mkdir()
    (home / "notes.json").write_text("mine")
    for n in range(4):
        step(n)
        again()
    assert len(documents(home)) == 2
    assert (home / "notes.json").read_text() == "mine"
    assert count(again()) == 4


def test_without_persistent_data_nothing_is_written(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """It is read, and never written (E64)."""
    step(1)
    again()
    config.configure(timing={"persistent_data": False})
    step(2)
    before = documents(home)
    assert count(again()) == 1
    assert documents(home) == before
    assert list(home.glob("fragment*")) == []


CHILD = """
import os, signal, sys
from workspan.estimate import WallClockTime
def part(name, n):
    with WallClockTime(name, N_ref=n, order="O_N"):
        pass
for n in range(int(sys.argv[2])):
    part(sys.argv[1], n + 1)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "inside":
    with WallClockTime("inside"):
        os.kill(os.getpid(), signal.SIGKILL)
print("lived", flush=True)
"""


def start(tmp_path: Path, home: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a process that records."""
    script = tmp_path / "child.py"
    if not script.exists():  # written again it could be read empty by a child that is starting
        script.write_text(CHILD)
    environment = {
        **os.environ,
        "WORKSPAN_TIMING_DIRECTORY": str(home),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "WORKSPAN_TIMING_UPDATE_MINIMUM_COUNT": "50",  # no fit, which would load numpy in each
    }
    return subprocess.Popen([sys.executable, str(script), *words], env=environment, stdout=subprocess.PIPE)


def test_concurrent_processes_lose_nothing(tmp_path: Path, recorder: ProgressRecorder, home: Path) -> None:
    """8 processes x 50 measurements, two of them killed, leave all 400 in the store (E68, R58, KF-67)."""
    children = [start(tmp_path, home, f"p{i}", "50", "kill" if i < 2 else "end") for i in range(8)]
    assert [child.communicate()[0] for child in children] == [b""] * 2 + [b"lived\n"] * 6
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2 + [0] * 6
    history = recorder._loaded()
    assert {key.step_name: kept.count for key, kept in history.items()} == {f"p{i}": 50 for i in range(8)}
    for document in documents(home):
        json.loads(document.read_text())


def test_a_kill_loses_nothing_that_was_finished(tmp_path: Path, recorder: ProgressRecorder, home: Path) -> None:
    """What was measured before a SIGKILL inside a step is there, the step itself is not (D31, E66, E67, R59, KF-67)."""
    assert start(tmp_path, home, "s", "10", "inside").communicate()[0] == b""
    assert {key.step_name: kept.count for key, kept in recorder._loaded().items()} == {"s": 10}
    step(1)
    recorder.flush()
    assert list(home.glob("fragment_*")) == []
    item, other = json.loads(documents(home)[-1].read_text())["steps"]
    assert {len(item["measurements"]), len(other["measurements"])} == {10, 1}


def test_saved_in_the_background(home: Path, recorder: ProgressRecorder) -> None:
    """After save_interval the next measurement starts a save off the timed thread (E67)."""
    config.configure(timing={"save_interval": 0.0})
    real = ProgressRecorder()
    real.stop(real.record("s"))
    assert real._saver is not None
    real._saver.join(10)
    assert len(documents(home)) == 1
    real.close()


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


def test_without_a_home(recorder: ProgressRecorder, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """No HOME at all: memory only, told once (R60)."""
    import platformdirs

    config.configure(timing={"directory": None})
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *a, **k: "~/share")
    step(1)
    assert count(recorder) == 1
    assert "there is no home directory" in caplog.text


def test_where_timings_are_kept(recorder: ProgressRecorder, tmp_path: Path) -> None:
    """The folder as configured, or workflows_data/timing below the user's data home (E59)."""
    config.configure(timing={"directory": None}, user_data_home=tmp_path)
    assert files.timing_directory() == tmp_path / "workflows_data" / "timing"
    config.configure(user_data_home=None)
    found = files.timing_directory()
    assert found is not None
    assert found.parts[-3:] == ("workspan", "workflows_data", "timing")


def test_a_held_lock_leaves_the_fragment(
    recorder: ProgressRecorder, home: Path, monkeypatch: pytest.MonkeyPatch, again: Any
) -> None:
    """Lock not obtained in time: the fragment stays and is merged at the next load (E68)."""
    import fcntl

    step(1)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.02)
    with open(home / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = again()
        assert documents(home) == []
        assert count(fresh) == 1
    step(2)
    assert count(again()) == 2
    assert list(home.glob("fragment_*")) == []


def test_limits_on_steps_and_bytes(recorder: ProgressRecorder, home: Path, clock: Any) -> None:
    """The least recently used steps go first (E69)."""
    config.configure(timing={"max_steps": 3})
    for name in "abcde":
        recorder.stop(recorder.record(name))
        clock.work(1)
    recorder.flush()
    names = [item["details"]["key"][2] for item in json.loads(documents(home)[-1].read_text())["steps"]]
    assert sorted(names) == ["c", "d", "e"]
    config.configure(timing={"max_file_bytes": 1500})
    recorder.stop(recorder.record("f"))
    recorder.flush()
    last = documents(home)[-1]
    assert last.stat().st_size <= 1500
    assert "f" in [item["details"]["key"][2] for item in json.loads(last.read_text())["steps"]]


def test_trimming_keeps_the_ends_and_one_of_each_size() -> None:
    """Newest half, extreme sizes, one recent of each size; equal runs never erase the others (E58)."""
    sizes = [1.0, 1000.0, *[float(n) for n in range(2, 22)], *[5.0] * 200]
    measured = [Measurement(1.0, n, start=float(at)) for at, n in enumerate(sizes)]
    kept = trim(measured, 50)
    assert len(kept) == 50
    assert [m.start for m in kept] == sorted(m.start for m in kept)  # type: ignore[type-var]
    assert {m.N_ref for m in kept} == {*sizes}
    assert [m.start for m in kept[-25:]] == [float(at) for at in range(len(sizes) - 25, len(sizes))]
    assert trim(measured[:3], 50) == measured[:3]
    assert len(trim(measured, 1)) == 1


def test_a_step_that_runs_often_stays_small(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """At most max_measurements are written, of thousands, with all few sizes among them; the total is told (E58)."""
    config.configure(timing={"max_measurements": 20})
    for n in range(1500):
        step(n % 3)
    fresh = again()
    (item,) = json.loads(documents(home)[-1].read_text())["steps"]
    assert len(item["measurements"]) == 20
    assert {m["N_ref"] for m in item["measurements"]} == {0.0, 1.0, 2.0}
    assert item["totals"] == {"": 1500}
    step(1)
    assert fresh.forecast(KEY).series.total == 1501


def test_names_of_files() -> None:
    """Stamps with zone, fraction, colons or compact; a naive one is local; new ones are unique and compact (E60)."""
    name = "execution_timing_{}.json".format
    moment = datetime(2025, 3, 4, 12, 30, 5, tzinfo=UTC)
    for text in (
        "2025-03-04T12:30:05Z", "2025-03-04T14:30:05+02:00", "20250304T123005Z", "20250304T143005+0200",
        "2025-03-04T12:30:05.000000+00:00", "20250304T123005.000000Z-0a1b2c",
    ):  # fmt: skip
        assert snapred.stamp_of(name(text)) == moment, text
    naive = datetime(2025, 3, 4, 12, 30, 5).astimezone(UTC)
    assert snapred.stamp_of(name("2025-03-04T12:30:05")) == naive
    for other in ("execution_timing_x.json", "timing.json", "execution_timing_2025-03-04T12:30:05Z.json.bad", name("")):
        assert snapred.stamp_of(other) is None
    made = {snapred.file_name(moment) for _ in range(20)}
    assert len(made) == 20
    assert all(snapred.stamp_of(each) == moment and ":" not in each for each in made)


REFERENCE = {
    "steps": [
        {
            "details": {
                "key": ["app.service", "Service.reduce", None],
                "N_ref_hash": "0123456789abcdef",
                "order": "O_N",
            },
            "measurements": [
                {"dt": 2.0, "dt_est": 3.0, "N_ref": 1e9},
                {"dt": 4.0, "dt_est": 6.0, "N_ref": 2e9},
                {"dt": 6.0, "dt_est": None, "N_ref": 3e9, "own": [1]},
                {"dt": 9.0, "dt_est": None, "N_ref": None},
            ],
            "estimate": {"count": [4, 4], "tck": [[0, 0, 3e9, 3e9], [0, 6.0, 0, 0], 1]},
            "note": "theirs",
        },
        {
            "details": {"key": ["app.recipe", "Recipe", "cook"], "N_ref_hash": None, "order": "O_0"},
            "measurements": [],
            "estimate": {"count": [1, 3], "tck": [[0.0, 0.0], [4.5], 0]},
        },
        {
            "details": {"key": ["app.recipe", "Wild", None], "N_ref_hash": None, "order": "O_N"},
            "measurements": [],
            "estimate": {
                "count": [5, 9],
                "tck": [[0, 0, 0, 0, 1e8, 1e8, 1e8, 1e8], [0.0, 5.0, -8.0, 2.0, 0, 0, 0, 0], 3],
            },
        },
    ]
}


def test_one_run_is_no_curve(recorder: ProgressRecorder, clock: Any, again: Any) -> None:
    """Until there are runs enough the next process says, as this one does, that it assumes a default (E84)."""
    step(1e6, clock.work)
    before = recorder.estimate(KEY, 1e6)
    assert before.source == "default"
    assert again().estimate(KEY, 1e6) == before


def test_a_real_files_format_is_imported(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Every valid file loads: null sizes, curves without measurements, unknown fields, foreign hashes (E61, E62)."""
    home.mkdir()
    (home / "execution_timing_2025-03-04T12:30:05.123456+00:00.json").write_text(json.dumps(REFERENCE))
    reduce, cook, wild = (
        ("app.service", "Service.reduce", None),
        ("app.recipe", "Recipe", "cook"),
        ("app.recipe", "Wild"),
    )
    assert recorder.estimate(reduce, 1.5e9).value == pytest.approx(3.0, rel=0.01)
    assert recorder.forecast(reduce).admitted()[-1].N_ref is None or recorder.forecast(reduce).count == 4
    legacy = recorder.estimate(cook, 1.0)
    assert (legacy.value, legacy.source) == (4.5, "legacy")
    for n in (0.0, 3e7, 6e7, 1e8, 1e9, 1e12):
        value = recorder.estimate(wild, n).value
        assert value is not None
        assert value >= 0.0
        assert math.isfinite(value)
    step(1)
    again()
    items = {tuple(item["details"]["key"]): item for item in json.loads(documents(home)[-1].read_text())["steps"]}
    item = items[reduce]
    assert item["note"] == "theirs"
    assert item["measurements"][2]["own"] == [1]
    assert item["details"]["N_ref_hash"] == "0123456789abcdef"
    assert items[cook]["estimate"]["tck"] == [[0.0, 0.0], [4.5], 0]


def test_what_is_written_others_can_read(recorder: ProgressRecorder, home: Path, clock: Any) -> None:
    """Only known fields inside details, no null estimate, all three fields, known orders, degree at most 3 (E61)."""
    for n in range(1, 9):
        step(float(n), clock.work)
    recorder.stop(recorder.record("custom", order=abs))
    recorder.stop(recorder.record("auto", order="auto"))
    recorder.flush()
    for item in json.loads(documents(home)[-1].read_text())["steps"]:
        assert set(item["details"]) == {"key", "N_ref_hash", "order"}
        assert item["details"]["order"] in (*snapred._ORDERS, None)
        assert "estimate" not in item or item["estimate"]["tck"][2] <= 3
        for measured in item["measurements"]:
            assert {"dt", "dt_est", "N_ref"} <= measured.keys()


def test_the_same_measurement_in_two_snapshots_is_one(recorder: ProgressRecorder, home: Path) -> None:
    """Reference files are cumulative: equal triples across files are one, within a file they are two (E63)."""
    first, _ = snapred.decode(json.dumps(REFERENCE).encode())
    more = json.loads(json.dumps(REFERENCE))
    more["steps"][0]["measurements"].append({"dt": 2.0, "dt_est": 3.0, "N_ref": 1e9})
    second, _ = snapred.decode(json.dumps(more).encode())
    from workspan.estimate.measurements import merge

    merge(first[0], second[0], 50)
    assert first[0].count == 5


def test_unsaved_threads_do_not_lose_measurements(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Saving while other threads record keeps each measurement exactly once (E68)."""
    config.configure(timing={"max_measurements": 1000})

    def work() -> None:
        for n in range(100):
            step(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        recorder.flush()
    for thread in threads:
        thread.join()
    assert count(again()) == 400


def test_the_store_may_be_deleted_meanwhile(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Files that are gone are no error (E69)."""
    step(1)
    for path in home.iterdir():
        path.unlink()
    home.rmdir()
    step(2)
    assert count(again()) == 2


def test_histories_of_no_use_are_dropped() -> None:
    """A folder that does not exist is an empty store (E64)."""
    assert TimingFolder(Path("nowhere")).load() == {}
    assert StepHistory(Key("m", "q")).count == 0


def test_no_handler_runs_under_the_lock(recorder: ProgressRecorder, home: Path) -> None:
    """A handler that waits for another thread which records is no deadlock (E26)."""
    home.mkdir()
    (home / "execution_timing_20990101T000000Z.json").write_text("{")
    free: list[bool] = []

    class Other(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            def look() -> None:
                free.append(recorder._lock.acquire(timeout=5))
                if free[-1]:
                    recorder._lock.release()

            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

    handler = Other()
    logging.getLogger("workspan.estimate").addHandler(handler)
    try:
        step(1)
    finally:
        logging.getLogger("workspan.estimate").removeHandler(handler)
    assert free == [True]


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


def test_a_step_that_stands_in_a_file_twice_has_both_parts(home: Path, recorder: ProgressRecorder) -> None:
    """Nothing is lost of a file that was put together by hand (E62, E65)."""
    home.mkdir(parents=True)
    parts = [
        {
            "details": {"key": ["m", "f", None], "N_ref_hash": None, "order": "O_N"},
            "measurements": [{"dt": dt, "dt_est": None, "N_ref": 1.0}],
        }
        for dt in (1.0, 2.0)
    ]
    (home / "execution_timing_2025-03-04T12:00:00Z.json").write_text(json.dumps({"steps": parts}))
    assert [m.dt for m in recorder.forecast(("m", "f", None)).measurements()] == [1.0, 2.0]


def test_fitting_for_a_save_keeps_no_step_waiting(
    recorder: ProgressRecorder, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Curves are fitted without the lock that the end of every step takes (E26, E67)."""
    ended: list[bool] = []
    stored = Forecast.stored

    def slow(self: Forecast, **options: Any) -> Any:
        def step() -> None:
            recorder.stop(recorder.record(("m", "other", None)))
            ended.append(True)

        other = threading.Thread(target=step, daemon=True)
        other.start()
        other.join(10.0)
        return stored(self, **options)

    monkeypatch.setattr(Forecast, "stored", slow)
    recorder.stop(recorder.record(("m", "f", None)))
    assert recorder.flush()
    assert ended == [True]


def test_a_save_in_a_hurry_fits_nothing(
    recorder: ProgressRecorder, clock: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a program does not wait for curves that nobody asked for; the measurements are saved (E67)."""
    for _ in range(4):
        activation = recorder.record(("m", "f", None), N_ref=2.0, order="O_N")
        clock.work(1.0)
        recorder.stop(activation)
    recorder.forecast(("m", "f", None)).renew()
    monkeypatch.setattr(knowledge, "RENEWING_SECONDS", -1.0)
    monkeypatch.setattr(Forecast, "_build", lambda self: pytest.fail("a curve was fitted"))
    assert recorder.flush()
    (kept,) = TimingFolder(home).load().values()
    assert kept.count == 4
