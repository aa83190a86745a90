from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

import workspan as ws
from workspan.grid import Layout
from workspan.measure.stats import Stat
from workspan.report.aggregate import TaskAggregate
from workspan.report.history import LayoutFields, RunSummary, by_place, by_size
from workspan.run.costs import Earlier, KnownCosts, LayoutCosts, costs_of, earlier, said
from workspan.run.history import history_file, read_summaries
from workspan.run.record import RunRecord, TaskBook
from workspan.run.remaining import RunRemaining
from workspan.schedule.ledger import Ledger
from workspan.schedule.slots import Slot
from workspan.schedule.spec import PipelineSpec, TaskSpec
from workspan.store.runs import append_run

UNKNOWN = ("gap_seconds", "lead_seconds", "tail_seconds", "overhead_seconds", "cpu_share", "peak_rss")
COUNTS = ("total", "executed")


def nothing(block: ws.Block) -> None:
    """Take no time."""


def by_position(block: ws.Block) -> float:
    """Blocks grow along the region."""
    return 1.0 + block.write_roi.begin[0]


def task(name: str, *, blocks: int = 20, **options: object) -> ws.Task:
    """Blocks in a row."""
    roi, part = ws.Roi((0,), (blocks,)), ws.Roi((0,), (1,))
    options = {"read_write_conflict": False, "max_workers": 2, "tracking_path": False, **options}
    return ws.Task(name, roi, part, part, options.pop("function", nothing), **options)


class FakeRun:
    """A run of tasks whose blocks are done when the test says so: its session, as far as it is looked at."""

    def __init__(self, *tasks: ws.Task, edges: tuple[tuple[int, int], ...] = (), has_workers: bool = True) -> None:
        self.tasks = list(tasks)
        self.spec = PipelineSpec(tuple(TaskSpec(t.task_id, t.layout, max_workers=t.max_workers) for t in tasks), edges)
        self.ledger = Ledger(self.spec)
        books = [
            TaskBook(
                b.spec.task_id,
                b.layout,
                b.state,
                False,
                None,
                TaskAggregate(b.layout.num_blocks, resource_tracking=False, has_workers=has_workers),
            )
            for b in self.ledger.tasks
        ]
        clock = SimpleNamespace(at=lambda time: time, start=0.0)
        self.record = RunRecord("r", books, clock, has_workers=has_workers, log_dir=None, edges=edges)
        self.dispatcher = SimpleNamespace(slots={})
        self.remaining = RunRemaining(self)

    def start(self, worker: int, task: int = 0) -> None:
        """A worker comes up at once."""
        self.record.worker_started(worker, task, 0.0)
        self.ledger.tasks[task].state.worker_start_count += 1
        self.dispatcher.slots[worker] = Slot(worker, task, has_asked=True)

    def begin(self, worker: int, now: float) -> None:
        """It begins the next block."""
        slot = self.dispatcher.slots[worker]
        index = self.ledger.acquire(slot.task)
        if index is not None:
            slot.held.append(index)
            slot.began_at = now

    def end(self, worker: int, now: float) -> None:
        """It has done its block, and begins another one."""
        slot = self.dispatcher.slots[worker]
        index = slot.held.popleft()
        self.record.block_done(slot.task, index, worker, slot.began_at, now, None, None)
        self.ledger.complete(slot.task, index)
        self.begin(worker, now)


