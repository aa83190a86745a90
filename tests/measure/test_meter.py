"""All counters at once: the compiled reader and its twin, over files of the test's own."""

from __future__ import annotations

import importlib
import os
import resource
from pathlib import Path
from types import ModuleType

import pytest

from workspan.measure.counters import MAXRSS_UNIT, ProcessCounters

IO = b"rchar: 1000\nwchar: 200\nsyscr: 3\nsyscw: 4\nread_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"


@pytest.fixture(params=["native", "pure"])
def ticks(request: pytest.FixtureRequest) -> ModuleType:
    """Each implementation."""
    if request.param == "native":
        return pytest.importorskip("workspan.measure._ticks", reason="the native module is not built")
    return importlib.import_module("workspan.measure._ticks_py")


class Files:
    """Stand-ins for ``clear_refs`` and ``io``."""

    def __init__(self, folder: Path) -> None:
        self.mark_path, self.io_path = folder / "clear_refs", folder / "io"
        self.mark_path.write_bytes(b"")
        self.say(IO)
        self.mark = os.open(self.mark_path, os.O_WRONLY)
        self.io = os.open(self.io_path, os.O_RDONLY)

    def say(self, text: bytes) -> None:
        """Change what the kernel says of I/O."""
        self.io_path.write_bytes(text)

    def meter(self, ticks: ModuleType, *, counts_itself: bool = False, unit: int = 1024, status_fd: int = -1):
        """Return a meter over these files."""
        stat = os.fstat(self.mark)
        return ticks.Meter(self.mark, stat.st_dev, stat.st_ino, self.io, counts_itself, unit, status_fd)


@pytest.fixture
def files(tmp_path: Path):
    """Open stand-ins, closed afterwards."""
    made = Files(tmp_path)
    yield made
    for descriptor in (made.mark, made.io):
        os.close(descriptor)


class TestReading:
    def test_what_the_files_and_the_kernel_say(self, ticks, files):
        """B128, D27: bytes of the I/O file, CPU seconds and peak of ``getrusage``; the mark was reset."""
        meter = files.meter(ticks)
        before = resource.getrusage(resource.RUSAGE_SELF)
        read, write, seconds = meter.begin()
        later, peak, read_again, write_again = meter.end()
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert (read, write, read_again, write_again) == (1000, 200, 1000, 200)
        assert before[0] + before[1] <= seconds <= later <= after[0] + after[1] + 1e-6
        assert before[2] * 1024 <= peak <= after[2] * 1024
        assert files.mark_path.read_bytes() == b"5"

    def test_its_own_reading_is_not_the_blocks(self, ticks, files):
        """B129: where the kernel counts the reading of the file, the first reading is taken off."""
        meter = files.meter(ticks, counts_itself=True)
        size = min(len(IO), 63)
        assert meter.begin()[0] == 1000 + size
        assert meter.end()[2] == 1000

    def test_large_figures(self, ticks, files):
        """Counters of months of work."""
        files.say(b"rchar: %d\nwchar: %d\nsyscr: 3\n" % (2**62, 2**61))
        assert files.meter(ticks).end()[2:] == (2**62, 2**61)

    def test_the_unit_of_the_platform(self, ticks, files):
        """B130: KiB on Linux, bytes on macOS."""
        assert files.meter(ticks, unit=1).end()[1] * 1024 == pytest.approx(files.meter(ticks).end()[1], rel=0.5)


STATUS = b"Name:\tpython\nUmask:\t0022\nGroups:\t%s \nVmPeak:\t  900 kB\nVmHWM:\t   %d kB\nVmRSS:\t  50 kB\n"


