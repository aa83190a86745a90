"""Settings in groups, from Python, TOML and the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workspan import config
from workspan.errors import ConfigurationError


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start without settings, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    config.reset()
    yield
    config.reset()


def test_a_group_is_given_by_name_or_as_a_mapping() -> None:
    """Both spellings set the same value, and a change is noticed by its generation (E73)."""
    before = config.generation
    config.configure(**{"timing.max_files": 3})
    assert config.get("timing.max_files") == 3
    assert config.generation != before
    config.configure(timing={"max_files": 4, "spline_order": 2})
    assert (config.get("timing.max_files"), config.get("timing.spline_order")) == (4, 2)


@pytest.mark.parametrize(("file", "head"), [("workspan.toml", ""), ("pyproject.toml", "tool.workspan.")])
def test_a_table_of_a_file_is_a_group(file: str, head: str) -> None:
    """TOML tables hold groups, in either file, and the environment wins over them (E74)."""
    Path(file).write_text(f"[{head}timing]\nenabled = false\n[{head}logging]\nroots = ['Reduction']\ninterval = 2\n")
    assert config.get("timing.enabled") is False
    assert config.get("logging.roots") == ("Reduction",)
    assert config.get("logging.interval") == 2.0


def test_the_environment_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """WORKSPAN_TIMING_ENABLED and WORKSPAN_TIMING_DIRECTORY win, so that tests never touch user data (E74)."""
    Path("workspan.toml").write_text("[timing]\nenabled = true\n")
    monkeypatch.setenv("WORKSPAN_TIMING_ENABLED", "0")
    monkeypatch.setenv("WORKSPAN_TIMING_DIRECTORY", "elsewhere")
    monkeypatch.setenv("WORKSPAN_LOGGING_ROOTS", "A, b.C")
    assert config.get("timing.enabled") is False
    assert config.get("timing.directory") == Path("elsewhere")
    assert config.get("logging.roots") == ("A", "b.C")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("timing.spline_order", 6, "timing.spline_order=6 is not a whole number from 0 to 5"),
        ("timing.update_threshold", -0.1, "timing.update_threshold=-0.1 is not a number from 0"),
        ("timing.update_threshold", float("nan"), "timing.update_threshold=nan is not a number"),
        ("timing.interval", 1.0, "timing.interval=1.0 is not a number above 0 and below 1"),
        ("timing.default_seconds", 0, "timing.default_seconds=0 is not a number above 0"),
        ("timing.enabled", "perhaps", "timing.enabled='perhaps' is neither true nor false"),
        ("timing.max_files", True, "timing.max_files=True is not a whole number from 1"),
        ("timing.directory", 3, "timing.directory=3 is not a path"),
        ("timing.on_n_ref_change", "forget", "use one of quarantine, keep, discard"),
        ("logging.roots", [1], "is not a list of names"),
        ("timing.colour", 1, "'timing.colour' is not a setting"),
        ("timing.dir", 1, "'timing.dir' is not a setting; did you mean timing.directory"),
        ("workers", 1, r"'workers' is not a setting; did you mean run.workers\?"),
        ("timing", 1, "timing=1 is a group of settings"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object, text: str) -> None:
    """The message names the setting and what would be right; nothing is changed (E72)."""
    with pytest.raises(ConfigurationError, match=text):
        config.configure(**{name: value})
    assert config.get("timing.enabled") is True


def test_settings_that_contradict_each_other_are_refused() -> None:
    """More measurements needed than kept: no estimate could ever be made (E72)."""
    with pytest.raises(ConfigurationError, match=r"update_minimum_count=9 is more than timing.max_measurements=5"):
        config.configure(timing={"update_minimum_count": 9, "max_measurements": 5})
    assert config.get("timing.max_measurements") == 50
