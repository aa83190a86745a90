"""What functions are called with, and what becomes of what they return."""

from __future__ import annotations

import gc
import importlib
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import workspan as ws
from workspan.dataset.plan import Options, make_plan
from workspan.dataset.sources import MemoryPiece, Source
from workspan.dataset.transform import TaskState
from workspan.errors import ConfigurationError, DataError, UsageTypeError
from workspan.steps import TransformClock

from .conftest import Seen, tables


def in_one_task(dataset: ws.Dataset, *rows: int) -> list[pa.Table]:
    """Run the operators of a dataset over blocks of so many rows in one task."""
    (operator,) = make_plan(dataset._source, dataset._ops, dataset._options).operators
    pieces = [MemoryPiece("", table.num_rows, table) for table in tables(*rows)]
    return list(TransformClock().chain(operator.steps(TaskState()), pieces))


EMPTY = ws.from_arrow(tables(1))


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [((1, 1, 1, 1), 4, [4]), ((3, 3, 3, 1), 4, [4, 4, 2]), ((0, 2, 0, 3), None, [2, 3]), ((0, 2, 0, 3), 5, [5])],
)
def test_batches_span_the_blocks_of_a_task(rows: tuple[int, ...], size: Any, expected: list[int]) -> None:
    """Four blocks of one row are one batch of four; empty blocks are none (A18, M50, KF-05, KF-07)."""
    f = Seen()
    out = in_one_task(EMPTY.map_batches(f, batch_size=size), *rows)
    assert f.rows == expected
    assert [v for t in out for v in t.column("x").to_pylist()] == list(range(sum(rows)))


@pytest.mark.parametrize(
    ("rows", "first", "second"),
    [((3,), [2, 1], [3]), ((1, 1, 1), [2, 1], [3]), ((3, 3), [2, 2, 2], [3, 3])],
)
def test_one_task_has_several_batching_points(rows: tuple[int, ...], first: list[int], second: list[int]) -> None:
    """Batches of 3 are put together from what batches of 2 gave, inside one operator (A18, M51)."""
    f, g = Seen("f"), Seen("g")
    in_one_task(EMPTY.map_batches(f, batch_size=2).map_batches(g, batch_size=3), *rows)
    assert (f.rows, g.rows) == (first, second)


@pytest.mark.parametrize("fuse", [True, False])
def test_fusion_does_not_change_what_a_batch_sees(fuse: bool) -> None:
    """A function that doubles its rows, then batches of 4: five of them, fused or not (M60, D21, KF-04)."""
    seen = Seen()

    def twice(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.concatenate([batch["x"], batch["x"]])}

    data = ws.from_arrow(tables(10)).options(fuse=fuse).map_batches(twice).map_batches(seen, batch_size=4)
    found = data.to_arrow(engine="serial").column("x").to_pylist()
    assert seen.rows == [4, 4, 4, 4, 4]
    assert found == [*range(10), *range(10)]


def test_sources_bundle_blocks_so_that_batches_fill() -> None:
    """Whole blocks go together until there are enough rows; without a size each is a task of its own (M49, KF-06)."""
    sized, whole = Seen(), Seen()
    data = ws.from_arrow(tables(3, 3, 3, 1))
    data.map_batches(sized, batch_size=4)._execute({"engine": "serial"}, "drop")
    data.map_batches(whole)._execute({"engine": "serial"}, "drop")
    assert sized.rows == [4, 2, 4]
    assert whole.rows == [3, 3, 3, 1]


def test_inner_stages_hand_blocks_on_as_they_are_made() -> None:
    """A projection and a filter between two functions do not collect the task's blocks (M59, D9)."""
    order: list[str] = []

    def note(name: str) -> Any:
        def function(batch: Any) -> Any:
            order.append(name)
            return batch

        return function

    data = EMPTY.map_batches(note("f")).select("x").filter(pc.field("x") >= 0).map_batches(note("g"))
    in_one_task(data, 1, 1, 1)
    assert order == ["f", "g"] * 3


