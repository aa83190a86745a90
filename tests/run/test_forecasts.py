"""A forecast: from the history, by the scheduler, and never invented."""

from __future__ import annotations

import json
import logging
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from funlib.geometry import Roi

import workspan as ws
from helpers.runs import line, run
from workspan import config
from workspan.errors import ConfigurationError, LayoutMismatchError
from workspan.measure.stats import Stat
from workspan.report.history import LayoutFields, RunSummary, by_size
from workspan.run import history
from workspan.run.history import history_file, read_summaries
from workspan.run.sizes import all_sizes, sizes_of
from workspan.store.runs import append_run


def work(block: ws.Block) -> None:
    """Do nothing."""


def half(block: ws.Block) -> None:
    """Fail in the second half of the blocks."""
    if block.write_roi.begin[0] >= 50:
        raise ValueError("not this one")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A history of its own for each test."""
    config.reset()
    monkeypatch.setattr(history, "_told", set())
    monkeypatch.setattr("workspan.run.foresight.usable_cpus", lambda: 4)
    monkeypatch.setattr("workspan.run.past.usable_cpus", lambda: 4)
    config.configure(timing={"directory": tmp_path / "home"}, log_basedir=tmp_path / "logs")
    yield tmp_path / "home" / "runs"
    config.reset()


Remember = Callable[..., None]


@pytest.fixture
def remember() -> Remember:
    """Write the summary of a run of a task that never was: so many blocks of these seconds."""
    made = 0

    def write(task: ws.Task, seconds: Any = 1.0, **changes: Any) -> None:
        nonlocal made
        made += 1
        count = task.layout.num_blocks
        times = [seconds] * count if isinstance(seconds, float) else list(seconds)
        sizes = sizes_of(task.layout, range(count), task.n_ref, task.task_id)
        values: dict[str, Any] = {
            "run_id": f"run-{made}",
            "task_id": task.task_id,
            "started_at": float(made),
            "wall_seconds": 1.0,
            "outcome": "completed",
            "layout": LayoutFields.of(task.layout),
            "total": count,
            "executed": count,
            "skipped": 0,
            "failed": 0,
            "failures": 0,
            "max_workers": task.max_workers,
            "workers": task.max_workers,
            "cpus": 4,
            "basis": "round trip",
            "later": by_size(sizes, times, count),
            "first": (),
            "startup": Stat(2, 0.5, 0.0, 0.5, 0.5, 1.0),
            "teardown": Stat(),
            "gap_seconds": 0.0,
            "lead_seconds": 0.0,
            "tail_seconds": 0.0,
            "overhead_seconds": None,
            "cpu_share": 0.1,
            "peak_rss": Stat(count, 2e9, 0.0, 2e9, 3e9, 2e9 * count),
            "steps": {"read": 0.25, "filter": 0.75},
            "function": task.history_marks()[0],
            "n_ref": task.history_marks()[1],
        }
        path = history_file(task.task_id)
        assert path is not None
        append_run(path, RunSummary(**values | changes).to_json())

    return write


def test_without_data_nothing_is_invented() -> None:
    """No run yet: every time is None, and text and basis say that there is no data (D32, D33)."""
    found = line(20, work, "fresh").forecast()
    assert (found.wall_seconds, found.wall_low, found.work_seconds, found.span_seconds, found.parallelism) == (
        None,
    ) * 5
    assert (found.source, found.basis, found.method, found.table) == ("default", "default, no data", "none", ())
    assert str(found).endswith("not known (default, no data)")
    assert found.tasks["fresh"].default_seconds == pytest.approx(20 * 10 * 3e-9)


def test_the_forecast_is_what_the_scheduler_does(remember: Remember) -> None:
    """40 blocks of 1 s on 4 workers: 10 s and the start of 0.5 s, 40 s of work, a span of one block (D46)."""
    task = line(40, work, max_workers=4)
    remember(task)
    found = task.forecast()
    assert found.wall_seconds == pytest.approx(10.5, rel=0.03)
    assert found.wall_low is not None
    assert found.wall_high is not None
    assert found.wall_low < found.wall_seconds < found.wall_high
    assert found.work_seconds == pytest.approx(40.0, rel=0.01)
    assert found.span_seconds == pytest.approx(1.0, rel=0.01)
    assert found.parallelism == pytest.approx(40.0, rel=0.02)
    assert (found.basis, found.method) == ("40 blocks of 1 run", "simulated")
    assert found.steps == pytest.approx({"read": 0.25, "filter": 0.75})


def test_the_table_answers_for_other_numbers_of_workers(remember: Remember) -> None:
    """1, 2, 4, 8, 16 workers and those asked for: speed, memory, and what fits (D32)."""
    task = line(64, work, max_workers=3)
    remember(task)
    found = task.forecast()
    assert [row.workers for row in found.table] == [1, 2, 3, 4, 8, 16]
    one, eight = found.with_workers(1), found.with_workers(8)
    assert one is not None
    assert eight is not None
    assert one.wall_seconds == pytest.approx(64.5, rel=0.05)
    assert eight.wall_seconds == pytest.approx(9.0, rel=0.05)
    assert eight.memory_bytes == 24_000_000_000
    assert found.worker_peak_bytes == 3_000_000_000
    assert found.memory_limit_bytes is not None
    assert found.workers_that_fit == found.memory_limit_bytes // 3_000_000_000
    assert eight.fits is (found.workers_that_fit >= 8)
    assert task.forecast(8).wall_seconds == pytest.approx(eight.wall_seconds, rel=0.03)


def test_busy_blocks_gain_nothing_beyond_the_processors(remember: Remember) -> None:
    """16 workers on 4 processors are promised nothing that 4 do not reach; unmeasured CPU is named (D32)."""
    task = line(200, work, max_workers=4)
    remember(task, cpu_share=1.0)
    found = task.forecast()
    four, many = found.with_workers(4), found.with_workers(16)
    assert four is not None
    assert many is not None
    assert four.wall_seconds is not None
    assert many.wall_seconds is not None
    assert many.wall_seconds >= 0.97 * four.wall_seconds
    other = line(200, work, "other", max_workers=4)
    remember(other, cpu_share=None)
    assert any("resource_tracking=True" in note for note in other.forecast().notes)


def test_a_mask_and_done_blocks_are_left_out(remember: Remember, tmp_path: Path) -> None:
    """What the run would skip is not forecast; fresh=True forecasts all but the mask; all done is nothing (D46)."""
    mask = np.zeros(10, np.uint8)
    mask[:2] = 1
    task = line(10, half, skip_mask=mask, tracking_path=tmp_path / "track", max_retries=0)
    remember(task)
    run(task)
    found = task.forecast()
    assert (found.blocks, found.total) == (5, 10)
    assert found.work_seconds is not None
    assert task.forecast(fresh=True).blocks == 8
    task.process_function = work
    run(task)
    done = task.forecast()
    assert (done.wall_seconds, done.source, done.method) == (0.0, "none", "none")
    assert "nothing to do" in str(done)


def test_a_run_leaves_its_summary_and_reset_keeps_it(tmp_path: Path) -> None:
    """The store and its runs.jsonl go with reset(); the summary in the timing home stays (D32)."""
    task = line(30, lambda block: time.sleep(0.001), tracking_path=tmp_path / "track")
    run(task)
    task.reset()
    (kept,), damaged = read_summaries("t")
    assert (kept.executed, kept.total, damaged) == (30, 30, 0)
    assert sum(row.blocks for row in (*kept.later, *kept.first)) == 30
    found = task.forecast()
    assert found.basis == "30 blocks of 1 run"
    assert found.work_seconds is not None
    assert found.work_seconds > 0.03


def test_a_store_alone_is_a_history(tmp_path: Path) -> None:
    """Without summaries the blocks of the tracking store are read, with their times and sizes (D32)."""
    config.configure(timing={"persistent_data": False})
    task = line(30, lambda block: time.sleep(0.002), tracking_path=tmp_path / "track", resource_tracking=True)
    report = run(task)
    assert read_summaries("t") == ([], 0)
    found = task.forecast(fresh=True)
    assert found.basis == "30 blocks of 1 run"
    assert found.work_seconds is not None
    assert 0.06 < found.work_seconds < 2 * report.work
    assert found.tasks["t"].peak_rss_bytes is not None


def test_a_store_without_measurements_gives_the_figures_of_its_runs(tmp_path: Path) -> None:
    """runs.jsonl alone holds how long blocks took: mean, spread and ends (D32)."""
    config.configure(timing={"persistent_data": False})
    task = line(30, lambda block: time.sleep(0.002), tracking_path=tmp_path / "track")
    report = run(task, "processes")
    found = task.forecast(fresh=True)
    assert found.basis == "30 blocks of 1 run"
    assert found.work_seconds is not None
    assert 0.06 < found.work_seconds < 2 * report.work


def test_another_layout_is_forecast_by_size(remember: Remember) -> None:
    """Blocks twice as large take twice as long here: the history of the small ones tells (D32)."""
    small, large = line(40, work), ws.Task("t", Roi((0,), (400,)), Roi((0,), (20,)), Roi((0,), (20,)), work)
    remember(small, [0.1] * 40)
    odd = ws.Task("t", Roi((0,), (395,)), Roi((0,), (5,)), Roi((0,), (5,)), work)
    remember(odd, [0.05] * 79)
    assert large.forecast().work_seconds == pytest.approx(4.0, rel=0.15)


def test_blocks_of_a_size_never_measured_are_a_guess(remember: Remember) -> None:
    """Blocks a hundred times as large as any measured have a wide range, no memory, and notes that say so (E84)."""
    small, large = (
        ws.Task("t", Roi((0,), (40 * n,)), Roi((0,), (n,)), Roi((0,), (n,)), work, read_write_conflict=False)
        for n in (10, 1000)
    )
    remember(small, [0.9, 1.0, 1.0, 1.1] * 10)
    near, far = small.forecast(), large.forecast()
    assert near.wall_high / near.wall_low < 2
    assert far.wall_high / far.wall_low > 5
    assert any("differ in size 100 times from any" in note for note in far.notes)
    assert not any("differ in size" in note for note in near.notes)
    assert near.workers_that_fit
    assert (far.worker_peak_bytes, far.workers_that_fit, far.table[0].memory_bytes) == (None,) * 3
    assert any("what memory they take is not known" in note for note in far.notes)


def test_rows_of_the_table_agree_where_workers_do_not_matter(remember: Remember) -> None:
    """One block takes as long however many workers there are, in every row (D32)."""
    task = line(1, work, "single")
    remember(task, 0.02, startup=Stat(8, 0.5, 0.1, 0.3, 0.8, 4.0))
    found = ws.forecast(task, workers=3)
    assert [row.wall_seconds for row in found.table] == pytest.approx([found.wall_seconds] * 6, rel=0.06)


def test_memory_that_is_known_of_a_part_is_not_that_of_the_whole(remember: Remember) -> None:
    """A task beside it whose memory was never measured leaves the memory of the run unknown (D22)."""
    first, second = line(20, work, "first"), line(20, work, "second")
    remember(first)
    remember(second, peak_rss=None)
    assert first.forecast().worker_peak_bytes == 3_000_000_000
    assert ws.forecast([first, second]).worker_peak_bytes is None


def test_parallelism_is_not_above_the_number_of_blocks(remember: Remember) -> None:
    """Blocks that share processors take longer, on the critical path as well as in the work (D32)."""
    task = line(100, work, "crowded")
    remember(task, 1.0, cpu_share=1.0)
    found = ws.forecast(task, workers=32)
    assert found.work_seconds > 300
    assert found.parallelism <= 101


def test_blocks_that_took_no_time_are_forecast(remember: Remember) -> None:
    """A clock that did not tick during a block is no error and no negative time (E84)."""
    remember(line(40, work, "nil"), 0.0)
    found = ws.forecast(line(40, work, "nil"), workers=2)
    assert 0.0 <= found.wall_low <= found.wall_seconds < 2.0


def test_a_store_of_another_layout_is_refused_unless_fresh(tmp_path: Path) -> None:
    """The run would be refused as well, so the forecast says it; as if nothing were done its blocks count (D46)."""
    run(line(10, work, tracking_path=tmp_path / "track", resource_tracking=True))
    other = line(12, work, tracking_path=tmp_path / "track")
    with pytest.raises(LayoutMismatchError, match="another layout of task 't'"):
        other.forecast()
    assert other.forecast(fresh=True).source == "model"


def test_clipped_blocks_are_smaller() -> None:
    """The size of a block is the elements of its write ROI, clipped (E33)."""
    task = ws.Task("t", Roi((0, 0), (25, 20)), Roi((0, 0), (10, 10)), Roi((0, 0), (10, 10)), work, fit="shrink")
    assert all_sizes(task.layout, None, "t").tolist() == [[100, 100], [100, 100], [50, 50]]
    assert sizes_of(task.layout, range(6), None, "t") == [100, 100, 100, 100, 50, 50]


def test_n_ref_gives_the_size(remember: Remember) -> None:
    """Task(n_ref=) says what the time depends on; None has no size; what is no number is refused (E33)."""
    task = line(50, work, n_ref=lambda block: None if block.write_roi.begin[0] == 0 else 1 + block.write_roi.begin[0])
    sizes = all_sizes(task.layout, task.n_ref, "t")
    assert np.isnan(sizes[0])
    assert sizes[1:].tolist() == [1 + 10 * n for n in range(1, 50)]
    remember(task, [1e-3 * (1 + 10 * n) for n in range(50)])
    found = task.forecast()
    assert found.work_seconds == pytest.approx(1e-3 * sum(1 + 10 * n for n in range(50)), rel=0.1)
    assert any("1 blocks have no size" in note for note in found.notes)
    with pytest.raises(ConfigurationError, match="n_ref of task 't' returned 'big'"):
        line(2, work, n_ref=lambda block: "big").forecast()
    with pytest.raises(TypeError, match="n_ref=3 is not callable"):
        line(2, work, n_ref=3)


def test_sizes_of_another_n_ref_are_not_mixed_in(remember: Remember) -> None:
    """Measurements whose sizes mean something else are left out, and that is said (E48)."""
    remember(line(20, work))
    found = line(20, work, n_ref=lambda block: 7.0).forecast()
    assert found.source == "default"
    assert any("another n_ref" in note for note in found.notes)


def test_another_function_of_this_name_is_not_its_history(remember: Remember) -> None:
    """Tasks of one id with other functions do not share a history; a changed function is named (E48)."""
    remember(line(20, work))
    assert line(20, half).forecast().source == "default"
    remember(line(20, half, "u"), function="half 0123 py:other")
    changed = line(20, half, "u").forecast()
    assert changed.source == "default" or any("has changed" in note for note in changed.notes)


def test_damaged_lines_are_passed_over(remember: Remember, home: Path) -> None:
    """Half a line, junk and a line of a later version cost themselves and are counted (D32)."""
    task = line(20, work)
    remember(task)
    with (home / "t.jsonl").open("a") as file:
        file.write('{"schema": 99}\nnonsense\n{"schema": 1, "run')
    remember(task)
    found = task.forecast()
    assert found.basis == "40 blocks of 2 runs"
    assert any("3 damaged lines" in note for note in found.notes)


def test_a_home_that_cannot_be_written_costs_one_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Runs go on, reports are whole, and it is said once (D32, E84)."""
    (tmp_path / "file").write_text("")
    config.configure(timing={"directory": tmp_path / "file" / "below"})
    with caplog.at_level(logging.WARNING):
        assert all(run(line(3, work)) for _ in range(3))
    told = [record for record in caplog.records if "forecasts will know nothing of this run" in record.getMessage()]
    assert len(told) == 1


