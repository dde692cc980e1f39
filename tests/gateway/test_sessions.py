"""Consumer sessions by HTTP on one node: register, poll, commit, goodbye, and what becomes of those who fall silent."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.gateway.api import sessions as sessions_api
from anabranch.gateway.sessions.reading import SessionReader
from anabranch.testing import EmbeddedBroker
from support.gateway_client import Answer, all_of, ask, gateway_broker, raw
from support.raw_socket import RawSocket
from support.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker(group_min_session_timeout_ms=100) as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    return broker.create_topic(broker.unused_name(request.node.name), 2)


class Session:
    """One consumer, as a client would write it."""

    def __init__(self, broker: EmbeddedBroker, group: str, *topics: str, **wishes: Any) -> None:
        self.broker = broker
        answer = ask(broker, "POST", f"/v1/groups/{group}/sessions", {"topics": topics, **wishes})
        assert answer.status == 201, answer
        self.registered = answer.json
        self.path = answer.headers["location"]
        self.cursor: str | None = None

    def ask_poll(self, **query: Any) -> Answer:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        return ask(self.broker, "POST", f"{self.path}/records?{words}")

    def poll(self, **query: Any) -> list[str]:
        """Values, read on from the last poll."""
        if self.cursor is not None:
            query.setdefault("cursor", self.cursor)
        answer = self.ask_poll(**query)
        assert answer.status == 200, answer
        self.answer = answer.json
        self.cursor = self.answer["cursor"]
        return [record["value"] for record in self.answer["records"]]

    def poll_until(self, count: int, **query: Any) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += self.poll(wait_ms=1000, **query)
        return found

    def commit(self, **body: Any) -> Answer:
        return ask(self.broker, "POST", f"{self.path}/commit", body or {"cursor": self.cursor})

    def goodbye(self) -> Answer:
        return ask(self.broker, "DELETE", self.path)


def test_session_reads_commits_and_the_next_one_goes_on(broker: EmbeddedBroker, topic: str) -> None:
    broker.produce(topic, [b"a", b"b"], partition=0)
    broker.produce(topic, [b"c"], partition=1)
    first = Session(broker, topic, topic, **{"from": "earliest"})
    assert first.registered["state"] == "joined"
    assert [row["partition"] for row in first.registered["partitions"]] == [0, 1]
    assert sorted(first.poll()) == ["a", "b", "c"]
    record = first.answer["records"][0]
    assert (record["topic"], record["partition"], record["offset"]) == (topic, 0, "0")
    assert first.poll() == []
    answer = first.commit()
    assert answer.status == 200
    assert {(row["partition"], row["offset"]) for row in answer.json["committed"]} == {(0, "2"), (1, "1")}
    assert broker.committed(topic, topic) == {0: 2, 1: 1}
    assert first.goodbye().status == 204
    broker.produce(topic, [b"d"], partition=1)
    second = Session(broker, topic, topic)
    assert second.poll_until(1) == ["d"]


def test_poll_without_a_cursor_begins_at_what_was_committed(broker: EmbeddedBroker, topic: str) -> None:
    broker.produce(topic, [b"a", b"b", b"c"])
    session = Session(broker, topic, topic, **{"from": "earliest"})
    assert session.poll(max_records=2) == ["a", "b"]
    session.cursor = None
    assert session.poll(max_records=1) == ["a"]
    assert session.poll(max_records=1, commit="true") == ["b"]
    session.cursor = None
    assert session.poll() == ["b", "c"]


def test_cursor_of_a_deleted_topic_skips_nothing_of_another_of_its_name(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("reborn", 1)
    broker.produce(topic, [b"a", b"b", b"c"])
    session = Session(broker, topic, topic, **{"from": "earliest"})
    assert session.poll() == ["a", "b", "c"]
    assert session.poll(commit="true") == []
    broker.delete_topic(topic)
    broker.create_topic(topic, 1)
    broker.produce(topic, [b"new"])
    assert session.poll(commit="true") == ["new"]
    assert broker.committed(topic, topic) == {0: 0}, "what was read of the old one counts for nothing"


def test_latest_is_new_since_registration_and_not_since_the_first_poll(
    broker: EmbeddedBroker, topic: str
) -> None:
    broker.produce(topic, [b"old"])
    session = Session(broker, topic, topic)
    broker.produce(topic, [b"new"])
    assert session.poll_until(1) == ["new"]


def test_long_poll_ends_with_the_first_record(broker: EmbeddedBroker, topic: str) -> None:
    session = Session(broker, topic, topic)
    assert session.poll() == []
    timer = threading.Timer(0.3, lambda: broker.produce(topic, [b"now"], partition=1))
    timer.start()
    assert session.poll(wait_ms=20_000) == ["now"]
    timer.join()


def test_two_sessions_share_the_partitions_and_each_record_goes_to_one(
    broker: EmbeddedBroker, topic: str
) -> None:
    first = Session(broker, topic, topic, **{"from": "earliest", "timeout_ms": 5000})
    made: list[Session] = []
    registering = threading.Thread(target=lambda: made.append(Session(broker, topic, topic)))
    registering.start()
    wait_until(lambda: first.poll(wait_ms=100) == [] and not registering.is_alive(), "the second session")
    registering.join()
    second = made[0]
    wait_until(lambda: first.poll() == [] and len(first.answer["partitions"]) == 1, "a share for each")
    second.poll()
    owned = [each.answer["partitions"][0]["partition"] for each in (first, second)]
    assert sorted(owned) == [0, 1]
    for partition in (0, 1):
        broker.produce(topic, [str(partition).encode()], partition=partition)
    assert first.poll_until(1) == [str(owned[0])]
    assert second.poll_until(1) == [str(owned[1])]


def test_commit_of_a_partition_that_another_session_has_now_is_refused(
    broker: EmbeddedBroker, topic: str
) -> None:
    broker.produce(topic, [b"a"], partition=0)
    broker.produce(topic, [b"b"], partition=1)
    first = Session(broker, topic, topic, **{"from": "earliest"})
    assert len(first.poll_until(2)) == 2
    old = first.cursor
    registering = threading.Thread(target=lambda: Session(broker, topic, topic))
    registering.start()
    wait_until(lambda: len(first.poll(wait_ms=100)) >= 0 and not registering.is_alive(), "the second one")
    registering.join()
    wait_until(lambda: first.poll() == [] and len(first.answer["partitions"]) == 1, "a share")
    mine = first.answer["partitions"][0]["partition"]
    answer = first.commit(cursor=old)
    assert answer.status == 200
    assert [row["partition"] for row in answer.json["committed"]] == [mine]
    assert [row["partition"] for row in answer.json["lost"]] == [1 - mine]
    assert broker.committed(topic, topic)[1 - mine] == 0
    alone = first.commit(offsets=[{"topic": topic, "partition": 1 - mine, "offset": "1"}])
    assert (alone.status, alone.code) == (409, "PARTITION_LOST")


def test_session_that_does_not_poll_in_time_is_over_and_is_told_the_next_step(
    broker: EmbeddedBroker, topic: str
) -> None:
    session = Session(broker, topic, topic, timeout_ms=1500)
    broker.wait_for_group(topic, state="Empty")
    for answer in (session.ask_poll(), session.commit(offsets=[]), session.goodbye()):
        assert (answer.status, answer.code) == (410, "SESSION_OVER")
        assert f"POST /v1/groups/{topic}/sessions" in answer.json["error"]["message"]


def test_long_poll_keeps_its_session_alive_beyond_the_timeout(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_api, "SLICE_MS", 200)
    session = Session(broker, topic, topic, timeout_ms=2500)
    assert session.poll(wait_ms=3500) == []
    assert session.poll() == []


def test_goodbye_is_for_once(broker: EmbeddedBroker, topic: str) -> None:
    session = Session(broker, topic, topic)
    assert session.goodbye().status == 204
    assert session.goodbye().status == 410
    assert session.ask_poll().status == 410


def test_session_hears_of_partitions_that_come_later(broker: EmbeddedBroker, topic: str) -> None:
    import confluent_kafka.admin as admin

    session = Session(broker, topic, topic, **{"from": "earliest"})
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_partitions([admin.NewPartitions(topic, 3)])[topic].result(20)
    wait_until(lambda: session.poll() == [] and len(session.answer["partitions"]) == 3, "a third partition")
    broker.produce(topic, [b"there"], partition=2)
    assert session.poll_until(1) == ["there"]


def test_kafka_consumer_and_session_share_a_group(broker: EmbeddedBroker, topic: str) -> None:
    import confluent_kafka

    session = Session(broker, topic, topic, **{"from": "earliest", "timeout_ms": 10_000})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until(
            lambda: (
                consumer.poll(0.05) is None
                and session.poll() == []
                and len(consumer.assignment()) == 1 == len(session.answer["partitions"])
            ),
            "a share for each",
        )
        mine = session.answer["partitions"][0]["partition"]
        broker.produce(topic, [b"by http"], partition=mine)
        broker.produce(topic, [b"by kafka"], partition=1 - mine)
        assert session.poll_until(1) == ["by http"]
        assert wait_until(lambda: consumer.poll(0.1), "a record").value() == b"by kafka"
    finally:
        consumer.close()
    wait_until(lambda: session.poll() == [] and len(session.answer["partitions"]) == 2, "all of it")


@pytest.mark.parametrize("leads", ["socket", "session"])
def test_socket_and_session_share_a_group(broker: EmbeddedBroker, topic: str, leads: str) -> None:
    first = Session(broker, topic, topic, timeout_ms=10_000) if leads == "session" else None
    with RawSocket(broker.http_address or "") as link:
        link.say({"type": "subscribe", "id": 1, "topic": topic, "group": topic, "from": "earliest"})
        if first is None:
            link.hear_of("assigned")
            session = Session(broker, topic, topic, timeout_ms=10_000)
        else:
            session = first
        wait_until(lambda: session.poll() == [] and len(session.answer["partitions"]) == 1, "a share")
        mine = session.answer["partitions"][0]["partition"]
        while list(link.hear_of("assigned")["offsets"]) != [str(1 - mine)]:
            pass
        broker.produce(topic, [b"by http"], partition=mine)
        broker.produce(topic, [b"by socket"], partition=1 - mine)
        assert session.poll_until(1) == ["by http"]
        assert [record["value"] for record in link.hear_of("records")["records"]] == ["by socket"]


def test_member_of_another_kind_cannot_be_used_as_a_session(broker: EmbeddedBroker, topic: str) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.05) is None and consumer.assignment(), "an assignment")
        member_id = consumer.memberid()
        answer = ask(broker, "POST", f"/v1/groups/{topic}/sessions/{member_id}/records")
        assert (answer.status, answer.code) == (410, "SESSION_OVER")
    finally:
        consumer.close()


def test_records_that_retention_took_are_passed_over_and_beyond_the_end_is_nothing(
    broker: EmbeddedBroker, topic: str
) -> None:
    import confluent_kafka
    import confluent_kafka.admin as admin

    broker.produce(topic, [b"a", b"b", b"c"])
    session = Session(broker, topic, topic, **{"from": "earliest"})
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_records([confluent_kafka.TopicPartition(topic, 0, 2)])[
        confluent_kafka.TopicPartition(topic, 0)
    ].result(20)
    assert session.poll() == ["c"]
    assert session.commit(offsets=[{"topic": topic, "partition": 0, "offset": "100"}]).status == 200
    session.cursor = None
    assert session.poll() == []
    broker.produce(topic, [b"d"])
    assert session.poll() == []


def test_limits_of_a_poll(broker: EmbeddedBroker, topic: str) -> None:
    broker.produce(topic, [b"%d" % number for number in range(100)], partition=0)
    broker.produce(topic, [b"%d" % number for number in range(100, 200)], partition=1)
    session = Session(broker, topic, topic, **{"from": "earliest"})
    found = []
    while len(found) < 200:
        some = session.poll(max_records=7)
        assert 0 < len(some) <= 7
        found += some
    for low, high in ((0, 100), (100, 200)):
        assert [each for each in map(int, found) if low <= each < high] == list(range(low, high))
    session.cursor = None
    assert len(session.poll(max_bytes=1)) == 1
    session.cursor = None
    assert len(session.poll()) == 200
    wait_until(
        lambda: b"anabranch_gateway_held_bytes 0.0" in ask(broker, "GET", "/metrics").body,
        "memory given back",
    )


def test_sessions_survive_a_restart_of_the_node(tmp_path: Any) -> None:
    with gateway_broker() as broker:
        topic = broker.create_topic("kept")
        broker.produce(topic, [b"a", b"b"])
        session = Session(broker, "g", topic, **{"from": "earliest"})
        assert session.poll(max_records=1) == ["a"]
        broker.kill_and_restart()
        assert session.poll() == ["b"]
        assert session.commit().status == 200


def test_poll_that_waits_is_answered_when_the_node_stops_and_goes_on_afterwards() -> None:
    with gateway_broker() as broker:
        topic = broker.create_topic("stopped")
        session = Session(broker, "g", topic)
        answers: list[Answer] = []
        waiting = threading.Thread(target=lambda: answers.append(session.ask_poll(wait_ms=15_000)))
        waiting.start()
        wait_until(
            lambda: b"anabranch_gateway_polls 1.0" in ask(broker, "GET", "/metrics").body, "the poll to wait"
        )
        broker.restart()
        waiting.join()
        assert [(answer.status, answer.json["records"]) for answer in answers] == [(200, [])]
        broker.produce(topic, [b"new"])
        assert session.poll_until(1) == ["new"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'{"topics": "t"}', 400),
        (b'{"topics": []}', 400),
        (b'{"topics": [1]}', 400),
        (b'{"topics": ["\\ud800"]}', 400),
        (b'{"topics": ["nothing-here"]}', 404),
        (b'{"topics": ["no/name"]}', 400),
        (b'{"topics": ["known"], "from": "yesterday"}', 400),
        (b'{"topics": ["known"], "from": ["latest"]}', 400),
        (b'{"topics": ["known"], "timeout_ms": 1}', 400),
        (b'{"topics": ["known"], "timeout_ms": true}', 400),
        (b'{"topics": ["known"], "timeout_ms": 1e99}', 400),
        (b'{"topics": ["known"], "x": 1}', 400),
        (b'{"topics": ["' + b"x" * 2**20 + b'"]}', 413),
        (b"", 400),
    ],
)
def test_bad_registrations_are_refused_with_a_sentence(
    broker: EmbeddedBroker, body: bytes, status: int
) -> None:
    if "known" not in broker.topics():
        broker.create_topic("known")
    answer = ask(broker, "POST", "/v1/groups/bad/sessions", body)
    assert answer.status == status, answer
    assert len(answer.json["error"]["message"]) > 20


@pytest.mark.parametrize(
    "query",
    [
        "wait_ms=-1",
        "wait_ms=x",
        "wait_ms=99999999999",
        "wait_ms=%D9%A1",
        "max_bytes=1e3",
        "commit=yes",
        "cursor=",
        "cursor=%00",
        "cursor=AAAA",
        "offset=7",
        "cursor=" + "A" * 20_000,
    ],
)
def test_bad_polls_are_refused_and_cost_the_session_nothing(
    broker: EmbeddedBroker, topic: str, query: str
) -> None:
    session = Session(broker, topic, topic)
    answer = ask(broker, "POST", f"{session.path}/records?{query}")
    assert answer.status == 400, answer
    assert session.poll() == []


@pytest.mark.parametrize(
    "body",
    [
        {"cursor": 7},
        {"cursor": "e30", "offsets": []},
        {"offsets": [{"topic": "t", "partition": -1, "offset": "1"}]},
        {"offsets": [{"topic": "t", "partition": 0, "offset": "-1"}]},
        {"offsets": [{"topic": "t", "partition": 0, "offset": 1.5}]},
        {"offsets": [{"topic": "\ud800", "partition": 0, "offset": "1"}]},
        {"offsets": [{"topic": "t", "partition": True, "offset": "1"}]},
        {"offsets": {}},
        {"offsets": [7]},
    ],
)
def test_bad_commits_are_refused(broker: EmbeddedBroker, topic: str, body: Any) -> None:
    session = Session(broker, topic, topic)
    answer = session.commit(**body)
    assert answer.status == 400, answer


def test_group_that_sessions_cannot_join_says_what_to_do(broker: EmbeddedBroker, topic: str) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.05) is None and consumer.assignment(), "an assignment")
        answer = ask(broker, "POST", f"/v1/groups/{topic}/sessions", {"topics": [topic]})
        assert (answer.status, answer.code) == (409, "INCONSISTENT_GROUP_PROTOCOL")
        assert "range" in answer.json["error"]["message"]
    finally:
        consumer.close()


def test_group_with_letters_of_any_language(broker: EmbeddedBroker, topic: str) -> None:
    session = Session(broker, "Gr%C3%BC%C3%9Fe-%E2%9C%93", topic)
    assert session.registered["group"] == "Grüße-✓"
    assert session.poll() == []
    assert session.goodbye().status == 204


def test_poll_of_a_client_that_closes_its_side_is_answered_at_once(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(broker, broker.unused_name("closed-side"), topic)
    assert session.poll(wait_ms=0) == []
    reads: list[int] = []
    read = SessionReader.read

    async def noted(self: SessionReader, *args: Any, **more: Any) -> Any:
        reads.append(1)
        return await read(self, *args, **more)

    monkeypatch.setattr(SessionReader, "read", noted)
    with raw(broker) as link:
        target = f"{session.path}/records?wait_ms=3000"
        link.sendall(f"POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
        link.shutdown(socket.SHUT_WR)
        assert b'"records":[]' in all_of(link)
    assert len(reads) <= 2
