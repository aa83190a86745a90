"""What a dataset says of its steps is what they took."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import workspan as ws
from workspan.dataset.dataset import Dataset
from workspan.dataset.stats import OperatorSummary

from .conftest import Seen, Sleeper, tables


def run(dataset: Dataset) -> OperatorSummary:
    """Run in this process, twice so that nothing is imported in the run that counts; return its one operator."""
    dataset.count(engine="serial")
    dataset._execute({"engine": "serial"}, "keep")
    summary = dataset.stats_summary()
    assert summary is not None
    (operator,) = summary.operators
    return operator


def test_user_functions_take_what_they_sleep() -> None:
    """The RFC's table: 0.6 s of functions in two blocks, each stage its own part, hardly anything besides (A1, A4)."""
    map1, map2 = Sleeper(0.1, "map1"), Sleeper(0.2, "map2")
    data = ws.range(4, blocks=2).select("id").map_batches(map1).map_batches(map2)
    operator = run(data)
    assert operator.name == "ReadRange->Project->MapBatches(map1)->MapBatches(map2)"
    slept = sum(map1.slept[2:]) + sum(map2.slept[2:])
    assert operator.user is not None
    assert operator.transform is not None
    assert operator.wall is not None
    assert slept <= operator.user.sum <= slept * 1.03
    assert operator.stage(2).total_seconds == pytest.approx(sum(map1.slept[2:]), rel=0.03)
    assert operator.stage(3).total_seconds == pytest.approx(sum(map2.slept[2:]), rel=0.03)
    assert 0.99 <= operator.transform.sum / operator.wall.sum <= 1.0


def test_a_write_is_timed_like_any_other_body(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that sleeps is built-in time of its stage, and no user's (A2, MR5)."""
    import time

    from workspan.dataset import sinks

    original = sinks.parquet_writer

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return original(*args, **kwargs)

    monkeypatch.setattr(sinks, "parquet_writer", slow)
    data = ws.range(4, blocks=2)
    data.write_parquet(tmp_path / "warm", engine="serial", progress=False)
    made = data.write_parquet(tmp_path / "out", engine="serial", progress=False)
    (operator,) = made.stats_summary().operators
    assert operator.built_in is not None
    assert operator.user is not None
    assert operator.input_prep is not None
    assert operator.output_build is not None
    assert operator.built_in.sum >= 0.2
    assert operator.stage("WriteParquet").total_seconds == pytest.approx(operator.built_in.sum, rel=0.1)
    assert operator.user.sum == 0.0
    assert operator.input_prep.sum + operator.output_build.sum < 0.01


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
def test_stages_never_count_each_other(stages: int) -> None:
    """However many equal stages there are, their times add up to what was slept (A6, A7, MR1, KF-01)."""
    sleepers = [Sleeper(0.01 * (1 + n % 3), f"f{n}") for n in range(stages)]
    data = ws.range(2, blocks=2)
    for sleeper in sleepers:
        data = data.map_batches(sleeper)
    operator = run(data)
    assert operator.user is not None
    assert operator.wall is not None
    slept = sum(sum(s.slept[2:]) for s in sleepers)
    assert slept <= operator.user.sum <= slept * 1.06
    assert operator.user.sum <= operator.wall.sum
    for number, sleeper in enumerate(sleepers, 1):
        assert operator.stage(number).total_seconds == pytest.approx(sum(sleeper.slept[2:]), rel=0.1)


@pytest.mark.parametrize("rows", [(8,), (0, 0, 8)])
def test_the_peek_of_auto_is_charged_where_the_work_is(rows: tuple[int, ...]) -> None:
    """A function before a stage of automatic batches keeps its own time (A11, M48, MR4)."""
    f, g = Sleeper(0.05, "f"), Seen("g")
    data = ws.from_arrow(tables(*rows)).options(batch_bytes=16).map_batches(f).map_batches(g, batch_size="auto")
    operator = run(data)
    assert operator.step("MapBatches(f) body").total_seconds >= 0.05  # type: ignore[operator]
    assert operator.step("MapBatches(g) input prep").total_seconds < 0.005  # type: ignore[operator]
    assert g.rows[len(g.rows) // 2 :] == [2, 2, 2, 2]
    assert data.to_arrow(engine="serial").column("x").to_pylist() == list(range(8))


def test_blocks_and_trailing_time_add_up_to_the_task() -> None:
    """For every step, its blocks and what came after the last of them are the whole (M13, M18, M78, KF-02)."""
    import time

    def five(batch: dict[str, Any]) -> Any:
        for _ in range(5):
            time.sleep(0.01)
            yield batch
        time.sleep(0.03)

    data = ws.range(3, blocks=1).options(block_rows=3).map_batches(five)
    data._execute({"engine": "serial"}, "drop")
    assert data._last is not None
    (record,) = data._last.records[0]
    assert [block.rows for block in record.blocks] == [3] * 5
    own = [block.self_ns for block in record.blocks]
    body = next(n for n, s in enumerate(data._last.steps[0]) if s.label == "MapBatches(five) body")
    assert all(ns is not None and ns[body] >= 8e6 for ns in own)
    assert record.trailing_ns is not None
    assert sum(record.trailing_ns) + sum(sum(ns) for ns in own if ns) == sum(
        sum(ns[n] for ns in own if ns) + record.trailing_ns[n] for n in range(len(record.trailing_ns))
    )


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
