"""Files in and out: written whole or not at all, read or refused by name, and gone on with after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import workspan as ws
from workspan.errors import ConfigurationError, DataError, LayoutMismatchError

from .conftest import Seen, tables

SERIAL = {"engine": "serial", "progress": False}


def visible(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("_"))


def manifest(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "_manifest.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_what_is_written_is_read_again(tmp_path: Path, kind: str) -> None:
    """One file a task, a manifest that says which, and the same rows when it is read."""
    table = pa.table({"a": [1, 2, 3, 4], "b": ["x", "y", None, "z"], "c": [0.5, 1.5, 2.5, 3.5]})
    data = ws.from_arrow([table.slice(0, 3), table.slice(3)])
    run = getattr(data, f"write_{kind}")(tmp_path / "out", **SERIAL)
    suffix = {"parquet": ".parquet", "csv": ".csv", "json": ".jsonl"}[kind]
    assert visible(tmp_path / "out") == [f"part-000000{suffix}", f"part-000001{suffix}"]
    assert [Path(name).name for name in run.files] == visible(tmp_path / "out")
    lines = manifest(tmp_path / "out")
    assert [(line["block"], line["rows"]) for line in lines[1:]] == [(0, 3), (1, 1)]
    again = getattr(ws, f"read_{kind}")(tmp_path / "out").to_arrow(engine="serial")
    expected = table if kind != "csv" else table.set_column(1, "b", [["x", "y", "", "z"]])
    assert again.to_pydict() == expected.to_pydict()


def test_paths_may_be_files_folders_patterns_and_lists(tmp_path: Path) -> None:
    """Hidden files are none, and the order is that of the names."""
    for name, n in (
        ("b/2.parquet", 2),
        ("b/1.parquet", 1),
        ("a.parquet", 3),
        ("b/_skip.parquet", 9),
        ("b/c/.x.parquet", 9),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(tables(n)[0], tmp_path / name)
    count = {path: ws.read_parquet(path).count() for path in (str(tmp_path), str(tmp_path / "b"))}
    assert list(count.values()) == [6, 3]
    listed = ws.read_parquet([tmp_path / "a.parquet", f"{tmp_path}/b/[12].parquet"])
    assert [piece.rows for piece in listed._source.pieces] == [3, 1, 2]
    assert ws.read_parquet(f"{tmp_path}/**/*.parquet").count() == 6
    assert ws.read_parquet(f"file://{tmp_path}/a.parquet").take(1, engine="serial") == [{"x": 0}]


def test_columns_and_types_may_be_chosen_in_files(tmp_path: Path) -> None:
    """Only the columns that are asked for are read."""
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("a;b\n1;NA\n")
    assert ws.read_parquet(tmp_path / "a.parquet", columns=["b"]).take(1, engine="serial") == [{"b": 2}]
    read = ws.read_csv(tmp_path / "a.csv", delimiter=";", null_values=["NA"], column_types={"a": pa.float64()})
    assert read.take(1, engine="serial") == [{"a": 1.0, "b": None}]
    with pytest.raises(DataError, match=r"a\.parquet' has no column 'z'; it has 'a', 'b'"):
        ws.read_parquet(tmp_path / "a.parquet", columns=["z"])


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_what_is_not_there_is_told(tmp_path: Path, kind: str) -> None:
    """An empty folder, a path that is not there, and no path at all are refused before anything runs."""
    read = getattr(ws, f"read_{kind}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=rf"read_{kind}: .*empty' has no files in it"):
        read(tmp_path / "empty")
    with pytest.raises(DataError, match=rf"read_{kind}: .*gone' is not there"):
        read(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match="no path"):
        read([])


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    """A Parquet file without its end, and one with a hole in its data; the other files are not lost."""
    for number in range(3):
        pq.write_table(pa.table({"x": list(range(1000))}), tmp_path / f"{number}.parquet", compression="zstd")
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"1\.parquet' cannot be read: .*Is it a complete Parquet file"):
        ws.read_parquet(tmp_path)
    (tmp_path / "1.parquet").write_bytes(whole[:8] + b"\0" * 300 + whole[308:])
    with pytest.raises(DataError, match=r"1\.parquet cannot be read: "):
        ws.read_parquet(tmp_path).write_parquet(tmp_path / "out", **SERIAL)
    assert visible(tmp_path / "out") == ["part-000000.parquet", "part-000002.parquet"]


def test_a_reader_that_stumbles_opens_the_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that were read are passed over; ten attempts a file, only after errors that were named (M69, MR10)."""
    from workspan.dataset import retry, sources

    monkeypatch.setattr(retry.random, "uniform", lambda low, high: 0.0)
    (tmp_path / "a.csv").write_text("x\n" + "\n".join(map(str, range(10))))
    opened: list[int] = []

    def stumbling(path: str, filesystem: Any) -> Any:
        opened.append(len(opened))
        for number, table in enumerate(tables(2, 2, 2)):
            if number == len(opened):
                raise OSError("timed out")
            yield table

    data = ws.read_csv(tmp_path / "a.csv")
    piece = sources.FilePiece("a.csv", None, "", stumbling)
    data = ws.Dataset(sources.Source("ReadCSV", (piece,))).options(retried_io_errors="timed out")
    assert data.to_arrow(engine="serial").column("x").to_pylist() == list(range(6))
    assert len(opened) == 3
    opened.clear()
    with pytest.raises(DataError, match=r"a\.csv cannot be read: timed out"):
        data.options(retried_io_errors="refused").to_arrow(engine="serial")
    assert len(opened) == 1


