"""Notebooks: what they show of tasks, runs, forecasts and datasets, and that the notebook of the docs is true.

After a change, ``jupyter nbconvert --execute --inplace docs/notebook.ipynb`` makes its outputs anew.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import workspan as ws
from workspan import config
from workspan.report.task import RunReport
from workspan.views.rich_progress import RichProgress

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read the settings of an empty folder."""
    monkeypatch.chdir(tmp_path)
    config.reset()
    config.configure(log_basedir=tmp_path / "logs", timing={"directory": tmp_path / "timing"})
    yield
    config.reset()


def nothing(block: Any) -> None:
    """Do nothing."""


def task(name: str = "one", function: Any = nothing, **more: Any) -> ws.Task:
    """A task of four blocks with a halo."""
    roi = ws.Roi((-1,), (10,)), ws.Roi((-1,), (4,)), ws.Roi((0,), (2,))
    return ws.Task(name, *roi, function, read_write_conflict=False, max_retries=0, **more)


def run(what: Any, **more: Any) -> Any:
    """Run in this process without a word."""
    return ws.run_blockwise(what, engine="serial", progress=False, summary=False, return_report=True, **more)


def html(value: Any) -> str:
    """What a notebook shows of *value*: nothing that runs, nothing that is loaded."""
    text: str = value._repr_html_()
    assert "<script" not in text
    assert "http" not in text
    assert len(text) < 20_000
    return text


def plain(text: str) -> str:
    """Text of HTML, without its style and tags."""
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", text).split())


class TestShowing:
    """Objects as HTML."""

    def test_task(self, tmp_path: Path) -> None:
        """A task shows its blocks, its halo and how far it is; what was never run claims no run."""
        one = task(tracking_path=tmp_path / "t")
        assert plain(html(one)) == (
            "Task one blocks 4 of 2, in a grid of 4 halo 1 function nothing workers at most 1, 0 retries "
            f"tracking {tmp_path / 't'}, not begun"
        )
        run(one)
        assert f"{tmp_path / 't'}, 4 of 4 done last run completed, " in plain(html(one))
        other = task(function=None)
        assert "workers come from outside" in html(other)
        assert "tracking none: every run does all blocks" in plain(html(other))
        assert "halo" not in html(ws.Task("two", *[ws.Roi((0,), (2,))] * 3, nothing))

    def test_task_with_a_broken_store(self, tmp_path: Path) -> None:
        """A store that cannot be read is told, and raises nothing where somebody only looks."""
        one = task(tracking_path=tmp_path / "t")
        run(one)
        (tmp_path / "t" / "zarr.json").write_text("{}")
        assert str(tmp_path / "t") in plain(html(one))

    def test_pipeline(self) -> None:
        """A pipeline shows what waits for what."""
        text = plain(html(task("one") + task("two")))
        assert text.startswith("Pipeline of 2 tasks task blocks of workers after one 4 2 1 two 4 2 1 one")

    @pytest.mark.parametrize("kind", ["task", "pipeline", "report", "forecast"])
    def test_foreign_text_stays_text(self, kind: str) -> None:
        """Names and errors with markup are shown as they are, and make no element (R48)."""

        def bad(block: Any) -> None:
            raise ValueError("<img src=x>")

        evil = task("<b>&one", bad)
        shown = {"task": evil, "pipeline": ws.Pipeline([evil])}
        text = html(shown[kind] if kind in shown else run(evil) if kind == "report" else evil.forecast())
        assert "&lt;b&gt;&amp;one" in text
        assert "<b>" not in text
        assert "<img" not in text
        if kind == "report":
            assert "&lt;img src=x&gt;" in text

    def test_report_of_a_run_that_failed(self) -> None:
        """The first errors are there, folded, with their traceback: nobody has to look for a log."""

        def bad(block: Any) -> None:
            raise ValueError("no luck")

        report = run(task(function=bad))
        text = html(report)
        assert text.count("<details>") == 3
        assert "block 0 failed (error, 1 attempt)" in text
        assert "ValueError: no luck" in text
        assert "0 of 4 blocks, 4 failed" in plain(text)
        assert plain(html(report["one"])) == plain(text)

    def test_forecast(self) -> None:
        """A forecast says what it is known from, and says so if that is nothing."""
        one = task()
        assert "not known (default, no data)" in plain(html(one.forecast()))
        for _ in range(3):
            run(one)
        text = plain(html(one.forecast(workers=2)))
        assert "from 12 blocks of 3 runs" in text
        assert "workers wall from to speed-up memory 1 " in text

    def test_dataset(self) -> None:
        """A dataset shows its operators without running them, and what its last execution cost."""
        calls: list[int] = []
        rows = ws.range(6).map(lambda row: calls.append(1) or row).filter(ws.col("id") > 2)
        text = html(rows)
        assert not calls
        assert "Map(&lt;lambda&gt;)" in text
        assert "6 rows" in text
        assert "Last execution" not in text
        rows.count(engine="serial")
        assert "Last execution" in html(rows)
        made = rows.write_csv("out", engine="serial", progress=False)
        assert "3 rows in " in plain(html(made))
        assert "WriteCSV" in html(made)

    def test_other_values_are_text(self) -> None:
        """A value without a view of its own leaves it to the notebook to show its text."""
        report = run(task())
        assert report["one"].blocks._repr_html_() is None

    def test_a_report_from_a_file(self, tmp_path: Path) -> None:
        """Where nothing was run, a report that was read is shown as well."""
        (tmp_path / "report.json").write_text(json.dumps(run(task()).to_json()))
        code = (
            "import json, workspan as ws\n"
            "report = ws.RunReport.from_json(json.load(open('report.json')))\n"
            "print('one: completed' in report._repr_html_())"
        )
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert out == "True\n"
        assert ws.RunReport is RunReport


