"""`map_blocks` against the function on the whole array at once, voxel for voxel."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import correlate, gaussian_filter

import workspan as ws
from helpers.arrays import run_by_hand
from workspan.arrays.edges import MODES, read_box
from workspan.errors import ConfigurationError, DataError, UsageTypeError

QUIET = {"progress": False, "summary": False}
NUMPY_NAMES = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}


@st.composite
def volumes(draw, *, largest=9, ranks=(1, 2, 3, 4)):
    """Draw an array, a block shape that need not fit, and a halo that may be wider than the array."""
    rank = draw(st.sampled_from(ranks))
    shape = tuple(draw(st.integers(1, largest)) for _ in range(rank))
    block = tuple(draw(st.integers(1, largest + 2)) for _ in range(rank))
    halo = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank))
    data = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(0, 1000, shape)
    return data, block, halo


def window_sum(data, halo, mode):
    """Sum of the window of *halo* around each voxel of the whole array, by padding once: the truth."""
    if mode == "clip":
        padded = np.pad(data, halo, mode="constant")
    else:
        padded = np.pad(data, halo, mode=NUMPY_NAMES[mode], **({"constant_values": 7} if mode == "constant" else {}))
    windows = np.lib.stride_tricks.sliding_window_view(padded, [low + high + 1 for low, high in halo])
    return windows.sum(axis=tuple(range(data.ndim, 2 * data.ndim)))


def own_window_sum(array, *, halo):
    """The same on what a block reads: zero outside, which is cut off except where the array was clipped."""
    padded = np.pad(array, halo)
    windows = np.lib.stride_tricks.sliding_window_view(padded, [low + high + 1 for low, high in halo])
    return windows.sum(axis=tuple(range(array.ndim, 2 * array.ndim)))


class TestEqualsTheWhole:
    """Results by blocks."""

    @settings(max_examples=120)
    @given(volumes(), st.sampled_from(MODES))
    def test_any_shape_block_halo_and_mode(self, drawn, mode):
        """Every voxel is that of the un-blocked result, in 1 to 4 axes, with any rest at the end (KF-26)."""
        data, block, halo = drawn
        out = np.full(data.shape, -1)
        task = ws.map_blocks(
            partial(own_window_sum, halo=halo), data, out=out, block_shape=block, halo=halo, mode=mode, fill=7
        )
        run_by_hand(task)
        assert np.array_equal(out, window_sum(data, halo, mode))

    @settings(max_examples=40)
    @given(
        shape=st.tuples(*[st.integers(1, 21)] * 3),
        block=st.tuples(*[st.integers(1, 23)] * 3),
        sigma=st.sampled_from([0.3, 0.7, 1.2]),
        mode=st.sampled_from(["reflect", "mirror", "nearest", "constant", "wrap", "clip"]),
    )
    def test_gaussian_of_any_volume(self, shape, block, sigma, mode):
        """A Gaussian of volumes thinner than its halo is that of the whole volume, in each of SciPy's modes (KF-26)."""
        data = np.random.default_rng(1).random(shape, dtype=np.float32)
        kind = "nearest" if mode == "clip" else mode
        out = np.full(shape, np.nan, np.float32)
        filter = partial(gaussian_filter, sigma=sigma, mode=kind)
        run_by_hand(ws.map_blocks(filter, data, out=out, block_shape=block, halo=int(4 * sigma + 0.5), mode=mode))
        np.testing.assert_array_equal(out, gaussian_filter(data, sigma, mode=kind))

    @given(volumes(ranks=(1, 2)), st.sampled_from(sorted(NUMPY_NAMES)), st.data())
    def test_padding_is_that_of_numpy(self, drawn, mode, data):
        """What lies beyond the edge has the values that `numpy.pad` gives it, however far it is away."""
        array = drawn[0]
        pads = [(data.draw(st.integers(0, 25)), data.draw(st.integers(0, 25))) for _ in array.shape]
        whole = np.pad(array, pads, mode=NUMPY_NAMES[mode], **({"constant_values": 7} if mode == "constant" else {}))
        begin = tuple(
            data.draw(st.integers(-low, n + high - 1)) for n, (low, high) in zip(array.shape, pads, strict=True)
        )
        end = tuple(
            data.draw(st.integers(b + 1, n + high)) for b, n, (_, high) in zip(begin, array.shape, pads, strict=True)
        )
        wanted = whole[tuple(slice(b + p[0], e + p[0]) for b, e, p in zip(begin, end, pads, strict=True))]
        assert np.array_equal(read_box(array, (begin, end), mode=mode, fill=7), wanted)

    def test_a_halo_one_voxel_short_is_noticed(self):
        """The comparison bites: with a halo too small by one voxel the result is another one."""
        data = np.random.default_rng(0).random((30, 30))
        right, wrong = np.zeros((2, 30, 30))
        filter = partial(gaussian_filter, sigma=1)
        run_by_hand(ws.map_blocks(filter, data, out=right, block_shape=8, halo=4))
        run_by_hand(ws.map_blocks(filter, data, out=wrong, block_shape=8, halo=3))
        assert np.array_equal(right, filter(data))
        assert not np.array_equal(wrong, filter(data))

    def test_a_result_without_halo_is_taken_as_it_is(self):
        """A function that gives only the voxels of its block ("valid" filters) need not pad them again."""
        data = np.arange(30.0)
        out = np.zeros(30)
        task = ws.map_blocks(
            lambda a: np.convolve(a, np.ones(5), "valid"), data, out=out, block_shape=7, halo=2, mode="constant"
        )
        run_by_hand(task)
        assert np.array_equal(out, correlate(data, np.ones(5), mode="constant"))

    def test_a_function_may_change_what_it_is_given(self):
        """A block's arrays are its own: a function that works in place changes no input (KF-25)."""

        def in_place(a):
            a += 1
            return a

        data, out = np.zeros((6, 4)), np.zeros((6, 4))
        run_by_hand(ws.map_blocks(in_place, data, out=out, block_shape=(3, 4), mode="clip"))
        assert not data.any()
        assert out.all()

    def test_an_empty_array(self, recwarn):
        """An array without voxels has no blocks, and its output is made (KF-26)."""
        task = ws.map_blocks(np.abs, np.zeros((0, 5)), out="empty.zarr", block_shape=2)
        assert task.run(engine="serial", **QUIET)
        assert zarr.open_array("empty.zarr").shape == (0, 5)

    def test_a_part_sees_what_is_around_it(self):
        """With roi= only that region is written, and its halo holds true neighbours, not padding."""
        data = np.random.default_rng(0).random((20, 20))
        out = np.full((20, 20), -1.0)
        run_by_hand(
            ws.map_blocks(
                partial(gaussian_filter, sigma=0.5), data, out=out, block_shape=4, halo=2, roi=ws.Roi((4, 8), (9, 5))
            )
        )
        whole = gaussian_filter(data, 0.5)
        assert np.array_equal(out[4:13, 8:13], whole[4:13, 8:13])
        assert (out == -1).sum() == 400 - 45


