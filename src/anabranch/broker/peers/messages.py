"""What brokers say to each other: messages that want no answer, and questions with theirs. Plain values: how they
become bytes is in `codec.py`.

The seed's names: a letter with a Push is its AppendRequest, one with a Pull its FetchRequest, Ping its
HeartBeatRequest, ReadRecords its ReplicaSyncRequest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from anabranch.cluster.raft import messages as quorum_messages
from anabranch.modes.generations import Generations
from anabranch.modes.ring import messages as ring_messages
from anabranch.values import BrokerId, Generation, Offset

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class RingLetter:
    """What one replica of a ring partition says to another. The `records` of a Push are bytes, or a list of buffers,
    when it is sent, and one memoryview of whole batches when it arrives."""

    topic_id: UUID
    partition: int
    view: int
    message: ring_messages.Message


@dataclass(slots=True)
class Ping:
    """I am here, and the last `Leads` that the receiver was told had this number."""

    leads_number: int = 0


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """The sender leads this partition; `in_sync` have everything that is acknowledged, the leader among them. With
    nobody in sync: it leads it no longer."""

    topic_id: UUID
    partition: int
    view: int
    generation: Generation
    in_sync: tuple[BrokerId, ...]


@dataclass(slots=True)
class Leads:
    """Which partitions the sender leads: those that changed, or `is_whole`: these and no others."""

    rows: Sequence[LeaderRow]
    is_whole: bool
    number: int = 0
    """Counts the messages of this kind from the sender to the receiver."""


@dataclass(slots=True)
class AskLeads:
    """Tell the sender again which partitions the receiver leads: something of it was lost."""


@dataclass(slots=True)
class BranchNews:
    """Something has changed in the sender's branches: poll it now instead of later."""


PeerMessage = quorum_messages.Message | RingLetter | Ping | Leads | AskLeads | BranchNews


# --- questions, each followed by its answer --------------------------------------------------------------------


@dataclass(slots=True)
class ForwardRequest:
    """A Kafka request that the receiver is to carry out for the client of another broker; `body` has no header."""

    api_key: int
    api_version: int
    client_id: str | None
    host: str
    body: Buffer


@dataclass(slots=True)
class ForwardAnswer:
    body: Buffer


@dataclass(slots=True)
class RegisterBroker:
    """I want to be in the table under this id; `host` and `port` are for Kafka clients."""

    broker_id: BrokerId
    directory_id: str
    host: str
    port: int
    peer_host: str
    peer_port: int
    rack: str | None


@dataclass(slots=True)
class Registered:
    epoch: int


@dataclass(slots=True)
class BrokerBeat:
    """To the leader of the metadata quorum: I am alive, and have applied everything below `applied_end`."""

    broker_id: BrokerId
    epoch: int
    applied_end: int
    is_stopping: bool


@dataclass(slots=True)
class BeatAnswer:
    is_fenced: bool
    may_stop: bool


@dataclass(slots=True)
class ReadRecords:
    """Whole batches of your copy from `start` on and before `end`: at least one, else at most `bytes_max`."""

    topic_id: UUID
    partition: int
    view: int
    start: Offset
    end: Offset
    bytes_max: int


@dataclass(slots=True)
class Records:
    data: Buffer


@dataclass(slots=True)
class ReadIndex:
    """To the leader of the metadata quorum: what is committed now?"""


@dataclass(slots=True)
class ReadIndexAnswer:
    end: int


@dataclass(slots=True)
class ProducerIdBlock:
    """To the leader of the metadata quorum: reserve ids for producers that come to me."""


@dataclass(slots=True)
class ProducerIds:
    first: int
    count: int


@dataclass(slots=True)
class BeginView:
    """To the leader of the metadata quorum: this view of a partition may end. The next one begins at `start`, with
    generations above this one, among `replicas`: those of the move, or the same as before because a seal is undone."""

    topic_id: UUID
    partition: int
    view: int
    start: Offset
    generation: Generation
    replicas: tuple[BrokerId, ...]
    move: int
    lane_start: int
    """If it goes over to branches: where its records begin; else -1."""


@dataclass(slots=True)
class ViewBegun:
    """Which view the partition is in now."""

    view: int


@dataclass(slots=True)
class NameDisk:
    """My replica has everything, on the disk with which I registered at `epoch`: let the table name that one."""

    topic_id: UUID
    partition: int
    broker_id: BrokerId
    epoch: int


