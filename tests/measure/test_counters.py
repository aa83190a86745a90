from __future__ import annotations

import itertools
import logging
import os
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from workspan.measure.counters import LIFETIME, PER_BLOCK, ProcessCounters

MIB = 1024 * 1024

linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc/self to read")

Usage = namedtuple("Usage", "ru_utime ru_stime ru_maxrss")


class Proc:
    """A stand-in for /proc/self whose figures a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.usage = Usage(1.0, 0.5, 7000)
        self.io(1000, 2000)
        self.status(4000)
        (folder / "clear_refs").touch()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def io(self, read: int, write: int) -> None:
        self.write("io", f"rchar: {read}\nwchar: {write}\nsyscr: 5\nsyscw: 6\nread_bytes: 70\nwrite_bytes: 80\n")

    def status(self, high_kib: int, groups: str = "") -> None:
        text = f"Name:\tpython\nGroups:\t{groups} \nVmPeak:\t  900000 kB\nVmHWM:\t {high_kib:7} kB\nVmRSS:\t 3000 kB\n"
        self.write("status", text)

    def mark_was_reset(self) -> bool:
        """Whether the high-water mark was reset since the last question."""
        text = (self.folder / "clear_refs").read_text()
        self.write("clear_refs", "")
        return text == "5"


@pytest.fixture
def proc(tmp_path):
    folder = tmp_path / "proc"
    folder.mkdir()
    return Proc(folder)


@pytest.fixture
def counters(proc):
    made = ProcessCounters(proc.folder, getrusage=lambda who: proc.usage, maxrss_unit=1024)
    yield made
    made.close()


class TestDifferences:
    def test_a_measurement_is_the_difference_of_two_readings(self, proc, counters):
        """CPU is user and system time, I/O the bytes through system calls; the mark is reset before (B128)."""
        start = counters.start()
        assert proc.mark_was_reset()
        proc.usage = Usage(3.0, 1.5, 7000)
        proc.io(1500, 2700)
        proc.status(5000)
        assert counters.finish(start) == (3.0, 500, 700, 5000 * 1024)
        assert not proc.mark_was_reset()

    def test_counters_that_went_backwards_count_as_nothing(self, proc, counters):
        """A counter that fell reads 0, not a negative figure (B131)."""
        start = counters.start()
        proc.usage = Usage(0.1, 0.1, 7000)
        proc.io(3, 4)
        assert counters.finish(start)[:3] == (0.0, 0, 0)

    def test_bytes_to_devices_are_another_figure(self, proc, counters):
        """What is counted is rchar and wchar, page-cache hits included, and not the traffic of devices (KF-42)."""
        proc.write("io", "rchar: 11\nwchar: 22\nsyscr: 1\nsyscw: 1\nread_bytes: 33\nwrite_bytes: 44\n")
        assert counters.io() == (11, 22)

    def test_a_long_list_of_groups_hides_nothing(self, proc, counters):
        """The peak is found behind however long a line (the groups of a cluster user, say)."""
        proc.status(4321, groups=" ".join(str(number) for number in range(100_000, 110_000)))
        assert counters.peak(counters.watch_peak()) == 4321 * 1024


class TestEachFailsAlone:
    @pytest.mark.parametrize("gone", ["io", "status", "clear_refs"])
    def test_a_file_that_is_absent_leaves_its_own_figures_empty(self, proc, counters, gone):
        """Without io there is no I/O, without status or reset no peak per block; all else is there (KF-34, B130)."""
        (proc.folder / gone).unlink()
        start = counters.start()
        proc.usage = Usage(2.0, 0.5, 8000)
        if gone != "io":
            proc.io(1001, 2002)
        cpu, read, write, peak = counters.finish(start)
        assert cpu == 1.0
        assert (read, write) == ((None, None) if gone == "io" else (1, 2))
        assert peak == (4000 * 1024 if gone == "io" else 8000 * 1024)
        assert counters.memory_source == (PER_BLOCK if gone == "io" else LIFETIME)

    @pytest.mark.parametrize(
        ("name", "text", "left"),
        [
            ("io", "rchar: 5000\n", (5000, None)),
            ("io", "rchar: \nwchar: 7\n", (None, 7)),
            ("io", "rchar: many\nwchar: 7\n", (None, 7)),
            ("io", "rchar: 51", (None, None)),
            ("io", "nothing of the kind\n", (None, None)),
            ("io", "", (None, None)),
        ],
    )
    def test_a_field_that_cannot_be_read_leaves_the_others(self, proc, counters, name, text, left):
        """Each field of a file is read on its own, and is None where there is no number (KF-34)."""
        proc.write(name, text)
        assert counters.io() == left

    def test_a_peak_that_cannot_be_read_falls_back_and_says_so(self, proc, counters):
        """A status without VmHWM gives the process's peak so far, under its own name (B130, KF-31)."""
        proc.write("status", "Name:\tpython\nVmRSS:\t 3000 kB\n")
        assert counters.peak(counters.watch_peak()) == 7000 * 1024
        assert counters.memory_source == "ru_maxrss, process lifetime"

    def test_a_platform_with_nothing_still_measures_nothing(self, tmp_path):
        """No /proc and a getrusage that fails: every figure is None and nothing is raised (B131, D22, KF-34)."""

        def refuse(who: int) -> Usage:
            raise AttributeError("no getrusage here")

        counters = ProcessCounters(tmp_path / "absent", getrusage=refuse)
        assert counters.finish(counters.start()) == (None, None, None, None)

    def test_a_peak_of_zero_is_no_measurement(self, proc):
        """Kernels that do not fill in ru_maxrss say 0: not measured, never 0 bytes (D22)."""
        counters = ProcessCounters("/absent", getrusage=lambda who: Usage(1.0, 1.0, 0))
        assert counters.peak(counters.watch_peak()) is None

    @pytest.mark.parametrize(("unit", "expected"), [(1024, 7000 * 1024), (1, 7000)])
    def test_the_fallback_knows_the_unit_of_the_platform(self, proc, unit, expected):
        """ru_maxrss is in KiB on Linux and in bytes on macOS (B130)."""
        counters = ProcessCounters("/absent", getrusage=lambda who: proc.usage, maxrss_unit=unit)
        assert counters.peak(counters.watch_peak()) == expected

    def test_what_is_not_measured_is_told_once(self, proc, counters, caplog):
        """One warning in a process for each figure that stays empty, not one a block (KF-34)."""
        (proc.folder / "io").unlink()
        proc.write("status", "Name:\tpython\n")
        for _ in range(3):
            counters.finish(counters.start())
        assert [(record.name, record.levelname) for record in caplog.records] == [
            ("workspan.measure.counters", "WARNING")
        ] * 2
        assert f"process {os.getpid()} cannot measure peak memory of single blocks" in caplog.text
        assert "no number for 'VmHWM:'" in caplog.text
        assert str(proc.folder / "io") in caplog.text

    def test_a_platform_without_proc_is_not_worth_a_warning(self, tmp_path, caplog):
        """Where /proc does not exist at all, that is told at level INFO."""
        caplog.set_level(logging.INFO)
        counters = ProcessCounters(tmp_path / "absent", getrusage=lambda who: Usage(0.0, 0.0, 1))
        counters.finish(counters.start())
        assert {record.levelname for record in caplog.records} == {"INFO"}

    def test_a_passing_hindrance_is_tried_again(self, proc, counters, monkeypatch):
        """With too many files open a block stays unmeasured, and the next one is measured again."""
        real = os.open

        def refuse(path, *args):
            raise OSError(24, "Too many open files", path)

        monkeypatch.setattr(os, "open", refuse)
        assert counters.finish(counters.start())[1:] == (None, None, 7000 * 1024)
        monkeypatch.setattr(os, "open", real)
        assert counters.finish(counters.start())[1:] == (0, 0, 4000 * 1024)


