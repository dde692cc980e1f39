"""A cluster under random kills and cuts, asked for random changes at random brokers: in the end all agree, and what was
acknowledged is so."""

from collections.abc import Iterator
from random import Random

import pytest

from anabranch.testing.in_process_client import Body, Pending
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import BrokerCluster, close_all

BROKERS = (1, 2, 3, 4, 5)
STEPS = 40


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class Run:
    def __init__(self, seed: int) -> None:
        self.rng = Random(f"orchestrator {seed}")
        self.cluster = BrokerCluster(seed)
        self.cluster.start(*BROKERS)
        self.cluster.settle()
        self.wanted: dict[str, list[tuple[str, Pending]]] = {}
        """By topic: what was asked for, in order."""
        self.producer_ids: list[Pending] = []

    def step(self) -> None:
        choice = self.rng.choice(
            (
                self.make,
                self.make,
                self.make,
                self.delete,
                self.take,
                self.kill,
                self.back,
                self.cut,
                self.heal,
            )
        )
        choice()
        self.cluster.run(self.rng.choice((50, 300, 1500)))

    def _send(self, key: ApiKey, version: int, body: Body) -> Pending:
        life = self.cluster.lives[self.rng.choice(sorted(self.cluster.lives))]

        async def send() -> Pending:
            return life.client.send(key, version, body)

        pending: Pending = self.cluster.do(send())
        return pending

    def make(self) -> None:
        name = f"topic-{len(self.wanted)}"
        topic = {
            "name": name,
            "num_partitions": self.rng.randint(1, 4),
            "replication_factor": self.rng.choice((-1, 1, 2)),
            "assignments": [],
            "configs": [],
        }
        body = {"topics": [topic], "timeout_ms": 4000}
        self.wanted[name] = [("make", self._send(ApiKey.CREATE_TOPICS, 7, body))]

    def delete(self) -> None:
        if self.wanted:
            name = self.rng.choice(sorted(self.wanted))
            body = {"topic_names": [name], "timeout_ms": 4000}
            self.wanted[name].append(("delete", self._send(ApiKey.DELETE_TOPICS, 5, body)))

    def take(self) -> None:
        body = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
        self.producer_ids.append(self._send(ApiKey.INIT_PRODUCER_ID, 4, body))

    def kill(self) -> None:
        if len(self.cluster.lives) > 3:
            self.cluster.kill(self.rng.choice(sorted(self.cluster.lives)))

    def back(self) -> None:
        for broker_id in set(BROKERS) - set(self.cluster.lives):
            self.cluster.start(broker_id)

    def cut(self) -> None:
        one, other = self.rng.sample(BROKERS, 2)
        self.cluster.net.cut(BrokerId(one), BrokerId(other), one_way=self.rng.random() < 0.3)

    def heal(self) -> None:
        self.cluster.net.heal()

    def calm(self) -> None:
        self.heal()
        self.back()
        self.cluster.settle()
        self.cluster.run(15_000)

    def check(self) -> None:
        tables = [self.cluster.broker(each).metadata.table for each in BROKERS]
        assert all(table.snapshot() == tables[0].snapshot() for table in tables)
        for name, asked in self.wanted.items():
            self._check_topic(name, asked)
        ids = [
            each.body["producer_id"]
            for each in self.producer_ids
            if each.body and not each.body["error_code"]
        ]
        assert len(set(ids)) == len(ids)
        for table in tables[:1]:
            for topic in table.topics.values():
                for placement in table.placements(topic):
                    assert placement.target is None, "a move that has nobody to wait for is done"
                    assert set(placement.replicas) <= set(BROKERS)
                    assert len(set(placement.replicas)) == len(placement.replicas)

    def _check_topic(self, name: str, asked: list[tuple[str, Pending]]) -> None:
        codes = [(what, _code(pending)) for what, pending in asked]
        is_there = self.cluster.leader.metadata.table.topics.get(name) is not None
        is_surely_made = codes[0] == ("make", 0)
        deletes = [code for what, code in codes if what == "delete"]
        if is_surely_made and not deletes:
            assert is_there, f"{name} was acknowledged"
        if is_surely_made and 0 in deletes:
            assert not is_there, f"{name} was deleted"


def _code(pending: Pending) -> int | None:
    """None: nobody knows what became of it."""
    if pending.body is None:
        return None
    rows = pending.body.get("topics") or pending.body.get("responses")
    assert rows
    return int(rows[0]["error_code"])


@pytest.mark.parametrize("seed", range(12))
def test_all_agree_in_the_end_and_nothing_acknowledged_is_lost(seed: int) -> None:
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
    run.calm()
    run.check()
