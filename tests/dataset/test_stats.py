"""The report: every figure equals direct computation, and the text has its layout."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workspan as ws
from workspan.dataset.figures import Figure, Tally
from workspan.dataset.plan import make_plan
from workspan.dataset.record import BlockTimes, Flow, StepFigures, TaskRecord, pack, unpack
from workspan.dataset.runs import OperatorRun
from workspan.dataset.stats import DatasetSummary
from workspan.dataset.tally import OperatorTally, summarise
from workspan.dataset.text import render
from workspan.errors import DataError, NotInReportError

from .conftest import Seen, tables


def f(batch: Any) -> Any:
    return batch


class Model:
    def __call__(self, batch: Any) -> Any:
        return batch


def names(data: ws.Dataset) -> list[str]:
    return [operator.name for operator in data._plan().operators]


def test_what_fuses_and_what_does_not() -> None:
    """Names of the physical operators for each reason to keep operators apart (M60, D21, MR13)."""
    data = ws.range(10)
    assert names(data.select("id").map_batches(f).filter(ws.col("id") > 1).map_batches(f, batch_size=4)) == [
        "ReadRange->Project->MapBatches(f)->Filter((id > 1))->MapBatches(f)"
    ]
    assert names(data.map_batches(f).map_batches(Model).map_batches(f)) == [
        "ReadRange->MapBatches(f)->MapBatches(Model)",
        "MapBatches(f)",
    ]
    assert names(data.map_batches(f).map_batches(Model, concurrency=2)) == [
        "ReadRange->MapBatches(f)",
        "MapBatches(Model)",
    ]
    assert names(data.map_batches(f, concurrency=2).map_batches(f, concurrency=2)) == [
        "ReadRange",
        "MapBatches(f)->MapBatches(f)",
    ]
    assert names(data.map_batches(f, requires={"gpu": 1}).map_batches(f)) == [
        "ReadRange->MapBatches(f)",
        "MapBatches(f)",
    ]
    assert names(data.map_batches(Model).select("id").filter(ws.col("id") > 1)) == [
        "ReadRange->MapBatches(Model)->Project->Filter((id > 1))"
    ]
    assert names(data.map_batches(Model).select("id").map(f)) == ["ReadRange->MapBatches(Model)->Project", "Map(f)"]
    assert names(data.map(f).limit(3).map(f)) == ["ReadRange->Map(f)->Limit(3)", "Map(f)"]
    assert names(data.map(f).flat_map(f).options(fuse=False)) == ["ReadRange", "Map(f)", "FlatMap(f)"]
    assert (
        "not fused with the one before: MapBatches(Model) has an instance" in data.map_batches(Model).map(f).explain()
    )


@pytest.fixture
def hand_made(tmp_path: Path) -> tuple[list[OperatorRun], list[TaskRecord]]:
    """Two tasks on two nodes, three blocks."""
    (operator,) = make_plan(ws.range(4)._source, ws.range(4).map_batches(f)._ops, ws.range(4)._options).operators
    ns = [
        [1_000_000, 2_000_000, 3_000_000, 40_000_000, 5_000_000],
        [2_000_000, 0, 1_000_000, 50_000_000, 1_000_000],
        [0, 0, 0, 60_000_000, 0],
    ]
    blocks = [
        BlockTimes(100.0, 0.051, 0.02, 10, 80, 0.001, 1, ns[0]),
        BlockTimes(100.1, 0.054, 0.03, 20, 160, 0.002, 1, ns[1]),
        BlockTimes(101.0, 0.060, 0.06, 31, 248, 0.003, 2, ns[2]),
    ]
    steps = [StepFigures(3, 2, 0.001)] * 5
    flows = [Flow(2, 30, 240), Flow(2, 30, 240, 2)]
    records = [
        TaskRecord(0, "one", 11, 100.0, 0.2, blocks[:2], [0, 0, 0, 7_000_000, 0], steps, flows, 1, None),
        TaskRecord(
            1, "two", 12, 101.0, 0.5, blocks[2:], [0] * 5, steps, [Flow(1, 31, 248), Flow(1, 31, 248, 1)], 1, None,
            attempts=3, failed_seconds=0.1, replayed_seconds=0.2, backoff_seconds=1.5,
        ),
    ]  # fmt: skip
    for record in records:
        (tmp_path / f"{record.index}.record").write_bytes(pack(record))
    run = OperatorRun(operator, tmp_path, None, 2, fresh={0: 100.3, 1: 101.6})  # type: ignore[arg-type]
    return [run], records


def test_figures_equal_direct_computation(hand_made: Any) -> None:
    """Every min, max, mean, sum and count of hand-made records (A24, M71, M87, MR11, MR12)."""
    summary = summarise(hand_made[0])
    (op,) = summary.operators

    def check(figure: Figure | None, samples: list[float]) -> None:
        assert figure is not None
        found = (figure.min, figure.max, figure.mean, figure.sum, figure.count)
        assert found == pytest.approx((min(samples), max(samples), np.mean(samples), sum(samples), len(samples)))

    check(op.wall, [0.051, 0.054, 0.060])
    check(op.cpu, [0.02, 0.03, 0.06])
    check(op.transform, [0.051, 0.054, 0.060])
    check(op.input_prep, [0.003, 0.001, 0.0])
    check(op.function_body, [0.041, 0.052, 0.060])
    check(op.output_build, [0.007, 0.001, 0.0])
    check(op.user, [0.040, 0.050, 0.060])
    check(op.built_in, [0.001, 0.002, 0.0])
    check(op.serialise, [0.001, 0.002, 0.003])
    check(op.rows_per_block, [10, 20, 31])
    check(op.bytes_per_block, [80, 160, 248])
    check(op.rows_per_task, [30, 31])
    check(op.tasks_per_node, [1, 1])
    check(op.step("MapBatches(f) body").seconds, [0.040, 0.050, 0.060])
    check(op.stage("MapBatches(f)").seconds, [0.048, 0.052, 0.060])
    assert op.stage(1).total_seconds == pytest.approx(0.167)
    assert op.step(3).total_seconds == pytest.approx(0.157)
    assert op.trailing_seconds == pytest.approx(0.007)
    assert (op.tasks, op.blocks, op.nodes, op.attempts) == (2, 3, 2, 4)
    assert op.span_seconds == pytest.approx(1.5)
    assert (op.rows_in, op.rows_out, op.bytes_out) == (None, 61, 488)
    assert op.rows_per_second == pytest.approx(61 / 1.5)
    assert op.rows_per_task_second == pytest.approx(61 / 0.165)
    assert (summary.wall_seconds, summary.cpu_seconds) == (pytest.approx(0.165), pytest.approx(0.11))
    assert summary.peak_memory_bytes is None
    assert op.unsplit is None


LAYOUT = """\
Operator 1 ReadRange->MapBatches(f): 2 tasks, 3 blocks in 1.50 s
  wall time                             51.00 ms min     60.00 ms max    55.00 ms mean  165.00 ms total
  CPU time                              20.00 ms min     60.00 ms max    36.67 ms mean  110.00 ms total
  transform time                        51.00 ms min     60.00 ms max    55.00 ms mean  165.00 ms total
    input prep                           0.00 µs min      3.00 ms max     1.33 ms mean    4.00 ms total
    function body                       41.00 ms min     60.00 ms max    51.00 ms mean  153.00 ms total
    output build                         0.00 µs min      7.00 ms max     2.67 ms mean    8.00 ms total
    user functions                      40.00 ms min     60.00 ms max    50.00 ms mean  150.00 ms total
    built-in                             0.00 µs min      2.00 ms max  1000.00 µs mean    3.00 ms total
    stage 0 ReadRange                    0.00 µs min      3.00 ms max     1.67 ms mean    5.00 ms total   61 rows out
    stage 1 MapBatches(f)               48.00 ms min     60.00 ms max    53.33 ms mean  160.00 ms total   61 rows out
  after the last block                7.00 ms total
  retries                             2 more attempts, 100.00 ms failed, 200.00 ms replayed, 1.50 s waiting
  rows per block                              10 min           31 max          20 mean         61 total
  bytes per block                           80 B min        248 B max       163 B mean      488 B total
  rows per task                               30 min           31 max          30 mean         61 total
  tasks per node (2 nodes)                     1 min            1 max           1 mean
  rows                                61 out, 41/s, 370/s in one task