class TestOverlap:
    def test_a_later_measurement_does_not_lower_an_earlier_ones_peak(self, proc, counters):
        """The mark is reset for a nested block; the outer one keeps what it had seen until then."""
        outer = counters.watch_peak()
        proc.status(9000)
        inner = counters.watch_peak()
        proc.status(100)
        assert counters.peak(inner) == 100 * 1024
        proc.status(200)
        assert counters.peak(outer) == 9000 * 1024

    def test_an_outer_measurement_sees_the_inner_ones_peak(self, proc, counters):
        """What a nested block needed is part of the outer one's peak, also when a third one follows."""
        outer = counters.watch_peak()
        proc.status(100)
        inner = counters.watch_peak()
        proc.status(9000)
        counters.peak(inner)
        third = counters.watch_peak()
        proc.status(300)
        assert counters.peak(third) == 300 * 1024
        assert counters.peak(outer) == 9000 * 1024

    def test_measurements_that_end_in_the_order_of_their_beginning(self, proc, counters):
        """Overlapping blocks of two threads: each has the peak of its own window."""
        first = counters.watch_peak()
        proc.status(100)
        second = counters.watch_peak()
        proc.status(500)
        assert counters.peak(first) == 500 * 1024
        third = counters.watch_peak()
        proc.status(50)
        assert counters.peak(second) == 500 * 1024
        assert counters.peak(third) == 50 * 1024

    def test_the_source_can_be_asked_for_during_a_measurement(self, proc, counters):
        """Finding out what the figure is does not disturb a block that is being measured."""
        watch = counters.watch_peak()
        proc.status(9000)
        assert counters.memory_source == PER_BLOCK
        proc.status(100)
        assert counters.peak(watch) == 9000 * 1024