def test_mixed_schemas_name_the_column_and_both_types(tmp_path: Path) -> None:
    """Files that do not go together fail with column, types, both files and what to do where they meet (M67)."""
    for name, value in (("a", 1), ("b", 1.5), ("c", "x")):
        pq.write_table(pa.table({"x": [value]}), tmp_path / f"{name}.parquet")
    told = r"ReadParquet: .*column 'x' is int64 and double and string.*a\.parquet\), and another in .*c\.parquet"
    with pytest.raises(DataError, match=told):
        ws.read_parquet(tmp_path).to_arrow(engine="serial")


@pytest.mark.parametrize("text", ['[{"a": 1}]', '{"a": 1}\n{"a": "x"}\n', '{"a": 1}\n{"a"', "1\n2\n"])
def test_what_is_no_object_a_line_is_told_with_the_rule(tmp_path: Path, text: str) -> None:
    """A list, values of two types, half a line, numbers: file, place and what is expected (M67)."""
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: JSON parse error: .*one JSON object a line"):
        ws.read_json(tmp_path).take(engine="serial")


def test_files_of_another_write_are_not_mixed_with(tmp_path: Path) -> None:
    """A folder with files is refused, unless they are to go."""
    data = ws.from_arrow(tables(2, 2))
    data.write_parquet(tmp_path / "out", **SERIAL)
    with pytest.raises(ConfigurationError, match=r"2 files already \('part-000000.parquet'.*existing='overwrite'"):
        data.write_parquet(tmp_path / "out", **SERIAL)
    data.limit(1).write_parquet(tmp_path / "out", existing="overwrite", **SERIAL)
    assert ws.read_parquet(tmp_path / "out").count() == 1


def test_what_is_read_is_not_overwritten(tmp_path: Path) -> None:
    """A folder cannot be both read and emptied; nor is anything removed for a run that cannot begin."""
    data = ws.from_arrow(tables(2, 2))
    data.write_parquet(tmp_path / "out", **SERIAL)
    with pytest.raises(ConfigurationError, match=r"would remove .*part-000000\.parquet', which this dataset reads"):
        ws.read_parquet(tmp_path / "out").write_parquet(tmp_path / "out", existing="overwrite", **SERIAL)
    with pytest.raises(ConfigurationError, match="cereal"):
        data.write_parquet(tmp_path / "out", existing="overwrite", engine="cereal", progress=False)
    assert ws.read_parquet(tmp_path / "out").count() == 4


