"""Two runs side by side: what is compared, what is refused, and that runs of the same program do not differ."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import workspan as ws
from helpers.recorded import EPOCH, record
from helpers.runs import line, run
from workspan.errors import ConfigurationError, NotInReportError, UsageTypeError
from workspan.report.comparison_values import Comparison

RNG = np.random.default_rng(10)
WALLS = RNG.lognormal(0.0, 0.4, 120)
LATER = EPOCH + 10_000
SEED = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    RNG.bit_generator.state = SEED


def noise(blocks: int = 120, spread: float = 0.02) -> np.ndarray:
    """Factors around 1."""
    return RNG.lognormal(0.0, spread, blocks)


def two(tmp_path: Path, change: float = 1.0, **kwargs: object) -> tuple[Path, Path]:
    """Record two runs, the second one slower by a factor."""
    record(tmp_path / "a", WALLS * noise())
    record(tmp_path / "b", WALLS * noise() * change, **kwargs)
    return tmp_path / "a", tmp_path / "b"


class TestCompare:
    """What the figures say."""

    def test_a_slower_run_is_a_regression(self, tmp_path: Path) -> None:
        """A fifth more time is said with its interval, and is too much where 10 % are allowed (issue 10)."""
        found = ws.compare(*two(tmp_path, 1.2), fail_over=0.1)
        row = found.row("smooth", "wall")
        assert (row.verdict, row.regression, row.method) == ("more", True, "pairs")
        assert row.low < 0.2 < row.high
        assert row.change == pytest.approx(row.b.mean / row.a.mean - 1)
        assert not found
        assert row in found.regressions

    def test_a_change_that_is_allowed_is_no_regression(self, tmp_path: Path) -> None:
        """A fifth more differs, and is none where 30 % are allowed (issue 10)."""
        found = ws.compare(*two(tmp_path, 1.2), fail_over=0.3)
        assert found.row("smooth", "wall").verdict == "more"
        assert found
        assert not found.regressions

    def test_less_is_no_regression(self, tmp_path: Path) -> None:
        """A faster run is told and fails nobody (issue 10)."""
        found = ws.compare(*two(tmp_path, 0.7), fail_over=0.1)
        assert found.row("smooth", "wall").verdict == "less"
        assert found

    def test_what_does_not_differ_is_the_same(self, tmp_path: Path) -> None:
        """Memory that is equal to a byte is "same", not "unclear" (issue 10)."""
        row = ws.compare(*two(tmp_path)).row("smooth", "memory")
        assert (row.verdict, row.change) == ("same", 0.0)

    def test_more_memory(self, tmp_path: Path) -> None:
        """A quarter more peak memory is a regression of the memory alone (issue 10)."""
        found = ws.compare(*two(tmp_path, peaks=80 << 20), fail_over=0.1)
        assert [row.metric for row in found.regressions] == ["memory"]
        assert found.row("smooth", "memory").change == pytest.approx(0.25)

    def test_a_little_of_little_does_not_matter(self, tmp_path: Path) -> None:
        """A step of 1 % of the time that doubles is below what matters of the whole; one of half is not (M103)."""
        for name, small, large in (("a", 0.01, 0.5), ("b", 0.02, 0.6)):
            steps = {"small": small * WALLS * noise(), "large": large * WALLS * noise()}
            record(tmp_path / name, WALLS * noise(), steps=steps)
        found = ws.compare(tmp_path / "a", tmp_path / "b", fail_over=0.1)
        assert [row.step for row in found.regressions] == ["large"]
        assert found.row("smooth", "steps/small").verdict in ("same", "unclear")

    def test_a_step_that_was_not_entered_cost_nothing(self, tmp_path: Path) -> None:
        """A new step has no relative change and is told; one that only half of the blocks enter costs half (M103)."""
        half = np.where(np.arange(120) % 2, 0.5, np.nan)
        record(tmp_path / "a", np.full(120, 2.0), steps={"old": np.full(120, 0.5)})
        record(tmp_path / "b", np.full(120, 2.0), steps={"old": half, "new": np.full(120, 0.4)})
        found = ws.compare(tmp_path / "a", tmp_path / "b", fail_over=0.1, with_first=True)
        new, old = found.row("smooth", "steps/new"), found.row("smooth", "steps/old")
        assert (new.change, new.verdict, new.regression) == (None, "more", True)
        assert (old.change, old.verdict) == (pytest.approx(-0.5), "less")

    def test_overhead_fails_only_on_demand(self, tmp_path: Path) -> None:
        """Overhead and round trip hang on the driver's machine, so they are told, and fail if asked for (issue 10)."""
        a, b = two(tmp_path, overhead=0.5)
        assert ws.compare(a, b, fail_over=0.1)
        chosen = ws.compare(a, b, fail_over=0.1, fail_on=["overhead", "round trip"])
        assert [row.metric for row in chosen.regressions] == ["overhead", "round trip"]

    def test_few_blocks_are_unclear(self, tmp_path: Path) -> None:
        """Three blocks twice as slow are told, and are no regression: nobody knows their spread (issue 10)."""
        record(tmp_path / "a", [1.0, 1.0, 1.0])
        record(tmp_path / "b", [2.0, 2.0, 2.0])
        found = ws.compare(tmp_path / "a", tmp_path / "b", fail_over=0.1)
        row = found.row("smooth", "wall")
        assert (row.change, row.low, row.verdict) == (1.0, None, "unclear")
        assert found.row("smooth", "io read").verdict == "same"  # bytes are counted
        assert found

    def test_the_first_block_of_a_worker_is_left_out(self, tmp_path: Path) -> None:
        """Imports in the first blocks of one run do not make it slower, unless they are asked for (M103)."""
        cold = np.where(np.arange(120) < 2, 100.0, 1.0)
        record(tmp_path / "a", WALLS * noise())
        record(tmp_path / "b", WALLS * noise() * cold)
        assert ws.compare(tmp_path / "a", tmp_path / "b").row("smooth", "wall").a.n == 118
        assert abs(ws.compare(tmp_path / "a", tmp_path / "b").row("smooth", "wall").change) < 0.05
        assert ws.compare(tmp_path / "a", tmp_path / "b", with_first=True).row("smooth", "wall").change > 1

    def test_a_serial_run_has_no_round_trip(self, tmp_path: Path) -> None:
        """Where there are no workers, neither round trip nor overhead is made up (M103, D22)."""
        for name in "ab":
            record(tmp_path / name, WALLS * noise(), workers=None)
        metrics = [row.metric for row in ws.compare(tmp_path / "a", tmp_path / "b").rows]
        assert metrics == ["wall", "cpu", "memory", "io read", "io write"]


