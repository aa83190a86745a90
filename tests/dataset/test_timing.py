"""What a dataset says of its steps is what they took."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import workspan as ws
from workspan.dataset import sinks
from workspan.dataset.dataset import Dataset
from workspan.dataset.stats import DatasetSummary, OperatorSummary
from workspan.dataset.text import render

from .conftest import FakeTime, Seen, tables


def run(dataset: Dataset) -> OperatorSummary:
    """Run in this process; return its one operator."""
    dataset._execute({"engine": "serial"}, "drop")
    summary = dataset.stats_summary()
    assert summary is not None
    (operator,) = summary.operators
    return operator


def test_user_functions_take_what_they_sleep(fake: FakeTime) -> None:
    """The RFC's table: 0.6 s of functions in two blocks, each stage its own part, and nothing besides (A1, A4)."""
    data = ws.range(4, blocks=2).select("id")
    data = data.map_batches(fake.sleeper(0.1, "map1")).map_batches(fake.sleeper(0.2, "map2"))
    operator = run(data)
    assert operator.name == "ReadRange->Project->MapBatches(map1)->MapBatches(map2)"
    assert operator.user is not None
    assert operator.transform is not None
    assert operator.wall is not None
    assert operator.user.sum == pytest.approx(0.6)
    assert operator.stage(2).total_seconds == pytest.approx(0.2)
    assert operator.stage(3).total_seconds == pytest.approx(0.4)
    assert operator.transform.sum == pytest.approx(operator.wall.sum)
    assert "user functions" in data.stats()


def test_a_real_clock_agrees() -> None:
    """Really slept time is the user's, hardly less than the transform, which is hardly less than the wall (A1, A4)."""
    slept: list[float] = []

    def sleep(batch: Any) -> Any:
        begin = time.perf_counter()
        time.sleep(0.05)
        slept.append(time.perf_counter() - begin)
        return batch

    data = ws.range(4, blocks=2).map_batches(sleep).map_batches(sleep)
    run(data)
    for _ in range(5):  # the machine may have been busy elsewhere
        slept.clear()
        operator = run(data)
        assert operator.user is not None
        assert operator.transform is not None
        assert operator.wall is not None
        assert sum(slept) <= operator.user.sum <= operator.transform.sum <= operator.wall.sum
        if operator.user.sum <= sum(slept) * 1.03 and operator.transform.sum >= 0.995 * operator.wall.sum:
            return
    raise AssertionError((operator.user, operator.transform, operator.wall, slept))


def test_a_write_is_timed_like_any_other_body(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, fake: FakeTime) -> None:
    """A sink that sleeps is built-in time of its stage, and no user's (A2, MR5)."""
    original = sinks.parquet_writer

    def slow(*args: Any, **kwargs: Any) -> Any:
        fake.sleep(0.3)
        return original(*args, **kwargs)

    monkeypatch.setattr(sinks, "PARQUET", (*sinks.PARQUET[:2], slow, sinks.PARQUET[3]))
    made = ws.range(4, blocks=2).write_parquet(tmp_path / "out", engine="serial", progress=False)
    (operator,) = made.stats_summary().operators
    figures = (operator.built_in, operator.user, operator.input_prep, operator.output_build)
    assert [figure.sum if figure else None for figure in figures] == pytest.approx([0.6, 0, 0, 0])
    assert operator.stage("WriteParquet").total_seconds == pytest.approx(0.6)


def test_a_chain_without_user_functions_has_no_user_time() -> None:
    """Reading alone: the user's time is exactly 0, the phases are numbers, the whole is above 0 (A3, MR6)."""
    operator = run(ws.range(1000, blocks=2))
    assert operator.user is not None
    assert operator.user.sum == 0.0
    assert operator.transform is not None
    assert operator.transform.sum > 0
    assert operator.input_prep is not None
    assert operator.function_body is not None
    assert operator.output_build is not None


@pytest.mark.parametrize("stages", [1, 3, 6])
def test_stages_never_count_each_other(stages: int, fake: FakeTime) -> None:
    """However many stages there are, their times add up to what was slept and to the wall (A6, A7, MR1, KF-01)."""
    slept = [0.05 * (1 + n % 3) for n in range(stages)]
    data = ws.range(4, blocks=4)
    for number, seconds in enumerate(slept):
        data = data.map_batches(fake.sleeper(seconds, f"f{number}"))
    operator = run(data)
    assert operator.user is not None
    assert operator.wall is not None
    assert operator.user.sum == pytest.approx(4 * sum(slept))
    assert operator.wall.sum == pytest.approx(4 * sum(slept))
    for number, seconds in enumerate(slept, 1):
        assert operator.stage(number).total_seconds == pytest.approx(4 * seconds)


