"""The settings of one log, as this room understands them; the broker makes one from a topic's configs."""

from dataclasses import dataclass

SEGMENT_BYTES_MAX = 2**31 - 1


@dataclass(frozen=True)
class LogConfig:
    """Defaults are Kafka's. -1 means without limit, in retention only."""

    segment_bytes: int = 2**30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    index_bytes_max: int = 10 * 2**20
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    compacted: bool = False
    """cleanup.policy has `compact`."""
    deleted: bool = True
    """cleanup.policy has `delete`."""
    delete_retention_ms: int = 24 * 3600 * 1000
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = 2**63 - 1
    dirty_ratio_min: float = 0.5
    batch_bytes_max: int = 128 * 2**20
    """What one batch may unpack to, for those who look inside: time lookups and the cleaner."""
