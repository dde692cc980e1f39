"""The limits and delays of consumer groups, as plain values; their Kafka names stand beside them."""

from dataclasses import dataclass

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    session_timeout_ms_min: int = 6_000
    """group.min.session.timeout.ms: a shorter session is refused."""

    session_timeout_ms_max: int = 30 * _MINUTE_MS
    """group.max.session.timeout.ms: a longer session is refused."""

    initial_rebalance_delay_ms: int = 100
    """group.initial.rebalance.delay.ms: how long an empty group waits for more members, again after each
    newcomer.

    Kafka's 3,000 ms suits a fleet that starts over seconds; 0 gives every member of a group that starts
    together a generation of its own. 100 ms catches processes started by one command and is not felt by a
    person or a test.
    """

    members_max: int = 2**31 - 1
    """group.max.size: further members are refused."""

    memory_bytes_max: int = 64 * 2**20
    """group.memory.bytes.max: what the members of all groups may take together."""

    new_member_join_timeout_ms: int = 5 * _MINUTE_MS
    """How long a member that has never been answered may wait in its first join before it is taken for
    gone.
    """

    offset_metadata_bytes_max: int = 4_096
    """offset.metadata.max.bytes: the longest note a commit may carry (like Kafka, counted in characters)."""

    offsets_memory_bytes_max: int = 128 * 2**20
    """offsets.memory.bytes.max: what the committed offsets of all groups may take together."""

    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS
    """offsets.retention.minutes: how long offsets outlive the last member, or a simple consumer's last
    commit.
    """

    offsets_retention_check_interval_ms: int = 10 * _MINUTE_MS
    """offsets.retention.check.interval.ms: how often expired offsets are looked for."""
