"""`workspan run`: what is found in a script, how it is run, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import workspan as ws
from workspan import config
from workspan.cli import main, script
from workspan.estimate.keys import module_name
from workspan.run.orders import Orders, given
from workspan.store.lock import StoreLock

pytestmark = pytest.mark.usefixtures("logs")

HEAD = """\
import workspan as ws

R, W = ws.Roi((0,), (4,)), ws.Roi((0,), (1,))


def note(block):
    with open("blocks", "a") as file:
        file.write("block\\n")


def task(name, function=note, **more):
    return ws.Task(name, R, W, W, function, read_write_conflict=False, max_retries=0, **more)


"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """``write("a = task('one')")``: make ``script.py`` with the usual names in an empty folder; its name."""
    (tmp_path / "in").mkdir()
    (tmp_path / "timing").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    monkeypatch.setenv("WORKSPAN_TIMING_DIRECTORY", str(tmp_path / "timing"))
    config.reset()
    config.configure(log_basedir=tmp_path / "logs")

    def make(text: str, name: str = "script.py", *, head: str = HEAD) -> str:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(head + text)
        return name

    return make


def blocks() -> int:
    """How often the usual block function ran."""
    return Path("blocks").read_text().count("\n") if Path("blocks").exists() else 0


def run(*words: str) -> int:
    """``workspan run`` in this process, where blocks run too."""
    return main(["run", "--engine", "serial", "--quiet", *words])


REFUSED = [
    ("a = task('one')", ("script.py:oen",), "script.py has no 'oen'; did you mean 'one'?"),
    ("a = task('one')", ("script.py:",), "'script.py:' names nothing after the colon"),
    ("a = task('one')", ("scirpt.py",), "there is no file 'scirpt.py'; did you mean 'script.py'?"),
    ("a = task('one')", ("no/script.py",), "there is no file 'no/script.py': there is no folder 'no' either"),
    ("a = task('one')", (".",), "'.' is a folder: name a Python script in it"),
    ("a = task('one')", ("script.py", "--workers", "0"), "--workers 0 is too small: use 1 or more"),
    ("a = task('one')", ("script.py", "--workers", "two"), '"two" is not a whole number'),
    ("a = task('one')", ("script.py", "--engine", "dusk"), "engine='dusk' is not known"),
    ("a = task('one')", ("script.py", "--tracking", "script.py"), "--tracking 'script.py' is not a folder"),
    ("a = task('one')", ("script.py", "--set", "x"), "--set 'x' has no '=': use --set name=value"),
    ("a = task('one')", ("script.py", "--set", "run.x=1"), "'run.x' is not a setting"),
    ("a = task('one')", ("script.py", "--frobnicate"), "--frobnicate"),
    ("a = task('one')", (), "SCRIPT"),
    ("def f(:\n    pass", ("script.py",), "script.py, line 15: SyntaxError: invalid syntax: 'def f(:'"),
    ("import nowhere_at_all", ("script.py",), "line 15: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ("def f():\n    1 / 0\nf()", ("script.py",), "script.py, line 16: ZeroDivisionError: division by zero"),
    ("a = task('one', max_workers=0)", ("script.py",), "line 12: max_workers=0 is too small: use 1 or more"),
    ("from .near import x", ("script.py",), "no known parent package; write 'import near'"),
    ("", ("script.py",), "script.py has no Task, Pipeline or list of tasks: assign one to a name"),
    ("def make(): return task('one')", ("script.py",), "if a function makes one (make), name it: script.py:make"),
    ("a, b = task('one'), task('two')", ("script.py",), "has 2 things that can be run (a, b): name one"),
    ("a = task('one')", ("script.py:R",), "'R' is of type Roi, which cannot be run"),
    ("a = task('one')", ("script.py:ws",), "'ws' is the module 'workspan', which cannot be run"),
    ("def f(): pass", ("script.py:f",), "'f' returned None: return what it makes"),
    ("def f(): return 5", ("script.py:f",), "what 'f' returned is of type int, which cannot be run"),
    ("def f(n): pass", ("script.py:f",), "'f' cannot be called without arguments (missing a required argument: 'n')"),
    ("def f(): raise OSError('no')", ("script.py:f",), "script.py, line 15: OSError: no"),
    ("d = ws.range(3)", ("script.py:d",), "'d' is a dataset, of which nothing is written"),
    ("a = task('one')\nws.run_blockwise(a)", ("script.py:a",), "line 16: this runs blocks already while the script"),
    ("d = ws.range(3)", ("script.py:d", "--forecast-only"), "'d' is a dataset, of which nothing is written"),
    ("def f(): return ws.range(3).write_csv('o')", ("script.py:f", "--forecast-only"), "a dataset is not forecast"),
]


@pytest.mark.parametrize(("text", "words", "told"), REFUSED, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_refused(write: Write, capfd: pytest.CaptureFixture[str], text: str, words: tuple[str, ...], told: str) -> None:
    """Bad input: exit code 2, one line on stderr that quotes it, and nothing has run or been written (D39, R72)."""
    write(text)
    assert main(["run", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("workspan: ")
    assert err.count("\n") == 1
    assert told in err
    assert os.listdir() == ["script.py"]


def test_a_refusal_shows_where_on_demand(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """With --traceback the line of the script that raised is shown, with the same code (R72)."""
    assert main(["run", write("1 / 0"), "--traceback"]) == 2
    err = capsys.readouterr().err
    assert 'script.py", line 15, in <module>' in err
    assert err.endswith("script.py, line 15: ZeroDivisionError: division by zero\n")


FAILS = "def bad(block): raise ValueError('bad')\na = task('one', bad)\n"
DIES = "import os\ndef die(block): os._exit(3)\na = task('one', die, max_worker_restarts=0)\n"


@pytest.mark.parametrize("more", [(), ("--quiet",)], ids=["", "quiet"])
@pytest.mark.parametrize(
    ("text", "engine", "code", "told"),
    [
        ("a = task('one')", "serial", 0, ""),
        (FAILS, "serial", 1, "one ✗"),
        (FAILS + "b = a + task('two')\ndel a", "serial", 1, "two ∅"),
        (DIES, "processes", 1, "workspan: task 'one' was abandoned"),
        ("a = task('one', tracking_path='held/one')", "serial", 3, "is held by another run"),
        ("def f():\n    ws.range(3).map(lambda r: 1 / 0).write_csv('o')", "serial", 1, "line 16: ZeroDivisionError"),
    ],
    ids=["done", "failed", "orphaned", "abandoned", "locked", "dataset"],
)
def test_exit_code(
    write: Write, capfd: pytest.CaptureFixture[str], text: str, engine: str, code: int, told: str, more: tuple[str, ...]
) -> None:
    """Each end has its code, with --quiet and without a terminal too, and never ends without a word (D39, R72)."""
    if engine == "processes" and not more:
        pytest.skip("starting workers once is enough")
    name = write(text) + (":f" if "def f()" in text else "")
    Path("held").mkdir()
    with StoreLock(Path("held/one").absolute()):
        assert main(["run", name, "--engine", engine, "--no-progress", *more]) == code
    out, err = capfd.readouterr()
    if more:
        assert out == ""
        assert bool(err) == (code != 0)
        if told.startswith(("one", "two")):
            assert err.startswith("workspan: the run is not complete: task 'one': 4 failed, 0 done of 4 blocks")
    else:
        assert told in out + err


def test_what_to_type_next(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """A run that is not complete says which command does what is missing, ready to be typed."""
    write(FAILS, "my script.py")
    words = ("my script.py:one", "--engine", "serial", "--tracking", "t", "--set", "run.workers=2", "--", "-x")
    assert main(["run", "--no-progress", *words]) == 1
    told = "a rerun does only the 4 missing blocks: workspan run 'my script.py:one' --engine serial --tracking t "
    assert told + "--set run.workers=2 -- -x\n" in capfd.readouterr().out


def test_skipped_blocks_are_done_blocks(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """A second run has nothing to do and ends with 0 (R72); --tracking has a folder for each task."""
    name = write("a = task('one')")
    assert [run(name, "--tracking", "t") for _ in range(2)] == [0, 0]
    assert blocks() == 4
    assert Path("t/one/runs.jsonl").is_file()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "text",
    [
        "a = task('one')",
        "a = task('one', tracking_path='elsewhere')\nsame = a\n_private = task('two')",
        "a = task('one')\nb = [a]",
        "a = task('one')\np = ws.Pipeline([a])",
        "b = task('one', upstream_tasks=[])\n",
        "def make() -> ws.Task:\n    return task('one')\ndef other(): pass",
        "from __future__ import annotations\ndef make() -> ws.Pipeline: return ws.Pipeline([task('one')])",
    ],
)
@pytest.mark.filterwarnings("ignore:upstream_tasks:DeprecationWarning")
def test_the_only_thing_there(write: Write, text: str) -> None:
    """What contains the others, or a function that says that it makes a task, needs no name."""
    head, text = (HEAD, text) if "__future__" not in text else ("", text.replace("\n", f"\n{HEAD}", 1))
    assert run(write(text, head=head), "--tracking", "t") == 0
    assert blocks() == 4
    assert Path("t/one").is_dir()


@pytest.mark.parametrize("name", ["b", "two", "both", "make", "runs"])
def test_a_named_thing(write: Write, name: str) -> None:
    """Variables, ids of tasks, and functions that return what can be run or run it, are found by name."""
    text = (
        "a, b = task('one'), task('two')\nboth = a + b\n"
        "def two(block): pass\n"
        "def make(): return [a, b]\n"
        "def runs():\n    return ws.run_blockwise(b)\n"
    )
    assert run(f"{write(text)}:{name}") == 0
    assert blocks() == {"both": 8, "make": 8}.get(name, 4)


def test_a_main_guard_stays_closed_and_a_script_without_one_runs_once(write: Write) -> None:
    """What is guarded does not run twice; what is not runs as it is, once, as was asked for (D44)."""
    guarded = write("a = task('one')\nif __name__ == '__main__':\n    ws.run_blockwise(a)\n    1 / 0")
    assert run(guarded) == 0
    assert blocks() == 4
    text = "import pathlib, sys\na = task('one')\nassert ws.run_blockwise(a)\n"
    text += "pathlib.Path('after').write_text(' '.join(sys.argv))"
    plain = write(text, "plain.py")
    assert run(plain, "--tracking", "t", "--", "--own", "x") == 0
    assert blocks() == 8
    assert Path("t/one").is_dir()
    assert Path("after").read_text() == "plain.py --own x"


def test_an_unguarded_script_that_fails_afterwards(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """What was run is not called refused: the code is 1 (D39)."""
    assert run(write("ws.run_blockwise(task('one'))\n1 / 0")) == 1
    assert capfd.readouterr().err == "workspan: script.py, line 16: ZeroDivisionError: division by zero\n"


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [("raise SystemExit(7)", 7, ""), ("import sys; sys.exit('why')", 1, "why\n"), ("raise SystemExit", 0, "")],
)
def test_a_script_that_ends_itself(
    write: Write, capfd: pytest.CaptureFixture[str], text: str, code: int, told: str
) -> None:
    """The code of sys.exit, of an argument parser for example, is that of the command."""
    assert run(write(text)) == code
    assert capfd.readouterr() == ("", told)


def test_options_win_over_the_script(write: Write) -> None:
    """Workers, engine and folder are those asked for; without, those of the script."""
    task = ws.Task("one", ws.Roi((0,), (2,)), ws.Roi((0,), (1,)), ws.Roi((0,), (1,)), print, tracking_path="mine")
    other = ws.Task("two", *[ws.Roi((0,), (1,))] * 3, print, max_workers=3, tracking_path="mine")
    Orders(max_workers=5, tracking=Path("/t")).change(ws.Pipeline([task]), True)
    assert (task.max_workers, task.tracking_path) == (5, Path("/t/one"))
    assert Orders(shows_progress=False).change(ws.Pipeline([other]), True) is None
    assert (other.max_workers, other.tracking_path) == (3, Path("mine"))
    with given(Orders(engine="dusk")), pytest.raises(ws.ConfigurationError, match="'dusk'"):
        ws.run_blockwise(other, engine="serial")


def test_settings_come_before_arguments(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments win over WORKSPAN_..., which wins over workspan.toml, which wins over what the script says."""
    text = "from pathlib import Path\ndef tell(block): Path('workers').write_text(str(a.max_workers))\n"
    name = write(text + "a = task('one', tell, max_workers=7)")

    def workers(*words: str) -> str:
        config.reset()
        assert run(name, *words) == 0
        return Path("workers").read_text()

    assert workers() == "7"
    Path("workspan.toml").write_text("[run]\nworkers = 2\n")
    assert workers() == "2"
    monkeypatch.setenv("WORKSPAN_RUN_WORKERS", "3")
    assert workers() == "3"
    assert workers("--set", "run.workers=4") == "4"
    assert workers("--set", "run.workers=4", "--workers", "5") == "5"


