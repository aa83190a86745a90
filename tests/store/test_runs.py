"""The history of a task, line by line."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspan.errors import StoreFullError, TrackingError, UsageTypeError
from workspan.store import runs
from workspan.store.runs import append_run, iter_runs, last_run, read_runs


def test_a_torn_last_line_stays_and_swallows_nothing(tmp_path: Path) -> None:
    """The next record starts on a line of its own; readers count one damaged line and keep the rest (KF-44, R33)."""
    path = tmp_path / "runs.jsonl"
    torn = b'{"run":1}\n{"run":2,"st'
    path.write_bytes(torn)
    assert read_runs(path) == ([{"run": 1}], 1)
    append_run(path, {"run": 3})
    assert read_runs(path) == ([{"run": 1}, {"run": 3}], 1)
    append_run(path, {"run": 4})
    assert read_runs(path) == ([{"run": 1}, {"run": 3}, {"run": 4}], 1)
    assert path.read_bytes().startswith(torn)
    assert last_run(path) == {"run": 4}


def test_a_history_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """No file is no run, and asking makes none (B148)."""
    path = tmp_path / "a" / "runs.jsonl"
    assert (read_runs(path), last_run(path), list(iter_runs(path))) == (([], 0), None, [])
    assert os.listdir(tmp_path) == []
    append_run(path, {"run": 1})
    assert last_run(path) == {"run": 1}


def test_lines_are_strict_json(tmp_path: Path) -> None:
    """NaN and the infinities become null, text is ASCII, and one run is one line (B158)."""
    path = tmp_path / "runs.jsonl"
    append_run(path, {"a": float("nan"), "b": [float("inf"), (1.5, {"c": -float("inf")})], "t": "ä\n\ud800"})
    assert path.read_bytes() == b'{"a": null, "b": [null, [1.5, {"c": null}]], "t": "\\u00e4\\n\\ud800"}\n'


@pytest.mark.parametrize("bad", [{"a": object()}, {"a": {1, 2}}, {(1, 2): 3}])
def test_what_is_no_json_is_refused(tmp_path: Path, bad: dict[object, object]) -> None:
    """Nothing is written then."""
    with pytest.raises(UsageTypeError, match="the record of a run is not JSON"):
        append_run(tmp_path / "runs.jsonl", bad)
    assert os.listdir(tmp_path) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=6))
def test_runs_come_back_as_they_were(tmp_path_factory, history: list[dict[str, object]]) -> None:
    """Any JSON object survives the file; the last one is found from the end (B155)."""
    path = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    for run in history:
        append_run(path, run)
    assert read_runs(path) == (history, 0)
    assert last_run(path) == (history[-1] if history else None)


@given(st.lists(st.one_of(st.integers(0, 9), st.binary(max_size=12).filter(lambda b: b"\n" not in b)), max_size=12))
def test_junk_between_runs_is_passed_over(tmp_path_factory, lines: list[int | bytes]) -> None:
    """Binary junk and lines that are no object are counted; whole lines are never lost (R33)."""
    path = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    path.write_bytes(b"".join(b'{"run": %d}\n' % x if isinstance(x, int) else x + b"\n" for x in lines))
    whole = [{"run": x} for x in lines if isinstance(x, int)]
    junk = [x for x in lines if isinstance(x, bytes) and x.strip() and not _is_object(x)]
    objects = [x for x in lines if isinstance(x, bytes) and _is_object(x)]
    found, damaged = read_runs(path)
    assert damaged == len(junk)
    assert len(found) == len(whole) + len(objects)
    assert [run for run in found if run in whole] == whole or objects
    assert last_run(path) == (found[-1] if found else None)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode()), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("line", [b"[1]", b"3", b"null", b'{"a": NaN}', b'{"a": Infinity}', b"[" * 100_000, b"\xff"])
def test_lines_that_are_no_record_are_counted(tmp_path: Path, line: bytes) -> None:
    """Valid JSON that is no object, numbers that JSON has not, and nesting without end are damage (B158, R33)."""
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b'{"run": 1}\n' + line + b"\n")
    assert read_runs(path) == ([{"run": 1}], 1)
    assert last_run(path) == {"run": 1}


@pytest.mark.parametrize("gap", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_the_last_run_is_found_across_blocks(tmp_path: Path, gap: int) -> None:
    """Reading backwards joins lines that straddle its blocks, and passes over damage of any size (B148)."""
    path = tmp_path / "runs.jsonl"
    run = {"run": 1, "text": "x" * gap}
    append_run(path, run)
    with open(path, "ab") as file:
        file.write(b"\n\n" + b"?" * gap)
    assert last_run(path) == run


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer lines than any record are damaged, and no more than the limit is held (R33)."""
    monkeypatch.setattr(runs, "LONGEST_LINE_BYTES", 1000)
    monkeypatch.setattr(runs, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(runs, "_READ_BYTES", 100)
    path = tmp_path / "runs.jsonl"
    endless = b'{"x": "' + b"x" * 10_000 + b'"}\n'
    path.write_bytes(b'{"run": 1}\n' + endless + b'{"run": 2}\n' + endless)
    assert read_runs(path) == ([{"run": 1}, {"run": 2}], 2)
    assert last_run(path) == {"run": 2}


def test_a_large_history_is_streamed(tmp_path: Path) -> None:
    """A gigabyte of history costs the memory of a line: sparse junk, with a run at both ends (R33)."""
    path = tmp_path / "runs.jsonl"
    append_run(path, {"run": 1})
    with open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        for _ in range(1024):
            file.seek(1 << 20, os.SEEK_CUR)
            file.write(b"\n")
    append_run(path, {"run": 2})
    assert path.stat().st_size > 1 << 30
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert [run for run in iter_runs(path) if run is not None] == [{"run": 1}, {"run": 2}]
    assert last_run(path) == {"run": 2}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_writers_do_not_mix_their_lines(tmp_path: Path, run_script) -> None:
    """Eight processes append a thousand lines each, of up to 20 kB: all of them are there (R33)."""
    path = tmp_path / "runs.jsonl"
    code = """
        import os, sys
        from workspan.store import runs
        os.fsync = lambda fd: None  # 8,000 times for nothing
        sys.stdin.read()
        for i in range(1000):
            runs.append_run(sys.argv[1], {"writer": sys.argv[2], "i": i, "x": "x" * (i % 20 * 1000)})
    """
    writers = [run_script(code, path, number) for number in range(8)]
    for writer in writers:
        writer.stdin.close()
    for writer in writers:
        assert writer.wait() == 0
    found, damaged = read_runs(path)
    assert damaged == 0
    for number in range(8):
        assert [run["i"] for run in found if run["writer"] == str(number)] == list(range(1000))


def test_a_full_disk_is_told(tmp_path: Path, run_script) -> None:
    """A line that does not fit is a StoreFullError; the lines before and after it are whole (R25, R33)."""
    path = tmp_path / "runs.jsonl"
    code = """
        import resource, sys
        from workspan.errors import StoreFullError
        from workspan.store.runs import append_run
        append_run(sys.argv[1], {"run": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        try:
            append_run(sys.argv[1], {"run": 2, "x": "x" * 1000})
        except StoreFullError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        append_run(sys.argv[1], {"run": 3})
    """
    out, err = run_script(code, path).communicate()
    assert f"{path}: File too large while appending the record of a run" in out, err
    assert read_runs(path) == ([{"run": 1}, {"run": 3}], 1)
    assert issubclass(StoreFullError, OSError)


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error names path and reason (R27)."""
    with pytest.raises(TrackingError, match=f"{tmp_path}: Is a directory while appending"):
        append_run(tmp_path, {"run": 1})
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError, match=r"file/runs\.jsonl: Not a directory while appending"):
        append_run(tmp_path / "file" / "runs.jsonl", {"run": 1})
    with pytest.raises(TrackingError, match="Is a directory while reading"):
        read_runs(tmp_path)
    with pytest.raises(TrackingError, match="Is a directory while reading"):
        last_run(tmp_path)
