"""What tests ask a cluster of real processes, besides what `ClusterProcesses` answers itself."""

from collections.abc import Collection

from anabranch.local_cluster.cluster_client import Body, ClusterClient
from anabranch.record.builder import BatchBuilder
from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.waiting import wait_until

ANSWER_S_MAX = 10.0
READY_S_MAX = 60.0


def ask(cluster: ClusterProcesses, api: ApiKey, body: Body, broker: int | None = None) -> Body:
    """The answer of that broker, or of any. One that is cut off can be asked too."""
    address = cluster.bootstrap if broker is None else cluster.layout.places[broker].kafka
    with ClusterClient(address, ANSWER_S_MAX) as client:
        return client.ask(api, body)


def voters(cluster: ClusterProcesses) -> set[int]:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = ask(cluster, ApiKey.DESCRIBE_QUORUM, {"topics": asked}, cluster.controller())
    [row] = answer["topics"][0]["partitions"]
    return {voter["replica_id"] for voter in row["current_voters"]}


def wait_for_voters(cluster: ClusterProcesses, count: int = 3) -> None:
    """Until the quorum has so many: sooner it does not survive the loss of one."""
    wait_until(lambda: len(voters(cluster)) == count, f"{count} voters", READY_S_MAX)


def create_topic(
    cluster: ClusterProcesses, topic: str, partitions: int = 1, copies: int = -1, broker: int | None = None
) -> ErrorCode:
    wanted = {"name": topic, "num_partitions": partitions, "replication_factor": copies}
    answer = ask(cluster, ApiKey.CREATE_TOPICS, {"topics": [wanted], "timeout_ms": 5000}, broker)
    return ErrorCode(answer["topics"][0]["error_code"])


def partition_rows(cluster: ClusterProcesses, topic: str, broker: int | None = None) -> list[Body]:
    body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    [row] = ask(cluster, ApiKey.METADATA, body, broker)["topics"]
    return list(row["partitions"])


def wait_until_in_sync(cluster: ClusterProcesses, topics: Collection[str], copies: int = 3) -> None:
    """Until every partition has so many copies that keep up, and a leader: what an operator waits for before the next
    step."""

    def all_in_sync() -> bool:
        rows = [row for topic in topics for row in partition_rows(cluster, topic)]
        return bool(rows) and all(len(row["isr_nodes"]) == copies and row["leader_id"] >= 0 for row in rows)

    wait_until(all_in_sync, f"{copies} copies in sync of {sorted(topics)}", READY_S_MAX)


def coordinator_of(cluster: ClusterProcesses, group: str) -> int:
    def find() -> list[int]:
        answer = ask(cluster, ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]})
        [row] = answer["coordinators"]
        return [row["node_id"]] if row["error_code"] == 0 else []

    return wait_until(find, f"a coordinator of {group}")[0]


def produce(
    cluster: ClusterProcesses,
    topic: str,
    value: bytes,
    broker: int,
    *,
    partition: int = 0,
    timeout_ms: int = 2000,
) -> ErrorCode:
    """One record with acks=all to exactly that broker."""
    builder = BatchBuilder()
    builder.add(None, value, timestamp_ms=0)
    data = {"index": partition, "records": bytes(builder.build())}
    [row] = ask(cluster, ApiKey.METADATA, {"topics": [{"name": topic}]}, broker)["topics"]
    rows = [{"name": topic, "topic_id": row["topic_id"], "partition_data": [data]}]
    body = {"acks": -1, "timeout_ms": timeout_ms, "topic_data": rows}
    answer = ask(cluster, ApiKey.PRODUCE, body, broker)
    return ErrorCode(answer["responses"][0]["partition_responses"][0]["error_code"])


def log_bytes(cluster: ClusterProcesses, broker: int, topic: str, partition: int = 0) -> bytes:
    """The records of a partition as they lie on that broker's disk."""
    folder = cluster.layout.places[broker].folder / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