class TestLooks:
    def test_two_workers(self):
        """Forty blocks of 2 s on two workers: at 10.5 s, 29.5 s are left, with a range, counted down between looks."""
        run = FakeRun(task("t", blocks=40))
        for worker in (0, 1):
            run.start(worker)
            run.begin(worker, 0.0)
        for now in range(2, 12, 2):
            for worker in (0, 1):
                run.end(worker, float(now))
            run.remaining.look(now + 0.5)
        (left,) = run.remaining.look(10.5)
        assert left.value == pytest.approx(29.5, abs=0.5)
        assert left.low < 29.5 < left.high
        assert run.remaining.look(10.6)[0].value == pytest.approx(left.value - 0.1)

    def test_nothing_is_known_at_first(self):
        """Before a block is done, and without history, nothing is said."""
        run = FakeRun(task("t"))
        run.start(0)
        run.begin(0, 0.0)
        assert run.remaining.look(0.0) == [None]

    def test_clipped_blocks(self):
        """Blocks at the edge that are a tenth as large are expected to take a tenth of the time."""
        roi, part = ws.Roi((0, 0), (11, 100)), ws.Roi((0, 0), (10, 10))
        clipped = ws.Task("t", roi, part, part, nothing, read_write_conflict=False, fit="shrink", tracking_path=False)
        run = FakeRun(clipped)
        run.start(0)
        run.begin(0, 0.0)
        for number in range(1, 11):  # the first row of blocks, whole; the second one is clipped
            run.end(0, 10.0 * number)
            run.remaining.look(10.0 * number)
        assert run.remaining.look(100.0)[0].value == pytest.approx(10 * 1.0, rel=0.4)

    def test_sizes_from_n_ref(self):
        """What the task's n_ref says of blocks to come counts from the first block on."""
        run = FakeRun(task("t", blocks=30, n_ref=by_position))
        run.start(0)
        now = 0.0
        run.begin(0, now)
        for number in range(10):
            now += 1.0 + number
            run.end(0, now)
            run.remaining.look(now)
        truth = sum(1.0 + number for number in range(10, 30))
        assert run.remaining.look(now)[0].value == pytest.approx(truth, rel=0.1)

    def test_a_task_ends_after_the_one_it_reads(self):
        """A task that waits for blocks of a slower one is not said to end before it."""
        run = FakeRun(task("a", blocks=30), task("b", blocks=30), edges=((0, 1),))
        run.start(0, 0)
        run.start(1, 1)
        run.begin(0, 0.0)
        for number in range(1, 11):
            run.end(0, 10.0 * number)
            run.begin(1, 10.0 * number)
            run.end(1, 10.0 * number + 1.0)
            run.remaining.look(10.0 * number + 1.0)
        a, b = run.remaining.look(101.0)
        assert b.value >= a.value > 150

    def test_one_thread_for_two_tasks(self):
        """In this process the second of two tasks ends after the first one."""
        run = FakeRun(task("a", blocks=10), task("b", blocks=10), has_workers=False)
        for number in (0, 1):
            run.start(number, number)
            run.begin(number, 0.0)
        for now in range(1, 9):
            run.end((now - 1) % 2, float(now))
            run.remaining.look(float(now))
        a, b = run.remaining.look(8.0)
        assert b.value >= a.value

    def test_the_start_of_workers(self, monkeypatch):
        """What is left at the begin holds the start of workers that the last run had, until one is there (D32)."""
        last = Earlier(((1.0, 2.0),), 0.1, 0.0, startup=5.0)
        monkeypatch.setattr("workspan.run.remaining.earlier", lambda task: last)
        run = FakeRun(task("t", blocks=40))
        (left,) = run.remaining.look(10.0)
        assert left.value == pytest.approx(5.0 + 40.0, abs=1.0)
        assert run.remaining.look(13.0)[0].value == pytest.approx(left.value - 3.0)
        assert run.remaining.look(17.0)[0].value == pytest.approx(left.value - 5.0)  # late: nobody knows how much
        for worker in (0, 1):
            run.start(worker)
            run.begin(worker, 17.0)
        assert run.remaining.look(17.5)[0].value == pytest.approx(39.5, abs=1.0)

    def test_it_costs_nothing_where_nobody_asks(self):
        """Without a display no sizes are summed up."""
        run = FakeRun(task("t", blocks=30))
        assert run.record.books[0].costs is None