class TestUsage:
    """The cheap source of the memory mark, and when it may be used."""

    def measured(self, fresh, start: str, held: int = 0) -> list[object]:
        """What a program sees that a process which holds *held* bytes starts as *start* says."""
        parent = f"""
            held = b"x" * {held}
            done = subprocess.run({start}, capture_output=True, check=True, text=True)
            print(done.stdout)
        """
        return fresh(parent, fresh.write("child.py", self.SCRIPT))

    SCRIPT = """
        from workspan.measure.counters import ProcessCounters
        counters, found = ProcessCounters(), []
        for size in (0, 200_000_000, 0):
            start = counters.start()
            data = b"x" * size
            del data
            found.append([counters.finish(start).peak_rss_bytes, counters._high_water()])
        print(json.dumps([counters._usage_has_mark, *found]))
    """

    @linux
    def test_it_agrees_with_the_mark(self, fresh):
        """In a program that a small one started both sources tell the same of each block, up and down (D27, KF-32)."""
        has_mark, *found = self.measured(fresh, """["sh", "-c", f"{sys.executable} {sys.argv[1]}; true"]""")
        assert has_mark
        for ours, mark in found:
            assert ours == pytest.approx(mark, abs=2_000_000)
        assert found[1][0] > found[0][0] + 190_000_000
        assert found[2][0] < found[0][0] + 20_000_000

    @linux
    def test_a_large_parent_spoils_it_and_it_is_not_used(self, fresh):
        """Where the kernel starts from the parent's size the mark itself is read, and is right (D27, KF-31)."""
        has_mark, *found = self.measured(fresh, "[sys.executable, sys.argv[1]]", 500_000_000)
        assert not has_mark
        assert found[0][0] < 100_000_000
        assert found[1][0] == pytest.approx(found[0][0] + 200_000_000, rel=0.05)
        assert found[2][0] < found[0][0] + 20_000_000

    def test_a_figure_that_does_not_follow_is_not_used(self, proc, counters):
        """A getrusage that tells the peak of the whole process, or some other figure, is found out (D27)."""
        for peaks in (itertools.repeat(4000), itertools.count(4000, 4096), itertools.repeat(9000)):
            made = ProcessCounters(proc.folder, getrusage=lambda who, peaks=peaks: Usage(0.0, 0.0, next(peaks)))
            made.start()
            assert made._usage_has_mark is False
            made.close()


class TestOrder:
    def test_the_most_sensitive_counters_are_read_closest_to_the_body(self, proc):
        """Memory is reset first at start and read last at the end; I/O and CPU lie between it and the body (B132)."""
        order = []

        class Recording(ProcessCounters):
            def _usage(self):
                order.append("cpu")
                return super()._usage()

            def io(self, **options):
                order.append("io")
                return super().io(**options)

            def _reset_mark(self):
                order.append("reset")
                return super()._reset_mark()

            def _high_water(self):
                order.append("peak")
                return super()._high_water()

            def _make_meter(self):
                return None  # it reads all by itself, see test_meter.py

        counters = Recording(proc.folder)
        counters.finish(counters.start())
        order.clear()
        start = counters.start()
        order.append("body")
        counters.finish(start)
        counters.close()
        assert order == ["reset", "io", "cpu", "body", "cpu", "io", "peak"]


