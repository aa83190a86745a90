"""Two runs side by side: by how much each figure changed, how sure that is, and whether it is too much."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.report._value import Value
from workspan.report.comparison_figures import METRICS, STEPS, TaskFigures
from workspan.report.comparison_others import FEWEST_RUNS, Others
from workspan.report.comparison_spread import FEWEST, Ratio, from_pairs, from_samples, from_summaries
from workspan.report.recorded import RUNS, find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from workspan.measure.stats import Stat
    from workspan.report.recorded import Place

__all__ = ["Comparison", "Row", "Side", "compare"]

_SERVED = ("wall", "round trip")
"""What stands for a block's time, the better first: parts of it matter as far as it feels them."""
_KNOWN_VERDICTS = ("same", "more", "less", "unclear")


@dataclass(frozen=True, slots=True)
class Side(Value):
    """A figure of the blocks of one run, in seconds or bytes."""

    n: int
    """Blocks that were compared."""
    mean: float
    p10: float | None = None
    """This and the next two: percentiles over blocks; ``None``: only a summary is left."""
    p50: float | None = None
    p90: float | None = None


@dataclass(frozen=True, slots=True)
class Row(Value):
    """One figure of one task in both runs."""

    task: str
    metric: str
    """``"wall"``, ``"cpu"``, ``"memory"`` (peak RSS), ``"io read"``, ``"io write"``, ``"overhead"``, ``"round trip"``,
    or ``"steps/"`` and the name of a step."""
    unit: str
    """``"s"`` or ``"B"``, a block."""
    a: Side
    b: Side
    change: float | None
    """Mean of *b* over mean of *a*, less 1; ``None``: *a* is 0."""
    low: float | None
    """The true change lies between this and :attr:`high`; ``None``: the spread is not known."""
    high: float | None
    verdict: str
    """``"more"`` or ``"less"``: it differs by more than the smallest change that matters. ``"same"``: it does not.
    ``"unclear"``: the spread is too wide to tell."""
    regression: bool
    """There is more of it, and by more than the caller allows."""
    method: str
    """``"pairs"``: block by block. ``"blocks"``: as two samples of blocks. ``"summaries"``: from means and deviations."""

    @property
    def step(self) -> str | None:
        """Name of the step; ``None``: the metric is of the whole block."""
        return self.metric.removeprefix(STEPS) if self.metric.startswith(STEPS) else None


