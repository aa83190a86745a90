"""Which files a path stands for, what the names of folders tell, and that no input is ever written over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import workspan as ws
from workspan.errors import ConfigurationError, DataError

SERIAL = {"engine": "serial", "progress": False}


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def names(pattern: Any) -> list[str]:
    return [Path(piece.path).name for piece in ws.read_csv(pattern)._source.pieces]


def test_signs_of_patterns_in_names_are_no_patterns(tmp_path: Path) -> None:
    """A file or folder that is there is taken by its name, brackets and all (M35)."""
    text(tmp_path / "run[1]" / "a?.csv", "x\n1\n")
    assert names(tmp_path / "run[1]") == ["a?.csv"]
    assert names(tmp_path / "run[1]" / "a?.csv") == ["a?.csv"]


def test_patterns_are_those_of_a_shell(tmp_path: Path) -> None:
    """Sets, sets turned round, and folders at any depth; a pattern that is none is refused with its text (M35)."""
    for name in ("a.csv", "b.csv", "c^.csv", "deep/d.csv"):
        text(tmp_path / name, "x\n1\n")
    assert names(f"{tmp_path}/[ab].csv") == ["a.csv", "b.csv"]
    assert names(f"{tmp_path}/[!ab]*.csv") == ["c^.csv"]
    assert names(f"{tmp_path}/c[^].csv") == ["c^.csv"]
    assert names(f"{tmp_path}/**") == ["a.csv", "b.csv", "c^.csv", "d.csv"]
    with pytest.raises(ConfigurationError, match=r"read_csv: '.*\[z-a\].csv' is no pattern: bad character range"):
        ws.read_csv(f"{tmp_path}/[z-a].csv")


def test_a_pattern_of_one_folder_looks_into_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies below may be huge, or not allowed to be read (M35)."""
    import pyarrow.fs as fs

    text(tmp_path / "a.csv", "x\n1\n")
    asked = []

    def selector(path: str, recursive: bool = False) -> Any:
        asked.append(recursive)
        return real(path, recursive=recursive)

    real = fs.FileSelector
    monkeypatch.setattr(fs, "FileSelector", selector)
    assert names(f"{tmp_path}/*.csv") == ["a.csv"]
    assert asked == [False]


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """Files in folders that tell year and city."""
    for year, city, value in (("2026", "New%20York", 1), ("2025", "007", 2), ("__HIVE_DEFAULT_PARTITION__", "B=b", 3)):
        folder = tmp_path / "in" / f"year={year}" / f"city={city}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"v": [value], "w": [-value]}), folder / "p.parquet")
    return tmp_path / "in"


def test_names_of_folders_are_columns(parted: Path) -> None:
    """As pyarrow reads the same folder: whole numbers as such, text decoded, no value as null (M33)."""
    found = ws.read_parquet(parted).take(engine="serial")
    plain = pq.read_table(parted).to_pylist()
    assert sorted(map(str, found)) == sorted(map(str, plain))
    assert {"v": 1, "w": -1, "year": 2026, "city": "New York"} in found
    assert {"v": 3, "w": -3, "year": None, "city": "B=b"} in found


def test_columns_of_folders_can_be_chosen(parted: Path) -> None:
    """Beside those of the file or alone, in the order that was asked for; others are refused by name (M33)."""
    both = ws.read_parquet(parted, columns=["year", "v"]).to_arrow(engine="serial")
    assert both.column_names == ["year", "v"]
    alone = ws.read_parquet(parted, columns=["city"]).to_arrow(engine="serial")
    assert sorted(alone.column("city").to_pylist()) == ["007", "B=b", "New York"]
    with pytest.raises(DataError, match=r"no column 'month'; it has 'v', 'w', 'year', 'city'"):
        ws.read_parquet(parted, columns=["month"])


def test_a_column_of_the_file_wins_over_its_folder(tmp_path: Path) -> None:
    """Text of CSV and lines of JSON have the columns of their folders too, and a file knows better (M33)."""
    text(tmp_path / "csv" / "k=1" / "a.csv", "v,k\n5,6\n")
    text(tmp_path / "csv" / "k=2" / "a.csv", "v\n7\n")
    assert ws.read_csv(tmp_path / "csv").take(engine="serial") == [{"v": 5, "k": 6}, {"v": 7, "k": 2}]
    assert ws.read_csv(tmp_path / "csv" / "k=2", columns="v").take(engine="serial") == [{"v": 7}]
    text(tmp_path / "json" / "k=x" / "a.jsonl", '{"v": 1}\n')
    assert ws.read_json(str(tmp_path / "json" / "k=*" / "*.jsonl")).take(engine="serial") == [{"v": 1, "k": "x"}]


@pytest.mark.parametrize("way", ["link", "dots", "below"])
def test_an_input_is_never_overwritten_by_another_name(tmp_path: Path, way: str) -> None:
    """Neither through a link nor by a crooked path; and files in folders below are files too (M6)."""
    ws.range(3).write_parquet(tmp_path / "in", **SERIAL)
    data, target = ws.read_parquet(tmp_path / "in"), tmp_path / "in"
    if way == "link":
        target = tmp_path / "link"
        target.symlink_to(tmp_path / "in")
    elif way == "dots":
        target = Path(f"{tmp_path}/x/../in")
    else:
        data, target = ws.read_parquet(tmp_path), tmp_path
    with pytest.raises(ConfigurationError, match=r"existing='overwrite' would remove '.*part-000000\.parquet'"):
        data.write_parquet(target, existing="overwrite", **SERIAL)
    if way == "below":
        with pytest.raises(ConfigurationError, match=r"has 1 files already \('in/part-000000.parquet'"):
            data.write_parquet(target, **SERIAL)
    assert os.listdir(tmp_path / "in").count("part-000000.parquet") == 1
    assert data.count() == 3
