from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workspan.errors import InvalidMetadataError, NotInReportError, WorkspanError
from workspan.grid import Block, Layout
from workspan.measure.profile import BlockStats
from workspan.measure.stats import Stat, Welford
from workspan.report.parts import StepSummary, TaskPlace
from workspan.report.task import RunReport, TaskReport
from workspan.store.tracking import TrackingStore

B158 = [
    "schema",
    "run_id",
    "task_id",
    "started_at",
    "ended_at",
    "wall_seconds",
    "outcome",
    "resource_tracking",
    "tracking_path",
    "blocks",
    "workers",
]
B150 = [
    "count",
    "total",
    "skipped",
    "failed",
    "orphaned",
    "failures",
    "round_trip",
    "wall",
    "cpu",
    "peak_rss",
    "io_read",
    "io_write",
    "overhead",
    "trend",
]
B151 = ["count", "startup", "idle", "compute", "final_wait", "teardown", "exits", "unmanaged_clients", "records"]
RECORD = ["id", "startup", "blocks", "blocks_failed", "idle", "compute", "final_wait", "teardown", "exit", "text"]

generous = settings(suppress_health_check=[HealthCheck.too_slow])


def through_json(report):
    text = json.dumps(report.to_json(), allow_nan=False)
    return type(report).from_json(json.loads(text))


