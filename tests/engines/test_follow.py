"""What workers write is shown on the driver's streams while they live."""

from __future__ import annotations

import io
import os
import tracemalloc
from math import inf
from types import SimpleNamespace

import pytest

from workspan.engines import follow, trim
from workspan.engines.follow import CUT_SECONDS, MAX_LINE_BYTES, READ_BYTES, SHOW_SECONDS, LogWatch
from workspan.engines.logs import WorkerLog, open_log, prepare_folder


class Watched:
    """A watch whose clock goes on by one interval with each look."""

    def __init__(self, watch: LogWatch) -> None:
        self.watch = watch
        self.now = 0.0

    def look(self, seconds: float = SHOW_SECONDS) -> None:
        """Let time pass and look once."""
        self.now += seconds
        self.watch.tend(self.now)


@pytest.fixture
def watched():
    """Return a watch that shows."""
    return Watched(LogWatch(show=True))


@pytest.fixture
def make_log(tmp_path, watched):
    """Return a function that opens the log of a new worker and has it watched; all are closed in the end."""
    logs = []

    def make(earlier: bytes = b"") -> WorkerLog:
        folder = prepare_folder(tmp_path / "logs", "task")
        if earlier:
            (folder / f"worker_{len(logs)}.out").write_bytes(earlier)
        logs.append(open_log(folder, len(logs)))
        logs[-1].separate(pid=7)
        watched.watch.add(logs[-1], watched.now)
        return logs[-1]

    yield make
    for log in logs:
        log.close()


@pytest.fixture
def screen(monkeypatch):
    """Return the two streams of the driver, as bytes."""
    raw = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(stream, encoding="utf-8") for stream in raw)
    monkeypatch.setattr(follow, "sys", SimpleNamespace(stdout=out, stderr=err))  # pytest changes the real one
    return raw


def test_lines_appear_on_the_stream_they_were_written_to(watched, make_log, screen):
    """What is appended is shown at the next look, once, out to out and err to err (B107)."""
    log = make_log()
    os.write(log.out, b"one\n")
    os.write(log.err, b"oops\n")
    watched.look()
    assert (screen[0].getvalue(), screen[1].getvalue()) == (b"one\n", b"oops\n")
    os.write(log.out, b"two\n")
    watched.look()
    watched.look()
    watched.watch.end(log)
    assert (screen[0].getvalue(), screen[1].getvalue()) == (b"one\ntwo\n", b"oops\n")


def test_earlier_runs_are_not_shown(watched, make_log, screen):
    """Neither what an earlier run wrote to the file nor the line that separates the runs appears (B106, B107)."""
    log = make_log(earlier=b"long ago\n")
    os.write(log.out, b"now\n")
    watched.look()
    assert screen[0].getvalue() == b"now\n"


def test_lines_of_two_workers_do_not_mix(watched, make_log, screen):
    """An unfinished line waits for its end, or for its worker's (B107)."""
    first, second = make_log(), make_log()
    os.write(first.out, b"a line in ")
    os.write(second.out, b"whole\nhalf")
    watched.look()
    os.write(first.out, b"two parts\n")
    watched.look()
    watched.watch.end(second)
    os.write(first.out, b"last\n")
    watched.watch.end(first)
    assert screen[0].getvalue() == b"whole\na line in two parts\nhalf\nlast\n"


def test_long_line_does_not_wait(watched, make_log, screen):
    """A line without an end is shown when it gets long, and ended before another worker's (B107, R56)."""
    first, second = make_log(), make_log()
    os.write(first.out, b"x" * MAX_LINE_BYTES)
    watched.look()
    assert screen[0].getvalue() == b""
    os.write(first.out, b"x")
    watched.look()
    os.write(second.out, b"other\n")
    watched.look()
    os.write(first.out, b"rest\n")
    watched.look()
    assert screen[0].getvalue() == b"x" * (MAX_LINE_BYTES + 1) + b"\nother\nrest\n"


def test_bytes_that_are_no_text_pass_through(watched, make_log, screen):
    """What is not UTF-8 arrives as it was written (B107, R56)."""
    log = make_log()
    os.write(log.out, b"\xff\xfe\n")
    watched.look()
    assert screen[0].getvalue() == b"\xff\xfe\n"


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "µ \ufffd\n"), ("ascii", "\\xb5 \\ufffd\n")])
def test_stream_that_takes_text_only(watched, make_log, screen, monkeypatch, encoding, shown):
    """A stand-in for a stream, as in notebooks, gets text that it can take (B107)."""

    class Notebook:
        def __init__(self):
            self.text = ""
            self.encoding = encoding

        def write(self, text):
            text.encode(encoding)
            self.text += text

        def flush(self):
            pass

    monkeypatch.setattr(follow.sys, "stdout", Notebook())
    log = make_log()
    os.write(log.out, "µ ".encode() + b"\xff\n")
    watched.look()
    assert follow.sys.stdout.text == shown


