"""What the benchmarks share: fair comparison, a record of each figure with the machine it is from, one table of all.

A figure is a claim about this machine now. So ours and the peer's are measured in one process, in turn, in alternating
order; what is claimed is their ratio.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARIES = ("workspan", "daisy", "ray", "numpy", "zarr", "msgspec")
# Runs of benchmarks are nobody's history.
os.environ.setdefault("WORKSPAN_TIMING_DIRECTORY", os.path.join(tempfile.gettempdir(), "workspan-bench-timing"))
LOAD_BEFORE = os.getloadavg()[0]  # of others, since it is taken before the first round

MORE = (("again", "again, other numbers"), ("best", "best possible"))
"""Columns that a table has where they are known."""


@dataclass(frozen=True)
class Row:
    """One compared figure. Smaller is better: ``target`` is the largest ratio ours / peer that counts as met."""

    what: str
    unit: str
    ours: float
    peer: float
    ours_median: float
    peer_median: float
    target: float
    best: float | None = None
    """The least ratio that anything can reach; ``None``: not known."""
    again: float | None = None
    """The ratio on other random numbers than those that it was developed with; ``None``: there are no others."""

    @property
    def ratio(self) -> float:
        """Ours over the peer's, best over best. What is too small to be measured on both sides is equal."""
        if not self.peer:
            return inf if self.ours else 1.0
        return self.ours / self.peer

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.ratio <= self.target


def compare(
    what: str, ours: Callable[[], float], peer: Callable[[], float], *, unit: str, rounds: int, target: float
) -> Row:
    """Measure both in turn, `rounds` times each, and print the outcome.

    Each callable runs once and returns its cost in `unit`. The best round is compared, as the one least disturbed by
    the rest of the machine; the medians are kept beside it. The order alternates, so that a drifting clock speed or a
    filling cache favours neither.
    """
    values: dict[str, list[float]] = {"ours": [], "peer": []}
    sides = [("ours", ours), ("peer", peer)]
    for number in range(rounds):
        for name, measure in sides if number % 2 == 0 else reversed(sides):
            values[name].append(measure())
    best = {name: min(found) for name, found in values.items()}
    median = {name: statistics.median(found) for name, found in values.items()}
    row = Row(what, unit, best["ours"], best["peer"], median["ours"], median["peer"], target)
    verdict = "met" if row.met else "MISSED"
    figures = f"ours {row.ours:.1f}, peer {row.peer:.1f} {unit}, ratio {row.ratio:.2f}"
    print(f"{what}: {figures}; at most {target:.3g}: {verdict}", flush=True)
    return row


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that a figure depends on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = models[0] if models else model
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(LOAD_BEFORE, 1),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.now(UTC).date().isoformat(),
    }


def save(name: str, peer: str, rows: list[Row], folder: Path | None = None) -> Path:
    """Write the rows of one benchmark to ``results/<name>.json``; `peer` is what they are compared with."""
    folder = folder or HERE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    record = {
        "name": name,
        "peer": peer,
        "machine": machine(),
        "rows": [asdict(row) | {"ratio": row.ratio, "met": row.met} for row in rows],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def table(folder: Path) -> str:
    """Render all saved results as a page."""
    parts = [
        "# Benchmark results",
        "",
        "Written by `make bench`. Ours and the peer are measured in turn; the best rounds are compared.",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        m = record["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in m["versions"].items() if number)
        parts += [
            "",
            f"## {record['name']}",
            "",
            f"{m['date']}, {m['cores']} x {m['cpu']} (load before: {m['load_before']}), {m['system']}, "
            f"Python {m['python']}, {versions}.",
            "",
            f"| what | unit | ours | {record['peer']} | ratio | target | met? |",
            "| --- | --- | ---: | ---: | ---: | ---: | --- |",
        ]
        more = [(key, title) for key, title in MORE if any(row.get(key) is not None for row in record["rows"])]
        parts[-2] += "".join(f" {title} |" for _, title in more)
        parts[-1] += " ---: |" * len(more)
        parts += [
            f"| {row['what']} | {row['unit']} | {row['ours']:.1f} | {row['peer']:.1f} | {row['ratio']:.2f} "
            f"| <= {row['target']:.3g} | {'yes' if row['met'] else '**no**'} |"
            + "".join(f" {'' if row.get(key) is None else format(row[key], '.2f')} |" for key, _ in more)
            for row in record["rows"]
        ]
    return "\n".join(parts) + "\n"
