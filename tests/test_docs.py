"""The pages and the README are true: their Python blocks run, in order, one page in one namespace."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from workspan import config
from workspan.engines import fork_server
from workspan.estimate import recorder as recorders

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


FIGURE = re.compile(r"[-+<]?\d[\d.,]*( (µs|ms|s|min|[KMGT]?B|%)(?!\w))?")


def without_figures(text: str) -> str:
    """Replace each figure with its unit by a sign, and each run of blanks by one."""
    return re.sub(r"[ \t]+", " ", FIGURE.sub("#", text)).strip()


def run_page(text: str, name: str) -> None:
    """Run the ``python`` blocks of a page; compare what they print with the ``output`` block behind each, if any.

    In an ``output`` block ``...`` stands for anything; in an ``output like`` block figures, their units and the width
    of columns may differ too, so that a page can show times. A block that cannot run says so by its kind:
    ``python no-run: why``.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for match in FENCE.finditer(text):
        kind, body = match["kind"].strip(), match["body"]
        if kind == "python":
            # Blank lines in front give tracebacks the page's line numbers.
            code = "\n" * (text.count("\n", 0, match.start()) + 1) + body
            # A stream that names its encoding: otherwise "±" becomes "+-".
            out = io.TextIOWrapper(buffer := io.BytesIO(), encoding="utf-8", write_through=True)
            with contextlib.redirect_stdout(out):
                exec(compile(code, name, "exec"), namespace)
            printed = buffer.getvalue().decode()
        elif kind in ("output", "output like"):
            same = without_figures if kind == "output like" else str.strip
            wanted = ".*".join(map(re.escape, same(body).split("...")))
            found = re.fullmatch(wanted, same(printed), re.DOTALL)
            assert found, f"{name} shows\n{body}but it prints\n{printed}"
        else:
            assert not kind.startswith("python") or re.fullmatch(r"python no-run: \S.*", kind), f"{name}: {kind!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page shows can be typed, in an empty folder, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKSPAN_LIVE_ENABLED", "0")  # a program of its own would listen until it ends
    try:
        run_page(page.read_text(), str(page))
    finally:
        if (recorder := recorders.use(None)) is not None:
            recorder.close()
            config.reset()
        fork_server.stop_all()


class TestRunPage:
    """The runner itself."""

    def test_blocks_share_a_namespace(self) -> None:
        """A later block uses names of an earlier one."""
        run_page("```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```\n", "page")

    def test_a_failing_block_fails(self) -> None:
        """An exception comes through with the page's line number."""
        with pytest.raises(ZeroDivisionError) as caught:
            run_page("text\n\n```python\n1 / 0\n```\n", "page")
        assert caught.traceback[-1].lineno == 3  # counted from 0

    def test_wrong_output_fails(self) -> None:
        """Output that differs from what is printed is refused, and shows both."""
        run_page("```python\nprint(1.25, 'x')\n```\n```output\n1... x\n```\n", "page")
        with pytest.raises(AssertionError, match=r"page shows\s+2\s+but it prints\s+1\s"):
            run_page("```python\nprint(1)\n```\n```output\n2\n```\n", "page")

    def test_figures_may_differ_where_the_page_says_so(self) -> None:
        """In an ``output like`` block numbers, units and widths are free; words are not."""
        text = "```python\nprint('read   -3.25 ms   <1 %  ok')\n```\n```output like\nread 1.1 µs  12 %  {}\n```\n"
        run_page(text.format("ok"), "page")
        with pytest.raises(AssertionError, match="page shows"):
            run_page(text.format("no"), "page")

    def test_an_unrun_block_gives_a_reason(self) -> None:
        """Leaving a block out takes a reason."""
        run_page("```python no-run: needs a cluster\n1 / 0\n```\n", "page")
        with pytest.raises(AssertionError, match="no-run"):
            run_page("```python no-run:\n1 / 0\n```\n", "page")
