"""Forecasts of runs against what the runs then took.

Each load is run several times. Before every run but the first it is forecast from the runs before it, and the forecast
is compared with the wall time. The loads have what makes forecasts go wrong: spread, stragglers, workers that warm up,
blocks of several sizes, blocks that wait for each other, blocks that are over at once, more runs with one worker than
with two. The demo is run at three block sizes, and each is forecast from the others. Runs wait for clocks rather than
compute where the load is synthetic, since what is tested is the forecast and not the machine; the loads "busy" and the
demo compute. ``--keep FILE`` also writes every forecast with its outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

import workspan as ws

ERROR_LIMIT = 10.0
"""Largest median error of a forecast wall time, in percent."""

HELD = (85.0, 95.0)
"""How many runs in a hundred the intervals of 90 % must hold."""

QUIET = 0.1
"""What other programs may take of the processors during a run. A run with more is forgotten and done again, before it
is compared with anything: it shows the machine and not the forecast."""

ATTEMPTS = 6
"""How often it is done again, at most; then it counts as it is."""

disturbed = {"again": 0, "kept": 0}
"""How many runs were done again, and how many counted although they were disturbed."""


def chance(block: Any, salt: int) -> Any:
    """Return draws that differ from block to block and from run to run."""
    import random

    return random.Random(hash((block.block_id[1], salt, os.getpid(), time.time_ns())))


def even(block: Any) -> None:
    """Take 20 ms."""
    time.sleep(0.02)


def spread(block: Any) -> None:
    """Take 15 ms on the average, half of that or twice that as often as not."""
    time.sleep(0.012 * chance(block, 1).lognormvariate(0.0, 0.6))


def stragglers(block: Any) -> None:
    """Take 10 ms, or, one time in forty, 150 ms."""
    time.sleep(0.15 if chance(block, 2).random() < 0.025 else 0.01)


def warm_up(block: Any) -> None:
    """Take 15 ms; the first one in a process 300 ms more."""
    if not hasattr(time, "_warm"):
        time._warm = True  # type: ignore[attr-defined]
        time.sleep(0.3)
    time.sleep(0.015)


def by_size(block: Any) -> None:
    """Take 5 ms, and 20 us for each element, with some spread."""
    elements = block.write_roi.size
    time.sleep((0.005 + 2e-5 * elements) * chance(block, 3).lognormvariate(0.0, 0.15))


def growing(block: Any) -> None:
    """Take longer from block to block: 1 to 40 ms."""
    time.sleep(1e-4 * (10 + block.write_roi.begin[0] // 10))


def busy(block: Any) -> None:
    """Compute for 15 ms of CPU time."""
    end = time.thread_time() + 0.015
    while time.thread_time() < end:
        pass


def tiny(block: Any) -> None:
    """Be over at once."""


@dataclass(frozen=True)
class Load:
    """A task that is run several times."""

    name: str
    function: Callable[[Any], None]
    blocks: int
    halo: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    workers: tuple[int, ...] = (2, 2, 2, 2, 2, 2)
    """Workers of each run; the first one is not forecast."""

    def task(self, run: int) -> Any:
        """Make the task of run number *run*."""
        halo, edge = self.halo, 10
        extra = 3 * run * edge if self.name == "sizes" else 0  # another number of blocks, and a clipped one
        shape = self.blocks * edge + 2 * halo + extra + (5 if self.name == "sizes" else 0)
        return ws.Task(
            self.name,
            ws.Roi((0,), (shape,)),
            ws.Roi((0,), (edge + 2 * halo,)),
            ws.Roi((halo,), (edge,)),
            self.function,
            read_write_conflict=halo > 0,
            max_workers=self.workers[run],
            tracking_path=False,
            **dict(self.options),
        )


def index_of(block: Any) -> float:
    """Return what the time of a block of the load "growing" depends on."""
    return 10.0 + block.write_roi.begin[0] // 10


LOADS = (
    Load("even", even, 60),
    Load("spread", spread, 80),
    Load("stragglers", stragglers, 120),
    Load("warm-up", warm_up, 40),
    Load("sizes", by_size, 60, options=(("fit", "shrink"),)),
    Load("growing", growing, 60, options=(("n_ref", index_of),)),
    Load("conflicts", spread, 60, halo=10),
    Load("busy", busy, 80),
    Load("tiny", tiny, 4000),
    Load("one, then two workers", spread, 60, workers=(1, 2, 1, 2, 2, 1)),
    Load("busy, one, then two", busy, 60, workers=(1, 1, 2, 1, 2, 2)),
)


@dataclass(frozen=True)
class Pair:
    """A forecast and what came of it; seconds."""

    load: str
    workers: int
    runs: int
    low: float
    middle: float
    high: float
    took: float

    @property
    def error(self) -> float:
        """How far the forecast was off, in percent."""
        return abs(self.middle / self.took - 1.0) * 100

    @property
    def held(self) -> bool:
        """Whether the interval held the run."""
        return self.low <= self.took <= self.high


def others() -> float:
    """Return the processor seconds that all programs but this one and its children have taken, since whenever."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, soft, steal = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields)
    own = os.times()
    mine = own.user + own.system + own.children_user + own.children_system
    return user + nice + system + irq + soft + steal - mine


