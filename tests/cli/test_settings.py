"""`workspan config` and `workspan completion`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from workspan import config
from workspan.cli import main


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read the settings of an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("WORKSPAN_TIMING_DIRECTORY", "WORKSPAN_LIVE_ENABLED"):  # of the tests themselves
        monkeypatch.delenv(name, raising=False)
    config.reset()
    yield
    config.reset()


def test_where_each_setting_comes_from(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each setting is shown with its value and where it came from: the last of file, environment and code (D1)."""
    Path("pyproject.toml").write_text("[tool.workspan]\nlog_mode = 'both'\n[tool.workspan.run]\nworkers = 2\n")
    monkeypatch.setenv("WORKSPAN_RUN_WORKERS", "3")
    assert main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == set(config.DEFAULTS)
    assert found["log_mode"] == {"value": "both", "from": "pyproject.toml"}
    assert found["run.workers"] == {"value": 3, "from": "WORKSPAN_RUN_WORKERS"}
    assert found["timing.enabled"] == {"value": True, "from": "default"}
    config.configure(run={"engine": "serial"})
    assert main(["config", "--changed"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "setting      value   from",
        "log_mode     both    pyproject.toml",
        "run.engine   serial  configure()",
        "run.workers  3       WORKSPAN_RUN_WORKERS",
    ]


def test_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Without any setting there is nothing to list, and everything is at its default."""
    assert main(["config", "--changed"]) == 0
    assert capsys.readouterr().out == "all settings are at their defaults\n"
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(config.DEFAULTS) + 1
    assert all(line.endswith("default") for line in lines[1:])


def test_a_setting_that_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused in one line that names the file (D39)."""
    Path("workspan.toml").write_text("log_mode = 'x'\n")
    assert main(["config"]) == 2
    assert capsys.readouterr().err.startswith("workspan: workspan.toml: log_mode='x' is not known")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell gets a script that names the commands, and that it can read where it is installed."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("doctor", "run", "watch", "forecast-only"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_completes(capsys: pytest.CaptureFixture[str]) -> None:
    """In bash the Tab key finds a command, an option and a script."""
    Path("script.py").touch()
    assert main(["completion", "bash"]) == 0
    Path("complete").write_text(capsys.readouterr().out)
    ask = "source ./complete; COMP_WORDS=(workspan {}); COMP_CWORD=${{#COMP_WORDS[@]}}-1; _workspan; "
    ask += "echo ${{COMPREPLY[@]}}"
    for words, found in [("doct", "doctor"), ("run --work", "--workers"), ("run scr", "script.py")]:
        out = subprocess.run(["bash", "-c", ask.format(words)], check=True, capture_output=True, text=True).stdout
        assert out == f"{found}\n", words


def test_completion_asks_which_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name it is that of SHELL, and one that is not known is refused (R72)."""
    monkeypatch.setenv("SHELL", "/bin/fish")
    assert main(["completion"]) == 0
    assert "complete -c workspan" in capsys.readouterr().out
    monkeypatch.setenv("SHELL", "/bin/ksh")
    assert main(["completion"]) == 2
    assert main(["completion", "tcsh"]) == 2
    assert "SHELL='ksh' is not known: name a shell" in capsys.readouterr().err


def test_completion_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--install writes the script below the home folder, where the shell looks for it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert main(["completion", "bash", "--install"]) == 0
    assert (tmp_path / ".local/share/bash-completion/completions/workspan").is_file()
