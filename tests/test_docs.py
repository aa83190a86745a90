"""The pages and the README are true: their Python blocks run, in order, one page in one namespace."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

import workspan
from workspan import config
from workspan.estimate import recorder as recorders

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


FIGURE = re.compile(r"[-+<]?\d[\d.,]*( (µs|ms|s|min|[KMGT]?B|%)(?!\w))?")


def without_figures(text: str) -> str:
    """Replace each figure with its unit by a sign, and each run of blanks by one; drop what only some figures bring."""
    text = text.replace("   (more workers can help)", "")  # blocks that other programs slow down may differ in this
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


@pytest.mark.timeout(240)  # a page may start a dozen workers, on a machine that is busy with other things
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


def slugs(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the built pages name them."""
    found = re.findall(r"^#{1,4} (.+)$", re.sub(FENCE, "", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file, a page or a heading names one that is there (D50)."""
    text = re.sub(FENCE, "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = page.parent / path if path else page
        assert file.exists() or "_figures" in path, f"{page.name}: {target} is not there"
        assert not anchor or anchor in slugs(file.read_text()), f"{page.name}: {target} has no such heading"


@pytest.mark.parametrize("module", [workspan, workspan.engines, workspan.estimate, workspan.live])
def test_every_public_name_is_on_the_page_of_names(module: object) -> None:
    """What can be imported is told of: `docs/api.md` names everything in `__all__` (D50)."""
    page = (ROOT / "docs/api.md").read_text()
    modules = {"engines", "errors", "estimate", "live", "logging"}  # their names are listed one by one
    public = {*module.__all__, *(["range"] if module is workspan else [])} - modules  # type: ignore[attr-defined]
    assert [name for name in sorted(public) if not re.search(rf"(?<!\w){name}(?!\w)", page)] == []


def test_the_table_of_extras_is_complete() -> None:
    """The page on installation has a row for each extra of the package, and for no other (D15)."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/installation.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(extras)


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
        printed = "parallelism 4.1   (more workers can help)"
        run_page(f"```python\nprint({printed!r})\n```\n```output like\nparallelism 2.5\n```\n", "page")

    def test_an_unrun_block_gives_a_reason(self) -> None:
        """Leaving a block out takes a reason."""
        run_page("```python no-run: needs a cluster\n1 / 0\n```\n", "page")
        with pytest.raises(AssertionError, match="no-run"):
            run_page("```python no-run:\n1 / 0\n```\n", "page")