def test_a_filter_that_removes_everything_keeps_the_schema() -> None:
    """No rows are one block with the columns, whether an expression or a function removed them (M58)."""
    data = ws.from_arrow(tables(3, 2))
    for empty in (data.filter(ws.col("x") > 9), data.filter(lambda row: False), data.map_batches(lambda b: b).limit(0)):
        table = empty.to_arrow(engine="serial")
        assert table.num_rows == 0
        assert table.schema == tables(1)[0].schema


def test_no_step_keeps_a_batch_alive() -> None:
    """Through five functions nothing of a batch is held once it has left (A17 with blocks, M30)."""
    alive: list[Any] = []

    class Batch(dict[str, Any]):
        pass

    def f(batch: Any) -> Any:
        made = Batch(x=batch["x"] + 1)
        alive.append(weakref.ref(made))
        return made

    data = EMPTY
    for _ in range(5):
        data = data.map_batches(f)
    (operator,) = make_plan(data._source, data._ops, Options(block_rows=1)).operators
    pieces = [MemoryPiece("", 2, table) for table in tables(2, 2)]
    items = TransformClock().chain(operator.steps(TaskState()), pieces)
    next(items)
    gc.collect()
    assert len(alive) >= 5
    assert [ref() for ref in alive[:4]] == [None] * 4
    items.close()


def test_every_format_reaches_the_function() -> None:
    """NumPy by default, pandas and Arrow on request, each may be returned (M52)."""
    import pandas as pd

    kinds: list[type] = []

    def note(batch: Any) -> Any:
        kinds.append(type(batch))
        return batch

    data = ws.from_arrow(tables(2))
    for form in ("numpy", "default", "pandas", "pyarrow", None):
        data = data.map_batches(note, batch_format=form)  # type: ignore[arg-type]
    assert data.to_arrow(engine="serial").equals(tables(2)[0])
    assert kinds == [dict, dict, pd.DataFrame, pa.Table, pa.Table]
    with pytest.raises(ConfigurationError, match="torch"):
        data.map_batches(note, batch_format="torch")  # type: ignore[arg-type]


def test_generators_and_lists_of_columns_may_be_returned() -> None:
    """A function may yield several batches, and columns may be plain lists (M28, M52)."""

    def twice(batch: dict[str, Any]) -> Any:
        yield {"y": list(batch["x"])}
        yield {"y": batch["x"] + 10}

    assert ws.from_arrow(tables(2)).map_batches(twice).to_arrow(engine="serial").column("y").to_pylist() == [
        0,
        1,
        10,
        11,
    ]


def test_arrays_of_several_axes_survive() -> None:
    """A column of images goes through Arrow and comes back in shape (M52)."""
    shapes: list[tuple[int, ...]] = []

    def images(batch: dict[str, Any]) -> Any:
        return {"image": np.ones((len(batch["x"]), 2, 3), np.float32)}

    def note(batch: dict[str, Any]) -> Any:
        shapes.append(batch["image"].shape)
        return batch

    data = ws.from_arrow(tables(4)).map_batches(images).map_batches(note)
    assert data.map(lambda row: {"sum": float(row["image"].sum())}).take(1, engine="serial") == [{"sum": 6.0}]
    assert shapes == [(4, 2, 3)]


@pytest.mark.parametrize("size", [None, 2, "auto"])
def test_a_private_batch_may_be_changed(size: Any) -> None:
    """With zero_copy=False batches are writable for every batch size, and the source stays as it was (M53)."""
    source = tables(4)

    def change(batch: dict[str, Any]) -> Any:
        batch["x"] += 1
        return batch

    data = ws.from_arrow(source)
    changed = data.map_batches(change, batch_size=size, zero_copy=False)
    assert changed.to_arrow(engine="serial").column("x").to_pylist() == [1, 2, 3, 4]
    assert source[0].column("x").to_pylist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only") as caught:
        data.map_batches(change, batch_size=size).to_arrow(engine="serial")
    assert any("zero_copy=False" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, 2], "returned a list of 2: name the columns"),
        (np.zeros(3), r"bare array of shape \(3,\): name its column"),
        (None, "returned None"),
        (7, "returned a int"),
        ({"a": [1], "b": [1, 2]}, "'a' has 1, 'b' has 2"),
        ({"a": [1, "x"]}, "column 'a' cannot be made.*int, str"),
    ],
)
def test_what_is_no_batch_is_refused_with_the_fix(value: Any, text: str) -> None:
    """Operator, block, value and remedy are told (M52)."""
    with pytest.raises(DataError, match=rf"MapBatches\(f\), block 0.*{text}"):
        ws.from_arrow(tables(2)).map_batches(named("f", value)).to_arrow(engine="serial")


