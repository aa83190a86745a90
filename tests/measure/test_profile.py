from __future__ import annotations

import math
import pickle
import sys
import time

import msgspec
import pytest

from workspan.errors import ConfigurationError
from workspan.measure.profile import (
    BlockStats,
    Profile,
    attach,
    close_counters,
    memory_source,
    profile_block,
)

MB = 1_000_000
MIB = 1024 * 1024

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured per block on Linux only")


class Block:
    """What a measurement is attached to."""

    stats: BlockStats | None = None


@pytest.fixture(autouse=True)
def _closed_counters():
    yield
    close_counters()


class TestBlockStats:
    def test_fields_are_positional_with_the_documented_defaults(self):
        """BlockStats takes its seven figures in order, each with its default (B128, section 15)."""
        stats = BlockStats(1.0, 2.0, 3, 4, 5)
        assert stats == BlockStats(
            wall_seconds=1.0, cpu_seconds=2.0, peak_rss_bytes=3, io_read_bytes=4, io_write_bytes=5
        )
        assert msgspec.structs.astuple(BlockStats())[:5] == (0.0, 0.0, 0, 0, 0)
        assert BlockStats.__struct_fields__[5:] == ("gpu_util_pct", "gpu_mem_bytes")

    def test_a_block_that_uses_no_gpu_has_no_figures_of_one(self):
        """What was not measured is NaN and 0, never a plausible figure (B128, D12)."""
        with Profile() as profile:
            pass
        assert math.isnan(profile.stats.gpu_util_pct)
        assert profile.stats.gpu_mem_bytes == 0

    @pytest.mark.parametrize("stats", [BlockStats(), BlockStats(0.5, None, None, 7, 8, 50.0, 9)])
    def test_comes_back_equal_from_the_wire_and_from_pickle(self, stats):
        """A copy that went through msgpack or pickle is equal and hashes alike, NaN and None included (B127)."""
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=BlockStats)
        for copy in (wire, pickle.loads(pickle.dumps(stats))):
            assert copy == stats
            assert hash(copy) == hash(stats)

    def test_differs_in_any_figure(self):
        """Equality compares all figures, and nothing but measurements."""
        assert BlockStats(1.0) != BlockStats(2.0)
        assert BlockStats(1.0) != BlockStats(1.0, None)
        assert BlockStats() != 0

    def test_cannot_be_changed(self):
        """A measurement is a value: assigning to a field fails."""
        with pytest.raises(AttributeError, match="immutable"):
            BlockStats().wall_seconds = 1.0  # type: ignore[misc]


class TestProfile:
    def test_wall_time_is_the_clocks(self, clock):
        """Elapsed time is the difference of the given monotonic clock, in seconds (B128)."""
        with Profile(clock=clock) as profile:
            clock.pass_by(1_500_000_000)
        assert profile.stats.wall_seconds == 1.5

    def test_a_clock_that_stands_still_gives_zero(self, clock):
        """A block of no duration is measured like any other (KF-37)."""
        with Profile(clock=clock) as profile:
            pass
        assert profile.stats.wall_seconds == 0.0

    def test_figures_are_there_after_an_exception(self, clock):
        """A body that raises is measured, and its exception passes unchanged (B133)."""
        profile = Profile(clock=clock)
        error = ValueError("torn")

        def tear() -> None:
            with profile:
                clock.pass_by(1_000_000_000)
                raise error

        with pytest.raises(ValueError, match="torn") as caught:
            tear()
        assert caught.value is error
        assert profile.stats.wall_seconds == 1.0

    def test_one_object_serves_block_after_block(self, clock):
        """Figures do not add up over the uses of one Profile, and are not there while it measures."""
        profile = Profile(clock=clock)
        for seconds in (1, 2):
            with profile:
                assert profile.stats is None
                clock.pass_by(seconds * 1_000_000_000)
            assert profile.stats.wall_seconds == seconds

    def test_entering_twice_is_refused(self):
        """A Profile that measures cannot be entered again; the text says what to do."""
        profile = Profile()
        with profile, pytest.raises(ConfigurationError, match="use another one for a block inside a block"):
            profile.__enter__()
        assert profile.stats is not None

    def test_leaving_without_entering_measures_nothing(self):
        """A stray exit leaves the figures as they were."""
        profile = Profile()
        profile.__exit__(None, None, None)
        assert profile.stats is None

    def test_sleeping_costs_wall_time_and_next_to_no_cpu(self):
        """A block's wall time lies between readings of the clock inside and outside of it, which are 1 ms apart at
        best; of a sleep the CPU time is near zero (B128)."""
        profile = Profile()
        found, around = [], []
        for _ in range(8):
            outside = time.perf_counter()
            with profile:
                began = time.perf_counter()
                time.sleep(0.05)
                inside = time.perf_counter() - began
            outside = time.perf_counter() - outside
            wall = profile.stats.wall_seconds
            assert 0.05 <= inside <= wall <= outside
            around.append(outside - inside)
            found.append(profile.stats)
        assert min(around) < 0.001
        assert 0 <= min(stats.cpu_seconds for stats in found) < 0.001

    def test_costs_far_less_than_the_blocks_it_is_for(self):
        """Measuring a block that does nothing takes less than 100 us at best (B132)."""
        profile = Profile()
        best = math.inf
        for _ in range(300):
            began = time.perf_counter()
            with profile:
                pass
            best = min(best, time.perf_counter() - began)
        assert best < 100e-6


