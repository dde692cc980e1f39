"""Every setting once: its name, kind, default, bounds and one sentence.

A setting that means what Kafka's means has Kafka's dotted name; the attribute is that name with underscores.
`node_settings` is what a node is started with, `topic_settings` what a topic may override, `setting` how one
value is read and refused, `settings_file` the TOML file. This room knows `errors` and nothing else of
ours; it reads no clock, no socket and, but for the TOML file, no disk.
"""

from anabranch.config.node_settings import NODE_SETTINGS, PARTITIONS_MAX, NodeSettings
from anabranch.config.setting import (
    ConfigEntry,
    ConfigSource,
    Kind,
    Setting,
    Synonym,
    host_and_port,
    http_host_and_port,
    is_loopback,
    text_of,
)
from anabranch.config.settings_file import broker_tables, read_settings_file, settings_of_broker
from anabranch.config.topic_settings import (
    TOPIC_SETTINGS,
    TopicSettings,
    append_to_list,
    subtract_from_list,
    validate_topic_override,
    validate_topic_overrides,
)

__all__ = [
    "NODE_SETTINGS",
    "PARTITIONS_MAX",
    "TOPIC_SETTINGS",
    "ConfigEntry",
    "ConfigSource",
    "Kind",
    "NodeSettings",
    "Setting",
    "Synonym",
    "TopicSettings",
    "append_to_list",
    "broker_tables",
    "host_and_port",
    "http_host_and_port",
    "is_loopback",
    "read_settings_file",
    "settings_of_broker",
    "subtract_from_list",
    "text_of",
    "validate_topic_override",
    "validate_topic_overrides",
]
