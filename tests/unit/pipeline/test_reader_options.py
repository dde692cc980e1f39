"""Every option is checked, and a wrong one is refused by name."""

import pytest

from anabranch.errors import OptionError
from anabranch.pipeline.source.offsets import Point
from anabranch.pipeline.source.options import (
    Direct,
    check_for_stream,
    reader_options,
    stream_only,
    writer_options,
)
from anabranch.values import TopicPartition

BASE = {"bootstrap": "localhost:9092", "topic": "orders"}


def test_defaults_are_those_sparks_users_know() -> None:
    options = reader_options(BASE)
    assert options.subscription.names == ("orders",)
    assert options.start is None
    assert options.end.point is Point.LATEST
    assert options.fail_on_data_loss
    assert options.verify
    assert not options.include_headers
    assert options.direct is Direct.AUTO
    assert options.offsets_per_trigger_max is None


def test_the_names_of_sparks_connector_are_aliases() -> None:
    options = reader_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "subscribe": "x, y",
            "startingoffsets": "earliest",
            "maxoffsetspertrigger": "100",
            "minpartitions": "8",
            "failondataloss": "false",
            "includeheaders": "TRUE",
            "kafka.group.id": "mine",
            "kafka.security.protocol": "plaintext",
        }
    )
    assert options.bootstrap == "a:1,b:2"
    assert options.subscription.names == ("x", "y")
    assert options.start is not None
    assert options.start.point is Point.EARLIEST
    assert options.offsets_per_trigger_max == 100
    assert options.partitions_min == 8
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.group == "mine"


def test_assigned_partitions_and_patterns() -> None:
    assigned = reader_options({"bootstrap": "a:1", "assign": '{"x": [1, 0], "y": [2]}'}).subscription
    assert assigned.assigned == (TopicPartition("x", 0), TopicPartition("x", 1), TopicPartition("y", 2))
    assert assigned.wanted_names == ("x", "y")
    assert not assigned.wants(TopicPartition("y", 0))
    pattern = reader_options({"bootstrap": "a:1", "subscribePattern": "or.*"}).subscription
    assert pattern.wanted_names is None
    assert pattern.fits("orders", is_internal=False)
    assert not pattern.fits("sales", is_internal=False)
    assert not pattern.fits("ororo", is_internal=True)


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [
        ("orders", {"orders", "my-orders", "orders.dlq"}),
        (" ^orders$ ", {"orders"}),
        ("^orders", {"orders", "orders.dlq"}),
        (r"\.dlq$", {"orders.dlq"}),
    ],
)
def test_pattern_is_looked_for_anywhere_in_the_name(pattern: str, fitting: set[str]) -> None:
    """Spark's connector takes a topic if the pattern is found in its name, and trims the pattern."""
    wanted = reader_options({"bootstrap": "a:1", "subscribePattern": pattern}).subscription
    names = {"orders", "my-orders", "orders.dlq", "sales"}
    assert {name for name in names if wanted.fits(name, is_internal=False)} == fitting


