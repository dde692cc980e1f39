"""Peer messages as bytes, and back: one frame each.

    u32 length of what follows | u8 kind | u32 correlation (a question and its answer share one; else 0) | body

The frequent ones (a ring's Push, Equal and Beat) are packed by hand; the rest by a table of their fields. The
records of a Push, like the bytes of a forwarded request, are the end of their frame, so that they need not be copied.
`decode` is given who sent the frame: nobody speaks for another broker.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple
from uuid import UUID

from anabranch.broker.peers import messages as peer
from anabranch.broker.peers.fields import (
    BROKERS,
    ENTRIES,
    FLAG,
    GENERATIONS,
    INT,
    INT_MAX,
    LANE,
    LONG,
    LONG_MAX,
    MEMBER,
    MOVE,
    OPTIONAL_TEXT,
    RETURNS,
    ROWS,
    SNAPSHOT,
    TEXT,
    TOPIC_ID,
    Field,
    Reader,
    checked,
)
from anabranch.broker.peers.messages import Answer, Buffer, PeerMessage, Question, RingLetter
from anabranch.cluster.raft import messages as quorum
from anabranch.errors import PeerProtocolError
from anabranch.modes.ring import messages as ring
from anabranch.values import BrokerId, Generation, Offset

PEER_FRAME_BYTES_MAX = 128 * 2**20
"""Room for the largest request a client may send (socket.request.max.bytes is 100 MiB) with something around it."""

HEADER = Struct(">IBI")
LENGTH_BYTES = 4
BODY_START = HEADER.size
HEAD_BYTES = HEADER.size - LENGTH_BYTES
"""What a frame's length counts besides its body."""


class Refused(NamedTuple):
    """The answer that is none: why, and the name of the error."""

    reason: str
    kind: str


Said = PeerMessage | Question | Answer | Refused


class Form(NamedTuple):
    """How a class of messages is written: its fields in the order of the class, and whether raw bytes end it."""

    made: type[Any]
    fields: dict[str, Field]
    tail: str | None = None


PUSH, EQUAL, BEAT = 1, 2, 3
QUESTIONS = range(64, 128)
ANSWERS = range(128, 192)

_FROM_TO = {"sender": MEMBER, "receiver": MEMBER, "term": LONG}

RING_FORMS = {
    5: Form(ring.Propose, {"generation": INT}),
    6: Form(
        ring.Promise,
        {"generation": INT, "is_given": FLAG, "promised": INT, "end": LONG, "table": GENERATIONS},
    ),
    7: Form(ring.Enter, {"generation": INT, "table": GENERATIONS, "returns": RETURNS}),
    8: Form(ring.Pull, {"generation": INT, "start": LONG}),
    9: Form(ring.Outdated, {"generation": INT}),
    10: Form(ring.Returned, {"generation": INT, "return_id": TEXT}),
    12: Form(ring.Missing, {"generation": INT}),
    13: Form(ring.Seal, {"generation": INT}),
    14: Form(ring.Sealed, {"generation": INT}),
}
"""Behind the head of a letter, and without the sender, whom the link knows."""

QUORUM_FORMS = {
    32: Form(
        quorum.AskVote,
        {**_FROM_TO, "log_end": LONG, "log_term": LONG, "is_trial": FLAG, "is_transfer": FLAG},
    ),
    33: Form(quorum.GiveVote, {**_FROM_TO, "is_trial": FLAG, "is_given": FLAG}),
    34: Form(
        quorum.AppendEntries,
        {**_FROM_TO, "start": LONG, "term_before": LONG, "entries": ENTRIES, "commit_end": LONG},
    ),
    35: Form(quorum.AppendAnswer, {**_FROM_TO, "is_taken": FLAG, "end": LONG, "start": LONG}),
    36: Form(quorum.Beat, {**_FROM_TO, "commit_end": LONG, "read": LONG}),
    37: Form(quorum.BeatAnswer, {**_FROM_TO, "read": LONG}),
    38: Form(quorum.SendSnapshot, {**_FROM_TO, "snapshot": SNAPSHOT}),
    39: Form(quorum.TakeOver, _FROM_TO),
}

