"""Dependencies between the blocks of two layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.layouts import brute_boxes, layouts, overlap
from workspan.errors import ConfigurationError
from workspan.grid import Layout
from workspan.grid.neighbours import Relation


def relation(source, reader):
    return Relation(source, reader, source_id="source", reader_id="reader")


@st.composite
def pairs(draw):
    rank = draw(st.sampled_from((1, 2)))
    return draw(layouts(rank=rank)), draw(layouts(rank=rank))


@given(pairs())
def test_inputs_and_dependents_follow_the_definition(pair):
    """B28, B29: a block waits for exactly the source blocks whose write ROI overlaps its read ROI; the two directions
    are inverse, for asymmetric context and every fit.
    """
    source, reader = pair
    edge = relation(source, reader)
    writes = [write for write, _ in brute_boxes(source)]
    reads = [read for _, read in brute_boxes(reader)]
    truth = {(u, d) for u, w in enumerate(writes) for d, r in enumerate(reads) if overlap(w, r)}
    assert {(u, d) for d in range(len(reads)) for u in edge.inputs(d)} == truth
    assert {(u, d) for u in range(len(writes)) for d, _ in edge.dependents(u)} == truth
    for d in range(len(reads)):
        number = sum(pair[1] == d for pair in truth)
        assert edge.num_inputs(d) == number <= edge.most_inputs or not number
    for u in range(len(writes)):
        assert all(n == edge.num_inputs(d) for d, n in edge.dependents(u))


@given(pairs())
def test_a_reader_without_inputs_is_refused_exactly(pair):
    """B31: refused iff some block of the reader overlaps no block of the source."""
    source, reader = pair
    edge = relation(source, reader)
    writes = [write for write, _ in brute_boxes(source)]
    orphans = [r for _, r in brute_boxes(reader) if not any(overlap(w, r) for w in writes)]
    if orphans:
        with pytest.raises(ConfigurationError):
            edge.check()
    else:
        edge.check()


def test_the_refusal_names_both_tasks_axis_and_intervals():
    """B31: what does not overlap, and what to do."""
    source = Layout((0,), (10,), (0,), (10,), (0,), (10,), "valid", False)
    reader = Layout((0,), (40,), (0,), (10,), (0,), (10,), "valid", False)
    with pytest.raises(ConfigurationError) as caught:
        relation(source, reader).check()
    text = str(caught.value)
    assert "'reader'" in text
    assert "'source'" in text
    assert "axis 0" in text
    assert "last block reads [30, 40)" in text
    assert "write [0, 10)" in text


def test_ranks_must_agree():
    """B2: ROIs of joined tasks have the same rank; the error names both tasks."""
    source = Layout((0,), (10,), (0,), (10,), (0,), (10,))
    reader = Layout((0, 0), (10, 10), (0, 0), (10, 10), (0, 0), (10, 10))
    with pytest.raises(ConfigurationError, match=r"'reader' has 2 axes and task 'source'.* has 1"):
        relation(source, reader)
