"""Hypothesis strategies and brute-force oracles for layouts."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from workspan.grid import Layout


@st.composite
def layouts(draw, *, ranks=(1, 2, 3), most=5, conflict=None, rank=None, symmetric=False, least=0):
    """Draw small layouts: any fit, asymmetric context, context wider than a block, negative offsets.

    *least* and *most* bound the whole blocks per axis.
    """
    rank = draw(st.sampled_from(ranks)) if rank is None else rank
    axis = [[draw(st.integers(*span)) for _ in range(rank)] for span in ((1, 4), (0, 7), (0, 7), (-9, 9), (-9, 9))]
    block, lower, upper, total_begin, write_begin = axis
    upper = lower if symmetric else upper
    covered = [draw(st.integers(least * b, most * b)) for b in block]
    return Layout(
        tuple(total_begin),
        tuple(c + lo + up for c, lo, up in zip(covered, lower, upper, strict=True)),
        tuple(w - lo for w, lo in zip(write_begin, lower, strict=True)),
        tuple(b + lo + up for b, lo, up in zip(block, lower, upper, strict=True)),
        tuple(write_begin),
        tuple(block),
        draw(st.sampled_from(["valid", "overhang", "shrink"])),
        draw(st.booleans()) if conflict is None else conflict,
    )


def overlap(a, b):
    """Whether two half-open boxes share a point."""
    return all(max(ab, bb) < min(ae, be) for ab, ae, bb, be in zip(*a, *b, strict=True))


def brute_boxes(layout):
    """Write and read boxes of all blocks in C order, by the definition and without the layout's own arithmetic."""
    w = layout.write_shape
    c0 = [a - b for a, b in zip(layout.write_begin, layout.read_begin, strict=True)]
    c1 = [
        rb + rs - wb - ws
        for rb, rs, wb, ws in zip(layout.read_begin, layout.read_shape, layout.write_begin, w, strict=True)
    ]
    total = (layout.total_begin, [b + s for b, s in zip(layout.total_begin, layout.total_shape, strict=True)])
    low = [t + c for t, c in zip(total[0], c0, strict=True)]
    high = [t - c for t, c in zip(total[1], c1, strict=True)]
    axes = []
    for a, (lo, hi) in enumerate(zip(low, high, strict=True)):
        starts = list(range(lo, hi, w[a]))
        if layout.fit == "valid":
            starts = [s for s in starts if s + w[a] <= hi]
        axes.append(starts)
    out = []
    for begin in product(*axes):
        end = [b + x for b, x in zip(begin, w, strict=True)]
        read = ([b - c for b, c in zip(begin, c0, strict=True)], [e + c for e, c in zip(end, c1, strict=True)])
        if layout.fit == "shrink":
            end = [min(e, h) for e, h in zip(end, high, strict=True)]
            read = (read[0], [min(e, t) for e, t in zip(read[1], total[1], strict=True)])
        out.append(((tuple(begin), tuple(end)), (tuple(read[0]), tuple(read[1]))))
    return out
