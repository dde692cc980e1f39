"""Two brokers meet: who gets through, and what is said to those who do not."""

from collections.abc import Callable
from random import Random

import pytest

from anabranch.server.peers import handshake as peer_handshake
from anabranch.server.peers.handshake import (
    HELLO_BYTES_MAX,
    Cause,
    Frame,
    HandshakeError,
    Identity,
    Kind,
    Met,
    accept,
    dial,
    next_frame,
    refusal,
)

SECRET = b"0123456789abcdef"
ONE, TWO = Identity("c", 1, "folder-1"), Identity("c", 2, "folder-2")
Objection = Callable[[Identity], None]


def agree(them: Identity) -> None:
    pass


def frame_of(sent: bytes) -> Frame:
    found = next_frame(sent)
    assert found is not None
    assert found[1] == len(sent)
    return found[0]


class Meeting:
    """A dialler and an acceptor, and everything that passes between them."""

    def __init__(
        self,
        dialler: Identity = ONE,
        acceptor: Identity = TWO,
        *,
        expected: int | None = None,
        secrets: tuple[bytes, bytes] = (SECRET, SECRET),
        objections: tuple[Objection, Objection] = (agree, agree),
        seed: int = 0,
    ) -> None:
        rng = Random(seed)
        self.frames: list[Frame] = []
        self.dialler = dial(dialler, expected, secrets[0], rng.randbytes(32), objections[0])
        self.acceptor = accept(acceptor, secrets[1], rng.randbytes(32), objections[1])

    def run(self) -> tuple[Met, Met]:
        assert next(self.acceptor) == b""
        hello = self.acceptor.send(self._seen(next(self.dialler)))
        proof = self.dialler.send(self._seen(hello))
        welcome = self.acceptor.send(self._seen(proof))
        identity = self.dialler.send(self._seen(welcome))
        accepted = self._end(self.acceptor.send, self._seen(identity))
        return self._end(self.dialler.send, self._seen(accepted.last_words)), accepted

    def _seen(self, sent: bytes) -> Frame:
        self.frames.append(frame_of(sent))
        return self.frames[-1]

    @staticmethod
    def _end(send: Callable[[Frame], bytes], frame: Frame) -> Met:
        with pytest.raises(StopIteration) as caught:
            send(frame)
        return caught.value.value


def refused(meeting: Meeting) -> HandshakeError:
    with pytest.raises(HandshakeError) as caught:
        meeting.run()
    return caught.value


def test_both_learn_who_the_other_is() -> None:
    dialled, accepted = Meeting().run()
    assert (dialled.them, accepted.them) == (TWO, ONE)


def test_a_broker_without_a_cluster_may_join_one() -> None:
    dialled, accepted = Meeting(Identity("", 1, "folder-1")).run()
    assert dialled.them.cluster_id == "c"
    assert accepted.them.cluster_id == ""


def test_the_same_secret_is_needed_and_is_never_sent() -> None:
    error = refused(Meeting(secrets=(SECRET, b"another secret, long enough")))
    assert error.cause is Cause.SECRET
    assert str(error) == (
        "the two brokers do not have the same cluster secret: start both with the same --cluster-secret-file."
    )
    meeting = Meeting()
    meeting.run()
    assert not any(SECRET in frame.body for frame in meeting.frames)


def test_an_acceptor_that_does_not_know_the_secret_is_found_out_too() -> None:
    meeting = Meeting()
    next(meeting.acceptor)
    meeting.dialler.send(frame_of(meeting.acceptor.send(frame_of(next(meeting.dialler)))))
    with pytest.raises(HandshakeError) as caught:
        meeting.dialler.send(Frame(Kind.WELCOME, bytes(32)))
    assert caught.value.cause is Cause.SECRET


def test_a_proof_sent_back_to_its_maker_proves_nothing() -> None:
    meeting = Meeting()
    next(meeting.acceptor)
    proof = meeting.dialler.send(frame_of(meeting.acceptor.send(frame_of(next(meeting.dialler)))))
    with pytest.raises(HandshakeError) as caught:
        meeting.dialler.send(Frame(Kind.WELCOME, frame_of(proof).body))
    assert caught.value.cause is Cause.SECRET


def test_nobody_says_who_it_is_before_the_other_side_is_proven() -> None:
    one = Identity("the-cluster", 1234567, "folder-of-one")
    two = Identity("the-cluster", 7654321, "folder-of-two")
    meeting = Meeting(one, two)
    meeting.run()
    kinds = [frame.kind for frame in meeting.frames]
    assert kinds == [Kind.HELLO, Kind.HELLO, Kind.PROOF, Kind.WELCOME, Kind.IDENTITY, Kind.LINKED]
    names = [
        text.encode() for me in (one, two) for text in (me.cluster_id, me.directory_id, str(me.broker_id))
    ]
    ids = [me.broker_id.to_bytes(4, "big") for me in (one, two)]
    before = b"".join(frame.body for frame in meeting.frames[:3])
    assert not any(each in before for each in (*names, *ids))


@pytest.mark.parametrize("secrets", [(b"wrong" * 5, SECRET), (SECRET, b"wrong" * 5)])
def test_a_refusal_to_a_stranger_names_nobody(secrets: tuple[bytes, bytes]) -> None:
    error = refused(Meeting(Identity("the-cluster", 1234567, "folder-1"), secrets=secrets))
    assert error.cause is Cause.SECRET
    assert not any(word in str(error) for word in ("the-cluster", "1234567", "folder"))