@pytest.mark.parametrize(
    ("flat", "value", "text"),
    [
        (False, 3, "returned a int .*a row is a dict"),
        (True, {"a": 1}, "return a list of rows"),
        (True, [3], "a row is"),
    ],
)
def test_what_is_no_row_is_refused_with_the_fix(flat: bool, value: Any, text: str) -> None:
    """A row function returns a mapping, a flat map a list of them (M54)."""
    data = ws.from_arrow(tables(2))
    with pytest.raises(DataError, match=rf"Map\(f\), block 0.*{text}"):
        (data.flat_map if flat else data.map)(named("f", value)).to_arrow(engine="serial")


def named(name: str, value: Any) -> Any:
    def function(argument: Any) -> Any:
        return value

    function.__name__ = name
    return function


def test_rows_go_through_in_order() -> None:
    """map, flat_map and filter keep the order and the types of what they do not touch (M54)."""
    table = pa.table({"x": pa.array([1, 2, 3, 4], pa.int16()), "y": pa.array([None, 1, None, 2], pa.int8())})
    data = ws.from_arrow(table)
    assert data.filter(lambda row: row["x"] % 2).to_arrow(engine="serial").equals(table.take([0, 2]))
    twice = data.map(lambda row: {"z": row["x"] * 2}).flat_map(lambda row: [row] * (row["z"] // 4))
    assert twice.to_arrow(engine="serial").column("z").to_pylist() == [4, 6, 8, 8]


def test_columns_are_chosen_dropped_renamed_and_computed() -> None:
    """The column operators do what their names say, without a user's function."""
    data = ws.from_arrow(pa.table({"a": [1, 2], "b": [3, 4], "c": ["x", "y"]}))
    made = data.with_column("d", ws.col("a") + ws.col("b")).drop("a").rename({"b": "e"}).select("d", "e")
    assert made.to_arrow(engine="serial").to_pydict() == {"d": [4, 6], "e": [3, 4]}
    assert data.with_column("a", 0).take(1, engine="serial") == [{"a": 0, "b": 3, "c": "x"}]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda data: data.select("z"), r"select\('z'\) in Project, block 0.*there are 'x'"),
        (lambda data: data.drop("z"), r"drop\('z'\)"),
        (lambda data: data.rename({"z": "a"}), r"rename\('z'\)"),
        (
            lambda data: data.filter(ws.col("z") > 1),
            r"Filter\(\(z > 1\)\), block 0.*z.*columns are 'x: int64'|x: int64",
        ),
        (lambda data: data.with_column("y", ws.col("z")), r"with_column\('y'\), block 0"),
    ],
)
def test_a_wrong_column_names_those_that_are_there(make: Any, text: str) -> None:
    """Operator, block and the columns there are."""
    with pytest.raises(DataError, match=text):
        make(ws.from_arrow(tables(2))).to_arrow(engine="serial")


