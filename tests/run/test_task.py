"""Tasks: arguments, checks, and daisy's spellings."""

from __future__ import annotations

import copy
import functools
import threading
from datetime import timedelta
from math import inf

import numpy as np
import pytest
from funlib.geometry import Coordinate, Roi

import workspan
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run.functions import function_kind
from workspan.run.task import Task

ROI = Roi((0,), (100,))
BLOCK = Roi((0,), (10,))


def work(block):
    """Do nothing."""


def task(task_id="t", total=ROI, read=BLOCK, write=BLOCK, function=work, **kwargs):
    return Task(task_id, total, read, write, function, **kwargs)


class TestArguments:
    def test_arguments_are_attributes(self):
        """B39, B40: everything that was passed can be read back, with derived figures beside."""
        requires = {"gpu": 1, "none": 0}
        t = task(max_workers=3, max_retries=1, timeout=timedelta(seconds=5), requires=requires, fit="shrink")
        assert (t.task_id, t.total_roi, t.read_roi, t.write_roi) == ("t", ROI, BLOCK, BLOCK)
        assert (t.max_workers, t.max_retries, t.timeout_secs, t.fit) == (3, 1, 5.0, "shrink")
        assert t.requires == {"gpu": 1}
        assert t.block_grid_shape == Coordinate(10)
        assert t.total_write_roi == ROI
        assert t.process_function is work
        assert t.read_write_conflict

    def test_copies_share_the_callables(self):
        """B40: copy and deepcopy share functions, whatever they hold, and the very tasks that are upstream."""

        class Model:
            def __init__(self):
                self.lock = threading.Lock()

            def __call__(self, block):
                """Do nothing."""

        model, first = Model(), task("first")
        t = task(function=model)
        t.upstream_tasks = [first]
        for twin in (copy.copy(t), copy.deepcopy(t)):
            assert twin.process_function is model
            assert twin.upstream_tasks == [first]
            assert twin.layout == t.layout

    def test_the_default_timeout_is_ten_minutes_and_inf_is_none(self):
        """B48: None means 600 s; inf disables the deadline."""
        assert task().timeout_secs == 600.0
        assert task(timeout=inf).timeout_secs == inf

    @pytest.mark.parametrize(
        ("kwargs", "told"),
        [
            ({"max_workers": 0}, "max_workers=0 is too small: use 1 or more"),
            ({"max_retries": -1}, "max_retries=-1 is too small"),
            ({"max_worker_restarts": -1}, "max_worker_restarts=-1 is too small"),
            ({"timeout": 0}, "timeout=0 is not positive"),
            ({"timeout": float("nan")}, "timeout=nan is not positive"),
            ({"fit": "tight"}, "fit='tight' is not known"),
            ({"skip_mask": np.zeros(9)}, "skip_mask has shape (9,) but task 't' has (10,)"),
            ({"read": Roi((0,), (5,))}, "does not contain write_roi"),
            ({"write": Roi((0,), (0,))}, "has shape (0,)"),
            ({"total": Roi((0, 0), (9, 9))}, "total_roi has rank 2"),
        ],
        ids=lambda v: v[:18] if isinstance(v, str) else next(iter(v)),
    )
    def test_bad_values_are_refused_with_name_value_and_remedy(self, kwargs, told):
        """B15, B42, B48, B50: ValueError at construction."""
        with pytest.raises(ConfigurationError) as caught:
            task(**kwargs)
        assert told in str(caught.value)
        assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"timeout": "5"},
            {"max_workers": 1.5},
            {"max_workers": True},
            {"tracking_path": True},
            {"requires": 5},
            {"check_function": 7},
        ],
    )
    def test_bad_types_are_refused(self, kwargs):
        """B48, B51: TypeError naming argument and value."""
        ((name, value),) = kwargs.items()
        with pytest.raises(UsageTypeError) as caught:
            task(**kwargs)
        assert f"{name}={value!r}" in str(caught.value)
        assert isinstance(caught.value, TypeError)

    @pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "../x", "a\\b", "a\nb", "a\0", "x" * 300, "\ud800"])
    def test_names_that_cannot_be_folders_are_refused(self, name):
        """B42, KF-23, R49: the rule is named when the task is made."""
        with pytest.raises(ConfigurationError, match="cannot name a folder: it must"):
            task(name)

    @pytest.mark.parametrize("name", ["seg:1", "a b", "ü", "A", "x" * 200])
    def test_other_names_are_fine(self, name):
        """KF-23, D41: safe characters stay as they are."""
        assert task(name).task_id == name

    def test_the_mask_is_copied_in_and_out(self):
        """B50: contiguous uint8; the getter returns a copy."""
        mask = np.array([True] + [False] * 9)
        t = task(skip_mask=mask)
        mask[1] = True
        got = t.skip_mask
        assert got.dtype == np.uint8
        assert got.tolist() == [1] + [0] * 9
        got[:] = 1
        assert t.skip_mask.sum() == 1


