"""Blocks that are granted ahead of their worker: none waits for a slow one, and none is charged with a death."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from helpers.engine_kit import Gate
from helpers.pipelines import brute_inputs, descendants
from helpers.runs import line, note, run
from workspan import Pipeline
from workspan.engines import Processes
from workspan.schedule import dispatch
from workspan.schedule.events import Ended, Returned, TakenBack
from workspan.store.tracking import TrackingStore

BLOCKS, SLOW = 100, 40


class Watched(Processes):
    """Remembers what was taken back."""

    def __init__(self):
        super().__init__()
        self.back = []

    def poll(self, timeout):
        events = super().poll(timeout)
        self.back += [index for event in events if isinstance(event, TakenBack) for index in event.indices]
        return events


@pytest.fixture(autouse=True)
def far_ahead(monkeypatch):
    """Let grants run ahead as far as they may, however slow this machine is."""
    monkeypatch.setattr(dispatch, "AHEAD_SECONDS", 100.0)


class Opener(threading.Thread):
    """Waits in a thread until all of *names* are in a folder, notes whether they came, and opens a gate."""

    def __init__(self, gate, folder, names):
        super().__init__()
        self.missing = set(names)
        self._gate, self._folder = gate, folder
        self.start()

    def run(self):
        end = time.monotonic() + 60
        while self.missing and time.monotonic() < end:
            self.missing -= set(os.listdir(self._folder))
            time.sleep(0.01)
        # Only now may the slow block go on; it may not have come to the gate, if the machine is broken.
        while time.monotonic() < end + 10:
            try:
                os.close(os.open(self._gate.path, os.O_WRONLY | os.O_NONBLOCK))
                return
            except OSError:
                time.sleep(0.01)


@pytest.mark.parametrize("kind", ["block", "client"])
def test_all_other_blocks_are_done_while_a_slow_one_is_held(kind, tmp_path, calls):
    """W10, B125, D4: what had been granted behind the slow block is done meanwhile, and so is what depends on that."""
    gate = Gate(tmp_path / "gate")
    path = gate.path

    def work(block):
        if (block.task_id, block.index) == ("first", SLOW):
            Path(path).read_text()
        (calls / f"{block.task_id}.{block.index}").touch(exist_ok=False)

    def through_client():
        import workspan

        workspan.Client().run(work)

    function = work if kind == "block" else through_client
    first = line(BLOCKS, function, "first", max_workers=2, tracking_path=tmp_path / "first")
    second = line(BLOCKS - 1, function, "second", context=5, max_workers=2, tracking_path=tmp_path / "second")
    pipeline = Pipeline([first, second], [(first, second)])
    names = {0: "first", 1: "second"}
    waiting = {(0, SLOW)} | descendants(brute_inputs(pipeline.spec()), {(0, SLOW)})
    others = {(n, i) for n, count in ((0, BLOCKS), (1, BLOCKS - 1)) for i in range(count)} - waiting
    assert len(others) > 150
    opener = Opener(gate, calls, {f"{names[number]}.{index}" for number, index in others})
    engine = Watched()
    try:
        report = run(pipeline, engine)
    finally:
        opener.join()
    assert not opener.missing
    assert report
    assert [report[name].blocks.count for name in names.values()] == [BLOCKS, BLOCKS - 1]
    assert [report[name].blocks.failures for name in names.values()] == [0, 0]
    assert len(list(calls.iterdir())) == 2 * BLOCKS - 1
    if kind == "block":
        assert set(engine.back) - {SLOW}, "nothing had been granted behind the slow block"


@pytest.mark.parametrize("moment", ["in the block", "before the report", "after the report"])
def test_a_worker_that_dies_with_blocks_granted_to_it_costs_one_attempt_at_most(moment, tmp_path, calls, monkeypatch):
    """R2, R4, D4, B122, KF-25: a death in a block, or before its result is sent, is an attempt of that block only;
    after that it is an attempt of none, although the next block had been granted.
    """
    monkeypatch.setattr(dispatch, "HOARD_SECONDS", 100.0)  # nothing is taken back: all of it dies with the worker
    attempt = note(calls)

    def work(block):
        from workspan.engines.connection import Connection

        if attempt(block) == 0 and block.index == SLOW:
            report = Connection.report

            def deadly(self, *args):
                if moment == "after the report":
                    report(self, *args)
                os.kill(os.getpid(), signal.SIGKILL)

            if moment == "in the block":
                deadly(None)
            Connection.report = deadly

    task = line(BLOCKS, work, max_workers=2, max_retries=1, tracking_path=tmp_path / "store", resource_tracking=True)
    report = run(task, "processes")["t"]
    lost = int(moment != "after the report")
    assert report.blocks.count == BLOCKS
    assert report.blocks.failures == lost
    assert report.workers.exits["error"] == 1
    assert sum(record.blocks_failed for record in report.workers.records) == lost
    assert len(list(calls.iterdir())) == BLOCKS + lost
    with TrackingStore.open(tmp_path / "store", task.layout, resource_tracking=True) as store:
        assert store.failures_of_blocks().tolist() == [lost if index == SLOW else 0 for index in range(BLOCKS)]
        assert store.done_blocks().all()


@pytest.mark.parametrize("kind", ["block", "client"])
def test_a_death_right_after_the_last_result_is_charged_to_no_block(kind, tmp_path, calls, monkeypatch):
    """R4, D4, B122: result and end come together; the next block is not granted to the dead, and is no lost attempt."""
    monkeypatch.setattr(dispatch, "AHEAD_SECONDS", 0.0)  # a worker holds one block at a time
    attempt = note(calls)

    class Late(Processes):
        """Reports the result of the block together with the end of its worker."""

        def poll(self, timeout):
            events = super().poll(timeout)
            for event in list(events):
                if isinstance(event, Returned) and event.index == SLOW:
                    while not any(isinstance(e, Ended) and e.worker == event.worker for e in events):
                        events += super().poll(None)
            return events

    def work(block):
        from workspan.engines.connection import Connection

        if attempt(block) == 0 and block.index == SLOW:
            report = Connection.report

            def deadly(self, *args):
                report(self, *args)
                os.kill(os.getpid(), signal.SIGKILL)

            Connection.report = deadly

    def through_client():
        import workspan

        workspan.Client().run(work)

    function = work if kind == "block" else through_client
    task = line(SLOW + 9, function, max_workers=2, max_retries=0, tracking_path=tmp_path / "store")
    report = run(task, Late())["t"]
    assert (report.blocks.count, report.blocks.failures, report.workers.exits["error"]) == (SLOW + 9, 0, 1)
    assert len(list(calls.iterdir())) == SLOW + 9
