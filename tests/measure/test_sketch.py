from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan.measure.sketch import Sketch


def rank_error(sketch: Sketch, samples: list[float], q: float) -> float:
    """Return by what share of the samples the rank of a quantile is off."""
    found = sketch.quantile(q)
    low = sum(sample < found for sample in samples) / len(samples)
    high = sum(sample <= found for sample in samples) / len(samples)
    return max(0.0, low - q, q - high)


@pytest.mark.parametrize("order", ["random", "sorted", "falling", "few values"])
def test_ranks_are_off_by_at_most_one_percent(order):
    """10^5 samples in whatever order: rank error at most 1 %, ends exact, memory bounded (M88)."""
    draw = random.Random(7)
    samples = [draw.lognormvariate(0, 2) for _ in range(100_000)]
    if order in ("sorted", "falling"):
        samples.sort(reverse=order == "falling")
    if order == "few values":
        samples = [float(int(sample)) for sample in samples]
    sketch = Sketch()
    for begin in range(0, len(samples), 100):
        sketch.extend(samples[begin : begin + 100])
    assert (sketch.n, sketch.min, sketch.max) == (100_000, min(samples), max(samples))
    assert max(rank_error(sketch, samples, q / 20) for q in range(21)) <= 0.01
    assert sketch.held < 6000


def test_partial_sketches_merge_in_any_order():
    """Merged figures are as good as those of one sketch, whatever the order; ends and count are equal (M88, M89)."""
    draw = random.Random(3)
    samples = [draw.gauss(0, 1) for _ in range(40_000)]
    parts = []
    for number in range(8):
        part = Sketch()
        part.extend(samples[number * 5000 : (number + 1) * 5000])
        parts.append(part)
    for order in (range(8), range(7, -1, -1)):
        merged = Sketch()
        for number in order:
            merged.merge(parts[number])
        assert (merged.n, merged.min, merged.max) == (40_000, min(samples), max(samples))
        assert max(rank_error(merged, samples, q / 20) for q in range(21)) <= 0.01
    assert parts[0].n == 5000


def test_nothing_is_none():
    """Without samples every figure is None, and merging or adding nothing changes nothing (M88)."""
    sketch = Sketch()
    sketch.extend([])
    sketch.merge(Sketch())
    assert (sketch.n, sketch.min, sketch.max, sketch.quantile(0.5)) == (0, None, None, None)


@given(samples=st.lists(st.integers(-1000, 1000), min_size=1, max_size=300), q=st.floats(0, 1))
def test_few_samples_are_exact(samples, q):
    """Below one full level every quantile is the sample of that rank (M88)."""
    sketch = Sketch()
    sketch.extend(samples)
    assert rank_error(sketch, samples, q) == pytest.approx(0.0, abs=1e-9)
    assert sketch.quantile(q) in samples


def test_weights_count():
    """A sample of level 3 counts eight times, and scaling scales every figure."""
    sketch = Sketch()
    sketch.extend([1.0], level=3)
    sketch.extend([5.0] * 2)
    assert (sketch.n, sketch.quantile(0.7), sketch.quantile(0.9)) == (10, 1.0, 5.0)
    double = sketch.scaled(2.0)
    assert (double.n, double.min, double.quantile(0.7), double.max) == (10, 2.0, 2.0, 10.0)
