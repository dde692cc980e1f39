"""One topic that is moved, deleted and made again while brokers are killed, one or all at once: what was acknowledged
is there in the end, at its offset, and no offset was given twice.

A process that is killed loses nothing it wrote, but starts with the table of its last checkpoint: what is on its disk
may be of later than what it knows.
"""

import logging
from collections.abc import Iterator
from random import Random
from uuid import UUID

import pytest

from anabranch.broker.topics.partition import Partition
from anabranch.record.batch import batch_spans
from anabranch.record.records import records_of
from anabranch.testing.in_process_client import Body, Pending
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import close_all
from support.ring_cluster import RingCluster

BROKERS = (1, 2, 3, 4)
PAUSES_MS = (0, 20, 100, 500, 1500, 3000, 6000)
NO_ID = UUID(int=0)
TIMEOUT_MS = 3000
BATCH_BYTES_MAX = 2**20


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class Churn:
    def __init__(self, seed: int) -> None:
        self.rng = Random(f"churn {seed}")
        self.cluster = RingCluster(seed)
        self.cluster.start(*BROKERS)
        self.cluster.settle()
        self.acknowledged: dict[UUID, dict[int, bytes]] = {}
        self._value = 0

    def run(self) -> None:
        self.make()
        self.cluster.run(1500)
        acts = {
            self.produce: 18,
            self.move: 4,
            self.make_again: 1.5,
            self.kill_one: 2,
            self.kill_all: 1.5,
            self.start_all: 2,
        }
        for _ in range(self.rng.randint(15, 40)):
            self.rng.choices(list(acts), list(acts.values()))[0]()
            self.cluster.run(self.rng.choice(PAUSES_MS))
        self.start_all()

    # --- people

    def _ask(self, api: ApiKey, version: int, body: Body) -> None:
        """Whatever comes of it."""
        life = self.cluster.lives[self.rng.choice(sorted(self.cluster.lives))]

        async def send() -> Pending:
            return life.client.send(api, version, {**body, "timeout_ms": TIMEOUT_MS})

        pending: Pending = self.cluster.do(send())
        end_ms = self.cluster.clock.monotonic_ms() + 2 * TIMEOUT_MS
        while not pending.is_settled and self.cluster.clock.monotonic_ms() < end_ms:
            self.cluster.run(50)

    def _somewhere(self) -> list[int]:
        return self.rng.sample(BROKERS, self.rng.choice((1, 2, 3, 3)))

    def make(self) -> None:
        assigned = [{"partition_index": 0, "broker_ids": self._somewhere()}]
        topic = {
            "name": "t",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assigned,
            "configs": [],
        }
        self._ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "validate_only": False})

    def make_again(self) -> None:
        self._ask(ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": NO_ID}]})
        self.make()

    def move(self) -> None:
        partition = {"partition_index": 0, "replicas": self._somewhere()}
        self._ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": [{"name": "t", "partitions": [partition]}]}
        )

    def led(self) -> Iterator[tuple[int, Partition]]:
        """Whoever takes records now, rightly or not."""
        for broker_id in sorted(self.cluster.lives):
            partition = self.cluster.broker(broker_id).topics.find_partition("t", 0)
            if partition is not None and partition.is_leader and partition.is_settled:
                yield broker_id, partition

    def produce(self) -> None:
        for broker_id, partition in list(self.led()):
            self._value += 1
            value = b"%d" % self._value
            row = self.cluster.produce(broker_id, "t", value)["responses"][0]["partition_responses"][0]
            if row["error_code"] == 0:
                known = self.acknowledged.setdefault(partition.topic_id, {})
                assert row["base_offset"] not in known, f"offset {row['base_offset']} was given twice"
                known[row["base_offset"]] = value

    # --- faults

    def kill_one(self) -> None:
        if len(self.cluster.lives) > 2:
            self.cluster.kill(self.rng.choice(sorted(self.cluster.lives)))

    def kill_all(self) -> None:
        for broker_id in sorted(self.cluster.lives):
            self.cluster.kill(broker_id)
        self.start_all()

    def start_all(self) -> None:
        self.cluster.start(*(set(BROKERS) - self.cluster.lives.keys()))

    # --- in the end

    def check(self) -> None:
        cluster = self.cluster
        cluster.run(15_000)
        tables = [cluster.broker(broker_id).metadata.table.topics for broker_id in BROKERS]
        assert all(each == tables[0] for each in tables)
        topic = tables[0].get("t")
        if topic is None:
            return
        cluster.until(lambda: any(self.led()), 60_000)
        ((_, partition),) = self.led()
        assert partition.topic_id == topic.topic_id
        found = _values(partition)
        wanted = self.acknowledged.get(topic.topic_id, {})
        lost = {offset: value for offset, value in wanted.items() if found.get(offset) != value}
        assert not lost, f"acknowledged and gone: {lost}"


def _values(partition: Partition) -> dict[int, bytes]:
    log, found = partition.log, {}
    at = log.start_offset
    while at < log.end_offset:
        data = log.slice(at, BATCH_BYTES_MAX, log.end_offset).read()
        for first, last in batch_spans(data):
            for record in records_of(data[first:last], BATCH_BYTES_MAX):
                found[record.offset] = bytes(record.value or b"")
                at = record.offset + 1
    return found


@pytest.mark.parametrize("seed", [*range(10), 18, 36, 37])  # The last three have found something.
def test_what_was_acknowledged_survives_whatever_becomes_of_the_topic(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        churn = Churn(seed)
        churn.run()
        churn.check()
