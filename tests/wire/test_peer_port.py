"""Strangers at the peer port: each costs little, gets nothing, and is named in the log with what to do."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from anabranch.server.peers import handshake as peer_handshake
from anabranch.server.peers import listener as peer_listener
from anabranch.server.peers.handshake import HELLO_BYTES_MAX, Identity, Kind, next_frame
from support.peer_brokers import Loopback, PeerBroker, on_loopback, until, warnings_of

REFUSED = "refused a connection from 127.0.0.1 to the peer port: "


class Stranger:
    """A socket at a broker's peer port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, broker: PeerBroker, host: str = "127.0.0.1") -> "Stranger":
        """From that address of this machine."""
        return cls(*await asyncio.open_connection(*broker.address, local_addr=(host, 0)))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def read_to_end(self) -> bytes:
        received = b""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(20):
                while more := await self._reader.read(65536):
                    received += more
        return received

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def answer_to(broker: PeerBroker, data: bytes) -> bytes:
    """Everything that somebody gets who sends this."""
    stranger = await Stranger.at(broker)
    stranger.send(data)
    try:
        return await stranger.read_to_end()
    finally:
        await stranger.close()


def hello(cluster_id: str = "c", broker_id: int = 2) -> bytes:
    me = Identity(cluster_id, broker_id, "folder")
    return next(peer_handshake.dial(me, None, b"", bytes(32), lambda them: None))


async def still_links(net: Loopback, broker: PeerBroker) -> None:
    friend = net.broker(77)
    friend.connect(broker)
    await net.all_linked(friend, broker)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "what came is not the peer protocol of anabranch: Kafka clients and",
        ),
        (b"\x16\x03\x01\x02\0\1\0\1\xfc", "what came is not the peer protocol"),
        (b"\0\0\0\x1e\0\x12\0\3\0\0\0\1" + bytes(22), "what came is not the peer protocol"),
        (b"\xff" * 100_000, "what came is not the peer protocol"),
        (
            (HELLO_BYTES_MAX + 1).to_bytes(4, "big") + b"\1" + bytes(5000),
            "what came is not the peer protocol",
        ),
        (b"\0\0\0\x20\1" + bytes(31), "what came is no hello of an anabranch broker"),
        (b"\0\0\0\x34" + hello()[4:] + b"x", "a hello cannot be read: it has 51 bytes"),
        (b"\0\0\0\x21\2" + bytes(32), "a proof came where a hello was due"),
    ],
    ids=["HTTP", "TLS", "Kafka", "noise", "oversized", "other magic", "spoiled", "proof first"],
)
@on_loopback
async def test_garbage_is_closed_without_an_answer_and_named(
    net: Loopback, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    broker = net.broker(1)
    assert await answer_to(broker, data) == b""
    await until(lambda: warnings_of(caplog))
    [text] = warnings_of(caplog)
    assert text.startswith(REFUSED + reason)
    await still_links(net, broker)
    assert broker.ups == [77]


@pytest.mark.parametrize("begun", [b"", hello()[:10], hello()], ids=["nothing", "half a hello", "no proof"])
@on_loopback
async def test_silence_is_ended(
    net: Loopback, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(peer_listener, "HANDSHAKE_SECONDS_MAX", 0.1)
    broker = net.broker(1)
    await answer_to(broker, begun)
    await until(lambda: warnings_of(caplog))
    assert "it did not say who it is within" in warnings_of(caplog)[0]
    assert broker.ups == []


@on_loopback
async def test_an_older_version_is_refused_and_told_why(
    net: Loopback, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_handshake, "PROTOCOL_VERSION", 0)
    old_hello = hello()
    monkeypatch.undo()
    broker = net.broker(1)
    found = next_frame(await answer_to(broker, old_hello))
    assert found is not None
    assert found[0].kind is Kind.REFUSAL
    assert b"run one release of anabranch on all brokers" in found[0].body
    assert "version 0 of the peer protocol, the other 2" in warnings_of(caplog)[0]


def wrong_secret(net: Loopback) -> PeerBroker:
    return net.broker(2, secret=b"another secret, long enough")


def other_cluster(net: Loopback) -> PeerBroker:
    return net.broker(2, cluster_id="d")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            wrong_secret,
            "do not have the same cluster secret: start both with the same --cluster-secret-file.",
        ),
        (other_cluster, "connect brokers of one cluster, or join with an empty data folder."),
    ],
)
@on_loopback
async def test_a_broker_that_does_not_belong_here_is_told_why_and_both_logs_say_it_once(
    net: Loopback,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Loopback], PeerBroker],
    reason: str,
) -> None:
    broker, other = net.broker(1), make(net)
    other.connect(broker)
    await until(lambda: len(warnings_of(caplog)) == 2)
    mine, theirs = sorted(warnings_of(caplog), reverse=True)
    assert mine.startswith(REFUSED)
    assert mine.endswith(reason)
    assert theirs.startswith(f"no link to broker 1 at 127.0.0.1:{broker.address[1]}: ")
    assert theirs.endswith(reason)
    for _ in range(5):
        with suppress(Exception):
            await other.links.join(broker.address)
    assert len(warnings_of(caplog)) == 2
    await until(lambda: broker.listener.refused_total >= 6)
    assert broker.ups == other.ups == []


