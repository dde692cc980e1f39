"""The three figures that must be equal wherever the flights have been: file, topic, table, joined table."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Figures(NamedTuple):
    rows: int
    delay_sum: int
    """Minutes, over all flights that left."""
    without_delay: int
    """Flights that never left, and therefore have no delay."""


def figures_of_flights(flights: pa.Table) -> Figures:
    delays = flights["dep_delay"]
    return Figures(flights.num_rows, pc.sum(delays).as_py() or 0, delays.null_count)


def figures_of_groups(groups: pa.Table) -> Figures:
    """Of a table that has one row for many flights."""
    rows, departed, delay_sum = (
        pc.sum(groups[name]).as_py() or 0 for name in ("flights", "departed", "delay_sum")
    )
    return Figures(rows, delay_sum, rows - departed)
