"""The rich style of failures."""

from __future__ import annotations

import re
import subprocess
import sys
from traceback import TracebackException

import pytest

from workspan.engines import payload, pretty
from workspan.engines.failure import MAX_BYTES, TracebackStyle, cut, failure_text, style_in_use, use_style


@pytest.fixture(autouse=True)
def styles():
    """Begin with the rich style with locals, and leave the plain one."""
    use_style(TracebackStyle("rich", show_locals=True))
    yield
    use_style(TracebackStyle())


class ReprRaises:
    """Cannot be shown."""

    def __repr__(self):
        raise ZeroDivisionError


class ReprExits:
    """Ends the program when it is shown."""

    def __repr__(self):
        raise SystemExit(3)


class StrRaises(Exception):
    """Cannot be printed."""

    def __str__(self):
        raise ZeroDivisionError("in __str__")


class StrExits(Exception):
    """Ends the program when it is printed."""

    def __str__(self):
        raise SystemExit(3)


def caught(function, *args):
    """Return what *function* raises."""
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail(error):
    """Raise *error*."""
    voxel_size = (4, 4, 40)
    assert voxel_size
    raise error  # the line that fails


def test_shows_source_and_locals():
    """The source around each frame and its variables are shown, and the error itself last (B105)."""
    text = failure_text(caught(fail, ValueError("no such voxel")))
    assert "❱" in text
    assert "raise error  # the line that fails" in text
    assert "assert voxel_size" in text
    assert "│ voxel_size = (4, 4, 40)" in text.split("─ locals ─")[-1]
    assert text.endswith("╯\nValueError: no such voxel")


def test_locals_only_if_asked():
    """Variables, which may be secret or large, are not shown by default (B105)."""
    use_style(TracebackStyle("rich"))
    text = failure_text(caught(fail, ValueError()))
    assert "the line that fails" in text
    assert "─ locals ─" not in text


def test_width_and_extra_lines():
    """The text is as wide as was asked, and shows as many lines (B105)."""
    use_style(TracebackStyle("rich", width=60, extra_lines=0))
    text = failure_text(caught(fail, ValueError()))
    assert {len(line) for line in text.splitlines()[:-1]} == {60}
    assert "assert voxel_size" not in text


def test_long_source_lines_are_shown_whole():
    """A source line that is wider than the text goes on in the next one (B105)."""

    def fails():
        raise ValueError("a source line that is so long that it does not fit into one line of the box")  # its end

    use_style(TracebackStyle("rich", extra_lines=0))
    assert "# its end" in " ".join(failure_text(caught(fails)).split())


