"""Pipelines: joining tasks."""

from __future__ import annotations

import pytest
from funlib.geometry import Roi

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.run.pipeline import Pipeline
from workspan.run.task import Task


def task(task_id):
    return Task(task_id, Roi((0,), (10,)), Roi((0,), (1,)), Roi((0,), (1,)), lambda block: None)


def names(pairs):
    return {(u.task_id, d.task_id) for u, d in pairs}


def test_plus_joins_every_output_with_every_source():
    """B55: operands are not modified; tasks are merged by identity."""
    a, b, c, d = map(task, "abcd")
    left, right = a | b, c | d
    joined = left + right
    assert names(joined.edges) == {("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")}
    assert left.edges == right.edges == []
    assert [t.task_id for t in (a + b + a.__or__(b)).tasks] == ["a", "b"]


def test_sources_and_outputs_follow_the_merged_edges():
    """B56: `a | (a + b)` has one source and one output."""
    a, b = task("a"), task("b")
    merged = a | (a + b)
    assert (merged.sources, merged.outputs) == ([a], [b])
    assert repr(merged) == "Pipeline(['a', 'b'], 1 edge)"


@pytest.mark.parametrize("operator", [lambda a, b: a + b, lambda a, b: a | b])
def test_other_operands_are_refused(operator):
    """B55: TypeError."""
    with pytest.raises(TypeError):
        operator(task("a"), 5)
    with pytest.raises(TypeError):
        operator(Pipeline([task("a")]), "b")


def test_bad_pipelines_are_refused():
    """B57: duplicate objects and unknown ends at construction; duplicate ids and cycles when the rules are made."""
    a, b, other = task("a"), task("b"), task("a")
    with pytest.raises(ConfigurationError, match="'a' is listed twice"):
        Pipeline([a, a])
    with pytest.raises(ConfigurationError, match=r"an edge names Task\('b'"):
        Pipeline([a], [(a, b)])
    with pytest.raises(ConfigurationError, match="two tasks have the id 'a'"):
        Pipeline([a, other]).spec()
    with pytest.raises(ConfigurationError, match=r"tasks 'a', 'b' form a cycle"):
        Pipeline([a, b], [(a, b), (b, a)]).spec()
    with pytest.raises(UsageTypeError, match="5 is not a Task"):
        Pipeline([5])


def test_lists_bring_their_upstream_tasks_along():
    """B58: everything reachable through upstream_tasks, one edge per declared upstream."""
    a, b, c = map(task, "abc")
    b.upstream_tasks, c.upstream_tasks = [a], [a, b]
    pipeline = Pipeline.of([c])
    assert {t.task_id for t in pipeline.tasks} == {"a", "b", "c"}
    assert names(pipeline.edges) == {("a", "b"), ("a", "c"), ("b", "c")}
    with pytest.raises(UsageTypeError, match="cannot be run"):
        Pipeline.of([1])
    with pytest.raises(UsageTypeError, match="cannot be run"):
        Pipeline.of("task")


def test_display_order_is_topological_and_alphabetical():
    """B59: the smallest available id first."""
    z, y, x, w = map(task, "zyxw")
    pipeline = Pipeline([z, y, x, w], [(z, w), (x, y)])
    assert [t.task_id for t in pipeline.spec().tasks] == ["x", "y", "z", "w"]
