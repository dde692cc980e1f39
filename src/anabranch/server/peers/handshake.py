"""How two brokers find out whether they belong together, before either believes a word of the other.

    dialler                                   acceptor
    Hello: version, nonce                   >
                                            < Hello: the same of its own
    Proof                                   >   does it know the secret?
                                            < Welcome: its proof, and who it is: cluster, broker, data folder
    Identity: who it is, with a proof       >   may we be linked?
                                            < Linked
    either may send a Refusal with the reason instead, and closes

A proof is an HMAC-SHA256 over both hellos, the role and what is said with it, keyed with the cluster's secret: only who
knows the secret can make one, for these two nonces alone, and neither side can send the other's back. Nobody says who
it is, and no refusal names a broker or cluster, before the other side is proven. An empty secret proves nothing; it
stands where TLS has done so already, or where nobody asked for more.

Both sides are generators: they yield what to send, are sent the frame that came, and return who the other is, with
what to send last. They raise HandshakeError.
"""

import hmac
from collections.abc import Callable, Generator
from enum import Enum
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from anabranch.broker.peers.fields import Reader
from anabranch.errors import PeerError, PeerProtocolError
from anabranch.values import BrokerId

PROTOCOL_VERSION = 2
MAGIC = b"anabranch-peer\r\n"
NONCE_BYTES = 32
HELLO_BYTES_MAX = 1024
"""Of any frame before both sides are proven; ours are smaller."""

_head = Struct(">IB")
_hello = Struct(f">{len(MAGIC)}sH{NONCE_BYTES}s")
PROOF_BYTES = 32


class Kind(Enum):
    HELLO = 1
    PROOF = 2
    WELCOME = 3
    REFUSAL = 4
    IDENTITY = 5
    LINKED = 6


_KINDS = {kind.value for kind in Kind}


class Cause(Enum):
    """Why two brokers are not linked; repeated ones are logged once a minute."""

    SECRET = "the secret"
    CERTIFICATE = "the certificate"
    CLUSTER = "the cluster"
    NOT_YET = "no cluster yet"
    """The other one is about to join one itself: it may be asked again."""
    VERSION = "the version"
    SAME_ID = "the broker id"
    OTHER_ID = "the address"
    DIRECTORY = "the data folder"
    GARBAGE = "garbage"
    SILENCE = "silence"
    CROWD = "too many strangers"
    UNREACHABLE = "no connection"
    REFUSED = "refused by the other side"
    DUPLICATE = "another link"
    """Not wrong: the two dialled each other at once, and one link is enough."""
    ITSELF = "its own address"
    """Not wrong either: one list of addresses may serve all brokers."""


_TOLD_CAUSES = (Cause.REFUSED, Cause.DUPLICATE, Cause.ITSELF, Cause.NOT_YET)
"""What a refusal says besides its text: the other side has to tell what is wrong from what is not."""


class Identity(NamedTuple):
    """`cluster_id` is empty while the broker wants to join one."""

    cluster_id: str
    broker_id: BrokerId
    directory_id: str


class HandshakeError(PeerError):
    """The text is for both sides: it names the brokers, not "you" and "me"."""

    def __init__(self, cause: Cause, text: str, *, is_told: bool = True) -> None:
        super().__init__(text)
        self.cause = cause
        self.is_told = is_told
        """Whether the other side should hear the reason: it may be a broker of ours."""


class Frame(NamedTuple):
    kind: Kind
    body: bytes


class Met(NamedTuple):
    them: Identity
    last_words: bytes


Handshake = Generator[bytes, Frame, Met]


def dial(
    me: Identity, expected: BrokerId | None, secret: bytes, nonce: bytes, meet: Callable[[Identity], None]
) -> Handshake:
    """`meet` hears who answered once that is proven, and may object by a HandshakeError."""
    mine = _write_hello(nonce)
    theirs = _expect(Kind.HELLO, (yield _frame(Kind.HELLO, mine)))
    check_hello(theirs)
    hellos = mine, theirs
    welcome = _expect(Kind.WELCOME, (yield _frame(Kind.PROOF, _proof(secret, b"dialler", *hellos))))
    them = _read_proven(secret, b"acceptor", hellos, welcome)
    _check_broker(me, them, expected)
    _check_cluster(me, them)
    meet(them)
    _expect(Kind.LINKED, (yield _frame(Kind.IDENTITY, _write_proven(secret, b"identity", hellos, me))))
    return Met(them, b"")


def accept(me: Identity, secret: bytes, nonce: bytes, admit: Callable[[Identity], None]) -> Handshake:
    """`admit` hears who wants in once that is proven, and may object by a HandshakeError."""
    theirs = _expect(Kind.HELLO, (yield b""))
    check_hello(theirs)
    mine = _write_hello(nonce)
    hellos = theirs, mine
    proof = _expect(Kind.PROOF, (yield _frame(Kind.HELLO, mine)))
    _verify(proof, _proof(secret, b"dialler", *hellos))
    answer = yield _frame(Kind.WELCOME, _write_proven(secret, b"acceptor", hellos, me))
    them = _read_proven(secret, b"identity", hellos, _expect(Kind.IDENTITY, answer))
    _check_broker(me, them, None)
    _check_cluster(them, me)
    admit(them)
    return Met(them, _frame(Kind.LINKED, b""))


def next_frame(received: bytes | bytearray | memoryview) -> tuple[Frame, int] | None:
    """The first frame and its length; None: it is not all there yet. Raises HandshakeError."""
    if len(received) < _head.size:
        return None
    length, kind = _head.unpack_from(received)
    if not 1 <= length <= HELLO_BYTES_MAX or kind not in _KINDS:
        raise HandshakeError(
            Cause.GARBAGE,
            "what came is not the peer protocol of anabranch: Kafka clients and browsers have ports of their own.",
            is_told=False,
        )
    end = 4 + length
    return (Frame(Kind(kind), bytes(received[_head.size : end])), end) if len(received) >= end else None


