"""Settings of a node: what is refused, and what follows from several of them."""

import pytest

from anabranch.config import NODE_SETTINGS, ConfigSource, NodeSettings
from anabranch.errors import InvalidConfigError

HOUR_MS = 3_600_000


def entry(settings, name):
    return next(entry for entry in settings.describe() if entry.name == name)


def test_defaults_are_kafkas_where_kafka_has_the_setting():
    node = NodeSettings.load()
    assert node.num_partitions == 1
    assert node.message_max_bytes == 1_048_588
    assert node.socket_request_max_bytes == 104_857_600
    assert node.group_min_session_timeout_ms == 6000
    assert node.offsets_retention_minutes == 10_080
    assert node.retention_ms == 168 * HOUR_MS
    assert node.segment_ms == 168 * HOUR_MS


def test_records_are_synced_before_the_acknowledgement_unless_told_otherwise():
    assert NodeSettings.load().flush == "always"


def test_what_was_given_wins_and_is_remembered_as_given():
    node = NodeSettings.load({"num.partitions": "4", "auto.create.topics.enable": False})
    assert (node.num_partitions, node.auto_create_topics_enable) == (4, False)
    assert node.given == {"num.partitions", "auto.create.topics.enable"}


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("num.partition", "num.partitions"),
        ("log.dirs", "data.dir"),
        ("listeners", "listen"),
        ("retention.ms", "log.retention.ms"),
    ],
)
def test_unknown_name_is_refused_with_the_one_that_was_meant(wrong, meant):
    with pytest.raises(InvalidConfigError, match=rf"no setting called {wrong}: did you mean {meant}\?"):
        NodeSettings.load({wrong: "1"})


def test_name_like_no_other_is_refused_with_where_to_look():
    with pytest.raises(InvalidConfigError, match=r"no setting called zzz: docs/settings\.md"):
        NodeSettings.load({"zzz": "1"})


def test_name_of_an_attribute_is_not_a_setting():
    with pytest.raises(InvalidConfigError, match="no setting called given"):
        NodeSettings.load({"given": "x"})


@pytest.mark.parametrize(
    ("overrides", "wanted_ms"),
    [
        ({"log.retention.hours": 1}, HOUR_MS),
        ({"log.retention.hours": 1, "log.retention.minutes": 2}, 120_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2, "log.retention.ms": 3}, 3),
        ({"log.retention.ms": -1}, -1),
        ({"log.retention.minutes": -1}, -1),
        ({"log.retention.hours": -1}, -1),
    ],
)
def test_finer_unit_of_retention_wins(overrides, wanted_ms):
    assert NodeSettings.load(overrides).retention_ms == wanted_ms


def test_roll_in_ms_wins_over_hours():
    assert NodeSettings.load({"log.roll.ms": 5, "log.roll.hours": 1}).segment_ms == 5


@pytest.mark.parametrize("name", ["listen", "http"])
def test_address_others_can_reach_needs_to_be_allowed(name):
    with pytest.raises(InvalidConfigError, match="--allow-unauthenticated"):
        NodeSettings.load({name: "0.0.0.0:9092"})
    allowed = NodeSettings.load({name: "0.0.0.0:9092", "allow.unauthenticated": True})
    assert allowed.value_of(name) == "0.0.0.0:9092"


def test_session_timeouts_must_not_cross():
    with pytest.raises(InvalidConfigError, match=r"group\.min\.session\.timeout\.ms"):
        NodeSettings.load({"group.min.session.timeout.ms": 2, "group.max.session.timeout.ms": 1})


def test_largest_request_must_fit_into_the_memory_for_requests():
    with pytest.raises(InvalidConfigError, match=r"request\.memory\.bytes\.max"):
        NodeSettings.load({"request.memory.bytes.max": 2**20})


def test_connections_and_files_share_the_open_file_limit():
    node = NodeSettings.load()
    assert node.connections_limit(1000) == 375
    assert (
        node.open_files_budget(20_000) > 5_000
    )  # Partitions that are written to at once without a sync each.
    assert node.connections_limit(1000) + node.open_files_budget(1000) < 1000
    assert NodeSettings.load({"max.connections": 7}).connections_limit(1000) == 7


def test_describe_lists_every_setting_read_only():
    entries = NodeSettings.load().describe()
    assert [entry.name for entry in entries] == list(NODE_SETTINGS)
    assert all(entry.read_only and entry.is_default for entry in entries)


def test_describe_says_where_a_value_comes_from():
    node = NodeSettings.load({"num.partitions": "4"})
    described = entry(node, "num.partitions")
    assert (described.value, described.source) == ("4", ConfigSource.NODE)
    assert [(s.value, s.source) for s in described.synonyms] == [
        ("4", ConfigSource.NODE),
        ("1", ConfigSource.DEFAULT),
    ]


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        NodeSettings.load().num_partitions = 2
