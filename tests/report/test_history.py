"""The summary of a run: small, exact where it counts, and the same on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from workspan.errors import InvalidMetadataError
from workspan.grid import Layout
from workspan.measure.stats import Stat, Welford
from workspan.report.forecast import Forecast, TaskForecast, WorkersForecast
from workspan.report.history import BlockSamples, LayoutFields, RunSummary, SizeTimes, by_size, spread_rows

LAYOUT = Layout((0, 0), (40, 30), (0, 0), (12, 10), (1, 0), (10, 10), "shrink", True)
SUMMARY = RunSummary(
    run_id="r",
    task_id="t",
    started_at=1.0,
    wall_seconds=2.0,
    outcome="completed",
    layout=LayoutFields.of(LAYOUT),
    total=12,
    executed=12,
    skipped=0,
    failed=0,
    failures=1,
    max_workers=2,
    workers=2,
    cpus=4,
    basis="round trip",
    later=by_size([100.0] * 10, [0.1] * 9 + [1.0], 10),
    first=by_size([100.0, 100.0], [0.5, 0.7], 2),
    startup=Stat(2, 0.1, 0.01, 0.09, 0.11, 0.2),
    teardown=Stat(),
    gap_seconds=1e-4,
    lead_seconds=0.01,
    tail_seconds=None,
    overhead_seconds=None,
    cpu_share=None,
    peak_rss=None,
    steps={"read": 0.5},
    upstream=("s",),
)


def test_a_summary_reads_back_unchanged() -> None:
    """What is not measured is null and comes back as None; the layout comes back as a layout (D32)."""
    text = json.dumps(SUMMARY.to_json(), allow_nan=False)
    assert RunSummary.from_json(json.loads(text)) == SUMMARY
    assert RunSummary.from_json(json.loads(text)).layout.layout() == LAYOUT
    assert len(text) < 4000


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_workers": 0},
        {"cpus": 0},
        {"workers": -3},
        {"gap_seconds": 1e300},
        {"lead_seconds": -5.0},
        {"cpu_share": -1.0},
        {"steps": {"read": -0.5}},
        {"startup": Stat(2, -0.1, 0.01, -0.2, 0.11, -0.2)},
        {"later": (replace(SUMMARY.later[0], size=1e308),)},
        {"later": (replace(SUMMARY.later[0], size=-1.0),)},
        {"later": (replace(SUMMARY.later[0], blocks=0),)},
        {"later": (replace(SUMMARY.later[0], means=(), counts=()),)},
        {"later": (replace(SUMMARY.later[0], means=(-1.0,) * len(SUMMARY.later[0].means)),)},
        {"first": (replace(SUMMARY.first[0], seconds=Stat(2, 1e308, 0.0, 0.0, 1e308, 1e308)),)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_figures_that_no_run_has_are_refused(wrong: dict[str, object]) -> None:
    """Damaged or made-up figures make the line a damaged one, not a forecast of less than nothing (R61, E84)."""
    with pytest.raises(InvalidMetadataError, match="is not possible"):
        RunSummary.from_json(replace(SUMMARY, **wrong).to_json())  # type: ignore[arg-type]


def test_a_summary_of_a_later_version_is_refused() -> None:
    """Its fields may mean something else (D32)."""
    with pytest.raises(InvalidMetadataError, match="'schema' is 99"):
        RunSummary.from_json({**SUMMARY.to_json(), "schema": 99})


def test_first_blocks_of_workers_are_kept_apart() -> None:
    """The first block of each worker is a warm-up, whatever comes between (D32)."""
    samples = BlockSamples()
    for index, worker in enumerate([7, 7, 8, 7, 8]):
        samples.add(index, float(index), worker)
    assert [index for index, _ in samples.first] == [0, 2]
    assert [index for index, _ in samples.later] == [1, 3, 4]


def test_samples_are_an_even_choice_in_bounded_memory() -> None:
    """Of 100,000 blocks some 1,000 to 2,000 are kept, from all of the run (D32)."""
    samples = BlockSamples()
    for index in range(100_001):
        samples.add(index, 1.0, 0)
    kept = [index for index, _ in samples.later]
    assert samples.later_count == 100_000
    assert 1000 <= len(kept) <= 2048
    steps = {after - before for before, after in pairwise(kept)}
    assert len(steps) == 1
    assert kept[-1] > 99_000


def test_slices_keep_the_mean_and_the_slow_end() -> None:
    """The mean over slices is that of the blocks, and a straggler in a hundred stays one (D32)."""
    seconds = [0.1 + 1e-4 * n for n in range(99)] + [5.0]
    made = SizeTimes.of([64.0] * 100, seconds, 200)
    assert sum(m * c for m, c in zip(made.means, made.counts, strict=True)) == pytest.approx(sum(seconds))
    assert sum(made.counts) == 100
    assert made.means[-1] == 5.0
    assert made.blocks == 200
    assert made.p50 == pytest.approx(0.105)


def test_many_sizes_are_put_together() -> None:
    """A thousand sizes make about a dozen entries with all the blocks; one size makes one (D32)."""
    rows = by_size([float(n) for n in range(1, 1001)], [1.0] * 1000, 5000)
    assert 10 <= len(rows) <= 13
    assert sum(row.blocks for row in rows) == pytest.approx(5000, abs=20)
    assert by_size([5.0, float("nan")], [1.0, 2.0], 2)[0].seconds.n == 1
    assert by_size([], [], 0) == ()


def test_rows_have_the_figures_that_they_stand_for() -> None:
    """Number, mean, spread and ends of a summary are those of the rows made from it (D32)."""
    fold = Welford()
    fold.extend([1.0, 2.0, 2.5, 3.0, 4.0, 9.0])
    stat = fold.stat()
    rows = list(spread_rows(stat))
    count = sum(weight for _, weight in rows)
    mean = sum(value * weight for value, weight in rows) / count
    square = sum((value - mean) ** 2 * weight for value, weight in rows) / (count - 1)
    assert count == pytest.approx(6)
    assert mean == pytest.approx(stat.mean)
    assert square**0.5 == pytest.approx(stat.std, rel=0.05)
    assert (rows[0][0], rows[-1][0]) == (1.0, 9.0)
    assert list(spread_rows(Stat())) == []


def test_a_forecast_reads_back_unchanged() -> None:
    """The object and its JSON are one value (D32)."""
    task = TaskForecast("t", 10, 8, 2, "model", "8 blocks of 1 run", 4.0, 1.0, steps={"read": 0.25})
    row = WorkersForecast(2, 2.0, 1.5, 3.0, None, None)
    made = Forecast(
        {"t": task, "u": replace(task, task_id="u", work_seconds=12.0, steps={})},
        2.0, 1.5, 3.0, 0.9, 16.0, 2.0, "model", "8 blocks of 1 run", "simulated", (row,),
    )  # fmt: skip
    assert Forecast.from_json(json.loads(json.dumps(made.to_dict(), allow_nan=False))) == made
    assert (made.parallelism, made.blocks, made.total) == (8.0, 16, 20)
    assert made.steps == {"read": pytest.approx(0.0625)}
    assert made.with_workers(2) is row
    assert made.with_workers(3) is None
    assert replace(made, span_seconds=None).parallelism is None
