"""Random chains of operators over random small tables, against lists of dicts."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import workspan as ws
from workspan.dataset.dataset import Dataset

Rows = list[dict[str, Any]]
Step = tuple[Callable[[Dataset], Dataset], Callable[[Rows], Rows]]

SERIAL = {"engine": "serial"}
QUIET = {"engine": "serial", "progress": False}
SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64(), "d": pa.list_(pa.int64())})


def random_rows(random: Random) -> Rows:
    return [
        {
            "a": random.choice([None, 0, 1, 2, 5, -3]),
            "b": random.choice([None, "x", "yy", "é😀", ""]),
            "c": random.choice([0.5, 1.0, None, -2.25]),
            "d": random.choice([None, [], [1], [2, None]]),
        }
        for _ in range(random.choice([0, 0, 1, 2, 3, 5, 9]))
    ]


def one_by_one(table: pa.Table) -> Any:
    for row in range(table.num_rows):
        yield table.slice(row, 1)


def failing_if_empty(table: pa.Table) -> pa.Table:
    if None in table.column(0).to_pylist():
        raise ValueError("a null")
    return table


class Unchanged:
    """Is made once."""

    def __call__(self, batch: Any) -> Any:
        return batch


def rows_step(random: Random, names: list[str]) -> Step:
    """Choose an operator of rows."""
    name = random.choice(names)
    return random.choice(
        [
            (
                lambda d: d.map(lambda row: {**row, "new": str(row[name])}),
                lambda rows: [{**row, "new": str(row[name])} for row in rows],
            ),
            (lambda d: d.flat_map(lambda row: [row, row]), lambda rows: [row for row in rows for _ in "12"]),
            (
                lambda d: d.flat_map(lambda row: (row for _ in range(row[name] is None))),
                lambda rows: [row for row in rows if row[name] is None],
            ),
            (
                lambda d: d.filter(lambda row: row[name] is not None),
                lambda rows: [row for row in rows if row[name] is not None],
            ),
        ]
    )


def column_step(random: Random, names: list[str]) -> Step:
    """Choose an operator of columns, or an expression."""
    name, chosen = random.choice(names), random.sample(names, random.randint(1, len(names)))
    steps: list[Step] = [
        (lambda d: d.select(*chosen), lambda rows: [{n: row[n] for n in chosen} for row in rows]),
        (
            lambda d: d.rename({name: f"{name}_"}),
            lambda rows: [{f"{name}_" if n == name else n: value for n, value in row.items()} for row in rows],
        ),
        (lambda d: d.with_column("k", 7), lambda rows: [{**row, "k": 7} for row in rows]),
        (lambda d: d.with_column("w", ws.col(name)), lambda rows: [{**row, "w": row[name]} for row in rows]),
        (
            lambda d: d.filter(ws.col(name).is_valid()),
            lambda rows: [row for row in rows if row[name] is not None],
        ),
    ]
    if len(names) > 1:
        steps.append(
            (lambda d: d.drop(name), lambda rows: [{n: v for n, v in row.items() if n != name} for row in rows])
        )
    return random.choice(steps)


def batch_step(random: Random, names: list[str]) -> Step:
    """Choose an operator of batches, or a limit."""
    size: Any = random.choice([None, 1, 2, 3, 7, "auto"])
    limit = random.choice([0, 1, 3, 6, 20])
    function, form = random.choice(
        [
            (lambda batch: batch, random.choice(["numpy", "pyarrow", None])),
            (one_by_one, "pyarrow"),
            (Unchanged, "numpy"),
            (lambda table: dict(zip(table.column_names, map(list, table.to_pydict().values()), strict=True)), None),
        ]
    )
    return random.choice(
        [
            (lambda d: d.map_batches(function, batch_size=size, batch_format=form), lambda rows: rows),
            (
                lambda d: d.map_batches(lambda t: t, batch_size=size, batch_format=None, zero_copy=False),
                lambda rows: rows,
            ),
            (
                lambda d: d.map_batches(failing_if_empty, batch_size=1, batch_format="pyarrow", on_error="skip"),
                lambda rows: [row for row in rows if next(iter(row.values())) is not None],
            ),
            (lambda d: d.limit(limit), lambda rows: rows[:limit]),
        ]
    )


def consumed(random: Random, data: Dataset, folder: Path) -> Rows:
    """Return the rows by one of the ways in which they can be had."""
    size: Any = random.choice([None, 1, 4, "auto"])
    iterated = data.iter_batches(batch_format="pyarrow", batch_size=size, **SERIAL)
    ways: list[Callable[[], Rows]] = [
        lambda: data.to_arrow(**SERIAL).to_pylist(),
        lambda: [row for table in iterated for row in table.to_pylist()],
        lambda: list(data.iter_rows(**SERIAL)),
        lambda: data.take(1_000, **SERIAL),
        lambda: data.materialize(**QUIET).map(lambda row: row).take(1_000, **SERIAL),
    ]
    for kind, read in (("parquet", ws.read_parquet), ("json", ws.read_json)):
        ways.append(lambda kind=kind, read=read: written(data, kind, read, folder / kind))  # type: ignore[misc]
    return random.choice(ways)()


def written(data: Dataset, kind: str, read: Any, folder: Path) -> Rows:
    run = getattr(data, f"write_{kind}")(folder, **QUIET)
    return read(folder).take(1_000, **SERIAL) if run.files else []


def plain(rows: Rows) -> Rows:
    """Return rows in which numbers that are equal look alike, and one that is none is null."""

    def value(found: Any) -> Any:
        if isinstance(found, float):
            return None if math.isnan(found) else int(found) if found == int(found) else found
        return [value(part) for part in found] if hasattr(found, "__len__") and not isinstance(found, str) else found

    return [{name: value(found) for name, found in row.items()} for row in rows]


@pytest.mark.parametrize("first", [0, 1000])
def test_chains_do_what_lists_would(first: int, tmp_path: Path) -> None:
    """However they are fused, batched, shaped, timed and consumed: the same rows (M32, M45, M54, M60, M106)."""
    for seed in range(first, first + 30):
        random = Random(seed)
        parts = [random_rows(random) for _ in range(random.randint(1, 5))]
        expected = [row for part in parts for row in part]
        data = ws.from_arrow([pa.Table.from_pylist(part, schema=SCHEMA) for part in parts]).options(
            fuse=random.choice([True, False]),
            block_rows=random.choice([None, 1, 2, 4]),
            shape_blocks=random.choice([True, True, False]),
            timing=random.choice(["auto", "phases", "stages", "total", "off"]),
        )
        names = SCHEMA.names
        for _ in range(random.randint(1, 6)):
            step, same = random.choice([rows_step, column_step, batch_step])(random, names)
            data, expected = step(data), same(expected)
            # A chain that lost all rows still has the columns; the names of a row are those of the model's first one.
            names = list(same([dict.fromkeys(names)])[0]) if same([dict.fromkeys(names)]) else names
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            found = consumed(random, data, Path(folder))
        assert plain(found) == plain(expected), (seed, data)