def refusal(error: HandshakeError) -> bytes:
    cause = _TOLD_CAUSES.index(error.cause) if error.cause in _TOLD_CAUSES else 0
    return _frame(Kind.REFUSAL, bytes([cause]) + str(error).encode()[: HELLO_BYTES_MAX - 2])


def _read_refusal(body: bytes) -> HandshakeError:
    number = body[0] if body else 0
    cause = _TOLD_CAUSES[number] if number < len(_TOLD_CAUSES) else Cause.REFUSED
    return HandshakeError(cause, _printable(body[1:]), is_told=False)


def _frame(kind: Kind, body: bytes) -> bytes:
    return _head.pack(1 + len(body), kind.value) + body


def _proof(
    secret: bytes, role: bytes, dialler_hello: bytes, acceptor_hello: bytes, said: bytes = b""
) -> bytes:
    transcript = b"".join(
        len(part).to_bytes(4, "big") + part for part in (role, dialler_hello, acceptor_hello, said)
    )
    return hmac.digest(secret, transcript, sha256)


# --- hellos and identities -------------------------------------------------------------------------------------


def _write_hello(nonce: bytes) -> bytes:
    return _hello.pack(MAGIC, PROTOCOL_VERSION, nonce)


def check_hello(body: bytes) -> None:
    if not body.startswith(MAGIC):
        raise HandshakeError(Cause.GARBAGE, "what came is no hello of an anabranch broker.", is_told=False)
    version = int.from_bytes(body[len(MAGIC) : len(MAGIC) + 2], "big")
    if version != PROTOCOL_VERSION:  # What follows may look different there.
        raise HandshakeError(
            Cause.VERSION,
            f"one broker speaks version {version} of the peer protocol, the other {PROTOCOL_VERSION}: run one release "
            "of anabranch on all brokers.",
        )
    if len(body) != _hello.size:
        raise HandshakeError(
            Cause.GARBAGE, f"a hello cannot be read: it has {len(body)} bytes.", is_told=False
        )


def _write_proven(secret: bytes, role: bytes, hellos: tuple[bytes, bytes], me: Identity) -> bytes:
    names = [name.encode() for name in (me.cluster_id, me.directory_id)]
    said = me.broker_id.to_bytes(4, "big") + b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return _proof(secret, role, *hellos, said) + said


def _read_proven(secret: bytes, role: bytes, hellos: tuple[bytes, bytes], body: bytes) -> Identity:
    _verify(body[:PROOF_BYTES], _proof(secret, role, *hellos, body[PROOF_BYTES:]))
    return read_identity(body)


def read_identity(body: bytes) -> Identity:
    """Of a Welcome or an Identity, whose proof is not looked at."""
    try:
        reader = Reader(memoryview(body), PROOF_BYTES)
        broker_id = BrokerId(reader.whole())
        them = Identity(reader.text(), broker_id, reader.text())
        reader.end()
    except PeerProtocolError as error:
        raise HandshakeError(Cause.GARBAGE, f"who it is cannot be read: {error}.", is_told=False) from None
    return them


def _expect(kind: Kind, frame: Frame) -> bytes:
    if frame.kind is Kind.REFUSAL:
        raise _read_refusal(frame.body)
    if frame.kind is not kind:
        raise HandshakeError(
            Cause.GARBAGE,
            f"a {frame.kind.name.lower()} came where a {kind.name.lower()} was due.",
            is_told=False,
        )
    return frame.body


def _printable(body: bytes) -> str:
    """A stranger's words, fit for a log line."""
    return "".join(sign if sign.isprintable() else " " for sign in body.decode(errors="replace"))


# --- what must hold --------------------------------------------------------------------------------------------


def _check_broker(me: Identity, them: Identity, expected: BrokerId | None) -> None:
    if (them.broker_id, them.directory_id) == (me.broker_id, me.directory_id):
        raise HandshakeError(Cause.ITSELF, f"broker {me.broker_id} answered itself at this address.")
    if them.broker_id == me.broker_id:
        raise HandshakeError(
            Cause.SAME_ID,
            f"two brokers call themselves broker {me.broker_id}: give one of them another --broker-id, with a data "
            "folder of its own.",
        )
    if expected is not None and them.broker_id != expected:
        raise HandshakeError(
            Cause.OTHER_ID,
            f"broker {me.broker_id} expected broker {expected} at this address, and broker {them.broker_id} answered: "
            "check peer.advertise of both.",
        )


def _check_cluster(dialler: Identity, acceptor: Identity) -> None:
    if not acceptor.cluster_id:
        raise HandshakeError(
            Cause.NOT_YET,
            f"broker {acceptor.broker_id} is in no cluster yet: join the address of a broker that is.",
        )
    if dialler.cluster_id and dialler.cluster_id != acceptor.cluster_id:
        raise HandshakeError(
            Cause.CLUSTER,
            f"broker {dialler.broker_id} belongs to the cluster {dialler.cluster_id!r}, broker {acceptor.broker_id} to "
            f"{acceptor.cluster_id!r}: connect brokers of one cluster, or join with an empty data folder.",
        )


def _verify(proof: bytes, right: bytes) -> None:
    if not hmac.compare_digest(proof, right):
        raise HandshakeError(
            Cause.SECRET,
            "the two brokers do not have the same cluster secret: start both with the same --cluster-secret-file.",
        )
