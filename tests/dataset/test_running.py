"""How a dataset is executed: in worker processes, in order or not, with retries, and with a bound on what piles up."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import workspan as ws
from helpers.lateness import Lateness
from workspan.dataset.execute import Execution, RunOptions
from workspan.dataset.stream import Backlog, Iteration
from workspan.errors import MapError, WorkspanError

from .conftest import FakeTime, Seen, tables


class Model:
    """Counts how often it is made, in a file."""

    def __init__(self, folder: Path) -> None:
        (folder / f"{os.getpid()}.{id(self)}").touch()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "pid": np.full(len(batch["id"]), os.getpid())}


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "y": 2 * batch["id"]}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One pipeline on both engines: rows and summaries."""
    found: dict[str, Any] = {}
    with contextlib.chdir(tmp_path_factory.mktemp("both")):  # made before the folder of a test is entered
        return _both(found)


def _both(found: dict[str, Any]) -> dict[str, Any]:
    folder = Path.cwd()
    for engine in ("serial", "processes"):
        note = folder / engine

        def slow(batch: dict[str, Any], note: Path = note) -> dict[str, Any]:
            begin = time.perf_counter()
            time.sleep(0.02)
            with note.open("a") as file:
                file.write(f"{time.perf_counter() - begin}\n")
            return batch

        data = ws.range(40, blocks=4).map_batches(double, batch_size=7).map_batches(slow)
        data = data.map(lambda row: {"z": row["y"] + 1})
        data = data.filter(ws.col("z") > 20)
        table = data.to_arrow(engine=engine, max_workers=2)
        found[engine] = table, data.stats_summary(), data.stats(), sum(map(float, note.read_text().split()))
    return found


def test_every_engine_gives_the_same_rows_and_counts(both: dict[str, Any]) -> None:
    """Rows, calls and blocks agree to the last one, and so do the steps that are timed (A25, M105)."""
    (table, one, *_), (other, two, *_) = both["serial"], both["processes"]
    assert table.equals(other)
    assert table.column("z").to_pylist() == [2 * n + 1 for n in range(10, 40)]
    for mine, yours in zip(one.operators, two.operators, strict=True):
        assert [s.label for s in mine.steps] == [s.label for s in yours.steps]
        assert [(s.rows_out, s.calls, s.blocks_out) for s in mine.stages] == [
            (s.rows_out, s.calls, s.blocks_out) for s in yours.stages
        ]
        assert [s.pulls for s in mine.steps] == [s.pulls for s in yours.steps]


def test_every_engine_takes_as_long_for_a_step(both: dict[str, Any]) -> None:
    """Self times of each step agree to 5 % or 5 ms (M105), in the block of each that the machine disturbed least.

    What sleeps is woken late on a busy machine, and is held against what it measured itself.
    """
    one, two = (both[engine][1].operators[0].steps for engine in ("serial", "processes"))
    for mine, yours in zip(one, two, strict=True):
        assert mine.seconds is not None
        assert yours.seconds is not None
        if mine.label != "MapBatches(slow) body":
            assert mine.seconds.min == pytest.approx(yours.seconds.min, rel=0.05, abs=0.005), mine.label
    for engine in ("serial", "processes"):
        slow_step = both[engine][1].operators[0].step("MapBatches(slow) body")
        slept = both[engine][3]
        assert slept >= 6 * 0.02  # six batches
        assert slow_step.total_seconds == pytest.approx(slept, rel=0.05, abs=0.005)


def test_steps_are_sections_of_the_report(both: dict[str, Any]) -> None:
    """The report of the run has the steps of every block, by the same labels and with the same times."""
    data = ws.range(4, blocks=2).map_batches(double)
    apart = []
    for _ in range(5):  # the least of them: what comes between the two readings of a busy machine is in neither
        data.to_arrow(engine="serial")
        report, summary = data.report(), data.stats_summary()
        assert report is not None
        assert summary is not None
        (task,) = report.tasks.values()
        steps = summary.operators[0].steps
        assert steps
        apart.append(max(abs(task.steps[step.label].self_seconds.total - step.total_seconds) for step in steps))
    assert min(apart) < 2e-3