@pytest.mark.parametrize("terminal", ["xterm-256color", "dumb"])
def test_no_colour(monkeypatch, terminal):
    """The text has no terminal codes, whatever the environment asks for (B105)."""
    for name, value in (("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("COLUMNS", "40"), ("TERM", terminal)):
        monkeypatch.setenv(name, value)
    text = failure_text(caught(fail, ValueError("[red]no[/] markup")))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) == 100
    assert text.endswith("ValueError: [red]no[/] markup")


def test_begins_with_user_code():
    """Frames of the package that lead to user code are left out (B109)."""

    def lines():
        yield fail(ValueError())

    error = caught(cut, lines())  # any function of the package that calls what it is given
    error.__traceback__ = error.__traceback__.tb_next
    text = failure_text(error)
    assert " in cut" not in text
    assert text.index(" in lines") < text.index(" in fail")


@pytest.mark.parametrize("kind", [ReprRaises, ReprExits])
def test_locals_that_cannot_be_shown(kind):
    """A variable whose repr fails costs its value, and nothing else (R12)."""

    def fails():
        odd, fine = kind(), 17
        raise ValueError(f"with {type(odd)} and {fine}")

    text = failure_text(caught(fails))
    assert "fine = 17" in text
    assert re.search(r" odd = <(cannot be shown: SystemExit|ReprRaises instance at 0x\w+)>", text)
    assert "ValueError: with" in text


@pytest.mark.parametrize("error", [StrRaises(), StrExits()], ids=lambda e: type(e).__name__)
def test_exceptions_that_cannot_be_printed(error):
    """An exception whose own code fails when printed is told of by its type (R12)."""
    assert type(error).__name__ in failure_text(caught(fail, error))


def test_large_values_are_shortened():
    """Large and deep variables cost neither the limit nor much time (R12)."""

    def fails():
        text, numbers = "x" * 50_000_000, list(range(1_000_000))
        deep = [[[[[[[[list(range(10))] * 10] * 10] * 10] * 10] * 10] * 10] * 10]
        digits = 10**5000
        raise ValueError(len(text) + len(numbers) + len(deep) + digits % 2)

    text = failure_text(caught(fails))
    assert len(text.encode()) <= MAX_BYTES
    assert "numbers = [0, 1, 2, 3, 4, 5, ...]" in text
    assert text.endswith("ValueError: 51000001")


def test_many_variables():
    """Of many variables the first ones are shown, and the rest are counted."""
    names = ", ".join(f"v{n}" for n in range(50))
    scope: dict = {}
    exec(compile(f"def fails():\n    {names} = range(50)\n    raise ValueError", "made.py", "exec"), scope)
    frames = pretty._locals({f"v{n}": n for n in range(50)})
    assert list(frames) == [*(f"v{n}" for n in range(20)), "..."]
    assert str(frames["..."]) == "and 30 more"
    assert failure_text(caught(scope["fails"])).endswith("\nValueError")


@pytest.mark.parametrize("character", ["\U0001f9e0", "\ud800", "é", "\n"], ids=ascii)
def test_text_is_always_short_and_printable(character):
    """No character, in the message or in a variable, breaks the limit or the text (R12)."""

    def fails():
        value, many = character * 50_000, [character * 100] * 6
        raise ValueError(value + many[0] + "end")

    text = failure_text(caught(fails))
    assert len(text.encode("utf-8")) <= MAX_BYTES
    assert text.endswith("end")


def test_causes():
    """The chain of causes is told in its order, with what joins it (B105)."""

    def three():
        try:
            try:
                fail(KeyError("first"))
            except KeyError:
                fail(OSError("second"))
        except OSError as error:
            raise ValueError("third") from error

    use_style(TracebackStyle("rich", extra_lines=0))
    text = failure_text(caught(three))
    order = ["\nKeyError: 'first'\n", "During handling", "\nOSError: second\n", "direct cause", "\nValueError: third"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_locals_of_causes():
    """Each exception of a chain is shown with the variables of its own frames."""

    def inner():
        here = "in the cause"
        raise KeyError(len(here))

    def outer():
        there = "in the error"
        try:
            inner()
        except KeyError as error:
            raise ValueError(there) from error

    use_style(TracebackStyle("rich", show_locals=True, extra_lines=0))
    cause, _, last = failure_text(caught(outer)).partition("KeyError: 12")
    assert "here = 'in the cause'" in cause
    assert "there = 'in the error'" in last
    assert " here =" not in last


def test_circle_of_causes():
    """Exceptions that cause each other are told of once (R12)."""
    one, two = caught(fail, ValueError("one")), caught(fail, KeyError("two"))
    one.__cause__, two.__cause__ = two, one
    text = failure_text(one)
    assert text.count("KeyError: 'two'") == 1
    assert text.endswith("ValueError: one")


def test_long_chain_and_deep_recursion():
    """Endless chains and recursions are told in the limit, their ends last (R12, D36)."""
    error = None
    for n in range(400):
        new = caught(fail, ValueError(f"number {n}"))
        new.__cause__ = error
        error = new
    assert failure_text(error).endswith("ValueError: number 399")
    told = TracebackException.from_exception(error)
    lines = list(pretty.pretty_lines(told, error, error.__traceback__, style_in_use()))
    assert lines[0] == "... (only the last 8 causes are shown)\n"
    assert [line for line in lines if line.startswith("ValueError")] == [
        f"ValueError: number {n}\n" for n in range(391, 400)
    ]

    def deeper(n):
        deeper(n + 1)

    text = failure_text(caught(deeper, 0))
    assert "RecursionError" in text.splitlines()[-1]
    assert len(text.encode()) <= MAX_BYTES


def test_many_frames():
    """Of many frames the first and the last ones are shown, and the others are counted."""

    def deeper(n):
        if n:
            deeper(n - 1)
        raise ValueError

    error = caught(deeper, 50)
    use_style(TracebackStyle("rich", extra_lines=0))
    told = TracebackException.from_exception(error)
    text = "".join(pretty.pretty_lines(told, error, error.__traceback__, style_in_use()))
    assert "... 32 frames hidden ..." in text
    assert text.count(" in deeper") == 19


def test_groups_are_plain():
    """An exception group is told of in the plain style, with its members (R12)."""
    text = failure_text(caught(fail, ExceptionGroup("several", [ValueError("one"), KeyError("two")])))
    assert "ValueError: one" in text
    assert "KeyError: 'two'" in text
    assert "╭" not in text


def test_without_rich_it_is_plain(monkeypatch):
    """If the style cannot be had, the failure is told of plainly (R12)."""
    monkeypatch.delitem(sys.modules, "workspan.engines.pretty")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    text = failure_text(caught(fail, ValueError("x")))
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("\nValueError: x")


def test_style_travels_to_workers():
    """A worker takes over the driver's style (B105)."""
    use_style(TracebackStyle("rich", True, 77, 5))
    settings = payload.driver_settings()
    use_style(TracebackStyle())
    payload.restore_traceback_style(settings["traceback_style"])
    assert style_in_use() == TracebackStyle("rich", True, 77, 5)


@pytest.mark.parametrize(("style", "loaded"), [("plain", False), ("rich", True)])
def test_rich_is_loaded_only_when_needed(style, loaded):
    """A worker loads rich for a failure in that style and for nothing else (B105)."""
    script = (
        "import sys\n"
        "from workspan.engines import worker\n"
        "from workspan.engines.failure import TracebackStyle, cut, failure_text, use_style\n"
        f"use_style(TracebackStyle({style!r}))\n"
        "assert 'rich' not in sys.modules\n"
        "try:\n    1 / 0\nexcept Exception as error:\n    failure_text(error)\n"
        "print('rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == (f"{loaded}\n", "")
