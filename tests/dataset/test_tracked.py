"""What a run that goes on with another may find changed: refused, or warned of, and never mixed without a word."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

import workspan as ws
from workspan.dataset.dataset import Dataset
from workspan.errors import DataError, LayoutMismatchError, StoreLockedError

SERIAL = {"engine": "serial", "progress": False}


class Half:
    """A function that fails from the third call on, until it is mended."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.mended: list[bool] = []

    def __call__(self, batch: Any) -> Any:
        self.calls.append(batch)
        if not self.mended and len(self.calls) > 2:
            raise ValueError("no more")
        return batch


def items(shift: int = 0) -> Dataset:
    return ws.from_items([{"a": i + shift, "b": -i} for i in range(4)], blocks=4)


class Scaled:
    """Takes a factor."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, batch: Any) -> Any:
        return {"a": batch["a"] * self.factor}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Four files of one row, in a folder."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"a": [number], "b": [-number]}), folder / f"{number}.parquet")
    return folder


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (lambda d: d.select("a"), lambda d: d.select("b"), "Select 'b'"),
        (lambda d: d.drop("a"), lambda d: d.drop("b"), "Drop 'b'"),
        (lambda d: d.rename({"a": "c"}), lambda d: d.rename({"a": "d"}), "'a' to 'd'"),
        (lambda d: d.with_column("c", 1), lambda d: d.with_column("c", 2), "WithColumn 'c' 2"),
        (
            lambda d: d.filter(pc.field("a").isin(list(range(100)))),
            lambda d: d.filter(pc.field("a").isin([*range(50), -1, *range(51, 100)])),
            "details",
        ),
        (lambda d: d, lambda d: items(100), "items 0 to 1 is not what was read there"),
    ],
)
def test_another_operation_or_content_is_not_mixed_in(tmp_path: Path, first: Any, second: Any, told: str) -> None:
    """Projections all have one name and tables one label: what they do and hold is compared too (KF-17, R33)."""
    half = Half()
    where = {"tracking_path": tmp_path / "run", **SERIAL}
    with pytest.raises(ValueError, match="no more"):
        first(items()).map_batches(half).write_parquet(tmp_path / "out", **where)
    half.mended.append(True)
    with pytest.raises(LayoutMismatchError, match=told):
        second(items()).map_batches(half).write_parquet(tmp_path / "out", **where)
    first(items()).map_batches(half).write_parquet(tmp_path / "out", **where)
    assert ws.read_parquet(tmp_path / "out").count() == 4


def test_other_columns_of_the_same_files_are_not_mixed_in(tmp_path: Path, files: Path) -> None:
    """What is read of a file is part of what a task does, and so is how its result is written (KF-17, R33)."""
    half = Half()
    where = {"tracking_path": tmp_path / "run", **SERIAL}
    with pytest.raises(ValueError, match="no more"):
        ws.read_parquet(files, columns=["a"]).map_batches(half).write_csv(tmp_path / "out", **where)
    with pytest.raises(LayoutMismatchError, match=r"0\.parquet is not what was read there"):
        ws.read_parquet(files, columns=["b"]).map_batches(half).write_csv(tmp_path / "out", **where)
    with pytest.raises(LayoutMismatchError, match="delimiter"):
        ws.read_parquet(files, columns=["a"]).map_batches(half).write_csv(tmp_path / "out", delimiter=";", **where)


def warned(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in found]


def test_files_written_anew_are_warned_of(tmp_path: Path, files: Path) -> None:
    """Of the same size at another time: it may be another content, and what was done keeps the old one (R33, KF-17)."""
    half = Half()

    def run() -> None:
        data = ws.read_parquet(files).map_batches(half)
        data.write_parquet(tmp_path / "out", tracking_path=tmp_path / "run", **SERIAL)

    with pytest.raises(ValueError, match="no more"):
        run()
    half.mended.append(True)
    os.utime(files / "1.parquet", ns=(1, 1))
    assert [text for text in warned(run) if "written anew" in text]
    assert not warned(run)


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 7}, {"batch_format": "pyarrow"}, {"constructor_args": (3,)}],
)
def test_other_settings_of_a_function_are_warned_of(tmp_path: Path, files: Path, change: dict[str, Any]) -> None:
    """A run that took too much memory may go on with smaller batches; that tasks are mixed is told (M46, M52, M75)."""

    def run(**how: Any) -> None:
        given = {"batch_format": "numpy", "constructor_args": (2,), **how}
        target = tmp_path / "out"
        data = ws.read_json(tmp_path / "*.jsonl").map_batches(Scaled, **given)
        data.write_json(target, tracking_path=tmp_path / "run", **SERIAL)

    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text('{"a": 1}\n')
    assert not warned(run)
    told = warned(lambda: run(**change))
    assert len(told) == 1
    assert "batch sizes, forms of batches or arguments" in told[0]


@pytest.mark.parametrize("limit", [None, 3])
def test_an_iteration_that_goes_on_yields_what_was_done_before(tmp_path: Path, limit: int | None) -> None:
    """Rows of tasks that an abandoned iteration has done come too, in order, and none is lost (B60, R33)."""
    data = ws.range(6, blocks=6)
    data = data if limit is None else data.limit(limit)
    expected = list(range(6))[:limit]
    tracked = {"tracking_path": tmp_path / "run", "engine": "serial"}
    first = data.iter_rows(**tracked)
    assert next(first) == {"id": 0}
    first.close()
    for ordered in (True, False):
        found = [row["id"] for row in data.iter_rows(ordered=ordered, **tracked)]
        assert sorted(found) == expected
        assert not ordered or found == expected


@pytest.mark.parametrize("existing", ["refuse", "overwrite"])
def test_a_write_elsewhere_goes_on_too(tmp_path: Path, existing: Any) -> None:
    """Files on another file system than the local one are known again by their manifest, and stay (A26, R33)."""
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    half = Half()
    where = {"filesystem": system, "existing": existing, "tracking_path": tmp_path / "run", **SERIAL}
    data = ws.range(4, blocks=4).map_batches(half)
    with pytest.raises(ValueError, match="no more"):
        data.write_parquet("out", **where)
    (tmp_path / "out" / ".part-000002.parquet.tmp").write_text("half")
    half.mended.append(True)
    data.write_parquet("out", **where)
    assert len(half.calls) == 6  # two were done, two failed, and came again
    assert ws.read_parquet(tmp_path / "out").to_arrow(engine="serial").column("id").to_pylist() == [0, 1, 2, 3]
    lines = (tmp_path / "out" / "_manifest.jsonl").read_text().splitlines()
    assert [json.loads(line).get("block") for line in lines] == [None, 0, 1, 2, 3]
    assert not list((tmp_path / "out").glob(".part-*"))


def test_files_that_only_a_worker_sees_are_missed(tmp_path: Path) -> None:
    """A file system that processes do not share would take the rows with it: that is told at the end (A26)."""

    class Lossy(fs.FileSystemHandler):
        """Passes on everything but what is moved into place."""

        def __init__(self) -> None:
            self.inner = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

        def get_type_name(self) -> str:
            return "lossy"

        def normalize_path(self, path: str) -> str:
            return path

        def get_file_info(self, paths: list[str]) -> Any:
            return self.inner.get_file_info(paths)

        def get_file_info_selector(self, selector: Any) -> Any:
            return self.inner.get_file_info(selector)

        def create_dir(self, path: str, recursive: bool) -> None:
            self.inner.create_dir(path, recursive=recursive)

        def move(self, source: str, target: str) -> None:
            self.inner.delete_file(source)

        def delete_file(self, path: str) -> None:
            self.inner.delete_file(path)

        def open_input_stream(self, path: str) -> Any:
            return self.inner.open_input_stream(path)

        def open_output_stream(self, path: str, metadata: Any) -> Any:
            return self.inner.open_output_stream(path)

        def _none(self, *args: Any) -> Any:
            raise NotImplementedError

        copy_file = delete_dir = delete_dir_contents = delete_root_dir_contents = _none
        open_append_stream = open_input_file = _none

    with pytest.raises(DataError, match=r"WriteCSV: workers have written 1 files that are not in 'out'.*share"):
        ws.range(2).write_csv("out", filesystem=fs.PyFileSystem(Lossy()), **SERIAL)


def test_a_run_that_goes_on_is_not_disturbed_by_another(tmp_path: Path) -> None:
    """Who comes second is refused before anything of the first one's is touched: flags, parts of files (R25)."""
    data = ws.range(3, blocks=3)
    first = data.iter_rows(tracking_path=tmp_path / "run", engine="serial", ahead=1)
    next(first)
    half = tmp_path / "run" / "blocks" / "1-ReadRange" / ".2.0.77.part"
    half.write_text("of the first run")
    with pytest.raises(StoreLockedError, match=r"is in use by another run .*another tracking_path"):
        data.iter_rows(tracking_path=tmp_path / "run", engine="serial").__next__()
    assert half.exists()
    assert [row["id"] for row in first] == [1, 2]
