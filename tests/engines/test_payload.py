"""What a worker is born with: the function, and the world as the driver sees it."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from workspan.engines import Processes, payload
from workspan.errors import EngineError


def plain(block):
    """Do nothing."""


class Callable:
    """An instance that can be called."""

    def __call__(self, block):
        """Do nothing."""

    def method(self, block):
        """Do nothing."""


def load_from_path(path, text, name):
    """Import a file that is on no import path, under a name of our choice."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class TestFunctions:
    @pytest.mark.parametrize(
        "function",
        [plain, lambda block: None, functools.partial(plain), Callable(), Callable().method],
        ids=["function", "lambda", "partial", "instance", "method"],
    )
    def test_all_kinds_of_callables_run(self, make_run, function):
        """Functions, lambdas, partials, instances and methods reach a worker, by value where needed (KF-29)."""
        run = make_run(Processes(), function)
        run.start()
        assert run.block().ok

    def test_module_on_no_path_travels_by_value(self, make_run, tmp_path):
        """A function of a file that a worker could not import is sent by value, with what it uses (B74)."""
        name = "engine_test_loaded_by_hand"
        text = "FACTOR = 3\ndef helper(x):\n    return x * FACTOR\ndef work(block):\n    assert helper(2) == 6\n"
        module = load_from_path(tmp_path / "other_name.py", text, name)
        try:
            run = make_run(Processes(), module.work)
            run.start()
            assert run.block().error is None
        finally:
            del sys.modules[name]

    def test_traceback_shows_the_source(self, make_run):
        """A failure in a function that was sent by value names its file and shows the line, also in helpers (R11)."""

        def helper():
            raise ValueError("here")  # the line that fails

        run = make_run(Processes(), lambda block: helper())
        run.start()
        error = run.block().error
        assert re.search(
            rf'File "{re.escape(__file__)}", line \d+, in helper\n +raise .*  # the line that fails', error
        )
        assert re.search(rf'File "{re.escape(__file__)}", line \d+, in <lambda>', error)

    def test_importable_module_travels_by_reference(self):
        """A function of an importable module is sent as its name only (B74)."""
        packed = payload.pack_function("task", json.dumps)
        assert len(packed) < 100
        assert payload.load_function(packed) is json.dumps

    def test_same_name_at_another_place_is_not_taken_for_it(self, tmp_path, monkeypatch):
        """A module that the path would find elsewhere is sent by value: the worker would load another file."""
        name = "engine_test_twice"
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / f"{name}.py").write_text("def work(block):\n    return 'b'\n")
        module = load_from_path(tmp_path / "a" / f"{name}.py", "def work(block):\n    return 'a'\n", name)
        monkeypatch.syspath_prepend(tmp_path / "b")
        packed = payload.pack_function("task", module.work)
        del sys.modules[name]
        assert payload.load_function(packed)(None) == "a"

    def test_registration_by_value_is_taken_back(self, tmp_path):
        """Packing leaves cloudpickle's own settings as they were."""
        import cloudpickle

        name = "engine_test_registry"
        module = load_from_path(tmp_path / "x.py", "def work(block): pass\n", name)
        try:
            payload.pack_function("task", module.work)
        finally:
            del sys.modules[name]
        assert cloudpickle.list_registry_pickle_by_value() == set()

    def test_name_of_a_partial(self):
        """Messages name what is inside a partial."""
        assert payload.function_name(functools.partial(functools.partial(plain), 1)) == "plain"
        assert payload.function_name(Callable()) == "Callable"

    def test_any_exception_while_packing_is_a_refusal(self):
        """User code that raises while it is serialised is refused in the same words (B73)."""

        class Stubborn:
            def __reduce__(self):
                raise ZeroDivisionError("not me")

        stubborn = Stubborn()
        with pytest.raises(EngineError, match="cannot be sent to a worker process: ZeroDivisionError: not me"):
            payload.pack_function("task", lambda block: stubborn)