class TestSeveral:
    """Several arrays in and out."""

    def test_inputs_and_outputs_in_order(self, tmp_path):
        """The function gets one array an input and gives one an output, each of its type, and its block if it asks."""
        a, b = np.random.default_rng(0).integers(0, 9, (2, 10, 7))

        def both(one, other, *, block):
            return one + other, np.full(one.shape, block.index, np.uint8)

        outs = [tmp_path / "sum.zarr", tmp_path / "index.zarr"]
        task = ws.map_blocks(both, a, b, out=outs, dtype=[None, "uint8"], block_shape=(4, 7))
        run_by_hand(task)
        assert np.array_equal(zarr.open_array(outs[0])[:], a + b)
        index = zarr.open_array(outs[1])
        assert index.dtype == np.uint8
        assert index[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 2

    def test_inputs_of_other_shapes_are_refused(self):
        """Two inputs that do not cover each other are told apart by name and shape."""
        with pytest.raises(
            ConfigurationError, match=r"inputs\[1\].* has shape \(4, 5\) and inputs\[0\].* has \(4, 4\)"
        ):
            ws.map_blocks(np.add, np.zeros((4, 4)), np.zeros((4, 5)), out="x.zarr", block_shape=2)
        with pytest.raises(ConfigurationError, match=r"inputs\[1\].* has 1 axes and inputs\[0\].* has 2"):
            ws.map_blocks(np.add, np.zeros((4, 4)), np.zeros(4), out="x.zarr", block_shape=2)

    def test_a_task_can_be_an_input(self, tmp_path, monkeypatch):
        """A task that makes an array runs before the one that reads it, block by block, also joined by +."""
        monkeypatch.chdir(tmp_path)
        data = np.random.default_rng(0).random((24, 24))
        smooth = ws.map_blocks(
            partial(gaussian_filter, sigma=0.5), data, out="a.zarr", block_shape=8, halo=2, task_id="a"
        )
        double = ws.map_blocks(lambda x: x * 2, smooth, out="b.zarr", task_id="b")
        assert double.run(engine="serial", **QUIET)
        assert np.array_equal(zarr.open_array("b.zarr")[:], gaussian_filter(data, 0.5) * 2)
        joined = smooth + double
        assert {(u.task_id, d.task_id) for u, d in joined.edges} == {("a", "b")}
        with pytest.raises(UsageTypeError, match="makes no array"):
            ws.map_blocks(np.abs, ws.Task("x", *[ws.Roi((0,), (4,))] * 3, lambda block: None), out="c.zarr")


class TestWhatIsWrong:
    """One clear error, before anything runs where that can be."""

    def test_a_wrong_shape_names_block_expected_and_got(self, tmp_path, monkeypatch):
        """The report says which block returned what, and the other blocks' work is kept."""

        monkeypatch.chdir(tmp_path)

        def bad(a, block):
            return a[1:] if block.index == 1 else a + 1

        task = ws.map_blocks(bad, np.zeros((12, 4)), out=tmp_path / "o.zarr", block_shape=(4, 4))
        report = task.run(engine="serial", return_report=True, **QUIET)
        assert not report
        (failure,) = report["bad"].failed_blocks
        assert "\n" not in failure.error  # no frame of the package adds to it
        assert "block ('bad', 2), which writes [4:8, 0:4]" in failure.error
        assert ".<locals>.bad' returned an array of shape (3, 4)" in failure.error
        assert "(4, 4) was expected: return as many voxels as were read" in failure.error
        assert (failure.attempts, report["bad"].blocks.failures) == (1, 1)  # another attempt would end alike
        assert zarr.open_array(tmp_path / "o.zarr")[:, 0].tolist() == [1] * 4 + [0] * 4 + [1] * 4

    def test_an_array_may_be_called_block(self, tmp_path):
        """The first parameters are the arrays, whatever their names; behind them ``block`` is the block (R67)."""

        def more(block):
            return block + 1

        task = ws.map_blocks(more, np.zeros((8,)), out=tmp_path / "o.zarr", block_shape=(4,))
        assert task.run(engine="serial", **QUIET)
        assert zarr.open_array(tmp_path / "o.zarr")[:].tolist() == [1] * 8

    def test_a_wrong_dtype_names_expected_and_got(self):
        """A type that would lose values is refused with both types in the text; nothing is cut silently."""
        out = np.zeros(6, np.uint8)
        task = ws.map_blocks(lambda a: a * 1.5, np.arange(6, dtype=np.uint8), out=out, block_shape=3)
        with pytest.raises(DataError, match=r"returned float64 for out .*, which is uint8 .* dtype='float64'"):
            run_by_hand(task)
        assert not out.any()

    def test_too_few_outputs(self):
        """One array where two are expected is told by number."""
        task = ws.map_blocks(np.abs, np.arange(4), out=[np.zeros(4, int), np.zeros(4, int)], block_shape=2)
        with pytest.raises(DataError, match="returned 1 arrays, and there are 2 outputs"):
            run_by_hand(task)

    def test_missing_inputs(self, tmp_path):
        """A path where nothing is, and one with a group that is no image, are told before anything is made."""
        with pytest.raises(ConfigurationError, match=r"input='.*nope.zarr' does not exist"):
            ws.map_blocks(np.abs, tmp_path / "nope.zarr", out=tmp_path / "o.zarr")
        group = zarr.create_group(tmp_path / "g.zarr")
        group.create_array("inner", shape=(4,), chunks=(2,), dtype="u1")
        with pytest.raises(ConfigurationError, match=r"g.zarr' is a group .* one of 'inner'"):
            ws.map_blocks(np.abs, tmp_path / "g.zarr", out=tmp_path / "o.zarr")
        assert not (tmp_path / "o.zarr").exists()

    def test_read_only_and_wrong_rank_outputs(self, tmp_path):
        """An output that cannot be written, or has other axes or another shape, is refused by name."""
        zarr.create_array(tmp_path / "o.zarr", shape=(4,), chunks=(2,), dtype="i8")
        with pytest.raises(ConfigurationError, match=r"o.zarr' has 1 axes, and .* has 2"):
            ws.map_blocks(np.abs, np.zeros((4, 4)), out=zarr.open_array(tmp_path / "o.zarr", mode="r+"), block_shape=2)
        fixed = np.zeros(4)
        fixed.flags.writeable = False
        with pytest.raises(ConfigurationError, match=r"out .* is read-only"):
            ws.map_blocks(np.abs, np.zeros(4), out=fixed, block_shape=2)
        with pytest.raises(ConfigurationError, match=r"has shape \(5,\), and .* has \(4,\)"):
            ws.map_blocks(np.abs, np.zeros(4), out=np.zeros(5), block_shape=2)

    def test_a_zarr_array_opened_for_reading_is_read_only(self, tmp_path):
        """An output handed in as opened with mode="r" is refused, as it was meant."""
        zarr.create_array(tmp_path / "o.zarr", shape=(4,), chunks=(2,), dtype="f8")
        with pytest.raises(ConfigurationError, match=r"o.zarr' is read-only: open it with mode='r\+'"):
            ws.map_blocks(np.abs, np.zeros(4), out=zarr.open_array(tmp_path / "o.zarr", mode="r"), block_shape=2)

    def test_reading_and_writing_one_array(self, tmp_path):
        """A block that is tried again would read its own result: refused (KF-25)."""
        zarr.create_array(tmp_path / "o.zarr", data=np.zeros(4), chunks=(2,))
        with pytest.raises(ConfigurationError, match="reads and writes"):
            ws.map_blocks(np.abs, tmp_path / "o.zarr", out=zarr.open_array(tmp_path / "o.zarr", mode="r+"))

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"block_shape": (2, 2)}, r"block_shape=\(2, 2\) has 2 entries, and the arrays have 1 axes"),
            ({"block_shape": 0}, "block_shape=0 is too small"),
            ({"block_shape": "chunks"}, "has no chunks: pass the shape of a block"),
            ({"halo": -1}, "halo=-1 is too small"),
            ({"mode": "odd"}, "mode='odd' is not known: use one of 'reflect'"),
            ({"units": "m"}, "units='m' is not known"),
            ({"roi": ws.Roi((2,), (9,))}, "reaches beyond the array"),
            ({"fit": "valid"}, "fit= follows from the arrays"),
            ({"on_shared_chunk": "x"}, "on_shared_chunk='x' is not known"),
        ],
        ids=str,
    )
    def test_arguments(self, change, text):
        """Each argument that cannot be used is named with its value."""
        with pytest.raises((ConfigurationError, UsageTypeError), match=text):
            ws.map_blocks(np.abs, np.zeros(8), **{"out": np.zeros(8), "block_shape": 2, **change})


