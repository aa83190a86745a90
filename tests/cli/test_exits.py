"""From an error to an exit code and one line (R72)."""

from __future__ import annotations

import errno

import pytest

from workspan import errors
from workspan.cli import exits

CODES = [
    (errors.ConfigurationError("x"), 2),
    (errors.UsageTypeError("x"), 2),
    (errors.TrackingError("x"), 2),
    (errors.LayoutMismatchError("x"), 2),
    (errors.MissingExtraError("x"), 2),
    (errors.InvalidMetadataError("x"), 3),
    (errors.StoreLockedError("x"), 3),
    (errors.StoreFullError("x"), 3),
    (errors.AbandonedError("x"), 1),
    (errors.StalledError("x"), 1),
    (errors.EngineError("x"), 1),
    (errors.WireError("x"), 1),
    (OSError(errno.ENOSPC, "full"), 3),
    (OSError(errno.EDQUOT, "full"), 3),
    (OSError(errno.EIO, "broken"), 1),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: repr(value))
def test_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind of error has its code, and is one line without a traceback (D39, R72)."""
    assert exits.explain(error, traceback=False) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("workspan: ")
    assert err.count("\n") == 1


def test_every_error_of_the_package_has_a_code() -> None:
    """No error on purpose is taken for a fault of the program (R72)."""
    todo = [errors.WorkspanError]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        assert exits.code_of(kind(*["x"] * (1 + issubclass(kind, errors.MapError)))) in (1, 2, 3), kind


def test_line_breaks_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """A text of several lines is still one line."""
    exits.explain(errors.ConfigurationError("one\n  two\n\nthree"), traceback=False)
    assert capsys.readouterr().err == "workspan: one two three\n"


def test_two_layouts_stay_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """What a store was made for and what the task has now stand on lines of their own (R72)."""
    exits.explain(errors.LayoutMismatchError("other layout:\n  read_roi: 5 -> 10\nUse"), traceback=False)
    assert capsys.readouterr().err == "workspan: other layout:\n  read_roi: 5 -> 10\nUse\n"


def test_traceback_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    """With the switch an error on purpose comes with its traceback and the same code."""
    with pytest.raises(errors.ConfigurationError) as caught:
        raise errors.ConfigurationError("why")
    assert exits.explain(caught.value, traceback=True) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("ConfigurationError: why\n")


def test_a_fault_of_the_program_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody raised on purpose is not hidden behind a line."""
    with pytest.raises(ZeroDivisionError) as caught:
        raise ZeroDivisionError("oops")
    assert exits.explain(caught.value, traceback=False) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
