"""The module ``workspan.logging``: where workers write, and how failures are told of."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import workspan as ws
from workspan import config
from workspan.engines.failure import TracebackStyle, style_in_use, use_style


@pytest.fixture(autouse=True)
def fresh_settings(tmp_path, monkeypatch):
    """Work in an empty folder, and leave the settings as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    config.reset()
    yield
    config.reset()
    use_style(TracebackStyle())
    logging.getLogger("workspan").setLevel(logging.NOTSET)


class TestWhere:
    def test_defaults(self):
        """Without a word workers write to files in ./workspan_logs (B105)."""
        assert ws.logging.get_log_basedir() == Path("workspan_logs")
        assert ws.logging.get_log_mode() == "file"

    @pytest.mark.parametrize("mode", ["file", "console", "both"])
    def test_modes(self, mode):
        """Each of the three modes is kept (B105)."""
        ws.logging.set_log_mode(mode)
        assert ws.logging.get_log_mode() == mode

    @pytest.mark.parametrize("mode", ["File", "", None, 1])
    def test_any_other_mode_is_refused(self, mode):
        """Any other mode is a ValueError that names the three, and changes nothing (B105)."""
        ws.logging.set_log_mode("both")
        with pytest.raises(ValueError, match=f"log_mode={mode!r} is not known: use one of file, console, both"):
            ws.logging.set_log_mode(mode)
        assert ws.logging.get_log_mode() == "both"

    def test_no_folder_means_console(self):
        """Without a folder the mode is console, and the chosen one comes back with a folder (B105)."""
        ws.logging.set_log_mode("both")
        ws.logging.set_log_basedir(None)
        assert ws.logging.get_log_basedir() is None
        assert ws.logging.get_log_mode() == "console"
        assert ws.logging.get_worker_log_basename(3, "task") is None
        ws.logging.set_log_basedir("logs")
        assert ws.logging.get_log_mode() == "both"

    def test_basename(self):
        """A worker's files lie in its task's folder and have its number (B105, B106)."""
        ws.logging.set_log_basedir("logs")
        assert ws.logging.get_worker_log_basename(3, "task") == Path("logs/task/worker_3")
        assert ws.logging.get_worker_log_basename(3) == Path("logs/worker_3")


class TestLevel:
    @pytest.mark.parametrize("level", [logging.DEBUG, "DEBUG"])
    def test_is_that_of_the_package(self, level):
        """The level is set for the package's loggers and no other, and no handler is added (B105, B108)."""
        root = logging.getLogger()
        before = root.level, list(root.handlers)
        assert ws.logging.get_log_level() == logging.NOTSET
        ws.logging.set_log_level(level)
        assert ws.logging.get_log_level() == logging.DEBUG
        assert logging.getLogger("workspan.run.runner").isEnabledFor(logging.DEBUG)
        assert (root.level, root.handlers) == before
        assert logging.getLogger("workspan").handlers == []
        assert logging.getLogger("workspan").propagate

    @pytest.mark.parametrize("level", ["LOUD", None, 1.5])
    def test_unknown_level(self, level):
        """What is no level is a ValueError with the value (B105)."""
        with pytest.raises(ValueError, match=f"level={level!r} is not a level"):
            ws.logging.set_log_level(level)