def closed_stream():
    """Return a stream that was closed."""
    stream = io.TextIOWrapper(io.BytesIO())
    stream.close()
    return stream


class Broken:
    """A stream that nobody reads any more."""

    def write(self, text):
        """Fail."""
        raise BrokenPipeError(text)


@pytest.mark.parametrize("make", [closed_stream, Broken, lambda: None], ids=["closed", "broken", "none"])
def test_stream_that_fails_ends_no_run(watched, make_log, screen, monkeypatch, make):
    """A stdout that is closed, broken or missing costs what is shown there and nothing else (B107)."""
    monkeypatch.setattr(follow.sys, "stdout", make())
    log = make_log()
    os.write(log.out, b"lost\n")
    os.write(log.err, b"seen\n")
    watched.look()
    watched.watch.end(log)
    assert screen[1].getvalue() == b"seen\n"
    assert log.out_part.path.read_bytes() == b"lost\n"


def test_unbuffered_stream_gets_everything(watched, make_log, screen, monkeypatch):
    """A stream that takes a part of what it is given, as with ``python -u``, gets the rest too (B107)."""

    class Slow(io.RawIOBase):
        taken = b""

        def writable(self):
            return True

        def write(self, data):
            self.taken += bytes(data[:3])
            return min(3, len(data))

    slow = Slow()
    monkeypatch.setattr(follow.sys, "stdout", io.TextIOWrapper(slow))
    log = make_log()
    os.write(log.out, b"12345678\n")
    watched.look()
    assert slow.taken == b"12345678\n"


def test_flood_is_shown_in_pieces(watched, make_log, screen):
    """One look shows a bounded part of a flood in bounded memory; nothing is left out of it (R56)."""
    log = make_log()
    text = b"".join(b"%99d\n" % n for n in range(100_000))
    os.write(log.out, text)
    tracemalloc.start()
    try:
        watched.look()
        shown = len(screen[0].getvalue())
        assert READ_BYTES - 100 < shown <= READ_BYTES
        watched.look()
        assert READ_BYTES < len(screen[0].getvalue()) <= 2 * READ_BYTES
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    watched.watch.end(log)
    assert screen[0].getvalue() == text


def test_end_of_a_flood(watched, make_log, screen, monkeypatch):
    """Of very much that is left at a worker's end, the end is shown, and how much is not (R56)."""
    monkeypatch.setattr(follow, "MAX_LAST_BYTES", 1000)
    log = make_log()
    os.write(log.out, b"".join(b"%9d\n" % n for n in range(1000)))
    watched.watch.end(log)
    shown = screen[0].getvalue().splitlines()
    assert shown[0] == b"---- 9,000 bytes of worker_0.out are not shown here ----"
    assert [int(line) for line in shown[1:]] == list(range(900, 1000))