class TestProfileBlock:
    def test_sets_the_figures_of_the_block(self):
        """The measurement of the body is on the block afterwards (B133)."""
        block = Block()
        with profile_block(block):
            assert block.stats is None
            time.sleep(0.01)
        assert block.stats.wall_seconds >= 0.01

    def test_sets_them_when_the_body_raises(self):
        """A failed block carries its cost (B133)."""
        block = Block()
        with pytest.raises(KeyError), profile_block(block):
            raise KeyError("gone")
        assert isinstance(block.stats, BlockStats)

    def test_the_inner_measurement_beats_the_automatic_one_around_it(self, clock):
        """A scope inside the function narrows what is measured: it ends first and stays (B133)."""
        block = Block()
        with Profile(clock=clock) as automatic:
            clock.pass_by(1)
            with profile_block(block):
                pass
            inner = block.stats
        assert attach(block, automatic.stats) is inner
        assert block.stats is inner

    def test_a_second_measurement_does_not_overwrite_the_first(self):
        """Of two scopes one after the other, and of nested ones, the first to end stays (B133)."""
        block = Block()
        with profile_block(block):
            with profile_block(block):
                pass
            first = block.stats
        with profile_block(block):
            time.sleep(0.001)
        assert first is not None
        assert block.stats is first

    def test_the_automatic_measurement_is_attached_where_there_is_none(self):
        """A function that measures nothing itself has the cost of the whole call (B126, B133)."""
        block, stats = Block(), BlockStats(1.0)
        assert attach(block, stats) is stats
        assert block.stats is stats


@linux
class TestInputOutput:
    def test_a_block_without_io_reads_zero(self, fresh):
        """The profiler's own readings are not charged to the block (B132)."""
        script = """
            profile = Profile()
            for _ in range(3):
                with profile:
                    sum(range(1000))
            print(json.dumps([profile.stats.io_read_bytes, profile.stats.io_write_bytes]))
        """
        assert fresh(script) == [0, 0]

    def test_bytes_written_by_a_helper_thread_are_seen(self, fresh):
        """32 MB that a thread of the block writes are charged to the block (B129)."""
        script = """
            def write():
                with open("out", "wb") as file:
                    for _ in range(32):
                        file.write(b"x" * 1_000_000)
            with Profile() as profile:
                thread = threading.Thread(target=write)
                thread.start()
                thread.join()
            print(json.dumps([profile.stats.io_read_bytes, profile.stats.io_write_bytes]))
        """
        read, written = fresh(script)
        assert 32 * MB <= written < 32.1 * MB
        assert read < 0.1 * MB

    def test_bytes_read_from_the_cache_are_seen(self, fresh):
        """A 5 MB file read twice from the page cache counts 10 MB (KF-42)."""
        script = """
            with open("data", "wb") as file:
                file.write(b"x" * 5_000_000)
            with Profile() as profile:
                for _ in range(2):
                    with open("data", "rb") as file:
                        file.read()
            print(json.dumps([profile.stats.io_read_bytes, profile.stats.io_write_bytes]))
        """
        read, written = fresh(script)
        assert 10 * MB <= read < 10.1 * MB
        assert written == 0


