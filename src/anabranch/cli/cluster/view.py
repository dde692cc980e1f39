"""The state of a running cluster, read with Kafka's own requests: brokers, quorum, who keeps what."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anabranch.errors import ClusterAnswerError, ClusterBusyError

if TYPE_CHECKING:
    from anabranch.local_cluster.cluster_client import ClusterClient

QUORUM_TOPIC = "__cluster_metadata"
MODE_CONFIG = "anabranch.mode"
CHANGING_CONFIG = "anabranch.mode.changing"
OBJECT, BRANCH = "object", "branch"
UP, SILENT, FENCED = "up", "silent", "fenced"
TOPIC_RESOURCE = 2


@dataclass(frozen=True, slots=True)
class BrokerView:
    broker_id: int
    address: str
    rack: str | None
    is_fenced: bool
    is_silent: bool = False
    """It was asked and did not answer; the others may not have noticed yet."""

    @property
    def state(self) -> str:
        return FENCED if self.is_fenced else SILENT if self.is_silent else UP


@dataclass(frozen=True, slots=True)
class PartitionView:
    topic: str
    partition: int
    partition_count: int
    leader: int
    """-1 if it has none now."""
    generation: int
    replicas: tuple[int, ...]
    """Empty for a topic in the object store: no broker keeps it, and each of them can serve it."""
    in_sync: tuple[int, ...]
    is_internal: bool = False
    mode: str = ""
    """The mode of its topic; empty if the cluster does not tell."""
    is_disputed: bool = False
    """Its leader, asked directly, names another leader or fewer copies in sync."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_short(self) -> bool:
        """Fewer copies in sync than it should have."""
        return len(self.in_sync) < len(self.replicas)

    @property
    def has_no_failover(self) -> bool:
        """Two copies: neither broker may write without the other. In mode branch each may."""
        return len(self.replicas) == 2 and self.mode != BRANCH

    @property
    def is_assigned(self) -> bool:
        """A reassignment may choose the brokers that keep it; in the other modes they follow from the mode."""
        return self.mode not in (OBJECT, BRANCH)


@dataclass(frozen=True, slots=True)
class VoterView:
    broker_id: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class QuorumView:
    leader: int
    epoch: int
    high_watermark: int
    voters: list[VoterView]
    observers: list[VoterView]

    def role_of(self, broker_id: int) -> str:
        if broker_id == self.leader:
            return "leader"
        return "voter" if any(voter.broker_id == broker_id for voter in self.voters) else "observer"


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    controller: int
    brokers: dict[int, BrokerView]
    partitions: list[PartitionView] = field(default_factory=list)

    @property
    def live(self) -> list[int]:
        return sorted(
            each.broker_id for each in self.brokers.values() if not (each.is_fenced or each.is_silent)
        )

    @property
    def silent(self) -> list[int]:
        return [broker_id for broker_id, each in self.brokers.items() if each.is_silent]

    def is_unconfirmed(self, partition: PartitionView) -> bool:
        """Whether its reported state may be outdated: its leader, or a copy said to be in sync, is silent or fenced."""
        away = set(self.brokers) - set(self.live)
        return bool(partition.replicas) and not {partition.leader, *partition.in_sync}.isdisjoint(away)


def read_view(client: "ClusterClient") -> ClusterView:
    from anabranch.wire.api_keys import ApiKey

    described = client.ask(ApiKey.DESCRIBE_CLUSTER, {"include_fenced_brokers": True})
    require(described["error_code"], described["error_message"], "The cluster could not be described")
    brokers = {
        row["broker_id"]: BrokerView(
            row["broker_id"], f"{row['host']}:{row['port']}", row["rack"], row["is_fenced"]
        )
        for row in described["brokers"]
    }
    topics = sorted(client.metadata()["topics"], key=lambda topic: str(topic["name"]))
    modes = _modes(client, topics)
    partitions = [
        _partition(topic, row, modes.get(topic["name"], {}))
        for topic in topics
        for row in sorted(topic["partitions"], key=lambda row: int(row["partition_index"]))
    ]
    return ClusterView(
        described["cluster_id"], described["controller_id"], dict(sorted(brokers.items())), partitions
    )


OwnView = Mapping[tuple[str, int], tuple[int, frozenset[int]]]
"""Who leads each partition and which copies are in sync, according to one broker."""


def read_own_views(client: "ClusterClient", broker_ids: list[int]) -> dict[int, OwnView]:
    """What each broker says when asked directly. Brokers that do not answer are left out."""
    from anabranch.wire.api_keys import ApiKey

    body = {"topics": None, "allow_auto_topic_creation": False}
    return {
        broker_id: {
            (topic["name"], row["partition_index"]): (row["leader_id"], frozenset(row["isr_nodes"]))
            for topic in answer["topics"]
            for row in topic["partitions"]
        }
        for broker_id, answer in client.ask_each(ApiKey.METADATA, dict.fromkeys(broker_ids, body)).items()
        if not isinstance(answer, ClusterAnswerError)
    }