def test_one_time_for_all_wins_over_times_and_times_over_offsets() -> None:
    given = {
        **BASE,
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"orders": {"0": 7}}',
        "startingTimestamp": "5",
    }
    start = reader_options(given).start
    assert start is not None
    assert start.time_ms == 5
    del given["startingTimestamp"]
    start = reader_options(given).start
    assert start is not None
    assert start.numbers == {TopicPartition("orders", 0): 7}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"startingofsets": "latest"}, "There is no option startingofsets. Did you mean startingOffsets?"),
        ({"xyz": "1"}, "There is no option xyz. There are: bootstrap, topic"),
        (
            {"minOffsetsPerTrigger": "1"},
            "minOffsetsPerTrigger is not an option here: triggers are not held back",
        ),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            "kafka.sasl.mechanism: brokers have no encryption and no log-in yet",
        ),
        ({"kafka.security.protocol": "SSL"}, "kafka.security.protocol: brokers have no encryption"),
        ({"kafka.ssl.truststore.location": "x"}, "kafka.ssl.truststore.location: brokers have no encryption"),
        ({"subscribe": "other"}, "topic and subscribe say different things"),
        ({"subscribePattern": "x"}, "topic and subscribePattern exclude each other"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0' is not a whole number above 0"),
        ({"minPartitions": "two"}, "minPartitions: 'two' is not a whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is neither true nor false"),
        ({"direct": "always"}, "direct: 'always' is none of auto, never and require"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest is no end"),
        ({"startingTimestamp": "soon"}, "startingTimestamp: 'soon' is neither ms since 1970 nor a moment"),
        ({"startingTimestamp": "-1"}, "startingTimestamp: '-1' has a time before 1970"),
        (
            {"endingTimestamp": "1969-12-31T23:59:59.999Z"},
            "endingTimestamp: '1969-12-31T23:59:59.999Z' has a time",
        ),
        (
            {"startingOffsets": "1969-12-31T23:59:59.998Z"},
            "startingOffsets: '1969-12-31T23:59:59.998Z' has a time",
        ),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -2}}'}, "startingOffsetsByTimestamp: '{"),
        ({"endingOffsetsByTimestamp": '{"a": {"0": 5, "1": -1}}'}, "endingOffsetsByTimestamp: '{"),
        (
            {"startingTimestamp": "9" * 19},
            "startingTimestamp: '9999999999999999999' has a time that no clock",
        ),
        ({"startingOffsets": '{"a": {"0": 99999999999999999999}}'}, "startingOffsets: '{"),
        ({"startingOffsets": '{"a": {"99999999999": 5}}'}, "startingOffsets: '{"),
        (
            {"minPartitions": "\N{SUPERSCRIPT TWO}"},
            "minPartitions: '\N{SUPERSCRIPT TWO}' is not a whole number",
        ),
        ({"startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy: 'x' is neither"),
        ({"brokerTimeoutSeconds": "0"}, "brokerTimeoutSeconds: '0' is not a number of seconds"),
        ({"group": " "}, "group is empty"),
        ({"path": "orders"}, "path is not an option here: topics are named with the option topic"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError) as refused:
        reader_options({**BASE, **given})
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": "x"}, "The option bootstrap is missing"),
        ({"bootstrap": "localhost", "topic": "x"}, "bootstrap: 'localhost' is not host:port"),
        ({"bootstrap": "localhost:http", "topic": "x"}, "bootstrap: 'localhost:http' is not host:port"),
        ({"bootstrap": "a:1"}, "The option topic is missing"),
        ({"bootstrap": "a:1", "topic": " , "}, "topic: no topic is named"),
        ({"bootstrap": "a:1", "subscribePattern": "("}, "subscribePattern: '(' is not a regular expression"),
        ({"bootstrap": "a:1", "assign": '{"x": 1}'}, "assign: "),
        ({"bootstrap": "a:1", "assign": "{}"}, "assign: no partition is named"),
    ],
)
def test_what_must_be_there_is_asked_for(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError) as refused:
        reader_options(given)
    assert str(refused.value).startswith(complaint)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="endingOffsets is for batches"):
        check_for_stream({**BASE, "endingOffsets": "latest"})


def test_what_only_streams_use_is_named() -> None:
    assert stream_only({**BASE, "maxOffsetsPerTrigger": "5", "kafka.group.id": "g"}) == [
        "maxOffsetsPerTrigger",
        "kafka.group.id",
    ]


def test_a_writer_hands_what_it_knows_to_the_producer() -> None:
    options = writer_options({**BASE, "kafka.compression.type": "zstd", "checkpointLocation": "/x"})
    assert options.topic == "orders"
    assert options.producer == {"compression.type": "zstd"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kafka.acks": "1"}, "kafka.acks is not an option here: the writer always waits for all copies"),
        ({"topic": "a,b"}, "topic: one topic can be written to"),
        ({"startingOffsets": "latest"}, "There is no option startingOffsets"),
    ],
)
def test_a_wrong_option_of_a_writer_is_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError) as refused:
        writer_options({**BASE, **given})
    assert str(refused.value).startswith(complaint)