Dataset
  throughput                                41 rows/s
  first task to last                           1.50 s"""


def test_the_text_has_its_layout(hand_made: Any) -> None:
    """One paragraph an operator, lines without a sample left out, times to two decimals (A23, M80, M81, M82, M84)."""
    text = render(summarise(hand_made[0]))
    assert [line.split() for line in text.splitlines()] == [line.split() for line in LAYOUT.splitlines()]
    widths = {len(line) for line in text.splitlines() if line.endswith("total")}
    assert len(widths) <= 2


def test_verbose_adds_steps_and_run_time(hand_made: Any) -> None:
    """Each step, and where the driver's time went, in shares of it (A23, M83)."""
    text = render(summarise(hand_made[0], driver_seconds=2.0), verbose=True)
    assert re.search(r"3 MapBatches\(f\) body +40\.00 ms min", text)
    assert re.search(r"1 ReadRange->MapBatches\(f\) +1\.50 s +75 %", text)
    assert re.search(r"outside of the tasks +500\.00 ms +25 %", text)


def test_a_summary_survives_json(hand_made: Any) -> None:
    """To dicts and back without loss, whatever is null (M86)."""
    summary = summarise(hand_made[0], driver_seconds=2.0)
    assert DatasetSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    with pytest.raises(TypeError, match="no summary"):
        DatasetSummary.from_json({"operators": 3})