@dataclass(frozen=True, slots=True)
class Comparison(Value):
    """What changed from one run to another. True unless something got worse, or could not be compared.

    With *fail_over*, "worse" is a regression beyond it; without, any row that is ``"more"``.
    """

    a: str
    """What was compared, as it was named."""
    b: str
    rows: tuple[Row, ...]
    refused: dict[str, str]
    """Task -> why it could not be compared."""
    notes: dict[str, str]
    """Task -> what to know beside its figures."""
    confidence: float
    """The chance that all intervals hold together."""
    smallest: float
    """The smallest relative change that matters."""
    fail_over: float | None = None
    """Relative change from which on more is a regression; ``None``: not asked for."""

    @property
    def regressions(self) -> tuple[Row, ...]:
        """Rows that are worse by more than the caller allows."""
        return tuple(row for row in self.rows if row.regression)

    @property
    def is_comparable(self) -> bool:
        """Whether anything was compared and no task of both sides was refused."""
        return bool(self.rows) and not self.refused

    def __bool__(self) -> bool:
        worse = self.regressions if self.fail_over is not None else [r for r in self.rows if r.verdict == "more"]
        return self.is_comparable and not worse

    def row(self, task: str, metric: str) -> Row:
        """Return one row.

        Raises
        ------
        NotInReportError
            There is none.
        """
        from workspan.errors import NotInReportError

        for row in self.rows:
            if (row.task, row.metric) == (task, metric):
                return row
        known = ", ".join(repr(row.metric) for row in self.rows if row.task == task) or "none"
        raise NotInReportError(f"no row {metric!r} of task {task!r}: its rows are {known}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists, numbers, text and ``None``: strict JSON."""
        return {"schema": 1, **self.to_json(), "ok": bool(self)}

    def __repr__(self) -> str:
        from collections import Counter

        told = Counter(row.verdict for row in self.rows)
        counts = ", ".join(f"{told[verdict]} {verdict}" for verdict in _KNOWN_VERDICTS if told[verdict]) or "nothing"
        return f"<Comparison {self.a!r} with {self.b!r}: {counts}; {len(self.regressions)} regressions>"


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    fail_over: float | None = None,
    smallest: float = 0.02,
    confidence: float = 0.95,
    with_first: bool = False,
    also: Sequence[str | os.PathLike[str]] = (),
    fail_on: Sequence[str] | None = None,
) -> Comparison:
    """Compare what two runs cost, per task, step and metric, taking their spread into account.

    Parameters
    ----------
    a
        Where the older run is recorded: a tracking folder, a folder of those of several tasks, or a ``runs.jsonl``.
        ``#`` and a number or id select one run: ``"run/#-2"`` is the last but one that executed anything. A tracking
        folder stands for all its blocks, whichever run executed them.
    b
        The newer one; ``None``: the last run at *a* is compared with the one before it.
    fail_over
        Relative change from which on more of something is a regression: 0.1 is 10 %. ``None``: none is.
    smallest
        Smallest relative change that matters: with blocks enough any two runs differ by something.
    confidence
        Chance that all intervals of the comparison hold together.
    with_first
        Take also the first block of each worker, which pays for imports and caches.
    also
        Where more runs of the older program are recorded. With those in the histories at *a* they tell what whole runs
        differ by, which no single run does. Fewer than three in all: 1.5 % of times and 0.5 % of memory are assumed.
    fail_on
        Metrics of which more can be a regression; ``"steps"`` is all steps. ``None``: all but the overhead and the
        round trip, which depend on what else the driver's machine does; without the wall time the round trip counts.

    Returns
    -------
    Comparison
        Rows in the order of the tasks; tasks of one side only are in its notes.

    Raises
    ------
    ConfigurationError
        Nothing is recorded there, the run does not exist, or a number makes no sense.
    InvalidMetadataError
        A store is damaged.
    """
    for name, value, most in (("fail_over", fail_over, math.inf), ("smallest", smallest, 1.0)):
        if value is not None and not _number(name, value) >= 0 or value is not None and value >= most:
            raise ConfigurationError(f"{name}={value!r} is no relative change: 0.1 is 10 %")
    if not 0 < _number("confidence", confidence) < 1:
        raise ConfigurationError(f"confidence={confidence!r} is no probability: use one between 0 and 1")
    if fail_over is not None:
        smallest = min(smallest, fail_over)
    unknown = [name for name in fail_on or () if name not in METRICS and name != "steps"]
    if unknown:
        known = ", ".join(map(repr, [*METRICS, "steps"]))
        raise ConfigurationError(f"fail_on: there is no metric {unknown[0]!r}: use some of {known}")
    one = find(a)
    if b is None:
        if one.selected is not None:
            raise ConfigurationError(f"{one.text!r} is one run: name another one to compare it with")
        if len(one.run_ids) < 2:
            raise ConfigurationError(
                f"{one.text!r} holds {len(one.run_ids)} run{'s' * (len(one.run_ids) != 1)} that executed something, so "
                "its last one has none before it: name two places"
            )
        one, two = one.at(-2), one.at(-1)
    else:
        two = find(b)
    rules = _Rules(fail_over, smallest, confidence, with_first, None if fail_on is None else frozenset(fail_on))
    return _Sides(one, two, rules, [find(place) for place in also]).comparison()


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageTypeError(f"{name}={value!r} is a {type(value).__name__}: pass a number")
    return float(value)


@dataclass(frozen=True, slots=True)
class _Rules:
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


class _Sides:
    """Two places and how to compare them."""

    def __init__(self, a: Place, b: Place, rules: _Rules, also: Sequence[Place]) -> None:
        self._a, self._b, self._rules, self._also = a, b, rules, also
        self._refused: dict[str, str] = {}
        self._notes: dict[str, list[str]] = {}

    def comparison(self) -> Comparison:
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
        change = new / old - 1.0 if old > 0 else None
        interval = None if row.ratio is None else row.ratio.interval(error)
        low = high = None
        if row.ratio is None:  # one of them is 0, which nothing is a multiple of
            enough = min(row.a.n, row.b.n) >= FEWEST
            verdict = "same" if abs(new - old) <= row.least else "unclear" if not enough else "more"
            verdict = "less" if verdict == "more" and new < old else verdict
        elif interval is None:
            verdict = "unclear"
        else:
            low, high = interval[0] - 1.0, interval[1] - 1.0
            up = row.least / old
            down = up / (1.0 + up)
            verdict = "more" if low > up else "less" if high < -down else "unclear"
            if low >= -down and high <= up:
                verdict = "same"
        limit = self._rules.fail_over
        worse = row.gates and verdict == "more" and limit is not None and (change is None or change > limit)
        return Row(
            row.task, row.metric, _unit(row.metric), row.a, row.b, change, low, high, verdict, worse, row.method
        )


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
                f"{place.text!r} holds the task {task.task_id!r} twice, in {out[task.task_id].task.folder.name!r} and "
                f"{task.folder.name!r}: name one of them"
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