class TestClear:
    @pytest.fixture
    def logs(self, tmp_path):
        """Make a log folder of two tasks, and return it."""
        ws.logging.set_log_basedir(tmp_path / "logs")
        for name in ("a/worker_0.out", "a/worker_0.err", "a/worker_12.err", "b/worker_0.out"):
            path = tmp_path / "logs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("text")
        return tmp_path / "logs"

    @staticmethod
    def left(folder: Path) -> list[str]:
        """Everything in *folder*."""
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))

    def test_one_task(self, logs):
        """The logs of one task go, with its empty folder, and the others stay (B105)."""
        assert ws.logging.clear_logs("a") == logs / "a"
        assert self.left(logs) == ["b", "b/worker_0.out"]

    def test_all_tasks(self, logs):
        """Without a task id all workers' logs go (B105)."""
        assert ws.logging.clear_logs() == logs
        assert self.left(logs) == []

    def test_nothing_else_is_removed(self, logs):
        """Files of other names, folders, and files outside the tasks' folders stay (B105)."""
        others = ["a/runs.jsonl", "a/worker_0.outer", "a/worker_x.out", "a/my_worker_0.out", "a/worker_1.out/x"]
        others += ["a/deep/worker_0.out", "worker_0.out", "empty/"]
        for name in others:
            path = logs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if name.endswith("/") else path.write_text("mine")
        ws.logging.clear_logs()
        assert self.left(logs) == sorted(["a", "a/deep", "a/worker_1.out", *(name.rstrip("/") for name in others)])

    def test_links_are_not_followed(self, logs, tmp_path):
        """A link to a folder or a file leads nowhere, and stays (B105)."""
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "worker_0.out").write_text("text")
        (logs / "c").symlink_to(precious)
        (logs / "b" / "worker_1.out").symlink_to(precious / "worker_0.out")
        ws.logging.clear_logs()
        ws.logging.clear_logs("c")
        assert (precious / "worker_0.out").read_text() == "text"
        assert (logs / "c").is_symlink()
        assert (logs / "b" / "worker_1.out").is_symlink()

    @pytest.mark.parametrize("task_id", ["", ".", "..", "../logs/a", "/", "a\0"])
    def test_no_way_out(self, logs, task_id):
        """No task id leads out of the log folder (R49)."""
        with pytest.raises(ValueError, match="is not the name of a log folder"):
            ws.logging.clear_logs(task_id)
        assert len(self.left(logs)) == 6

    def test_nothing_there(self, tmp_path):
        """No folder, no such task, no log files at all: there is nothing to do (B105)."""
        ws.logging.set_log_basedir(tmp_path / "nowhere")
        ws.logging.clear_logs()
        ws.logging.clear_logs("a")
        ws.logging.set_log_basedir(None)
        assert ws.logging.clear_logs() is None


class TestStyle:
    def test_default_is_plain(self):
        """Failures look as Python has them until somebody wants something else (B105)."""
        assert ws.logging.get_traceback_style() == "plain"

    def test_all_of_it_is_kept(self):
        """Style, locals, width and lines reach the text of failures (B105)."""
        ws.logging.set_traceback_style("rich", show_locals=True, width=80, extra_lines=0)
        assert ws.logging.get_traceback_style() == "rich"
        assert style_in_use() == TracebackStyle("rich", True, 80, 0)
        ws.logging.set_traceback_style("plain")
        assert style_in_use() == TracebackStyle("plain", False, 100, 3)

    @pytest.mark.parametrize(
        ("style", "numbers", "text"),
        [
            ("fancy", {}, "style='fancy' is not known: use one of 'plain', 'rich'"),
            (None, {}, "style=None is not known"),
            ("rich", {"width": 39}, "width=39 must be a whole number, 40 or more"),
            ("rich", {"width": 80.0}, "width=80.0 must be"),
            ("rich", {"extra_lines": -1}, "extra_lines=-1 must be a whole number, 0 or more"),
            ("rich", {"extra_lines": True}, "extra_lines=True must be"),
        ],
    )
    def test_what_cannot_be(self, style, numbers, text):
        """Another style, or a number out of range, is a ValueError with the value; nothing changes (B105)."""
        with pytest.raises(ValueError, match=text):
            ws.logging.set_traceback_style(style, **numbers)
        assert style_in_use() == TracebackStyle()


