"""Which blocks may run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.layouts import layouts
from helpers.pipelines import brute_inputs, check_counts, descendants, pipelines
from workspan.errors import ConfigurationError
from workspan.grid import Layout
from workspan.schedule.ledger import CHECKED_AHEAD, Ledger
from workspan.schedule.resume import DONE, MASKED, skip_known
from workspan.schedule.spec import PipelineSpec, TaskSpec

SQUARE = Layout((0, 0), (6, 6), (0, 0), (3, 3), (1, 1), (1, 1))


def line(count, block=1, conflict=False):
    return Layout((0,), (count * block,), (0,), (block,), (0,), (block,), "valid", conflict)


def single(layout, **kwargs):
    return PipelineSpec((TaskSpec("t", layout, **kwargs),))


@given(pipelines(), st.randoms(use_true_random=False))
def test_any_order_of_outcomes_keeps_the_rules(pipeline, random):
    """B30, B36, B61: no block before its inputs, each completed at most once and attempted at most max_retries + 1
    times, orphans are exactly what transitively waits for a failed block, and the run always ends.
    """
    ledger = Ledger(pipeline)
    inputs = brute_inputs(pipeline)
    done, failed, attempts = set(), set(), dict.fromkeys(inputs, 0)
    held = []
    while True:
        check_counts(ledger)
        task = random.randrange(len(pipeline.tasks))
        index = ledger.acquire(task) if random.random() < 0.7 else None
        if index is not None:
            assert inputs[task, index] <= done
            assert (task, index) not in done | failed
            attempts[task, index] += 1
            assert attempts[task, index] <= pipeline.tasks[task].max_retries + 1
            held.append((task, index))
        elif held:
            block = held.pop(random.randrange(len(held)))
            if random.random() < 0.8:
                assert ledger.complete(*block)
                done.add(block)
            elif ledger.fail(*block):
                failed.add(block)
        elif ledger.is_done():
            break
        else:
            assert not ledger.is_stalled()
    orphaned = descendants(inputs, failed)
    assert done | failed | orphaned == set(inputs)
    assert not done & orphaned
    for number, blocks in enumerate(ledger.tasks):
        mine = {b for b in orphaned if b[0] == number}
        assert blocks.state.orphaned_count == len(mine)
        assert blocks.state.failed_count == len({b for b in failed if b[0] == number})


def test_blocks_are_handed_out_level_by_level_in_order_of_ids():
    """B24, B34: the sequence of the square, each level in ascending id."""
    ledger = Ledger(single(SQUARE))
    sequence = []
    while (index := ledger.acquire(0)) is not None:
        sequence.append(SQUARE.block_id(index))
        ledger.complete(0, index)
    assert sequence == [12, 23, 25, 40, 8, 17, 19, 32, 7, 16, 18, 31, 4, 11, 13, 24]


def test_a_retried_block_goes_to_the_end_of_the_queue():
    """B34, B36: the blocks ready from the start come first, then the retried one."""
    ledger = Ledger(single(line(3)))
    assert ledger.acquire(0) == 0
    assert ledger.fail(0, 0) is False
    assert [ledger.acquire(0) for _ in range(4)] == [1, 2, 0, None]


def test_a_refused_block_is_not_tried_again():
    """B36: where another attempt would end alike there is none; the retries are for what may go well."""
    ledger = Ledger(single(line(2), max_retries=5))
    assert ledger.acquire(0) == 0
    assert ledger.fail(0, 0, raised=True, refused=True) is True
    assert ledger.tasks[0].state.failed_count == 1
    assert [ledger.acquire(0) for _ in range(2)] == [1, None]


def test_a_block_not_in_flight_changes_nothing():
    """B37: a second or a foreign release is ignored."""
    ledger = Ledger(single(line(2)))
    index = ledger.acquire(0)
    assert ledger.complete(0, index)
    before = str(ledger.tasks[0].state)
    assert not ledger.complete(0, index)
    assert ledger.fail(0, index) is None
    assert ledger.fail(0, 1) is None
    assert str(ledger.tasks[0].state) == before


def test_a_block_that_was_never_started_is_no_attempt():
    """D4: giving it back leaves its retries untouched and hands it out next."""
    ledger = Ledger(single(line(3), max_retries=0))
    [ledger.acquire(0) for _ in range(3)]
    ledger.give_back(0, 1)
    check_counts(ledger)
    assert ledger.acquire(0) == 1
    assert ledger.complete(0, 1)


def test_abandoning_orphans_everything_downstream_and_nothing_else():
    """B62: unfinished blocks of the task and of its descendants become orphaned; others go on."""
    tasks = (TaskSpec("a", line(3)), TaskSpec("b", line(3)), TaskSpec("c", line(3)))
    ledger = Ledger(PipelineSpec(tasks, ((0, 1),)))
    ledger.complete(0, ledger.acquire(0))
    ledger.abandon(0, "worker restart cap exhausted")
    a, b, c = (blocks.state for blocks in ledger.tasks)
    assert (a.completed_count, a.orphaned_count, a.abandon_reason) == (1, 2, "worker restart cap exhausted")
    assert (b.orphaned_count, b.abandon_reason) == (3, "upstream task abandoned")
    assert not c.abandoned
    assert ledger.acquire(0) is None
    assert ledger.acquire(1) is None
    assert ledger.acquire(2) == 0


def test_abandoning_a_layered_pipeline_visits_each_task_once():
    """B62: with 2 x 40 tasks, every one of a layer waiting for both of the layer before, there are 2^40 paths."""
    tasks = tuple(TaskSpec(f"{layer:02}{side}", line(1)) for layer in range(40) for side in "ab")
    edges = tuple((2 * n + s, 2 * n + 2 + d) for n in range(39) for s in (0, 1) for d in (0, 1))
    ledger = Ledger(PipelineSpec(tasks, edges))
    ledger.abandon(0, "worker restart cap exhausted")
    assert sum(blocks.state.abandoned for blocks in ledger.tasks) == 79


def test_a_reader_without_inputs_is_refused():
    """B31: before anything runs."""
    with pytest.raises(ConfigurationError, match="wait for ever"):
        Ledger(PipelineSpec((TaskSpec("a", line(2)), TaskSpec("b", line(5))), ((0, 1),)))


def test_a_fan_in_is_unlocked_by_its_last_input():
    """B28, B32: one block that reads a thousand becomes ready once."""
    whole = Layout((0,), (1000,), (0,), (1000,), (0,), (1000,), "valid", False)
    ledger = Ledger(PipelineSpec((TaskSpec("a", line(1000)), TaskSpec("b", whole)), ((0, 1),)))
    for _ in range(999):
        ledger.complete(0, ledger.acquire(0))
    assert ledger.acquire(1) is None
    ledger.complete(0, ledger.acquire(0))
    assert ledger.acquire(1) == 0
    assert ledger.acquire(1) is None


def test_blocks_unlocked_by_one_release_are_queued_by_id():
    """B34: a fan-out over a plane goes out in order of spatial ids, which is not C order."""
    whole = Layout((0, 0), (3, 3), (0, 0), (3, 3), (0, 0), (3, 3), "valid", False)
    plane = Layout((0, 0), (3, 3), (0, 0), (1, 1), (0, 0), (1, 1), "valid", False)
    ledger = Ledger(PipelineSpec((TaskSpec("a", whole), TaskSpec("b", plane)), ((0, 1),)))
    ledger.complete(0, ledger.acquire(0))
    order = [ledger.acquire(1) for _ in range(9)]
    assert [plane.block_id(index) for index in order] == sorted(plane.block_id(index) for index in order)
    assert order != sorted(order)


class FakeChecker:
    """Answers when the test says so."""

    def __init__(self):
        self.asked, self.answers = [], {}

    def ask(self, index):
        self.asked.append(index)

    def answer(self, index):
        return self.answers.pop(index, None)


class TestChecker:
    def test_blocks_keep_their_order_whatever_order_the_answers_have(self):
        """B34, B35, W18: asked ahead, handed out in turn; nothing goes out while the next answer is missing."""
        ledger = Ledger(single(line(200)))
        checker = ledger.tasks[0].checker = FakeChecker()
        assert ledger.acquire(0) is None
        assert checker.asked == list(range(CHECKED_AHEAD))
        checker.answers = {1: False, 2: False, 3: True}
        assert ledger.acquire(0) is None
        checker.answers[0] = False
        assert [ledger.acquire(0) for _ in range(3)] == [0, 1, 2]
        assert ledger.acquire(0) is None
        assert ledger.tasks[0].state.skipped_count == 1
        check_counts(ledger)

    def test_what_is_known_is_not_asked(self):
        """B35: the done flag and the mask come before the check function."""
        ledger = Ledger(single(line(3)))
        skip_known(ledger, [np.array([DONE, 0, MASKED], np.uint8)], lambda *args: None)
        checker = ledger.tasks[0].checker = FakeChecker()
        ledger.acquire(0)
        assert checker.asked == [1]


class TestResume:
    @given(pipelines(), st.randoms(use_true_random=False))
    def test_skipping_by_arrays_equals_skipping_one_by_one(self, pipeline, random):
        """B35, B121, KF-18: the same blocks are skipped and the same ones run, however done blocks are looked up."""
        flags = [
            np.array([random.choice((0, DONE, DONE, MASKED)) for _ in range(task.layout.num_blocks)], np.uint8).reshape(
                task.layout.counts
            )
            for task in pipeline.tasks
        ]

        def run(by_arrays):
            skips, runs = [], []
            ledger = Ledger(pipeline, on_skip=lambda task, indices, why: skips.extend((task, i, why) for i in indices))
            if by_arrays:
                skip_known(ledger, flags, lambda task, indices, why: skips.extend((task, int(i), why) for i in indices))
                check_counts(ledger)
            else:
                for blocks, flag in zip(ledger.tasks, flags, strict=True):
                    flat = flag.reshape(-1)
                    blocks.precheck = lambda i, flat=flat: {0: None, DONE: "done", MASKED: "mask"}[int(flat[i])]
            progress = True
            while progress:
                progress = False
                for number in range(len(pipeline.tasks)):
                    while (index := ledger.acquire(number)) is not None:
                        runs.append((number, index))
                        ledger.complete(number, index)
                        progress = True
            assert ledger.is_done()
            return skips, runs

        skips, runs = run(by_arrays=True)
        slow_skips, slow_runs = run(by_arrays=False)
        assert sorted(skips) == sorted(slow_skips)
        assert len(skips) == len(set(skips))
        assert sorted(runs) == sorted(slow_runs)

    @given(layouts(conflict=True, ranks=(1, 2)), st.randoms(use_true_random=False))
    def test_a_done_block_waits_for_inputs_that_run_again(self, layout, random):
        """B18, B121: skipping never lets a dependent overtake an input that is not complete."""
        flags = np.array([random.random() < 0.8 for _ in range(layout.num_blocks)], np.uint8).reshape(layout.counts)
        pipeline = single(layout)
        inputs = brute_inputs(pipeline)
        done = set()
        ledger = Ledger(pipeline, on_skip=lambda task, indices, why: done.update((task, i) for i in indices))
        skip_known(ledger, [flags], lambda task, indices, why: done.update((task, int(i)) for i in indices))
        assert all(inputs[block] <= done for block in done)
        while (index := ledger.acquire(0)) is not None:
            assert inputs[0, index] <= done
            done.add((0, index))
            ledger.complete(0, index)
        assert ledger.is_done()
