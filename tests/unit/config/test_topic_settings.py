"""Configs of a topic: defaults, overrides, and what DescribeConfigs tells of them."""

import pytest

from anabranch.config import (
    TOPIC_SETTINGS,
    ConfigSource,
    NodeSettings,
    TopicSettings,
    append_to_list,
    subtract_from_list,
    validate_topic_override,
    validate_topic_overrides,
)
from anabranch.config.setting import text_of
from anabranch.errors import InvalidConfigError

NODE = NodeSettings.load()

# What Apache Kafka 4.3.1 answers for a topic that sets nothing.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def entry(node, overrides, name):
    described = TopicSettings.from_overrides(node, overrides).describe(node)
    return next(entry for entry in described if entry.name == name)


def test_every_topic_config_of_kafka_is_there_with_its_default():
    described = {entry.name: entry.value for entry in TopicSettings.from_overrides(NODE).describe(NODE)}
    assert described.pop("anabranch.mode") is None
    assert described.pop("anabranch.partitioner") == "murmur2"
    assert described == KAFKA_DEFAULTS


@pytest.mark.parametrize("name", [name for name in TOPIC_SETTINGS if name != "anabranch.mode"])
def test_every_default_can_be_set_explicitly(name):
    default = text_of(TOPIC_SETTINGS[name].default)
    assert validate_topic_override(name, default) == default


@pytest.mark.parametrize("name", list(TOPIC_SETTINGS))
def test_topic_and_node_agree_on_the_default(name):
    setting = TOPIC_SETTINGS[name]
    if setting.node_default:
        assert getattr(NODE, setting.node_default) == setting.default


def test_override_wins_over_the_node_and_the_node_over_our_default():
    node = NodeSettings.load({"log.retention.minutes": "1", "message.max.bytes": "2000"})
    topic = TopicSettings.from_overrides(node, {"max.message.bytes": "3000"})
    assert (topic.retention_ms, topic.max_message_bytes) == (60_000, 3000)


def test_policy_is_read_as_what_it_asks_for():
    both = TopicSettings.from_overrides(NODE, {"cleanup.policy": "compact,delete"})
    neither = TopicSettings.from_overrides(NODE, {"cleanup.policy": ""})
    assert (both.is_compacted, both.is_deleted_by_age) == (True, True)
    assert (neither.is_compacted, neither.is_deleted_by_age) == (False, False)


def test_unknown_config_is_refused_with_the_one_that_was_meant():
    with pytest.raises(
        InvalidConfigError, match=r"no topic config called retention\.m: did you mean retention\.ms\?"
    ):
        validate_topic_override("retention.m", "1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("segment.bytes", "13"),
        ("min.cleanable.dirty.ratio", "2"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("message.timestamp.type", "createtime"),
        ("min.insync.replicas", "0"),
        ("leader.replication.throttled.replicas", "1:x"),
        ("max.message.bytes", None),
    ],
)
def test_value_a_topic_cannot_have_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfigError, match=name.replace(".", r"\.")):
        validate_topic_override(name, value)


@pytest.mark.parametrize(
    "name", ["remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable"]
)
def test_remote_storage_is_refused_in_plain_words(name):
    with pytest.raises(InvalidConfigError, match="tiered storage"):
        validate_topic_override(name, "true")


def test_unknown_modes_are_refused_in_plain_words():
    with pytest.raises(InvalidConfigError, match="is not a mode"):
        validate_topic_override("anabranch.mode", "river")


def test_only_a_node_with_an_object_store_puts_topics_there():
    with pytest.raises(InvalidConfigError, match="start it with --object-store URL"):
        validate_topic_overrides(NODE, {"anabranch.mode": "object"})
    with_store = NodeSettings.load({"object.store": "memory:"})
    kept = validate_topic_overrides(with_store, {"anabranch.mode": "object"})
    assert kept == {"anabranch.mode": "object"}


def test_a_node_alone_makes_no_ring():
    with pytest.raises(InvalidConfigError, match="this node is alone"):
        validate_topic_overrides(NODE, {"anabranch.mode": "ring"})
    assert validate_topic_overrides(NODE, {"anabranch.mode": "solo"}) == {"anabranch.mode": "solo"}
    among_others = NodeSettings.load({"peer.listen": "127.0.0.1:1", "cluster.secret.file": "f"})
    assert validate_topic_overrides(among_others, {"anabranch.mode": "ring"}) == {"anabranch.mode": "ring"}


def test_value_is_kept_as_kafkas_tools_write_it():
    assert validate_topic_override("cleanup.policy", " compact , delete") == "compact,delete"
    assert validate_topic_override("preallocate", "TRUE") == "true"
    assert validate_topic_override("retention.ms", " +5 ") == "5"


def test_compaction_lags_must_not_cross():
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms"):
        validate_topic_overrides(NODE, {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})


@pytest.mark.parametrize("name", ["flush.messages", "flush.ms"])
def test_promise_to_sync_is_refused_where_the_node_would_not_keep_it(name):
    assert validate_topic_overrides(NODE, {name: "1"}) == {name: "1"}
    with pytest.raises(InvalidConfigError, match="--flush always"):
        validate_topic_overrides(NodeSettings.load({"flush": "os"}), {name: "1"})


def test_topic_made_under_other_node_settings_still_opens():
    relaxed = NodeSettings.load({"flush": "os"})
    assert TopicSettings.from_overrides(relaxed, {"flush.messages": "1"}).flush_messages == 1


def test_item_is_appended_once():
    assert append_to_list("cleanup.policy", "delete", "compact") == "delete,compact"
    assert append_to_list("cleanup.policy", "delete", "delete") == "delete"


def test_item_is_subtracted_wherever_it_is():
    assert subtract_from_list("cleanup.policy", "delete,compact", "delete") == "compact"
    assert subtract_from_list("cleanup.policy", "delete", "compact") == "delete"


def test_appending_to_what_is_no_list_is_refused():
    with pytest.raises(InvalidConfigError, match=r"retention\.ms is not a list"):
        append_to_list("retention.ms", "1", "2")


def test_value_is_found_by_its_dotted_name():
    topic = TopicSettings.from_overrides(NODE, {"retention.ms": "7"})
    assert topic.value_of("retention.ms") == 7
    with pytest.raises(InvalidConfigError, match="no topic config called overrides"):
        topic.value_of("overrides")


def test_describe_names_everything_that_could_decide_a_value():
    node = NodeSettings.load({"log.retention.minutes": "1"})
    described = entry(node, {"retention.ms": "7"}, "retention.ms")
    assert (described.value, described.source, described.read_only) == ("7", ConfigSource.TOPIC, False)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in described.synonyms] == [
        ("retention.ms", "7", ConfigSource.TOPIC),
        ("log.retention.minutes", "1", ConfigSource.NODE),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]


def test_value_from_the_node_is_not_called_a_default():
    node = NodeSettings.load({"message.max.bytes": "2000"})
    assert entry(node, {}, "max.message.bytes").source is ConfigSource.NODE
    assert entry(NODE, {}, "max.message.bytes").is_default


def test_config_without_effect_says_so():
    idle = [setting for setting in TOPIC_SETTINGS.values() if not setting.has_effect]
    assert idle
    assert all(setting.doc.startswith(("No effect", "Only false")) for setting in idle)