@pytest.mark.parametrize("name", ["script.py:a", "script.py:make", "script.py", "plain.py"])
def test_only_a_forecast(write: Write, capfd: pytest.CaptureFixture[str], name: str) -> None:
    """--forecast-only says what a run of what was named would take, with what was asked for, and runs nothing (D32)."""
    write("a = task('one')\ndef make(): return a")
    write("a = task('one')\nws.run_blockwise(a)\nopen('after')", "plain.py")
    words = (name, "--workers", "3", "--tracking", "t", "--forecast-only")
    assert main(["run", *words]) == 0
    out, err = capfd.readouterr()
    assert "one  4 blocks on 3 workers: not known" in out
    assert err == ""
    assert run("script.py:a", "--tracking", "t") == 0
    assert blocks() == 4
    capfd.readouterr()
    assert main(["run", *words]) == 0
    assert "4 of 4 blocks done before, nothing to do" in capfd.readouterr().out
    assert blocks() == 4


def test_a_dataset_is_written(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """A function that writes a dataset does so as was asked for, goes on where it was, and shows what it cost."""
    text = "def out():\n    ws.range(6).map(count).take(1)\n    return ws.range(6).map(count).write_csv('o')\n"
    name = write("def count(row):\n    note(row)\n    return row\n" + text) + ":out"
    assert main(["run", name, "--engine", "serial", "--tracking", "t", "--no-progress"]) == 0
    assert "rows" in capfd.readouterr().out
    first = blocks()
    assert run(name, "--tracking", "t") == 0
    assert blocks() == first + 1 or blocks() == first + 6  # take() is no write: it is not tracked
    assert list(Path("o").glob("part-*.csv"))


def test_a_script_of_a_package(write: Write) -> None:
    """Relative imports work where the folder of the script is a package, in its functions too."""
    write("", "pack/__init__.py", head="")
    write("VALUE = 3", "pack/near.py", head="")
    text = "from .near import VALUE\ndef work(block):\n    from .near import VALUE as v\n    note([block][v - 3])\n"
    assert run(write(text + "a = task('one', work)", "pack/script.py")) == 0
    assert blocks() == 4


def test_nothing_of_it_stays(write: Write) -> None:
    """Arguments, import path and modules of this process are afterwards what they were before."""
    before = sys.argv[:], sys.path[:], sys.modules["__main__"], sys.modules.get("__mp_main__")
    assert run(write("a = task('one')"), "x") == 0
    assert run(write("1 / 0")) == 2
    assert (sys.argv, sys.path, sys.modules["__main__"], sys.modules.get("__mp_main__")) == before


def test_steps_have_the_keys_of_the_script(write: Write) -> None:
    """Timings of a script's steps are found again, whether Python runs it or this command does (E5)."""
    path = Path(write("a = task('one')"))
    main_module = ModuleType("__main__")
    main_module.__file__, main_module.__spec__ = str(path.absolute()), None
    with script.loaded(path, (), has_run=bool) as module:
        assert module_name(vars(module)) == module_name(vars(main_module))


def start(*words: str) -> subprocess.Popen[str]:
    """Start ``workspan run``."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "workspan", "run", *words]
    return subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=env)


def test_worker_processes_get_the_script_by_value(write: Write) -> None:
    """Functions, classes and neighbours of an unguarded script reach workers, which import no script (D44, R72)."""
    write("FACTOR = 7", "neighbour.py", head="")
    text = """
from neighbour import FACTOR
class Thing:
    def __init__(self, n):
        self.n = n
thing = Thing(3)
def work(block):
    assert isinstance(thing, Thing) and thing.n * FACTOR == 21
    note(block)
print("loaded")
a = task("one", work)
b = task("two", work)
"""
    with start(f"{write(text)}:two", "--workers", "2", "--tracking", "t") as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("loaded") == 1
    assert blocks() == 4
    assert "two ✔" in out
    assert "two: 4/4 blocks" in err
    assert os.listdir("t") == ["two"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal(write: Write, number: signal.Signals, code: int) -> None:
    """A signal ends the run with its code, and what was done is said (R66, R72)."""
    os.mkfifo("gate")
    text = "def wait(block):\n    print('inside', flush=True)\n    open('gate').read()\na = task('one', wait)\n"
    with start(write(text), "--engine", "serial", "--no-progress") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == code, err
    assert "Interrupted" in out + err
    assert "Traceback" not in err
