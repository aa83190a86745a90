"""What timing every step of a chain costs: Workspan against the step timer of Ray Data, identity generators.

Where Ray is not installed the rows that need it are left out, and the chain is compared with untimed generators only.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import Row, compare, save

from workspan import Phase, Step, TransformClock
from workspan.measure import timers


def identity(items: Iterable[Any]) -> Iterator[Any]:
    """Hand each item on."""
    return (item for item in items)


def seconds(make: Callable[[], Iterable[Any]]) -> float:
    """Run a chain to its end and return how long that took."""
    running = iter(make())
    begin = time.perf_counter()
    deque(running, maxlen=0)
    return time.perf_counter() - begin


def untimed(applies: list[Any], items: Iterable[Any]) -> Iterable[Any]:
    """Compose the steps without a clock."""
    for apply in applies:
        items = apply(items)
    return items


def ours(applies: list[Any], items: Iterable[Any], clock: type[TransformClock] = TransformClock) -> Iterable[Any]:
    """Chain the steps with Workspan's clock."""
    steps = [Step(f"{stage} body", Phase.FUNCTION_BODY, stage, apply) for stage, apply in enumerate(applies)]
    chain: Iterable[Any] = clock().chain(steps, items)
    return chain


def rays(library: ModuleType, applies: list[Any], items: Iterable[Any]) -> Iterable[Any]:
    """Chain the steps with Ray's clock."""
    phase = next(iter(library.MapTransformPhase))
    steps = [
        library.Step(label=f"{stage} body", bucket=phase, stage_idx=stage, apply=apply)
        for stage, apply in enumerate(applies)
    ]
    chain: Iterable[Any] = library.TransformClock().chain(steps, items)
    return chain


def load_ray() -> ModuleType | None:
    """Return Ray's module of map transforms, or ``None``."""
    try:
        return importlib.import_module("ray.data._internal.execution.operators.map_transformer")
    except ImportError:
        return None


def twin() -> type[TransformClock]:
    """Return the clock over the pure-Python timer."""
    module = importlib.import_module("workspan.measure._timers_py")
    return type("Twin", (TransformClock,), {"__slots__": (), "_timers": module})


def added(chain: Callable[[list[Any], Iterable[Any]], Iterable[Any]], n: int, items: int) -> float:
    """Return what timing adds per step and item, in ns, beside the same chain untimed in the same moment."""
    applies = [identity] * n
    plain = min(seconds(lambda: untimed(applies, repeat(None, items))) for _ in range(2))
    timed = min(seconds(lambda: chain(applies, repeat(None, items))) for _ in range(2))
    return max(0.01, timed - plain) / n / items * 1e9


def per_item(chain: Callable[[list[Any], Iterable[Any]], Iterable[Any]], n: int, items: int) -> float:
    """Return what the whole chain costs per item, in ns."""
    return seconds(lambda: chain([identity] * n, repeat(None, items))) / items * 1e9


def batches(items: Iterable[list[float]]) -> Iterator[list[float]]:
    """Do some arithmetic on each row of each batch."""
    for rows in items:
        yield [math.exp(-row) * math.sin(row) for row in rows]


def run(items: int, rounds: int) -> tuple[str, list[Row]]:
    """Compare all cases; return the name of the peer, and the rows."""
    ray = load_ray()
    budget = 30.0 if timers.default_clock() == "tsc" else 80.0
    rows = []

    def row(what: str, mine: Callable[[], float], peer: Callable[[], float], target: float, unit: str) -> None:
        rows.append(compare(what, mine, peer, unit=unit, rounds=rounds, target=target))

    for n in (1, 3, 9):
        if ray is not None:
            row(
                f"added per step and item, {n} steps, {timers.default_clock()}",
                lambda n=n: added(ours, n, items),
                lambda n=n: added(lambda *chain: rays(ray, *chain), n, items),
                0.10,
                "ns",
            )
        row(
            f"the same beside a budget of {budget:.0f} ns, {n} steps",
            lambda n=n: added(ours, n, items),
            lambda: budget,
            1.0,
            "ns",
        )
    row(
        "3 steps timed beside 3 steps untimed",
        lambda: per_item(ours, 3, items),
        lambda: per_item(untimed, 3, items),
        1.7,
        "ns/item",
    )
    pure = twin()
    if ray is not None:
        row(
            "pure-Python twin, added per step and item, 3 steps",
            lambda: added(lambda *chain: ours(*chain, pure), 3, items // 4),
            lambda: added(lambda *chain: rays(ray, *chain), 3, items // 4),
            0.8,
            "ns",
        )
    thousand = [number / 100 for number in range(1000)]
    function = seconds(lambda: batches(repeat(thousand, 100))) / 100 * 1e9
    row(
        "3 steps timed beside a function of 1,000 rows",
        lambda: 3 * added(ours, 3, items),
        lambda: function,
        0.001,
        "ns/batch",
    )
    print(f"that is {100 * rows[-1].ratio:.3f} % of the function's time")
    return (f"Ray {importlib.import_module('ray').__version__}" if ray is not None else "untimed"), rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder of the results, instead of the one beside this file")
    arguments = parser.parse_args()
    peer, rows = run(arguments.items, arguments.rounds)
    print(save("steps", peer, rows, arguments.out))


if __name__ == "__main__":
    main()