def test_a_class_is_made_once_a_worker(tmp_path: Path) -> None:
    """Two workers, six tasks: at most two instances; making them is setup and in no step (M75)."""
    data = ws.range(6, blocks=6).map_batches(Model, constructor_args=(tmp_path,), concurrency=2)
    assert [op.name for op in data._plan().operators] == ["ReadRange", "MapBatches(Model)"]
    pids = set(data.to_arrow(engine="processes").column("pid").to_pylist())
    made = sorted(int(name.split(".")[0]) for name in os.listdir(tmp_path) if name[0].isdigit())
    assert set(made) >= pids
    assert len(made) == len(set(made)) <= 2
    assert os.getpid() not in made
    summary = data.stats_summary()
    assert summary is not None
    setup = summary.operators[1].setup
    assert setup is not None
    assert setup.count == len(pids)


def test_a_worker_that_dies_loses_no_row(tmp_path: Path) -> None:
    """The task of a dead worker is done by another one: every row is written once (D20)."""
    marker = tmp_path / "died"

    def die_once(batch: Any) -> Any:
        if batch["id"][0] == 2 and not marker.exists():
            marker.touch()
            os._exit(9)
        return batch

    run = ws.range(6, blocks=3).map_batches(die_once).write_parquet(tmp_path / "out", max_workers=1, progress=False)
    assert marker.exists()
    assert ws.read_parquet(tmp_path / "out").to_arrow(engine="serial").column("id").to_pylist() == list(range(6))
    (task,) = run.report().tasks.values()  # type: ignore[union-attr]
    assert (task.blocks.failed, task.blocks.failures) == (0, 1)
    assert sorted(name for name in os.listdir(tmp_path / "out") if name.startswith(".")) == []


def test_an_error_in_a_worker_is_told_and_is_of_its_type() -> None:
    """Type, text, operator, block and traceback come home; nothing is unpickled from the worker (D19, M67)."""

    def fail(batch: Any) -> Any:
        if batch["id"][0] == 2:
            raise ZeroDivisionError("no such flight")
        return batch

    data = ws.range(4, blocks=4).map_batches(fail)
    with pytest.raises(ZeroDivisionError, match="no such flight") as caught:
        data.to_arrow(engine="processes", max_workers=1)
    error = caught.value
    assert isinstance(error, MapError)
    assert isinstance(error, WorkspanError)
    assert error.type_name == "ZeroDivisionError"
    assert "in MapBatches(fail), block 2 (rows 2 to 3)" in str(error)
    assert "raise ZeroDivisionError" in error.traceback_text
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ZeroDivisionError)
    assert str(again) == str(error)
    summary = data.stats_summary()
    assert summary is not None
    assert summary.operators[0].tasks == 3
    report = data.report()
    assert report is not None
    (task,) = report.tasks.values()
    assert (task.blocks.failed, task.blocks.failures) == (1, 1)


# -- retries ----------------------------------------------------------------------------------------------------------