def checked(view: ClusterView, heard: Mapping[int, OwnView]) -> ClusterView:
    """The view, corrected by what each broker said when asked directly. What one broker says of another may be as old
    as it takes to notice that the other is gone."""
    brokers = {
        broker_id: replace(each, is_silent=not each.is_fenced and broker_id not in heard)
        for broker_id, each in view.brokers.items()
    }
    partitions = [replace(each, is_disputed=_is_disputed(each, heard)) for each in view.partitions]
    return replace(view, brokers=brokers, partitions=partitions)


def _is_disputed(partition: PartitionView, heard: Mapping[int, OwnView]) -> bool:
    if partition.leader not in heard or not partition.is_assigned:
        return False
    leader, in_sync = heard[partition.leader].get((partition.topic, partition.partition), (-1, frozenset()))
    return leader != partition.leader or not in_sync.issuperset(partition.in_sync)


def _modes(client: "ClusterClient", topics: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The settings of each topic that concern its mode. Metadata names the broker that should serve a topic in the
    object store as its only replica, and gives a topic in mode branch no generation."""
    from anabranch.wire.api_keys import ApiKey

    if not topics:
        return {}
    keys = [MODE_CONFIG, CHANGING_CONFIG]
    resources = [
        {"resource_type": TOPIC_RESOURCE, "resource_name": topic["name"], "configuration_keys": keys}
        for topic in topics
    ]
    answer = client.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": resources})
    return {
        row["resource_name"]: {config["name"]: config["value"] or "" for config in row["configs"]}
        for row in answer["results"]
    }


def _partition(topic: dict[str, Any], row: dict[str, Any], configs: dict[str, str]) -> PartitionView:
    mode = configs.get(MODE_CONFIG, "")
    # A topic that changes its mode may still be kept by the brokers that Metadata names.
    is_changing = CHANGING_CONFIG in configs
    is_stored = mode == OBJECT and not is_changing
    # If no leader is known, a broker names the one there should be, without a generation; branches have none.
    is_branch = mode == BRANCH or is_changing
    is_known = row["leader_epoch"] >= 0 or len(row["replica_nodes"]) == 1 or is_branch
    return PartitionView(
        topic["name"],
        row["partition_index"],
        len(topic["partitions"]),
        row["leader_id"] if is_known else -1,
        row["leader_epoch"],
        () if is_stored else tuple(row["replica_nodes"]),
        () if is_stored else tuple(row["isr_nodes"]),
        topic["is_internal"],
        mode,
    )


def read_quorum(client: "ClusterClient") -> QuorumView:
    from anabranch.wire.api_keys import ApiKey

    asked = [{"topic_name": QUORUM_TOPIC, "partitions": [{"partition_index": 0}]}]
    answer = client.ask(ApiKey.DESCRIBE_QUORUM, {"topics": asked})
    require(answer["error_code"], answer["error_message"], "The quorum could not be described")
    (row,) = answer["topics"][0]["partitions"]
    require(row["error_code"], row["error_message"], "The quorum could not be described")
    end = max((voter["log_end_offset"] for voter in row["current_voters"]), default=0)
    return QuorumView(
        row["leader_id"],
        row["leader_epoch"],
        row["high_watermark"],
        [_voter(voter, end) for voter in row["current_voters"]],
        [_voter(voter, end) for voter in row["observers"]],
    )


def _voter(row: dict[str, Any], end: int) -> VoterView:
    return VoterView(row["replica_id"], row["log_end_offset"], max(0, end - row["log_end_offset"]))


@dataclass(frozen=True, slots=True)
class ReplicaView:
    size_bytes: int
    lag: int
    """Records below the high watermark that it does not have."""


def read_replicas(
    client: "ClusterClient", broker_ids: list[int]
) -> dict[int, dict[tuple[str, int], ReplicaView]]:
    """What each broker holds. Brokers that do not answer are left out."""
    from anabranch.wire.api_keys import ApiKey

    bodies = {broker_id: {"topics": None} for broker_id in broker_ids}
    return {
        broker_id: {
            (topic["name"], row["partition_index"]): ReplicaView(row["partition_size"], row["offset_lag"])
            for folder in answer["results"]
            for topic in folder["topics"]
            for row in topic["partitions"]
        }
        for broker_id, answer in client.ask_each(ApiKey.DESCRIBE_LOG_DIRS, bodies).items()
        if not isinstance(answer, ClusterAnswerError)
    }


def require(code: int, message: str | None, what: str) -> None:
    from anabranch.local_cluster.cluster_client import refusal
    from anabranch.wire.error_codes import ErrorCode

    if code:
        is_passing = code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
        kind = ClusterBusyError if is_passing else ClusterAnswerError
        raise kind(f"{what}: {refusal(code, message)}.")