class TestFalseAlarms:
    """Runs of the same program do not differ."""

    def test_synthetic_runs(self, tmp_path: Path) -> None:
        """Of 28 pairs of equal runs with drifting blocks at most 1 shows any difference, in any row (issue 10)."""
        for number in range(8):
            drift = np.exp(0.1 * np.convolve(RNG.standard_normal(140), np.full(10, 0.3), "valid")[:120])
            steps = {"read": 0.3 * WALLS * noise(spread=0.1), "filter": 0.6 * WALLS * drift}
            record(tmp_path / str(number), WALLS * drift, steps=steps, peaks=RNG.integers(60 << 20, 61 << 20, 120))
        alarms = 0
        for a, b in combinations("01234567", 2):
            found = ws.compare(tmp_path / a, tmp_path / b, fail_over=0.1)
            alarms += any(row.verdict in ("more", "less") for row in found.rows)
            assert found
        assert alarms <= 1

    def test_runs_on_a_restless_machine(self, tmp_path: Path) -> None:
        """Where whole runs differ by 10 %, two of them seem different; with others at hand they do not (issue 10)."""
        for number, factor in enumerate([0.88, 1.13, 1.0, 0.85, 1.1, 0.95, 1.2, 0.9, 1.05]):
            record(tmp_path / str(number), WALLS * noise() * factor, run_id=f"r{number}")
        others = [tmp_path / str(number) for number in range(3, 9)]
        pairs = [(tmp_path / a, tmp_path / b) for a, b in combinations("012", 2)]
        alone = sum(bool(ws.compare(*pair, fail_over=0.1).regressions) for pair in pairs)
        known = sum(bool(ws.compare(*pair, fail_over=0.1, also=others).regressions) for pair in pairs)
        assert alone >= 1
        assert known == 0

    def test_real_runs(self, tmp_path: Path) -> None:
        """A program that is run twice is told to be itself by its memory and I/O, and pairs its blocks (issue 10)."""

        def work(block: ws.Block) -> None:
            with ws.section("sum"):
                sum(range(2000))

        for name in "ab":
            run(line(40, work, tracking_path=tmp_path / name, resource_tracking=True))
        found = ws.compare(tmp_path / "a", tmp_path / "b", fail_over=10.0)
        assert found
        assert found.row("t", "memory").verdict == "same"
        assert found.row("t", "steps/sum").method == "pairs"


