"""What a topic may set for itself: Kafka's topic configs, `anabranch.mode` and `anabranch.partitioner`.

A topic keeps only its overrides (strings, normalised by `validate_topic_override`); `from_overrides` joins
them with the node's defaults. Overrides are judged when they are set; loading an existing topic never fails
for a rule about the node, so that a node restarted with other settings still opens every topic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from anabranch.config.node_settings import CODECS, NODE_SETTINGS, NodeSettings
from anabranch.config.setting import (
    LONG_MAX,
    ConfigEntry,
    ConfigSource,
    Kind,
    Setting,
    Synonym,
    Value,
    attribute_of,
    check_gzip_level,
    choice,
    find_setting,
    flag,
    long,
    names,
    ratio,
    settings_of,
    text,
    text_of,
    whole,
)
from anabranch.errors import InvalidConfigError


def _check_not_remote(value: bool) -> str | None:
    return "asks for tiered storage, which this node has not: leave it false." if value else None


def _check_mode(mode: str) -> str | None:
    known = ("solo", "ring", "branch", "object")
    return None if mode in known else "is not a mode: take solo, ring, branch or object."


def _check_throttled(replicas: tuple[str, ...]) -> str | None:
    pairs = [replica.split(":") for replica in replicas if replica != "*"]
    if all(len(pair) == 2 and all(part.isdigit() for part in pair) for pair in pairs):
        return None
    return "is not a list of replicas: write * or partition:broker,partition:broker."


def _of(node_name: str) -> dict[str, Any]:
    return {"node_default": attribute_of(node_name), "synonyms": (node_name,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Settings of one topic. The dotted name of an attribute has dots for its underscores."""

    anabranch_mode: str | None = text(
        None,
        "How the topic keeps its records safe: solo (one copy, whatever the cluster), ring (up to three), branch (both "
        "sides of a split go on, and join again) or object (in the object store); unset: ring where there are brokers "
        "for it.",
        check=_check_mode,
    )

    anabranch_partitioner: str = choice(
        "murmur2",
        "Which partition a key belongs to, for the gateway, the command line, the Spark writer and the broker for "
        "tests: as Java's clients do (murmur2), as librdkafka does unless told otherwise (crc32; but it spreads "
        "records with an empty key unless set to partitioner=consistent), or an even share of the ring for each "
        "(murmur3). Other clients choose for themselves: set theirs to the same.",
        "murmur2",
        "murmur3",
        "crc32",
    )

    # --- what is kept ---
    cleanup_policy: tuple[str, ...] = names(
        ("delete",),
        "Drop old segments, keep the last value of each key, or both; empty keeps everything.",
        "delete",
        "compact",
        **_of("log.cleanup.policy"),
    )
    retention_ms: int = long(
        604_800_000,
        "How long records are kept; -1: for ever.",
        low=-1,
        node_default="retention_ms",
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    retention_bytes: int = long(
        -1, "Bytes kept per partition; -1: no limit.", low=-1, **_of("log.retention.bytes")
    )
    delete_retention_ms: int = long(
        86_400_000, "How long a tombstone stays readable.", **_of("log.cleaner.delete.retention.ms")
    )
    min_cleanable_dirty_ratio: float = ratio(
        0.5,
        "The share of uncleaned bytes that makes cleaning worth it.",
        **_of("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = long(
        0, "How long a record is left alone by the cleaner.", **_of("log.cleaner.min.compaction.lag.ms")
    )
    max_compaction_lag_ms: int = long(
        LONG_MAX,
        "How long a record may wait for the cleaner.",
        low=1,
        **_of("log.cleaner.max.compaction.lag.ms"),
    )

    # --- segments ---
    segment_bytes: int = whole(
        1_073_741_824, "The size at which a new segment begins.", low=1024, **_of("log.segment.bytes")
    )
    segment_ms: int = long(
        604_800_000,
        "The age at which a new segment begins.",
        low=1,
        node_default="segment_ms",
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    index_interval_bytes: int = whole(
        4096, "Bytes of log between two entries of an index.", **_of("log.index.interval.bytes")
    )

    segment_index_bytes: int = whole(
        10_485_760, "The size of an index at which a new segment begins.", low=24
    )

    # --- records ---
    max_message_bytes: int = whole(1_048_588, "The largest batch accepted.", **_of("message.max.bytes"))
    min_insync_replicas: int = whole(
        1,
        "Copies without which acks=all is refused; a node alone keeps one, a cluster up to three.",
        low=1,
        **_of("min.insync.replicas"),
    )
    message_timestamp_type: str = choice(
        "CreateTime",
        "Whose time a record carries: the producer's or ours.",
        "CreateTime",
        "LogAppendTime",
        **_of("log.message.timestamp.type"),
    )
    message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        "How far behind our clock a record's time may be.",
        **_of("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_after_max_ms: int = long(
        3_600_000,
        "How far ahead of our clock a record's time may be.",
        **_of("log.message.timestamp.after.max.ms"),
    )
    compression_type: str = choice(
        "producer", "How batches are kept: as sent, or recompressed.", *CODECS, **_of("compression.type")
    )
    compression_gzip_level: int = whole(
        -1,
        "The level when compression.type is gzip.",
        low=-1,
        high=9,
        check=check_gzip_level,
        **_of("compression.gzip.level"),
    )
    compression_lz4_level: int = whole(
        9, "The level when compression.type is lz4.", low=1, high=17, **_of("compression.lz4.level")
    )
    compression_zstd_level: int = whole(
        3, "The level when compression.type is zstd.", low=-131_072, high=22, **_of("compression.zstd.level")
    )

    # --- accepted because Kafka's tools send them; without effect here ---
    flush_messages: int = long(
        LONG_MAX, "No effect: the node's flush setting decides when is synced.", low=1, has_effect=False
    )
    flush_ms: int = long(
        LONG_MAX, "No effect: the node's flush setting decides when is synced.", has_effect=False
    )
    file_delete_delay_ms: int = long(
        60_000, "No effect: a file goes as soon as no reader holds it.", has_effect=False
    )
    segment_jitter_ms: int = long(0, "No effect: segments need not be spread in time.", has_effect=False)
    preallocate: bool = flag(False, "No effect: files grow as they are written.", has_effect=False)
    unclean_leader_election_enable: bool = flag(
        False,
        "No effect: no election loses acknowledged records. Where too many copies are gone, `anabranch cluster ring "
        "recover` decides.",
        has_effect=False,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = names(
        (),
        "No effect: what is copied between brokers is not throttled.",
        check=_check_throttled,
        has_effect=False,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = names(
        (),
        "No effect: what is copied between brokers is not throttled.",
        check=_check_throttled,
        has_effect=False,
    )
    local_retention_ms: int = long(-2, "No effect: there is no remote storage.", low=-2, has_effect=False)
    local_retention_bytes: int = long(-2, "No effect: there is no remote storage.", low=-2, has_effect=False)

    # --- what would need storage elsewhere: only false is accepted ---
    remote_storage_enable: bool = flag(
        False, "Only false: there is no remote storage.", check=_check_not_remote, has_effect=False
    )
    remote_log_copy_disable: bool = flag(
        False, "Only false: there is no remote storage.", check=_check_not_remote, has_effect=False
    )
    remote_log_delete_on_disable: bool = flag(
        False, "Only false: there is no remote storage.", check=_check_not_remote, has_effect=False
    )

    overrides: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What the topic itself set, by dotted name; the rest are the node's defaults."""

    @classmethod
    def from_overrides(cls, node: NodeSettings, overrides: Mapping[str, str] | None = None) -> Self:
        overrides = overrides or {}
        values = {attribute_of(name): _node_value(node, setting) for name, setting in TOPIC_SETTINGS.items()}
        for name, given in overrides.items():
            values[attribute_of(name)] = _find(name).parse(given)
        kept = MappingProxyType(dict(overrides))
        return cls(**values, overrides=kept)  # type: ignore[arg-type] # parsed by kind

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_by_age(self) -> bool:
        """Whether retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def keeps_plain_batches(self) -> bool:
        """Whether an uncompressed batch is kept as it was sent, without a look at its records' keys and times; a
        compressed one too if `compression_type` is "producer"."""
        return (
            not self.is_compacted
            and not self.is_log_append_time
            and self.compression_type in ("producer", "uncompressed")
            and self.message_timestamp_before_max_ms == LONG_MAX
        )

    # --- for DescribeConfigs and AlterConfigs ---

    @staticmethod
    def check_known(name: str) -> None:
        """Raises InvalidConfigError, with what was probably meant, unless topics have such a config."""
        _find(name)

    def value_of(self, name: str) -> Value:
        self.check_known(name)
        value: Value = getattr(self, attribute_of(name))
        return value

    def describe(self, node: NodeSettings) -> list[ConfigEntry]:
        return [self._entry(node, setting) for setting in TOPIC_SETTINGS.values()]

    def _entry(self, node: NodeSettings, setting: Setting) -> ConfigEntry:
        synonyms = self._synonyms(node, setting)
        value = text_of(self.value_of(setting.name))
        return ConfigEntry(
            setting.name, value, synonyms[0].source, setting.kind, setting.doc, False, synonyms
        )

    def _synonyms(self, node: NodeSettings, setting: Setting) -> tuple[Synonym, ...]:
        """Everything that could decide the value, the strongest first: the topic, the node, our default."""
        found = []
        if setting.name in self.overrides:
            value = text_of(self.value_of(setting.name))
            found.append(Synonym(setting.name, value, ConfigSource.TOPIC))
        for name in setting.synonyms:
            if name in node.given:
                found.append(Synonym(name, text_of(node.value_of(name)), ConfigSource.NODE))
        # In its own unit: what decides retention.ms in the end is log.retention.hours, and that is 168.
        last = NODE_SETTINGS[setting.synonyms[-1]] if setting.synonyms else setting
        found.append(Synonym(last.name, text_of(last.default), ConfigSource.DEFAULT))
        return tuple(found)


TOPIC_SETTINGS: dict[str, Setting] = settings_of(TopicSettings)

_NODE_NAMES = {
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "log.segment.bytes": "segment.bytes",
    "log.cleanup.policy": "cleanup.policy",
    "message.max.bytes": "max.message.bytes",
    "mode": "anabranch.mode",
}
"""Names people bring from a node's settings that a topic writes otherwise."""


def _find(name: str) -> Setting:
    return find_setting(TOPIC_SETTINGS, name, _NODE_NAMES, "topic config")


def _node_value(node: NodeSettings, setting: Setting) -> Value:
    if not setting.node_default:
        return setting.default
    value: Value = getattr(node, setting.node_default)
    return value


# --- judging what somebody wants to set --------------------------------------------------------------------


def validate_topic_override(name: str, value: str | None) -> str:
    """The value as it is kept. Raises InvalidConfigError, by name, for anything a topic cannot have."""
    setting = _find(name)
    if value is None:
        raise InvalidConfigError(f"{name} has no value: give it {setting.expected}.")
    return text_of(setting.parse(value)) or ""


def validate_topic_overrides(node: NodeSettings, overrides: Mapping[str, str | None]) -> dict[str, str]:
    """All overrides of one topic, normalised, each alone and then together."""
    kept = {name: validate_topic_override(name, value) for name, value in overrides.items()}
    settings = TopicSettings.from_overrides(node, kept)
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        raise InvalidConfigError("min.compaction.lag.ms is above max.compaction.lag.ms: lower the first.")
    if settings.anabranch_mode == "ring" and node.peer_listen is None:
        raise InvalidConfigError(
            "anabranch.mode=ring needs other brokers, and this node is alone: leave it unset, and the topic becomes a "
            "ring when the node becomes a cluster."
        )
    if settings.anabranch_mode == "object" and node.object_store is None:
        raise InvalidConfigError(
            "anabranch.mode=object needs an object store, and this node has none: start it with --object-store URL, "
            "for example file:///srv/objects or s3://bucket/prefix."
        )
    if settings.anabranch_mode == "branch" and settings.is_compacted:
        raise InvalidConfigError(
            "cleanup.policy=compact does not go with anabranch.mode=branch in this version: leave it at delete, or "
            "take another mode."
        )
    promised = [
        name for name in ("flush.messages", "flush.ms") if kept.get(name, str(LONG_MAX)) != str(LONG_MAX)
    ]
    if promised and node.flush != "always":
        # Accepting it would promise a safety that this node does not keep.
        raise InvalidConfigError(
            f"{promised[0]} has no effect under flush={node.flush}: start the node with --flush always."
        )
    return kept


def append_to_list(name: str, current: str, added: str) -> str:
    """IncrementalAlterConfigs' APPEND: what the list becomes."""
    return ",".join(dict.fromkeys(_items(name, current) + _items(name, added)))


def subtract_from_list(name: str, current: str, removed: str) -> str:
    """IncrementalAlterConfigs' SUBTRACT: what the list becomes."""
    gone = set(_items(name, removed))
    return ",".join(item for item in _items(name, current) if item not in gone)


def _items(name: str, joined: str) -> list[str]:
    if _find(name).kind is not Kind.LIST:
        raise InvalidConfigError(f"{name} is not a list: set it instead of appending or subtracting.")
    return [item.strip() for item in joined.split(",") if item.strip()]
