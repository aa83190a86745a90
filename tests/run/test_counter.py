"""There is one block counter: small random pipelines under all that can happen to a block, on every way to run.

What must come out is told by a model that knows nothing of the scheduler: attempts are files that user code leaves,
dependencies are overlaps of boxes.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass, field
from math import inf

import numpy as np
import pytest
from funlib.geometry import Roi

import workspan
from helpers.pipelines import brute_inputs, descendants
from helpers.ray_kit import leaky
from workspan.measure.profile import BlockStats
from workspan.store.tracking import TrackingStore

FULL = os.environ.get("WORKSPAN_FULL") == "1"
EXAMPLES = {"serial": 12, "debug": 8, "processes": 3, "client": 3, "dask": 1, "ray": 1}
TIMEOUT_SECONDS = 1.0
HARMLESS = ("FAILED", "raise")
DEADLY = ("kill", "exit")


@dataclass
class Plan:
    """What is to happen in one task."""

    task_id: str
    blocks: int
    context: int
    conflict: bool
    retries: int
    tracked: bool
    workers: int
    client: str | None
    """How the worker function's client takes its blocks; ``None``: it is a block function."""
    masked: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    """Done in an earlier run."""
    found: set[int] = field(default_factory=set)
    """Found done by the check function."""
    fails: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Block -> how, and how many attempts of it."""

    @property
    def timeout(self):
        return TIMEOUT_SECONDS if any(how == "timeout" for how, _ in self.fails.values()) else inf


def draw(mode, seed):
    """Return one or two plans."""
    rng = random.Random(f"{mode}-{seed}")
    kinds = {"serial": HARMLESS, "debug": ("FAILED",)}.get(mode, (*HARMLESS, *DEADLY))
    most = 8 if mode in ("serial", "debug") else 5
    plans: list[Plan] = []
    for name in ("first", "second")[: rng.choice((1, 2, 2))]:
        conflict = rng.random() < 0.4
        plan = Plan(
            name,
            blocks=rng.randint(3, plans[0].blocks if plans else most),
            context=rng.choice((0, 5)) if not conflict else 5,
            conflict=conflict,
            retries=rng.randint(0, 2),
            tracked=rng.random() < 0.7,
            workers=rng.randint(1, 2),
            client=rng.choice(("run", "catch", "with")) if mode == "client" else None,
        )
        for index in range(plan.blocks):
            fate = rng.random()
            if fate < 0.12:
                plan.masked.add(index)
            elif fate < 0.3:
                plan.before.add(index)
            elif fate < 0.36:
                plan.found.add(index)
            elif fate < 0.65:
                plan.fails[index] = (rng.choice(kinds), rng.randint(1, 3))
        plans.append(plan)
    if mode in ("processes", "client") and seed % 4 == 0:
        plan = rng.choice(plans)
        index = rng.randrange(plan.blocks)
        for group in (plan.masked, plan.before, plan.found):
            group.discard(index)
        plan.fails[index] = ("timeout", 1)
    return plans


def work_of(plan, folder, healed):
    """Return a block function that leaves a file an attempt, one an end, and does to itself what is planned."""

    def work(block):
        import os
        import signal

        attempt = 0
        while True:
            try:
                os.close(os.open(folder / f"{plan.task_id}.{block.index}.{attempt}", os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                attempt += 1
        with open(folder.parent / "order", "a") as order:
            order.write(f"{plan.task_id}.{block.index}.{attempt}\n")
        how, times = plan.fails.get(block.index, ("", 0))
        if attempt < times and not healed.exists():
            if how == "raise":
                raise ValueError(f"planned for block {block.index}")
            if how == "FAILED":
                block.status = workspan.BlockStatus.FAILED
            elif how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "exit":
                os._exit(0)
            else:
                signal.pause()

    return work


def worker_of(work, how):
    """Return a worker function whose client runs *work* on its blocks."""

    def through_run():
        workspan.Client().run(work)

    def through_blocks():
        client = workspan.Client()
        while True:
            with client.acquire_block() as block:  # an exception of a block ends this worker
                if block is None:
                    return
                work(block)

    def through_all_blocks():
        client = workspan.Client()
        while True:
            try:
                with client.acquire_block() as block:
                    if block is None:
                        return
                    work(block)
            except ValueError:
                pass

    return {"run": through_run, "with": through_blocks, "catch": through_all_blocks}[how]


def task_of(plan, tmp_path, healed):
    """Make the task of a plan, and give it its past."""
    work = work_of(plan, tmp_path / "calls", healed)
    found = plan.found
    mask = np.zeros(plan.blocks, np.uint8)
    mask[sorted(plan.masked)] = 1
    task = workspan.Task(
        plan.task_id,
        Roi((-plan.context,), (plan.blocks * 10 + 2 * plan.context,)),
        Roi((-plan.context,), (10 + 2 * plan.context,)),
        Roi((0,), (10,)),
        work if plan.client is None else worker_of(work, plan.client),
        (lambda block: block.index in found) if found and not plan.tracked else None,
        read_write_conflict=plan.conflict,
        max_workers=plan.workers,
        max_retries=plan.retries,
        max_worker_restarts=100,
        timeout=plan.timeout,
        tracking_path=tmp_path / plan.task_id,
        resource_tracking=plan.tracked,
        skip_mask=mask,
    )
    if task.check_function is None:
        found.clear()
    with TrackingStore.open(task.tracking_path, task.layout, resource_tracking=plan.tracked) as store:
        for index in sorted(plan.before):
            store.record_done(index, BlockStats(0.5, 0.5, 1, 1, 1), 0, 10.0, 11.0, None)
    return task


def model(plans, inputs):
    """Return (completed, failed, orphaned) sets of (task, index), and block -> attempts, by the planned fates."""
    fate, attempts = {}, {}
    failed = set()
    for number, plan in enumerate(plans):
        for index in range(plan.blocks):
            if index in plan.masked | plan.before | plan.found:
                continue
            _, times = plan.fails.get(index, ("", 0))
            fate[number, index] = times
            if times > plan.retries:
                failed.add((number, index))
    orphaned = descendants(inputs, failed)
    failed -= orphaned
    everything = {(number, index) for number, plan in enumerate(plans) for index in range(plan.blocks)}
    for (number, index), times in fate.items():
        if (number, index) not in orphaned:
            attempts[number, index] = min(times, plans[number].retries) + 1
    return everything - failed - orphaned, failed, orphaned, attempts


def run(tasks, mode, cluster=None):
    """Run; return report, states."""
    seen = {}

    class Watch:
        def on_start(self, states):
            pass

        on_progress = on_start

        def on_finish(self, states):
            seen.update(states)

    how = {"engine": "serial" if mode == "serial" else "processes"}
    if mode == "debug":
        how = {"multiprocessing": False}
    elif mode == "dask":
        how = {"engine": workspan.engines.Dask(cluster.address)}
    elif mode == "ray":
        how = {"engine": workspan.engines.Ray()}
    edges = [(tasks[0], tasks[1])] if len(tasks) > 1 else []
    report = workspan.run_blockwise(workspan.Pipeline(tasks, edges), progress=Watch(), return_report=True, **how)
    return report, seen


def check(tasks, plans, report, states, printed, calls, earlier):
    """Report, states, store, panel, summary and the files of user code tell the same numbers.

    Return (task, index) -> attempts, in this run.
    """
    made = {}
    for name in (path.name for path in calls.iterdir()):
        task_id, index, _ = name.split(".")
        number = [plan.task_id for plan in plans].index(task_id)
        made[number, int(index)] = made.get((number, int(index)), 0) + 1
    fresh = {block: count - earlier.get(block, 0) for block, count in made.items() if count > earlier.get(block, 0)}
    for number, (task, plan) in enumerate(zip(tasks, plans, strict=True)):
        own, state = report[plan.task_id], states[plan.task_id]
        blocks = own.blocks
        assert (blocks.count, blocks.skipped) == (state.completed_count, state.skipped_count)
        assert (blocks.total, blocks.failed, blocks.orphaned) == (
            state.total_block_count,
            state.failed_count,
            state.orphaned_count,
        )
        assert state.is_done()
        executed = blocks.count - blocks.skipped
        assert sum(n for (t, _), n in fresh.items() if t == number) == executed + blocks.failures
        if plan.tracked:
            for stat in (blocks.wall, blocks.cpu, blocks.peak_rss, blocks.io_read, blocks.io_write):
                assert stat is None or stat.n == executed
            assert blocks.wall is not None or not executed
        has_workers = report[plan.task_id].workers.count > 0
        assert blocks.round_trip.n == (executed if has_workers else 0)
        assert sum(worker.blocks for worker in own.workers.records) == (executed if has_workers else 0)
        if has_workers:
            assert sum(worker.blocks_failed for worker in own.workers.records) == blocks.failures
            assert own.workers.count == state.worker_start_count
        row = re.search(rf"^  {plan.task_id} \S+ +(.*)$", printed, re.M).group(1)
        assert [int(text) for text in row.split()] == [
            blocks.total,
            blocks.count,
            blocks.skipped,
            blocks.failed,
            blocks.orphaned,
        ]
        head = re.search(rf"^{plan.task_id}   (\d+) blocks?(?: \((\d+) skipped\))?", printed, re.M)
        if head is not None:  # the panel tells nothing of a task of which nothing was measured
            assert (int(head.group(1)), int(head.group(2) or 0)) == (blocks.count, blocks.skipped)
        else:
            assert not executed or not (has_workers or plan.tracked)
        assert task.report().to_json() == own.to_json()
    return made, fresh


def flags_and_failures(task, plan):
    with TrackingStore.open(task.tracking_path, task.layout, resource_tracking=plan.tracked) as store:
        assert store.was_in_flight == ()
        return set(np.flatnonzero(store.done_blocks()).tolist()), store.failures_of_blocks().tolist()


@pytest.mark.filterwarnings("ignore:.*check_function")
@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param(mode, seed, marks=[*([leaky] if mode == "ray" else []), *([pytest.mark.once] if seed else [])])
        for mode, n in EXAMPLES.items()
        for seed in range(n * 10 if FULL else n)
    ],
)
def test_all_counts_are_one(mode, seed, tmp_path, capsys, request):
    """B125, B122, B121, B119, D4: one count in report, states, store, statistics, panel and the user's own files.

    It is the count that follows from what was planned; and a resumed run does exactly what was not done.
    """
    calls, healed = tmp_path / "calls", tmp_path / "healed"
    calls.mkdir()
    cluster = request.getfixturevalue("dask_cluster") if mode == "dask" else None
    plans = draw(mode, seed)
    tasks = [task_of(plan, tmp_path, healed) for plan in plans]
    edges = [(tasks[0], tasks[1])] if len(tasks) > 1 else []
    inputs = brute_inputs(workspan.Pipeline(tasks, edges).spec())
    completed, failed, orphaned, attempts = model(plans, inputs)

    report, states = run(tasks, mode, cluster)
    made, fresh = check(tasks, plans, report, states, capsys.readouterr().out, calls, {})
    assert fresh == attempts
    assert bool(report) == (not failed and not orphaned)
    done = {}
    for number, (task, plan) in enumerate(zip(tasks, plans, strict=True)):
        blocks = report[plan.task_id].blocks
        mine = {index for n, index in completed if n == number}
        passed = plan.masked | plan.before | plan.found
        assert (blocks.count, blocks.skipped) == (len(mine), len(mine & passed))
        assert blocks.failed == sum(n == number for n, _ in failed)
        assert blocks.orphaned == sum(n == number for n, _ in orphaned)
        flags, failures = flags_and_failures(task, plan)
        done[number] = flags
        # A mask marks nothing, and what was done before stays done, also where this run could not come to it.
        assert flags == (mine - (plan.masked - plan.before)) | plan.before
        assert len(flags - plan.before) == blocks.count - len(mine & (plan.masked | plan.before))
        expected = [attempts.get((number, i), 0) - ((number, i) in completed) for i in range(plan.blocks)]
        assert failures == [max(0, count) for count in expected]
        assert sum(failures) == blocks.failures
        records = {record.coord[0] for record in task.report().block_records() if record.done}
        if plan.tracked:
            assert records == (mine - passed) | plan.before

    healed.touch()
    report, states = run(tasks, mode, cluster)
    _, fresh = check(tasks, plans, report, states, capsys.readouterr().out, calls, made)
    assert report
    assert fresh == {
        (number, index): 1
        for number, plan in enumerate(plans)
        for index in range(plan.blocks)
        if index not in done[number] | plan.masked | plan.found
    }
    for number, plan in enumerate(plans):
        blocks = report[plan.task_id].blocks
        assert blocks.count == plan.blocks
        assert blocks.skipped == len(done[number] | plan.masked | plan.found)
        assert blocks.failures == 0


@pytest.mark.filterwarnings("ignore:.*check_function")
@pytest.mark.parametrize("mode", ["serial", "debug"])
@pytest.mark.parametrize("seed", range(100, 103))
def test_measuring_changes_nothing(mode, seed, tmp_path, capsys):
    """B124: the same blocks run in the same order with the same outcome, measured or not."""
    seen = []
    for tracked in (True, False):
        folder = tmp_path / str(tracked)
        (folder / "calls").mkdir(parents=True)
        plans = draw(mode, seed)
        for plan in plans:
            plan.tracked = tracked
            plan.before |= plan.found  # check functions are for tasks that are not tracked
            plan.found.clear()
        tasks = [task_of(plan, folder, folder / "healed") for plan in plans]
        report, states = run(tasks, mode)
        order = (folder / "order").read_text().split() if (folder / "order").exists() else []
        counts = [
            (own.blocks.count, own.blocks.skipped, own.blocks.failed, own.blocks.orphaned, own.blocks.failures)
            for own in report.tasks.values()
        ]
        flags = [flags_and_failures(task, plan) for task, plan in zip(tasks, plans, strict=True)]
        seen.append((order, counts, flags, {name: str(state) for name, state in states.items()}))
    assert seen[0] == seen[1]
