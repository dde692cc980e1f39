"""Internal topics: what clients may not do to the logs that brokers keep for themselves.

`__consumer_offsets` holds the committed offsets of every group. Kafka lets an administrator give it any config; here
those that decide which of its records are kept cannot be changed, because a group whose offsets have expired starts
over or skips records without an error. Nor can those be set that would let the log grow without end, or that promise
what commits do not follow. Nobody but the brokers writes to an internal topic, shortens it, adds partitions
to it or deletes it (`handlers/produce.py`, `handlers/delete_records.py`, `topics.py`).
"""

from collections.abc import Mapping

from anabranch.broker.topics.topics import OFFSETS_BRANCH_OVERRIDES, OFFSETS_OVERRIDES, OFFSETS_TOPIC
from anabranch.cluster.metadata.residence import BRANCH
from anabranch.cluster.metadata.rows import INTERNAL_NAMES, MODE_CONFIG
from anabranch.cluster.placement import UNSET
from anabranch.config import NodeSettings, TopicSettings
from anabranch.config.setting import attribute_of, text_of
from anabranch.errors import InvalidConfigError, InvalidReplicationFactorError, InvalidTopicError

UNLIMITED = "-1"
PROTECTED = ("cleanup.policy", "retention.ms", "retention.bytes")
"""Configs of `__consumer_offsets` that decide which committed offsets are kept."""
GROWS = "superseded offsets would not be removed, and the topic would grow"
IGNORED = "brokers write committed offsets whatever it says"
AT_MOST = {
    "delete.retention.ms": GROWS,
    "min.cleanable.dirty.ratio": GROWS,
    "min.compaction.lag.ms": GROWS,
    "min.insync.replicas": IGNORED,
}
"""Configs of `__consumer_offsets` that cannot be set above the node's default, and why."""
AT_LEAST = {"max.message.bytes": IGNORED}
"""Those that cannot be set below it."""

Overrides = Mapping[str, str | None]


def check_not_internal(name: str) -> None:
    """Refuse what only brokers may do to the records of an internal topic."""
    if name in INTERNAL_NAMES:
        raise InvalidTopicError(f"{name} is internal: its records are written and removed by brokers alone.")


def with_required(name: str, overrides: Overrides, current: Overrides | None = None) -> dict[str, str | None]:
    """The overrides of a topic that is made or altered as a whole, with those an internal one needs and that were left
    out: an alteration that names other configs does not reset them."""
    if name != OFFSETS_TOPIC:
        return dict(overrides)
    return {**_required(overrides if current is None else current), **overrides}


def check_overrides(
    name: str, node: NodeSettings, overrides: Mapping[str, str], current: Mapping[str, str] | None = None
) -> None:
    """Raise InvalidConfigError if a protected config would change, or a limited one leave its limits. One that was set
    wrongly may be put right."""
    if name != OFFSETS_TOPIC:
        return
    required = _required(overrides if current is None else current)
    before = TopicSettings.from_overrides(node, required if current is None else current)
    after = TopicSettings.from_overrides(node, overrides)
    for config in PROTECTED:
        value, now = text_of(after.value_of(config)), text_of(before.value_of(config))
        if value not in (now, required.get(config, UNLIMITED)):
            raise InvalidConfigError(
                f"{config} of {name} cannot be {value}, only {now}: committed offsets would be removed, and their "
                "groups would start over or skip records."
            )
    usual = TopicSettings.from_overrides(node, required)
    for config, why in (AT_MOST | AT_LEAST).items():
        is_upper = config in AT_MOST
        value, *allowed = (getattr(each, attribute_of(config)) for each in (after, before, usual))
        limit = max(allowed) if is_upper else min(allowed)
        if value > limit if is_upper else value < limit:
            raise InvalidConfigError(
                f"{config} of {name} cannot be {value}, but {limit} at {'most' if is_upper else 'least'}: {why}."
            )


def check_creation(name: str, factor: int, factor_usual: int, *, is_assigned: bool) -> None:
    """Whether a client may make this topic. The brokers make `__consumer_offsets` when the first group needs it; who
    makes it earlier may choose its number of partitions, and no fewer copies than it would get."""
    if name not in INTERNAL_NAMES:
        return
    if name != OFFSETS_TOPIC:
        raise InvalidTopicError(f"{name} is a name for brokers alone: choose another.")
    if is_assigned or (factor != UNSET and factor < factor_usual):
        raise InvalidReplicationFactorError(
            f"{name} is placed by the brokers, with {factor_usual} copies: leave replication factor and assignment out."
        )


def _required(overrides: Overrides) -> dict[str, str]:
    is_branch = overrides.get(MODE_CONFIG) == BRANCH
    return dict(OFFSETS_BRANCH_OVERRIDES if is_branch else OFFSETS_OVERRIDES)