class Flaky:
    """Fails on its first calls with the rows of the second block."""

    def __init__(self, failures: int, error: type[Exception] = OSError) -> None:
        self.failures, self.error = failures, error
        self.calls = 0
        self.__name__ = "flaky"

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if batch["x"][0] == 2 and self.failures:
            self.failures -= 1
            raise self.error("transient fault 17")
        return batch


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Do not wait before another attempt; return how long it would have been at most."""
    from workspan.dataset import retry

    found: list[float] = []
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: found.append(high) or 0.0)
    return found


def test_a_transient_error_is_tried_again(pauses: list[float]) -> None:
    """Two failures and three retries: all rows once, five calls, three attempts (KF-08, A20, M61, M62)."""
    flaky = Flaky(2)
    data = ws.from_arrow(tables(2, 2, 2)).map_batches(flaky, retries=3)
    assert data.to_arrow(engine="serial").column("x").to_pylist() == list(range(6))
    assert flaky.calls == 5
    summary = data.stats_summary()
    assert summary is not None
    assert summary.operators[0].attempts == 5
    assert summary.operators[0].failed_seconds > 0
    assert pauses == [2.0, 4.0]


def test_a_wait_before_another_attempt_can_be_interrupted(tmp_path: Path) -> None:
    """After Ctrl-C no worker waits on to try again, which may take half a minute, nor until it is killed (M62)."""
    failed = tmp_path / "failed"

    def fails(batch: Any) -> Any:
        failed.touch()
        raise OSError("transient fault 17")

    late = Lateness()

    def interrupt() -> None:
        while not failed.exists():
            ended.wait(0.01)
        late.__enter__()
        os.kill(os.getpid(), signal.SIGINT)

    ended = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ws.from_arrow(tables(2)).map_batches(fails, retries=9).to_arrow(max_workers=1, progress=False)
        late.__exit__(None, None, None)
        assert late.elapsed < 3.0  # of the 5 s in which workers may finish what they hold
    finally:
        failed.touch()
        thread.join()


def test_exhausted_retries_raise_the_original(pauses: list[float]) -> None:
    """The type stays, and attempts, limit and the settings are told (KF-08, M67)."""
    with pytest.raises(OSError, match="transient fault 17") as caught:
        ws.from_arrow(tables(2, 2, 2)).map_batches(Flaky(9), retries=1).to_arrow(engine="serial")
    assert any("2 attempts" in note and "max_map_retries=1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("patterns", "retried"),
    [
        (True, True),
        (["fault 17"], True),
        (["OSError: tr"], True),
        ([r"fault \d+"], True),
        (["[bad"], False),
        (["x"], False),
    ],
)
def test_patterns_choose_what_is_tried_again(patterns: Any, retried: bool, pauses: list[float]) -> None:
    """Substring, then regular expression, of type and text; an invalid one matches nothing (M61)."""
    data = ws.from_arrow(tables(2, 2)).options(
        max_map_retries=1, retried_map_errors=patterns if patterns is True else tuple(patterns)
    )
    data = data.map_batches(Flaky(1))
    if retried:
        assert data.to_arrow(engine="serial").num_rows == 4
    else:
        with pytest.raises(OSError, match="transient"):
            data.to_arrow(engine="serial")


@pytest.mark.parametrize("settings", [{"max_map_retries": 3}, {"retried_map_errors": True}])
def test_both_settings_are_needed(settings: Any) -> None:
    """Without either a failure is final, and the exception is not touched (M62, M68, MR9)."""
    flaky = Flaky(1)
    with pytest.raises(OSError, match="transient") as caught:
        ws.from_arrow(tables(2, 2)).options(**settings).map_batches(flaky).to_arrow(engine="serial")
    assert flaky.calls == 2
    assert caught.value.__notes__ == ["in MapBatches(flaky), block 1 (table 1)"]


def test_delivered_blocks_are_not_delivered_again(pauses: list[float], fake: FakeTime) -> None:
    """What an attempt repeats is dropped and reported apart; the next block's time is its own (A20, M63, M66, MR10)."""
    calls: list[int] = []

    def f(batch: Any) -> Any:
        calls.append(int(batch["x"][0]))
        fake.sleep(0.05)
        if len(calls) == 3:
            raise OSError("once")
        return batch

    data = ws.from_arrow(tables(4)).options(block_bytes=7).map_batches(f, batch_size=1, retries=1)
    assert data.to_arrow(engine="serial").column("x").to_pylist() == [0, 1, 2, 3]
    assert calls == [0, 1, 2, 0, 1, 2, 3]
    assert data._last is not None
    ((record,),) = data._last.records
    assert [(block.rows, block.attempt) for block in record.blocks] == [(1, 1), (1, 1), (1, 2), (1, 2)]
    assert [block.wall_seconds for block in record.blocks] == pytest.approx([0.05] * 4)
    assert [sum(block.self_ns or ()) for block in record.blocks] == [50_000_000] * 4
    assert (record.attempts, record.failed_seconds, record.replayed_seconds) == (
        2,
        pytest.approx(0.05),
        pytest.approx(0.1),
    )
    assert record.wall_seconds == pytest.approx(0.35)
    assert "1 more attempts, 50.00 ms failed, 100.00 ms replayed" in data.stats()


def test_failed_and_accepted_time_are_apart(pauses: list[float], fake: FakeTime) -> None:
    """Five calls of 0.05 s, of which two failed: 0.15 s accepted, 0.10 s failed (KF-08)."""
    flaky = Flaky(2)

    def f(batch: Any) -> Any:
        fake.sleep(0.05)
        return flaky(batch)

    data = ws.from_arrow(tables(2, 2, 2)).map_batches(f, retries=3)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    (operator,) = summary.operators
    assert operator.user is not None
    assert (operator.user.sum, operator.failed_seconds) == (pytest.approx(0.15), pytest.approx(0.10))