def test_what_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    """CSV has no lists: operator, block, columns and remedy are told."""
    with pytest.raises(DataError, match=r"WriteCSV, block 0 .*columns are l: list<item: int64>: drop or convert"):
        ws.from_items([{"l": [1, 2]}]).write_csv(tmp_path / "out", **SERIAL)
    assert visible(tmp_path / "out") == []


def test_empty_blocks_are_no_files(tmp_path: Path) -> None:
    """Tasks whose rows were all removed write none, but for the first, which keeps the columns (KF-07)."""
    data = ws.from_arrow(tables(2, 2, 2)).filter(ws.col("x") > 3)
    data.write_parquet(tmp_path / "out", **SERIAL)
    assert visible(tmp_path / "out") == ["part-000000.parquet", "part-000002.parquet"]
    assert ws.read_parquet(tmp_path / "out").to_arrow(engine="serial").to_pydict() == {"x": [4, 5]}


def test_a_write_is_prepared_before_and_committed_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare comes before the first row, commit after the last, and it sees what prepare has left (A26, M6, MR8)."""
    from workspan.dataset import sinks

    events: list[str] = []
    original = os.replace

    def replace(source: Any, target: Any) -> None:
        if str(target).endswith(".parquet"):
            events.append(f"commit {Path(source).name}")
        original(source, target)

    monkeypatch.setattr(sinks.os, "replace", replace)
    real = sinks._remove
    monkeypatch.setattr(sinks, "_remove", lambda part: (events.append("prepare"), real(part)))

    def note(batch: Any) -> Any:
        events.append("row")
        return batch

    ws.from_arrow(tables(1)).map_batches(note).write_parquet(tmp_path / "out", **SERIAL)
    assert events == ["prepare", "row", "commit .part-000000.parquet.tmp"]


def test_a_retried_write_leaves_no_duplicate(tmp_path: Path) -> None:
    """An attempt that failed half-way leaves nothing; the next one writes the file anew (A26)."""
    calls: list[int] = []

    def once(batch: Any) -> Any:
        calls.append(len(batch["x"]))
        if len(calls) == 2:
            raise OSError("the disk hiccuped")
        return batch

    data = ws.from_arrow(tables(4)).map_batches(once, batch_size=2, retries=1)
    import random

    random.seed(1)
    data.write_parquet(tmp_path / "out", **SERIAL)
    assert sorted(os.listdir(tmp_path / "out")) == ["_manifest.jsonl", "part-000000.parquet"]
    assert ws.read_parquet(tmp_path / "out").to_arrow(engine="serial").column("x").to_pylist() == [0, 1, 2, 3]
    assert calls == [2, 2, 2, 2]


CHILD = """
import time, pathlib
import workspan as ws
def gate(batch):
    if batch["id"][0] >= 60:
        pathlib.Path({gate!r}).touch()
        time.sleep(600)
    return batch
ws.range(100, blocks=10).map_batches(gate).write_parquet(
    {out!r}, engine="serial", progress=False, tracking_path={tracking!r})