OTHER_FORMS = {
    4: Form(peer.Ping, {"leads_number": LONG}),
    11: Form(peer.Leads, {"rows": ROWS, "is_whole": FLAG, "number": LONG}),
    15: Form(peer.BranchNews, {}),
    16: Form(peer.AskLeads, {}),
    64: Form(
        peer.ForwardRequest,
        {"api_key": INT, "api_version": INT, "client_id": OPTIONAL_TEXT, "host": TEXT},
        tail="body",
    ),
    65: Form(
        peer.RegisterBroker,
        {
            "broker_id": INT,
            "directory_id": TEXT,
            "host": TEXT,
            "port": INT,
            "peer_host": TEXT,
            "peer_port": INT,
            "rack": OPTIONAL_TEXT,
        },
    ),
    66: Form(peer.BrokerBeat, {"broker_id": INT, "epoch": LONG, "applied_end": LONG, "is_stopping": FLAG}),
    67: Form(
        peer.ReadRecords,
        {
            "topic_id": TOPIC_ID,
            "partition": INT,
            "view": INT,
            "start": LONG,
            "end": LONG,
            "bytes_max": LONG,
        },
    ),
    68: Form(peer.ReadIndex, {}),
    69: Form(peer.ProducerIdBlock, {}),
    70: Form(
        peer.BeginView,
        {
            "topic_id": TOPIC_ID,
            "partition": INT,
            "view": INT,
            "start": LONG,
            "generation": INT,
            "replicas": BROKERS,
            "move": MOVE,
            "lane_start": MOVE,
        },
    ),
    71: Form(peer.LookAtReplica, {"topic_id": TOPIC_ID, "partition": INT}),
    72: Form(peer.ProposeEntry, {}, tail="data"),
    73: Form(peer.NameDisk, {"topic_id": TOPIC_ID, "partition": INT, "broker_id": INT, "epoch": LONG}),
    80: Form(peer.PollBranches, {"boot": TEXT, "rows_end": LONG, "heads_at": LONG}),
    81: Form(peer.SealBranch, {"topic_id": TOPIC_ID, "partition": INT, "view": INT}),
    82: Form(
        peer.ReadLane,
        {
            "topic_id": TOPIC_ID,
            "partition": INT,
            "lane": LONG,
            "start": LONG,
            "end": LONG,
            "bytes_max": LONG,
            "wait_ms": INT,
            "is_copying": FLAG,
        },
    ),
    83: Form(peer.FreeSpace, {}),
    84: Form(peer.CloseBranch, {"topic_id": TOPIC_ID, "partition": INT, "move": MOVE}),
    85: Form(
        peer.HoldLine,
        {
            "topic_id": TOPIC_ID,
            "partition": INT,
            "move": MOVE,
            "lane": LANE,
            "end": LONG,
            "start": LONG,
            "kept_start": LONG,
        },
    ),
    128: Form(peer.ForwardAnswer, {}, tail="body"),
    129: Form(peer.Registered, {"epoch": LONG}),
    130: Form(peer.BeatAnswer, {"is_fenced": FLAG, "may_stop": FLAG}),
    131: Form(peer.Records, {}, tail="data"),
    132: Form(peer.ReadIndexAnswer, {"end": LONG}),
    133: Form(peer.ProducerIds, {"first": LONG, "count": INT}),
    134: Form(peer.ViewBegun, {"view": INT}),
    135: Form(
        peer.ReplicaSeen,
        {
            "directory_id": TEXT,
            "view": INT,
            "promised": INT,
            "table": GENERATIONS,
            "start": LONG,
            "end": LONG,
            "safe": LONG,
            "is_trusted": FLAG,
            "is_led": FLAG,
        },
    ),
    136: Form(peer.Proposed, {"offset": LONG}),
    137: Form(peer.DiskNamed, {}),
    144: Form(
        peer.BranchRows,
        {
            "boot": TEXT,
            "rows_end": LONG,
            "heads_at": LONG,
            "is_short": FLAG,
            "is_leaving": FLAG,
        },
        tail="data",
    ),
    145: Form(peer.BranchSealed, {"lane": LANE, "end": LONG}, tail="data"),
    146: Form(
        peer.LaneRecords,
        {"start": LONG, "end": LONG, "safe": LONG, "is_tip": FLAG},
        tail="data",
    ),
    147: Form(peer.Space, {"free_bytes": LONG}),
    148: Form(peer.LineHeld, {}),
    191: Form(Refused, {"reason": TEXT, "kind": TEXT}),
}