def test_an_attempt_that_does_something_else_cannot_take_over(pauses: list[float]) -> None:
    """The rows of repeated blocks are checked against those delivered (M64)."""
    calls: list[int] = []

    def f(batch: Any) -> Any:
        calls.append(1)
        for n in range(3):
            if n == 2 and len(calls) == 1:
                raise OSError("once")
            yield {"x": np.zeros(11 if len(calls) == 1 else 14)}

    data = ws.from_arrow(tables(4)).options(block_bytes=80).map_batches(f, retries=1)
    with pytest.raises(ValueError, match=r"attempt 2 made 14 rows as block 0 and an attempt before 11"):
        data.to_arrow(engine="serial")


# -- streaming --------------------------------------------------------------------------------------------------------


def test_batches_come_in_order_while_the_run_goes_on() -> None:
    """The first batch is there before the last task has begun, and the rows are in order (M59)."""
    last = threading.Event()

    def f(batch: Any) -> Any:
        if batch["id"][0] == 90:
            assert last.wait(20)
        return batch

    data = ws.range(100, blocks=10).map_batches(f)
    rows: list[int] = []
    for batch in data.iter_batches(batch_size=25, engine="serial"):
        assert batch["id"].shape == (25,)
        rows += batch["id"].tolist()
        last.set()
    assert rows == list(range(100))
    summary = data.stats_summary()
    assert summary is not None
    assert summary.iteration is not None
    assert (summary.iteration.batches, summary.iteration.rows) == (4, 100)


def test_workers_wait_for_a_slow_consumer() -> None:
    """Not more results pile up than were asked for, and the waiting is a section of its own (M11)."""
    seen = Seen()
    data = ws.range(12, blocks=12).map_batches(lambda batch: seen({"x": batch["id"]}))
    most = 0
    for taken, _ in enumerate(data.iter_batches(engine="serial", ahead=2), 1):
        most = max(most, len(seen.rows) - taken)
    assert len(seen.rows) == 12
    assert most <= 4  # two that wait, one that runs, one that was taken


def test_a_consumer_that_stops_ends_the_run() -> None:
    """Closing the iterator ends workers and folder; what was not needed did not run (M27)."""
    seen = Seen()
    batches = ws.range(50, blocks=50).map_batches(seen).iter_batches(engine="serial", ahead=1)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(seen.rows) < 10
    assert not [thread for thread in threading.enumerate() if thread.name == "workspan-dataset"]


def test_an_error_reaches_the_consumer_after_the_rows_before_it() -> None:
    """Blocks before the failed one are yielded, then its exception is raised."""

    def f(batch: Any) -> Any:
        if batch["id"][0] == 3:
            raise LookupError("three")
        return batch

    rows: list[int] = []
    found = ws.range(5, blocks=5).map_batches(f).iter_rows(engine="serial")
    with pytest.raises(LookupError, match="three"):
        rows.extend(row["id"] for row in found)
    assert rows == [0, 1, 2]


def test_unordered_rows_are_all_there() -> None:
    """With ordered=False every row comes once, in whatever order."""
    rows = [row["id"] for row in ws.range(20, blocks=5).iter_rows(ordered=False, engine="serial")]
    assert sorted(rows) == list(range(20))


def test_results_are_mapped_and_gone_with_their_tables() -> None:
    """Nothing is left of a run but the tables, whose pages are mapped and were not copied."""
    before = set(os.listdir(os.environ.get("TMPDIR", "/tmp")))
    allocated = pa.total_allocated_bytes()
    table = ws.range(400_000, blocks=4).to_arrow(engine="serial")
    assert pa.total_allocated_bytes() - allocated < 400_000
    assert table.num_rows == 400_000
    gc.collect()
    left = set(os.listdir(os.environ.get("TMPDIR", "/tmp"))) - before
    assert not [name for name in left if name.startswith("workspan-dataset")]


