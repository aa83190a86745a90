"""The two sides of a comparison: which tasks and blocks belong together, and what their figures say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workspan.errors import ConfigurationError
from workspan.report.comparison_figures import METRICS, STEPS, TaskFigures
from workspan.report.comparison_others import FEWEST_RUNS, Others
from workspan.report.comparison_spread import FEWEST, Ratio, from_pairs, from_samples, from_summaries
from workspan.report.comparison_values import Comparison, Row, Side
from workspan.report.places import RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from workspan.measure.stats import Stat
    from workspan.report.recorded import Place

__all__ = ["Rules", "Sides"]

USUAL_LIMIT = 0.1
"""Relative change that two runs must be known not to differ by, to be called the same, where no limit was given."""

_SERVED = ("wall", "round trip")
"""What stands for a block's time, the better first: parts of it matter as far as it feels them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the caller asked for; as of :func:`compare`."""

    fail_over: float | None
    smallest: float
    confidence: float
    with_first: bool
    fail_on: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class _Pending:
    """A row before it is known how many there are, and with that how wide their intervals must be."""

    task: str
    metric: str
    a: Side
    b: Side
    ratio: Ratio | None
    least: float
    """Difference of means that matters."""
    method: str
    gates: bool
    """More of it can be a regression."""


class Sides:
    """Two places and how to compare them."""

    def __init__(self, a: Place, b: Place, rules: Rules, also: Sequence[Place]) -> None:
        self._a, self._b, self._rules, self._also = a, b, rules, also
        self._refused: dict[str, str] = {}
        self._notes: dict[str, list[str]] = {}

    def comparison(self) -> Comparison:
        """Compare all tasks."""
        pending: list[_Pending] = []
        for name, a, b in self._pairs():
            pending += self._task(name, a, b)
        known = sum(row.ratio is not None and row.ratio.interval(0.5) is not None for row in pending)
        rules = self._rules
        error = (1.0 - rules.confidence) / max(known, 1)
        return Comparison(
            a=_told(self._a),
            b=_told(self._b),
            rows=tuple(self._judged(row, error) for row in pending),
            refused=self._refused,
            notes={task: "; ".join(notes) for task, notes in self._notes.items()},
            confidence=rules.confidence,
            smallest=rules.smallest,
            fail_over=rules.fail_over,
        )

    # -- which tasks -----------------------------------------------------------------------------------------------

    def _pairs(self) -> Iterator[tuple[str, TaskFigures, TaskFigures]]:
        a, b = _figures(self._a), _figures(self._b)
        if len(a) == len(b) == 1 and a.keys() != b.keys():  # whoever names two stores means these
            (old, one), (new, two) = *a.items(), *b.items()
            yield f"{old} / {new}", one, two
            return
        for name in sorted(a.keys() | b.keys(), key=lambda name: _order(a.get(name) or b[name], name)):
            if name not in b:
                self._refused[name] = f"it is not in {_told(self._b)}"
            elif name not in a:
                self._note(name, f"new in {_told(self._b)}")
            else:
                yield name, a[name], b[name]

    def _note(self, task: str, text: str) -> None:
        self._notes.setdefault(task, []).append(text)

    def _why_not(self, a: TaskFigures, b: TaskFigures) -> str | None:
        """Return why the blocks of two runs cannot be set against each other."""
        for figures, place in ((a, self._a), (b, self._b)):
            if not figures.by_block and figures.run is None:
                return f"no run in {_told(place)} executed a block of it, or none was measured"
        one, two = a.layout, b.layout
        if one is not None and two is not None:
            for key, told in (("write_roi", "write"), ("read_roi", "read")):
                old, new = one[key]["shape"], two[key]["shape"]
                if old != new:
                    return f"its blocks {told} {_shape(old)} and {_shape(new)} elements, so their costs are not alike"
        if a.run is not None and b.run is not None and a.run.blocks.total != b.run.blocks.total:
            numbers = f"{a.run.blocks.total:,} and {b.run.blocks.total:,}"
            if one is None or two is None:
                return f"it has {numbers} blocks, and no store says whether they are of the same size"
            if any((figures.task.folder.parent / "plan.json").is_file() for figures in (a, b)):
                return f"the rows are split into {numbers} tasks, so their costs are not alike"
        return None

    # -- one task --------------------------------------------------------------------------------------------------

    def _task(self, name: str, a: TaskFigures, b: TaskFigures) -> list[_Pending]:
        if (reason := self._why_not(a, b)) is not None:
            self._refused[name] = reason
            return []
        if a.run is not None and b.run is not None:
            if a.run.workers.count != b.run.workers.count:
                self._note(name, f"{a.run.workers.count} workers before, {b.run.workers.count} now")
            for run, place in ((a.run, self._a), (b.run, self._b)):
                if run.outcome != "completed":
                    self._note(name, f"the run in {_told(place)} was {run.outcome}")
        pairs = _Matched(a, b, self._rules.with_first) if a.by_block and b.by_block else None
        if pairs is None:
            self._note(name, "from summaries: not all blocks' own figures are there")
        else:
            self._note(name, pairs.told())
        others = Others(name, self._a, self._also)
        if others.count < FEWEST_RUNS:
            self._note(name, "what whole runs differ by is assumed")
        else:
            self._note(name, f"what whole runs differ by is from {others.count} runs")
        steps = list(dict.fromkeys([*a.steps, *b.steps]))
        found: list[_Pending] = []
        whole: _Pending | None = None
        for key in [*METRICS, *(STEPS + step for step in steps)]:
            row = self._row(name, key, a, b, pairs, whole, others)
            if row is not None:
                found.append(row)
                whole = row if key in _SERVED and whole is None else whole
        if not found:
            self._refused[name] = "no figure was measured in both runs"
        return found

    def _row(
        self,
        name: str,
        key: str,
        a: TaskFigures,
        b: TaskFigures,
        pairs: _Matched | None,
        whole: _Pending | None,
        others: Others,
    ) -> _Pending | None:
        if pairs is not None:
            both = pairs.values(key)
            if both is None:
                return None
            one, two = _side(both[0]), _side(both[1])
            ratio = pairs.ratio(*both) if one.mean > 0 and two.mean > 0 else None
            method = pairs.method
        else:
            old, new = a.summary(key), b.summary(key)
            if old is None or new is None:
                return None
            one, two = _summary_side(old), _summary_side(new)
            ratio = from_summaries(old, new) if one.mean > 0 and two.mean > 0 else None
            method = "summaries"
        least = max(METRICS[key].least if key in METRICS else 0.0, self._rules.smallest * one.mean)
        if whole is not None and _unit(key) == "s":
            least = max(least, self._rules.smallest * whole.a.mean)
        if ratio is not None:
            ratio = ratio.widened(*others.deviation(key))
        return _Pending(name, key, one, two, ratio, least, method, self._gates(key, whole))

    def _gates(self, key: str, whole: _Pending | None) -> bool:
        chosen = self._rules.fail_on
        if chosen is None:
            return key != "overhead" and (key != "round trip" or whole is None)
        return ("steps" if key.startswith(STEPS) else key) in chosen

    def _judged(self, row: _Pending, error: float) -> Row:
        old, new = row.a.mean, row.b.mean
        limit = self._rules.fail_over
        change = new / old - 1.0 if old > 0 else None
        interval = None if row.ratio is None else row.ratio.interval(error)
        low = high = None
        if row.ratio is None:  # one of them is 0, which nothing is a multiple of
            enough = min(row.a.n, row.b.n) >= FEWEST
            verdict = "same" if abs(new - old) <= row.least else "unclear" if not enough else "more"
            verdict = "less" if verdict == "more" and new < old else verdict
        elif interval is None:  # bytes are counted: what is as much as before needs no spread
            verdict = "same" if _unit(row.metric) == "B" and abs(new - old) <= row.least else "unclear"
        else:
            low, high = interval[0] - 1.0, interval[1] - 1.0
            up = row.least / old
            down = up / (1.0 + up)
            verdict = "more" if low > up else "less" if high < -down else "unclear"
            # What cannot be told apart is "the same" unless that could hide as much as the caller would object to.
            room = max(up, limit if limit is not None else USUAL_LIMIT)
            if verdict == "unclear" and low >= -room / (1.0 + room) and high <= room:
                verdict = "same"
        worse = row.gates and verdict == "more" and limit is not None and (change is None or change > limit)
        return Row(row.task, row.metric, _unit(row.metric), row.a, row.b, change, low, high, verdict, worse, row.method)


