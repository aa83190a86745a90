"""The runs over which displays are compared: made ones, each with a few seeds, and recorded ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, log, sqrt

from runs import Recorded, line, made

from workspan.grid import Layout


def _noise(rng: random.Random, spread: float) -> float:
    """Return a lognormal factor with mean 1."""
    sigma = sqrt(log(1.0 + spread * spread))
    return exp(rng.gauss(0.0, sigma) - sigma * sigma / 2.0)


def steady(rng: random.Random) -> Recorded:
    return made(line(600), 4, lambda index, nth: _noise(rng, 0.05))


def resumed(rng: random.Random) -> Recorded:
    return made(line(6000), 4, lambda index, nth: _noise(rng, 0.2), skipped=5400)


def growing(rng: random.Random) -> Recorded:
    return made(line(300), 4, lambda index, nth: (0.3 + index / 100.0) * _noise(rng, 0.1))


def growing_known(rng: random.Random) -> Recorded:
    sizes = [0.3 + index / 100.0 for index in range(300)]
    return made(line(300), 4, lambda index, nth: sizes[index] * _noise(rng, 0.1), sizes=sizes)


def straggler(rng: random.Random) -> Recorded:
    slow = rng.randrange(200, 580)
    return made(line(600), 4, lambda index, nth: 60.0 if index == slow else _noise(rng, 0.2))


def straggler_known(rng: random.Random) -> Recorded:
    slow = rng.randrange(200, 580)
    sizes = [60.0 if index == slow else 1.0 for index in range(600)]
    return made(line(600), 4, lambda index, nth: sizes[index] * _noise(rng, 0.2), sizes=sizes)


def slow_first(rng: random.Random) -> Recorded:
    return made(line(300), 2, lambda index, nth: (10.0 if nth == 0 else 1.0) * _noise(rng, 0.1))


def two_levels(rng: random.Random) -> Recorded:
    layout = Layout((0,), (602,), (-1,), (3,), (0,), (1,), read_write_conflict=True)
    return made(layout, 4, lambda index, nth: _noise(rng, 0.2))


def crowded(rng: random.Random) -> Recorded:
    """Levels with fewer blocks than there are workers."""
    layout = Layout((0, 0), (26, 26), (-1, -1), (3, 3), (0, 0), (1, 1), read_write_conflict=True)
    return made(layout, 16, lambda index, nth: 5.0 * _noise(rng, 0.2))


def noisy(rng: random.Random) -> Recorded:
    return made(line(600), 4, lambda index, nth: _noise(rng, 1.0))


def long_blocks(rng: random.Random) -> Recorded:
    return made(line(40), 4, lambda index, nth: 60.0 * _noise(rng, 0.1))


def slower(rng: random.Random) -> Recorded:
    at = rng.randrange(150, 300)
    return made(line(500), 4, lambda index, nth: (1.0 if index < at else 2.5) * _noise(rng, 0.1))


def fewer_workers(rng: random.Random) -> Recorded:
    return made(
        line(600), 8, lambda index, nth: 2.0 * _noise(rng, 0.2), dies=lambda worker, now: worker < 4 and now > 50.0
    )


def short_blocks(rng: random.Random) -> Recorded:
    return made(line(50_000), 4, lambda index, nth: 0.01 * _noise(rng, 0.5), start_up=lambda worker: 0.6)


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
