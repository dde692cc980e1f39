"""Brokers linked over real sockets on loopback: order, cuts, crossing dials, back-pressure, joining."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from anabranch.broker.peers import codec as peer_codec
from anabranch.broker.peers.messages import (
    Answer,
    BrokerBeat,
    ForwardAnswer,
    ForwardRequest,
    PeerMessage,
    Question,
    ReadIndex,
    ReadIndexAnswer,
    RingLetter,
)
from anabranch.errors import InvalidConfigError, PeerRefusedError, PeerUnreachableError
from anabranch.modes.ring.messages import Push
from anabranch.server.peers import link as peer_link
from anabranch.server.peers import links as peer_links
from anabranch.server.peers.security import PeerSecurity, mutual_tls, names_in, read_secret
from support import peer_certs
from support.numbered import number_of, numbered
from support.peer_brokers import Loopback, PeerBroker, cut, link_of, on_loopback, until, warnings_of
from support.secret_files import write_secret

COUNT = 10_000
MIB = 2**20


def push(records: object) -> RingLetter:
    return RingLetter(UUID(int=1), 0, 0, Push(1, 1, 0, 1, 1, 0, records))


def numbers(broker: PeerBroker, sender: PeerBroker) -> list[int]:
    return [number_of(message) for who, message in broker.messages if who == sender.id]


async def tell_all(sender: PeerBroker, receivers: list[PeerBroker], count: int) -> None:
    for number in range(count):
        for receiver in receivers:
            sender.links.tell(receiver.id, numbered(number))
        if number % 100 == 0:
            await asyncio.sleep(0)


# --- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
@on_loopback
async def test_everybody_hears_everybody_in_order(net: Loopback, count: int) -> None:
    brokers = await net.linked(*range(1, count + 1))
    others = {one.id: [other for other in brokers if other is not one] for one in brokers}
    await asyncio.gather(*(tell_all(one, others[one.id], COUNT) for one in brokers))
    await until(lambda: all(len(one.messages) == COUNT * len(others[one.id]) for one in brokers))
    for one in brokers:
        for other in others[one.id]:
            assert numbers(one, other) == list(range(COUNT))
    assert all(one.links.dropped_total == 0 for one in brokers)


@on_loopback
async def test_what_is_told_can_be_sent_before_the_loop_turns(net: Loopback) -> None:
    one, other = await net.linked(1, 2)
    one.links.tell(2, numbered(1))
    one.links.flush()
    assert link_of(one, other)._sending.bytes_waiting == 0
    one.links.tell(2, numbered(2))
    await until(lambda: numbers(other, one) == [1, 2])


@on_loopback
async def test_large_and_small_messages_arrive_whole_and_in_order(net: Loopback) -> None:
    one, other = await net.linked(1, 2)
    sizes = [0, 1, 20 * MIB, 300_000, 5, 262_144, 70_000, 9 * MIB]
    for number, size in enumerate(sizes):
        one.links.tell(other.id, push([bytes([number]) * (size // 2), bytes([number]) * (size - size // 2)]))
        await until(lambda: one.links.room(2) > 21 * MIB)
    await until(lambda: len(other.messages) == len(sizes))
    got = [letter.message.records for _, letter in other.messages]
    assert [len(records) for records in got] == sizes
    assert all(bytes(records) == bytes([number]) * len(records) for number, records in enumerate(got))


@on_loopback
async def test_questions_are_answered_side_by_side_and_refused_with_the_reason(net: Loopback) -> None:
    one, other = await net.linked(1, 2)
    gate = asyncio.Event()

    async def answer(sender: int, question: Question) -> Answer:
        if isinstance(question, ForwardRequest):
            await gate.wait()
            return ForwardAnswer(bytes(question.body) * 2)
        return await PeerBroker.refuse(other, sender, question)

    other.answer = answer
    slow = [
        asyncio.ensure_future(one.links.ask(2, ForwardRequest(3, 12, None, "h", bytes([n])), 10_000))
        for n in range(5)
    ]
    assert await one.links.ask(2, ReadIndex(), 10_000) == ReadIndexAnswer(1)
    with pytest.raises(PeerRefusedError, match="broker 9 leads, ask there") as caught:
        await one.links.ask(2, BrokerBeat(1, 1, 1, False), 10_000)
    assert caught.value.kind == "NotControllerError"
    gate.set()
    assert [bytes(answer.body) for answer in await asyncio.gather(*slow)] == [bytes([n, n]) for n in range(5)]


@on_loopback
async def test_a_question_nobody_answers_ends_in_time_and_a_late_answer_does_no_harm(net: Loopback) -> None:
    one, other = await net.linked(1, 2)
    gate = asyncio.Event()

    async def answer(sender: int, question: Question) -> Answer:
        await gate.wait()
        return ReadIndexAnswer(7)

    other.answer = answer
    with pytest.raises(PeerUnreachableError, match="broker 2 did not answer within 20 ms"):
        await one.links.ask(2, ReadIndex(), 20)
    gate.set()
    assert await one.links.ask(2, ReadIndex(), 10_000) == ReadIndexAnswer(7)


@on_loopback
async def test_one_broker_cannot_keep_another_busy_without_end(
    net: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "QUESTIONS_MAX", 3)
    one, other = await net.linked(1, 2)
    gate = asyncio.Event()

    async def answer(sender: int, question: Question) -> Answer:
        await gate.wait()
        return ReadIndexAnswer(7)

    other.answer = answer
    asked = [asyncio.ensure_future(one.links.ask(2, ReadIndex(), 10_000)) for _ in range(4)]
    with pytest.raises(PeerRefusedError, match="3 questions are open already"):
        await asked[3]
    gate.set()
    assert await asyncio.gather(*asked[:3]) == [ReadIndexAnswer(7)] * 3


@on_loopback
async def test_a_link_whose_reader_stands_still_drops_counts_and_hurts_no_other(net: Loopback) -> None:
    one, slow, quick = await net.linked(1, 2, 3)
    link_of(slow, one)._transport.pause_reading()
    block = bytes(MIB)
    for _ in range(100):
        one.links.tell(slow.id, push(block))
        one.links.tell(quick.id, push(block))
        await until(lambda: one.links.room(quick.id) > MIB)
    assert one.links.room(slow.id) < 2 * MIB
    assert 0 < one.links.dropped_total < 100
    await until(lambda: len(quick.messages) == 100)
    link_of(slow, one)._transport.resume_reading()
    await until(lambda: len(slow.messages) == 100 - one.links.dropped_total)


@on_loopback
async def test_a_defect_in_a_handler_costs_its_link_and_nothing_else(
    net: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, third = await net.linked(1, 2, 3)
    heard = other.heard

    def fail(sender: int, message: PeerMessage) -> None:
        raise RuntimeError("oh")

    other.heard = fail  # type: ignore[method-assign]
    one.links.tell(2, numbered(1))
    await until(lambda: one.downs == [2] and other.downs == [1])
    other.heard = heard  # type: ignore[method-assign]
    await net.all_linked(one, other, third)
    assert third.downs == []
    assert "a message of broker 1 could not be handled: this is a defect" in warnings_of(caplog)


# --- links come and go -------------------------------------------------------------------------------------------


@on_loopback
async def test_crossing_dials_make_one_link_that_stays(net: Loopback) -> None:
    for first in range(1, 60, 3):
        brokers = await net.linked(first, first + 1, first + 2)
        await asyncio.sleep(0.01)
        for one in brokers:
            assert sorted(one.ups) == sorted(other.id for other in brokers if other is not one)
            assert one.downs == []
        for one, other in pairwise(brokers):
            assert link_of(one, other).is_dialled != link_of(other, one).is_dialled


@pytest.mark.parametrize("dialler", [1, 2])
@on_loopback
async def test_one_side_that_can_dial_is_enough(net: Loopback, dialler: int) -> None:
    brokers = {1: net.broker(1), 2: net.broker(2)}
    brokers[dialler].connect(brokers[3 - dialler])
    brokers[3 - dialler].links.connect({dialler: ("127.0.0.1", 1)})  # Where nobody listens.
    await net.all_linked(*brokers.values())


@on_loopback
async def test_a_broken_link_fails_its_questions_at_once_and_comes_back(net: Loopback) -> None:
    one, other = await net.linked(1, 2)
    never = asyncio.Event()

    async def answer(sender: int, question: Question) -> Answer:
        await never.wait()
        return ReadIndexAnswer(0)

    other.answer = answer
    asking = asyncio.ensure_future(one.links.ask(2, ReadIndex(), 600_000))
    await asyncio.sleep(0)
    cut(one, other)
    with pytest.raises(PeerUnreachableError, match="the link to broker 2 broke"):
        await asking
    never.set()
    await until(lambda: one.ups == [2, 2] and other.ups == [1, 1])
    assert (one.downs, other.downs) == ([2], [1])
    one.links.tell(2, numbered(5))
    await until(lambda: numbers(other, one) == [5])


@on_loopback
async def test_links_survive_many_cuts(net: Loopback) -> None:
    one, other, third = brokers = await net.linked(1, 2, 3)
    for number in range(10):
        cut(*((one, other) if number % 2 else (other, third)))
        await asyncio.sleep(0)
        await until(lambda: any(broker.downs for broker in brokers))
        await net.all_linked(*brokers)
    for broker in brokers:
        assert len(broker.ups) - len(broker.downs) == 2


@on_loopback
async def test_a_broker_that_comes_back_at_its_address_is_linked_again(net: Loopback) -> None:
    one, other = await net.linked(1, 2)
    await other.close()
    await until(lambda: one.downs == [2])
    assert not one.links.is_up(2)
    one.links.tell(2, numbered(1))
    assert one.links.dropped_total == 1
    with pytest.raises(PeerUnreachableError, match="there is no link to broker 2"):
        await one.links.ask(2, ReadIndex(), 100)
    again = net.broker(2, port=other.address[1])
    again.connect(one)
    await net.all_linked(one, again)


@on_loopback
async def test_whoever_lost_a_link_that_we_still_have_gets_a_new_one(
    net: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "CROSSING_MS_MAX", 0)
    one = net.broker(1)
    lost = net.broker(2)
    lost.connect(one)
    await net.all_linked(one, lost)
    old = link_of(one, lost)
    again = net.broker(2)  # The same data folder: its machine went dark and is back before we noticed.
    again.connect(one)
    await until(lambda: one.ups == [2, 2])
    assert one.downs == [2]
    assert link_of(one, again) is not old
    lost.links.connect({})


@on_loopback
async def test_a_broker_left_out_is_let_go_and_not_dialled_again(net: Loopback) -> None:
    one, other = await net.linked(1, 2)
    one.links.connect({})
    other.links.connect({})
    await until(lambda: not one.links.is_up(2) and not other.links.is_up(1))
    await asyncio.sleep(0.2)
    assert len(one.ups) == 1


# --- joining -----------------------------------------------------------------------------------------------------


@on_loopback
async def test_a_new_broker_joins_by_an_address_and_learns_its_cluster(net: Loopback) -> None:
    seed, joiner = net.broker(1, cluster_id="mine"), net.broker(2, cluster_id="")
    assert await joiner.links.join(seed.address) == ("mine", 1)
    assert joiner.links.me.cluster_id == "mine"
    await net.all_linked(seed, joiner)
    joiner.links.connect({})  # Its table is still empty.
    assert await joiner.links.ask(1, ReadIndex(), 1000) == ReadIndexAnswer(2)
    cut(seed, joiner)
    await until(lambda: len(joiner.ups) == 2)
    assert await joiner.links.join(seed.address) == ("mine", 1)


@on_loopback
async def test_joining_says_why_it_cannot_be(net: Loopback) -> None:
    seed, joiner = net.broker(1, cluster_id="mine"), net.broker(2, cluster_id="")
    stranger = net.broker(3, cluster_id="", secret=b"another secret, long enough")
    outsider = net.broker(4, cluster_id="other")
    with pytest.raises(PeerUnreachableError, match=r"cannot be reached .* is the broker running"):
        await joiner.links.join(("127.0.0.1", 1))
    with pytest.raises(PeerUnreachableError, match="cannot be reached"):
        await joiner.links.join(("no-such-host.invalid", 1))
    with pytest.raises(PeerRefusedError, match="the two brokers do not have the same cluster secret"):
        await stranger.links.join(seed.address)
    with pytest.raises(PeerRefusedError, match="broker 4 belongs to the cluster 'other', broker 1 to 'mine'"):
        await outsider.links.join(seed.address)
    with pytest.raises(PeerUnreachableError, match="broker 2 is in no cluster yet"):
        await net.broker(5, cluster_id="").links.join(joiner.address)
    with pytest.raises(PeerRefusedError, match="two brokers call themselves broker 1"):
        await net.broker(1, directory_id="x").links.join(seed.address)
    assert seed.ups == []


@on_loopback
async def test_joining_ones_own_address_is_no_trouble(
    net: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    broker = net.broker(1)
    with pytest.raises(PeerRefusedError, match="broker 1 answered itself") as caught:
        await broker.links.join(broker.address)
    assert caught.value.kind == "ITSELF"
    assert warnings_of(caplog) == []


# --- TLS ---------------------------------------------------------------------------------------------------------


def tls(name: str, ca: str = "ours", secret: bytes = b"", allowed: str | None = None) -> PeerSecurity:
    folder = Path(peer_certs.__file__).parent
    files = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{ca}-ca.pem"
    return PeerSecurity(secret, *mutual_tls(*map(str, files)), allowed)


@on_loopback
async def test_brokers_with_certificates_of_one_authority_are_linked(net: Loopback) -> None:
    one, other = (net.broker(number, security=tls("ours")) for number in (1, 2))
    one.connect(other)
    other.connect(one)
    await net.all_linked(one, other)
    await asyncio.gather(tell_all(one, [other], 2000), tell_all(other, [one], 2000))
    one.links.tell(2, push(bytes(5 * MIB)))
    await until(lambda: len(other.messages) == 2001 and len(one.messages) == 2000)
    assert numbers(one, other) == list(range(2000))


@pytest.mark.parametrize(
    "security",
    [tls("other", ca="ours"), tls("ours", ca="other"), PeerSecurity(), tls("ours", secret=b"x" * 16)],
    ids=["other authority", "trusts another authority", "no TLS", "a secret besides"],
)
@on_loopback
async def test_anybody_else_is_not(
    net: Loopback, caplog: pytest.LogCaptureFixture, security: PeerSecurity
) -> None:
    one, other = net.broker(1, security=tls("ours")), net.broker(2, security=security)
    with pytest.raises((PeerUnreachableError, PeerRefusedError)):
        await other.links.join(one.address)
    await until(lambda: any("refused a connection from 127.0.0.1" in text for text in warnings_of(caplog)))
    assert (one.ups, other.ups) == ([], [])


@on_loopback
async def test_a_certificate_may_have_to_name_a_broker(
    net: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, strict = (
        net.broker(number, security=tls("ours", allowed=allowed))
        for number, allowed in ((1, "ours * broker"), (2, None), (3, "broker-*.example.com"))
    )
    other.connect(one)
    await net.all_linked(one, other)
    for dialler, dialled in ((other, strict), (strict, one)):
        with pytest.raises((PeerUnreachableError, PeerRefusedError)):
            await dialler.links.join(dialled.address)
    assert strict.ups == []
    await until(lambda: any("no name that peer.tls.name allows" in text for text in warnings_of(caplog)))


def test_the_names_of_a_certificate() -> None:
    subject = ((("countryName", "CH"),), (("commonName", "broker-1"),))
    assert list(names_in({"subject": subject})) == ["broker-1"]
    names = (("DNS", "a.example"), ("IP Address", "10.0.0.1"), ("URI", "spiffe://b"))
    assert list(names_in({"subject": subject, "subjectAltName": names})) == ["a.example", "spiffe://b"]
    assert list(names_in({})) == []


# --- what is read from files -------------------------------------------------------------------------------------


def test_a_secret_is_read_without_its_line_end_and_must_be_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path, "0123456789abcdef\n")
    assert read_secret(str(path)) == b"0123456789abcdef"
    write_secret(path, "short\n")
    with pytest.raises(InvalidConfigError, match=r"has 5 bytes; it needs 16 .*openssl rand -hex 32"):
        read_secret(str(path))
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        read_secret(str(tmp_path / "none"))


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"peer\.tls\.cert=a, peer\.tls\.key=b and peer\.tls\.ca=c"):
        mutual_tls("a", "b", "c")


@on_loopback
async def test_a_frame_beyond_the_limit_closes_the_link_and_says_so(
    net: Loopback, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await net.linked(1, 2)
    monkeypatch.setattr(peer_link, "PEER_FRAME_BYTES_MAX", 1000)
    link_of(one, other)._sending.put(peer_codec.encode(push(bytes(2000))))
    await until(lambda: other.downs == [1])
    [text] = [text for text in warnings_of(caplog) if "not the peer protocol" in text]
    assert text.startswith(
        "broker 1 sent what is not the peer protocol (a frame of 2061 bytes; at most 1000 are read)"
    )


@on_loopback
async def test_what_no_broker_would_read_is_not_sent(
    net: Loopback, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await net.linked(1, 2)
    monkeypatch.setattr(peer_link, "PEER_FRAME_BYTES_MAX", 1000)

    async def answer(sender: int, question: Question) -> Answer:
        return ForwardAnswer(bytes(2000))

    other.answer = answer
    one.links.tell(2, push(bytes(2000)))
    assert one.links.dropped_total == 1
    assert "a message of 2065 bytes to broker 2 is dropped: at most 1000 are read there" in warnings_of(
        caplog
    )
    with pytest.raises(PeerRefusedError, match="the answer has 2009 bytes"):
        await one.links.ask(2, ReadIndex(), 10_000)
    assert (one.downs, other.downs) == ([], [])


def spoiled_frames() -> list[Any]:
    good = b"".join(peer_codec.encode(numbered(1)))
    return [b"\0\0\0\0" * 4, b"\xff" * 100, good[:4] + b"\x3f" + good[5:], b"\0\0\0\x06\x04\0\0\0\0x"]


@pytest.mark.parametrize("spoiled", spoiled_frames())
@on_loopback
async def test_a_proven_broker_that_sends_nonsense_is_cut_off_and_may_come_back(
    net: Loopback, spoiled: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await net.linked(1, 2)
    link_of(one, other)._sending.put([spoiled])
    await until(lambda: other.downs == [1])
    await until(lambda: len(other.ups) == 2)
    assert any("run one release of anabranch on all brokers" in text for text in warnings_of(caplog))
    assert other.messages == []