class TestRoundTrip:
    @generous
    @given(data=st.data())
    def test_a_task_report_survives_its_line(self, task_reports, data):
        """What is read back from the strict JSON of a task report equals it (B158)."""
        report = data.draw(task_reports)
        assert through_json(report) == report

    @generous
    @given(data=st.data())
    def test_a_run_report_survives_json(self, run_reports, data):
        """What is read back from the strict JSON of a run report equals it, task by task and in order (B154)."""
        report = data.draw(run_reports)
        again = through_json(report)
        assert again == report
        assert list(again.tasks) == list(report.tasks)

    def test_equality_sees_a_changed_figure(self, task_report):
        """Two reports that differ in one worker's figure are not equal: the round trip above can fail."""
        report = task_report()
        first, second = report.workers.records
        records = (first, replace(second, teardown=0.03))
        assert replace(report, workers=replace(report.workers, records=records)) != report

    def test_the_keys_are_those_of_the_specification(self, task_report):
        """The line has the keys of B158, its sections the names of B150 and B151, and a Stat its six figures (B158)."""
        data = task_report().to_json()
        assert list(data)[: len(B158)] == B158
        assert list(data)[len(B158) :] == [
            "steps",
            "work_seconds",
            "work_basis",
            "failed_blocks",
            "span_seconds",
            "place",
        ]
        assert list(data["blocks"])[: len(B150)] == B150
        assert list(data["blocks"])[len(B150) :] == ["gpu_util", "gpu_mem"]
        assert list(data["workers"]) == B151
        assert list(data["workers"]["records"][0]) == RECORD
        assert list(data["blocks"]["round_trip"]) == ["n", "mean", "std", "min", "max", "total"]
        assert data["schema"] == 1

    def test_a_step_is_self_calls_and_share(self):
        """A step is written as its self time, calls and share."""
        step = StepSummary(Stat(1, 0.5, 0.0, 0.5, 0.5, 0.5), 2, 0.25)
        assert step.to_json() == {"self": step.self_seconds.to_json(), "calls": 2, "share": 0.25}
        assert StepSummary.from_json(step.to_json()) == step

    def test_what_was_not_measured_is_null(self, task_report):
        """No samples are null, not NaN; an absent metric is null, not an empty Stat (B158, D22)."""
        data = task_report().to_json()
        assert data["blocks"]["round_trip"] == {
            "n": 0, "mean": None, "std": None, "min": None, "max": None, "total": 0.0,
        }  # fmt: skip
        assert data["blocks"]["wall"] is None
        assert math.isnan(TaskReport.from_json(data).blocks.round_trip.mean)

    def test_infinity_is_written_as_null(self, task_report):
        """A figure that is not finite never reaches the file (B158)."""
        data = replace(task_report(), wall_seconds=math.inf).to_json()
        json.dumps(data, allow_nan=False)
        assert data["wall_seconds"] is None

    def test_unknown_keys_are_ignored(self, task_report):
        """Keys of a later version, at any depth, do not disturb the reader (B158)."""
        report = task_report()
        data = report.to_json()
        data["spin"] = 1.5
        data["place"] = {"position": 0, "tasks": 1, "span_seconds": None, "hosts": 3}
        data["blocks"]["colour"] = "red"
        data["workers"]["records"][0]["host"] = {"name": "node7"}
        data["blocks"]["round_trip"]["p99"] = 1.0
        assert TaskReport.from_json(data) == replace(report, place=TaskPlace(0, 1))

    def test_lines_without_the_later_keys_are_read(self, task_report):
        """A line that has the keys of B158 alone gives a report with no steps, and work and span unknown (B158)."""
        data = {key: value for key, value in task_report().to_json().items() if key in B158}
        data["blocks"] = {key: data["blocks"][key] for key in B150}
        report = TaskReport.from_json(data)
        assert (report.blocks.gpu_util, report.blocks.gpu_mem) == (None, None)
        assert (report.steps, report.work_seconds, report.failed_blocks) == ({}, None, ())
        assert (report.work, report.span, report.parallelism, report.place) == (None, None, None, None)
        assert report == task_report()

    def test_whole_numbers_are_read_as_seconds(self, task_report):
        """A tool that writes 2.0 as 2 does no harm."""
        data = task_report().to_json() | {"wall_seconds": 2}
        seconds = TaskReport.from_json(data).wall_seconds
        assert (seconds, type(seconds)) == (2.0, float)

    @pytest.mark.parametrize("copier", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy], ids=["pickle", "copy"])
    def test_reports_are_picklable(self, task_report, copier):
        """A report rides on exceptions, which cross processes."""
        run = RunReport("r1", 1000.0, 1001.0, 1.0, "completed", {"seg": task_report()})
        assert copier(run) == run

    def test_reports_are_frozen(self, task_report):
        """A report is a record: it cannot be changed."""
        with pytest.raises(FrozenInstanceError):
            task_report().outcome = "completed"


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"run_id": None}, r"TaskReport\.run_id should be of type str, not None"),
            ({"wall_seconds": "2 s"}, r"TaskReport\.wall_seconds should be of type float, not '2 s'"),
            ({"resource_tracking": 1}, r"TaskReport\.resource_tracking should be of type bool, not 1"),
            ({"blocks": []}, r"TaskReport\.blocks should be of type dict, not \[\]"),
            ({"steps": {"read": 3}}, r"TaskReport\.steps\['read'\] should be of type dict, not 3"),
            ({"failed_blocks": [{}]}, r"TaskReport\.failed_blocks\[0\] has no key 'cell'"),
            ({"schema": None}, r"not a TaskReport: 'schema' is None"),
            ({"schema": 2}, r"a TaskReport of schema 2, but this version of Workspan reads up to 1: upgrade it"),
        ],
    )
    def test_a_wrong_value_is_refused_by_name(self, task_report, change, message):
        """A line that is valid JSON but no report says which key is wrong and what it holds (R33)."""
        with pytest.raises(InvalidMetadataError, match=message):
            TaskReport.from_json(task_report().to_json() | change)

    def test_a_count_is_a_whole_number(self, task_report):
        """True is no count, and neither is 1.5."""
        for wrong in (True, 1.5):
            data = task_report().to_json()
            data["blocks"]["count"] = wrong
            with pytest.raises(InvalidMetadataError, match=rf"blocks\.count should be of type int, not {wrong}"):
                TaskReport.from_json(data)

    def test_a_damaged_stat_is_named(self, task_report):
        """A Stat without its figures is refused with its place."""
        data = task_report().to_json()
        data["blocks"]["round_trip"] = {"n": 3}
        with pytest.raises(InvalidMetadataError, match=r"TaskReport\.blocks\.round_trip is not a Stat: \{'n': 3\}"):
            TaskReport.from_json(data)

    @pytest.mark.parametrize("data", [[], "x", None, 3])
    def test_something_else_is_no_report(self, data):
        """JSON that is no object at all is refused."""
        with pytest.raises(InvalidMetadataError, match="TaskReport should be of type dict"):
            TaskReport.from_json(data)


