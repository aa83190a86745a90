from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from workspan.estimate.remaining import Left
from workspan.views.progress import Guard
from workspan.views.rich_progress import RichProgress


def console(width: int = 100) -> Console:
    """A console that takes its stream for a colour terminal of that width."""
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})


def screen(shown: Console) -> list[str]:
    """The lines of the last picture that was drawn, without codes."""
    text = shown.file.getvalue().split("\x1b[?25l")[-1]
    last = re.split(r"(?:\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*)", text)[-1]
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).splitlines() if line.strip()]


class TestBars:
    def test_a_bar_while_it_runs(self, make, clock):
        """Task, sign, blocks, percent, workers, troubles and time left are on the task's line (D16, B167)."""
        shown = console()
        observer = RichProgress(console=shown, clock=clock)
        state = make.state("smooth", 1728, 0, ready=1720, processing=8, worker_start=8)
        observer.on_start({"smooth": state})
        clock.now = 120.0
        counters = {"ready": 516, "processing": 8, "worker_start": 9, "worker_restart": 1}
        after = make.state("smooth", 1728, 1204, **counters, left=Left(52.0, 50.0, 55.0))
        observer.on_progress({"smooth": after})
        (line,) = screen(shown)
        assert re.fullmatch(
            r"smooth ▶ ━+[╸╺]? *━* 1,204/1,728 69% 8 workers  1 restart 0:52 left \(0:50 - 0:55\)", line
        )
        observer.on_finish({"smooth": make.state("smooth", 1728, worker_start=8)})
        (line,) = screen(shown)
        assert re.fullmatch(r"smooth ✔ ━{30} 1,728/1,728 100% 8 workers +in 2:00", line)

    @pytest.mark.parametrize(
        ("width", "words"), [(100, "0:52 left (0:50 - 0:55)"), (80, "0:52 left (0:50 - 0:55)"), (64, "0:52 left")]
    )
    def test_the_time_left_is_not_cut(self, make, clock, width, words):
        """Where the line is short the bar gives way, then the range, and never the time that is left (R63)."""
        shown = console(width)
        observer = RichProgress(console=shown, clock=clock)
        state = make.state("smooth", 1728, 1204, processing=8, worker_start=8, left=Left(52.0, 50.0, 55.0))
        observer.on_start({"smooth": state})
        (line,) = screen(shown)
        assert line.endswith(words)
        observer.on_finish({"smooth": make.state("smooth", 1728)})

    def test_a_long_name_gives_way(self, make, clock):
        """The id of a dataset's task is cut in the middle before any figure is (issue 10)."""
        shown = console(80)
        observer = RichProgress(console=shown, clock=clock)
        name = "1 ReadParquet->Filter((delay > 15))->MapBatches(features_with_a_long_name)"
        state = make.state(name, 1728, 1204, processing=8, worker_start=8, left=Left(52.0, 50.0, 55.0))
        observer.on_start({name: state})
        (line,) = screen(shown)
        assert re.fullmatch(r"1 ReadParquet->.*….*ong_name\) ▶ \S*━.* 1,204/1,728 69% 8 workers 0:52 left", line)
        observer.on_finish({name: make.state(name, 1728)})

    def test_a_line_a_task_in_display_order(self, make, clock):
        """Each task has its own line, with its own speed and sign (KF-50)."""
        shown = console()
        observer = RichProgress(console=shown, clock=clock)
        states = {
            "smooth": make.state("smooth", 12),
            "classes": make.state("classes", 1, 0, failed=1),
            "after": make.state("after", 12, 0, orphaned=12),
            "later": make.state("later", 12, 0),
        }
        observer.on_start(states)
        observer.on_progress(states)
        names = [line.split("━")[0].split("  ")[0].strip() for line in screen(shown)]
        assert names == ["smooth ✔", "classes ✗", "after ∅", "later ▶"]
        assert "waiting for input" in screen(shown)[3]
        observer.on_finish(states)
        assert re.fullmatch(r"later … .* 0/12 +0% +after 0:00", screen(shown)[3])

    def test_a_task_without_blocks_is_full(self, make, clock):
        """0 of 0 is done: a full bar and 100 % (KF-56)."""
        shown = console()
        observer = RichProgress(console=shown, clock=clock)
        observer.on_start({"empty": make.state("empty", 0)})
        observer.on_finish({"empty": make.state("empty", 0)})
        assert re.fullmatch(r"empty ✔ ━{30} 0/0 100% +in 0:00", screen(shown)[0])

    def test_a_bar_that_ended_early_is_not_full(self, make, clock):
        """An interrupted task stays where it was (KF-58)."""
        shown = console()
        observer = RichProgress(console=shown, clock=clock)
        observer.on_start({"seg": make.state("seg", 1766, 0, ready=1766)})
        observer.on_finish({"seg": make.state("seg", 1766, 1762, ready=4)})
        assert "1,762/1,766 99%" in screen(shown)[0]

    def test_ids_are_no_markup(self, make, clock):
        """An id like [red]x[/red] is printed literally, one with control codes escaped (KF-72, R50)."""
        shown = console()
        observer = RichProgress(console=shown, clock=clock)
        states = {name: make.state(name) for name in ("[red]x[/red]", "{task}", "a\x1b]0;owned\x07")}
        observer.on_start(states)
        observer.on_finish(states)
        names = [line.split(" ✔")[0] for line in screen(shown)]
        assert names == ["[red]x[/red]", "{task}", "a\\x1b]0;owned\\x07"]
        assert "\x07" not in shown.file.getvalue()

    @pytest.mark.parametrize("width", [1, 20, 40])
    def test_a_narrow_terminal(self, make, clock, width):
        """20 columns, or one, give a cut line, not an error and not two lines a task (R63)."""
        shown = console(width)
        observer = RichProgress(console=shown, clock=clock)
        states = {"smooth": make.state("smooth", 1728, 1204, processing=8, worker_start=8, failed=3)}
        observer.on_start(states)
        observer.on_finish(states)
        lines = screen(shown)
        assert len(lines) <= 1
        assert all(len(line) <= width for line in lines)