"""


def test_a_killed_write_goes_on_without_loss_or_double(tmp_path: Path) -> None:
    """Killed in the seventh of ten tasks: the next run does the four that are missing, and every row is there once."""
    gate_file, out, tracking = tmp_path / "gate", tmp_path / "out", tmp_path / "run"
    script = CHILD.format(gate=str(gate_file), out=str(out), tracking=str(tracking))
    environment = {**os.environ, "PYTHONPATH": str(Path(ws.__file__).parents[1])}
    child = subprocess.Popen([sys.executable, "-c", script], env=environment)
    deadline = time.monotonic() + 40
    while not gate_file.exists():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert len([name for name in visible(out) if name.startswith("part-")]) == 6
    (out / ".part-000006.parquet.tmp").write_bytes(b"torn")
    with open(out / "_manifest.jsonl", "ab") as file:
        file.write(b'{"block": 6, "fi')
    seen = Seen("gate")
    wrapped = ws.range(100, blocks=10).map_batches(seen)
    with pytest.warns(UserWarning, match="functions of the dataset have changed"):
        run = wrapped.write_parquet(out, tracking_path=tracking, **SERIAL)
    assert seen.rows == [10] * 4
    assert ws.read_parquet(out).to_arrow(engine="serial").column("id").to_pylist() == list(range(100))
    assert [line["block"] for line in manifest(out)[1:]] == list(range(10))
    assert not [name for name in os.listdir(out) if name.startswith(".")]
    assert run.summary.operators[0].skipped == 6
    assert "6 tasks were done before" in run.stats()
    again = wrapped.write_parquet(out, tracking_path=tracking, **SERIAL)
    assert seen.rows == [10] * 4
    assert again.summary.rows == 100


def test_another_dataset_is_refused_where_one_was_tracked(tmp_path: Path) -> None:
    """Old and new plan are told, with the ways out; so is a result that was deleted meanwhile."""
    data = ws.range(10, blocks=2)
    data.write_parquet(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)
    with pytest.raises(LayoutMismatchError, match=r"its operators is .*ReadRange->WriteParquet.*and not .*Project"):
        data.select("id").write_parquet(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)
    with pytest.raises(LayoutMismatchError, match="rows 5 to 11 is not what was read there"):
        ws.range(11, blocks=2).write_parquet(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)
    (tmp_path / "out" / "part-000001.parquet").unlink()
    with pytest.raises(ConfigurationError, match="1 of 2 tasks that were done before have no result"):
        data.write_parquet(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)


def test_a_failed_task_does_not_lose_the_others(tmp_path: Path) -> None:
    """What other tasks wrote stays, and a tracked run does only what failed."""
    broken = [True]

    def f(batch: Any) -> Any:
        if broken[0] and batch["id"][0] == 5:
            raise RuntimeError("five")
        return batch

    data = ws.range(20, blocks=4).map_batches(f)
    with pytest.raises(RuntimeError, match="five"):
        data.write_parquet(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)
    assert len(visible(tmp_path / "out")) == 3
    assert ": 3 tasks, 3 blocks in" in data.stats()
    broken[0] = False
    data.write_parquet(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)
    assert ws.read_parquet(tmp_path / "out").count() == 20
    assert data.stats_summary().operators[0].tasks == 1  # type: ignore[union-attr]


def test_file_systems_are_found_by_url() -> None:
    """A folder of fsspec is written, listed in its manifest, refused when it is full, and read again."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    try:
        run = ws.from_arrow(tables(2, 3)).write_parquet("memory://flights/out", **SERIAL)
        assert [name.rpartition("/")[2] for name in run.files] == ["part-000000.parquet", "part-000001.parquet"]
        lines = memory.cat("/flights/out/_manifest.jsonl").decode().splitlines()
        assert [json.loads(line).get("block") for line in lines] == [None, 0, 1]
        with pytest.raises(ConfigurationError, match="2 files already"):
            ws.range(1).write_csv("memory://flights/out", **SERIAL)
        assert ws.read_parquet("memory://flights/out").to_arrow(engine="serial").column("x").to_pylist() == [
            0,
            1,
            2,
            3,
            4,
        ]
        ws.range(1).write_csv("memory://flights/out", existing="overwrite", **SERIAL)
        assert ws.read_csv("memory://flights/out").take(engine="serial") == [{"id": 0}]
    finally:
        memory.store.clear()


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
@pytest.mark.parametrize("through", ["function", "limit"])
def test_columns_outlive_the_last_row(tmp_path: Path, kind: str, through: str) -> None:
    """Where no task has written a file there is one without rows: with the columns that are known (M58)."""
    data = ws.range(6, blocks=3)
    if through == "limit":
        data = data.map(lambda row: {"x": 1}).limit(0)
    else:
        data = data.filter(ws.col("id") > 9).map(lambda row: {"x": 1})
    run = getattr(data, f"write_{kind}")(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)
    assert [Path(name).stem for name in run.files] == ["part-000000"]
    assert [(line["block"], line["rows"]) for line in manifest(tmp_path / "out")[1:]] == [(0, 0)]
    table = getattr(ws, f"read_{kind}")(tmp_path / "out").to_arrow(engine="serial")
    columns = {"limit": ["x"], "function": ["id"]}[through]
    assert (table.num_rows, table.column_names) == (0, [] if kind == "json" else columns)
    assert table.schema.metadata is None
    again = getattr(data, f"write_{kind}")(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)
    assert again.files == run.files


