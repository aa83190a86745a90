"""How far the time that is left is off while runs go on: Workspan against tqdm and rich, on recorded and made runs.

The runs are replayed under a clock of their own, so the figures do not depend on the machine. Both peers are their
own classes; where a run skips blocks they are told of them beforehand or see them pass, whichever is named. What is
compared is the mean absolute error over the run, at every picture on which the peer says something; where ours then
says nothing it counts as 0. Each row has the peer against which ours does worse.

Half of the better peer's error is asked for. It cannot be had everywhere: where blocks vary at random, or something
happens that nobody can know beforehand, the best possible estimate is not that much better. Such cases are shown all
the same.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from harness import Row, save

sys.path.insert(0, str(Path(__file__).parent / "eta"))
from cases import CASES
from replay import Score, replay
from runs import Recorded

from workspan.report.history import BlockSamples, by_size
from workspan.run.costs import Earlier, said

FOLDER = Path(__file__).parent / "eta"
TARGET = 0.5
MISSES = 10.0
"""Of a hundred pictures, those whose range may miss."""


def history(run: Recorded) -> Earlier:
    """Return what the product would keep of *run* for the next one."""
    samples = BlockSamples()
    for index, worker, begin, end in run.blocks:
        samples.add(index, end - begin, worker)

    def summary(rows: list[tuple[int, float]], blocks: int) -> tuple:
        return by_size([run.sizes[i] if run.sizes else 1.0 for i, _ in rows], [seconds for _, seconds in rows], blocks)

    found = said(summary(samples.later, samples.later_count), summary(samples.first, len(samples.first)))
    assert found is not None
    return found


def pairs(seeds: int) -> Iterator[tuple[str, Callable[[int], Recorded], int]]:
    """Yield the name of each case, what gives run and earlier run of it, and how many there are."""
    for path in sorted(FOLDER.glob("*_1.json")):
        name = path.stem.removesuffix("_1")
        yield f"recorded: {name}", lambda n, name=name: Recorded.load(FOLDER / f"{name}_{1 + n % 2}.json"), 2
    for name, make in CASES.items():
        yield name, lambda n, make=make: make(random.Random(n)), seeds


def score(run: Callable[[int], Recorded], count: int, *, with_history: bool, told: bool) -> Score:
    """Replay all runs of a case. The earlier run is another one, on a machine that was up to 10 % faster or slower."""
    whole = Score()
    for number in range(count):
        this, options = run(number), {}
        if with_history:
            known = history(run(number + (1 if count == 2 else 1000)))
            drift = random.Random(number).choice((0.9, 1.0, 1.1))
            options = {
                "predict": lambda size, known=known, drift=drift: drift * known.seconds(size),
                "spread": known.spread,
                "first_extra": known.first_extra,
                "stragglers": known.stragglers,
            }
        whole.add(replay(this, told=told, **options))
    return whole


def row(what: str, whole: Score) -> Row:
    """Compare with the peer that is the harder one to beat."""
    mean, median = statistics.fmean, statistics.median
    peer = max(whole.ours, key=lambda name: mean(whole.ours[name]) / mean(whole.peers[name]))
    ours, its = whole.ours[peer], whole.peers[peer]
    found = Row(f"{what} / {peer}", "s", mean(ours), mean(its), median(ours), median(its), TARGET)
    held = 100 * whole.held / max(whole.ranges, 1)
    wide, silent = 100 * mean(whole.wide or [0.0]), 100 * mean(whole.silent)
    print(
        f"{found.what}: ours {found.ours:.2f}, peer {found.peer:.2f} s, ratio {found.ratio:.2f}; range holds "
        f"{held:.0f} % of the time and is {wide:.0f} % of the run wide; silent {silent:.0f} %",
        flush=True,
    )
    return found


def main() -> None:
    """Replay, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6, help="runs of each made case")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    rows = []
    for with_history in (False, True):
        kind = "with history" if with_history else "without history"
        relative: dict[str, list[tuple[float, float]]] = {"tqdm": [], "rich": []}
        held = ranges = 0
        for name, run, count in pairs(arguments.seeds):
            if arguments.only not in name:
                continue
            for told in (False, True) if "skipped" in name else (False,):
                whole = score(run, count, with_history=with_history, told=told)
                what = f"{name}{' (peers told before)' if told else ''}, {kind}"
                rows.append(row(what, whole))
                for peer, found in relative.items():
                    found += [(a / b, 1.0) for a, b in zip(whole.ours[peer], whole.peers[peer], strict=True)]
                held, ranges = held + whole.held, ranges + whole.ranges
        peer = max(relative, key=lambda name: statistics.geometric_mean(a for a, _ in relative[name]))
        ratios = [a for a, _ in relative[peer]]
        mean, median = statistics.geometric_mean(ratios), statistics.median(ratios)
        overall = Row(
            f"all runs, ratio of errors, geometric mean / {peer}, {kind}",
            "%",
            100 * mean,
            100.0,
            100 * median,
            100.0,
            TARGET,
        )
        missed = 100 * (1 - held / ranges)
        misses = Row(f"pictures whose range misses / 10 %, {kind}", "%", missed, MISSES, missed, MISSES, 1.0)
        for found in (overall, misses):
            print(f"{found.what}: {found.ours:.1f} %", flush=True)
            rows.append(found)
    peers = ", ".join(f"{name} {version(name)}" for name in ("tqdm", "rich"))
    print(save("eta", peers, rows, arguments.out))


if __name__ == "__main__":
    main()
