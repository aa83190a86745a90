"""The text of a failure, for exceptions of every kind."""

from __future__ import annotations

import time

import pytest

from workspan.dataset.transform import plain
from workspan.engines.failure import MAX_BYTES, cut, failure_line, failure_text, is_refusal


def caught(function, *args):
    """Return what *function* raises."""
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail(error):
    """Raise *error*."""
    raise error


class StrRaises(Exception):
    """Cannot be printed."""

    def __str__(self):
        raise ZeroDivisionError("in __str__")


class StrExits(Exception):
    """Ends the program when it is printed."""

    def __str__(self):
        raise SystemExit(3)


class NotesRaise(Exception):
    """Has notes that cannot be read."""

    @property
    def __notes__(self):
        raise ZeroDivisionError


class TestText:
    def test_names_type_message_and_line(self):
        """The text ends with type and message, and shows the line that raised (R11)."""
        text = failure_text(caught(fail, ValueError("no such voxel")))
        assert text.startswith("Traceback (most recent call last):\n")
        assert "raise error" in text
        assert text.endswith("\nValueError: no such voxel")

    def test_a_refusal_is_one_line_and_final(self):
        """What this package refuses is told without its frames; user code's error of that type is not (R46)."""
        import workspan as ws
        from workspan.errors import DataError

        error = caught(plain, object(), "end_task")
        error.__traceback__ = error.__traceback__.tb_next  # without this test's own frame
        assert is_refusal(error)
        assert failure_text(error).startswith("DataError: end_task returned '<object object")
        assert "\n" not in failure_text(error)
        for other in (
            caught(fail, DataError("mine")),
            caught(lambda: ws.range(3).select("x").schema()),  # the package, used by user code
            caught(fail, ValueError("other")),
        ):
            assert not is_refusal(other)
            assert failure_text(other).startswith("Traceback")
        assert not is_refusal(None)

    def test_causes_are_shown(self):
        """The chain of causes belongs to the text."""

        def both():
            try:
                fail(KeyError("inner"))
            except KeyError as error:
                raise RuntimeError("outer") from error

        text = failure_text(caught(both))
        assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("RuntimeError: outer")

    @pytest.mark.parametrize("error", [StrRaises(), StrExits(), NotesRaise("x")], ids=lambda e: type(e).__name__)
    def test_exceptions_that_cannot_be_printed(self, error):
        """An exception whose own code fails when printed is reported by its type (R12)."""
        assert type(error).__name__ in failure_text(caught(fail, error))
        assert failure_line(error).startswith(type(error).__name__)

    def test_huge_message_is_cut_in_the_middle(self):
        """Of 100 MB of text, type, beginning and end stay, in 8 KiB and without delay (R12, D36)."""
        error = caught(fail, ValueError("begin" + "x" * 100_000_000 + "end"))
        before = time.process_time()
        text = failure_text(error)
        assert time.process_time() - before < 20
        assert len(text.encode()) <= MAX_BYTES
        assert "ValueError: beginxxx" in text
        assert text.endswith("xend")
        assert "characters were cut" in text

    @pytest.mark.parametrize("character", ["\U0001f9e0", "\ud800", "é", "\n"], ids=ascii)
    def test_cut_text_is_always_short_and_printable(self, character):
        """No character, however many bytes it takes, breaks the limit or the text (R12)."""
        text = failure_text(caught(fail, ValueError(character * 50_000 + "end")))
        assert len(text.encode("utf-8")) <= MAX_BYTES
        assert text.endswith("end")

    def test_lone_surrogates_are_escaped(self):
        """Text that is not Unicode becomes text that is (R12)."""
        text = failure_text(caught(fail, ValueError("a\ud800b")))
        assert text.endswith(r"ValueError: a\ud800b")
        assert failure_line(ValueError("a\ud800b")) == r"ValueError: a\ud800b"

    def test_exception_group(self):
        """The members of a group are in the text (R12)."""
        group = ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])])
        text = failure_text(caught(fail, group))
        assert "several (2 sub-exceptions)" in text
        assert "ValueError: one" in text
        assert "KeyError: 'two'" in text

    def test_deep_recursion(self):
        """An endless recursion is told in the limit."""

        def deeper():
            deeper()

        text = failure_text(caught(deeper))
        assert "RecursionError" in text.splitlines()[-1]
        assert len(text) <= MAX_BYTES

    def test_long_chain_of_causes_keeps_its_end(self):
        """Of a long text the last lines stay, and the first ones are counted (D36)."""
        error = None
        for n in range(400):
            new = ValueError(f"number {n}")
            new.__cause__ = error
            error = new
        text = failure_text(error)
        assert text.endswith("ValueError: number 399")
        assert text.startswith("... (the first ")
        assert len(text.encode()) <= MAX_BYTES

    def test_traceback_of_the_exception_is_left_as_it_is(self):
        """Formatting does not change what a debugger sees."""
        error = caught(fail, ValueError())
        before = error.__traceback__
        failure_text(error)
        assert error.__traceback__ is before


class TestLine:
    def test_is_one_short_line(self):
        """Line ends and length are brought to what fits in a table."""
        assert failure_line(ValueError("a\n\n  b")) == "ValueError: a b"
        assert failure_line(KeyboardInterrupt()) == "KeyboardInterrupt"
        assert len(failure_line(ValueError("x" * 10_000))) == 300


class TestCut:
    def test_short_text_is_unchanged(self):
        """Nothing is added to what fits."""
        assert cut(["a\n", "b\n"]) == "a\nb"

    def test_counts_the_lines_it_drops(self):
        """The number of lines that are missing is told."""
        lines = [f"{n:09}\n" for n in range(1000)]
        text = cut(lines)
        first, *rest = text.splitlines()
        assert first == f"... (the first {1000 - len(rest)} lines were cut)"
        assert rest == [line.rstrip() for line in lines[-len(rest) :]]
        assert MAX_BYTES - 100 < len(text) <= MAX_BYTES