def test_the_users_exception_is_raised_as_it_is() -> None:
    """In this process the very object arrives, with a note of operator and block (A19, M21, M68, MR9)."""
    raised: list[KeyError] = []

    def fail(batch: Any) -> Any:
        raised.append(KeyError("no such flight"))
        raise raised[-1]

    with pytest.raises(KeyError) as caught:
        ws.from_arrow(tables(2, 2)).map_batches(fail).to_arrow(engine="serial")
    assert caught.value is raised[0]
    assert raised[0].__notes__ == ["in MapBatches(fail), block 0 (table 0)"]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ws.range(3).map(3), UsageTypeError, r"map\(3\): a int is not callable"),
        (lambda: ws.range(3).map_batches(len, constructor_args=(1,)), UsageTypeError, "functools.partial"),
        (lambda: ws.range(3).map_batches(len, size=1), UsageTypeError, "size"),
        (lambda: ws.range(3).map_batches(len, concurrency=0), ConfigurationError, "concurrency=0"),
        (lambda: ws.range(3).limit(-1), ConfigurationError, "-1"),
        (lambda: ws.range(-1), ConfigurationError, "-1"),
        (lambda: ws.range(3, blocks=0), ConfigurationError, "blocks=0"),
        (lambda: ws.range(3).select(3), UsageTypeError, "int"),
        (lambda: ws.from_arrow([3]), UsageTypeError, "int is no table"),
        (lambda: ws.from_arrow([]), ConfigurationError, "no table"),
        (lambda: ws.range(3).take(1, engin="serial"), UsageTypeError, "engin"),
        (lambda: ws.range(3).take(1, engine="cereal"), ConfigurationError, "cereal"),
        (lambda: ws.range(3).count(workers=2), UsageTypeError, "workers= is not known"),
        (lambda: ws.range(3).take(1, timeout="x", engine="serial"), UsageTypeError, "timeout='x'"),
        (lambda: ws.range(3).take(1, timeout=-1, engine="serial"), ConfigurationError, "timeout=-1"),
        (lambda: ws.range(3).select(), ConfigurationError, "name one column"),
        (lambda: ws.range(3).select("id", "id"), ConfigurationError, "'id' is there 2 times"),
        (lambda: ws.range(3).rename("id"), UsageTypeError, r"rename\('id'\): a str is no dict"),
        (lambda: ws.range(3).with_column("x", len), UsageTypeError, "call it with map"),
        (
            lambda: ws.range(3).with_column("x", np.arange(3)),
            UsageTypeError,
            r"\[0 1 2\]\): a ndarray is not one value",
        ),
        (lambda: ws.range(3).with_column("x", [1, 2, 3]), UsageTypeError, "pyarrow.compute.scalar"),
        (lambda: ws.range(3).with_column("x", object), UsageTypeError, "no value"),
        (lambda: ws.range(3).map(len, retry_on=3), UsageTypeError, "retry_on=3"),
        (lambda: ws.range(3).map(len, retries=1, retry_on=[ValueError]), UsageTypeError, "'ValueError' for example"),
        (
            lambda: ws.range(3).options(retried_map_errors=ValueError),
            UsageTypeError,
            "retried_map_errors=.*'ValueError'",
        ),
        (lambda: ws.range(3).options(retried_io_errors=[3]), UsageTypeError, "retried_io_errors="),
        (lambda: ws.range(3).options(fuse="no"), UsageTypeError, "fuse='no'"),
        (lambda: ws.range(3).map(len, requires=["gpu"]), UsageTypeError, r"requires=\['gpu'\] is a list"),
        (lambda: ws.range(3).map(len, requires={"gpu": -1}), ConfigurationError, r"requires\['gpu'\]=-1"),
        (lambda: ws.range(3).iter_batches(ahead="x"), UsageTypeError, "ahead='x'"),
        (lambda: ws.range(3).map_batches(len, max_errors=1), ConfigurationError, "on_error='skip'"),
        (lambda: ws.range(3).map_batches(len, on_error="skip", max_errors=-1), ConfigurationError, "max_errors=-1"),
        (lambda: ws.from_items(5), UsageTypeError, r"from_items\(5\): a int is no list"),
        (lambda: ws.from_items("abc"), UsageTypeError, "a str is no list"),
        (lambda: ws.from_arrow(5), UsageTypeError, "int is no table"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(call: Any, kind: type, text: str) -> None:
    """The text has the argument, the value and what to do (M46, M52, M57, M61)."""
    with pytest.raises(kind, match=text):
        call()


def test_what_has_no_columns_has_no_rows() -> None:
    """Nothing at all goes through every operator as nothing (M45, M58)."""
    for data in (ws.from_items([]), ws.from_items([]).map(lambda row: row), ws.range(0).limit(5)):
        assert data.take(engine="serial") == []
        assert data.count(engine="serial") == 0


def test_a_part_without_rows_whose_columns_nobody_knows_is_no_error(tmp_path: Any) -> None:
    """An empty file of JSON lines among others, or a task without any block: no column is missed (M58, KF-07)."""
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "b.jsonl").write_text('{"x": 1, "y": 2}\n')
    data = ws.read_json(tmp_path).filter(ws.col("y") > 1).with_column("z", ws.col("x") + 1).rename({"x": "w"})
    assert data.drop("y").select("w", "z").take(engine="serial") == [{"w": 1, "z": 2}]
    with pytest.raises(DataError, match="there is no column 'v'; there are 'w', 'y', 'z'"):
        data.select("v").take(engine="serial")
    assert ws.from_items([]).select("a").take(engine="serial") == []
    empty = ws.from_arrow(tables(0)).options(fuse=False, shape_blocks=False).map_batches(lambda batch: batch)
    for last in (empty.drop("x"), empty.map_batches(len, batch_size=1).rename({"x": "y"})):
        assert last.take(engine="serial") == []