def undisturbed(home: Path, run: Callable[[], float], attempts: int) -> float:
    """Run until no other program took much of the processors meanwhile; return the wall time.

    The history below *home* forgets the runs that were done again.
    """
    for attempt in range(attempts):
        before = {path: path.read_bytes() for path in home.glob("runs/*.jsonl")}
        taken, begin = others(), time.perf_counter()
        wall = run()
        share = (others() - taken) / (time.perf_counter() - begin) / len(os.sched_getaffinity(0))
        if share <= QUIET:
            return wall
        if attempt < attempts - 1:
            disturbed["again"] += 1
            for path in home.glob("runs/*.jsonl"):
                if path in before:
                    path.write_bytes(before[path])
                else:
                    path.unlink()
    disturbed["kept"] += 1
    return wall


def measure(load: Load, folder: Path, most: int, attempts: int) -> list[Pair]:
    """Run one load and forecast each run from those before it."""
    ws.configure(timing={"directory": folder / load.name}, log_basedir=folder / "logs")
    pairs = []
    for number in range(min(most, len(load.workers))):
        task = load.task(number)
        said = task.forecast()

        def run(task: Any = task) -> float:
            report = ws.run_blockwise(task, progress=False, summary=False, return_report=True)
            return float(report.wall_seconds)

        took = undisturbed(folder / load.name, run, attempts)
        if said.wall_seconds is not None:
            assert said.wall_low is not None
            assert said.wall_high is not None
            figures = (said.wall_low, said.wall_seconds, said.wall_high)
            pairs.append(Pair(load.name, task.max_workers, number, *figures, took))
    show(load.name, pairs)
    return pairs


def measure_demo(folder: Path, blocks: list[int], attempts: int) -> list[Pair]:
    """Run the demo at each block size, and forecast each run but the first."""
    from workspan.cli.demo.pipeline import Brain, build

    home = folder / "demo-timing"
    ws.configure(timing={"directory": home}, log_basedir=folder / "logs")
    pairs = []
    for number, edge in enumerate(blocks):
        brain = Brain(str(folder / "nowhere"), (189, 233, 197), (edge,) * 3)
        said = build(brain, None, workers=2).forecast()
        command = [sys.executable, "-m", "workspan", "demo", "--act", "brain", "--quiet", "--fresh"]
        command += ["--block", str(edge), "--out", str(folder / f"demo-{number}")]
        environment = os.environ | {"WORKSPAN_TIMING_DIRECTORY": str(home)}

        def run(command: list[str] = command, environment: dict[str, str] = environment) -> float:
            subprocess.run(command, check=True, env=environment, cwd=folder)
            last = (home / "runs" / "smooth.jsonl").read_text().splitlines()[-1]
            return float(json.loads(last)["wall_seconds"])

        took = undisturbed(home, run, attempts)
        if said.wall_seconds is not None:
            assert said.wall_low is not None
            assert said.wall_high is not None
            pairs.append(Pair(f"demo {edge}", 2, number, said.wall_low, said.wall_seconds, said.wall_high, took))
    show("demo", pairs)
    return pairs