@pytest.mark.parametrize("rows", [(8,), (0, 0, 8)])
def test_the_peek_of_auto_is_charged_where_the_work_is(rows: tuple[int, ...], fake: FakeTime) -> None:
    """A function before a stage of automatic batches keeps its own time (A11, M48, MR4)."""
    g = Seen("g")
    data = ws.from_arrow(tables(*rows)).options(batch_bytes=16).map_batches(fake.sleeper(0.05, "f"))
    data = data.map_batches(g, batch_size="auto")
    operator = run(data)
    assert operator.step("MapBatches(f) body").total_seconds == pytest.approx(0.05)
    assert operator.step("MapBatches(g) input prep").total_seconds == 0.0
    assert g.rows == [2, 2, 2, 2]
    assert data.to_arrow(engine="serial").column("x").to_pylist() == list(range(8))


def test_blocks_and_trailing_time_add_up_to_the_task(fake: FakeTime) -> None:
    """For every step, its blocks and what came after the last of them are the whole (M13, M18, M78, KF-02)."""

    def five(batch: dict[str, Any]) -> Any:
        for _ in range(5):
            fake.sleep(0.1)
            yield batch
        fake.sleep(0.3)

    data = ws.range(4, blocks=1).options(block_bytes=31).map_batches(five)
    operator = run(data)
    assert data._last is not None
    ((record,),) = data._last.records
    body = next(n for n, step in enumerate(data._last.steps[0]) if step.label == "MapBatches(five) body")
    assert [block.self_ns[body] for block in record.blocks if block.self_ns] == [100_000_000] * 5
    assert record.trailing_ns is not None
    assert record.trailing_ns[body] == 300_000_000
    assert operator.step(body).total_seconds == pytest.approx(0.8)
    assert [block.wall_seconds for block in record.blocks] == pytest.approx([0.1] * 5)
    assert record.wall_seconds == pytest.approx(0.8)
    assert operator.trailing_seconds == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("timing", "phases", "stages", "steps"),
    [
        ("auto", True, True, True),
        ("phases", True, True, True),
        ("stages", False, True, True),
        ("total", False, False, True),
        ("off", False, False, False),
    ],
)
def test_timing_is_as_fine_as_asked(timing: Any, phases: bool, stages: bool, steps: bool) -> None:
    """Not measured is None and no 0, and the data is the same whatever is measured (A21, M39, M41, M106, KF-03)."""
    data = ws.range(10, blocks=2).map(lambda row: {"y": row["id"] + 1}).options(timing=timing)
    assert data.to_arrow(engine="serial").column("y").to_pylist() == list(range(1, 11))
    summary = data.stats_summary()
    assert summary is not None
    operator = summary.operators[0]
    assert (operator.input_prep is not None) == phases
    assert (operator.stage(1).total_seconds is not None) == stages
    assert (operator.transform is not None) == steps
    if phases:
        parts = (operator.input_prep, operator.function_body, operator.output_build)
        assert sum(part.sum for part in parts if part) == pytest.approx(operator.transform.sum, abs=1e-6)  # type: ignore[union-attr]