def test_nothing_but_files_of_a_write_is_overwritten(tmp_path: Path) -> None:
    """A file that no write has made is never removed, whatever is asked for."""
    data = ws.range(4, blocks=2)
    data.write_parquet(tmp_path / "out", **SERIAL)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"no write of a dataset has made \('notes.txt'"):
        data.write_csv(tmp_path / "out", existing="overwrite", **SERIAL)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert ws.read_parquet(tmp_path / "out").count() == 4


@pytest.mark.parametrize("where", ["out", "tracking"])
def test_a_folder_that_cannot_be_is_told(tmp_path: Path, where: str) -> None:
    """A file in its place is named, with what to do."""
    (tmp_path / "file").write_text("")
    paths = {"out": tmp_path / "out", "tracking": tmp_path / "run", where: tmp_path / "file"}
    with pytest.raises(ConfigurationError, match=r"file.* cannot be written to: .*Choose a folder"):
        ws.range(2).write_parquet(paths["out"], tracking_path=paths["tracking"], **SERIAL)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ws.read_parquet(3),  # type: ignore[arg-type]
        lambda: ws.read_csv(b"in"),  # type: ignore[arg-type]
        lambda: ws.range(1).write_json(3),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_path_is_told(call: Any) -> None:
    """The value and its type."""
    with pytest.raises(TypeError, match=r"(3|b'in')\): a (int|bytes) is no path"):
        call()


def test_files_that_do_not_go_together_are_told_of(tmp_path: Path) -> None:
    """All rows are written, each task's in its own file, and a warning names the column and its types."""
    data = ws.range(4, blocks=2).map(lambda row: {"a": row["id"] if row["id"] < 2 else "x"})
    with pytest.warns(UserWarning, match=r"part-000000.parquet, part-000001.parquet: .*'a' is int64 and string"):
        data.write_parquet(tmp_path / "out", **SERIAL)
    assert len(visible(tmp_path / "out")) == 2


