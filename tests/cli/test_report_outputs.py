"""``workspan report``: a run as a page and as data."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest
from funlib.geometry import Roi

import workspan
from helpers.runs import line, run
from workspan.cli import main
from workspan.report.task import RunReport


def work(block):
    """Open a section with a name that a spreadsheet would take for a formula."""
    with workspan.section("=1+1"):
        pass


@pytest.fixture
def folder(tmp_path: Path, logs: Path) -> Path:
    """Folder of the tracking of two tasks of one run: five blocks that were measured, two that were not."""
    one = line(5, work, "one", tracking_path=tmp_path / "runs" / "one", resource_tracking=True)
    two = line(2, work, "two", tracking_path=tmp_path / "runs" / "two")
    run(one | two)
    return tmp_path / "runs"


class TestRows:
    def test_csv_has_a_row_a_block(self, folder: Path, tmp_path: Path) -> None:
        """Every block of every task is a row, with its task; what was not measured is empty (B152, D22)."""
        assert main(["report", str(folder), "--csv", str(tmp_path / "x.csv")]) == 0
        rows = rows_of(tmp_path / "x.csv")
        assert [(row["task"], row["cell_0"]) for row in rows] == [("one", str(n)) for n in range(5)] + [
            ("two", "0"),
            ("two", "1"),
        ]
        record = run_report(folder)["one"].block((3,))
        assert float(rows[3]["wall_seconds"]) == pytest.approx(record.stats.wall_seconds, rel=1e-6)
        assert (rows[5]["wall_seconds"], rows[5]["worker_id"], rows[5]["done"]) == ("", "", "true")

    def test_csv_holds_no_formula(self, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        """A name that begins like a formula is text to a spreadsheet (R50)."""
        from workspan.report.export import plain_text

        assert main(["report", str(folder), "--csv", "-"]) == 0
        head, first, *_ = csv.reader(io.StringIO(capfdbinary.readouterr().out.decode()))
        assert all(not cell.startswith(("=", "+", "-", "@")) for cell in (*head, *first))
        assert head[-1] == "steps/=1+1"
        for text in ("=1+1", "+1", "-1", "@x", "\tx", "\rx"):
            assert plain_text(text) == f"'{text}"

    def test_a_task_named_like_a_formula_is_quoted(self, tmp_path: Path, logs: Path) -> None:
        """The task's own name, too, is text to a spreadsheet (R50)."""
        report = run(line(1, work, "-x", tracking_path=tmp_path / "t"))
        from workspan.report.export import write_csv

        out = io.BytesIO()
        assert write_csv(list(report.tasks.values()), out) == 1
        assert out.getvalue().decode().splitlines()[1].startswith('"\'-x"')

    def test_parquet_has_the_same_rows(self, folder: Path, tmp_path: Path) -> None:
        """The Parquet file has the columns of ``to_frame``, exactly, for all tasks; a task without one has nulls."""
        assert main(["report", str(folder), "--parquet", str(tmp_path / "x.parquet")]) == 0
        table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
        frame = run_report(folder)["one"].to_frame()
        assert table.column_names == ["task", *frame.column_names]
        assert table.slice(0, 5).drop_columns(["task"]).to_pydict() == frame.to_pydict()
        assert table["steps/=1+1"].to_pylist()[5:] == [None, None]
        assert not list(tmp_path.glob(".*"))

    def test_rows_without_a_store_are_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], logs: Path
    ) -> None:
        """A run whose stores are gone says so and writes no file."""
        run(line(2, work, "one", tracking_path=tmp_path / "one"))
        os.remove(tmp_path / "one" / "zarr.json")
        assert main(["report", str(tmp_path / "one"), "--parquet", str(tmp_path / "x.parquet")]) == 2
        assert "no tracking store" in capsys.readouterr().err
        assert not (tmp_path / "x.parquet").exists()


