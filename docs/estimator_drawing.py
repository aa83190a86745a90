"""Draw what an estimator knows before and after learning: measurements, estimate, interval. Axes are logarithmic."""

from __future__ import annotations

import json
from itertools import pairwise
from math import ceil, floor, log10
from pathlib import Path

from drawings import INK, READ, SOFT, WRITE, Drawing

from workspan.estimate.estimator import Estimator

SERIES = Path(__file__).parents[1] / "benchmarks" / "estimator" / "series" / "recorded.json"
NAME, SEEN = "sort strings", (0, 4, 50)
WIDTH, HEIGHT, LEFT, TOP = 225, 210, 55, 40


def learning() -> Drawing:
    """One recorded series, as it looks after 0, 4 and 50 runs."""
    record = next(series for series in json.loads(SERIES.read_text()) if series["name"] == NAME)
    pairs = [(m["N_ref"], m["dt"]) for m in record["measurements"]]
    out = Drawing(780, 310, f"Estimates for {NAME} before and after learning")
    sizes = [size for size, _ in pairs]
    low_x, high_x = log10(min(sizes)) - 0.3, log10(max(sizes)) + 0.3
    low_y = floor(log10(min(dt for _, dt in pairs)))
    high_y = ceil(log10(max(dt for _, dt in pairs)))
    for panel, seen in enumerate(SEEN):
        left = LEFT + panel * (WIDTH + 12)

        def x(size: float, left: float = left) -> float:
            return left + (log10(size) - low_x) / (high_x - low_x) * WIDTH

        def y(seconds: float) -> float:
            part = (log10(seconds) - low_y) / (high_y - low_y)
            return TOP + HEIGHT * (1.0 - min(max(part, 0.0), 1.0))

        estimator = Estimator(record["order"]).fit(pairs[:seen])
        out.text(left, TOP - 12, estimator.predict(sizes[0]).basis.partition(":")[0], bold=True)
        at = [10 ** (low_x + (high_x - low_x) * i / 112) for i in range(113)]
        found = [(size, estimator.predict(size)) for size in sorted({*at, *(s for s in sizes[:seen])})]
        for (size, now), (following, _) in pairwise(found):
            if now.low is not None:
                wide = max(x(following) - x(size), 0.6)
                out.box(x(size), y(now.high), wide, y(now.low) - y(now.high), fill=READ, stroke="none")
        for (size, now), (following, after) in pairwise(found):
            out.line(x(size), y(now.value), x(following), y(after.value), stroke=WRITE)
        for size, dt in pairs[:seen]:
            out.box(x(size) - 2, y(dt) - 2, 4, 4, fill=INK, stroke=INK)
        out.box(left, TOP, WIDTH, HEIGHT, stroke=SOFT)
        for power in range(ceil(low_x), floor(high_x) + 1):
            out.text(x(10.0**power), TOP + HEIGHT + 18, f"1e{power}", anchor="middle", fill=SOFT)
    for power in range(low_y, high_y + 1):
        out.text(LEFT - 8, y(10.0**power) + 4, f"1e{power} s", anchor="end", fill=SOFT)
    out.text(LEFT, TOP + HEIGHT + 44, "squares: runs; line: estimate; band: 90 % interval", fill=SOFT)
    return out
