"""The runs over which displays are compared: made ones, each with a few seeds, and recorded ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, inf, log, sqrt

import numpy as np
from oracle import SAMPLES, Law, lognormal
from runs import Recorded, line, made

from workspan.grid import Layout


def _noise(rng: random.Random, spread: float) -> float:
    """Return a lognormal factor with mean 1."""
    sigma = sqrt(log(1.0 + spread * spread))
    return exp(rng.gauss(0.0, sigma) - sigma * sigma / 2.0)


def _made(blocks: int, workers: int, spread: float, means: list[float] | None = None, **options) -> Recorded:
    """Make a run of blocks in a row, and its law."""
    rng = options.pop("rng")
    means = means or [1.0] * blocks
    run = made(line(blocks), workers, lambda index, nth: means[index] * _noise(rng, spread), **options)
    run.law = Law(np.array(means), lognormal(spread))
    return run


def steady(rng: random.Random) -> Recorded:
    return _made(600, 4, 0.05, rng=rng)


def resumed(rng: random.Random) -> Recorded:
    return _made(6000, 4, 0.2, rng=rng, skipped=5400)


def growing(rng: random.Random) -> Recorded:
    return _made(300, 4, 0.1, [0.3 + index / 100.0 for index in range(300)], rng=rng)


def growing_known(rng: random.Random) -> Recorded:
    sizes = [0.3 + index / 100.0 for index in range(300)]
    return _made(300, 4, 0.1, sizes, rng=rng, sizes=sizes)


def straggler(rng: random.Random) -> Recorded:
    slow = rng.randrange(200, 580)

    def means(chance: np.random.Generator, begun: np.ndarray, told: bool) -> np.ndarray:
        out = np.ones((SAMPLES, 600))
        if begun[slow]:
            out[:, slow] = 60.0
        elif told:
            places = np.arange(200, 580)
            out[np.arange(SAMPLES), chance.choice(places[~begun[200:580]], SAMPLES)] = 60.0
        return out

    run = made(line(600), 4, lambda index, nth: 60.0 if index == slow else _noise(rng, 0.2))
    run.law = Law(means, lognormal(0.2), exact=slow)
    return run


def straggler_known(rng: random.Random) -> Recorded:
    slow = rng.randrange(200, 580)
    sizes = [60.0 if index == slow else 1.0 for index in range(600)]
    return _made(600, 4, 0.2, sizes, rng=rng, sizes=sizes)


def slow_first(rng: random.Random) -> Recorded:
    run = made(line(300), 2, lambda index, nth: (10.0 if nth == 0 else 1.0) * _noise(rng, 0.1))
    run.law = Law(np.ones(300), lognormal(0.1), first=10.0)
    return run


def two_levels(rng: random.Random) -> Recorded:
    layout = Layout((0,), (602,), (-1,), (3,), (0,), (1,), read_write_conflict=True)
    run = made(layout, 4, lambda index, nth: _noise(rng, 0.2))
    run.law = Law(np.ones(layout.num_blocks), lognormal(0.2), layout=layout)
    return run


def crowded(rng: random.Random) -> Recorded:
    """Levels with fewer blocks than there are workers."""
    layout = Layout((0, 0), (26, 26), (-1, -1), (3, 3), (0, 0), (1, 1), read_write_conflict=True)
    run = made(layout, 16, lambda index, nth: 5.0 * _noise(rng, 0.2))
    run.law = Law(np.full(layout.num_blocks, 5.0), lognormal(0.2), layout=layout)
    return run


def noisy(rng: random.Random) -> Recorded:
    return _made(600, 4, 1.0, rng=rng)


def long_blocks(rng: random.Random) -> Recorded:
    return _made(40, 4, 0.1, [60.0] * 40, rng=rng)


def slower(rng: random.Random) -> Recorded:
    change = rng.randrange(150, 300)

    def means(chance: np.random.Generator, begun: np.ndarray, told: bool) -> np.ndarray:
        places = np.arange(500)
        if begun[change]:
            at = np.full(SAMPLES, change)
        elif told:
            at = chance.integers(max(150, begun.sum()), 300, SAMPLES)
        else:
            at = np.full(SAMPLES, 500)
        return np.where(places < at[:, None], 1.0, 2.5)

    run = made(line(500), 4, lambda index, nth: (1.0 if index < change else 2.5) * _noise(rng, 0.1))
    run.law = Law(means, lognormal(0.1))
    return run


def fewer_workers(rng: random.Random) -> Recorded:
    run = _made(600, 8, 0.2, [2.0] * 600, rng=rng, dies=lambda worker, now: worker < 4 and now > 50.0)
    run.law.leaves = lambda worker: 50.0 if worker < 4 else inf
    return run


def short_blocks(rng: random.Random) -> Recorded:
    return _made(50_000, 4, 0.5, [0.01] * 50_000, rng=rng, start_up=lambda worker: 0.6)


def recorded_law(name: str, run: Recorded) -> Law:
    """Return the law of a recorded run, as fitted to that very run: kinder than any real knowledge of it."""
    first: dict[int, tuple[int, float]] = {}
    later = []
    for index, worker, begin, end in sorted(run.blocks, key=lambda block: block[2]):
        if worker in first:
            later.append((index, end - begin))
        else:
            first[worker] = (index, end - begin)
    places, seconds = np.array([place for place, _ in later]), np.array([each for _, each in later])
    sizes = np.array(run.sizes or [1.0] * run.total)
    if name == "growing":  # along the region
        means = np.polyval(np.polyfit(places, seconds, 1), np.arange(run.total))
    elif run.sizes:
        means = sizes * (seconds.sum() / sizes[places].sum())
    else:
        means = np.full(run.total, seconds.mean())
    means = np.maximum(means, 0.1 * means.mean())
    warm = float(np.mean([each / means[place] for place, each in first.values()]))
    return Law(means, np.sort(seconds / means[places]), first=warm)


CASES: dict[str, Callable[[random.Random], Recorded]] = {
    "steady": steady,
    "resumed, 90 % skipped": resumed,
    "growing blocks": growing,
    "growing blocks of known size": growing_known,
    "one straggler": straggler,
    "one straggler of known size": straggler_known,
    "slow first block": slow_first,
    "two levels": two_levels,
    "small levels": crowded,
    "noisy blocks": noisy,
    "long blocks": long_blocks,
    "pace changes once": slower,
    "half of the workers die": fewer_workers,
    "short blocks": short_blocks,
}
