"""Whole brokers, and what a client asks of a partition that all of them keep."""

from typing import Any
from uuid import UUID

from anabranch.broker.ring.driver import ring_driver
from anabranch.broker.topics.partition import Partition
from anabranch.record.builder import BatchBuilder
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import BrokerCluster


class RingCluster(BrokerCluster):
    def topic(self, name: str, **configs: str) -> None:
        """With one partition on all three, which somebody leads when this returns."""
        wanted = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        row = {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 3,
            "assignments": [],
            "configs": wanted,
        }
        body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
        answer = self.ask(1, ApiKey.CREATE_TOPICS, 7, body)
        assert answer["topics"][0]["error_code"] == 0, answer
        self.until(lambda: self.led(name) is not None)

    def remove_topic(self, name: str) -> None:
        body = {"topics": [{"name": name, "topic_id": UUID(int=0)}], "timeout_ms": 10_000}
        answer = self.ask(1, ApiKey.DELETE_TOPICS, 6, body)
        assert answer["responses"][0]["error_code"] == 0, answer

    def led(self, name: str) -> int | None:
        """Who leads its partition, may write, and knows what is safe."""
        for broker_id in self.lives:
            partition = self.broker(broker_id).topics.find_partition(name, 0)
            ring = ring_driver(partition) if partition is not None else None
            if ring is not None and ring.mode.may_write and ring.mode.is_settled:
                return broker_id
        return None

    def partition(self, broker_id: int, name: str) -> Partition:
        return self.broker(broker_id).topics.partition(name, 0)

    def produce(
        self, broker_id: int, name: str, *values: bytes, acks: int = -1, version: int = 12
    ) -> dict[str, Any]:
        """The whole answer."""
        builder = BatchBuilder()
        for value in values:
            builder.add(None, value, timestamp_ms=1_700_000_000_000)
        data = [{"name": name, "partition_data": [{"index": 0, "records": bytes(builder.build())}]}]
        body = {"transactional_id": None, "acks": acks, "timeout_ms": 5000, "topic_data": data}
        return self.ask(broker_id, ApiKey.PRODUCE, version, body)

    def fetch(
        self, broker_id: int, name: str, offset: int, *, version: int = 16, **fields: int
    ) -> dict[str, Any]:
        topic_id = self.broker(broker_id).topics.known(name).topic.topic_id
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "current_leader_epoch": fields.get("epoch", -1),
            "last_fetched_epoch": fields.get("last_fetched", -1),
            "log_start_offset": -1,
            "partition_max_bytes": 2**20,
        }
        topic = {"topic_id": topic_id} if version >= 13 else {"topic": name}
        body = {
            "max_wait_ms": fields.get("wait_ms", 100),
            "min_bytes": 1,
            "max_bytes": 2**20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{**topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
        }
        return self.ask(broker_id, ApiKey.FETCH, version, body)