def test_figures_are_found_by_label_stage_and_number(hand_made: Any) -> None:
    """What is not there is told, with what is (M86)."""
    summary = summarise(hand_made[0])
    assert summary.operator(1) is summary.operator("ReadRange->MapBatches(f)")
    for missing in (
        lambda: summary.operator(2),
        lambda: summary.operator(1).stage("g"),
        lambda: summary.operator(1).step(9),
    ):
        with pytest.raises(NotInReportError, match="ReadRange"):
            missing()


def test_a_record_is_small_on_its_way(hand_made: Any) -> None:
    """A block of ten steps takes at most 200 bytes (M77, D40)."""
    record = hand_made[1][0]
    record.blocks = [BlockTimes(1.7e9, 0.1, 0.1, 10**6, 10**8, 0.001, 1, [10**8] * 10)]
    one = len(pack(record))
    record.blocks = record.blocks * 2
    assert len(pack(record)) - one <= 200
    assert unpack(pack(record)) == record


def test_there_is_nothing_to_tell_before_a_run() -> None:
    """Empty text and no values, and asking runs nothing (M79)."""
    seen = Seen()
    data = ws.from_arrow(tables(2)).map_batches(seen)
    assert (data.stats(), data.stats_summary(), data.report()) == ("", None, None)
    assert seen.rows == []


def test_rows_are_counted_between_operators_and_stages() -> None:
    """Rows in are the parent's rows out, a source has none, each stage tells what it left (M35, M82, M90, M100)."""
    data = ws.range(10, blocks=2).filter(ws.col("id") >= 5).map_batches(Model).map(lambda row: row)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    first, second = summary.operators
    assert (first.number, first.rows_in, first.rows_out) == (1, None, 5)
    assert (second.number, second.rows_in, second.rows_out) == (2, 5, 5)
    assert [stage.rows_out for stage in first.stages] == [10, 5, 5]
    assert summary.rows == 5
    assert "Operator 2 Map(<lambda>): 2 tasks" in data.stats()