@linux
class TestKeptFiles:
    def test_nothing_is_opened_before_the_first_measurement(self):
        """Making counters, or importing them, holds no descriptor (R68)."""
        before = os.listdir("/proc/self/fd")
        ProcessCounters()
        assert os.listdir("/proc/self/fd") == before

    def test_files_are_opened_once(self, monkeypatch):
        """After the first measurement nothing is opened any more: that would cost more than all the rest."""
        counters = ProcessCounters()
        counters.finish(counters.start())
        monkeypatch.setattr(os, "open", None)
        assert None not in counters.finish(counters.start())
        counters.close()

    def test_closing_gives_all_descriptors_back_and_is_not_the_end(self):
        """After close no descriptor is left, and the next measurement opens what it needs."""
        before = os.listdir("/proc/self/fd")
        counters = ProcessCounters()
        for _ in range(2):
            assert None not in counters.finish(counters.start())
            opened = len(os.listdir("/proc/self/fd")) - len(before)
            assert opened == (2 if counters._usage_has_mark else 3)
            counters.close()
            counters.close()
            assert os.listdir("/proc/self/fd") == before

    def test_descriptors_are_not_inherited_by_programs(self, fresh):
        """A program that a block starts gets none of them."""
        script = """
            with Profile():
                pass
            listing = "import os; print(len(os.listdir('/proc/self/fd')))"
            print(subprocess.run([sys.executable, "-c", listing], close_fds=False, capture_output=True).stdout.decode())
        """
        assert fresh(script) == 4  # three standard ones and the listing's own

    def test_a_program_that_took_the_descriptors_over_keeps_its_files(self, fresh):
        """Code that closes every descriptor gets their numbers for its own files: those are not written, not closed."""
        script = """
            with Profile() as profile:
                pass
            os.closerange(3, 100)
            files = [open(f"own-{number}", "w+") for number in range(5)]
            for file in files:
                file.write("precious\\n" * 3)
                file.flush()
            with profile:
                data = b"x" * 50_000_000
            close_counters()
            text = []
            for file in files:
                file.seek(0)
                text.append(file.read())
                file.close()
            print(json.dumps([text, profile.stats.io_read_bytes, profile.stats.peak_rss_bytes]))
        """
        text, read, peak = fresh(script)
        assert text == ["precious\n" * 3] * 5
        assert read is not None
        assert peak > 50_000_000

    def test_a_forked_child_reads_its_own_counters(self, fresh):
        """A descriptor kept over a fork would report the parent: the child opens its own files (R65)."""
        script = """
            with Profile() as profile:
                data = os.urandom(20_000_000)
            read, write = os.pipe()
            child = os.fork()
            if not child:
                with profile:
                    data = b"x" * 60_000_000
                    with open("out", "wb") as file:
                        file.write(data)
                stats = profile.stats
                os.write(write, json.dumps([stats.io_write_bytes, stats.peak_rss_bytes, stats.cpu_seconds]).encode())
                os._exit(0)
            os.waitpid(child, 0)
            with profile:
                pass
            print(json.dumps([json.loads(os.read(read, 1000)), profile.stats.io_write_bytes]))
        """
        (written, peak, cpu), parents = fresh(script)
        assert 60_000_000 <= written < 60_100_000
        assert 60_000_000 < peak < 200_000_000
        assert 0 < cpu < 5
        assert parents == 0

    def test_a_fork_while_a_thread_measures_does_not_hang_the_child(self, fresh):
        """A lock that another thread held at the fork is not waited for in the child (R65)."""
        script = """
            from workspan.measure import profile
            counters = profile._counters
            with Profile():
                pass
            held, done = threading.Event(), threading.Event()
            def hold():
                with counters._lock:
                    held.set()
                    done.wait()
            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            child = os.fork()
            if not child:
                with Profile():
                    pass
                os._exit(7)
            status = os.waitpid(child, 0)[1]
            done.set()
            thread.join()
            print(os.waitstatus_to_exitcode(status))
        """
        assert fresh(script) == 7