class TestWorker:
    def test_a_worker_is_found_by_id(self, task_report):
        """``worker(id)`` returns the record with that id, not that position (B151)."""
        report = task_report()
        assert report.worker(2) is report.workers.records[1]

    def test_an_unknown_worker(self, task_report):
        """Another id is a KeyError that lists the ids there are (B151)."""
        with pytest.raises(KeyError, match="task 'seg' had no worker 1: the ids of its 2 are 0, 2"):
            task_report().worker(1)

    @pytest.mark.parametrize(
        "ask", [lambda report: report.worker(1), lambda report: RunReport("r1", 0.0, 1.0, 1.0, "completed", {})["b"]]
    )
    def test_what_is_not_in_a_report_is_an_error_of_ours(self, task_report, ask):
        """It derives from WorkspanError as well as from KeyError, reads as a sentence, and crosses processes (D50)."""
        with pytest.raises(WorkspanError, match=r"^(task 'seg'|the run) had no ") as caught:
            ask(task_report())
        again = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, KeyError)
        assert (type(again), str(again)) == (NotInReportError, caught.value.args[0])


@pytest.fixture
def store(tmp_path):
    """A store of a 6 x 4 grid (blocks from cell (1, 1) on) in which blocks 0 and 5 ran and block 3 failed once."""
    layout = Layout((0, 0), (60, 40), (0, 0), (30, 30), (10, 10), (10, 10))
    with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True, task_id="seg") as store:
        for index, wall in ((5, 0.25), (0, 0.5)):
            store.record_done(
                index, BlockStats(wall, 0.125, 1000, 10, 20), worker=1, sent_at=1000.0, returned_at=1001.0, steps=None
            )
        store.record_failure(3)
    return layout, str(tmp_path / "seg")


class TestBlocks:
    def test_a_block_is_read_from_the_store(self, task_report, store):
        """``block(coord)`` takes a position in the tracking grid; a block that never ran is None (B152)."""
        layout, path = store
        report = task_report(tracking_path=path)
        record = report.block(layout.cell(0))
        assert (record.coord, record.done, record.stats.wall_seconds, record.worker_id) == ((1, 1), True, 0.5, 1)
        assert (record.sent_at, record.returned_at) == (1000.0, 1001.0)
        assert report.block(layout.cell(1)) is None
        assert report.block((0, 0)) is None

    def test_a_block_may_be_given_itself(self, task_report, store):
        """``block(b)`` finds the record of the block *b*, whether it was made by the task or by hand (B152)."""
        layout, path = store
        report = task_report(tracking_path=path)
        block = Block.at(layout, 5, "seg")
        by_hand = Block(block.total_roi, block.read_roi, block.write_roi, "seg")
        assert report.block(block).coord == report.block(by_hand).coord == layout.cell(5)

    def test_a_coordinate_outside_the_grid(self, task_report, store):
        """Out of range is an IndexError that names the coordinate (B152)."""
        with pytest.raises(IndexError, match=r"\(9, 9\)"):
            task_report(tracking_path=store[1]).block((9, 9))

    def test_all_records(self, task_report, store):
        """``block_records()`` lists every recorded block in grid order, one that only failed included (B152)."""
        layout, path = store
        records = task_report(tracking_path=path).block_records()
        assert [record.coord for record in records] == [layout.cell(0), layout.cell(3), layout.cell(5)]
        assert [record.failures for record in records] == [0, 1, 0]

    def test_records_outlive_a_run_that_skipped_everything(self, task_report, store):
        """The report of a later run that did nothing still finds what the first one recorded (B153)."""
        skipped = task_report(tracking_path=store[1])
        blocks = replace(skipped.blocks, count=24, skipped=24)
        assert replace(skipped, blocks=blocks).block((1, 1)).stats.wall_seconds == 0.5

    @pytest.mark.parametrize("ask", [lambda r: r.block((0,)), lambda r: r.block_records()], ids=["block", "records"])
    def test_a_task_without_a_store(self, task_report, ask):
        """Without a store the question is a LookupError that names the remedy (B152)."""
        with pytest.raises(LookupError, match=r"'seg' ran without a tracking store.*: give the task a tracking_path"):
            ask(task_report())

    def test_a_store_that_is_gone(self, task_report, tmp_path):
        """A store that was deleted since is a LookupError that names its path (B152)."""
        with pytest.raises(LookupError, match=r"no tracking store at .*gone"):
            task_report(tracking_path=str(tmp_path / "gone")).block((0,))

    def test_reading_a_report_opens_no_store(self, task_report):
        """A report is made, printed and compared without its store: only single blocks need it."""
        assert "seg" in repr(through_json(task_report(tracking_path="run/gone")))