def test_a_materialised_parent_is_shown_once_and_numbered_on() -> None:
    """The paragraphs of the parent come first, and the depth goes on from it (M79, M90)."""
    made = ws.range(10, blocks=2).map_batches(f).materialize(engine="serial", progress=False)
    child = made.map_batches(Seen("g"))
    child.to_arrow(engine="serial")
    summary = child.stats_summary()
    assert summary is not None
    assert [op.number for op in summary.operators] == [2]
    assert re.findall(r"^Operator (\d) (\S+):", child.stats(), re.M) == [
        ("1", "ReadRange->MapBatches(f)"),
        ("2", "Materialized->MapBatches(g)"),
    ]


def test_the_report_is_logged_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    """The text in the log is that of stats() (M92)."""
    data = ws.range(2).options(log_stats=True)
    with caplog.at_level(logging.INFO, "workspan.dataset"):
        data.to_arrow(engine="serial")
    assert data.stats() in [record.getMessage() for record in caplog.records]


def test_bad_batches_may_be_left_out_and_are_counted() -> None:
    """One bad batch of five: eight rows, one batch and two rows left out, the first error kept (KF-09)."""

    def fail(batch: Any) -> Any:
        if batch["x"][0] in bad:
            raise ValueError(f"bad {batch['x'][0]}")
        return batch

    bad = {4}
    data = ws.from_arrow(tables(2, 2, 2, 2, 2)).map_batches(fail, on_error="skip", max_errors=1)
    assert data.to_arrow(engine="serial").num_rows == 8
    summary = data.stats_summary()
    assert summary is not None
    stage = summary.operators[0].stage(1)
    assert (stage.errored_calls, stage.errored_rows, stage.first_error) == (1, 2, "ValueError: bad 4")
    assert "1 batches with 2 rows left out, the first: ValueError: bad 4" in data.stats()
    bad.add(6)
    with pytest.raises(DataError, match=r"MapBatches\(fail\): 2 batches failed, and max_errors=1.*bad 6"):
        data.to_arrow(engine="serial")


def test_percentiles_are_those_of_the_samples() -> None:
    """Rank error below 1 % on many samples, least and greatest exact, nothing of nothing (M88)."""

    samples = np.random.default_rng(1).permutation(20_000).astype(float)
    tally = Tally()
    for sample in samples:
        tally.add(sample)
    figure = tally.figure()
    assert figure is not None
    assert (figure.min, figure.max, figure.count) == (0, 19_999, 20_000)
    for found, q in ((figure.p50, 0.5), (figure.p90, 0.9), (figure.p99, 0.99)):
        assert found == pytest.approx(q * 20_000, abs=200)
    assert Tally().figure() is None
    assert Figure.of([]) is None


def parts(batch: Any) -> Any:
    """Fetch and decode, in two sections of which one lies within the other."""
    with ws.section("fetch"), ws.section("decode"):
        return {"id": np.sort(batch["id"])}


def part_of_row(row: Any) -> Any:
    """Have a section of a name that is also that of another function's."""
    with ws.section("fetch"):
        return row


@pytest.mark.parametrize("timing", ["phases", "total"])
def test_sections_of_a_function_are_parts_of_its_step(timing: Any) -> None:
    """A function names parts of its body, which are told below its stage, also where two have one name (M104)."""
    data = ws.range(12, blocks=2).map_batches(parts, batch_size=3).map(part_of_row).map_batches(parts)
    data = data.options(timing=timing)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    steps = summary.operators[0].steps
    found = {number: {part.name: part.calls for part in step.sections} for number, step in enumerate(steps)}
    if timing == "total":
        assert found == {0: {"fetch": 20, "decode": 8}}
        return
    bodies = [number for number, step in enumerate(steps) if step.user and step.phase == "body"]
    assert [found.pop(number) for number in bodies] == [
        {"fetch": 4, "decode": 4},
        {"fetch": 12},
        {"fetch": 4, "decode": 4},
    ]
    assert not any(found.values())
    for number in bodies:
        step = steps[number]
        assert step.total_seconds is not None
        assert 0 < sum(part.total_seconds for part in step.sections) <= step.total_seconds + 1e-6
    text = data.stats()
    told = r"\n    stage 1 MapBatches\(parts\) .*\n      fetch .* total +\d+ % of body +4 calls\n      decode "
    assert re.search(told, text)
    assert DatasetSummary.from_json(summary.to_json()) == summary