class TestHistory:
    def test_the_last_run_is_known(self):
        """A second run has a time left, with a range, before its first block; a first one has none."""
        seen = []
        watcher = SimpleNamespace(
            on_start=lambda states: seen.append(states["remaining-twice"].left),
            on_progress=lambda states: None,
            on_finish=lambda states: None,
        )
        for _ in range(2):
            assert ws.run_blockwise(task("remaining-twice"), engine="serial", progress=watcher, summary=False)
        first, second = seen
        assert first is None
        assert second.source == "history"
        assert second.low <= second.value <= second.high

    def test_another_function_is_not_this_one(self):
        """What another function took under the same name says nothing."""
        ws.run_blockwise(task("remaining-other"), engine="serial", progress=False, summary=False)
        assert earlier(task("remaining-other")) is not None
        assert earlier(task("remaining-other", function=by_position)) is None
        assert earlier(task("remaining-other", n_ref=by_position)) is None

    def test_a_damaged_history_is_none(self, tmp_path, monkeypatch):
        """A file that is no history costs a note and no run (R61)."""
        path = tmp_path / "t.jsonl"
        monkeypatch.setattr("workspan.run.history.history_file", lambda task_id: path)
        for text in ("", "{", "[]\n", json.dumps({"later": 3}) + "\n"):
            path.write_text(text)
            assert earlier(task("t")) is None

    def test_between_and_beyond_sizes(self):
        """Between two sizes it goes from one time to the other, beyond them in proportion."""
        known = Earlier(((10.0, 1.0), (1000.0, 10.0)), 0.1, 0.0)
        assert known.seconds(100.0) == pytest.approx(10**0.5)
        assert known.seconds(5.0) == pytest.approx(0.5)
        assert known.seconds(2000.0) == pytest.approx(20.0)

    def test_nothing_heavy_is_loaded(self):
        """A run without history loads neither numpy nor the estimator for the sake of its display."""
        code = (
            "import sys, workspan.run.remaining, workspan.run.costs\n"
            "sys.exit(' '.join(m for m in ('numpy', 'zarr', 'workspan.estimate.estimator') if m in sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
        assert done.stderr.strip() == ""

    def test_stragglers_are_told_apart(self):
        """Two blocks of 60 s among 600 of 1 s are neither the mean nor the spread: they are kept beside them."""
        rng = random.Random(1)
        times = [rng.uniform(0.9, 1.1) for _ in range(598)] + [60.0, 60.0]
        found = said(by_size([8.0] * 600, times, 600), ())
        assert found is not None
        assert found.seconds(8.0) == pytest.approx(1.0, rel=0.01)
        assert found.spread < 0.1
        assert found.stragglers == pytest.approx((2.0, 600.0, 60.0), rel=0.01)

    def test_a_long_tail_has_no_stragglers(self):
        """Exponential times have blocks of nine times the median, and none that is not like the others."""
        rng = random.Random(2)
        found = said(by_size([1.0] * 600, [rng.expovariate(1.0) for _ in range(600)], 600), ())
        assert found is not None
        assert found.stragglers is None
        assert found.spread == pytest.approx(1.0, abs=0.2)

    def test_sizes_that_differ_by_chance_are_in_proportion(self):
        """One block of 60 that took 10 % more than its share is chance beside blocks that spread by 20 %."""
        rng = random.Random(3)
        times = [rng.gauss(1.0, 0.2) for _ in range(599)]
        found = said(by_size([1.0] * 599 + [60.0], [*times, 66.0], 600), ())
        assert found is not None
        assert found.seconds(60.0) == pytest.approx(60.0, rel=0.02)

    def test_sizes_that_differ_in_fact_are_kept(self):
        """Blocks ten times as large that take twice as long, and many of them, are said to take that."""
        rng = random.Random(4)
        sizes = [1.0, 10.0] * 300
        found = said(by_size(sizes, [(1.0 if n == 1.0 else 2.0) * rng.uniform(0.9, 1.1) for n in sizes], 600), ())
        assert found is not None
        assert [found.seconds(n) for n in (1.0, 10.0)] == pytest.approx([1.0, 2.0], rel=0.02)

    def test_blocks_that_grow_along_the_task(self):
        """Blocks that grow to ten times the first one are known to do so, and how they spread beside that."""
        rng = random.Random(5)
        times = [(1.0 + 9.0 * n / 320) * rng.uniform(0.9, 1.1) for n in range(320)]
        found = said(by_size([8.0] * 320, times, 320), (), by_place(range(320), times, 320))
        assert found is not None
        mean = sum(times) / 320
        assert found.places[0] * mean == pytest.approx(sum(times[:10]) / 10, rel=0.05)
        assert found.places[-1] * mean == pytest.approx(sum(times[-10:]) / 10, rel=0.05)
        assert found.spread < 0.1
        assert found.without_places().spread == pytest.approx(0.47, abs=0.03)

    def test_chance_is_no_place(self):
        """Exponential times, or one straggler, say nothing of where in the task they were."""
        rng = random.Random(6)
        for times in (
            [rng.expovariate(1.0) for _ in range(320)],
            [1.0 + n % 3 / 10 + 60 * (n == 9) for n in range(320)],
        ):
            found = said(by_size([8.0] * 320, times, 320), (), by_place(range(320), times, 320))
            assert found is not None
            assert found.places == ()

    def test_a_part_of_a_task_has_no_places(self):
        """A run that did the last quarter says nothing of the blocks before."""
        assert by_place(range(240, 320), [1.0] * 80, 320) == ()
        assert by_place([], [], 0) == ()

    def test_a_run_keeps_them(self):
        """The summary of a run has the time of its blocks along the task, unless a part of them was done before."""
        some = task("remaining-places", blocks=80)
        ws.run_blockwise(some, engine="serial", progress=False, summary=False)
        (summary,), _ = read_summaries(some.task_id)
        assert len(summary.places) == 9
        assert sum(summary.places) > 0

    def test_the_next_run_follows(self):
        """After a run of blocks that grow their costs are known before the first one; not for another layout."""
        seconds = [1.0 + 9.0 * n / 320 for n in range(320)]
        grown, other = task("remaining-grown", blocks=320), task("remaining-grown", blocks=300)
        function, n_ref = grown.history_marks()
        layout, places = LayoutFields.of(grown.layout), by_place(range(320), seconds, 320)
        later, none, counts = by_size([1.0] * 320, seconds, 320), dict.fromkeys(UNKNOWN), dict.fromkeys(COUNTS, 320)
        summary = RunSummary(
            run_id="r",
            task_id=grown.task_id,
            started_at=1.0,
            wall_seconds=1.0,
            outcome="completed",
            layout=layout,
            skipped=0,
            failed=0,
            failures=0,
            max_workers=2,
            workers=2,
            cpus=2,
            basis="round trip",
            later=later,
            first=(),
            startup=Stat(),
            teardown=Stat(),
            function=function,
            n_ref=n_ref,
            places=places,
            **none,
            **counts,
        )
        path = history_file(grown.task_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        append_run(path, summary.to_json())
        costs = costs_of(grown, grown.layout, earlier(grown))
        assert [costs.cost(n) for n in (5, 160, 315)] == pytest.approx([1.1, 5.5, 9.9], rel=0.05)
        assert sum(costs.cost(n) for n in range(320)) == pytest.approx(320 * costs.mean)
        assert earlier(other).places == ()


class TestCosts:
    def test_the_mean_is_that_of_all_blocks(self):
        """Clipped blocks are counted in closed form: their mean is that of asking every one."""
        layout = Layout((0, 0, 0), (25, 31, 20), (0,) * 3, (10,) * 3, (0,) * 3, (10,) * 3, "shrink", False)
        costs = LayoutCosts(layout, lambda size: size**2)
        every = [costs.cost(index) for index in range(layout.num_blocks)]
        sizes = []
        for index in range(layout.num_blocks):
            begin, end = layout.write_box(index)
            sizes.append((end[0] - begin[0]) * (end[1] - begin[1]) * (end[2] - begin[2]))
        assert every == pytest.approx([size**2 for size in sizes])
        assert costs.mean == pytest.approx(sum(every) / len(every))

    def test_the_largest_to_come(self):
        """Of the blocks that have not begun the dearest is found, and how many come before it."""
        costs = KnownCosts([1.0, 9.0, 2.0, 5.0, 3.0])
        assert [costs.largest(begun) for begun in range(6)] == [(1, 9.0), (0, 9.0), (1, 5.0), (0, 5.0), (0, 3.0), None]

    def test_blocks_that_are_alike_have_no_costs(self):
        """Nothing is summed up where nothing can differ."""
        plain = task("t")
        assert costs_of(plain, plain.layout, None) is None

    def test_an_n_ref_that_raises(self, caplog):
        """It is left out, with a note; the run goes on."""
        broken = task("t", n_ref=lambda block: 1 / 0)
        with caplog.at_level(logging.INFO):
            assert costs_of(broken, broken.layout, None) is None
        assert "n_ref of task 't'" in caplog.text


def test_an_estimate_that_fails_costs_no_display(monkeypatch, caplog):
    """What is wrong with the estimate is logged once; the observer is told all the same (B165)."""
    monkeypatch.setattr("workspan.run.remaining.RunRemaining.look", lambda self, now: 1 / 0)
    told = []
    watcher = SimpleNamespace(on_start=told.append, on_progress=told.append, on_finish=told.append)
    with caplog.at_level(logging.WARNING):
        assert ws.run_blockwise(task("remaining-broken"), engine="serial", progress=watcher, summary=False)
    assert [states["remaining-broken"].left for states in told] == [None, None]
    assert caplog.text.count("the time that is left is not shown") == 1


@pytest.mark.usefixtures("logs")
def test_nothing_is_left_at_the_end():
    """KF-56: what an observer is told when a task has ended is 0 s, however short ago the estimate was made."""
    told = []

    class Watcher:
        def on_start(self, states):
            pass

        def on_progress(self, states):
            pass

        def on_finish(self, states):
            told.append(states["t"].left.value)

    made = task("t")
    assert ws.run_blockwise(made, engine="serial", progress=Watcher(), summary=False)
    assert told == [0.0]
