"""Records in and out by WebSocket, through a real node."""

from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from anabranch.gateway.websocket import session as socket_session
from anabranch.gateway.websocket import sockets
from anabranch.testing import EmbeddedBroker
from anabranch.wire.api_keys import ApiKey
from support.gateway_client import ask, gateway_broker
from support.socket_client import SocketClient, socket_client


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker(gateway_request_bytes_max=100_000) as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    return broker.create_topic(broker.unused_name(request.node.name))


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[SocketClient]:
    with socket_client(broker) as client:
        yield client


def values(records: list[dict[str, object]]) -> list[object]:
    return [record["value"] for record in records]


# --- publishing --------------------------------------------------------------------------------------------------


def test_a_record_is_written_as_it_was_said(broker: EmbeddedBroker, client: SocketClient, topic: str) -> None:
    answer = client.publish(topic, {"a": 1}, key="k", headers={"kind": "order"}, timestamp=1000)
    assert answer == {"type": "published", "id": "p", "partition": 0, "offset": "0", "timestamp": 1000}
    (record,) = broker.records(topic)
    assert (record.key, record.value, record.headers) == (b"k", b'{"a":1}', (("kind", b"order"),))


def test_records_of_one_socket_keep_their_order(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    for number in range(500):
        client.say("publish", id=number, topic=topic, value=str(number))
    assert sorted(int(client.hear("published")["id"]) for _ in range(500)) == list(range(500))
    assert [record.value for record in broker.records(topic)] == [
        str(number).encode() for number in range(500)
    ]


def test_a_socket_of_a_topic_needs_not_name_it(broker: EmbeddedBroker, topic: str) -> None:
    with socket_client(broker, f"/v1/topics/{topic}/ws") as client:
        client.say("publish", id=1, value_base64="/w==")
        assert client.hear("published")["offset"] == "0"
        client.say("subscribe", id="s", from_="earliest")
        assert client.hear("subscribed")["topic"] == topic
        assert client.records(1)[0]["value_base64"] == "/w=="


# --- subscribing -------------------------------------------------------------------------------------------------


def test_new_records_come_as_they_are_written(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    broker.produce(topic, [b"old"])
    assert client.subscribe("s", topic)["offsets"] == {"0": "1"}
    broker.produce(topic, [(b"k", b"new", [("h", b"v")])])
    message = client.hear("records")
    (record,) = message.pop("records")
    assert message == {"type": "records", "id": "s", "partition": 0, "next": "2"}
    assert record.pop("timestamp") > 0
    assert record == {"offset": "1", "key": "k", "value": "new", "headers": [["h", "v"]]}


def test_a_subscription_begins_where_it_is_told(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    with socket_client(broker) as writer:
        for number in range(4):
            writer.publish(topic, str(number), timestamp=1000 * number)
    client.subscribe("a", topic, from_="earliest")
    assert values(client.records(4)) == ["0", "1", "2", "3"]
    client.subscribe("b", topic, from_={"offset": "2"})
    assert values(client.records(2)) == ["2", "3"]
    client.subscribe("c", topic, from_={"offset": {"0": "3"}})
    assert values(client.records(1)) == ["3"]
    assert client.subscribe("d", topic, from_={"time": 1500})["offsets"] == {"0": "2"}
    assert values(client.records(2)) == ["2", "3"]
    assert client.subscribe("e", topic, from_={"time": "2999-01-01T00:00:00Z"})["offsets"] == {"0": "4"}


def test_all_partitions_are_followed_and_each_in_order(broker: EmbeddedBroker, client: SocketClient) -> None:
    topic = broker.create_topic(broker.unused_name("many"), partitions=5)
    client.subscribe("s", topic)
    for number in range(50):
        broker.produce(topic, [str(number)], partition=number % 5)
    records = client.records(50)
    for partition in range(5):
        own = [int(each["value"]) for each in records if each["partition"] == partition]
        assert own == list(range(partition, 50, 5))


def test_only_the_partitions_that_were_chosen_come(broker: EmbeddedBroker, client: SocketClient) -> None:
    topic = broker.create_topic(broker.unused_name("some"), partitions=3)
    assert client.subscribe("s", topic, partitions=[2])["offsets"] == {"2": "0"}
    broker.produce(topic, [b"no"], partition=0)
    broker.produce(topic, [b"yes"], partition=2)
    assert values(client.records(1)) == ["yes"]


def test_the_filter_is_applied_by_the_node(broker: EmbeddedBroker, client: SocketClient, topic: str) -> None:
    wanted = {"or": [{"header": "kind", "equals": "order"}, {"header": "kind", "prefix": "re"}]}
    client.subscribe("s", topic, filter=wanted)
    kinds = [b"order", b"bill", b"return", b"card", b"order"]
    broker.produce(topic, [(None, str(index), [("kind", kind)]) for index, kind in enumerate(kinds)])
    broker.produce(topic, [b"without"])
    message = client.hear("records")
    assert (values(message["records"]), message["next"]) == (["0", "2", "4"], "5")


def test_no_more_records_come_than_were_granted(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    broker.produce(topic, [str(number) for number in range(10)])
    client.subscribe("s", topic, from_="earliest", credit=3)
    assert values(client.records(3)) == ["0", "1", "2"]
    client.say("credit", id="s", records=2)
    assert values(client.records(2)) == ["3", "4"]
    client.say("publish", id="p", topic=topic, value="10")
    client.hear("published")  # And no records before it.
    client.say("credit", id="s", records=100)
    assert values(client.records(6)) == [str(number) for number in range(5, 11)]


def test_a_subscription_that_is_ended_is_silent_and_its_id_is_free(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    client.subscribe("s", topic)
    client.say("unsubscribe", id="s")
    assert client.hear("unsubscribed")["id"] == "s"
    broker.produce(topic, [b"0"])
    client.subscribe("s", topic, from_="earliest")
    assert values(client.records(1)) == ["0"]


def test_a_subscription_ended_at_once_ends(client: SocketClient, topic: str) -> None:
    client.say("subscribe", id="s", topic=topic)
    client.say("unsubscribe", id="s")
    assert client.hear_until("unsubscribed")["id"] == "s"


def test_a_position_beyond_the_end_waits_until_it_is_reached(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    client.subscribe("s", topic, from_={"offset": "2"})
    broker.produce(topic, ["0", "1", "2"])
    assert values(client.records(1)) == ["2"]


def test_positions_in_a_topic_of_branches_stay_true_and_those_in_no_lane_get_nothing() -> None:
    with gateway_broker() as branching:
        topic = branching.create_topic("lanes", anabranch_mode="branch")
        branching.produce(topic, ["0", "1"])
        branching.restart()  # What is written now goes into another lane, far above.
        with socket_client(branching) as client:
            client.subscribe("follows", topic, from_={"offset": "2"})
            branching.produce(topic, ["2"])
            assert values(client.records(1)) == ["2"]
            client.subscribe("strays", topic, from_={"offset": str(7 << 32)})
            client.subscribe("begins", topic, from_="earliest")
            assert values(client.records(3)) == ["0", "1", "2"]
            branching.produce(topic, ["3"])
            heard = [client.hear("records") for _ in range(2)]
            assert sorted(message["id"] for message in heard) == ["begins", "follows"]


def test_large_batches_come_whole_and_in_order(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    broker.produce(topic, [f"{number:05d}" + "x" * 500 for number in range(1500)])
    client.subscribe("s", topic, from_="earliest", credit=10_000)
    assert [int(str(value)[:5]) for value in values(client.records(1500))] == list(range(1500))


def test_partitions_that_are_added_are_followed_from_their_beginning(
    monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker
) -> None:
    monkeypatch.setattr(sockets, "GROWTH_SECONDS", 0.05)
    with gateway_broker() as grower, socket_client(grower) as client:
        topic = grower.create_topic("grows")
        client.subscribe("s", topic)
        grower._running().run(_grow(grower, topic, 3))
        grower.produce(topic, [b"early"], partition=2)
        message = client.hear("subscribed")
        assert message["offsets"] == {"1": "0", "2": "0"}
        assert client.records(1)[0]["partition"] == 2


async def _grow(broker: EmbeddedBroker, topic: str, count: int) -> None:
    topics = [{"name": topic, "count": count, "assignments": None}]
    request = {"topics": topics, "timeout_ms": 5000, "validate_only": False}
    await broker._running().client.ask(ApiKey.CREATE_PARTITIONS, 1, request)


# --- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nobody.made.this"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"topic": "a/b"}, "INVALID_TOPIC_EXCEPTION"),
        ({"partitions": [7]}, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_a_subscription_that_cannot_be_says_why_and_ends(
    client: SocketClient, topic: str, fields: dict[str, object], code: str
) -> None:
    client.say("subscribe", **{"id": "s", "topic": topic, **fields})
    error = client.hear("error")
    assert (error["id"], error["code"]) == ("s", code)
    assert client.hear("unsubscribed")["id"] == "s"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "MALFORMED_JSON"),
        ("[]", "INVALID_REQUEST"),
        ('{"type": "sing", "id": 1}', "INVALID_REQUEST"),
        ('{"type": "credit", "id": 1, "records": 5}', "INVALID_REQUEST"),
        ('{"type": "ack", "id": 1, "partition": 0, "offset": "1"}', "INVALID_REQUEST"),
        ('{"type": "publish", "id": 1, "topic": "TOPIC", "value_base64": "?"}', "INVALID_RECORD"),
        ('{"type": "publish", "id": 1, "topic": "TOPIC", "value": "\\ud800"}', "WRONG_UTF8"),
        ('{"type": "publish", "id": 1, "topic": "TOPIC", "partition": 9}', "UNKNOWN_TOPIC_OR_PARTITION"),
        ('{"type": "publish", "id": 1, "topic": "a/b"}', "INVALID_TOPIC_EXCEPTION"),
    ],
)
def test_a_wrong_message_is_answered_and_the_socket_goes_on(
    client: SocketClient, topic: str, message: str, code: str
) -> None:
    client.connection.send(message.replace("TOPIC", topic))
    error = client.hear("error")
    assert (error["code"], error["id"]) == (code, 1 if '"id"' in message else None)
    assert client.publish(topic, "fine")["offset"] == "0"


def test_an_id_that_is_taken_is_refused(client: SocketClient, topic: str) -> None:
    client.subscribe("s", topic)
    client.say("subscribe", id="s", topic=topic)
    assert "already" in client.hear("error")["message"]


def test_a_socket_follows_only_so_many_partitions_and_has_only_so_many_subscriptions(
    monkeypatch: pytest.MonkeyPatch, client: SocketClient, topic: str
) -> None:
    monkeypatch.setattr(socket_session, "PARTITIONS_MAX", 2)
    client.subscribe("a", topic)
    client.subscribe("b", topic)
    client.say("subscribe", id="c", topic=topic)
    assert "may follow 2 partitions" in client.hear("error")["message"]
    monkeypatch.setattr(socket_session, "SUBSCRIPTIONS_MAX", 2)
    client.say("subscribe", id="c", topic=topic)
    assert "may have 2 subscriptions" in client.hear("error")["message"]
    client.say("unsubscribe", id="a")
    client.hear("unsubscribed")
    client.subscribe("c", topic)


def test_only_groups_take_acknowledgements(client: SocketClient, topic: str) -> None:
    client.subscribe("s", topic)
    client.say("ack", id="s", partition=0, offset="0")
    assert "group" in client.hear("error")["message"]


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [(b"bytes", 1003, "JSON text"), ("x" * 200_000, 1009, ""), (b"\xff", 1007, "")],
)
def test_what_is_no_message_closes_the_socket(
    client: SocketClient, message: str | bytes, code: int, reason: str
) -> None:
    client.connection.send(message, text=True if message == b"\xff" else None)
    with pytest.raises(ConnectionClosed) as closed:
        client.hear()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code
    assert reason in closed.value.rcvd.reason


def test_subscriptions_of_a_deleted_topic_end(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    client.subscribe("s", topic)
    broker.produce(topic, [b"0"])
    client.records(1)
    broker.delete_topic(topic)
    assert client.hear("error")["code"] in ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID")
    assert client.hear("unsubscribed")["id"] == "s"


def test_a_new_topic_of_an_old_name_shows_nothing_of_the_old_one(
    broker: EmbeddedBroker, client: SocketClient, topic: str
) -> None:
    broker.produce(topic, [b"old"])
    client.subscribe("s", topic, from_="earliest")
    client.records(1)
    broker.delete_topic(topic)
    broker.create_topic(topic)
    broker.produce(topic, [b"new", b"newer"])
    assert client.hear("error")["id"] == client.hear("unsubscribed")["id"] == "s"
    client.subscribe("t", topic, from_="earliest")
    assert values(client.records(2)) == ["new", "newer"]


def test_clients_are_told_when_the_node_stops() -> None:
    with gateway_broker() as stopping, socket_client(stopping) as client:
        client.subscribe("s", stopping.create_topic("t"))
        stopping.stop()
        with pytest.raises(ConnectionClosed) as closed:
            client.hear()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, "node stops" in closed.value.rcvd.reason) == (1001, True)
        stopping.start()


def test_metrics_tell_of_sockets(broker: EmbeddedBroker, client: SocketClient, topic: str) -> None:
    client.subscribe("s", topic, from_="earliest")
    broker.produce(topic, [b"0"])
    client.records(1)
    metrics = dict(
        line.rsplit(" ", 1)
        for line in ask(broker, "GET", "/metrics").body.decode().splitlines()
        if line[:1] != "#"
    )
    assert float(metrics["anabranch_gateway_websockets"]) >= 1
    assert float(metrics["anabranch_gateway_subscriptions"]) >= 1
    assert float(metrics["anabranch_gateway_records_sent_total"]) >= 1


# --- the page ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/v1/anabranch.js", "text/javascript", b"export class Anabranch"),
        ("/v1/demo.js", "text/javascript", b'import { Anabranch } from "/v1/anabranch.js"'),
        ("/v1/demo", "text/html", b'src="/v1/demo.js"'),
    ],
)
def test_client_and_page_are_served(broker: EmbeddedBroker, path: str, kind: str, text: bytes) -> None:
    answer = ask(broker, "GET", path)
    assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, kind)
    assert text in answer.body


def test_messages_keep_their_order_though_most_are_dealt_with_where_they_are_read(
    client: SocketClient, topic: str
) -> None:
    """A wrong one waits for its turn to be answered, and those behind it wait with it."""
    for number in range(200):
        wrong = {"valeu": 1} if number % 7 == 3 else {}
        client.say("publish", id=number, topic=topic, partition=0, value=str(number), **wrong)
    answers = [client.hear() for _ in range(200)]
    assert sorted(answer["id"] for answer in answers) == list(range(200))
    placed = [(int(answer["offset"]), answer["id"]) for answer in answers if answer["type"] == "published"]
    assert [own_id for _, own_id in sorted(placed)] == [number for number in range(200) if number % 7 != 3]