class _Matched:
    """The blocks of both sides that are compared, the same ones in the same order where the layouts are equal."""

    def __init__(self, a: TaskFigures, b: TaskFigures, with_first: bool) -> None:
        self._a, self._b = a, b
        same = a.store.cell_counts == b.store.cell_counts and a.store.layout_hash == b.store.layout_hash
        one, two = np.arange(len(a.cells)), np.arange(len(b.cells))
        if same:
            _, one, two = np.intersect1d(a.cells, b.cells, assume_unique=True, return_indices=True)
        self.method = "pairs" if same and len(one) >= FEWEST else "blocks"
        if self.method == "blocks":
            one, two = np.arange(len(a.cells)), np.arange(len(b.cells))
        self.dropped = 0
        if not with_first:
            one, two = self._warm(one, two)
        self._one, self._two = one, two

    def _warm(self, one: NDArray[np.int64], two: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Leave out the first block of each worker, unless that would cost more than a quarter of the blocks."""
        cold_one, cold_two = self._a.is_first[one], self._b.is_first[two]
        if self.method == "pairs":
            cold_one = cold_two = cold_one | cold_two
        warm = one[~cold_one], two[~cold_two]
        if any(len(left) < max(FEWEST, 0.75 * len(all)) for left, all in zip(warm, (one, two), strict=True)):
            return one, two
        self.dropped = int(np.count_nonzero(cold_one))
        return warm

    def told(self) -> str:
        """Return how the blocks were matched, as text."""
        n = len(self._one)
        if self.method == "pairs":
            text = f"{n:,} blocks, each with itself"
        else:
            text = f"{n:,} blocks with {len(self._two):,} others"
        return f"{text}, without the first of each worker" if self.dropped else text

    def values(self, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        a, b = self._a.values(key), self._b.values(key)
        return None if a is None or b is None else (a[self._one], b[self._two])

    def ratio(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Ratio:
        compute = from_pairs if self.method == "pairs" else from_samples
        return compute(a, b, self._a.when[self._one], self._b.when[self._two])


def _figures(place: Place) -> dict[str, TaskFigures]:
    out: dict[str, TaskFigures] = {}
    for task in place.tasks:
        run = place.run(task)
        if run is None and place.selected is not None:
            continue
        figures = TaskFigures(task, run, whole=place.selected is None)
        if task.task_id in out:
            raise ConfigurationError(
                f"{place.text!r} holds the task {task.task_id!r} twice, in {str(out[task.task_id].task.folder)!r} and "
                f"{str(task.folder)!r}: name one of them"
            )
        out[task.task_id] = figures
    return out


def _order(figures: TaskFigures, name: str) -> tuple[float, str]:
    place = None if figures.run is None else figures.run.place
    return (math.inf if place is None else place.position), name


def _told(place: Place) -> str:
    """Return the name of a place with its run."""
    if place.selected is None or "#" in place.text or place.text.endswith(RUNS):
        return place.text
    return f"{place.text}#{place.run_ids.index(place.selected) - len(place.run_ids)}"


def _unit(key: str) -> str:
    return METRICS[key].unit if key in METRICS else "s"


def _side(values: NDArray[np.float64]) -> Side:
    p10, p50, p90 = (float(q) for q in np.quantile(values, (0.1, 0.5, 0.9)))
    return Side(len(values), float(values.mean()), p10, p50, p90)


def _summary_side(stat: Stat) -> Side:
    return Side(stat.n, stat.mean)


def _shape(shape: list[int]) -> str:
    return " x ".join(map(str, shape))