def test_a_full_disk_is_told_with_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operator, block, file and remedy are noted on the error, nothing half is left, and what was done stays."""
    import errno

    from workspan.dataset import sinks, task

    original = sinks.parquet_writer
    opened: list[int] = []

    class Full:
        def write_table(self, table: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            """Nothing was written."""

    def second(*args: Any, **options: Any) -> Any:
        opened.append(1)
        return Full() if len(opened) == 2 else original(*args, **options)

    monkeypatch.setattr(sinks, "PARQUET", (*sinks.PARQUET[:2], second, sinks.PARQUET[3]))
    with pytest.raises(OSError, match="No space left") as caught:
        ws.range(4, blocks=2).write_parquet(tmp_path / "out", **SERIAL)
    (note,) = caught.value.__notes__
    assert f"while {tmp_path}/out/part-000001.parquet was written for WriteParquet, block 1 (rows 2 to 4)" in note
    assert "make room, or write to another disk" in note
    assert sorted(os.listdir(tmp_path / "out")) == ["_manifest.jsonl", "part-000000.parquet"]
    monkeypatch.setattr(task._Keeper, "write", lambda self, table: Full().write_table(table))
    with pytest.raises(OSError, match="No space left") as caught:
        ws.range(4, blocks=2).to_arrow(engine="serial")
    assert "the result of ReadRange, block 0 (rows 0 to 2), was kept in" in caught.value.__notes__[0]
    assert "set TMPDIR" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_lines_longer_than_what_is_parsed_at_once_are_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long line among short ones is no fault of the file; no row comes twice."""
    from workspan.dataset import formats

    monkeypatch.setattr(formats, "_CSV_BYTES", 256)
    rows = [{"n": n, "s": "x" * (900 if n == 30 else n % 5)} for n in range(60)]
    getattr(ws.from_items(rows), f"write_{kind}")(tmp_path / "out", **SERIAL)
    assert getattr(ws, f"read_{kind}")(tmp_path / "out").take(99, engine="serial") == rows


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3]),
        pa.array([None, None], pa.float64()),
        pa.nulls(2),
        pa.array([True, None]),
        pa.array([None, "2026-01-01"]).cast(pa.date32()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_row_that_is_null_alone_is_a_line_of_csv(tmp_path: Path, column: Any) -> None:
    """An empty line would be passed over by every reader, and the row would be lost (M33)."""
    blocks = [pa.table({"x": column}), pa.table({"x": column.slice(1)})]
    ws.from_arrow([pa.concat_tables(blocks)]).write_csv(tmp_path / "out", **SERIAL)
    found = ws.read_csv(tmp_path / "out").to_arrow(engine="serial").column("x").to_pylist()
    assert found == [*column.to_pylist(), *column.slice(1).to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_rows_without_columns_are_not_dropped_without_a_word(tmp_path: Path, kind: str) -> None:
    """No file can hold them: operator, block and their number are told (M33)."""
    with pytest.raises(DataError, match=r"Write\w+, block 0 .*: 3 rows have no columns"):
        getattr(ws.range(3).drop("id"), f"write_{kind}")(tmp_path / "out", **SERIAL)


def test_what_shows_only_while_writing_is_told_too(tmp_path: Path) -> None:
    """Bytes that are no text fit the column and not the file (M33)."""
    with pytest.raises(DataError, match=r"WriteCSV, block 0 .*: Invalid UTF8 payload.*x: binary"):
        ws.from_arrow(pa.table({"x": [b"\xff"]})).write_csv(tmp_path / "out", **SERIAL)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda path: ws.read_csv(path, delimiter=";;"), "read_csv: delimiter=';;'"),
        (lambda path: ws.read_csv(path, column_types={"a": "junk"}), "'junk' of column 'a' is not known"),
        (lambda path: ws.read_csv(path, column_types=["a"]), r"column_types=\['a'\] is a list"),
        (lambda path: ws.read_csv(path, null_values=[3]), "null_values: 3 is a int"),
        (lambda path: ws.read_csv(path, columns=["a", "a"]), "each once"),
        (lambda path: ws.read_parquet(path, columns=[]), "at least one column"),
        (lambda path: ws.read_parquet(path, columns=[3]), "by text, not by 3"),
        (lambda path: ws.read_csv(""), r"read_csv\(''\)"),
        (lambda path: ws.range(1).write_csv(path / "out", delimiter=""), "write_csv: delimiter=''"),
        (lambda path: ws.range(1).write_parquet(path / "out", compression="junk"), "compression='junk'"),
        (lambda path: ws.range(1).write_csv(""), "no path"),
    ],
)
def test_options_of_files_are_refused_where_they_are_given(tmp_path: Path, call: Any, text: str) -> None:
    """Before anything is read or made; the text has the option and its value (M33)."""
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises((ConfigurationError, TypeError), match=text):
        call(tmp_path)
    assert os.listdir(tmp_path) == ["a.csv"]


def test_one_name_is_one_column_and_a_type_may_be_named(tmp_path: Path) -> None:
    """``columns="ab"`` is no list of letters (M33)."""
    (tmp_path / "a.csv").write_text("ab,c\n1,2\n")
    found = ws.read_csv(tmp_path, columns="ab", column_types={"ab": "int8"}).to_arrow(engine="serial")
    assert found.schema == pa.schema({"ab": pa.int8()})
    with pytest.raises(DataError, match=r"a\.csv cannot be read: Column 'zz'"):
        ws.read_csv(tmp_path, columns=["zz"]).take(engine="serial")


