"""Run the blocks of an array task by hand, in any order, without engine, schedule or store."""

from __future__ import annotations

import random

from workspan.grid import Block


def run_by_hand(task, seed=0):
    """Make the outputs of *task* and run its blocks in random order; return the task."""
    task.check_run(in_process=True)
    task.check_outputs(None, fresh=True)
    task.make_outputs()
    indices = list(range(task.layout.num_blocks))
    random.Random(seed).shuffle(indices)
    for index in indices:
        task.process_function(Block.at(task.layout, index, task.task_id))
    return task