class TestPlaces:
    """Where runs are found, and which blocks are theirs."""

    def test_the_last_run_against_the_one_before(self, tmp_path: Path) -> None:
        """One folder with two runs compares its last with the one before, from summaries as blocks are gone (D32)."""
        record(tmp_path, WALLS * noise(), run_id="r1")
        record(tmp_path, WALLS * noise() * 2, run_id="r2", started_at=LATER)
        found = ws.compare(tmp_path)
        row = found.row("smooth", "wall")
        assert (row.method, row.verdict) == ("summaries", "more")
        assert row.change == pytest.approx(1.0, abs=0.05)
        assert (found.a, found.b) == (f"{tmp_path}#-2", f"{tmp_path}#-1")

    def test_a_store_is_all_its_blocks(self, tmp_path: Path) -> None:
        """A run that was resumed counts with all of its blocks, whichever run executed them (KF-38)."""
        record(tmp_path / "a", WALLS)
        record(tmp_path / "b", WALLS[:60], run_id="r1", total=120)
        record(tmp_path / "b", WALLS[60:], run_id="r2", first=60, started_at=LATER)
        assert ws.compare(tmp_path / "a", tmp_path / "b", with_first=True).row("smooth", "wall").b.n == 120

    def test_a_run_that_was_partly_done_again(self, tmp_path: Path) -> None:
        """Blocks that a later run did again are not taken for those of the earlier one, which has summaries (KF-38)."""
        record(tmp_path / "a", WALLS)
        record(tmp_path / "b", WALLS, run_id="r1")
        record(tmp_path / "b", 9 * WALLS[:60], run_id="r2", started_at=LATER, total=120)
        row = ws.compare(tmp_path / "a", f"{tmp_path / 'b'}#r1").row("smooth", "wall")
        assert (row.method, row.b.n) == ("summaries", 120)
        assert row.change == pytest.approx(0.0, abs=1e-6)

    @pytest.mark.parametrize("selector", ["#-1", "#1", "#r2", "/runs.jsonl", "/runs.jsonl#-1"])
    def test_selecting_a_run(self, tmp_path: Path, selector: str) -> None:
        """A number counts runs that did something, an id may be short, a history alone is its last run (issue 10)."""
        record(tmp_path / "a", WALLS)
        record(tmp_path / "b", WALLS, run_id="r1-long")
        record(tmp_path / "b", 2 * WALLS, run_id="r2-long", started_at=LATER)
        record(tmp_path / "b", [], run_id="r3-idle", started_at=LATER + 9999, total=120)
        row = ws.compare(tmp_path / "a", f"{tmp_path / 'b'}{selector}").row("smooth", "wall")
        assert (row.change, row.method) == (pytest.approx(1.0, rel=1e-3), "pairs")

    def test_a_pipeline(self, tmp_path: Path) -> None:
        """Folders of stores are compared task by task in the order of the run; a task that is gone is refused (M90)."""
        for side, tasks in (("a", "xyz"), ("b", "xyw")):
            for place, task in enumerate(reversed(tasks)):
                record(tmp_path / side / task, WALLS, task_id=task, place=place)
        found = ws.compare(tmp_path / "a", tmp_path / "b")
        assert list(dict.fromkeys(row.task for row in found.rows)) == ["y", "x"]
        assert set(found.refused) == {"z"}
        assert "new" in found.notes["w"]
        assert not found

    def test_without_tracking_summaries_are_compared(self, tmp_path: Path) -> None:
        """Runs without resource tracking still have round trips and steps (D42)."""
        for name, factor in (("a", 1.0), ("b", 2.0)):
            record(tmp_path / name, factor * WALLS, tracked=False, steps={"read": factor * WALLS / 2})
        found = ws.compare(tmp_path / "a", tmp_path / "b", fail_over=0.1)
        assert [(row.metric, row.regression) for row in found.rows] == [("round trip", True), ("steps/read", True)]

    def test_a_dataset_by_step_label(self, tmp_path: Path) -> None:
        """Two executions of a dataset are compared by operator and by the label of each step (M103)."""

        def double(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {"id": 2 * batch["id"]}

        for name in "ab":
            rows = ws.range(600).map_batches(double, batch_size=10)
            rows.write_parquet(tmp_path / f"out-{name}", tracking_path=tmp_path / name, engine="serial")
        found = ws.compare(tmp_path / "a", tmp_path / "b")
        assert not found.refused
        (task,) = {row.task for row in found.rows}
        assert found.row(task, "steps/MapBatches(double) body").unit == "s"


class TestRefusals:
    """What cannot be compared is said, not guessed."""

    def test_blocks_of_another_size(self, tmp_path: Path) -> None:
        """Blocks of 10 and of 20 elements are not set against each other; both shapes are told (issue 10)."""
        a, b = two(tmp_path, extent=20)
        found = ws.compare(a, b)
        assert found.refused == {"smooth": "its blocks write 10 and 20 elements, so their costs are not alike"}
        assert not found.rows
        assert not found

    def test_another_total_is_compared_block_by_block(self, tmp_path: Path) -> None:
        """More blocks of the same size are compared as two samples (issue 10)."""
        record(tmp_path / "a", np.tile(WALLS, 2))
        record(tmp_path / "b", np.tile(WALLS, 4) * 3)
        row = ws.compare(tmp_path / "a", tmp_path / "b").row("smooth", "wall")
        assert (row.method, row.verdict) == ("blocks", "more")

    def test_nothing_there(self, tmp_path: Path) -> None:
        """A folder without a run, a history with one, and a run that does not exist are refused by name (issue 10)."""
        record(tmp_path / "a", WALLS, run_id="r1")
        for places, told in (
            ((tmp_path / "none", tmp_path / "a"), "does not exist"),
            ((tmp_path / "a",), "holds 1 run that executed something"),
            ((f"{tmp_path / 'a'}#-3", tmp_path / "a"), "there is no run -3"),
            ((f"{tmp_path / 'a'}#r9", tmp_path / "a"), "'r9'; the last ones that executed something: r1"),
        ):
            with pytest.raises(ConfigurationError, match=told):
                ws.compare(*places)

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"fail_over": -0.1}, ConfigurationError),
            ({"fail_over": "10%"}, UsageTypeError),
            ({"smallest": 2.0}, ConfigurationError),
            ({"confidence": 95}, ConfigurationError),
            ({"fail_on": ["walls"]}, ConfigurationError),
        ],
    )
    def test_wrong_numbers(self, tmp_path: Path, wrong: dict[str, object], error: type[Exception]) -> None:
        """A share that makes no sense is refused before anything is read (issue 10)."""
        with pytest.raises(error, match=next(iter(wrong))):
            ws.compare(tmp_path, tmp_path, **wrong)

    def test_unknown_row(self, tmp_path: Path) -> None:
        """Asking for a row that is not there names those that are (issue 10)."""
        with pytest.raises(NotInReportError, match="'cpu'"):
            ws.compare(*two(tmp_path)).row("smooth", "speed")


def test_it_survives_json(tmp_path: Path) -> None:
    """The value is strict JSON and comes back equal, also where the spread is not known (issue 10)."""
    record(tmp_path / "a", [1.0] * 3)
    record(tmp_path / "b", [2.0] * 3)
    found = ws.compare(tmp_path / "a", tmp_path / "b", fail_over=0.1)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert Comparison.from_json(json.loads(text)) == found
    assert json.loads(text)["ok"] is True