class TestRedirect:
    @staticmethod
    def run(script: str, **options) -> subprocess.CompletedProcess[str]:
        """Run *script* in a process of its own, and return what it left."""
        script = "import os, sys, workspan as ws\n" + textwrap.dedent(script)
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, **options)

    def test_covers_all_that_is_printed(self, tmp_path):
        """Python, C code and child processes write to the files, in order; what was printed before stays (B105)."""
        done = self.run(
            """
            sys.stdout.write("before")
            ws.logging.redirect_stdouterr("new/folder/my.log")
            print("python")
            os.write(1, b"descriptor\\n")
            os.system("echo child; echo child >&2")
            print("error", file=sys.stderr)
            """
        )
        assert (done.stdout, done.stderr, done.returncode) == ("before", "", 0)
        assert (tmp_path / "new/folder/my.log.out").read_text() == "python\ndescriptor\nchild\n"
        assert (tmp_path / "new/folder/my.log.err").read_text() == "child\nerror\n"

    @pytest.mark.parametrize(("mode", "text"), [("w", "new\n"), ("a", "old\nnew\n")])
    def test_modes(self, tmp_path, mode, text):
        """An earlier file is emptied with "w" and continued with "a" (B105)."""
        (tmp_path / "log.out").write_text("old\n")
        done = self.run(f"ws.logging.redirect_stdouterr('log', {mode!r})\nprint('new')")
        assert done.returncode == 0
        assert (tmp_path / "log.out").read_text() == text

    def test_two_processes_share_the_files(self, tmp_path):
        """Two processes that redirect to the same files do not overwrite each other (B105)."""
        self.run(
            """
            import subprocess
            ws.logging.redirect_stdouterr("log")
            code = "import workspan as ws; ws.logging.redirect_stdouterr('log', 'a'); print('second')"
            print("first")
            subprocess.run([sys.executable, "-c", code])
            print("third")
            """
        )
        assert (tmp_path / "log.out").read_text() == "first\nsecond\nthird\n"

    @pytest.mark.parametrize(
        "stand_in", ["io.StringIO()", "io.TextIOWrapper(io.BytesIO())", "open('other', 'w')", "None"]
    )
    def test_stand_ins_are_replaced(self, tmp_path, stand_in):
        """Where ``sys.stdout`` is something of its own, as in a notebook, prints reach the files too (B105)."""
        done = self.run(
            f"""
            import io
            sys.stdout = {stand_in}
            sys.stderr = {stand_in}
            ws.logging.redirect_stdouterr("log")
            print("\\udcff")
            print("error", file=sys.stderr)
            """
        )
        assert done.returncode == 0
        assert (tmp_path / "log.out").read_text() == "\\udcff\n"
        assert (tmp_path / "log.err").read_text() == "error\n"

    def test_closed_streams(self, tmp_path):
        """A process that was started without output streams gets them (B105)."""
        done = self.run(
            """
            os.close(1), os.close(2)
            ws.logging.redirect_stdouterr("log")
            os.write(1, b"out\\n"), os.write(2, b"err\\n")
            """
        )
        assert done.returncode == 0
        assert (tmp_path / "log.out").read_text() == "out\n"
        assert (tmp_path / "log.err").read_text() == "err\n"

    def test_nothing_is_redirected_if_a_file_cannot_be_opened(self, tmp_path):
        """A file that cannot be opened is an error, and prints go where they went (B105)."""
        (tmp_path / "log.err").mkdir()
        done = self.run(
            """
            descriptors = sorted(os.listdir("/dev/fd"))
            try:
                ws.logging.redirect_stdouterr("log")
            except IsADirectoryError:
                print("refused")
            assert sorted(os.listdir("/dev/fd")) == descriptors
            """
        )
        assert (done.stdout, done.stderr) == ("refused\n", "")

    def test_other_modes(self):
        """Any other mode is a ValueError (B105)."""
        with pytest.raises(ValueError, match="mode='x' is not known: use 'w' or 'a'"):
            ws.logging.redirect_stdouterr("log", "x")
        assert not os.path.exists("log.out")
