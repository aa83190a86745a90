"""How well run times are estimated: Workspan against the best of seven simple methods on recorded series; its cost.

More figures, by source, with few measurements, in ascending order and with a wrong order: ``estimator/replay.py``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness import Row, compare, save

sys.path.insert(0, str(Path(__file__).parent / "estimator"))
from methods import METHODS
from replay import MODES, SERIES, figures, load, replay

from workspan.estimate.estimator import Estimator

PEERS = [name for name in METHODS if not name.startswith("Workspan")]
LIMIT = 0.95  # of the best peer's error; it is chosen for each figure in hindsight


def errors(folder: Path, stride: int) -> list[Row]:
    """Compare the errors; the replay is deterministic, so that one round is enough."""
    all_series = load(folder)
    rows = []
    for mode in MODES:
        found = {name: figures(replay(all_series, METHODS[name], mode, stride)) for name in METHODS}
        for what in ("MdAPE", "P90", "bad"):
            mine = found["Workspan"][what]
            peer = min(found[name][what] for name in PEERS)
            if what == "bad":  # few events: the peer is what the description asks for
                peer = found["interpolating spline"][what]
            row = Row(f"{what}, {mode}", "%", mine, peer, mine, peer, LIMIT)
            print(f"{row.what}: ours {mine:.1f}, peer {peer:.1f} %", flush=True)
            rows.append(row)
    return rows


def costs(rounds: int) -> list[Row]:
    """Compare the time of a fit and of an estimate with what they may take."""
    rng = random.Random(2)
    data = [(10 ** rng.uniform(3, 9), 10 ** rng.uniform(-2, 3)) for _ in range(50)]
    estimator = Estimator("O_N").fit(data)
    fresh = iter(range(10**9))

    def of(act: Callable[[], object], times: int, scale: float) -> Callable[[], float]:
        def measure() -> float:
            begin = time.perf_counter()
            for _ in range(times):
                act()
            return (time.perf_counter() - begin) / times * scale

        return measure

    fit = of(lambda: estimator.fit(data), 3, 1e3)
    known = of(lambda: estimator.predict(5e5), 10_000, 1e6)
    new = of(lambda: estimator.predict(5e5 + next(fresh)), 10_000, 1e6)
    return [
        compare("fit 50 measurements", fit, lambda: 10.0, unit="ms", rounds=rounds, target=1.0),
        compare("estimate at a size asked before", known, lambda: 2.0, unit="us", rounds=rounds, target=1.0),
        compare("estimate at a new size", new, lambda: 2.0, unit="us", rounds=rounds, target=1.0),
    ]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SERIES, help="folder of series; by default those recorded here")
    parser.add_argument("--stride", type=int, default=1, help="predict one measurement in this many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    rows = errors(arguments.data, arguments.stride) + costs(arguments.rounds)
    print(save("estimator", "best of seven simple methods, or the limit", rows, arguments.out))


if __name__ == "__main__":
    main()