def test_workers_are_held_only_while_the_next_result_is_there(tmp_path: Path) -> None:
    """A late first result never holds the run, however much lies there (no deadlock after a lost worker)."""
    hold = tmp_path / "hold"
    backlog = Backlog(tmp_path, 2, ordered=True)
    for index in (1, 2, 3):
        backlog.came(index)
    assert not hold.exists()
    backlog.came(0)
    assert hold.exists()
    for index in (0, 1):
        backlog.went(index)
    assert hold.exists()
    backlog.went(2)
    assert not hold.exists()
    backlog.came(4)
    backlog.came(5)
    backlog.close()
    assert not hold.exists()


def test_the_parts_of_an_iteration_are_the_whole() -> None:
    """Ten batches, 0.2 s of waiting and 0.1 s of the consumer's each: 2.0 and 1.0 of 3.0 s (KF-11, M85)."""
    now = [0.0]

    def source() -> Any:
        for table in tables(*[1] * 10):
            now[0] += 0.2
            yield table

    iteration = Iteration(source(), None, "numpy", True, clock=lambda: now[0])
    for _ in iteration.batches():
        now[0] += 0.1
    summary = iteration.summary()
    assert summary.waiting is not None
    assert summary.user is not None
    assert summary.creating is not None
    assert summary.formatting is not None
    assert summary.total_seconds == pytest.approx(3.0)
    assert (summary.user.sum, summary.waiting.sum) == (pytest.approx(1.0), pytest.approx(2.0))
    assert summary.creating.sum + summary.formatting.sum == pytest.approx(0.0, abs=1e-9)
    assert summary.first_wait_seconds == pytest.approx(0.2)


# -- what fails, and how it is told ------------------------------------------------------------------------------------


def test_an_error_of_the_dataset_in_a_worker_is_one_in_the_driver() -> None:
    """What is told says all: the type stays, without the frames of this package (D19)."""
    import msgspec

    from workspan.dataset.failures import map_error, written_down
    from workspan.errors import DataError

    error = map_error(msgspec.msgpack.encode(("DataError", "no column 'x'", "", ["DataError", "ValueError"])), 1)
    assert isinstance(error, DataError)
    assert str(error) == "DataError: no column 'x'"

    def mine() -> None:
        raise DataError("gone")

    for call, ours in ((partial(ws.read_parquet, "gone"), True), (mine, False)):
        with pytest.raises(DataError if call is mine else Exception, match="gone") as caught:
            call()
        caught.value.__traceback__ = caught.value.__traceback__.tb_next  # type: ignore[union-attr]  # of this test
        assert (map_error(written_down(caught.value), 1).traceback_text == "") == ours


def test_a_block_that_is_not_tried_again_was_tried_once() -> None:
    """The report tells the attempts that were made, and not those that a loss would have had (D20, B156)."""

    def fail(batch: Any) -> Any:
        raise LookupError("no")

    data = ws.range(2, blocks=1).map_batches(fail)
    with pytest.raises(LookupError):
        data.to_arrow(engine="serial")
    (task,) = data.report().tasks.values()  # type: ignore[union-attr]
    assert [failure.attempts for failure in task.failed_blocks] == [1]


def test_a_result_that_is_gone_is_not_taken_for_no_rows(tmp_path: Path) -> None:
    """A power cut may lose that a task is done, and not that its input was removed: that is told (R25)."""
    data = ws.range(4, blocks=1).options(fuse=False).map_batches(double)
    run = data.materialize(
        engine="serial", progress=False, tracking_path=tmp_path / "run"
    )._source.parent.execution.runs
    assert run[1].function.where(0) == "block 0"
    with pytest.raises(
        ValueError, match=r"MapBatches\(double\), block 0: 0 of 1 files with the result of the operator"
    ):
        run[1].function.inputs(0)


def test_another_content_cannot_take_over_either(pauses: list[float]) -> None:
    """Where all values of repeated blocks are compared, other ones are refused; by their rows they would pass (M64)."""

    def make(check: Any) -> Any:
        calls: list[int] = []

        def f(batch: Any) -> Any:
            calls.append(1)
            for n in range(3):
                if n == 2 and len(calls) == 1:
                    raise OSError("once")
                yield {"x": np.full(11, float(len(calls)))}

        data = ws.from_arrow(tables(4)).options(block_bytes=80, replay_check=check)
        return data.map_batches(f, retries=1).to_arrow(engine="serial")

    assert make("rows").num_rows == 33
    with pytest.raises(ValueError, match="attempt 2 made other values in block 0 than an attempt before"):
        make("content")