def test_two_columns_of_one_name_are_refused() -> None:
    """A dict could hold only one of them, and so could a line of JSON: where they come from is told (M54)."""
    table = pa.table([[1], [2]], names=["a", "a"])
    with pytest.raises(DataError, match=r"FromArrow, block 0 \(table 0\): 2 columns have the name 'a'"):
        ws.from_arrow(table).map_batches(Seen()).to_arrow(engine="serial")
    twice = ws.range(2).map_batches(lambda batch: table)
    for consume in (twice.take, twice.to_arrow, twice.materialize, twice.count):
        with pytest.raises(DataError, match=r"MapBatches\(<lambda>\), block 0.*2 columns have the name 'a'"):
            consume(engine="serial")


def test_names_that_become_one_text_are_refused() -> None:
    """A number and the text of it are two keys of a dict, and would be one column (M52, M54)."""
    keys: Any = {1: [1, 2], "1": [3, 4]}
    with pytest.raises(
        DataError, match=r"MapBatches\(<lambda>\), block 0.*two of the columns returned have the name '1'"
    ):
        ws.range(2).map_batches(lambda batch: keys).to_arrow(engine="serial")
    with pytest.raises(DataError, match=r"Map\(<lambda>\), block 0.*two columns of the name '1'"):
        ws.range(2).map(lambda row: keys).to_arrow(engine="serial")


def test_frames_that_are_no_tables_are_told() -> None:
    """From the outset and out of a function: two columns of one name, values that Arrow does not know (M52)."""
    pd = pytest.importorskip("pandas")
    twice, mixed = pd.DataFrame([[1, 2]], columns=["a", "a"]), pd.DataFrame({"b": [1, "x"]})
    for frame, text in ((twice, "2 columns of the name 'a'"), (mixed, "column 'b' cannot be made.*int, str")):
        with pytest.raises(DataError, match=f"from_pandas, table 0: .*{text}"):
            ws.from_pandas(frame)
        with pytest.raises(DataError, match=rf"MapBatches\(<lambda>\), block 0 .*{text}"):
            ws.range(1).map_batches(lambda batch, frame=frame: frame).to_arrow(engine="serial")
    with pytest.raises(UsageTypeError, match="a Series is no table"):
        ws.from_pandas(mixed["b"])


def test_the_remedy_of_a_read_only_batch_is_one_that_helps() -> None:
    """Who has asked for a private frame is told what pandas hands out, and not to ask for it (M53)."""
    pytest.importorskip("pandas")

    def change(frame: Any) -> Any:
        values = frame["id"].to_numpy()
        values.flags.writeable = False
        values[0] = 9
        return frame

    for private, remedy in ((False, "zero_copy=False"), (True, "assign to the frame's columns")):
        data = ws.range(2).map_batches(change, batch_format="pandas", zero_copy=not private)
        with pytest.raises(ValueError, match="read-only") as caught:
            data.to_arrow(engine="serial")
        assert remedy in caught.value.__notes__[-1]


def test_a_class_that_cannot_be_made_is_told() -> None:
    """The error of a constructor has a note of operator and block."""

    class Model:
        def __init__(self) -> None:
            raise FileNotFoundError("weights.bin")

        def __call__(self, batch: Any) -> Any:
            return batch

    with pytest.raises(FileNotFoundError, match=r"weights\.bin") as caught:
        ws.range(2).map_batches(Model).to_arrow(engine="serial")
    notes = caught.value.__notes__
    assert notes == ["while Model was constructed", "in MapBatches(Model), block 0 (rows 0 to 2)"]


