"""How far the time that is left is off while runs go on: Workspan against tqdm and rich, on recorded and made runs.

The runs are replayed under a clock of their own, so the figures do not depend on the machine. Both peers are their
own classes; where a run skips blocks they are told of them beforehand or see them pass, whichever is named. What is
compared is the mean absolute error over the run, at every picture on which the peer says something; where ours then
says nothing it counts as 0. Each row has the peer against which ours does worse.

Half of the better peer's error is asked for. It cannot be had everywhere: where blocks vary at random, or something
happens that nobody can know beforehand, no estimate is that much better. So beside each case stands what the best
possible one reaches (``eta/oracle.py``); and what ours reaches on runs from other random seeds than those with which it
was developed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from harness import Row, save

sys.path.insert(0, str(Path(__file__).parent / "eta"))
from cases import CASES, recorded_law
from replay import Score, replay
from runs import Recorded

from workspan.report.history import BlockSamples, by_place, by_size
from workspan.run.costs import Earlier, said

FOLDER = Path(__file__).parent / "eta"
TARGET = 0.5
MISSES = 10.0
"""Of a hundred pictures, those whose range may miss."""
AGAIN = 5000
"""First random seed of the runs with which nothing was developed."""


def history(run: Recorded) -> Earlier:
    """Return what the product would keep of *run* for the next one."""
    samples = BlockSamples()
    for index, worker, begin, end in run.blocks:
        samples.add(index, end - begin, worker)

    def summary(rows: list[tuple[int, float]], blocks: int) -> tuple:
        return by_size([run.sizes[i] if run.sizes else 1.0 for i, _ in rows], [seconds for _, seconds in rows], blocks)

    places = ()
    if not (run.sizes or run.levels or run.skipped):
        places = by_place([i for i, _ in samples.later], [seconds for _, seconds in samples.later], run.total)
    found = said(summary(samples.later, samples.later_count), summary(samples.first, len(samples.first)), places)
    assert found is not None
    return found


def recorded(name: str, number: int) -> Recorded:
    """Return a recorded run, with its law."""
    run = Recorded.load(FOLDER / f"{name}_{number}.json")
    run.law = recorded_law(name, run)
    return run


def cases() -> Iterator[tuple[str, Callable[[int], Recorded], bool]]:
    """Yield the name of each case, what gives a run of it by number, and whether there are as many as one likes."""
    for path in sorted(FOLDER.glob("*_1.json")):
        name = path.stem.removesuffix("_1")
        yield f"recorded: {name}", lambda n, name=name: recorded(name, 1 + n % 2), False
    for name, make in CASES.items():
        yield name, lambda n, make=make: make(random.Random(n)), True


def score(
    run: Callable[[int], Recorded], numbers: Iterable[int], earlier: int, *, with_history: bool, told: bool, best: bool
) -> Score:
    """Replay runs of a case. The earlier one is another one, on a machine that was up to 10 % faster or slower."""
    whole = Score()
    for number in numbers:
        this, options = run(number), {}
        this.law = this.law if best else None
        if with_history:
            known = history(run(number + earlier))
            drift = random.Random(number).choice((0.9, 1.0, 1.1))
            options = {
                "predict": lambda size, known=known, drift=drift: drift * known.seconds(size),
                "spread": known.spread,
                "first_extra": known.first_extra,
                "stragglers": known.stragglers,
                "places": known.places,
                "drift": drift,
            }
        whole.add(replay(this, told=told, **options))
    return whole


def hardest(whole: Score) -> str:
    """Return the peer that is the harder one to beat."""
    mean = statistics.fmean
    return max(whole.ours, key=lambda name: mean(whole.ours[name]) / mean(whole.peers[name]))


def row(what: str, whole: Score, again: Score | None) -> Row:
    """Compare with the peer that is the harder one to beat."""
    mean, median = statistics.fmean, statistics.median
    peer = hardest(whole)
    ours, its = whole.ours[peer], whole.peers[peer]
    best = sum(whole.best[peer]) / sum(whole.best_peers[peer]) if peer in whole.best else None
    once_more = None if again is None else mean(again.ours[peer]) / mean(again.peers[peer])
    found = Row(f"{what} / {peer}", "s", mean(ours), mean(its), median(ours), median(its), TARGET, best, once_more)
    held = 100 * whole.held / max(whole.ranges, 1)
    wide, silent = 100 * mean(whole.wide or [0.0]), 100 * mean(whole.silent)
    print(
        f"{found.what}: ours {found.ours:.2f}, peer {found.peer:.2f} s, ratio {found.ratio:.2f}"
        f"{'' if once_more is None else f', again {once_more:.2f}'}"
        f"{'' if best is None else f', best possible {best:.2f}'}; range holds "
        f"{held:.0f} % of the time and is {wide:.0f} % of the run wide; silent {silent:.0f} %",
        flush=True,
    )
    return found


def overall(kind: str, scores: list[Score]) -> list[Row]:
    """Return what holds of all cases together."""
    rows = []
    found = {
        peer: [a / b for score in scores for a, b in zip(score.ours[peer], score.peers[peer], strict=True)]
        for peer in ("tqdm", "rich")
    }
    peer = max(found, key=lambda name: statistics.geometric_mean(found[name]))
    mean, median = 100 * statistics.geometric_mean(found[peer]), 100 * statistics.median(found[peer])
    what = f"all runs, ratio of errors, geometric mean / {peer}, {kind}"
    rows.append(Row(what, "%", mean, 100.0, median, 100.0, TARGET))
    missed = 100 * (1 - sum(score.held for score in scores) / sum(score.ranges for score in scores))
    rows.append(Row(f"pictures whose range misses / 10 %, {kind}", "%", missed, MISSES, missed, MISSES, 1.0))
    for row in rows:
        print(f"{row.what}: {row.ours:.1f} %", flush=True)
    return rows


def main() -> None:
    """Replay, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6, help="runs of each made case")
    parser.add_argument("--quick", action="store_true", help="neither the best possible nor other numbers")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    rows = []
    for with_history in (False, True):
        kind = "with history" if with_history else "without history"
        scores: dict[bool, list[Score]] = {False: [], True: []}
        for name, run, is_made in cases():
            if arguments.only not in name:
                continue
            for told in (False, True) if "skipped" in name else (False,):
                what = f"{name}{' (peers told before)' if told else ''}, {kind}"
                found = {}
                for again in (False, True) if is_made and not arguments.quick else (False,):
                    numbers = range(AGAIN * again, AGAIN * again + arguments.seeds) if is_made else range(2)
                    earlier = 1000 if is_made else 1
                    found[again] = score(
                        run,
                        numbers,
                        earlier,
                        with_history=with_history,
                        told=told,
                        best=not again and not arguments.quick,
                    )
                    scores[again].append(found[again])
                rows.append(row(what, found[False], found.get(True)))
        rows += overall(kind, scores[False])
        if scores[True]:
            rows += overall(f"{kind}, other numbers", scores[True])
    peers = ", ".join(f"{name} {version(name)}" for name in ("tqdm", "rich"))
    print(save("eta", peers, rows, arguments.out))


if __name__ == "__main__":
    main()
