"""What the client asks of whom; brokers are played by tables."""

from typing import Any
from uuid import UUID

import pytest

from anabranch.errors import TryAgainError
from anabranch.pipeline.client import client as module
from anabranch.pipeline.client.client import Client
from anabranch.pipeline.client.connection import Address
from anabranch.values import TopicPartition
from anabranch.wire.api_keys import ApiKey

FIRST, SECOND = ("one", 1), ("two", 2)
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)

METADATA = {
    "cluster_id": "c",
    "brokers": [{"node_id": 1, "host": "one", "port": 1}, {"node_id": 2, "host": "two", "port": 2}],
    "topics": [
        {
            "name": "a",
            "topic_id": UUID(int=1),
            "error_code": 0,
            "is_internal": False,
            "partitions": [{"partition_index": 0, "leader_id": 1}, {"partition_index": 1, "leader_id": 2}],
        }
    ],
}


class BrokerInATable:
    """Holds a copy of every partition in a folder of its own, whoever leads it."""

    def __init__(self, address: Address) -> None:
        self._folder = f"/{address[0]}"

    def ask(self, api: ApiKey, body: dict[str, Any]) -> dict[str, Any]:
        if api is ApiKey.METADATA:
            return METADATA
        assert api is ApiKey.DESCRIBE_LOG_DIRS
        rows = [{"partition_index": number, "is_future_key": False} for number in (0, 1)]
        folder = {"log_dir": self._folder, "error_code": 0, "topics": [{"name": "a", "partitions": rows}]}
        failed = {"log_dir": "/broken", "error_code": 56, "topics": [{"name": "a", "partitions": rows}]}
        return {"results": [folder, failed]}

    def close(self) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(module, "Connection", BrokerInATable)
    return Client("one:1")


def test_folder_of_a_partition_is_the_one_of_its_leader(client: Client) -> None:
    assert client.log_folders(["a"]) == {A0: "/one", A1: "/two"}


def test_other_brokers_are_asked_when_the_one_that_was_named_is_gone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.cluster(["a"])

    def connect(address: Address) -> BrokerInATable:
        if address == FIRST:
            raise TryAgainError("it is gone")
        return BrokerInATable(address)

    monkeypatch.setattr(module, "Connection", connect)
    client.forget()
    assert client.cluster(["a"]).id == "c"
