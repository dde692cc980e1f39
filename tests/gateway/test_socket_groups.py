"""Groups by WebSocket: partitions are shared out, acknowledged records are done with, all others come again."""

import contextlib
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from anabranch.gateway.websocket import group_subscription
from anabranch.testing import EmbeddedBroker
from anabranch.wire.api_keys import ApiKey
from support.gateway_client import gateway_broker
from support.socket_client import SocketClient, socket_client

TIMEOUT_SECONDS = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_subscription, "BEAT_SECONDS", 0.1)  # A rebalance is noticed with a heartbeat.
        with gateway_broker() as broker:
            yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    return broker.create_topic(broker.unused_name(request.node.name), partitions=4)


@contextlib.contextmanager
def member(broker: EmbeddedBroker, topic: str, **fields: object) -> Iterator[SocketClient]:
    with socket_client(broker) as client:
        client.say(
            "subscribe", **{"id": "s", "topic": topic, "group": f"of-{topic}", "from_": "earliest", **fields}
        )
        assert client.hear("subscribed")["group"] == f"of-{topic}"
        yield client


def partitions(message: dict[str, dict[str, str]]) -> set[int]:
    return {int(index) for index in message["offsets"]}


def test_a_group_goes_on_after_what_was_acknowledged(broker: EmbeddedBroker, topic: str) -> None:
    broker.produce(topic, [str(number) for number in range(10)], partition=1)
    with member(broker, topic) as first:
        assert partitions(first.hear("assigned")) == {0, 1, 2, 3}
        assert len(first.records(10)) == 10
        first.say("ack", id="s", partition=1, offset="5")
        assert first.hear("acked")["committed"] == {"1": "6"}
    with member(broker, topic) as second:
        assert second.hear("assigned")["offsets"]["1"] == "6"
        assert [record["value"] for record in second.records(4)] == ["6", "7", "8", "9"]
    assert broker.committed(f"of-{topic}", topic)[1] == 6


def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_goes(
    broker: EmbeddedBroker, topic: str
) -> None:
    with member(broker, topic) as first:
        first.hear("assigned")
        with member(broker, topic) as second:
            mine, others = partitions(first.hear_until("assigned")), partitions(second.hear("assigned"))
            assert len(mine) == len(others) == 2
            assert mine | others == {0, 1, 2, 3}
            for index in range(4):
                broker.produce(topic, [f"value {index}"], partition=index)
            assert {record["partition"] for record in first.records(2)} == mine
            assert {record["partition"] for record in second.records(2)} == others
            for index in mine:
                first.say("ack", id="s", partition=index, offset="0")
            done: set[str] = set()
            while len(done) < 2:
                done |= first.hear("acked")["committed"].keys()
        assert partitions(first.hear_until("assigned")) == {0, 1, 2, 3}
        # What the one who went had not acknowledged comes again, and nothing else.
        assert {record["partition"] for record in first.records(2)} == others


def test_a_member_is_told_what_it_loses(broker: EmbeddedBroker, topic: str) -> None:
    with member(broker, topic) as first:
        first.hear("assigned")
        with member(broker, topic) as second:
            second.hear("assigned")
            assert first.hear("revoked")["partitions"] == [0, 1, 2, 3]
            mine = partitions(first.hear("assigned"))
            lost = min({0, 1, 2, 3} - mine)
            first.say("ack", id="s", partition=lost, offset="0")
            assert "not this client's" in first.hear("error")["message"]


def test_what_was_not_delivered_cannot_be_acknowledged(broker: EmbeddedBroker, topic: str) -> None:
    broker.produce(topic, [b"0"])
    with member(broker, topic) as client:
        client.hear("assigned")
        client.records(1)
        client.say("ack", id="s", partition=0, offset="1")
        assert "has not been delivered" in client.hear("error")["message"]
    assert broker.committed(f"of-{topic}", topic)[0] == 0


def test_acknowledging_the_last_record_covers_what_the_filter_dropped_after_it(
    broker: EmbeddedBroker, topic: str
) -> None:
    broker.produce(topic, [(None, b"no"), (None, b"yes", [("kind", b"a")]), (None, b"no"), (None, b"no")])
    with member(broker, topic, filter={"header": "kind", "exists": True}) as client:
        client.hear("assigned")
        assert client.records(1)[0]["offset"] == "1"
        client.say("ack", id="s", partition=0, offset="1")
        assert client.hear("acked")["committed"] == {"0": "4"}