def test_an_identity_that_somebody_has_changed_is_not_believed() -> None:
    meeting = Meeting()
    next(meeting.acceptor)
    hello = meeting.acceptor.send(frame_of(next(meeting.dialler)))
    welcome = frame_of(meeting.acceptor.send(frame_of(meeting.dialler.send(frame_of(hello)))))
    with pytest.raises(HandshakeError) as caught:
        meeting.dialler.send(Frame(Kind.WELCOME, welcome.body[:-1] + b"x"))
    assert caught.value.cause is Cause.SECRET


def test_a_recorded_meeting_cannot_be_played_again() -> None:
    recorded, fresh = Meeting(seed=1), Meeting(seed=2)
    recorded.run()
    hello, _, proof, *_ = recorded.frames
    next(fresh.acceptor)
    fresh.acceptor.send(hello)
    with pytest.raises(HandshakeError) as caught:
        fresh.acceptor.send(proof)
    assert caught.value.cause is Cause.SECRET


def test_another_cluster_is_refused_by_both_their_names() -> None:
    error = refused(Meeting(Identity("mine", 1, "d")))
    assert error.cause is Cause.CLUSTER
    assert "broker 1 belongs to the cluster 'mine', broker 2 to 'c'" in str(error)
    assert error.is_told


def test_a_broker_in_no_cluster_cannot_be_joined() -> None:
    assert "broker 2 is in no cluster yet" in str(refused(Meeting(acceptor=Identity("", 2, "d"))))


def test_an_id_used_twice_is_refused() -> None:
    error = refused(Meeting(Identity("c", 2, "d")))
    assert error.cause is Cause.SAME_ID
    assert "two brokers call themselves broker 2: give one of them another --broker-id" in str(error)


def test_somebody_else_at_an_address_is_refused() -> None:
    error = refused(Meeting(expected=3))
    assert error.cause is Cause.OTHER_ID
    assert "broker 1 expected broker 3 at this address, and broker 2 answered" in str(error)


def test_either_side_may_object_to_who_the_other_is() -> None:
    def object_to(them: Identity) -> None:
        raise HandshakeError(Cause.DUPLICATE, f"not {them.broker_id}")

    assert str(refused(Meeting(objections=(object_to, agree)))) == "not 2"
    assert str(refused(Meeting(objections=(agree, object_to)))) == "not 1"


def test_strangers_are_not_admitted_before_they_are_proven() -> None:
    asked: list[Identity] = []
    refused(Meeting(secrets=(b"wrong" * 5, SECRET), objections=(agree, asked.append)))
    assert asked == []


def test_another_version_is_refused_by_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting()
    monkeypatch.setattr(peer_handshake, "PROTOCOL_VERSION", 0)
    hello = frame_of(next(meeting.dialler))
    monkeypatch.undo()
    next(meeting.acceptor)
    with pytest.raises(HandshakeError, match="version 0 of the peer protocol, the other 2") as caught:
        meeting.acceptor.send(hello)
    assert (caught.value.cause, caught.value.is_told) == (Cause.VERSION, True)


def test_a_refusal_is_shown_as_one_printable_line() -> None:
    meeting = Meeting()
    next(meeting.dialler)
    with pytest.raises(HandshakeError) as caught:
        meeting.dialler.send(frame_of(refusal(HandshakeError(Cause.SECRET, "no\n\x1b[31m because \xff"))))
    assert (caught.value.cause, str(caught.value)) == (Cause.REFUSED, "no  [31m because \xff")


def test_a_refusal_says_whether_anything_is_wrong_at_all() -> None:
    meeting = Meeting()
    next(meeting.dialler)
    with pytest.raises(HandshakeError) as caught:
        meeting.dialler.send(frame_of(refusal(HandshakeError(Cause.DUPLICATE, "one is enough"))))
    assert caught.value.cause is Cause.DUPLICATE


@pytest.mark.parametrize(
    "received", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0\0\0\x2d\0\x12\0\x03", b"\0\0\0\0\1"]
)
def test_what_is_no_peer_protocol_is_garbage_and_not_answered(received: bytes) -> None:
    with pytest.raises(HandshakeError) as caught:
        next_frame(received)
    assert (caught.value.cause, caught.value.is_told) == (Cause.GARBAGE, False)


def test_an_oversized_hello_is_garbage_before_it_is_there() -> None:
    assert next_frame((HELLO_BYTES_MAX).to_bytes(4, "big") + b"\1") is None
    with pytest.raises(HandshakeError):
        next_frame((HELLO_BYTES_MAX + 1).to_bytes(4, "big") + b"\1")


def test_no_hello_whatever_does_harm() -> None:
    rng = Random(7)
    hello = frame_of(next(Meeting().dialler)).body
    outcomes = set()
    for _ in range(3000):
        body = bytearray(hello)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(body))
            body[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        meeting = Meeting()
        next(meeting.acceptor)
        try:
            outcomes.add(frame_of(meeting.acceptor.send(Frame(Kind.HELLO, bytes(body)))).kind)
        except HandshakeError as error:
            outcomes.add(error.cause)
    assert outcomes >= {Kind.HELLO, Cause.GARBAGE, Cause.VERSION}
