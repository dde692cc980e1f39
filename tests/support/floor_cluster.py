"""Three brokers and a topic whose older records lie in the object store, below branches: each side of a split is asked
for itself."""

from typing import Any

from anabranch.broker.branch.partition import BranchPartition
from anabranch.record.builder import BatchBuilder
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.form_cluster import Body
from support.join_cluster import JoinCluster

RECORDS = 20


class FloorCluster(JoinCluster):
    asked: int | None = None
    """By whose word somebody leads; None: that of anybody."""

    @classmethod
    def in_branches(cls, kept: int = 0, **configs: str) -> "FloorCluster":
        """`kept`: records that brokers keep as a ring before the topic goes on into branches."""
        cluster = cls("object", **configs)
        for _ in range(RECORDS):
            cluster.produce()
        if kept:
            cluster.change("ring", "kept")
            for _ in range(kept):
                cluster.produce()
        cluster.change("branch", "branched")
        cluster.until(lambda: cluster.leader_of(0) is not None and cluster.reigns(cluster.leader_of(0)))
        return cluster

    @property
    def floor(self) -> int:
        return self.placement().floor

    def leader_of(self, index: int) -> int | None:
        if self.asked is None:
            return super().leader_of(index)
        broker = self.broker(self.asked)
        topic = broker.metadata.table.topics["t"]
        found = broker.leaders.of(topic.topic_id, index).broker_id
        return found if found in self.lives else None

    def reigns(self, broker: int | None) -> bool:
        found = self.broker(broker).topics.find_partition("t", 0) if broker is not None else None
        return isinstance(found, BranchPartition) and found.reign is not None

    def cut_off(self, broker: int) -> None:
        """Until both sides have a primary."""
        self.net.isolate(BrokerId(broker))
        others = [each for each in self.lives if each != broker]
        self.until(lambda: self.reigns(broker) and any(self.reigns(each) for each in others))
        self.until(lambda: self.leader_id is not None and self.leader_id != broker)

    def join_again(self) -> None:
        self.net.heal()
        self.asked = None

        def is_one() -> bool:
            tips = {
                life.broker.topics.partition("t", 0).tip  # type: ignore[attr-defined]
                for life in self.lives.values()
            }
            return len(tips) == 1 and sum(map(self.reigns, self.lives)) == 1

        self.until(is_one)

    def write(self, value: bytes, at: int) -> None:
        """By nobody in particular, to whoever leads by the word of this broker."""
        builder = BatchBuilder()
        builder.add(b"k", value, timestamp_ms=self.clock.wall_ms())
        rows = [{"index": 0, "records": bytes(builder.build())}]
        body = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": "t", "partition_data": rows}],
        }
        self.asked = at

        def work(leader: int) -> int:
            answer = self.ask(leader, ApiKey.PRODUCE, 9, body)
            return int(answer["responses"][0]["partition_responses"][0]["error_code"])

        self._retried(0, work)

    def read_at(self, broker: int, start: int = 0) -> list[bytes]:
        self.asked = broker
        return self.values(0, start)

    def offset_of_time(self, timestamp_ms: int, at: int, topic: str = "t") -> tuple[int, int, int]:
        """ListOffsets of this very broker: error, offset, timestamp."""
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp_ms}
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [asked]}],
            "timeout_ms": 1000,
        }
        row = self.ask(at, ApiKey.LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
        return row["error_code"], row["offset"], row["timestamp"]

    def fetch_at(self, broker: int, at: int, topic: str) -> Body:
        """One answer of this very broker."""
        partition = {
            "partition": 0,
            "fetch_offset": at,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 2**20,
        }
        body = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 2**20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
        }
        answer: Any = self.ask(broker, ApiKey.FETCH, 12, body)
        return dict(answer["responses"][0]["partitions"][0])

    def delete_at(self, broker: int, offset: int) -> tuple[E, int]:
        """DeleteRecords of this very broker: the error, and where the partition begins now."""
        asked = {"partition_index": 0, "offset": offset}
        body = {"topics": [{"name": "t", "partitions": [asked]}], "timeout_ms": 5000}
        row = self.ask(broker, ApiKey.DELETE_RECORDS, 2, body)["topics"][0]["partitions"][0]
        return E(row["error_code"]), row["low_watermark"]