# --- to bytes --------------------------------------------------------------------------------------------------


def encode(said: Said, correlation: int = 0) -> list[Buffer]:
    """A whole frame, as the buffers it consists of."""
    if type(said) is RingLetter:
        hot = _HOT_LETTERS.get(type(said.message))
        return hot(said, said.message) if hot else _cold_letter(said)
    kind, form = _FORM_OF[type(said)]
    body = bytearray(BODY_START)
    _write_fields(body, form, said)
    return _framed(body, kind, correlation, getattr(said, form.tail) if form.tail else b"")


def size_of(frame: Sequence[Buffer]) -> int:
    return sum(map(len, frame))


def _write_fields(body: bytearray, form: Form, said: object) -> None:
    for name, field in form.fields.items():
        field.write(body, getattr(said, name))


def _framed(body: bytearray, kind: int, correlation: int, tail: object = b"") -> list[Buffer]:
    """The head is written over the place that was left for it."""
    buffers, tail_bytes = _buffers(tail)
    HEADER.pack_into(body, 0, len(body) - LENGTH_BYTES + tail_bytes, kind, correlation)
    return [body, *buffers]


def _buffers(data: Any) -> tuple[Sequence[Buffer], int]:
    """Bytes, a list of such, or none, as a list of buffers; and how many bytes they are."""
    if not data:
        return (), 0
    if isinstance(data, list | tuple):
        return data, sum(map(len, data))
    return (data,), len(data)


_push = Struct(">IBI16sIIIQQIQ")
_equal = Struct(">IBI16sIIIQBBQ")
_beat = Struct(">IBI16sIIIQQ")
_letter = Struct(">16sII")


def _encode_push(letter: RingLetter, push: ring.Push) -> list[Buffer]:
    buffers, tail_bytes = _buffers(push.records)
    head = _push.pack(
        _push.size - LENGTH_BYTES + tail_bytes,
        PUSH,
        0,
        letter.topic_id.bytes,
        letter.partition,
        letter.view,
        push.generation,
        push.start,
        push.end,
        push.written_in + 1,  # There may be none.
        push.safe,
    )
    return [head, *buffers]


def _encode_equal(letter: RingLetter, equal: ring.Equal) -> list[Buffer]:
    where = letter.topic_id.bytes, letter.partition, letter.view
    length = _equal.size - LENGTH_BYTES
    said = equal.generation, equal.end, equal.has_entered, equal.is_trusted, equal.move + 1
    return [_equal.pack(length, EQUAL, 0, *where, *said)]


def _encode_beat(letter: RingLetter, beat: ring.Beat) -> list[Buffer]:
    where = letter.topic_id.bytes, letter.partition, letter.view
    said = beat.generation, beat.safe, beat.log_start
    return [_beat.pack(_beat.size - LENGTH_BYTES, BEAT, 0, *where, *said)]


_HOT_LETTERS: dict[type[Any], Callable[[RingLetter, Any], list[Buffer]]] = {
    ring.Push: _encode_push,
    ring.Equal: _encode_equal,
    ring.Beat: _encode_beat,
}


def _cold_letter(letter: RingLetter) -> list[Buffer]:
    kind, form = _FORM_OF[type(letter.message)]
    body = bytearray(BODY_START) + _letter.pack(letter.topic_id.bytes, letter.partition, letter.view)
    _write_fields(body, form, letter.message)
    return _framed(body, kind, 0)


# --- and back --------------------------------------------------------------------------------------------------


