"""Lines that never stop a run."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from workspan.cli import terminal

SAY = "from workspan.cli import terminal\n"


def test_a_line_goes_out(capsys: pytest.CaptureFixture[str]) -> None:
    """say() prints to stdout and complain() to stderr, a line each."""
    terminal.say("±")
    terminal.complain("no")
    assert capsys.readouterr() == ("±\n", "no\n")


def test_ascii_terminal() -> None:
    """A terminal that knows only ASCII gets what comes closest (R63)."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal._write(out, "1.7 s ± 0.3 s ∠ ✔ é")
    assert out.buffer.getvalue() == b"1.7 s +- 0.3 s / ok \\xe9\n"  # type: ignore[attr-defined]


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What a user typed and gets quoted cannot steer the terminal, nor can a file name that is not text (R63)."""
    for write in (terminal.say, terminal.complain):
        write("a\x1b[2Jb\udc80\nc")
    assert capsys.readouterr() == ("a\\x1b[2Jb\\udc80\nc\n",) * 2


def test_a_reader_that_left_does_not_stop_the_program() -> None:
    """After the reader of a pipe has gone the program goes on, and ends without complaint (R63)."""
    code = (
        SAY + "import sys\nfor i in range(20000): terminal.say('x' * 80)\nterminal.finish(); terminal.complain('done')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(80)
        process.stdout.close()
        assert process.stderr.read() == b"done\n"
    assert process.returncode == 0


def test_what_is_left_in_the_buffer_does_no_harm() -> None:
    """Text that others left unflushed for a reader that has gone does not spoil the end of the program (R63)."""
    code = SAY + "import sys\nsys.stdin.read()\nsys.stdout.write('x')\nterminal.finish()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_closed_streams() -> None:
    """A program that was started with stdout and stderr closed can still say things (R63)."""
    code = f"exec({SAY + 'terminal.say(1 * str(1)); terminal.complain(str(2)); terminal.finish()'!r})"
    shell = ["sh", "-c", '"$0" -c "$1" >&- 2>&-; echo $?', sys.executable, code]
    assert subprocess.run(shell, check=True, capture_output=True, text=True).stdout == "0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_behind_stdout() -> None:
    """Output to a full disk is lost, the program is not (R63)."""
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", SAY + "terminal.say('x'); terminal.say('y'); terminal.finish()"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")
