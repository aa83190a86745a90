"""``workspan compare``: exit codes that a CI job can rely on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.recorded import record
from workspan.cli import main
from workspan.cli.compare import share
from workspan.errors import ConfigurationError

WALLS = np.random.default_rng(11).lognormal(0.0, 0.2, 60)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """Two folders of two tasks each; in the second one "slow" takes half as long again."""
    for side, factor in (("main", 1.0), ("branch", 1.5)):
        record(tmp_path / side / "slow", factor * WALLS, task_id="slow")
        record(tmp_path / side / "same", WALLS, task_id="same")
    return str(tmp_path / "main"), str(tmp_path / "branch")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--fail-over", "10%"], 1),
        (["--fail-over", "0.1", "--fail-on", "memory"], 0),
        (["--fail-over", "60%"], 0),
        (["--fail-over", "10"], 2),
        (["--fail-over", "much"], 2),
        (["--fail-over", "10%", "--fail-on", "speed"], 2),
    ],
)
def test_exit_codes(runs: tuple[str, str], options: list[str], code: int) -> None:
    """1 on a regression beyond the limit, 0 without one or without a limit, 2 for words that make no sense (D39)."""
    assert main(["compare", *runs, *options]) == code


def test_what_is_printed(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The regression is named with its change and the limit (issue 10)."""
    main(["compare", *runs, "--fail-over", "10%"])
    out = capsys.readouterr().out
    assert "+50 %" in out
    assert out.count("REGRESSION") == 2  # wall and cpu
    assert out.splitlines()[-1] == "2 regressions of more than 10 %"


def test_json(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The same comparison as JSON, with the same exit code (issue 10)."""
    assert main(["compare", *runs, "--fail-over", "10%", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert {row["metric"] for row in found["rows"] if row["regression"]} == {"wall", "cpu"}


def test_a_task_that_is_gone(runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gate that cannot see a task does not say that all is well: 2; without a limit it is only told (D39)."""
    record(tmp_path / "main" / "gone", WALLS, task_id="gone")
    assert main(["compare", *runs, "--fail-over", "60%"]) == 2
    assert main(["compare", *runs]) == 0
    assert "gone  cannot be compared: it is not in" in capsys.readouterr().out


def test_nothing_to_compare(runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run alone, or a folder without any, is refused in one line (D39)."""
    assert main(["compare", runs[0]]) == 2
    assert main(["compare", runs[0], str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_more_runs_of_the_older_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that are named besides tell how much runs differ, and what that is from is told (issue 10)."""
    for number, factor in enumerate([1.0, 1.3, 0.8, 1.2, 0.7]):
        record(tmp_path / str(number), factor * WALLS, run_id=f"r{number}")
    words = [*(f"--also={tmp_path / str(number)}" for number in (2, 3, 4)), "--fail-over=10%", "--all"]
    assert main(["compare", str(tmp_path / "0"), str(tmp_path / "1"), *words]) == 0
    assert "what whole runs differ by is from 4 runs" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), ("10 %", 0.1), ("0.1", 0.1), ("150%", 1.5)])
def test_shares(text: str, value: float) -> None:
    """Percent and parts of one are read (issue 10)."""
    assert share("--fail-over", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["10", "ten", "", "%"])
def test_no_shares(text: str) -> None:
    """What may mean percent or times is refused (issue 10)."""
    with pytest.raises(ConfigurationError, match="--fail-over"):
        share("--fail-over", text)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ZeroDivisionError("a bug")])
def test_trouble_is_no_regression(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever goes wrong, the exit code is not that of a regression, at which a CI job would point (D39)."""

    def fails(*words: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("workspan.report.comparison.compare", fails)
    assert main(["compare", "a", "b"]) == 2
    assert str(error) in capsys.readouterr().err
