"""What a person looks at first: columns, types, first rows, and where that is which a dataset has not."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import workspan as ws
from workspan.dataset import dataset as module
from workspan.dataset import glance
from workspan.errors import DataError, UsageTypeError


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test in which something runs."""

    def refuse(*args: Any) -> Any:
        raise AssertionError("something ran")

    monkeypatch.setattr(module, "Execution", refuse)


def plus(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "half": batch["id"] / 2}


class TestSchema:
    def test_expressions_and_choices_are_followed_without_a_run(self, idle: None) -> None:
        """Names and types come from the source through all that is not the user's function (M1)."""
        data = ws.range(10).with_column("half", ws.col("id") * 0.5).rename({"id": "n"}).with_column("one", 1)
        data = data.filter(ws.col("n") > 99).drop("one").limit(3).filter(lambda row: 1 / 0)
        assert data.schema() == pa.schema({"n": pa.int64(), "half": pa.float32()})  # Arrow's choice
        assert data.columns() == ["n", "half"]
        assert data.select("half").columns() == ["half"]

    def test_it_is_that_of_the_result(self) -> None:
        """What is found without a run is what a run finds: blocks of several types, and keys of folders, included."""
        sources = [
            ws.from_items([{"a": None}, {"a": 1, "b": "x"}], blocks=2),
            ws.from_arrow([pa.table({}), pa.table({"a": [1]}), pa.table({"a": [1.5]})]),
            ws.from_items([]),
            ws.range(5).with_column("half", ws.col("id") * 0.5).filter(ws.col("id") > 9),
        ]
        for data in sources:
            assert data.schema() == data.to_arrow(engine="serial").schema

    def test_of_files(self, tmp_path: Path, idle: None) -> None:
        """Parquet's footer and the first block of CSV tell; no row group is read, and columns of folders are there."""
        folder = tmp_path / "parquet" / "year=2024"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), folder / "0.parquet")
        data = (folder / "0.parquet").read_bytes()
        found = ws.read_parquet(tmp_path / "parquet")
        begin = pq.ParquetFile(folder / "0.parquet").metadata.row_group(0).column(0).data_page_offset
        (folder / "0.parquet").write_bytes(data[:begin] + b"\xff" * 8 + data[begin + 8 :])
        assert found.columns()[:2] == ["a", "b"]
        assert "year" in found.columns()
        assert ws.read_parquet(tmp_path / "parquet", columns=["b"]).schema() == pa.schema({"b": pa.string()})
        pa_csv.write_csv(pa.table({"a": [1], "c": [0.5]}), tmp_path / "t.csv")
        assert ws.read_csv(tmp_path / "t.csv").schema() == pa.schema({"a": pa.int64(), "c": pa.float64()})

    def test_a_function_decides_by_running_as_little_as_take_would(self, tmp_path: Path) -> None:
        """One block is run, and the others are not (M1)."""
        ran = tmp_path / "ran"

        def counted(batch: dict[str, Any]) -> dict[str, Any]:
            with ran.open("a") as file:
                file.write(f"{batch['id'][0]} ")
            return plus(batch)

        data = ws.range(40, blocks=4).map_batches(counted)
        assert not ran.exists()
        assert data.schema(engine="serial") == pa.schema({"id": pa.int64(), "half": pa.float64()})
        assert ran.read_text() == "0 "
        assert data.columns(engine="serial") == ["id", "half"]

    def test_what_is_wrong_is_said(self, idle: None) -> None:
        """A column that is not there, and an option of a run that is none, are told as a run would."""
        with pytest.raises(DataError, match="there is no column 'x'; there are 'id'"):
            ws.range(3).select("x").schema()
        with pytest.raises(DataError, match="x"):
            ws.range(3).filter(ws.col("x") > 1).columns()
        with pytest.raises(UsageTypeError, match="wrkers"):
            ws.range(3).schema(wrkers=3)  # type: ignore[call-arg]