def show(name: str, pairs: list[Pair]) -> None:
    """Print how the forecasts of one load went."""
    told = "  ".join(
        f"{p.middle:.2f} ({p.low:.2f} - {p.high:.2f}) took {p.took:.2f}{'' if p.held else ' !'}" for p in pairs
    )
    print(f"{name}: {told}", flush=True)


def speed_up(pairs: list[Pair]) -> list[tuple[float, float]]:
    """Return (forecast, measured) speed-up from 1 to 2 workers of each load that ran with both."""
    found = []
    for name in {pair.load for pair in pairs}:
        sides = [[p for p in pairs if p.load == name and p.workers == workers] for workers in (1, 2)]
        if all(sides):
            said, took = (
                [statistics.median(getattr(p, what) for p in side) for side in sides] for what in ("middle", "took")
            )
            found.append((said[0] / said[1], took[0] / took[1]))
    return found


def rows_of(pairs: list[Pair]) -> list[harness.Row]:
    """Turn forecasts into rows: what they were off by against the limits."""
    error = statistics.median(pair.error for pair in pairs)
    held = 100 * sum(pair.held for pair in pairs) / len(pairs)
    off = abs(held - sum(HELD) / 2)
    middle = (HELD[1] - HELD[0]) / 2
    rows = [
        harness.Row("error of the wall time, median", "%", error, ERROR_LIMIT, error, ERROR_LIMIT, 1.0),
        harness.Row(f"intervals of 90 % hold {held:.0f} %: off by", "%", off, middle, off, middle, 1.0),
    ]
    for said, took in speed_up(pairs):
        gap = abs(said / took - 1.0) * 100
        what = f"speed-up with 2 workers, forecast {said:.2f} and measured {took:.2f}: off by"
        rows.append(harness.Row(what, "%", gap, ERROR_LIMIT, gap, ERROR_LIMIT, 1.0))
    return rows


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--out", type=Path, default=harness.HERE / "results")
    parser.add_argument("--runs", type=int, default=6, help="most runs of a load")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="how often a disturbed run is done, at most")
    parser.add_argument("--loads", nargs="*", help="names of loads; default: all")
    parser.add_argument("--demo", type=int, nargs="*", default=[64, 64, 48, 64, 48], help="block sizes of the demo")
    parser.add_argument("--keep", type=Path, help="file for every forecast and its outcome; added to")
    options = parser.parse_args()
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory() as folder:
        for load in LOADS:
            if options.loads is None or load.name in options.loads:
                pairs += measure(load, Path(folder), options.runs, options.attempts)
        if options.demo:
            pairs += measure_demo(Path(folder), options.demo, (options.attempts + 1) // 2)
    if options.keep:
        earlier = json.loads(options.keep.read_text()) if options.keep.exists() else []
        options.keep.write_text(json.dumps([*earlier, *(pair.__dict__ for pair in pairs)], indent=1))
        pairs = [Pair(**entry) for entry in json.loads(options.keep.read_text())]
    print(
        f"disturbed by other programs: {disturbed['again']} runs done again, {disturbed['kept']} counted as they were"
    )
    rows = rows_of(pairs)
    for row in rows:
        print(f"{row.what} {row.ours:.1f} {row.unit}, limit {row.peer:.1f}: {'met' if row.met else 'MISSED'}")
    harness.save("forecast", f"the limit; {len(pairs)} runs", rows, options.out)


if __name__ == "__main__":
    main()
