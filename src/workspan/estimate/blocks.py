"""What the blocks of a task will take: learned from the blocks of earlier runs, with their spread.

A block's time is a curve over its size, times what it missed the curve by (stragglers are the far end of those misses),
times how fast its run was as a whole, since a machine is not every day the same. The first block of a worker has a
warm-up on top: imports, caches, compilation. Each of the four is taken from what was measured, none is assumed to be
normal; only how much runs differ from each other needs a guess while there are few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.estimate.estimator import INTERVAL_FROM, Estimator
from workspan.estimate.prediction import Prediction

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.ArrayLike

__all__ = ["NO_DATA", "BlockTimes"]

NO_DATA = "default, no data"
"""Basis of an answer without a measurement."""

MOST_GROUPS = 12  # of sizes, for the curve and for the misses
MOST_PAIRS = 48  # measurements that the curve is fitted to: each is the median of a run's blocks of about one size
OWN_MISSES = 40  # blocks of a size from which on its misses are taken from blocks of that size alone
MOST_MISSES = 2048  # kept of each distribution, evenly over its quantiles
LEAST_SECONDS = 1e-9
LEAST_SHARE = 0.3  # of the mean that a median must have to be used

RUN_SPREAD = 0.05  # log; by how much runs are taken to differ before they have shown it
RUN_PRIOR = 3.0  # and how many runs that guess counts
RUN_FADES = 0.75  # weight of a run against the one after it
EXTRAPOLATES = 0.2  # by how much the growth with the size, as an exponent, may be another than beside measured sizes
WORKERS_APART = 0.4  # log2 of the number of workers at which runs stop to resemble each other


class BlockTimes:
    """Times of the blocks of one task, as a distribution for each size.

    Made by :meth:`fit`; not changed afterwards, and safe to use from several threads.

    Examples
    --------
    >>> times = BlockTimes.fit([1000, 1000, 2000, 2000], [0.1, 0.1, 0.2, 0.2])
    >>> round(times.predict(2000).value, 3), times.basis
    (0.2, '4 blocks of 1 run')
    >>> BlockTimes.fit([], []).predict(1e9).basis
    'default, no data'
    """

    def __init__(self) -> None:
        self.count = 0
        """Blocks that were learned from."""
        self.runs = 0
        """Runs that they are of."""
        self.warm_up_seconds = 0.0
        """What the first block of a worker takes longer, on the average."""
        self.level = 0.9
        """Share of blocks that the intervals of :meth:`predict` hold."""
        self._estimator = Estimator("O_N")
        self._edges: Floats = np.empty(0)
        self._known = 1.0, 1.0
        self._misses: list[Floats] = []
        self._means: Floats = np.ones(1)
        self._extras: Floats = np.empty(0)
        self._run_numbers: Any = np.empty(0, int)
        self._run_logs: Floats = np.empty(0)
        self._run_errors: Floats = np.empty(0)
        self._run_workers: Floats = np.empty(0)

    @classmethod
    def fit(
        cls,
        sizes: Numbers,
        seconds: Numbers,
        *,
        first: Numbers | None = None,
        runs: Numbers | None = None,
        workers: Sequence[float] | None = None,
        weights: Numbers | None = None,
        order: Any = "O_N",
        level: float = 0.9,
    ) -> BlockTimes:
        """Learn from measured blocks.

        Parameters
        ----------
        sizes
            N_ref of each block, shape (blocks,); above 0. Where none is known pass 1 for all.
        seconds
            What each block took, shape (blocks,). Rows that are not finite, or negative, are left out.
        first
            Whether it was the first block of its worker, shape (blocks,); default: none was.
        runs
            Number of the run of each block, shape (blocks,), growing with time from 0; default: all of one run.
        workers
            How many workers each run had, one entry a run.
        weights
            For how many blocks each row stands; default 1.
        order
            How the time is expected to grow with the size; measurements override it.
        level
            Share of blocks that the interval of :meth:`predict` is to hold.
        """
        made = cls()
        made.level = level
        made._estimator = Estimator(order, level=level, max_measurements=MOST_PAIRS)
        n, t = np.asarray(sizes, float).reshape(-1), np.asarray(seconds, float).reshape(-1)
        count = len(t)
        n = np.broadcast_to(n, count) if n.size == 1 else n
        is_first = np.zeros(count, bool) if first is None else np.asarray(first, bool).reshape(-1)
        run = np.zeros(count, int) if runs is None else np.asarray(runs, int).reshape(-1)
        weight = np.ones(count) if weights is None else np.asarray(weights, float).reshape(-1)
        good = np.isfinite(n) & (n > 0) & np.isfinite(t) & (t >= 0) & (weight > 0)
        n, t, is_first, run, weight = n[good], t[good], is_first[good], run[good], weight[good]
        if not len(t):
            return made
        made.count = round(float(weight.sum()))
        made.runs = len(np.unique(run))
        later = ~is_first
        if not later.any():  # workers that did one block each: nothing tells a warm-up from a block
            later = np.ones(len(t), bool)
            is_first = ~later
        made._learn(n[later], t[later], run[later], weight[later], workers)
        if is_first.any():
            made._learn_warm_up(n[is_first], t[is_first], run[is_first], weight[is_first])
        return made

    # -- learning ------------------------------------------------------------------------------------------------

    def _learn(self, n: Floats, t: Floats, run: Any, weight: Floats, workers: Sequence[float] | None) -> None:
        known = np.unique(n)
        if len(known) > MOST_GROUPS:
            cuts = np.unique(np.quantile(n, np.linspace(0, 1, MOST_GROUPS + 1)[1:-1]))
        else:
            cuts = np.sqrt(known[:-1] * known[1:])
        self._edges = cuts
        self._known = float(known[0]), float(known[-1])
        group = np.searchsorted(cuts, n)
        pairs = []
        groups, numbers = np.unique(group), np.unique(run)
        latest = numbers[-max(1, MOST_PAIRS // len(groups)) :]
        for number in groups:
            for at in latest:
                part = (group == number) & (run == at)
                if not part.any():
                    continue
                middle = float(_quantiles(t[part], weight[part], np.array([0.5]))[0])
                # Of blocks that are granted ahead most return at once with another one: their median says nothing.
                mean = float((t[part] * weight[part]).sum() / weight[part].sum())
                pairs.append((float(at), float(np.median(n[part])), max(middle, LEAST_SHARE * mean)))
        pairs.sort(key=lambda pair: pair[0])  # in time, as the estimator trusts the latest ones most
        self._estimator.fit([(size, max(seconds, LEAST_SECONDS)) for _, size, seconds in pairs])
        miss = np.maximum(t, LEAST_SECONDS) / self._curve(n)
        self._learn_runs(miss, run, weight, weight * self._curve(n), workers)
        miss = miss / np.exp(self._run_logs)[np.searchsorted(self._run_numbers, run)]
        whole = _thinned(miss, weight)
        self._misses, means = [], []
        for number in range(len(cuts) + 1):
            own = group == number
            pool = _thinned(miss[own], weight[own]) if weight[own].sum() >= OWN_MISSES else whole
            self._misses.append(pool)
            means.append(pool.mean())
        self._means = np.array(means)

    def _learn_runs(
        self, miss: Floats, run: Any, weight: Floats, share: Floats, workers: Sequence[float] | None
    ) -> None:
        """Find by what factor the blocks of each run missed those of all."""
        numbers = np.unique(run)
        self._run_numbers = numbers
        usual = float((miss * share).sum() / share.sum())
        logs, errors = [], []
        for number in numbers:
            own = run == number
            mean = float((miss[own] * share[own]).sum() / share[own].sum())
            logs.append(log(mean / usual))
            square = float((miss[own] ** 2 * weight[own]).sum() / weight[own].sum())
            plain = float((miss[own] * weight[own]).sum() / weight[own].sum())
            errors.append(max(0.0, square / plain**2 - 1.0) / float(weight[own].sum()))
        self._run_logs, self._run_errors = np.array(logs), np.array(errors)
        given = [float(workers[number]) if workers is not None else 1.0 for number in numbers]
        self._run_workers = np.maximum(np.array(given), 1.0)

    def _learn_warm_up(self, n: Floats, t: Floats, run: Any, weight: Floats) -> None:
        at = np.clip(np.searchsorted(self._run_numbers, run), 0, len(self._run_logs) - 1)
        usual = self._curve(n) * self._means[self._group(n)] * np.exp(self._run_logs[at])
        extras = _thinned(t - usual, weight)
        mean = float(extras.mean())
        error = float(extras.std()) / sqrt(len(extras))
        if mean > 0 and mean > error:
            self._extras, self.warm_up_seconds = extras, mean

    # -- answering -----------------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """Where answers come from: ``"model"``, or ``"default"`` without a measurement."""
        return self._estimator.source

    @property
    def basis(self) -> str:
        """What was learned from, for people: ``"412 blocks of 3 runs"``."""
        if not self.count:
            return NO_DATA
        return f"{self.count:,} block{'s' * (self.count != 1)} of {self.runs:,} run{'s' * (self.runs != 1)}"

    def predict(self, N: float, *, workers: int | None = None) -> Prediction:
        """Say what a block of size *N* takes that is not the first one of its worker.

        ``value`` is the mean, so that the sum over blocks is right; ``low`` and ``high`` hold the share
        :attr:`level` of single blocks; both are ``None`` below 5 measurements. Without any the source is
        ``"default"``. Never raises; a size that cannot be used has no estimate.
        """
        found = self._estimator.predict(N)
        if found.value is None or not self.count:
            return found._replace(basis=NO_DATA) if found.value is not None else found
        middle, width, _ = self._run(workers)
        if self.count < INTERVAL_FROM:
            mean = float(self._means[int(np.searchsorted(self._edges, N))])
            return Prediction(found.value * mean * exp(middle), None, None, "model", self.basis)
        width = hypot(width, EXTRAPOLATES * float(self.beyond(N)))
        group = int(np.searchsorted(self._edges, N))
        pool, mean = self._misses[group], float(self._means[group])
        tail = (1 - self.level) / 2
        low, high = np.quantile(pool, (tail, 1 - tail)) / mean
        value = found.value * mean * exp(middle)
        z = 1.645 * width
        return Prediction(
            value,
            value * exp(-sqrt(log(max(min(low, 1.0), LEAST_SECONDS)) ** 2 + z * z)),
            value * exp(sqrt(log(max(high, 1.0)) ** 2 + z * z)),
            "model",
            self.basis,
        )

    def expected(self, sizes: Numbers, *, workers: int | None = None) -> Floats:
        """Return the mean time of blocks of these sizes, in seconds, in the shape of *sizes*; NaN where not known."""
        n = np.asarray(sizes, float)
        if not self.count:
            return np.full(n.shape, np.nan)
        return np.asarray(self._curve(n) * self._means[self._group(n)] * exp(self._run(workers)[0]))

    def sample(
        self,
        rng: np.random.Generator,
        sizes: Numbers,
        *,
        first: Numbers | None = None,
        workers: int | None = None,
    ) -> Floats:
        """Draw a time for each block, in seconds, shape (blocks,): what a run like the earlier ones may bring.

        Parameters
        ----------
        rng
            Source of chance.
        sizes
            N_ref of each block, shape (blocks,).
        first
            Where a warm-up is added, shape (blocks,).
        workers
            How many workers the run has.

        Notes
        -----
        All blocks are of one run of usual speed: multiply by :meth:`run_factors` for runs that are faster or slower.
        """
        n = np.asarray(sizes, float).reshape(-1)
        if not self.count:
            return np.full(n.shape, np.nan)
        out = self._curve(n) * exp(self._run(workers)[0])
        group = self._group(n)
        for number in np.unique(group):
            here = group == number
            out[here] *= rng.choice(self._misses[number], int(here.sum()))
        if first is not None:
            here = np.asarray(first, bool).reshape(-1)
            out[here] += self.sample_warm_up(rng, int(here.sum()))
        return np.maximum(out, LEAST_SECONDS)

    def sample_warm_up(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw what the first block of each of *count* workers takes longer, in seconds; may be below 0."""
        if not len(self._extras):
            return np.zeros(count)
        return rng.choice(self._extras, count)

    def run_factors(
        self, rng: np.random.Generator, count: int, *, workers: int | None = None, beyond: float = 0.0
    ) -> Floats:
        """Draw how much slower than expected *count* runs are as a whole, as factors around 1.

        *beyond*: how far their blocks are outside of the sizes that were measured, as :meth:`beyond` says.
        """
        _, width, freedom = self._run(workers)
        logs = np.clip(width * rng.standard_t(freedom, count), -1.5, 1.5)
        return np.exp(logs + (EXTRAPOLATES * beyond * rng.standard_normal(count) if beyond else 0.0))

    @property
    def largest(self) -> float:
        """The largest size that was measured; 1 without a measurement."""
        return self._known[1]

    def beyond(self, sizes: Numbers) -> Floats:
        """Return how far *sizes* are outside of those that were measured, in logarithms; 0: they are within."""
        n, (low, high) = np.asarray(sizes, float), self._known
        return np.maximum(0.0, np.maximum(np.log(n / high), np.log(low / n)))

    # -- inside --------------------------------------------------------------------------------------------------

    def _group(self, n: Floats) -> Any:
        return np.searchsorted(self._edges, n)

    def _curve(self, n: Floats) -> Floats:
        """Return the curve at sizes of any shape, in seconds."""
        known, back = np.unique(n, return_inverse=True)
        if len(known) > 512:  # the curve is smooth
            nodes = np.geomspace(known[0], known[-1], 256)
            logs = np.log([self._at(size) for size in nodes.tolist()])
            values = np.exp(np.interp(np.log(known), np.log(nodes), logs))
        else:
            values = np.array([self._at(size) for size in known.tolist()])
        return values[back].reshape(n.shape)

    def _at(self, size: float) -> float:
        value = self._estimator.predict(size).value
        return LEAST_SECONDS if value is None else max(value, LEAST_SECONDS)

    def _run(self, workers: int | None) -> tuple[float, float, float]:
        """Return the logarithm of the factor expected of the next run, its spread, and the degrees of freedom of it."""
        count = len(self._run_logs)
        if not count:
            return 0.0, RUN_SPREAD * sqrt(2.0), RUN_PRIOR
        ages = np.arange(count)[::-1]
        like = RUN_FADES**ages
        apart = 0.0
        if workers is not None:
            gap = np.abs(np.log2(max(workers, 1) / self._run_workers))
            apart = float(gap.min())
            like = like * np.exp(-(gap - apart) / WORKERS_APART)
        weight = like / (RUN_SPREAD**2 + self._run_errors)
        middle = float((weight * self._run_logs).sum() / weight.sum())
        counted = float(weight.sum() ** 2 / (weight**2).sum())
        off = float((like * np.maximum((self._run_logs - middle) ** 2 - self._run_errors, 0.0)).sum() / like.sum())
        freedom = RUN_PRIOR + counted - 1.0
        variance = (RUN_PRIOR * RUN_SPREAD**2 + counted * off) / (RUN_PRIOR + counted - 1.0)
        error = float((weight**2 * self._run_errors).sum() / weight.sum() ** 2)
        # runs with another number of workers say less: they share caches, memory and disks differently
        return middle, sqrt(variance * (1.0 + 1.0 / counted) + error + (0.08 * apart) ** 2), freedom


def _quantiles(values: Floats, weights: Floats, at: Floats) -> Floats:
    """Return weighted quantiles, each one of the values."""
    order = np.argsort(values, kind="stable")
    grown = np.cumsum(weights[order])
    return np.asarray(values[order][np.minimum(np.searchsorted(grown, at * grown[-1]), len(values) - 1)])


def _thinned(values: Floats, weights: Floats) -> Floats:
    """Return at most :data:`MOST_MISSES` values that are distributed as *values* and have their mean."""
    if len(values) <= MOST_MISSES and weights.min() == weights.max():
        return np.sort(values)
    count = int(min(MOST_MISSES, max(float(weights.sum()), 1.0)))
    found = _quantiles(values, weights, (np.arange(count) + 0.5) / count)
    mean = float((values * weights).sum() / weights.sum())
    return np.asarray(found + (mean - found.mean()))
