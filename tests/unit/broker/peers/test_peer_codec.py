"""What brokers say, as bytes and back; and that no bytes whatever do harm."""

from contextlib import suppress
from random import Random
from struct import pack
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.peers import codec as peer_codec
from anabranch.broker.peers.codec import ANSWERS, BODY_START, HEADER, QUESTIONS, Refused, Said, decode, encode
from anabranch.broker.peers.messages import (
    Answer,
    LeaderRow,
    Leads,
    PeerMessage,
    Question,
    Records,
    RingLetter,
)
from anabranch.cluster.raft import messages as quorum
from anabranch.errors import PeerProtocolError
from anabranch.modes.generations import Generations, Row
from anabranch.modes.ring import messages as ring
from support.peer_values import SENDER, STRATEGIES, anything

TOPIC = UUID(int=7)


def to_bytes(said: Said, correlation: int = 0) -> bytes:
    return b"".join(encode(said, correlation))


def from_bytes(frame: bytes, sender: int = SENDER) -> Said:
    length, kind, _ = HEADER.unpack_from(frame)
    assert length == len(frame) - 4
    return decode(kind, memoryview(frame)[BODY_START:], sender)


CLASSES = {
    *get_args(quorum.Message),
    *get_args(ring.Message),
    *(get_args(PeerMessage)),
    *get_args(Question),
    *get_args(Answer),
    Refused,
}


def test_the_round_trips_leave_no_class_out() -> None:
    assert set(STRATEGIES) == CLASSES - {RingLetter}


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_everything_comes_back_as_it_was_said(kind: type) -> None:
    @given(STRATEGIES[kind])
    @settings(max_examples=40, deadline=None)
    def comes_back(said: Said) -> None:
        assert from_bytes(to_bytes(said)) == said

    comes_back()


@pytest.mark.parametrize("records", [b"ab", bytearray(b"ab"), memoryview(b"ab"), [b"a", memoryview(b"b")]])
def test_records_are_sent_from_where_they_lie(records: object) -> None:
    letter = RingLetter(TOPIC, 1, 2, ring.Push(SENDER, 3, 4, 5, 3, 4, records))
    buffers = encode(letter)
    assert buffers[1:] == (records if isinstance(records, list) else [records])
    assert from_bytes(b"".join(buffers)).message.records == b"ab"


def test_received_records_are_a_view_of_the_frame() -> None:
    frame = bytearray(to_bytes(Records(b"abc")))
    records = decode(frame[4], memoryview(frame)[BODY_START:], SENDER)
    frame[-1:] = b"d"
    assert records.data == b"abd"


def test_questions_and_answers_share_a_correlation_and_are_told_apart_by_kind() -> None:
    for said in (Records(b""), Refused("", "")):
        _, kind, correlation = HEADER.unpack_from(to_bytes(said, 77))
        assert (kind in ANSWERS, kind in QUESTIONS, correlation) == (True, False, 77)


def test_nobody_speaks_for_another_broker() -> None:
    vote = quorum.GiveVote(quorum.Member(3, "d"), quorum.Member(1, "e"), 5, False, True)
    with pytest.raises(PeerProtocolError, match="broker 2 speaks for broker 3"):
        from_bytes(to_bytes(vote), sender=2)


def test_a_ring_message_is_from_whoever_sent_the_frame() -> None:
    assert from_bytes(to_bytes(RingLetter(TOPIC, 0, 0, ring.Propose(9, 1))), sender=3).message.sender == 3


def refused(kind: int, body: bytes) -> str:
    with pytest.raises(PeerProtocolError) as caught:
        decode(kind, memoryview(body), SENDER)
    return str(caught.value)


def body_of(said: Said) -> tuple[int, bytes]:
    frame = to_bytes(said)
    return frame[4], frame[BODY_START:]


def test_an_unknown_kind_names_itself_and_a_likely_reason() -> None:
    assert "of the kind 63: does the other broker run a newer version?" in refused(63, b"")


@pytest.mark.parametrize(
    "said",
    [
        RingLetter(TOPIC, 0, 0, ring.Beat(SENDER, 1, 2)),
        RingLetter(TOPIC, 0, 0, ring.Enter(SENDER, 1, Generations([Row(1, 0)]), {1: "x"})),
        Leads([LeaderRow(TOPIC, 0, 0, 1, (1, 2))], True),
        quorum.TakeOver(quorum.Member(SENDER, "d"), quorum.Member(1, "e"), 5),
    ],
)
def test_a_message_has_exactly_its_bytes(said: Said) -> None:
    kind, body = body_of(said)
    refused(kind, body + b"\0")
    for end in range(len(body)):
        refused(kind, body[:end])


def test_counts_beyond_what_is_there_cost_no_memory() -> None:
    kind, _ = body_of(Leads([], True))
    assert "4294967295 lies outside" in refused(kind, pack(">I", 2**32 - 1) + b"\1")


@pytest.mark.parametrize(("start", "end", "safe"), [(5, 4, 0), (0, 2**63, 0), (0, 0, 2**63)])
def test_a_push_without_sense_is_refused(start: int, end: int, safe: int) -> None:
    letter = RingLetter(TOPIC, 1, 2, ring.Push(SENDER, 3, start, end, 3, safe))
    assert "a push of generation 3" in refused(*body_of(letter))


def test_a_table_of_generations_that_goes_back_is_refused() -> None:
    table = Generations([Row(1, 5), Row(2, 6)])
    kind, body = body_of(RingLetter(TOPIC, 0, 0, ring.Enter(SENDER, 2, table, {})))
    assert "goes back" in refused(kind, body.replace(pack(">IQ", 1, 5), pack(">IQ", 2, 5)))
    assert "goes back" in refused(kind, body.replace(pack(">IQ", 1, 5), pack(">IQ", 1, 7)))


def test_a_member_named_twice_is_refused() -> None:
    one, other = quorum.Member(1, "a"), quorum.Member(1, "b")
    snapshot = quorum.Snapshot(1, 1, quorum.Members(frozenset({one, other})))
    kind, body = body_of(quorum.SendSnapshot(quorum.Member(SENDER, "d"), one, 1, snapshot))
    assert "named twice" in refused(kind, body.replace(b"b", b"a"))


def test_a_snapshot_that_is_no_json_is_refused() -> None:
    me = quorum.Member(SENDER, "d")
    snapshot = quorum.Snapshot(1, 1, quorum.Members(frozenset()), {"a": 1})
    kind, body = body_of(quorum.SendSnapshot(me, me, 1, snapshot))
    assert "not JSON" in refused(kind, body[:-1])
    assert "not JSON" in refused(kind, body.replace(b'{"a":1}', b"[" * 200_000))


@given(st.sampled_from(sorted(peer_codec._DECODERS)), st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_random_bytes_are_a_message_or_refused(kind: int, body: bytes) -> None:
    with suppress(PeerProtocolError):
        decode(kind, memoryview(body), SENDER)


@given(anything, st.integers(0, 2**32))
@settings(max_examples=500, deadline=None)
def test_spoiled_messages_are_a_message_or_refused(said: Said, seed: int) -> None:
    kind, body = body_of(said)
    spoiled, rng = bytearray(body), Random(seed)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(spoiled) + 1)
        match rng.randrange(3):
            case 0:
                spoiled[place:place] = rng.randbytes(rng.randint(1, 8))
            case 1:
                del spoiled[place : place + rng.randint(1, 8)]
            case _:
                spoiled[place : place + 1] = bytes([rng.choice((0, 1, 127, 128, 255))])
    with suppress(PeerProtocolError):
        decode(kind, memoryview(spoiled), SENDER)