@pytest.mark.parametrize("columns", [1, 2])
def test_line_ends_in_quotes_may_lie_where_a_piece_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """A file is parsed in pieces, and no row is lost, doubled or refused for where they end (M33)."""
    from workspan.dataset import formats

    monkeypatch.setattr(formats, "_CSV_BYTES", 200)
    texts = [f"{number}\nand\n{'x' * (number % 60)}\n" for number in range(100)]
    with open(tmp_path / "a.csv", "w") as file:
        file.write(",".join("ab"[:columns]) + "\n")
        file.writelines(",".join([f'"{text}"'] * columns) + "\n" for text in texts)
    found = ws.read_csv(tmp_path / "a.csv").to_arrow(engine="serial")
    assert [column.to_pylist() for column in found.columns] == [texts] * columns


def test_a_type_that_changes_late_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, column, row and value are named, and so is the option with which the file is read (M33)."""
    from workspan.dataset import formats

    monkeypatch.setattr(formats, "_CSV_BYTES", 100)
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 100 + "1.5\n")
    with pytest.raises(DataError, match=r"a\.csv cannot be read: .*column #0: Row #102.*'1.5'.*column_types="):
        ws.read_csv(tmp_path / "a.csv").count(engine="serial")
    assert ws.read_csv(tmp_path / "a.csv", column_types={"x": "float64"}).count(engine="serial") == 101


def changing(*blocks: pa.Table) -> Any:
    """Return a dataset of one task whose blocks are these."""

    def function(batch: Any) -> Any:
        yield from blocks

    return ws.range(1).options(shape_blocks=False).map_batches(function)


WIDER = (
    pa.table({"x": pa.nulls(2), "y": [1, 2]}),
    pa.table({"x": [[1], None], "y": [0.5, None]}),
    pa.table({"y": [3], "x": pa.nulls(1)}),
    pa.table({"z": ["new"], "y": [4]}),
)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_becomes_wider_with_its_blocks(tmp_path: Path, elsewhere: bool) -> None:
    """Nulls before the first value, whole numbers before broken ones, a new column: as if all were one block (M55)."""
    import pyarrow.fs as fs

    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()) if elsewhere else None
    changing(*WIDER).write_parquet("out" if elsewhere else tmp_path / "out", filesystem=system, **SERIAL)
    expected = pa.concat_tables(WIDER, promote_options="permissive")
    assert visible(tmp_path / "out") == ["part-000000.parquet"]
    assert pq.read_table(tmp_path / "out").equals(expected)
    assert manifest(tmp_path / "out")[1]["rows"] == 6


def test_text_knows_no_types_that_could_become_wider(tmp_path: Path) -> None:
    """Lines of JSON may have further names, those of CSV not: which, and where, is told (M55)."""
    changing(*WIDER).write_json(tmp_path / "json", **SERIAL)
    assert [json.loads(line) for line in (tmp_path / "json" / "part-000000.jsonl").read_text().splitlines()][4:] == [
        {"x": None, "y": 3.0},
        {"x": None, "y": 4.0, "z": "new"},
    ]
    flat = [table.select([name for name in table.column_names if name != "x"]) for table in WIDER]
    changing(*flat[:3]).write_csv(tmp_path / "csv", **SERIAL)
    found = ws.read_csv(tmp_path / "csv").to_arrow(engine="serial").column("y").to_pylist()
    assert found == [1.0, 2.0, 0.5, None, 3.0]
    with pytest.raises(DataError, match=r"WriteCSV, block 0 .*: 'z' is not in the blocks before"):
        changing(*flat).write_csv(tmp_path / "more", **SERIAL)
    assert visible(tmp_path / "more") == []


def test_nothing_is_left_of_a_file_that_could_not_become_wider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing it anew fails, neither half of it stays behind (A26)."""
    from workspan.dataset import sinks

    def broken(file: Any) -> Any:
        raise OSError("the disk is gone")
        yield

    monkeypatch.setattr(sinks, "PARQUET", (*sinks.PARQUET[:3], broken))
    with pytest.raises(OSError, match="the disk is gone"):
        changing(*WIDER).write_parquet(tmp_path / "out", **SERIAL)
    assert visible(tmp_path / "out") == []