class TestWithProcesses:
    """The same with workers."""

    def test_report_has_steps_without_instrumentation(self, tmp_path, monkeypatch):
        """Two workers give the un-blocked result, and the report says where each block's time went."""
        monkeypatch.chdir(tmp_path)
        data = np.random.default_rng(0).integers(0, 255, (40, 30, 20), dtype=np.uint8)
        zarr.create_array("raw.zarr", data=data, chunks=(16, 16, 16))
        task = ws.map_blocks(
            partial(gaussian_filter, sigma=1),
            "raw.zarr",
            out=Path("smooth.zarr"),
            halo=4,
            max_workers=2,
            tracking_path="tracking/smooth",
            resource_tracking=True,
        )
        assert task.run(**QUIET)
        assert task.reader.plans[0] is not None  # read by tiles
        assert np.array_equal(zarr.open_array("smooth.zarr")[:], gaussian_filter(data, 1))
        steps = task.report().steps
        assert {"read", "compute", "write"} <= set(steps)
        assert all(steps[name].calls == 12 for name in ("read", "compute", "write"))
        assert steps["import"].calls == task.report().workers.count


def test_private_arrays_are_refused_with_processes(tmp_path, monkeypatch):
    """What workers write into memory of their own would be lost: refused before one starts."""
    monkeypatch.chdir(tmp_path)
    out = np.zeros(8)
    task = ws.map_blocks(np.abs, np.ones(8), out=out, block_shape=4)
    with pytest.raises(ConfigurationError, match=r"out .* is in the memory of this process"):
        task.run(**QUIET)
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, data=np.ones(8), chunks=(4,))
    with pytest.raises(ConfigurationError, match="cannot read it"):
        ws.map_blocks(np.abs, array, out="x.zarr").run(**QUIET)
    assert ws.map_blocks(np.abs, array, out="x.zarr").run(engine="serial", **QUIET)
    assert zarr.open_array("x.zarr")[:].tolist() == [1] * 8