class Counting:
    """Tells how many rows it has seen in a task."""

    fail = 1

    def begin_task(self) -> None:
        self.rows = 0

    def end_task(self) -> Any:
        return {"rows": np.int64(self.rows)}

    def __call__(self, batch: Any) -> Any:
        self.rows += len(batch["x"])
        if batch["x"][0] == 2 and Counting.fail:
            Counting.fail = 0
            raise OSError("once")
        return batch


def test_a_stage_tells_what_it_counted_in_each_task(pauses: list[float]) -> None:
    """One value a task and stage, in order, begun anew by every attempt (M65, M76)."""
    Counting.fail = 1
    data = ws.from_arrow(tables(2, 3)).map_batches(Counting, retries=1).map_batches(lambda batch: batch)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    assert summary.operators[0].stage("MapBatches(Counting)").statistics == ({"rows": 2}, {"rows": 3})
    assert [stage.statistics for op in summary.operators for stage in op.stages if "lambda" in stage.name] == [()]
    Counting.end_task, kept = lambda self: object(), Counting.end_task  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(ValueError, match=r"end_task\(\) of stage 1, block 0.*return numbers, texts"):
            data.to_arrow(engine="serial")
    finally:
        Counting.end_task = kept  # type: ignore[method-assign]


# -- how much lies between operators -----------------------------------------------------------------------------------


def test_an_operator_is_held_only_while_the_next_one_lives(tmp_path: Path) -> None:
    """Enough results hold those who make them; a next operator without a live worker holds nobody (M91)."""
    from workspan.dataset.pace import Pace

    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    hold = folders[0] / "hold"
    pace = Pace(folders, [2])
    pace.came(0)
    pace.settle([1, 1])
    assert not hold.exists()
    pace.came(0)
    pace.settle([1, 0])
    assert not hold.exists()
    pace.settle([1, 1])
    assert hold.exists()
    pace.settle([1, 0])
    assert not hold.exists()
    pace.settle([1, 1])
    pace.went(0)
    pace.settle([1, 1])
    assert not hold.exists()
    assert (pace.waiting(0), pace.longest) == (1, [2, 0])
    pace.came(0)
    pace.settle([1, 1])
    pace.close()
    assert not hold.exists()


