"""confluent-kafka on topics in mode branch on one node: what it can do with any topic, and through restarts."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess

from .scenarios import PARTITIONS
from .test_confluent import (
    _done,
    admin,
    produce,
    test_admin_adds_partitions,
    test_admin_deletes_records_below_an_offset,
    test_admin_lists_offsets_by_position_and_by_time,
    test_every_level_of_acknowledgement_stores_the_records,
    test_group_shares_rebalances_commits_and_resumes,
    test_idempotent_production_stores_each_record_once_and_in_order,
    test_records_come_back_byte_for_byte,
)

__all__ = [
    "admin",
    "produce",
    "test_admin_adds_partitions",
    "test_admin_deletes_records_below_an_offset",
    "test_admin_lists_offsets_by_position_and_by_time",
    "test_every_level_of_acknowledgement_stores_the_records",
    "test_group_shares_rebalances_commits_and_resumes",
    "test_idempotent_production_stores_each_record_once_and_in_order",
    "test_records_come_back_byte_for_byte",
]

CONFIGS = {"anabranch.mode": "branch", "retention.ms": "-1"}
READ_S_MAX = 30.0
LANE_BITS = 32


@pytest.fixture
def topic(admin: AdminClient, unique: str) -> str:
    _done(admin.create_topics([NewTopic(unique, num_partitions=PARTITIONS, config=CONFIGS)]))
    return unique


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path) as node:
        yield node


def _follower(node: NodeProcess, topic: str, count: int, found: list[Any]) -> threading.Thread:
    """Reads one partition from its beginning until it has so many records; what it met is in `found`."""

    def read() -> None:
        settings = {
            "bootstrap.servers": node.bootstrap,
            "group.id": "follower",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 100,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while len(found) < count:
                message = consumer.poll(READ_S_MAX)
                if message is None:
                    return
                error = message.error()
                if error is None:
                    found.append((message.offset(), message.value()))
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    found.append(error)
                    return
        finally:
            consumer.close()

    thread = threading.Thread(target=read)
    thread.start()
    return thread


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_clients_go_on_through_restarts_and_each_start_is_a_lane(node: NodeProcess, ending: str) -> None:
    """An idempotent producer and a consumer that never rewinds, while the node ends and comes back twice."""
    lives, each = 3, 200
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    _done(admin.create_topics([NewTopic("t", num_partitions=1, config=CONFIGS)]))
    found: list[Any] = []
    follower = _follower(node, "t", lives * each, found)
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 100,
        }
    )
    refused: list[Any] = []
    for life in range(lives):
        for number in range(each):
            producer.produce(
                "t",
                b"%d" % (life * each + number),
                on_delivery=lambda error, _: error and refused.append(error),
            )
            if number == each // 4:
                assert producer.flush(READ_S_MAX) == 0
            if number == each // 2 and life < lives - 1:
                producer.poll(0.05)  # Some are on their way, some are acknowledged.
                getattr(node, ending)()
                node.start()
        assert producer.flush(READ_S_MAX) == 0
    follower.join()
    assert not refused
    assert [value for _, value in found] == [b"%d" % number for number in range(lives * each)]
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    assert list(range(lives)) == sorted({(offset >> LANE_BITS) // 1024 for offset in offsets})