def test_what_the_filter_drops_is_done_with_though_nobody_acknowledges_it(
    broker: EmbeddedBroker, topic: str
) -> None:
    broker.produce(topic, [b"0", b"1", b"2"], partition=3)
    with member(broker, topic, filter={"header": "kind", "exists": True}) as client:
        client.hear("assigned")
        assert client.hear_until("acked")["committed"] == {"3": "3"}


def test_a_group_goes_on_with_what_retention_has_left(broker: EmbeddedBroker, topic: str) -> None:
    broker.produce(topic, [str(number) for number in range(10)])
    with member(broker, topic) as first:
        first.hear("assigned")
        first.records(10)
        first.say("ack", id="s", partition=0, offset="1")
        first.hear("acked")
    delete_records(broker, topic, 6)
    with member(broker, topic) as second:
        assert second.hear("assigned")["offsets"]["0"] == "6"
        assert [record["value"] for record in second.records(4)] == ["6", "7", "8", "9"]


def delete_records(broker: EmbeddedBroker, topic: str, before: int) -> None:
    request = {
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": before}]}],
        "timeout_ms": 5000,
    }
    life = broker._running()
    answer = life.run(life.client.ask(ApiKey.DELETE_RECORDS, 2, request))
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0


def test_a_group_that_begins_with_what_is_new_misses_nothing_after_its_beginning(
    broker: EmbeddedBroker, topic: str
) -> None:
    broker.produce(topic, [b"old"])
    with member(broker, topic, from_="new") as first:
        assert first.hear("assigned")["offsets"]["0"] == "1"
    broker.produce(topic, [b"between"])
    with member(broker, topic, from_="new") as second:
        second.hear("assigned")
        assert second.records(1)[0]["value"] == "between"


def test_ending_the_subscription_leaves_the_group(broker: EmbeddedBroker, topic: str) -> None:
    with member(broker, topic) as client:
        client.hear("assigned")
        client.say("unsubscribe", id="s")
        client.hear("unsubscribed")
        broker.wait_for_group(f"of-{topic}", state="Empty")


def test_partitions_that_are_added_are_shared_out_too(broker: EmbeddedBroker, topic: str) -> None:
    with member(broker, topic) as client:
        assert partitions(client.hear("assigned")) == {0, 1, 2, 3}
        request = {
            "topics": [{"name": topic, "count": 6, "assignments": None}],
            "timeout_ms": 5000,
            "validate_only": False,
        }
        life = broker._running()
        life.run(life.client.ask(ApiKey.CREATE_PARTITIONS, 1, request))
        client.hear("revoked")
        assert partitions(client.hear("assigned")) == set(range(6))


def test_two_subscriptions_of_one_socket_are_two_members(broker: EmbeddedBroker, topic: str) -> None:
    with member(broker, topic) as client:
        client.hear("assigned")
        client.say("subscribe", id="t", topic=topic, group=f"of-{topic}")
        found: dict[str, set[int]] = {}
        while sorted(map(len, found.values())) != [2, 2]:
            message = client.hear()
            if message["type"] == "assigned":
                found[message["id"]] = partitions(message)
        assert found["s"] | found["t"] == {0, 1, 2, 3}


def test_a_kafka_consumer_may_be_in_the_same_group(broker: EmbeddedBroker, topic: str) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": f"of-{topic}",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "range",
        "heartbeat.interval.ms": 100,
    }
    with member(broker, topic) as client:
        client.hear("assigned")
        consumer = Consumer(settings)
        try:
            consumer.subscribe([topic])
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while len(consumer.assignment()) != 2 and time.monotonic() < deadline:
                consumer.poll(0.05)
            theirs = {each.partition for each in consumer.assignment()}
            mine = partitions(client.hear_until("assigned"))
            assert (len(mine), mine | theirs) == (2, {0, 1, 2, 3})
            for index in range(4):
                broker.produce(topic, [str(index)], partition=index)
            assert {record["partition"] for record in client.records(2)} == mine
            found: set[int] = set()
            while len(found) < 2 and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and not message.error():
                    found.add(message.partition())
            assert found == theirs
        finally:
            consumer.close()


@pytest.mark.parametrize("group", ["", "x" * 300])
def test_a_group_without_a_name_is_refused(broker: EmbeddedBroker, topic: str, group: str) -> None:
    with socket_client(broker) as client:
        client.say("subscribe", id="s", topic=topic, group=group)
        assert "group" in client.hear("error")["message"]
