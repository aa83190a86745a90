"""Replay recorded series: predict each measurement from those before it, then reveal it.

``python benchmarks/estimator/replay.py [--data DIR] [--methods Workspan ...] [--modes as-recorded ...] [--out FILE]``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent))
from methods import METHODS, Method

Floats = npt.NDArray[np.float64]
SERIES = Path(__file__).parent / "series"
FROM, KEPT = 3, 50  # measurements seen before the first prediction, and at most
MODES = ("as recorded", "3-5 seen", "ascending", "O_N_2 for all")


@dataclass(frozen=True)
class Series:
    """One recorded series, in the order in which it was made."""

    source: str
    name: str
    order: str
    sizes: Floats
    seconds: Floats


def load(folder: Path) -> list[Series]:
    """Read all series of all files of a folder."""
    found = []
    for path in sorted(folder.glob("*.json")):
        for record in json.loads(path.read_text()):
            pairs = np.array([(m["N_ref"], m["dt"]) for m in record["measurements"]], float)
            found.append(Series(path.stem, record["name"], record["order"], pairs[:, 0], pairs[:, 1]))
    return found


def replay(all_series: list[Series], method: Method, mode: str, stride: int = 1) -> Floats:
    """Return (series, dt, estimate, low, high, seconds the method took) of every prediction, one in `stride`."""
    return np.array(list(predictions(all_series, method, mode, stride)))


def predictions(all_series: list[Series], method: Method, mode: str, stride: int) -> Iterator[tuple[float, ...]]:
    for number, series in enumerate(all_series):
        sizes, seconds = series.sizes, series.seconds
        if mode == "ascending":
            rising = np.argsort(sizes, kind="stable")
            sizes, seconds = sizes[rising], seconds[rising]
        order = "O_N_2" if mode == "O_N_2 for all" else series.order
        end = min(len(sizes), FROM + 3) if mode == "3-5 seen" else len(sizes)
        for i in range(FROM + number % stride, end, stride):
            seen = slice(max(0, i - KEPT), i)
            begin = time.perf_counter()
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    answer = method(order, sizes[seen], seconds[seen], float(sizes[i]))
            except (ValueError, TypeError, ZeroDivisionError):
                answer = (0.0, np.nan, np.nan)  # no answer counts as a bad one
            took = time.perf_counter() - begin
            yield (number, seconds[i], *answer, took)


def figures(found: Floats) -> dict[str, float]:
    """Return the figures of the predictions; percentages, except width and log score."""
    number, dt, value, low, high, took = found.T
    value = np.where(np.isfinite(value), value, 0.0)
    error = 100.0 * np.abs(value - dt) / dt
    bad = (value <= 0.0) | (value > 10.0 * dt) | (value < 0.1 * dt)
    of_series = [np.median(error[number == n]) for n in np.unique(number)]
    result = {
        "predictions": len(dt),
        "MdAPE": np.median(error),
        "P90": np.percentile(error, 90),
        "within 20 %": 100.0 * np.mean(error <= 20.0),
        "<= 0": 100.0 * np.mean(value <= 0.0),
        "bad": 100.0 * np.mean(bad),
        "series MdAPE": np.median(of_series),
        "ms": 1e3 * np.median(took),
    }
    known = np.isfinite(low) & np.isfinite(high)
    if known.any():
        number, dt, low, high = number[known], dt[known], np.maximum(low[known], 1e-12), high[known]
        inside = (low <= dt) & (dt <= high)
        outside = np.maximum(0.0, np.maximum(np.log(low / dt), np.log(dt / high)))
        held = [np.mean(inside[number == n]) for n in np.unique(number)]
        result |= {
            "coverage": 100.0 * np.mean(inside),
            "series under 80 %": 100.0 * np.mean(np.array(held) < 0.8),
            "width": np.median((high - low) / dt),
            "log score": np.mean(np.log(high / low) + 20.0 * outside),
        }
    return {name: round(float(value), 3) for name, value in result.items()}


def run(folder: Path, methods: list[str], modes: list[str], stride: int) -> dict[str, Any]:
    """Replay everything; return figures by mode, method and source, "all" being all sources together."""
    all_series = load(folder)
    sources = np.array([series.source for series in all_series])
    result: dict[str, Any] = {}
    for mode in modes:
        for method in methods:
            found = replay(all_series, METHODS[method], mode, stride)
            parts = {"all": figures(found)}
            for source in dict.fromkeys(sources):
                of_source = found[sources[found[:, 0].astype(int)] == source]
                if len(of_source):
                    parts[source] = figures(of_source)
            result.setdefault(mode, {})[method] = parts
            print(row(mode, method, parts["all"]), flush=True)
    return result


def row(mode: str, method: str, found: dict[str, float]) -> str:
    """Return one line of figures."""
    return f"{mode:14} {method:21} " + "  ".join(
        f"{name} {value:g}" for name, value in found.items() if isfinite(value)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SERIES, help="folder of series; by default those recorded here")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--stride", type=int, default=1, help="predict one measurement in this many")
    parser.add_argument("--out", type=Path, help="file for all figures, by source too")
    arguments = parser.parse_args()
    result = run(arguments.data, arguments.methods, arguments.modes, arguments.stride)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