def test_the_last_bars_stay() -> None:
    """What changes is a widget, which a saved notebook does not keep: the last state is printed after it (D16)."""
    states = {"one": ws.TaskState(total_block_count=4, completed_count=4)}
    for notebook, times in [(True, 1), (False, 1)]:
        out = io.StringIO()
        progress = RichProgress(notebook=notebook, console=Console(file=out, width=100))
        progress.on_start({"one": ws.TaskState(total_block_count=4, ready_count=4)})
        progress.on_finish(states)
        assert out.getvalue().count("4/4 100%") == times, notebook


def cells() -> list[dict[str, Any]]:
    """Cells with code of the notebook in the docs."""
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    """The code of a cell."""
    return "".join(cell["source"])


def shown(cell: dict[str, Any]) -> list[str]:
    """HTML of what the last expression of a cell is."""
    results = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
    return ["".join(data["text/html"]) for data in results]


def headings(text: str) -> list[str]:
    """What matters of a piece of HTML: its title and the names of its rows and columns, and no figure."""
    found = re.findall(r"<(?:h4|th|summary)[^>]*>(.*?)</", text)
    return sorted(heading for heading in found if not heading.isdigit())


def test_the_notebook_of_the_docs() -> None:
    """Each cell runs, and shows what the notebook says that it shows, up to figures."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    compared = 0
    for cell in cells():
        tree = ast.parse(source(cell))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), namespace)
        if last is None:
            continue
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
        for text in shown(cell):
            assert headings(value._repr_html_()) == headings(text)
            compared += 1
    assert compared == 5


@pytest.mark.once
@pytest.mark.leaks("descriptors", "threads", reason="the client of Jupyter keeps its sockets and the thread for them")
def test_a_notebook_in_a_real_kernel(tmp_path: Path) -> None:
    """In a Jupyter kernel functions of cells reach the workers, and the last bars stay with the notebook (R22, R64)."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    del notebook.cells[6:-1]  # the last one tidies up
    nbclient.NotebookClient(notebook, timeout=50, resources={"metadata": {"path": str(tmp_path)}}).execute()
    last = notebook.cells[5]
    texts = ["".join(output["data"].get("text/html", "")) for output in last["outputs"] if "data" in output]
    assert any("━" in text and "16/16 100%" in text for text in texts)
    assert "smooth: completed" in plain(texts[-1])
