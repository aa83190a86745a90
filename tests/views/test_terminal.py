from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from workspan.views.terminal import emit, encoding_of, in_notebook, is_terminal


class Stream(io.StringIO):
    """A text stream that says of itself what the test wants."""

    def __init__(self, *, tty: bool = True, encoding: str = "utf-8") -> None:
        super().__init__()
        self._tty = tty
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return self._tty


class Broken(Stream):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


TERM = {"TERM": "xterm-256color"}


class TestIsTerminal:
    def test_a_terminal(self):
        """A terminal with a name and our signs gets bars (D16)."""
        assert is_terminal(Stream(), TERM)

    @pytest.mark.parametrize(
        ("stream", "environ"),
        [
            (Stream(tty=False), TERM),
            (Stream(), {"TERM": "dumb"}),
            (Stream(), {"TERM": "unknown"}),
            (Stream(), {}),
            (Stream(encoding="ascii"), TERM),
            (Stream(encoding="latin-1"), TERM),
            (Stream(encoding="no-such-codec"), TERM),
            (None, TERM),
            (object(), TERM),
            (Stream(tty=False), {**TERM, "FORCE_COLOR": "1"}),
        ],
        ids=["pipe", "dumb", "unknown", "no-TERM", "ascii", "latin-1", "codec", "none", "no-isatty", "forced-colour"],
    )
    def test_no_place_for_bars(self, stream, environ):
        """Pipes, dumb terminals and those without our signs get plain lines, FORCE_COLOR or not (D16, R63)."""
        assert not is_terminal(stream, environ)

    def test_a_closed_stream(self):
        """A closed stream is no terminal, and no error (R63)."""
        stream = io.StringIO()
        stream.close()
        assert not is_terminal(stream, TERM)


class TestEmit:
    def test_text_and_line_break(self):
        """The text arrives with a line break."""
        stream = Stream()
        assert emit("a ± b", stream)
        assert stream.getvalue() == "a ± b\n"

    def test_an_ascii_stream_gets_ascii(self):
        """A real stream with PYTHONIOENCODING=ascii does not raise (R63)."""
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        assert emit("50.5 ms ± 0.1 ms ✔", stream)
        assert raw.getvalue() == b"50.5 ms +- 0.1 ms ok\n"

    def test_a_stream_without_readers(self):
        """A broken pipe, a closed and a missing stream are no errors (R63)."""
        closed = io.StringIO()
        closed.close()
        assert [emit("x", stream) for stream in (Broken(), closed, None)] == [False, False, False]

    def test_a_full_device(self):
        """A device that takes nothing is no error either (R63)."""
        if not sys.platform.startswith("linux"):
            pytest.skip("the full device is Linux's")
        stream = open("/dev/full", "w")  # noqa: SIM115 (closing it raises what is in its buffer)
        try:
            assert not emit("x", stream)
        finally:
            with pytest.raises(OSError, match="No space left"):
                stream.close()

    def test_a_stream_that_does_not_name_its_encoding(self):
        """Without a word about it, ASCII is safe."""
        assert encoding_of(io.StringIO()) == encoding_of(None) == "ascii"


class TestNotebook:
    def test_not_here(self):
        """A test run is no notebook."""
        assert not in_notebook()

    @pytest.mark.parametrize(
        ("shell", "widgets", "found"),
        [("ZMQInteractiveShell", True, True), ("ZMQInteractiveShell", False, False), ("TerminalShell", True, False)],
    )
    def test_a_kernel_with_widgets(self, monkeypatch, shell, widgets, found):
        """A notebook is a kernel that can change what it has shown; a terminal shell is none (D16)."""
        fake = SimpleNamespace(get_ipython=lambda: type(shell, (), {})())
        monkeypatch.setitem(sys.modules, "IPython", fake)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if widgets else None)
        assert in_notebook() is found
