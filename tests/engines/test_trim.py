"""Logs that grow without end are cut in place."""

from __future__ import annotations

import errno
import os
import re
import tracemalloc

import pytest

from workspan.engines import trim
from workspan.engines.logs import WorkerLog, open_log, prepare_folder
from workspan.engines.trim import HEAD_BYTES, MAX_LOG_BYTES, TAIL_BYTES

NOTE = re.compile(rb"\n---- ([\d,]+) bytes were cut here: of this worker's output the first .* MB stay ----\n")


@pytest.fixture
def make_log(tmp_path):
    """Return a function that opens the log of a worker, after an earlier text, and closes it in the end."""
    logs = []

    def make(earlier: bytes = b"") -> WorkerLog:
        folder = prepare_folder(tmp_path / "logs", "task")
        if earlier:
            (folder / "worker_0.out").write_bytes(earlier)
        logs.append(open_log(folder, 0))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


@pytest.fixture
def small(monkeypatch):
    """Make a log long at 4000 bytes; 1000 of its beginning and 1000 of its end stay."""
    monkeypatch.setattr(trim, "MAX_LOG_BYTES", 4000)
    monkeypatch.setattr(trim, "HEAD_BYTES", 1000)
    monkeypatch.setattr(trim, "TAIL_BYTES", 1000)
    monkeypatch.setattr(trim, "_PIECE_BYTES", 300)


def lines(first: int, last: int) -> bytes:
    """Lines of 10 bytes."""
    return b"".join(b"%9d\n" % n for n in range(first, last))


def kept(log: WorkerLog) -> tuple[bytes, int, bytes]:
    """Return what stays before and after the one note, and the number in it."""
    head, number, tail = NOTE.split(log.out_part.path.read_bytes())
    return head + b"\n", int(number.replace(b",", b"")), tail


def test_short_log_is_left_alone(make_log, small):
    """Up to the limit nothing is cut (R56)."""
    log = make_log()
    os.write(log.out, lines(0, 400))
    assert log.trim() == (None, None)
    assert log.out_part.path.read_bytes() == lines(0, 400)


def test_long_log_keeps_its_ends(make_log, small):
    """The beginning and the end stay in whole lines, and the line between says how much is gone (R56)."""
    log = make_log()
    os.write(log.out, b"abcd\n" + lines(0, 1000) + b"unfinished line")
    log.trim()
    head, gone, tail = kept(log)
    assert head == b"abcd\n" + lines(0, 99)
    assert tail == lines(902, 1000) + b"unfinished line"
    assert gone == 10 * (902 - 99)


def test_worker_goes_on_behind_the_cut(make_log, small):
    """What is appended after a cut follows what stayed (R56)."""
    log = make_log()
    os.write(log.out, lines(0, 1000))
    log.trim()
    os.write(log.out, b"more\n")
    assert kept(log)[2] == lines(900, 1000) + b"more\n"


def test_cuts_add_up(make_log, small):
    """After several cuts there is one note, of all that is gone (R56)."""
    log = make_log()
    for part in range(5):
        os.write(log.out, lines(1000 * part, 1000 * part + 1000))
        log.trim()
    head, gone, tail = kept(log)
    assert head == lines(0, 100)
    assert tail == lines(4900, 5000)
    assert gone == 10 * 4800


def test_note_within_the_head(make_log, small):
    """A head that ends early, before a long line, is cut at the same place the next time (R56)."""
    log = make_log()
    os.write(log.out, lines(0, 70) + b"x" * 3999 + b"\n")
    for _ in range(2):
        os.write(log.out, lines(0, 1000))
        log.trim()
    assert kept(log) == (lines(0, 70), 4000 + 9000 + 10_000, lines(900, 1000))


def test_earlier_runs_stay(make_log, small):
    """What earlier runs left in the file does not count and is not touched (B106)."""
    earlier = lines(0, 2000)
    log = make_log(earlier)
    os.write(log.out, lines(5000, 5390))
    assert log.trim() == (None, None)
    os.write(log.out, lines(5390, 6000))
    log.trim()
    head, gone, tail = kept(log)
    assert head == earlier + lines(5000, 5100)
    assert (gone, tail) == (8000, lines(5900, 6000))