class TestMark:
    """Peak memory from the mark itself, where ``ru_maxrss`` is that of the program before (D27)."""

    def test_it_is_the_mark(self, ticks, files, tmp_path):
        """KF-31: what the kernel says with the CPU time does not count then."""
        path = tmp_path / "status"
        path.write_bytes(STATUS % (b"0", 777))
        with path.open("rb") as status:
            assert files.meter(ticks, status_fd=status.fileno()).end()[1] == 777 * 1024

    @pytest.mark.parametrize(
        "text", [b"", b"Name", STATUS % (b"1" * 5000, 777), STATUS % (b"0", 0), STATUS[5:] % (b"0", 777)], ids=len
    )
    def test_a_text_without_it_is_nothing(self, ticks, files, tmp_path, text):
        """B131: too long a list of groups before it, another file, a mark of 0: the long way is taken."""
        path = tmp_path / "status"
        path.write_bytes(text)
        with path.open("rb") as status:
            assert files.meter(ticks, status_fd=status.fileno()).end() is None


def test_the_most_sensitive_counters_are_closest_to_the_body(files, tmp_path, monkeypatch):
    """B132: memory is reset first and read last, I/O and CPU lie between it and the body; so in the twin."""
    ticks = importlib.import_module("workspan.measure._ticks_py")
    path = tmp_path / "status"
    path.write_bytes(STATUS % (b"0", 777))
    order = []
    pread, pwrite = os.pread, os.pwrite
    with path.open("rb") as status:
        names = {files.io: "io", status.fileno(): "peak"}
        monkeypatch.setattr(ticks.os, "pread", lambda fd, *a: (order.append(names[fd]), pread(fd, *a))[1])
        monkeypatch.setattr(ticks.os, "pwrite", lambda *a: (order.append("reset"), pwrite(*a))[1])
        monkeypatch.setattr(ticks, "getrusage", lambda who: (order.append("cpu"), resource.getrusage(who))[1])
        meter = files.meter(ticks, status_fd=status.fileno())
        meter.begin()
        order.append("body")
        meter.end()
    assert order == ["reset", "io", "cpu", "body", "cpu", "io", "peak"]


class TestDoubt:
    @pytest.mark.parametrize(
        "text",
        [b"", b"rchar: 1", b"Name: python\nUmask: 0022\n", b"rchar: x\nwchar: 3\nmore\n", b"rchar: 5\nother: 3\nx\n"],
    )
    def test_a_file_that_is_something_else(self, ticks, files, text):
        """B131: nothing is made up from a text that is not the I/O file's."""
        meter = files.meter(ticks)
        files.say(text)
        assert meter.begin() is None
        assert meter.end() is None

    def test_a_descriptor_that_is_somebody_elses_now(self, ticks, files, tmp_path):
        """Nothing is written to a file that the program opened under the same number."""
        meter = files.meter(ticks)
        mine = tmp_path / "mine"
        mine.write_bytes(b"precious")
        other = os.open(mine, os.O_RDWR)
        os.dup2(other, files.mark)
        os.close(other)
        assert meter.begin() is None
        assert mine.read_bytes() == b"precious"

    def test_descriptors_that_are_closed(self, ticks, files):
        """No error, and no figure."""
        meter = files.meter(ticks)
        kept = os.dup(files.mark), os.dup(files.io)
        os.close(files.mark)
        os.close(files.io)
        try:
            assert meter.begin() is None
            assert meter.end() is None
        finally:
            for number, copy in zip((files.mark, files.io), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)


class TestUse:
    def test_a_measurement_inside_another_takes_the_long_way(self):
        """The mark belongs to all measurements under way: only the first one may reset it without looking around."""
        counters = ProcessCounters()
        try:
            counters.finish(counters.start())
            if counters._meter is None:
                pytest.skip("this platform has no high-water mark of memory")
            outer = counters.start()
            held = bytearray(64 << 20)
            held[::4096] = b"x" * len(held[::4096])
            del held
            inner = counters.start()
            small = counters.finish(inner)
            large = counters.finish(outer)
            assert large.peak_rss_bytes - small.peak_rss_bytes > 32 << 20
        finally:
            counters.close()

    def test_counters_of_other_files_have_none(self, tmp_path):
        """Given counters are read where they are, and in their unit."""
        counters = ProcessCounters(tmp_path, maxrss_unit=MAXRSS_UNIT)
        counters.finish(counters.start())
        assert counters._meter is None