class TestWork:
    def test_parallelism_is_work_over_span(self, task_report):
        """Ten seconds of work in a longest chain of four leave room for 2.5 workers."""
        report = replace(task_report(), work_seconds=10.0, work_basis="wall", span_seconds=4.0)
        assert (report.work, report.span, report.parallelism) == (10.0, 4.0, 2.5)

    def test_a_run_adds_up_its_tasks(self, task_report):
        """The run's work is that of its tasks; one that ran nothing adds nothing; mixed bases are told (D42)."""
        one = replace(task_report("a"), work_seconds=10.0, work_basis="wall", span_seconds=4.0)
        two = replace(one, work_seconds=2.0, work_basis="round trip")
        run = RunReport("r1", 0.0, 1.0, 1.0, "completed", {"a": one, "b": two, "c": task_report("c")}, 6.0)
        assert (run.work, run.span, run.parallelism, run.work_basis) == (12.0, 6.0, 2.0, "mixed")
        assert replace(run, tasks={"a": one, "c": task_report("c")}).work_basis == "wall"

    def test_what_was_not_measured_is_none(self, task_report):
        """A run that executed nothing has no work, span or parallelism: None, never 0; nor does 0 s of span divide."""
        run = RunReport("r1", 0.0, 1.0, 1.0, "completed", {"a": task_report("a")})
        assert (run.work, run.span, run.parallelism, run.work_basis) == (None,) * 4
        assert replace(task_report(), work_seconds=0.0, span_seconds=0.0).parallelism is None


class TestRunReport:
    def test_it_is_true_if_every_block_completed(self, task_report):
        """The truth value says whether every block of every task completed, skips included (D13, B66)."""
        whole, part = task_report("a"), task_report("b", count=11)
        assert RunReport("r1", 0.0, 1.0, 1.0, "completed", {"a": whole})
        for failed, orphaned in ((1, 0), (0, 1), (0, 0)):  # the last one: interrupted
            blocks = replace(part.blocks, failed=failed, orphaned=orphaned)
            tasks = {"a": whole, "b": replace(part, blocks=blocks)}
            assert not RunReport("r1", 0.0, 1.0, 1.0, "incomplete", tasks)

    def test_a_run_of_nothing_is_true(self):
        """An empty pipeline has nothing left to do (B58)."""
        assert RunReport("r1", 0.0, 0.0, 0.0, "completed", {})

    def test_tasks_are_found_by_id(self, task_report):
        """``report[task_id]``, ``in`` and iteration go by task id, in display order (B154)."""
        tasks = {"b": task_report("b"), "a": task_report("a")}
        run = RunReport("r1", 0.0, 1.0, 1.0, "completed", tasks)
        assert run["a"] is tasks["a"]
        assert "a" in run
        assert "c" not in run
        assert list(run) == ["b", "a"]

    def test_an_unknown_task(self, task_report):
        """Another id is a KeyError that lists the tasks there are."""
        run = RunReport("r1", 0.0, 1.0, 1.0, "completed", {"a": task_report("a")})
        with pytest.raises(KeyError, match="the run had no task 'b': its tasks are 'a'"):
            run["b"]


class TestRepr:
    def test_a_report_is_one_short_line(self, task_report):
        """``repr`` and ``str`` of a report fit on a line and say how far it came."""
        task = task_report(count=11)
        run = RunReport("r1", 0.0, 1.0, 1.5, "incomplete", {"seg": task})
        assert repr(task) == "<TaskReport 'seg' incomplete: 11 of 12 blocks, 0 skipped, 2 workers, 0.25 s>"
        assert str(run) == "<RunReport 'r1' incomplete: 11 of 12 blocks of 1 tasks, 1.5 s>"


def test_samples_survive_exactly():
    """Figures are written with all their digits: 0.1 + 0.2 comes back as it was (B158)."""
    fold = Welford()
    fold.extend([0.1 + 0.2, 1e-300, 123456789.123456789])
    stat = fold.stat()
    assert Stat.from_json(json.loads(json.dumps(stat.to_json()))) == stat


def test_damage_is_a_workspan_error():
    """Whoever catches Workspan's errors catches damaged reports."""
    assert issubclass(InvalidMetadataError, WorkspanError)