@on_loopback
async def test_a_broker_id_used_twice_is_refused_while_the_first_is_linked(
    net: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    broker, first = await net.linked(1, 2)
    second = net.broker(2, directory_id="another folder")
    second.connect(broker)
    await until(lambda: len(warnings_of(caplog)) == 2)
    for text in warnings_of(caplog):
        assert text.endswith(
            "a broker 2 with another data folder is connected to broker 1: two brokers run under one id; give one of "
            "them another --broker-id, with a data folder of its own."
        )
    assert (broker.ups, broker.downs, first.downs) == ([2], [], [])


@on_loopback
async def test_somebody_else_at_a_brokers_address_is_not_taken_for_it(
    net: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    broker, other = net.broker(1), net.broker(2)
    broker.links.connect({3: other.address})
    await until(lambda: len(warnings_of(caplog)) == 2)
    assert all("broker 1 expected broker 3 at this address" in text for text in warnings_of(caplog))
    assert broker.ups == other.ups == []


@on_loopback
async def test_a_crowd_of_strangers_is_bounded_and_keeps_no_broker_out(
    net: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    broker = net.broker(1)
    strangers = [await Stranger.at(broker) for _ in range(3 * peer_listener.STRANGERS_MAX)]
    share = peer_listener.STRANGERS_PER_ADDRESS_MAX
    await until(lambda: broker.listener.refused_total >= len(strangers) - share)
    assert len(broker.listener._strangers) <= share
    await still_links(net, broker)
    assert "64 connections from there had not said who they are" in warnings_of(caplog)[0]
    for stranger in strangers:
        await stranger.close()


@on_loopback
async def test_a_crowd_from_one_address_takes_no_place_of_another(net: Loopback) -> None:
    broker = net.broker(1)
    patient = [await Stranger.at(broker, "127.0.0.2") for _ in range(3)]
    await until(lambda: len(broker.listener._strangers) == 3)
    crowd = [await Stranger.at(broker) for _ in range(3 * peer_listener.STRANGERS_PER_ADDRESS_MAX)]
    share = peer_listener.STRANGERS_PER_ADDRESS_MAX
    await until(lambda: broker.listener.refused_total >= len(crowd) - share)
    assert broker.listener._counts == {"127.0.0.1": share, "127.0.0.2": 3}
    for stranger in (*patient, *crowd):
        await stranger.close()
    await until(lambda: not broker.listener._strangers)
    assert not broker.listener._counts


@on_loopback
async def test_many_addresses_share_what_there_is(net: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_listener, "STRANGERS_MAX", 20)
    monkeypatch.setattr(peer_listener, "STRANGERS_PER_ADDRESS_MAX", 10)
    broker = net.broker(1)
    strangers = [await Stranger.at(broker, f"127.0.0.{2 + number % 4}") for number in range(80)]
    await until(lambda: broker.listener.refused_total >= 60)
    assert len(broker.listener._strangers) == 20
    assert max(broker.listener._counts.values()) <= 10
    await still_links(net, broker)
    for stranger in strangers:
        await stranger.close()


@on_loopback
async def test_brokers_are_linked_while_a_flood_from_their_own_address_goes_on(net: Loopback) -> None:
    broker, ended = net.broker(1), asyncio.Event()

    async def flood() -> None:
        mine: list[Stranger] = []
        while not ended.is_set():
            stranger = await Stranger.at(broker)
            stranger.send(hello())
            mine.append(stranger)
        for stranger in mine:
            await stranger.close()

    floods = [asyncio.ensure_future(flood()) for _ in range(8)]
    await until(lambda: broker.listener.refused_total > 200)
    await still_links(net, broker)
    ended.set()
    await asyncio.gather(*floods)


@on_loopback
async def test_a_stranger_learns_nothing_of_the_cluster(net: Loopback) -> None:
    broker = net.broker(4_000_001, cluster_id="the-cluster", directory_id="the-folder")
    stranger = await Stranger.at(broker)
    stranger.send(hello())
    stranger.send(b"\0\0\0\x21\2" + bytes(32))
    heard = await stranger.read_to_end()
    assert b"do not have the same cluster secret" in heard
    named = (b"the-cluster", b"the-folder", b"4000001", (4_000_001).to_bytes(4, "big"))
    assert not any(each in heard for each in named)
    await stranger.close()


@on_loopback
async def test_a_thousand_bad_starts_do_no_harm(net: Loopback) -> None:
    broker, rng, good = net.broker(1), Random(3), hello()
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            data[place : place + rng.randint(0, 4)] = rng.randbytes(rng.randint(0, 4))
        stranger = await Stranger.at(broker)
        stranger.send(bytes(data))
        await stranger.close()
    await still_links(net, broker)
    assert broker.ups == [77]
    await until(lambda: not broker.listener._strangers)