def test_what_is_awaited_by_nobody_is_refused() -> None:
    """An asynchronous function would return a coroutine for each batch."""

    async def f(batch: Any) -> Any:
        return batch

    with pytest.raises(UsageTypeError, match=r"map_batches\(f\): it is asynchronous.*asyncio\.run"):
        ws.range(2).map_batches(f)


def test_frames_of_pandas_leave_no_notes_in_the_schema() -> None:
    """Blocks that went through pandas and blocks that did not have one schema."""
    import pandas as pd

    data = ws.from_pandas([pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [3]}, index=[7])])
    table = data.map_batches(lambda frame: frame, batch_format="pandas").to_arrow(engine="serial")
    assert table.equals(pa.table({"x": [1, 2, 3]}))
    assert table.schema.metadata is None


def test_a_slice_counts_its_own_bytes() -> None:
    """Ten rows of a million are 80 bytes (KF-10)."""
    data = ws.from_arrow(pa.table({"x": np.zeros(1_000_000, np.int64)}).slice(0, 10)).map_batches(lambda b: b)
    data.to_arrow(engine="serial")
    summary = data.stats_summary()
    assert summary is not None
    assert summary.operators[0].stage(0).bytes_out == 80


def test_materialised_rows_are_not_computed_again() -> None:
    """A dataset of a result reads it, and its source says so (M79)."""
    f = Seen()
    made = ws.from_arrow(tables(2, 3)).map_batches(f).materialize(engine="serial", progress=False)
    assert made.count() == 5
    assert made.to_arrow(engine="serial").column("x").to_pylist() == [0, 1, 2, 3, 4]
    assert made.limit(3).to_arrow(engine="serial").column("x").to_pylist() == [0, 1, 2]
    assert f.rows == [2, 3]


def test_a_limit_counts_over_all_blocks() -> None:
    """Rows after a limit are those of the first blocks, and what comes after it sees no more (M27)."""
    seen, before = Seen(), Seen()
    data = ws.from_arrow(tables(2, 2, 2, 2)).map_batches(before).limit(5).map_batches(seen)
    assert data.to_arrow(engine="serial").column("x").to_pylist() == [0, 1, 2, 3, 4]
    assert seen.rows == [2, 2, 1]
    assert before.rows == [2, 2, 2]
    assert ws.range(10, blocks=5).limit(3).count(engine="serial") == 3
    assert isinstance(data._source, Source)


@pytest.mark.parametrize("value", [{}, pa.table({}), pa.table({"x": [1]}).drop(["x"])])
def test_a_result_without_columns_is_refused(value: Any) -> None:
    """The rows of a batch are not dropped without a word; columns without values drop them (M52, M58)."""
    with pytest.raises(DataError, match=r"MapBatches\(f\), block 0.*without columns.*values\[:0\]"):
        ws.from_arrow(tables(2)).map_batches(named("f", value)).to_arrow(engine="serial")
    found = ws.from_arrow(tables(2)).map_batches(lambda b: {"x": b["x"][:0]}).to_arrow(engine="serial")
    assert (found.num_rows, found.schema) == (0, tables(2)[0].schema)


TYPED = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int64()),
        "t": pa.array([0, 1, None], pa.timestamp("us", "Europe/Berlin")),
        "d": pa.array(["a", None, "a"]).dictionary_encode(),
        "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "l": pa.array([[1], None, []], pa.list_(pa.int16())),
        "e": pa.array([1, 2, None], pa.decimal128(10, 2)),
        "b": pa.array([True, None, False]),
    }
)


@pytest.mark.parametrize("chunks", [1, 2])
def test_columns_that_are_handed_on_keep_type_and_nulls(chunks: int) -> None:
    """What a function returns as it was given is the very column, though its array had no room for its nulls (M52)."""
    table = pa.concat_tables([TYPED] * chunks)
    data = ws.from_arrow(table).map_batches(lambda batch: {**batch, "y": [0] * len(batch["n"])})
    found = data.to_arrow(engine="serial").drop_columns("y")
    assert found.to_pylist() == table.to_pylist()
    assert [str(field.type) for field in found.schema] == [str(field.type) for field in table.schema]


