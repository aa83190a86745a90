"""The command itself: help, refusals in one line, exit codes; nothing here runs a block."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import workspan
from workspan.cli import app, main
from workspan.cli.demo import ome

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run("demo", "--workers", "2", env={...})`` in an empty folder, as a person would."""

    def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "workspan", *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )

    return run


def test_version(run: Run) -> None:
    """--version says what is installed, and loads nothing that draws (R68)."""
    ended = run("--version", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert (ended.returncode, ended.stdout) == (0, f"workspan {workspan.__version__}\n")
    assert "workspan.cli" in ended.stderr
    assert "rich" not in ended.stderr.replace("workspan.views.rich", "")


def test_shells_complete_places(capsys: pytest.CaptureFixture[str]) -> None:
    """At the Tab key the places of runs are names of files, for every command that takes one (issue 10)."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for command in ("report", "compare", "trace", "watch", "forecast", "repair", "run"):
        part = script.partition(f'"{command}")')[2].partition("\n           ;;")[0]
        first = part.partition("case ${positional_count} in")[2].partition(";;")[0]
        assert "compgen -f" in first, command


def test_words_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    """What a command does not take is named, with the command whose help tells what it takes (R50)."""
    assert main(["report", "a", "b"]) == 2
    told = "workspan: report takes no more words, and there is 'b'. (`workspan report --help` lists the options)\n"
    assert capsys.readouterr().err == told
    assert main(["run"]) == 2
    assert "`workspan run --help`" in capsys.readouterr().err


def test_help_is_short(run: Run) -> None:
    """Help does not say of each switch that it is off (issue 10)."""
    for command in ("report", "compare", "watch"):
        assert "default: False" not in run(command, "--help").stdout


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)], ids=str)
def test_help_lists_the_commands(run: Run, words: tuple[str, ...]) -> None:
    """Without a command, or asked for help, the command says what it can do and what its exit codes mean."""
    ended = run(*words)
    assert (ended.returncode, ended.stderr) == (0, "")
    for text in ("demo", "report", "repair", "Exit codes", "--traceback"):
        assert text in ended.stdout


def test_help_of_the_demo_names_every_option(run: Run) -> None:
    """Every option is listed with its default."""
    ended = run("demo", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    text = " ".join(ended.stdout.replace("│", " ").split())
    for option in ("--out", "--workers", "--block", "--engine", "--act", "--fresh", "--quiet"):
        assert option in text
    for default in ("workspan-demo]", "[default: 2]", "[default: 64]", "[default: processes]"):
        assert default in text
    assert "--no-" not in text


@pytest.mark.parametrize(
    "env",
    [
        {"TERM": "dumb"},
        {"NO_COLOR": "1"},
        {"COLUMNS": "20"},
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=str,
)
@pytest.mark.parametrize("words", [("demo", "--help"), ("demo", "--workers", "0"), ("dmeo",)], ids=str)
def test_any_terminal(run: Run, words: tuple[str, ...], env: dict[str, str]) -> None:
    """Help and refusals survive every terminal, without control codes (R63)."""
    ended = run(*words, env=env)
    assert ended.returncode == (0 if "--help" in words else 2)
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_into_a_pipe_that_closes() -> None:
    """A reader that leaves at once causes no complaint (R63)."""
    with subprocess.Popen(
        [sys.executable, "-m", "workspan", "demo", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_help_is_cheap() -> None:
    """No array library is loaded to show help, and importing the command loads no command line parser."""
    code = (
        "import sys; from workspan.cli import main\n"
        "assert 'cyclopts' not in sys.modules and 'rich' not in sys.modules\n"
        "main(['--help']); main(['demo', '--help'])\n"
        "print([n for n in ('numpy', 'zarr', 'scipy', 'skimage', 'PIL', 'pyarrow', 'nilearn') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.endswith("\n[]\n")


REFUSED = [
    (("demo", "--workers", "0"), "--workers 0 is too small: use 1 or more"),
    (("demo", "--workers", "-3"), "--workers -3 is too small"),
    (("demo", "--workers", "two"), '"two" is not a whole number'),
    (("demo", "--workers", "1.5"), '"1.5" is not a whole number'),
    (("demo", "--block", "6.4e1"), '"6.4e1" is not a whole number'),
    (("demo", "--workers"), "--workers"),
    (("demo", "--block", "0"), "--block 0 is too small: use 8 or more voxels"),
    (("demo", "--block", "-64"), "--block -64 is too small"),
    (("demo", "--block", "7"), "--block 7 is too small"),
    (("demo", "--engine", "spark"), "engine='spark' is not known: use one of 'processes', 'serial', 'dask'"),
    (("demo", "--frsh"), "--frsh"),
    (("demo", "--act", "curtain"), "curtain"),
    (("demo", "--act", "forecast"), "--act forecast tells a second run from the first one"),
    (("demo", "--act", "forecast", "--engine", "serial"), "--act forecast is of worker processes"),
    (("demo", "extra"), "extra"),
    (("demo", "--out", "file"), "--out 'file' is not a folder"),
    (("demo", "--out", "file/below"), "--out 'file/below' is not a folder"),
    (("demo", "--out", "/proc/demo"), "--out '/proc/demo' cannot be written to"),
    (("demo", "--out", "taken"), "holds 'brain.zarr', which no demo made"),
    (("demo", "--out", "taken", "--fresh"), "holds 'brain.zarr', which no demo made"),
    (("dmeo",), 'Unknown command "dmeo"'),
    (("report",), "'.' holds no recorded run"),
    (("repair",), "PATH"),
    (("repair", "nowhere"), "there is no tracking store at "),
    (("report", "nowhere"), "'nowhere' does not exist"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc refuses new files even to root")
@pytest.mark.parametrize("quiet", [False, True], ids=["", "quiet"])
@pytest.mark.parametrize(
    ("words", "told"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    told: str,
    quiet: bool,
) -> None:
    """Bad input: exit code 2, one line on stderr that quotes it, nothing on stdout, nothing written (D39, R72)."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "brain.zarr").write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main([*words, "--quiet"] if quiet and words[0] == "demo" else words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("workspan: ")
    assert err.count("\n") == 1
    assert told in err
    assert sorted(tmp_path.rglob("*")) == before


def test_refused_for_real(run: Run, tmp_path: Path) -> None:
    """The same from a shell: the process ends with code 2 and leaves its folder empty (R72)."""
    ended = run("demo", "--workers", "0")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "workspan: --workers 0 is too small: use 1 or more\n"
    assert list(tmp_path.iterdir()) == []


def test_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the extra the demo says how to get it, and makes no folder."""
    monkeypatch.setitem(sys.modules, "nilearn", None)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == (
        "workspan: workspan demo needs nilearn, which the extra 'demo' brings: pip install 'workspan[demo]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_locked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While another demo runs in the folder the exit code is 3 (D39)."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert main(["demo", "--out", str(tmp_path)]) == 3
    finally:
        os.close(descriptor)
    assert "another demo is running in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (errno.ENOSPC, 3, "no space is left for the input in"),
        (errno.EDQUOT, 3, "no space is left for the input in"),
        (errno.EACCES, 2, "cannot be prepared: [Errno 13] Permission denied"),
        (errno.EROFS, 2, "cannot be prepared: [Errno 30] Read-only file system"),
    ],
)
def test_disk_refuses_the_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    code: int,
    told: str,
) -> None:
    """A disk that is full, or refuses, before the run starts: the code, one line, no half-written input (D39, R25)."""

    def fail(path: Path, *args: object) -> None:
        path.mkdir()
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ome, "create", fail)
    assert main(["demo", "--out", str(tmp_path / "a")]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("problem", "code"),
    [(KeyboardInterrupt(), 130), (SystemExit(143), 143), (SystemExit(None), 0), (ValueError("x"), 1)],
)
def test_code_of_what_ends_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: BaseException, code: int
) -> None:
    """Signals have their codes, and a fault of the program is never a success (R72)."""

    def command(words: list[str]) -> int:
        raise problem

    monkeypatch.setattr(app, "run", command)
    assert main([]) == code
    assert ("Traceback" in capsys.readouterr().err) == isinstance(problem, ValueError)


def test_sigterm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGTERM unwinds the command, which ends with 143; the handler before is the handler after (R66, R72)."""
    cleaned = []

    def command(words: list[str]) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(app, "run", command)
    assert main([]) == 143
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["option", "environment"])
def test_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """On demand a refusal shows where it came from, with the same exit code."""
    words = ["demo", "--workers", "0"]
    if how == "option":
        words.append("--traceback")
    else:
        monkeypatch.setenv("WORKSPAN_TRACEBACK", "1")
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("--workers 0 is too small: use 1 or more\n")


def test_a_thread_may_run_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Outside the main thread, where no signal handler can be set, the command works all the same (R66)."""
    import threading

    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_for_what_is_printed() -> None:
    """A result that did not fit onto the disk does not end as if it had (R25, D39)."""
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "workspan", "config", "--json"], stdout=full, stderr=-1, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (3, "workspan: no space is left for what was printed\n")