def decode(kind: int, body: memoryview, sender: BrokerId) -> Said:
    """What this broker has said. Raises PeerProtocolError, and nothing else, whatever the bytes are."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise PeerProtocolError(
            f"there is no message of the kind {kind}: does the other broker run a newer version?"
        )
    try:
        return decoder(body, sender)
    except StructError as error:
        raise PeerProtocolError(f"a message of the kind {kind} has {len(body)} bytes: {error}") from None


_push_body = Struct(">16sIIIQQIQ")
_equal_body = Struct(">16sIIIQBBQ")
_beat_body = Struct(">16sIIIQQ")


@lru_cache(maxsize=1024)
def _topic_id(topic_id: bytes) -> UUID:
    """To make one costs as much as the rest of a message."""
    return UUID(bytes=topic_id)


def _letter_of(topic_id: bytes, partition: int, view: int, message: ring.Message) -> RingLetter:
    return RingLetter(_topic_id(topic_id), checked(partition, INT_MAX), checked(view, INT_MAX), message)


def _decode_push(body: memoryview, sender: BrokerId) -> RingLetter:
    topic_id, partition, view, generation, start, end, written_in, safe = _push_body.unpack_from(body)
    if not start <= end <= LONG_MAX or safe > LONG_MAX or generation > INT_MAX or written_in > INT_MAX:
        raise PeerProtocolError(f"a push of generation {generation} from {start} to {end}, safe below {safe}")
    push = ring.Push(
        sender,
        Generation(generation),
        Offset(start),
        Offset(end),
        Generation(written_in - 1),
        Offset(safe),
        body[_push_body.size :],
    )
    return _letter_of(topic_id, partition, view, push)


def _decode_equal(body: memoryview, sender: BrokerId) -> RingLetter:
    topic_id, partition, view, generation, end, has_entered, is_trusted, move = _equal_body.unpack(body)
    equal = ring.Equal(
        sender,
        Generation(checked(generation, INT_MAX)),
        Offset(checked(end, LONG_MAX)),
        bool(checked(has_entered, 1)),
        bool(checked(is_trusted, 1)),
        checked(move, LONG_MAX) - 1,
    )
    return _letter_of(topic_id, partition, view, equal)


def _decode_beat(body: memoryview, sender: BrokerId) -> RingLetter:
    topic_id, partition, view, generation, safe, log_start = _beat_body.unpack(body)
    beat = ring.Beat(
        sender,
        Generation(checked(generation, INT_MAX)),
        Offset(checked(safe, LONG_MAX)),
        Offset(checked(log_start, LONG_MAX)),
    )
    return _letter_of(topic_id, partition, view, beat)


def _ring_decoder(form: Form) -> Callable[[memoryview, BrokerId], RingLetter]:
    def decode_letter(body: memoryview, sender: BrokerId) -> RingLetter:
        reader = Reader(body, _letter.size)
        topic_id, partition, view = _letter.unpack_from(body)
        message = form.made(sender, *[field.read(reader) for field in form.fields.values()])
        reader.end()
        return _letter_of(topic_id, partition, view, message)

    return decode_letter


def _quorum_decoder(form: Form) -> Callable[[memoryview, BrokerId], quorum.Message]:
    decode_any = _decoder(form)

    def decode_message(body: memoryview, sender: BrokerId) -> quorum.Message:
        message: quorum.Message = decode_any(body, sender)
        if message.sender.broker_id != sender:
            raise PeerProtocolError(f"broker {sender} speaks for broker {message.sender.broker_id}")
        return message

    return decode_message


def _decoder(form: Form) -> Callable[[memoryview, BrokerId], Any]:
    def decode_any(body: memoryview, sender: BrokerId) -> Any:
        reader = Reader(body)
        values = [field.read(reader) for field in form.fields.values()]
        if form.tail:
            values.append(reader.rest())
        reader.end()
        return form.made(*values)

    return decode_any


_FORM_OF: dict[type[Any], tuple[int, Form]] = {
    form.made: (kind, form) for kind, form in (RING_FORMS | QUORUM_FORMS | OTHER_FORMS).items()
}

_DECODERS: dict[int, Callable[[memoryview, BrokerId], Said]] = {
    PUSH: _decode_push,
    EQUAL: _decode_equal,
    BEAT: _decode_beat,
    **{kind: _ring_decoder(form) for kind, form in RING_FORMS.items()},
    **{kind: _quorum_decoder(form) for kind, form in QUORUM_FORMS.items()},
    **{kind: _decoder(form) for kind, form in OTHER_FORMS.items()},
}