class TestShow:
    def test_rows_under_their_names(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A row a line, numbers to the right, what is missing as null; only as many rows as were asked for."""
        data = ws.from_items([{"n": 1, "name": "a"}, {"n": 1000, "name": None}, {"n": 7, "name": "gone"}])
        assert data.show(2, engine="serial") is None  # type: ignore[func-returns-value]
        assert capsys.readouterr().out.splitlines() == ["   n  name", "   1  a", "1000  null"]

    def test_text_cannot_steer_the_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Names and values with control characters are shown by their escapes, and long ones are cut (R46)."""
        hostile = "\x1b[2J\r\n\u202e" + "x" * 100_000
        ws.from_items([{"a\x1b]0;b\x07": hostile, "l": [hostile]}]).show(engine="serial")
        out = capsys.readouterr().out
        assert not re.search(r"[^\n -~…]", out)
        assert len(out) < 400
        assert len(out.splitlines()) == 2

    def test_what_does_not_fit_is_named(self) -> None:
        """A narrow terminal gets the columns that fit, and the names of the others; no rows are said too."""
        table = pa.table({f"column{n}": [n] for n in range(30)})
        text = glance.rendered(table, encoding="utf-8", columns=40)
        assert max(map(len, text.splitlines()[:2])) <= 40
        assert text.splitlines()[2].startswith("and 26 more columns: column4, column5, ")
        assert "column29" in glance.rendered(table, encoding="utf-8", columns=None)
        assert glance.rendered(table.slice(0, 0), encoding="ascii", columns=20).splitlines()[1] == "no rows"
        assert glance.rendered(pa.table({}), encoding="ascii", columns=20) == "no rows"

    def test_rows_are_checked(self) -> None:
        """A number of rows that is none is refused by name."""
        with pytest.raises(UsageTypeError, match="show: rows"):
            ws.range(3).show("a")  # type: ignore[arg-type]


class TestWhatIsMissing:
    @pytest.mark.parametrize(
        "name", ["sort", "groupby", "union", "join", "random_shuffle", "aggregate", "unique", "sum", "zip"]
    )
    def test_what_moves_rows_points_to_the_hand_over(self, name: str) -> None:
        """Map-only is a choice; the message says so, and how the same is done elsewhere."""
        with pytest.raises(AttributeError, match=f"no attribute {name!r}: datasets are map-only on purpose") as caught:
            getattr(ws.range(3), name)
        assert all(word in str(caught.value) for word in ("to_arrow()", "polars", "duckdb", "ray.data"))
        assert caught.value.name == name

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("repartition", "use blocks= of the source, or options(block_rows=...)"),
            ("take_all", "use list(iter_rows()), or to_arrow()"),
            ("to_arow", "did you mean 'to_arrow'?"),
            ("group_bi", "did you mean 'group_by'?"),
        ],
    )
    def test_other_names_are_told(self, name: str, told: str) -> None:
        """What has another name here is told by it, and a slip is put right."""
        with pytest.raises(AttributeError) as caught:
            getattr(ws.range(3), name)
        assert str(caught.value) == f"'Dataset' object has no attribute {name!r}: {told}"
        assert caught.value.obj is None  # or Python would guess once more

    def test_tables_name_nothing_that_is_there(self) -> None:
        """What the tables say is missing is missing, and each name in the answers is there."""
        there = {name for name in dir(ws.Dataset) if not name.startswith("_")}
        assert not there & {*glance._MOVES_ROWS, *glance._OTHERWISE}
        assert not {*glance._MOVES_ROWS} & {*glance._OTHERWISE}
        for told in glance._OTHERWISE.values():
            called = re.findall(r"(?<![.\w])(\w+)\(", told)
            assert set(called) <= {*there, "list", "options"}

    def test_nothing_else_changes(self) -> None:
        """hasattr, getattr with a default, copies, pickles and private names work as with any object."""
        data = ws.range(3).limit(2)
        assert not hasattr(data, "sort")
        assert getattr(data, "zzz", 5) == 5
        for other in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
            assert repr(other) == repr(data)
            assert other.take(engine="serial") == [{"id": 0}, {"id": 1}]
        with pytest.raises(AttributeError, match=r"^'Dataset' object has no attribute '__len__'$"):
            data.__len__  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError, match=r"^'Dataset' object has no attribute '_ops'$"):
            ws.Dataset.__new__(ws.Dataset)._ops  # noqa: B018


def test_a_run_tells_itself_in_one_line(tmp_path: Path) -> None:
    """The repr of what a write returns: operators, rows, tasks and seconds."""
    run = ws.range(1234, blocks=2).map_batches(plus).write_csv(tmp_path / "out", engine="serial", progress=False)
    pattern = r"DatasetRun\(ReadRange->MapBatches\(plus\)->WriteCSV: 1,234 rows, 2 tasks, [\d.]+ m?s\)"
    assert re.fullmatch(pattern, repr(run))