@dataclass(slots=True)
class DiskNamed:
    """It does."""


@dataclass(slots=True)
class LookAtReplica:
    """What have you of this partition? Asked where its ring has no leader, and cannot get one."""

    topic_id: UUID
    partition: int


@dataclass(slots=True)
class ReplicaSeen:
    """As `modes.ring.recovery.Seen`, on this disk."""

    directory_id: str
    view: int
    promised: Generation
    table: Generations
    start: Offset
    end: Offset
    safe: Offset
    is_trusted: bool
    is_led: bool


@dataclass(slots=True)
class ProposeEntry:
    """To the leader of the metadata quorum: have this entry agreed on. It is one that is checked when it is applied
    (`broker.metadata.proposals` says which), so to ask twice does no harm."""

    data: Buffer


@dataclass(slots=True)
class Proposed:
    """It was, and is applied at the leader."""

    offset: int


# --- of topics in mode branch -----------------------------------------------------------------------------------


@dataclass(slots=True)
class PollBranches:
    """What have you heard that I have not? `boot` is that of your start which I have last spoken to: of it I know the
    rows below `rows_end`, and the heads as they were at `heads_at`."""

    boot: str
    rows_end: int
    heads_at: int


@dataclass(slots=True)
class BranchRows:
    """Rows of the branch log, and where the answerer's lines end now, as JSON (`broker.branch.heads`). Those of an
    earlier start are of no use: `boot` says so."""

    boot: str
    rows_end: int
    heads_at: int
    is_short: bool
    """Its disk is nearly full."""
    is_leaving: bool
    """It is being stopped, or drained: let another be primary if there is one."""
    data: Buffer


@dataclass(slots=True)
class SealBranch:
    """I am to be primary: end your reign, if you have one, and tell where your line ends. `view`: of which time in
    branches that is."""

    topic_id: UUID
    partition: int
    view: int


@dataclass(slots=True)
class BranchSealed:
    """Nothing is appended here by the answerer any more, before its next reign. Everything below `end` is synced.
    `data`: all rows that it knows of this partition."""

    lane: int
    end: Offset
    data: Buffer


@dataclass(slots=True)
class CloseBranch:
    """By the decision `move` I bring this partition out of branches: promise to open none more, end your reign, and
    tell where your line ends. Answered by BranchSealed."""

    topic_id: UUID
    partition: int
    move: int


@dataclass(slots=True)
class HoldLine:
    """Have all records of the line that ends there, and say so on your disk for the decision `move`: the line is to be
    kept by you from `kept_start` on, with what it has from `start` on. Without a decision: have you nearly all?"""

    topic_id: UUID
    partition: int
    move: int
    lane: int
    end: Offset
    start: Offset
    kept_start: Offset


@dataclass(slots=True)
class LineHeld:
    """I have."""


@dataclass(slots=True)
class ReadLane:
    """Whole batches of your copy of a lane from `start` on and before `end`: at least one if there is any, else at most
    `bytes_max`; wait so long for one. What lies below `start` is synced where it is asked from, if `is_copying`."""

    topic_id: UUID
    partition: int
    lane: int
    start: Offset
    end: Offset
    bytes_max: int
    wait_ms: int
    is_copying: bool


@dataclass(slots=True)
class LaneRecords:
    """`start` to `end` is held there, if anything is; `safe`: readers of its line see records below this, and
    `is_tip`: the lane is the one that it appends to."""

    start: Offset
    end: Offset
    safe: Offset
    is_tip: bool
    data: Buffer


@dataclass(slots=True)
class FreeSpace:
    """How much room is there on your disk?"""


@dataclass(slots=True)
class Space:
    free_bytes: int


Question = (
    ForwardRequest
    | RegisterBroker
    | BrokerBeat
    | ReadRecords
    | ReadIndex
    | ProducerIdBlock
    | BeginView
    | NameDisk
    | LookAtReplica
    | ProposeEntry
    | PollBranches
    | SealBranch
    | CloseBranch
    | HoldLine
    | ReadLane
    | FreeSpace
)
Answer = (
    ForwardAnswer
    | Registered
    | BeatAnswer
    | Records
    | ReadIndexAnswer
    | ProducerIds
    | ViewBegun
    | DiskNamed
    | ReplicaSeen
    | Proposed
    | BranchRows
    | BranchSealed
    | LineHeld
    | LaneRecords
    | Space
)
