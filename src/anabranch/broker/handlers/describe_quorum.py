"""DescribeQuorum, versions 0 to 2: who keeps the metadata log, and how far each is, as its leader was told last."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.handlers.answers import refused
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows
from anabranch.broker.topics.topic_folders import METADATA_TOPIC
from anabranch.cluster.raft.messages import Member
from anabranch.errors import AnabranchError, UnknownTopicOrPartitionError
from anabranch.values import BrokerId
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

LISTENER = "PEERS"


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    topics = []
    for name, partitions in {topic["topic_name"]: topic["partitions"] for topic in request["topics"]}.items():
        rows = []
        for index in dict.fromkeys(each["partition_index"] for each in partitions):
            rows.append(_partition(broker, name, index))
            yield
        topics.append({"topic_name": name, "partitions": rows})
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics, "nodes": _nodes(broker)}


def _partition(broker: "Broker", name: str, index: int) -> dict[str, Any]:
    if (name, index) != (METADATA_TOPIC, 0):
        error = UnknownTopicOrPartitionError(f"Only {METADATA_TOPIC}-0 is kept by a quorum.")
        return {
            **refused(error),
            "partition_index": index,
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
            "current_voters": [],
            "observers": [],
        }
    metadata = broker.metadata
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "leader_id": metadata.me.broker_id,
        "leader_epoch": metadata.term,
        "high_watermark": metadata.applied_end,
        "current_voters": [_replica(broker, each) for each in sorted(metadata.members.voters)],
        "observers": [_replica(broker, each) for each in sorted(metadata.members.learners)],
    }


def _replica(broker: "Broker", member: Member) -> dict[str, Any]:
    return {
        "replica_id": member.broker_id,
        "replica_directory_id": UUID(hex=member.directory_id),
        **_progress(broker, member),
    }


def _progress(broker: "Broker", member: Member) -> dict[str, int]:
    now_ms = broker.clock.wall_ms()
    if member == broker.metadata.me:
        end = broker.metadata.partition.log.end_offset
        return {
            "log_end_offset": end,
            "last_fetch_timestamp": now_ms,
            "last_caught_up_timestamp": now_ms,
        }
    row = broker.metadata.table.brokers.get(BrokerId(member.broker_id))
    session = broker.orchestrator.session(BrokerId(member.broker_id))
    if (
        row is None
        or session is None
        or (row.directory_id, row.epoch) != (member.directory_id, session.epoch)
    ):
        return {"log_end_offset": -1}
    ago = now_ms - broker.clock.monotonic_ms()
    return {
        "log_end_offset": session.applied_end,
        "last_fetch_timestamp": session.heard_ms + ago,
        "last_caught_up_timestamp": -1 if session.caught_up_ms is None else session.caught_up_ms + ago,
    }


def _nodes(broker: "Broker") -> list[dict[str, Any]]:
    return [
        {
            "node_id": row.broker_id,
            "listeners": [{"name": LISTENER, "host": row.peer_host, "port": row.peer_port}],
        }
        for row in broker.orchestrator.rows().values()
        if row.peer_port
    ]


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    return {**refused(error), "topics": [], "nodes": []}