def test_stages_of_rows_are_folded_without_a_native_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, and the plan says so; a stage or a dataset may ask for its phases (D7, M31, M98)."""
    from workspan.measure import timers

    monkeypatch.setattr(timers, "NATIVE", False)
    data = ws.range(10).map(lambda row: row).map_batches(lambda batch: batch)
    assert data.explain().count("Map(<lambda>) stage") == 1
    assert "timed as a whole, as there is no native timer" in data.explain()
    operator = run(data)
    assert operator.unsplit is not None
    assert operator.step("MapBatches(<lambda>) body").phase == "body"
    for split in (data.options(timing="phases"), ws.range(10).map(lambda row: row, timing="phases")):
        assert "as a whole" not in split.explain()
        assert "Map(<lambda>) body" in split.explain()


def test_timers_of_row_chains_cost_next_to_nothing() -> None:
    """Windows lie around thousands of rows, so that steps are timed for less than 2 %, as calibrated (M97, M98)."""
    data = ws.range(20_000, blocks=2).options(timing="phases").map(lambda row: row).filter(lambda row: True)
    operator = run(data)
    assert operator.transform is not None
    assert operator.overhead_seconds is not None
    assert 0 < operator.overhead_seconds < 0.02 * operator.transform.sum
    (line,) = [line for line in data.stats(verbose=True).splitlines() if "timers, estimated" in line]
    assert line.endswith(f"{100 * operator.overhead_seconds / operator.transform.sum:.2f} %")
    assert "timers" not in data.stats()


def test_timers_that_cost_much_are_told_with_the_remedy() -> None:
    """From 2 % of the transform on, without being asked, and how to pay less (M98)."""
    data = ws.range(4, blocks=1)
    operator = run(data)
    assert operator.transform is not None
    for share, told in ((0.019, False), (0.021, True)):
        dear = replace(operator, overhead_seconds=share * operator.transform.sum)
        text = render(DatasetSummary((dear,), 4, 1.0))
        assert ('timing="stages" or "total" costs less' in text) is told


def test_one_stage_may_be_timed_as_a_whole() -> None:
    """A folded row stage is unsplit time, the others keep their phases, and the sum is the total (A22, M40, M106)."""
    data = ws.range(10, blocks=2).map(lambda row: row, timing="stages").map_batches(lambda batch: batch)
    operator = run(data)
    assert operator.unsplit is not None
    assert operator.unsplit.sum > 0
    parts = (operator.input_prep, operator.function_body, operator.output_build, operator.unsplit)
    assert sum(part.sum for part in parts if part) == pytest.approx(operator.transform.sum, abs=1e-6)  # type: ignore[union-attr]
    assert operator.approximate


def test_one_function_used_three_times_is_three_stages() -> None:
    """Uses are told apart by their position, and their shares are below the whole (KF-12, M43)."""

    def f(row: Any) -> Any:
        return row

    data = ws.range(2, blocks=2).map(f).map(f).filter(lambda row: True).map(f)
    operator = run(data)
    uses = [stage for stage in operator.stages if stage.name == "Map(f)"]
    assert [stage.stage for stage in uses] == [1, 2, 4]
    assert [stage.calls for stage in uses] == [2, 2, 2]
    assert sum(stage.total_seconds or 0.0 for stage in operator.stages) == pytest.approx(
        operator.transform.sum, abs=1e-3
    )  # type: ignore[union-attr]


def test_names_never_show_an_address() -> None:
    """Functions, methods, partials, classes and objects are named so that two runs agree (M43)."""

    class Model:
        def __call__(self, batch: Any) -> Any:
            return batch

        def predict(self, batch: Any) -> Any:
            return batch

    data = ws.range(1)
    model = Model()
    names = [data.map_batches(f)._ops[0].name for f in (run, model.predict, partial(run, 1), Model, model)]
    assert names == [
        "MapBatches(run)",
        "MapBatches(Model.predict)",
        "MapBatches(run)",
        "MapBatches(Model)",
        "MapBatches(Model)",
    ]


def test_the_steps_can_be_seen_before_anything_runs() -> None:
    """The plan shows tasks, batches and the table of steps, and calls nothing (M2, M102, KF-06)."""

    def never(batch: Any) -> Any:
        raise AssertionError

    text = ws.range(10, blocks=5).map_batches(never, batch_size=4).explain()
    assert "3 tasks of up to 2 pieces" in text
    assert "batches of 4 rows" in text
    assert "MapBatches(never) output build" in text
    assert "one batch a block" in ws.range(10).map_batches(never).explain()


def test_stamps_are_of_one_clock_with_an_anchor(fake: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reads its wall clock once a task, so a clock that is set meanwhile moves no stamp (M74)."""
    wall = [1e9]
    monkeypatch.setattr(fake, "time", lambda: wall[0] + fake.perf_counter())

    def set_back(batch: Any) -> Any:
        fake.sleep(0.5)
        wall[0] -= 3600.0
        return batch

    data = ws.from_arrow(tables(4)).options(block_bytes=7).map_batches(set_back, batch_size=1)
    operator = run(data)
    assert data._last is not None
    ((record,),) = data._last.records
    assert [block.started_at for block in record.blocks] == pytest.approx(
        [1e9, 1e9 + 0.5, 1e9 + 1.0, 1e9 + 1.5], abs=1e-3
    )
    assert operator.span_seconds == pytest.approx(2.0)