class TestReset:
    def test_a_folder_that_is_no_store_is_not_deleted(self, tmp_path):
        """B52: a slip in tracking_path must not cost anybody's files; an empty folder and a store are removed."""
        (tmp_path / "data.txt").write_text("mine")
        with pytest.raises(ConfigurationError, match="is not a tracking store"):
            task(tracking_path=tmp_path).reset()
        assert (tmp_path / "data.txt").read_text() == "mine"
        assert task(tracking_path=tmp_path / "none").reset() is None

    def test_failed_blocks_of_another_layout_are_refused(self, tmp_path, monkeypatch):
        """B52: indices of another layout would name the wrong blocks."""
        monkeypatch.chdir(tmp_path)
        small = task(function=lambda block: 1 / 0, max_retries=0, tracking_path=tmp_path / "store")
        workspan.run_blockwise(small, engine="serial", progress=False, summary=False)
        assert len(small.failed_blocks()) == 10
        with pytest.raises(ConfigurationError, match="was made for another layout of task 't'"):
            task(total=Roi((0,), (200,)), tracking_path=tmp_path / "store").failed_blocks()


class TestPositions:
    def test_the_two_grids_convert_into_each_other(self):
        """B11, W21: block <-> mask cell <-> tracking cell, with a context wider than a block."""
        wide = task("wide", Roi((-15,), (60,)), Roi((-15,), (40,)), Roi((0,), (10,)))
        for n in range(3):
            block = wide.block_at(mask_cell=(n,))
            assert (wide.mask_cell(block), wide.tracking_cell(block)) == ((n,), (n + 1,))
            assert wide.block_at(tracking_cell=(n + 1,)) == block
            by_hand = workspan.Block(block.total_roi, block.read_roi, block.write_roi, task_id="wide")
            assert wide.tracking_cell(by_hand) == (n + 1,)

    def test_positions_without_a_block_are_refused(self):
        """W21: position, number of blocks and the first one are named; a foreign block is no block of the task."""
        wide = task("wide", Roi((-15,), (60,)), Roi((-15,), (40,)), Roi((0,), (10,)))
        with pytest.raises(IndexError, match=r"no block at tracking_cell=\(0,\): there are \(3,\) .* first at \(1,\)"):
            wide.block_at(tracking_cell=(0,))
        with pytest.raises(IndexError, match=r"no block at mask_cell=\(3,\)"):
            wide.block_at(mask_cell=(3,))
        with pytest.raises(UsageTypeError, match="either mask_cell= or tracking_cell="):
            wide.block_at()
        with pytest.raises(ConfigurationError, match="is no block of this task"):
            wide.mask_cell(workspan.Block(ROI, Roi((3,), (10,)), Roi((3,), (10,))))


class TestFunctions:
    @pytest.mark.parametrize(
        ("function", "kind"),
        [
            (work, "block"),
            (lambda: None, "worker"),
            (lambda *, context: None, "worker"),
            (lambda block, other=1: None, "block"),
            (lambda *args: None, "worker"),
            (functools.partial(lambda a, block: None, 1), "block"),
            (functools.partial(lambda a: None, 1), "worker"),
            (dict, "block"),
        ],
        ids=["plain", "none", "keyword", "default", "star", "bound", "all bound", "opaque"],
    )
    def test_arity_tells_block_from_worker_functions(self, function, kind):
        """B43: positional parameters after binding."""
        assert function_kind(function) == kind

    def test_methods_and_callable_objects_do_not_count_self(self):
        """B43: bound methods, and objects with __call__."""

        class Model:
            def run(self, block):
                """Do nothing."""

            __call__ = run

        assert function_kind(Model().run) == "block"
        assert function_kind(Model()) == "block"

    def test_too_many_required_arguments_are_refused(self):
        """B43: the arguments are named."""
        with pytest.raises(ConfigurationError, match=r"needs 2 arguments \(block, sigma\)"):
            task(function=lambda block, sigma: None)
        with pytest.raises(UsageTypeError, match="process_function=5 is not callable"):
            task(function=5)


class TestSpellings:
    def test_old_keywords_work_and_warn(self, tmp_path):
        """B41: each with a DeprecationWarning at the caller's line."""
        with pytest.warns(DeprecationWarning, match="num_workers.*use max_workers") as caught:
            assert task(num_workers=4).max_workers == 4
        assert caught[0].filename == __file__
        with pytest.warns(DeprecationWarning, match="done_marker_path"):
            assert task(done_marker_path=tmp_path).tracking_path == tmp_path
        first = task("a")
        with pytest.warns(DeprecationWarning, match="upstream_tasks"):
            assert task("b", upstream_tasks=[first]).upstream_tasks == [first]

    def test_both_spellings_at_once_are_refused(self):
        """B41: TypeError that names both."""
        with pytest.raises(UsageTypeError, match="max_workers=2 and num_workers=3 are the same argument"):
            task(max_workers=2, num_workers=3)

    def test_v2_refuses_the_old_spellings(self):
        """B41: a TypeError with the new one; the new ones work."""
        with pytest.raises(TypeError, match=r"takes no num_workers in workspan\.v2: use max_workers"):
            workspan.v2.Task("t", ROI, BLOCK, BLOCK, work, num_workers=2)
        made = workspan.v2.Task("t", ROI, BLOCK, BLOCK, work, max_workers=2)
        assert isinstance(made, workspan.Task)

    def test_basedirs(self, tmp_path):
        """B51, B123: resolved when asked, so that a later change is honoured; False switches tracking off."""
        t = task()
        assert t.resolved_tracking_path() is None
        try:
            workspan.set_tracking_basedir(tmp_path)
            assert t.resolved_tracking_path() == tmp_path / "t"
            assert task(tracking_path=False).resolved_tracking_path() is None
            with pytest.warns(DeprecationWarning, match="set_tracking_basedir|get_tracking_basedir"):
                assert workspan.get_done_marker_basedir() == tmp_path
        finally:
            workspan.set_tracking_basedir(None)