class TestProcessorTime:
    def test_work_on_a_helper_thread_is_seen(self, fresh):
        """0.5 s of CPU burnt by a thread of the block are charged to the block (B129)."""
        script = """
            def burn():
                while time.thread_time() < 0.5:
                    pass
            with Profile() as profile:
                thread = threading.Thread(target=burn)
                thread.start()
                thread.join()
            print(profile.stats.cpu_seconds)
        """
        assert 0.49 <= fresh(script) < 0.55

    def test_work_of_child_processes_is_not(self, fresh):
        """CPU time of programs that the block starts is not in the figure (B128)."""
        script = """
            burn = "import time\\nwhile time.process_time() < 0.3: pass"
            with Profile() as profile:
                subprocess.run([sys.executable, "-c", burn], check=True)
            print(profile.stats.cpu_seconds)
        """
        assert fresh(script) < 0.2


@linux
class TestMemory:
    def test_the_peak_is_not_inherited_from_a_large_parent(self, fresh):
        """A child of a process that holds 1 GB reads its own size, plus the 200 MB that a block takes (B130, KF-31)."""
        child = """
            def measure(bytes):
                with Profile() as profile:
                    data = b"x" * bytes
                    del data
                return profile.stats.peak_rss_bytes
            print(json.dumps([measure(n) for n in (0, 200_000_000, 1000)] + [memory_source()]))
        """
        parent = """
            held = b"x" * 1_000_000_000
            done = subprocess.run([sys.executable, sys.argv[1]], capture_output=True, check=True, text=True)
            print(json.dumps([json.loads(done.stdout), len(held)]))
        """
        (base, large, small, source), _ = fresh(parent, fresh.write("child.py", child))
        assert base < 100 * MB
        assert large == pytest.approx(base + 200 * MB, rel=0.05)
        assert small == pytest.approx(base, rel=0.2)
        assert source == "VmHWM reset per block"

    def test_a_large_block_does_not_taint_the_next_ones(self, fresh):
        """Block 0 takes and frees 200 MiB, the others 5 MiB: each reads its own growth (KF-32)."""
        script = """
            def measure(mib):
                with Profile() as profile:
                    data = b"x" * (mib << 20)
                    del data
                return profile.stats.peak_rss_bytes
            base = measure(0)
            print(json.dumps([measure(mib) - base for mib in (200, 5, 5, 5)]))
        """
        first, *others = fresh(script)
        assert first >= 199 * MIB
        assert max(others) < 40 * MIB

    def test_a_peak_of_a_few_milliseconds_is_seen(self, fresh):
        """A block of about 20 ms that allocates 100 MiB and frees it again is measured whole (KF-33)."""
        script = """
            with Profile() as profile:
                pass
            base = profile.stats.peak_rss_bytes
            with profile:
                data = b"x" * (100 << 20)
                del data
                time.sleep(0.005)
            stats = profile.stats
            print(json.dumps([stats.peak_rss_bytes - base, stats.wall_seconds, stats.cpu_seconds]))
        """
        growth, wall, cpu = fresh(script)
        assert growth >= 95 * MIB
        assert 0.005 < wall < 5
        assert cpu > 0

    def test_a_block_inside_a_block_does_not_lower_the_outer_peak(self, fresh):
        """The outer measurement keeps the peak that it had before an inner one reset the mark (B133)."""
        script = """
            with Profile() as outer:
                data = b"x" * 100_000_000
                del data
                with Profile() as inner:
                    pass
            print(json.dumps([outer.stats.peak_rss_bytes, inner.stats.peak_rss_bytes]))
        """
        outer, inner = fresh(script)
        assert outer - inner > 90 * MB

    def test_the_source_of_the_figure_has_a_name(self):
        """What the memory figure is can be asked for, and recorded beside it (KF-31)."""
        assert memory_source() == "VmHWM reset per block"


def test_importing_the_room_loads_nothing_heavy(fresh):
    """A worker imports this before its first block: no numpy, asyncio, rich or logging comes with it (R68)."""
    script = """
        listing = (
            "import json, sys, workspan.measure.profile, workspan.measure.sections, workspan.measure.stats; "
            "print(json.dumps(list(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", listing], capture_output=True, check=True)
        print(done.stdout.decode())
    """
    assert {"numpy", "zarr", "asyncio", "rich", "logging", "subprocess"}.isdisjoint(fresh(script))