class TestTerminal:
    def test_the_cursor_comes_back(self, make, clock):
        """The cursor is hidden while bars are drawn and shown again at the end (R21)."""
        shown = console()
        observer = RichProgress(console=shown, clock=clock)
        observer.on_start({"seg": make.state()})
        assert "\x1b[?25h" not in shown.file.getvalue()
        observer.on_finish({"seg": make.state()})
        text = shown.file.getvalue()
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0

    def test_the_cursor_comes_back_after_an_error(self, make, clock, caplog):
        """A display that fails in mid-run leaves the terminal as it was, and the run goes on (R18, R21)."""
        shown = console()
        guard = Guard(RichProgress(console=shown, clock=clock))
        with caplog.at_level(logging.WARNING):
            guard.start({"seg": make.state()}, 0.0)
            guard.tick({"a task that was not there": make.state()}, 1.0)
        assert [record.getMessage() for record in caplog.records] == [
            "progress observer RichProgress raised in on_progress and is switched off"
        ]
        text = shown.file.getvalue()
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")

    def test_there_is_no_thread(self, make, clock):
        """Bars are drawn by the run's own thread only (KF-54, R22)."""
        before = threading.active_count()
        observer = RichProgress(console=console(), clock=clock)
        observer.on_start({"seg": make.state()})
        assert threading.active_count() == before
        observer.on_finish({"seg": make.state()})

    def test_prints_of_the_program_stay(self, make, clock, capsys):
        """What the program prints appears above the bars, and standard output is its own again afterwards."""
        before = sys.stdout
        shown = console()
        observer = RichProgress(console=shown, clock=clock)
        observer.on_start({"seg": make.state(completed=0)})
        print("printed by the program")
        observer.on_finish({"seg": make.state()})
        assert "printed by the program\n" in shown.file.getvalue()
        assert sys.stdout is before

    def test_a_terminal_that_is_gone(self, make, clock):
        """If nobody reads the terminal any more the process does not exit (R63)."""

        class Gone(io.StringIO):
            encoding = "utf-8"

            def isatty(self):
                return True

            def write(self, text):
                raise BrokenPipeError

        observer = RichProgress(Gone(), clock=clock)
        observer.on_start({"seg": make.state()})
        observer.on_progress({"seg": make.state()})
        observer.on_finish({"seg": make.state()})


def test_rich_is_loaded_for_bars_only():
    """Reports, panels, summaries and plain lines do without rich, numpy and asyncio (issue of import cost, D15)."""
    code = (
        "import io, sys\n"
        "import workspan.views.panel, workspan.views.summary, workspan.report\n"
        "from workspan.views.progress import choose\n"
        "choose(True, io.StringIO())\n"
        "print([name for name in ('rich', 'numpy', 'zarr', 'asyncio', 'IPython') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
