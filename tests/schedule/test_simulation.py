"""Runs on a clock that jumps: the makespans that arithmetic gives, by the scheduler itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workspan.errors import ConfigurationError
from workspan.grid import Layout
from workspan.schedule.simulation import Level, Timing, bounds, simulate, with_workers
from workspan.schedule.spec import PipelineSpec, TaskSpec


def line(task_id: str, count: int, context: int = 0, **rules: Any) -> TaskSpec:
    """A task over *count* blocks of ten on a line."""
    layout = Layout(
        (0,), (count * 10 + 2 * context,), (0,), (10 + 2 * context,), (context,), (10,), "valid", context > 0
    )
    return TaskSpec(task_id, layout, **rules)


def of(*tasks: TaskSpec, edges: tuple[tuple[int, int], ...] = ()) -> PipelineSpec:
    """A pipeline of *tasks*."""
    return PipelineSpec(tasks, edges)


def test_equal_blocks_share_the_workers() -> None:
    """10 blocks of 1 s on 2 workers that start in 0.5 s and warm up for 2 s: 7.5 s, and 14 s of work (D46)."""
    timing = Timing([1.0] * 10, startup=lambda: 0.5, warm_up=lambda: 2.0, teardown=0.25)
    found = simulate(of(line("t", 10, max_workers=2)), [timing])
    assert found.last_return == pytest.approx(7.5)
    assert found.wall_seconds == pytest.approx(7.75)
    assert found.work_seconds[0] == pytest.approx(14.0)
    assert (found.executed, found.workers, found.most_alive) == ((10,), (2,), 2)


def test_gaps_lie_between_blocks() -> None:
    """What the driver takes between two blocks counts, and is no work (D46)."""
    found = simulate(of(line("t", 4)), [Timing([1.0] * 4, gap=0.1)])
    assert found.last_return == pytest.approx(4.4)
    assert found.work_seconds == (4.0,)


def test_neighbours_in_conflict_wait_for_each_other() -> None:
    """Blocks that read what others write run in two waves, however many workers there are (D46, B30)."""
    free = simulate(of(line("t", 8, max_workers=8)), [Timing([1.0] * 8)])
    tied = simulate(of(line("t", 8, context=5, max_workers=8)), [Timing([1.0] * 8)])
    assert (free.last_return, tied.last_return) == (1.0, 2.0)


def test_a_pipeline_overlaps_block_by_block() -> None:
    """The second task begins with the first block of the first one, and ends a block behind it (D46)."""
    spec = of(line("a", 10), line("b", 10), edges=((0, 1),))
    assert simulate(spec, [Timing([1.0] * 10)] * 2).last_return == pytest.approx(11.0)


def test_resources_bound_the_workers() -> None:
    """A budget for one worker leaves one, whatever max_workers says; none at all is refused (D46)."""
    spec = of(line("t", 6, max_workers=6, requires={"gpu": 1}))
    found = simulate(spec, [Timing([1.0] * 6)], resources={"gpu": 1})
    assert (found.last_return, found.workers) == (6.0, (1,))
    with pytest.raises(ConfigurationError, match="gpu"):
        simulate(spec, [Timing([1.0] * 6)], resources={"gpu": 0})


def test_done_and_masked_blocks_take_no_time() -> None:
    """Flagged blocks do not run, and what waits for them need not wait (D46)."""
    flags = np.array([1, 1, 0, 2, 0, 0, 1, 1], np.uint8)
    found = simulate(of(line("t", 8)), [Timing([1.0] * 8)], flags=[flags])
    assert (found.executed, found.last_return) == ((3,), 3.0)
    nothing = simulate(of(line("t", 8)), [Timing([1.0] * 8)], flags=[np.ones(8, np.uint8)])
    assert (nothing.executed, nothing.wall_seconds) == ((0,), 0.0)


def test_a_straggler_at_the_end_is_seen() -> None:
    """The last block takes 10 s: the run ends with it, and not after the mean (D46)."""
    found = simulate(of(line("t", 9, max_workers=3)), [Timing([1.0] * 8 + [10.0])])
    assert found.last_return == 12.0


def test_blocks_compete_for_processors_while_they_run() -> None:
    """8 workers with busy blocks on 2 processors are no faster than 2 (D32)."""
    spec = of(line("t", 400, max_workers=8))
    busy = simulate(spec, [Timing([1.0] * 400, cpu_share=1.0)], cpus=2)
    idle = simulate(spec, [Timing([1.0] * 400, cpu_share=0.1)], cpus=2)
    assert busy.last_return == pytest.approx(200.0, rel=0.03)
    assert idle.last_return == pytest.approx(50.0)


def test_short_blocks_are_granted_ahead_and_taken_back() -> None:
    """Short blocks with a long one among them: those behind it go to the other worker, and all run once (B100)."""
    blocks = [1e-4] * 200
    blocks[60] = 5.0
    found = simulate(of(line("t", 200, max_workers=2)), [Timing(blocks)])
    assert found.executed == (200,)
    assert found.last_return == pytest.approx(5.0, abs=0.02)


def test_a_task_for_clients_is_simulated_as_if_they_came() -> None:
    """Without a function nobody is started in a run; the forecast takes max_workers clients (D46)."""
    found = simulate(of(line("t", 4, max_workers=2, has_function=False, timeout=0.5)), [Timing([1.0] * 4)])
    assert found.last_return == 2.0


def test_other_numbers_of_workers_are_other_runs() -> None:
    """with_workers changes the workers of all tasks and nothing else (D46)."""
    spec = with_workers(of(line("a", 4), line("b", 4), edges=((0, 1),)), 4)
    assert [entry.max_workers for entry in spec.tasks] == [4, 4]
    assert simulate(spec, [Timing([1.0] * 4)] * 2).last_return == 2.0


@pytest.mark.parametrize("workers", [1, 3, 16])
@pytest.mark.parametrize("context", [0, 5])
def test_bounds_hold_what_is_simulated(workers: int, context: int) -> None:
    """Beyond 50,000 blocks levels answer; where both can, they agree to 3 % and the bounds hold (D46)."""
    rng = np.random.default_rng(workers)
    spec = of(line("t", 900, context=context, max_workers=workers))
    seconds = rng.lognormal(0.0, 0.5, 900)
    layout = spec.tasks[0].layout
    levels = []
    for level in range(layout.num_levels):
        own = seconds[list(layout.level_blocks(level))]
        levels.append(Level(len(own), float(own.sum()), float(own.max())))
    expected, low, high = bounds([levels], [], [workers])
    exact = simulate(spec, [Timing(seconds.tolist())]).last_return
    assert low <= exact * 1.0001
    assert exact <= high * 1.0001
    assert expected == pytest.approx(exact, rel=0.03)


def test_bounds_of_a_pipeline_are_those_of_its_longest_task() -> None:
    """Tasks that wait for each other block by block overlap: the longer one decides, the sum is the most (D46)."""
    levels = [[Level(1000, 1000.0, 1.0)], [Level(1000, 3000.0, 3.0)]]
    expected, low, high = bounds(levels, [(0, 1)], [2, 2])
    exact = simulate(
        of(line("a", 1000, max_workers=2), line("b", 1000, max_workers=2), edges=((0, 1),)),
        [Timing([1.0] * 1000), Timing([3.0] * 1000)],
    ).last_return
    assert low <= exact <= high
    assert expected == pytest.approx(exact, rel=0.02)