class TestJson:
    def test_json_is_the_report(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Standard output has the run's own JSON form and nothing else (B155)."""
        assert main(["report", str(folder), "--json", "-"]) == 0
        assert RunReport.from_json(json.loads(capsys.readouterr().out)) == run_report(folder)

    def test_the_panel_is_printed_beside_files(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Writing files takes nothing from the panel, and each file is named with what is in it."""
        files = [tmp_path / name for name in ("x.json", "x.csv", "x.html")]
        assert (
            main(["report", str(folder), "--json", f"{files[0]}", "--csv", f"{files[1]}", "--html", f"{files[2]}"]) == 0
        )
        out = capsys.readouterr().out
        assert "\nResource Utilization\n" in out
        assert f"7 blocks as CSV: {files[1]}" in out
        assert all(file.stat().st_size > 500 for file in files)


class TestWhere:
    def test_the_default_is_here(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a path the runs in the current folder are looked at, some folders down."""
        monkeypatch.chdir(folder.parent)
        assert main(["report"]) == 0
        assert "one   5 blocks" in capsys.readouterr().out

    def test_a_folder_that_was_moved_is_read_where_it_is(self, folder: Path, tmp_path: Path) -> None:
        """The blocks are those beside the history, wherever the run once wrote them."""
        shutil.move(folder, tmp_path / "elsewhere")
        assert main(["report", str(tmp_path / "elsewhere"), "--csv", str(tmp_path / "x.csv")]) == 0
        assert len((tmp_path / "x.csv").read_text().splitlines()) == 8

    def test_the_outcome_is_the_worst_one(self, tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A run put together from its tasks' lines has the worst of their outcomes, as the run itself had."""

        def fail(block):
            raise ValueError

        bad = line(1, fail, "bad", tracking_path=tmp_path / "bad", max_retries=0)
        run(line(1, work, "a", tracking_path=tmp_path / "a") | bad)
        assert main(["report", str(tmp_path), "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["outcome"] == "incomplete"


class TestRefused:
    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["--html=-"], "--html - is not possible"),
            (["--parquet=-"], "--parquet - is not possible"),
            (["--csv", "-", "--json", "-"], "same place"),
            (["--csv", "."], "that is a folder"),
            (["--csv", "--json"], "name of a file is missing"),
            (["--json", "none/x"], "there is no folder"),
            (["--html", "none/x"], "there is no folder"),
        ],
    )
    def test_what_cannot_be_written_is_refused(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        words: list[str],
        told: str,
    ) -> None:
        """An output that cannot be is a line on stderr that names the option, and exit code 2 (D39)."""
        monkeypatch.chdir(folder.parent)
        assert main(["report", "runs", *words]) == 2
        assert told in capsys.readouterr().err


class TestDataset:
    @pytest.fixture
    def tracking(self, tmp_path: Path, logs: Path) -> Path:
        """Of a dataset that was written: three tasks of two rows, of which one row is left each."""
        rows = [{"a": n} for n in range(6)]
        made = workspan.from_items(rows, blocks=3).filter(lambda row: row["a"] % 2 == 0)
        made.write_parquet(str(tmp_path / "out"), tracking_path=str(tmp_path / "track"), engine="serial")
        return tmp_path / "track"

    def test_the_page_has_its_operators_and_rows(self, tracking: Path, tmp_path: Path) -> None:
        """The records in the tracking folder tell the page what went in and out of each operator (M70)."""
        assert main(["report", str(tracking), "--html", str(tmp_path / "x.html")]) == 0
        page = (tmp_path / "x.html").read_text()
        assert "Map of the tasks" in page
        assert '<th scope="row">WriteParquet</th>' in page
        assert "rows out" in page

    def test_its_tasks_are_rows_with_rows_and_bytes(self, tracking: Path, tmp_path: Path) -> None:
        """The table of blocks has what the records say of each task: time, rows and bytes, and no worker's number."""
        assert main(["report", str(tracking), "--csv", str(tmp_path / "x.csv")]) == 0
        rows = rows_of(tmp_path / "x.csv")
        assert [row["rows"] for row in rows] == ["1", "1", "1"]
        assert all(float(row["wall_seconds"]) > 0 and int(row["bytes"]) > 0 for row in rows)
        assert {row["worker_id"] for row in rows} == {""}


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


def run_report(folder: Path) -> RunReport:
    """The report of the newest run, as the command finds it."""
    from workspan.cli.report import find_run

    return find_run(str(folder)).report


def test_the_shape_of_a_region_is_no_secret(folder: Path) -> None:
    """The page of a run from this process and that of its files say the same of its blocks (B155)."""
    from workspan.report.page import build_page

    blocks = build_page(run_report(folder)).tasks[0].blocks
    assert blocks is not None
    assert (blocks.origin, blocks.step) == ((0,), tuple(Roi((0,), (10,)).shape))