def test_sections_of_an_attempt_that_failed_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that was tried again tells the sections of the attempt that came through (M66, M104)."""
    from workspan.dataset import retry

    monkeypatch.setattr(retry.random, "uniform", lambda low, high: 0.0)
    calls = []

    def flaky(batch: Any) -> Any:
        with ws.section("decode"):
            calls.append(1)
        if len(calls) == 1:
            with ws.section("rare"):
                raise OSError("once")
        return batch

    data = ws.range(4, blocks=1).map_batches(flaky, batch_size=2, retries=1)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    told = [(part.name, part.calls) for step in summary.operators[0].steps for part in step.sections]
    assert (len(calls), told) == (3, [("decode", 2)])


def test_partial_sums_merge_in_any_order(hand_made: Any) -> None:
    """Every record by itself, put together forwards and backwards, is what one pass over all gives (M89)."""
    (run,), records = hand_made
    seen = {0: 100.3, 1: 101.6}

    def of(chosen: list[TaskRecord]) -> OperatorTally:
        tally = OperatorTally(run.operator, 99.0)
        for record in chosen:
            tally.add(record, seen_at=seen[record.index])
        return tally

    whole = of(records).summary(1)
    for order in (records, records[::-1]):
        merged = of([])
        for record in order:
            merged.merge(of([record]))
        assert merged.summary(1) == whole
    assert whole.scheduling_seconds == pytest.approx(1.0)
    assert whole.task_seen is not None
    assert whole.task_seen.max == pytest.approx(0.6)


def test_percentiles_of_items_are_those_of_all_tasks(tmp_path: Path) -> None:
    """A task of many quick pulls and one of few slow ones: not a median of medians (M99)."""
    (operator,) = make_plan(ws.range(4)._source, (), ws.range(4)._options).operators
    tally = OperatorTally(operator)
    for index, (n, ns) in enumerate([(90, 1e6), (10, 1e9)]):
        figures = StepFigures(n, n, None, False, (n, ns / 1e9, ns / 1e9, [[ns] * n]), 5, 7, 9)
        block = BlockTimes(0.0, 1.0, 1.0, 1, 8, 0.0, 1, [1, 1])
        tally.add(unpack(pack(TaskRecord(index, "n", 1, 0.0, 1.0, [block], [0, 0], [figures] * 2, [Flow()], 1, None))))
    step = tally.summary(1).step(0)
    assert step.item is not None
    assert (step.item.count, step.item.min, step.item.max) == (100, 0.001, 1.0)
    assert (step.item.p50, step.item.p90, step.item.p99) == (0.001, 0.001, 1.0)
    assert (step.cpu_seconds, step.rows, step.bytes) == (pytest.approx(1e-8), 14, 18)


def test_steps_tell_cpu_rows_and_bytes_if_asked() -> None:
    """They are null unless they were measured (M99)."""
    data = ws.range(8, blocks=2).map_batches(lambda batch: {"x": batch["id"]}).map(lambda row: row)
    for asked in (False, True):
        data = data.options(step_cpu=asked, step_sizes=asked)
        data.to_arrow(engine="serial")
        summary = data.stats_summary()
        assert summary is not None
        steps = summary.operators[0].steps
        assert [step.cpu_seconds is not None for step in steps] == [asked] * len(steps)
        assert [step.rows for step in steps] == ([8] * len(steps) if asked else [None] * len(steps))
        assert summary.operators[0].step("MapBatches(<lambda>) input prep").bytes == (64 if asked else None)
    assert "8 rows, 64 B" in data.stats(verbose=True)
    assert "  metrics" in data.stats(verbose=True)


def test_a_data_set_sums_over_all_of_its_operators(hand_made: Any, tmp_path: Path) -> None:
    """Throughput takes the span of all, each operator its own, and totals take every block (M84, M87, MR11, MR12)."""
    (first,), records = hand_made
    later = tmp_path / "later"
    later.mkdir()
    block = BlockTimes(103.0, 0.5, 0.25, 7, 56, 0.0, 1, [0] * 5)
    record = TaskRecord(0, "one", 11, 103.0, 0.5, [block], [0] * 5, records[0].steps, records[0].flows, 1, 61)
    (later / "0.record").write_bytes(pack(record))
    second = OperatorRun(first.operator, later, None, 1, fresh={0: 103.6})  # type: ignore[arg-type]
    summary = summarise([first, second], driver_seconds=5.0)
    spans = [op.span_seconds for op in summary.operators]
    assert spans == [pytest.approx(1.5), pytest.approx(0.5)]
    assert summary.span_seconds == pytest.approx(3.5)
    assert summary.rows_per_second == pytest.approx(7 / 3.5)
    assert summary.wall_seconds == pytest.approx(0.165 + 0.5)
    assert summary.cpu_seconds == pytest.approx(0.11 + 0.25)
    peaks = [
        replace(op, peak_memory=Figure(1.0, top, 2.0, 3.0, 2))
        for op, top in zip(summary.operators, (9.0, 4.0), strict=True)
    ]
    assert replace(summary, operators=tuple(peaks)).peak_memory_bytes == 9.0
    lines = [" ".join(line.split()) for line in render(summary).splitlines()]
    assert "throughput 2 rows/s" in lines
    assert "first task to last 3.50 s" in lines


class Counting:
    """Counts in each task, and is slow after its last batch."""

    def begin_task(self) -> None:
        self.rows = 0

    def __call__(self, batch: Any) -> Any:
        self.rows += len(batch["id"])
        yield batch
        time.sleep(0.002)

    def end_task(self) -> int:
        return self.rows


def test_a_task_tells_all_of_itself(tmp_path: Path) -> None:
    """Begin by the clock of the world, wall, CPU, blocks, what came after them, setup (M71, M72, M74)."""
    before = time.time()
    data = ws.range(10, blocks=2).options(block_rows=2).map_batches(Counting)
    run = data._execute({"engine": "serial"}, "drop")
    after = time.time()
    (records,) = run.records
    assert [len(record.blocks) for record in records] == [3, 3]
    for record in records:
        assert before - 0.001 <= record.started_at <= after
        times = [block.started_at for block in record.blocks]
        assert times == sorted(times)
        assert all(record.started_at - 0.001 <= start <= after for start in times)
        assert record.wall_seconds >= sum(block.wall_seconds for block in record.blocks)
        assert all(0 <= block.cpu_seconds <= after - before for block in record.blocks)
        assert record.trailing_ns is not None
        assert sum(record.trailing_ns) >= 0
        assert record.statistics == [None, 5]
        assert record.pid == os.getpid()
    assert records[0].setup_seconds[1] is not None
    assert records[0].started_at <= records[1].started_at


def test_memory_is_told_where_it_was_measured(tmp_path: Path) -> None:
    """Null without, and the peak of the blocks as of any run with; the line is left out of the text (M73, D40)."""
    data = ws.range(4, blocks=2).map_batches(f)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    assert summary.peak_memory_bytes is None
    assert "peak memory" not in data.stats()
    data.to_arrow(engine="serial", tracking_path=tmp_path / "run", resource_tracking=True)
    summary = data.stats_summary()
    assert summary is not None
    assert summary.operators[0].peak_memory is not None
    assert summary.operators[0].peak_memory.count == 2
    assert (summary.peak_memory_bytes or 0) > 1 << 20
    (line,) = [line for line in data.stats().splitlines() if "peak memory" in line]
    assert "total" not in line