def test_an_n_ref_that_raises_costs_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    """The run is complete, and why it leaves no history is said once (E20)."""

    def bad(block: ws.Block) -> float:
        raise KeyError("size")

    with caplog.at_level(logging.WARNING):
        assert all(run(line(3, work, n_ref=bad)) for _ in range(2))
    told = [record for record in caplog.records if "n_ref raised KeyError" in record.getMessage()]
    assert len(told) == 1
    assert read_summaries("t") == ([], 0)


def test_a_history_that_has_grown_too_long_begins_anew(remember: Remember, home: Path) -> None:
    """Beyond timing.max_file_bytes the file is put aside, once, and both are read (D32)."""
    task = line(5, work)
    config.configure(timing={"max_file_bytes": 1024})
    for _ in range(3):
        run(task)
    assert sorted(path.name for path in home.iterdir()) == ["t.jsonl", "t.jsonl.1"]
    assert len(read_summaries("t")[0]) == 2


def test_timing_can_be_switched_off(home: Path) -> None:
    """With timing.enabled = false a run leaves nothing (E74)."""
    config.configure(timing={"enabled": False})
    run(line(3, work))
    assert not home.exists()


def test_a_pipeline_is_forecast_as_a_whole(remember: Remember) -> None:
    """Tasks overlap block by block; one that was never measured leaves the whole unknown (D46)."""
    first, second = line(20, work, "a"), line(20, work, "b")
    remember(first)
    whole = first + second
    unknown = whole.forecast()
    assert (unknown.wall_seconds, unknown.basis) == (None, "default, no data for some tasks")
    remember(second)
    found = ws.forecast(whole)
    assert found.wall_seconds == pytest.approx(21.5, rel=0.06)
    assert found.work_seconds == pytest.approx(40.0, rel=0.03)
    assert found.span_seconds == pytest.approx(2.0, rel=0.03)
    assert found.basis == "40 blocks of 1 run"
    assert "whole run" in str(found)
    assert list(found.tasks) == ["a", "b"]