class TestCuts:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        """Make a log long at 4000 bytes; 1000 of its beginning and 1000 of its end stay."""
        monkeypatch.setattr(trim, "MAX_LOG_BYTES", 4000)
        monkeypatch.setattr(trim, "HEAD_BYTES", 1000)
        monkeypatch.setattr(trim, "TAIL_BYTES", 1000)

    @staticmethod
    def flood(log: WorkerLog, first: int, last: int) -> None:
        """Write lines of 10 bytes."""
        os.write(log.out, b"".join(b"%9d\n" % n for n in range(first, last)))

    def test_what_was_shown_is_not_shown_again(self, watched, make_log, screen):
        """A cut behind the reader changes nothing of what is shown (B107, R56)."""
        log = make_log()
        self.flood(log, 0, 1000)
        watched.look(CUT_SECONDS)
        assert log.out_part.path.stat().st_size < 3000
        self.flood(log, 1000, 1010)
        watched.look()
        watched.watch.end(log)
        assert list(map(int, screen[0].getvalue().splitlines())) == list(range(1010))

    def test_what_is_gone_is_told_of(self, watched, make_log, screen, monkeypatch):
        """What was cut before it could be shown is skipped, with its size and on a line of its own (B107, R56)."""
        monkeypatch.setattr(follow, "READ_BYTES", 2005)
        log = make_log()
        self.flood(log, 0, 1000)
        watched.look(CUT_SECONDS)
        monkeypatch.setattr(follow, "READ_BYTES", 10_000)
        watched.look()
        head, note, tail = screen[0].getvalue().partition(b"---- 6,995 bytes of worker_0.out are not shown here ----\n")
        assert head == b"".join(b"%9d\n" % n for n in range(200)) + b"     \n"
        assert note
        assert list(map(int, tail.splitlines())) == list(range(900, 1000))

    @pytest.mark.parametrize("size", [500, 1000])
    def test_reader_in_the_part_that_stays(self, watched, make_log, screen, monkeypatch, size):
        """Who has read no more than the beginning reads on through the note in the file (B107, R56)."""
        monkeypatch.setattr(follow, "READ_BYTES", size)
        log = make_log()
        self.flood(log, 0, 1000)
        watched.look(CUT_SECONDS)
        watched.watch.end(log)
        assert screen[0].getvalue() == log.out_part.path.read_bytes()
        assert b"8,000 bytes were cut" in screen[0].getvalue()

    def test_log_is_cut_at_the_end(self, watched, make_log, screen):
        """A worker that ends right after a flood leaves a short log (R56)."""
        log = make_log()
        self.flood(log, 0, 1000)
        watched.watch.end(log)
        assert log.out_part.path.stat().st_size < 3000


def test_emptied_file_is_followed_from_its_beginning(watched, make_log, screen):
    """After somebody emptied the file, what comes is shown (B107)."""
    log = make_log()
    os.write(log.out, b"one\ntwo\n")
    watched.look()
    os.truncate(log.out_part.path, 0)
    os.write(log.out, b"3\n")
    watched.look()
    assert screen[0].getvalue() == b"one\ntwo\n3\n"


def test_removed_file_is_no_error(watched, make_log, screen):
    """A log that is removed is shown as far as it was read, and the unfinished line with it (R10)."""
    log = make_log()
    os.write(log.out, b"one\ntwo")
    watched.look()
    log.out_part.path.unlink()
    watched.look()
    watched.watch.end(log)
    assert screen[0].getvalue() == b"one\ntwo\n"


def test_file_that_cannot_be_opened_is_no_error(watched, make_log, screen, monkeypatch):
    """A log that cannot be read ends no run, and its worker's end comes (R10)."""
    log = make_log()
    os.write(log.out, b"one\n")

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(type(log.out_part.path), "open", refuse)
    watched.look()
    watched.watch.end(log)
    assert screen[0].getvalue() == b""


class TestDue:
    def test_nobody_to_watch(self):
        """Without a worker there is nothing to wake up for."""
        assert LogWatch(show=True).due == inf

    @pytest.mark.parametrize(("show", "seconds"), [(True, SHOW_SECONDS), (False, CUT_SECONDS)])
    def test_next_look(self, make_log, show, seconds):
        """The next look is a tenth of a second away if output is shown, else a second; the last worker ends that."""
        watch = LogWatch(show=show)
        logs = make_log(), make_log()
        watch.add(logs[0], 100.0)
        watch.add(logs[1], 100.05)
        assert watch.due == 100.0 + seconds
        watch.tend(100.0 + seconds)
        assert watch.due == pytest.approx(100.0 + 2 * seconds)
        watch.end(logs[0])
        assert watch.due == pytest.approx(100.0 + 2 * seconds)
        watch.end(logs[1])
        assert watch.due == inf

    def test_too_early(self, watched, make_log, screen):
        """A look before its time does nothing, so that a busy driver does not read files at every turn."""
        log = make_log()
        os.write(log.out, b"one\n")
        watched.look(SHOW_SECONDS / 2)
        assert screen[0].getvalue() == b""
        watched.look(SHOW_SECONDS / 2)
        assert screen[0].getvalue() == b"one\n"

    def test_silent_watch(self, make_log, screen):
        """With files only, logs are cut and nothing is shown (B107)."""
        log = make_log()
        watch = LogWatch()
        watch.add(log, 0.0)
        os.write(log.out, b"one\n")
        watch.tend(CUT_SECONDS)
        watch.end(log)
        assert screen[0].getvalue() == b""

    def test_unknown_log(self, make_log):
        """The end of a worker that is not watched, or no longer, is no error."""
        watch = LogWatch()
        log = make_log()
        watch.end(log)
        watch.add(log, 0.0)
        watch.end(log)
        watch.end(log)
