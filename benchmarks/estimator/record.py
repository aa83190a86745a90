"""Record fresh series of real functions on this machine, as the replay reads them.

``python benchmarks/estimator/record.py [--out DIR] [--runs 60]``
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[int], Callable[[], object]]
rng = np.random.default_rng(0)


def sorting(n: int) -> Callable[[], object]:
    values = rng.random(n)
    return lambda: np.sort(values)


def sorting_objects(n: int) -> Callable[[], object]:
    values = [str(v) for v in rng.integers(0, 10 * n, n)]
    return lambda: sorted(values)


def fourier(n: int) -> Callable[[], object]:
    values = rng.random(n)
    return lambda: np.fft.fft(values)


def compression(n: int) -> Callable[[], object]:
    data = rng.integers(0, 16, n, dtype=np.uint8).tobytes()
    return lambda: zlib.compress(data, 6)


def join(n: int) -> Callable[[], object]:
    left, right = rng.integers(0, n, n).tolist(), dict.fromkeys(rng.integers(0, n, n).tolist(), 1)
    return lambda: [(key, right[key]) for key in left if key in right]


def image_filter(n: int) -> Callable[[], object]:
    from scipy.ndimage import gaussian_filter

    side = max(4, int(n**0.5))
    image = rng.random((side, side))
    return lambda: gaussian_filter(image, 2.0)


def matrix(n: int) -> Callable[[], object]:
    a = rng.random((n, n))
    return lambda: a @ a


def file_copy(n: int) -> Callable[[], object]:
    folder = Path(tempfile.gettempdir())
    source = folder / "workspan-record-source"
    source.write_bytes(b"x" * n)
    return lambda: shutil.copyfile(source, folder / "workspan-record-copy")


def prime_from(n: int) -> int:
    """Return the first prime at or above n."""
    while any(n % k == 0 for k in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def fourier_sizes(draw: random.Random) -> int:
    """Draw a round size or a prime beside it, from a few, so that sizes repeat."""
    size = 2 ** draw.randint(10, 17)
    return prime_from(size) if draw.random() < 0.5 else size


def spread(low: float, high: float) -> Callable[[random.Random], int]:
    """Draw sizes evenly in their logarithm."""
    return lambda draw: int(low * (high / low) ** draw.random())


#: name -> work, sizes, unit of the size, order a developer would declare
RECORDED: dict[str, tuple[Work, Callable[[random.Random], int], str, str]] = {
    "sort floats": (sorting, spread(1e3, 1e6), "elements", "O_N_LOG_N"),
    "sort strings": (sorting_objects, spread(1e3, 1e5), "elements", "O_N_LOG_N"),
    "FFT, prime and round sizes": (fourier, fourier_sizes, "elements", "O_N_LOG_N"),
    "compress": (compression, spread(1e3, 1e6), "bytes", "O_N"),
    "hash join": (join, spread(1e3, 3e5), "rows", "O_N"),
    "image filter": (image_filter, spread(1e3, 1e6), "pixels", "O_N"),
    "matrix product": (matrix, spread(16, 600), "rows", "O_N_3"),
    "copy a file": (file_copy, spread(1e3, 2e7), "bytes", "O_N"),
}


def record(name: str, runs: int) -> dict[str, Any]:
    """Time one function at sizes drawn at random, once each, after one run to warm up."""
    work, sizes, unit, order = RECORDED[name]
    draw = random.Random(name)
    work(sizes(draw))()
    measurements = []
    for _ in range(runs):
        size = sizes(draw)
        call = work(size)
        begin = time.perf_counter()
        call()
        measurements.append({"N_ref": float(size), "dt": round(time.perf_counter() - begin, 9)})
    return {
        "name": name,
        "source": "benchmarks/estimator/record.py",
        "unit_of_N": unit,
        "order": order,
        "time_order": "start time",
        "measurements": measurements,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "series")
    parser.add_argument("--runs", type=int, default=60)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    series = [record(name, arguments.runs) for name in RECORDED]
    text = json.dumps(series).replace('{"name"', '\n{"name"').replace("}, {", "},\n{") + "\n"
    (arguments.out / "recorded.json").write_text(text)
    for name in ("source", "copy"):
        (Path(tempfile.gettempdir()) / f"workspan-record-{name}").unlink(missing_ok=True)
    print(arguments.out / "recorded.json")


if __name__ == "__main__":
    main()