def test_columns_that_were_changed_in_place_are_made_anew() -> None:
    """A private batch may be changed, and values that are objects may be changed in any batch (M53)."""

    def change(batch: dict[str, Any]) -> Any:
        batch["n"][0] = 7
        batch["b"][0] = None
        return batch

    def extend(batch: dict[str, Any]) -> Any:
        batch["m"][0].append(("l", 2))
        return batch

    data = ws.from_arrow(TYPED)
    private = data.select("n", "b").map_batches(change, zero_copy=False).to_arrow(engine="serial")
    assert private.to_pydict()["b"] == [None, None, False]
    assert private.column("n").to_pylist()[0] == 7
    assert data.map_batches(extend).to_arrow(engine="serial").column("m")[0].as_py() == [("k", 1), ("l", 2)]
    with pytest.raises(ValueError, match="read-only"):
        data.map_batches(change).to_arrow(engine="serial")


def test_frames_and_rows_with_maps_go_through() -> None:
    """A type that values do not tell is taken from the column of the same name (M52)."""
    for through in (
        ws.from_arrow(TYPED).select("m").map(lambda row: row),
        ws.from_arrow(TYPED).select("m").map_batches(lambda frame: frame, batch_format="pandas"),
    ):
        assert through.to_arrow(engine="serial").column("m").to_pylist() == TYPED.column("m").to_pylist()
    wrong = named("wrong", importlib.import_module("pandas").DataFrame({"m": [1, "a"]}))
    with pytest.raises(DataError, match=r"MapBatches\(wrong\), block 0.*column 'm'.*int, str"):
        ws.range(2).map_batches(wrong).to_arrow(engine="serial")


def test_numbers_that_are_too_large_and_names_that_are_taken_are_refused() -> None:
    """Operator, block and column are told."""
    with pytest.raises(DataError, match=r"Map\(<lambda>\), block 0.*column 'x' cannot be made"):
        ws.range(2).map(lambda row: {"x": 2**70}).to_arrow(engine="serial")
    with pytest.raises(DataError, match="two columns would have the name 'b'"):
        ws.from_items([{"a": 1, "b": 2}]).rename({"a": "b"}).take(engine="serial")
    with pytest.raises(ConfigurationError, match="take: rows=-1"):
        ws.range(3).take(-1)


def test_an_operator_may_have_blocks_of_another_size() -> None:
    """Its own number of bytes is that of the operator it is fused into; two numbers are two operators (M57, M60)."""

    def same(batch: Any) -> Any:
        return batch

    data = ws.from_arrow(tables(40)).map_batches(same, block_bytes=80)
    found = data.select("x").to_arrow(engine="serial")
    assert data._last is None
    assert [len(chunk) for chunk in found.column("x").chunks] == [10] * 4
    two = data.map_batches(same, block_bytes=160)
    assert [op.name for op in two._plan().operators] == ["FromArrow->MapBatches(same)", "MapBatches(same)"]
    assert "it asks for block_bytes=160, one before for 80" in two.explain()
    for options in ({"block_rows": 3}, {"shape_blocks": False}):
        with pytest.raises(ConfigurationError, match="80 bytes"):
            data.options(**options).explain()


def test_blocks_may_leave_as_they_are() -> None:
    """Without shaping even empty ones do, and no block at all is no rows (M57)."""
    rows: list[int] = []
    data = ws.from_arrow(tables(4)).options(shape_blocks=False)
    data = data.map_batches(lambda batch: ({"x": batch["x"][:n]} for n in (1, 0, 2)))
    assert data.to_arrow(engine="serial").column("x").to_pylist() == [0, 0, 1]
    assert data._last is not None
    assert [block.rows for block in data._last.records[0][0].blocks] == [1, 0, 2]
    none = ws.from_arrow(tables(4)).options(shape_blocks=False).map_batches(lambda batch: iter(rows))
    assert none.to_arrow(engine="serial").num_rows == 0