class TestWorld:
    def test_path_folder_and_arguments(self, make_run, monkeypatch, tmp_path):
        """A worker has the driver's import path, folder and arguments (B74)."""
        out = tmp_path / "world"
        there = tmp_path / "there"
        there.mkdir()
        monkeypatch.chdir(there)
        monkeypatch.syspath_prepend(str(tmp_path / "on the path"))
        monkeypatch.setattr(sys, "argv", ["prog", "--flag", "ü"])

        def tell(block):
            out.write_text(json.dumps([sys.path, os.getcwd(), sys.argv, os.environ["LANG_OF_TEST"]]))

        monkeypatch.setenv("LANG_OF_TEST", "de")
        run = make_run(Processes(), tell)
        run.start()
        assert run.block().error is None
        assert json.loads(out.read_text()) == [sys.path, str(there), ["prog", "--flag", "ü"], "de"]

    def test_removed_folder(self, make_run, monkeypatch, tmp_path):
        """A run started in a folder that is gone works all the same."""
        there = tmp_path / "gone"
        there.mkdir()
        monkeypatch.chdir(there)
        there.rmdir()
        try:
            run = make_run(Processes(), plain)
            run.start()
            assert run.block().ok
        finally:
            os.chdir(tmp_path)

    def test_folder_removed_after_the_start_is_told(self, make_run, monkeypatch, tmp_path):
        """A worker that cannot go to the run's folder ends with the reason."""
        there = tmp_path / "gone"
        there.mkdir()
        monkeypatch.chdir(there)
        run = make_run(Processes(), plain)
        os.chdir(tmp_path)
        there.rmdir()
        run.engine.start_worker(0, 0)
        assert "FileNotFoundError: [Errno 2] No such file or directory" in run.ended().reason

    def test_numpy_integers_in_a_layout(self, make_run):
        """A layout made of another library's integers arrives as plain ones."""
        import numpy as np

        from workspan.grid import Layout

        five = np.int64(5)
        layout = Layout((five,), (five * 10,), (five,), (five,), (five,), (five,))
        run = make_run(Processes(), plain, layout=layout)
        run.start()
        assert run.block(9).ok

    def test_logging_of_the_driver(self, make_run, log_dir):
        """A worker logs at the driver's levels and in its format, to its own error stream (B74, B108)."""
        root = logging.getLogger()
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s|%(name)s|%(message)s"))
        before = root.level, root.handlers[:]
        root.handlers[:] = [handler]
        root.setLevel(logging.INFO)
        logging.getLogger("engine.test.loud").setLevel(logging.DEBUG)
        try:
            run = make_run(Processes(), log_something)
            run.start()
            run.block()
        finally:
            root.setLevel(before[0])
            root.handlers[:] = before[1]
            logging.getLogger("engine.test.loud").setLevel(logging.NOTSET)
        text = (log_dir / "task0" / "worker_0.err").read_text()
        assert text == "INFO|engine.test|yes\nDEBUG|engine.test.loud|yes too\n"

    def test_program_that_does_not_log(self):
        """If the program has not touched logging, neither does the worker."""
        code = "import logging; from workspan.engines.payload import driver_settings as s; print(s()['logging'])"
        assert script(code, "-c").stdout == "None\n"


def log_something(block):
    """Log at two levels with two loggers."""
    logging.getLogger("engine.test").info("yes")
    logging.getLogger("engine.test").debug("no")
    logging.getLogger("engine.test.loud").debug("yes too")


SCRIPT = textwrap.dedent(
    """
    from workspan.engines import Job, Processes, WorkerTask
    from workspan.grid import Layout
    from workspan.schedule.events import Ready, Returned

    FACTOR = 2

    class Helper:
        def double(self, x):
            return FACTOR * x

    def work(block):
        assert Helper().double(block.index) == 10

    print("top level")
    with Processes() as engine:
        layout = Layout((0,), (10,), (0,), (1,), (0,), (1,))
        engine.open(Job("run", (WorkerTask("task", layout, work),)))
        engine.start_worker(0, 0)
        assert engine.poll(20) == [Ready(0)]
        engine.send(0, 5)
        print(engine.poll(20) == [Returned(0, 5, True)])
    """
)


def script(code, *arguments, **settings):
    """Run Python code the way *arguments* say, with warnings as errors."""
    command = [sys.executable, "-W", "error", *arguments]
    if "-c" in arguments:
        command.append(code)
    else:
        settings["input"] = code
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=50, **settings)
    assert done.returncode == 0, done.stderr
    return done


class TestScripts:
    def test_script_without_main_guard(self, tmp_path):
        """A script that runs at module level simply works; its top level runs once (KF-29b, D44, R64)."""
        path = tmp_path / "script.py"
        path.write_text(SCRIPT)
        done = script("", str(path))
        assert (done.stdout, done.stderr) == ("top level\nTrue\n", "")

    def test_command_line_code(self):
        """`python -c` works (R64)."""
        assert script(SCRIPT, "-c").stdout == "top level\nTrue\n"

    def test_code_from_standard_input(self):
        """Code piped into the interpreter works; the workers do not read it (R64)."""
        assert script(SCRIPT, "-").stdout == "top level\nTrue\n"

    def test_from_a_thread(self, tmp_path):
        """A run in a thread other than the main one works (R22, R64)."""
        body = textwrap.indent(SCRIPT, "    ")
        code = f"import threading\ndef main():\n{body}\nt = threading.Thread(target=main)\nt.start()\nt.join()\n"
        code = code.replace("    FACTOR = 2", "    global FACTOR, Helper\n    FACTOR = 2")
        assert script(code, "-c").stdout == "top level\nTrue\n"

    def test_interpreter_flags(self):
        """Flags of the interpreter hold for its workers (B74)."""
        code = SCRIPT.replace(
            "    assert Helper", "    import sys\n    assert sys.warnoptions == ['error']\n    Helper"
        )
        assert script(code, "-c").stdout == "top level\nTrue\n"


def test_only_one_module_pickles():
    """Nothing that reads a connection can unpickle (R45)."""
    folder = Path(payload.__file__).parent
    users = {path.name for path in folder.glob("*.py") if re.search(r"import.*pickle|pickle\.", path.read_text())}
    assert users == {"payload.py"}
    assert {path.name for path in folder.glob("*.py") if "marshal.loads" in path.read_text()} == {"_start.py"}
