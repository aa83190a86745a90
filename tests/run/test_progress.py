"""What observers are told of a whole run."""

from __future__ import annotations

import pytest

import workspan as ws


class Told:
    """Keeps (completed, total, skipped) of every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[int, int, int]]]] = []

    def _keep(self, name, states):
        counts = [(s.completed_count, s.total_block_count, s.skipped_count) for s in states.values()]
        self.calls.append((name, counts))

    def on_start(self, states):
        self._keep("start", states)

    def on_progress(self, states):
        self._keep("progress", states)

    def on_finish(self, states):
        self._keep("finish", states)


@pytest.mark.usefixtures("logs")
def test_bundled_inputs_end_at_the_whole(tmp_path):
    """KF-52: 200 inputs in 34 bundles are 34 blocks from beginning to end, and the end is told once."""
    told = Told()
    rows = ws.range(2000, blocks=200).map_batches(lambda batch: batch, batch_size=60)
    rows.write_parquet(tmp_path / "out", engine="serial", progress=told)
    assert {total for _, [(_, total, _)] in told.calls} == {34}
    assert [name for name, _ in told.calls].count("finish") == 1
    assert told.calls[-1] == ("finish", [(34, 34, 0)])


@pytest.mark.usefixtures("logs")
def test_a_part_of_the_whole_is_planned_as_it_is_processed():
    """KF-59: 35..65 of 0..100 in blocks of 10 is four blocks of the grid: 4 planned, 4 done, none skipped."""
    told, seen = Told(), []
    region = ws.Roi((35,), (30,)).snap_to_grid((10,), "grow")
    task = ws.Task(
        "part", region, ws.Roi((0,), (10,)), ws.Roi((0,), (10,)), lambda b: seen.append(b.write_roi.begin[0])
    )
    assert ws.run_blockwise(task, engine="serial", progress=told)
    assert sorted(seen) == [30, 40, 50, 60]
    assert told.calls[0] == ("start", [(0, 4, 0)])
    assert told.calls[-1] == ("finish", [(4, 4, 0)])