def test_waiting_for_whoever_takes_the_results_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as workers are told to wait, and no longer; while they are, too (M91)."""
    from workspan.dataset import pace, stream

    fake = FakeTime()
    for module in (pace, stream):
        monkeypatch.setattr(module, "time", fake)
    for name in "ab":
        (tmp_path / name).mkdir()
    between = pace.Pace([tmp_path / "a", tmp_path / "b"], [1])
    backlog = Backlog(tmp_path, 1, ordered=True)
    fake.sleep(5.0)
    between.came(0)
    between.settle([1, 1])
    backlog.came(0)
    fake.sleep(2.0)
    assert (between.held(0), between.held(1), backlog.held()) == (2.0, 0.0, 2.0)
    between.went(0)
    between.settle([1, 1])
    backlog.went(0)
    fake.sleep(3.0)
    assert (between.held(0), backlog.held()) == (2.0, 2.0)
    between.came(0)
    between.settle([1, 1])
    backlog.came(1)
    fake.sleep(1.0)
    between.close()
    backlog.close()
    fake.sleep(1.0)
    assert (between.held(0), backlog.held()) == (3.0, 3.0)


def test_back_pressure_is_told_where_there_can_be_some() -> None:
    """A consumer that is slow holds the last operator; who takes everything at once holds nobody (M91)."""
    data = ws.range(8, blocks=8).map_batches(double)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    assert summary.operators[0].backpressure_seconds is None
    assert "back-pressure" not in data.stats(verbose=True)
    held = 0.0
    for _ in data.iter_batches(engine="serial", ahead=1):
        deadline = time.monotonic() + 30
        while not held and time.monotonic() < deadline:  # until the run has noticed that nobody takes the next result
            held = data.metrics()[0].summary.backpressure_seconds or 0.0
    summary = data.stats_summary()
    assert summary is not None
    assert 0 < held <= (summary.operators[0].backpressure_seconds or 0.0)
    assert "back-pressure" in data.stats()
    assert summary.iteration is not None
    assert summary.iteration.waiting is not None
    assert 0 < (summary.iteration.initialisation_seconds or 0) <= summary.iteration.waiting.sum
    assert "until the first task" in data.stats()


@pytest.mark.parametrize("tracked", [False, True])
def test_figures_that_are_asked_for_afterwards_are_those_of_the_report(tmp_path: Path, tracked: bool) -> None:
    """Whenever they are asked for the first time, of every operator, and of a run that went on with another (M91)."""
    calls: list[int] = []

    def once(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("this time only")
        return batch

    data = ws.range(20, blocks=4).options(fuse=False).map_batches(double).filter(ws.col("id") > 3)
    if tracked:
        data = data.map_batches(once)
        with pytest.raises(OSError, match="this time"):
            data.to_arrow(engine="serial", tracking_path=tmp_path / "run")
        data.to_arrow(engine="serial", tracking_path=tmp_path / "run", resource_tracking=True)
    else:
        data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    assert [now.summary for now in data.metrics()] == list(summary.operators)
    assert summary.operators[1].rows_in == 20
    assert (summary.operators[0].skipped > 0) is tracked


def test_waiting_never_takes_a_task_over_its_deadline(tmp_path: Path, fake: FakeTime) -> None:
    """A task that is not wanted yet goes on after half of its time; it is told how long it waited (M91)."""
    from workspan.dataset.results import read_record

    data = ws.range(4, blocks=1)
    plan, real = data._plan(), Execution._run_segment
    execution = Execution(plan, RunOptions(engine="serial", timeout=8.0), "drop")

    def run(self: Any, *args: Any) -> None:
        (self.place.folder("1-ReadRange") / "hold").touch()
        real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Execution, "_run_segment", run)
        execution.run()
    record = read_record(execution.runs[0].folder, 0)
    assert record is not None
    assert record.held_seconds == pytest.approx(4.0, abs=0.01)
    assert record.wall_seconds == pytest.approx(0.0, abs=0.01)
    execution.place.remove()


@pytest.mark.parametrize("tracked", [False, True])
def test_what_lies_between_operators_is_bounded(tmp_path: Path, tracked: bool) -> None:
    """In one process operators take turns; what was used is removed, with a tracking path too (M59, M91)."""
    folder = tmp_path / "run" / "blocks"
    most: list[int] = []

    def count(batch: Any) -> Any:
        assert data._running is not None
        most.append(len(list(data._running.place.path.glob("*/*.arrow"))))
        return batch

    data = ws.range(40, blocks=20).options(fuse=False).map_batches(double).map_batches(count)
    data._execute({"engine": "serial", "tracking_path": tmp_path / "run" if tracked else None}, "drop")
    assert max(most) <= 6
    assert list(folder.glob("*/*.arrow")) == []


def test_figures_can_be_asked_for_while_it_runs() -> None:
    """Counts and times grow with the tasks that have finished, and at the end are those of the report (M84, M91)."""
    data = ws.range(20, blocks=5).map_batches(double)
    assert data.metrics() == ()
    finished: list[int] = []
    for _ in data.iter_batches(engine="serial", ahead=1):
        (now,) = data.metrics()
        assert now.summary.tasks <= now.tasks == 5
        assert now.waiting + now.ready + now.running + now.finished + now.failed == 5
        finished.append(now.summary.rows_out)
    assert finished == sorted(finished)
    assert finished[0] < 20
    (end,) = data.metrics()
    summary = data.stats_summary()
    assert summary is not None
    assert end.summary == summary.operators[0]
    assert (end.summary.blocks_in, end.summary.task_wall.count, end.summary.task_seen.count) == (5, 5, 5)  # type: ignore[union-attr]
    assert summary.iteration is not None
    assert summary.iteration.fetch is not None
    assert summary.iteration.fetch.count == 5
    waited = summary.iteration.waiting
    assert waited is not None
    assert 0 < sum(summary.iteration.blocked_seconds.values()) <= waited.sum
    assert summary.scheduling is not None
    assert summary.scheduling.count >= 5
    assert "scheduling" in data.stats()
    assert "until the first result" in data.stats()