def test_a_huge_task_is_answered_by_levels(remember: Remember) -> None:
    """A million blocks take no longer to forecast than some: bounds, from levels (D46)."""
    remember(line(1000, work, max_workers=8))
    begin = time.process_time()
    found = line(1_000_000, work, max_workers=8).forecast()
    assert time.process_time() - begin < 5.0
    assert found.method == "bounds"
    assert found.wall_seconds == pytest.approx(125_000, rel=0.05)
    assert found.work_seconds == pytest.approx(1e6, rel=0.02)


def test_a_hundred_million_blocks_take_no_memory_each(remember: Remember) -> None:
    """The sizes of some blocks stand for all: 10^8 blocks in 3-d with conflicts are forecast in some MB (D46)."""
    side = 465
    task = ws.Task("t", Roi((0,) * 3, (side * 2 + 2,) * 3), Roi((0,) * 3, (4,) * 3), Roi((1,) * 3, (2,) * 3), work)
    small = ws.Task("t", Roi((0,) * 3, (22,) * 3), Roi((0,) * 3, (4,) * 3), Roi((1,) * 3, (2,) * 3), work)
    remember(small, cpu_share=0.01)
    tracemalloc.start()
    found = task.forecast(100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.total == side**3
    assert found.wall_seconds == pytest.approx(side**3 / 100, rel=0.05)
    assert peak < 30e6


def test_a_task_without_blocks_is_nothing_to_do() -> None:
    """A region smaller than a block has none (B14)."""
    found = ws.Task("t", Roi((0,), (5,)), Roi((0,), (10,)), Roi((0,), (10,)), work).forecast()
    assert (found.wall_seconds, found.source, found.blocks) == (0.0, "none", 0)


def test_it_is_json_and_the_same_each_time(remember: Remember) -> None:
    """One history, one forecast; to_dict is strict JSON (D32)."""
    task = line(30, work, max_workers=2)
    remember(task, np.random.default_rng(0).lognormal(0.0, 0.5, 30))
    one, two = task.forecast(), task.forecast()
    assert one == two
    assert ws.Forecast.from_json(json.loads(json.dumps(one.to_dict(), allow_nan=False))) == one


def test_workers_must_be_a_number_above_0(remember: Remember) -> None:
    """As everywhere (D49)."""
    with pytest.raises(ConfigurationError, match="workers=0"):
        line(3, work).forecast(0)


def test_the_forecast_of_a_real_run_holds_it() -> None:
    """Worker processes, sleeping blocks: told is what the run took that it comes from, within a margin (D32).

    Not what another run takes: that depends on what else the machine does then.
    """
    task = line(40, lambda block: time.sleep(0.01), max_workers=2)
    took = run(task, "processes").wall_seconds
    found = task.forecast()
    assert found.wall_seconds == pytest.approx(took, rel=0.6)
    assert found.tasks["t"].startup_seconds is not None