def test_log_without_lines(make_log, small):
    """Bytes without a line end are cut anywhere; the note has a line of its own (R56)."""
    log = make_log()
    os.write(log.out, b"\xff" * 10_000)
    log.trim()
    os.write(log.out, b"\xfe" * 10_000)
    log.trim()
    assert kept(log) == (b"\xff" * 1000 + b"\n", 18_000, b"\xfe" * 1000)


def test_what_comes_during_the_cut_stays(make_log, small, monkeypatch):
    """What a worker writes while its log is cut is kept (R56)."""
    log = make_log()
    os.write(log.out, lines(0, 1000))
    copy = trim._copy
    written = []

    def slow_copy(*places):
        if len(written) < 3:
            os.write(log.out, b"late %d\n" % len(written))
            written.append(places)
        return copy(*places)

    monkeypatch.setattr(trim, "_copy", slow_copy)
    log.trim()
    assert kept(log)[2] == lines(900, 1000) + b"late 0\nlate 1\nlate 2\n"


def test_what_could_not_be_copied_is_counted(make_log, small, monkeypatch):
    """A worker that is never caught up with loses output; the next note counts it (R56)."""
    log = make_log()
    os.write(log.out, lines(0, 1000))
    copy = trim._copy

    def endless(*places):
        result = copy(*places)
        os.write(log.out, lines(7000, 7010))
        return result

    monkeypatch.setattr(trim, "_copy", endless)
    log.trim()
    monkeypatch.setattr(trim, "_copy", copy)
    assert log.out_part.cut_bytes == 8000 + 100
    size = os.path.getsize(log.out_part.path)
    os.write(log.out, lines(0, 1000))
    log.trim()
    head, gone, tail = kept(log)
    total = 10_000 + 100 * trim._ROUNDS + 10_000
    assert size < total
    assert gone == total - len(head) - len(tail)


def test_tail_after_a_cut(make_log, small):
    """The last lines of the error stream are found after a cut as before (B81, R56)."""
    log = make_log()
    os.write(log.err, lines(0, 1000))
    log.trim()
    assert log.err_path.stat().st_size < 3000
    assert log.tail().split() == [str(n) for n in range(950, 1000)]


def test_emptied_log(make_log, small):
    """A log that somebody empties is cut again when it has become long again (R56)."""
    log = make_log(earlier=lines(0, 100))
    os.write(log.out, lines(0, 1000))
    log.trim()
    os.truncate(log.out_part.path, 0)
    assert log.trim() == (None, None)
    os.write(log.out, lines(0, 1000))
    log.trim()
    assert kept(log) == (lines(0, 100), 8000, lines(900, 1000))


def test_another_file_is_left_alone(make_log, small):
    """A file that took the log's name is not cut, and a log that is gone is no error (R10)."""
    log = make_log()
    log.out_part.path.rename(log.out_part.path.with_suffix(".1"))
    log.out_part.path.write_bytes(lines(0, 1000))
    log.err_path.unlink()
    assert log.trim() == (None, None)
    assert log.out_part.path.read_bytes() == lines(0, 1000)


def test_disk_that_refuses_is_told_of_once(make_log, small, monkeypatch, caplog):
    """A log that cannot be cut ends no run: there is one warning, and the next time is another try (R10, R56)."""
    log = make_log()
    os.write(log.out, lines(0, 1000))
    pwrite = os.pwrite

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    for _ in range(3):
        assert log.trim() == (None, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"the log {log.out_part.path} is too long and cannot be cut: [Errno 28] No space left on device"
    ]
    monkeypatch.setattr(os, "pwrite", pwrite)
    log.trim()
    assert kept(log) == (lines(0, 100), 8000, lines(900, 1000))


def test_two_gigabytes(make_log):
    """A log of 2 GB becomes one of 32 MB, its ends as they were, in little memory (R56)."""
    assert (MAX_LOG_BYTES, HEAD_BYTES, TAIL_BYTES) == (64 << 20, 16 << 20, 16 << 20)
    log = make_log()
    os.write(log.out, lines(0, 1000))
    os.truncate(log.out_part.path, (2 << 30) - 10_000)  # a hole: zeros that take no space
    os.write(log.out, lines(5000, 6000))
    tracemalloc.start()
    try:
        log.trim()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    head, gone, tail = kept(log)
    assert head.startswith(lines(0, 1000))
    assert tail.endswith(lines(5000, 6000))
    assert (len(head), len(tail)) == (HEAD_BYTES + 1, TAIL_BYTES)
    assert gone == (2 << 30) - HEAD_BYTES - TAIL_BYTES
