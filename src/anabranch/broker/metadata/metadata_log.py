"""MetadataLog: the log behind the agreed table. An entry counts once a majority of the quorum's voters has it on its
disk, and only then is applied.

It drives one member of the quorum (`cluster.raft.quorum`) over an ordinary partition, `__cluster_metadata`, that always
syncs first, whatever the node's flush setting (`quorum_store` says what lies where, `quorum_writer` writes it). A node
without peers is the sole voter: it leads from the start, and a change costs one append and one sync. Controllers make
their changes one at a time under `lock`, so that what was checked still holds when it is committed; only what checks
itself when it is applied is proposed without. After `ENTRIES_PER_SNAPSHOT` entries, or `BYTES_PER_SNAPSHOT`, the whole
table is written aside as a checkpoint and the log below it is dropped. Coordinates of objects lie in files beside the
checkpoint, which names them (`log.coordinates`).

A member whose disk fails takes no part any more until a restart: it says nothing, so it promises nothing that it
cannot keep. One whose disk is full does the same until there is room, as if it stood still. Until a member of several
has heard from a leader, its table lacks what it does not know to be committed.
"""

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anabranch.broker.metadata.quorum_store import QuorumState, QuorumStore, read_entries, read_records
from anabranch.broker.metadata.quorum_waits import QuorumWaits
from anabranch.broker.metadata.quorum_writer import QuorumWriter
from anabranch.broker.topics.partition import Partition
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.entries import Entry, decode_entry, encode_entry
from anabranch.cluster.metadata.table import FrozenTable, MetadataTable
from anabranch.cluster.raft.log import QuorumLog
from anabranch.cluster.raft.messages import Entry as QuorumEntry
from anabranch.cluster.raft.messages import EntryKind, Member, Members, Message, SendSnapshot, Snapshot
from anabranch.cluster.raft.quorum import Quorum, Role
from anabranch.errors import (
    AnabranchError,
    CorruptDataError,
    NotControllerError,
    PeerError,
    QuorumBusyError,
    StorageError,
)
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.peers.peers import Peers
    from anabranch.cluster.objects.rows import Coordinates

ENTRIES_PER_SNAPSHOT = 1000
BYTES_PER_SNAPSHOT = 16 * 2**20
CAUGHT_UP_MS_MAX = 5000

Subscriber = Callable[[Offset, Entry | None], None]

logger = logging.getLogger(__name__)


class MetadataLog:
    def __init__(
        self,
        core: BrokerCore,
        store: QuorumStore,
        partition: Partition,
        *,
        me: Member,
        is_founder: bool,
        peers: "Peers | None",
        chance: Callable[[int], int],
        coordinates: "Callable[[], Coordinates]",
    ) -> None:
        self.table = MetadataTable(coordinates)
        self.lock = asyncio.Lock()
        self.partition = partition
        self.me = me
        self._core = core
        self._store = store
        self._is_founder = is_founder
        self._peers = peers
        self._chance = chance
        self._coordinates = coordinates
        self._loop = asyncio.get_running_loop()
        self._subscribers: list[Subscriber] = []
        self._waits = QuorumWaits()
        self._is_turn_due = False
        self._ended_because: AnabranchError | None = None
        self._silent_because: AnabranchError | None = None
        """It takes no part for now, or any more: nothing is heard, said or decided."""
        self._applied_end = Offset(0)
        self._snapshot_refused_at = Offset(-ENTRIES_PER_SNAPSHOT)
        self._snapshot_task: asyncio.Task[None] | None = None
        self._bytes_applied = 0
        self._bytes_frozen = 0
        self._bytes_written = 0
        """Of entries: all that were applied in this life, those that the last snapshot was to stand for, and those that
        the last one stands for that was written."""
        self._carrying: dict[Member, asyncio.Task[None]] = {}

    # --- start and end -------------------------------------------------------------------------------------------

    def load(self, commit_end: Offset = Offset(0)) -> None:  # noqa: B008 - a number with a name
        """Read the table back: the snapshot, then every entry behind it that is known to be committed: those below
        `commit_end`, or all of them if nobody else has a say. Raises StorageError, CorruptDataError."""
        state = self._read_state()
        members = Members(frozenset() if state.has_joined else frozenset({self.me}))
        snapshot, table = self._store.take_snapshot(members)
        self._check_reach(snapshot.end)
        entries = read_entries(self.partition.log, Offset(snapshot.end))
        if table is not None:
            self._restore(table)
        data = json.dumps(table or self.table.snapshot()).encode() if self._peers is not None else None
        log = QuorumLog(snapshot._replace(data=data), entries)
        if log.last_term > state.term:
            raise CorruptDataError(
                f"The metadata log has entries of term {log.last_term}, but quorum-state knows only term "
                f"{state.term}: restore both from the same backup."
            )
        state = self._alone(state, log.members) if self._peers is None else state._replace(is_alone=False)
        self._begin(state, log, commit_end)

    def _restore(self, table: Mapping[str, Any]) -> None:
        try:
            self.table.restore(table)
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptDataError(f"The metadata snapshot is no table: {error!r}.") from error
        if self.table.has_objects:
            self.table.freeze().remove_others()  # Those of a snapshot that never came to be.

    def _read_state(self) -> QuorumState:
        state = self._store.read_state()
        if state is not None:
            return state
        if self._is_founder or self._peers is None or self.partition.log.end_offset > 0:
            return QuorumState()
        # Before the first entry comes: a log of somebody else's first entries must not be taken for our own cluster.
        state = QuorumState(is_alone=False, has_joined=True)
        self._store.write_state(state)
        return state

    def _check_reach(self, snapshot_end: int) -> None:
        log = self.partition.log
        if log.start_offset > snapshot_end or log.end_offset < snapshot_end:
            raise CorruptDataError(
                f"The metadata log holds entries {log.start_offset} to {log.end_offset}, but its snapshot ends at "
                f"{snapshot_end}: restore metadata-snapshot and {log.folder} from the same backup."
            )

    def _alone(self, state: QuorumState, members: Members) -> QuorumState:
        """A node without peers goes on in its term, unless others have heard of it."""
        if members.voters != {self.me}:
            voters = ", ".join(str(voter.broker_id) for voter in sorted(members.voters)) or "others"
            raise StorageError(
                f"This data folder belongs to a cluster whose metadata is kept by the brokers {voters}: start the "
                "broker with --peer-listen, so that it finds them."
            )
        if not state.is_alone:
            state = state._replace(term=state.term + 1, vote=self.me, is_alone=True)
            self._store.write_state(state)
        return state

    def _begin(self, state: QuorumState, log: QuorumLog, commit_end: Offset) -> None:
        self.quorum = Quorum(
            self.me,
            log,
            self._chance,
            term=state.term,
            vote=state.vote,
            now_ms=self._core.clock.monotonic_ms(),
            commit_end=commit_end,
            is_alone=self._peers is None,
        )
        self._writer = QuorumWriter(self._core, self._store, self.partition, state, self)
        self._applied_end = Offset(log.start)
        if self._peers is not None:
            self.partition.log.firm_offset = self._applied_end
        if self.quorum.has_ready():  # The sole voter begins its term.
            self._writer.write_at_start(self.quorum.ready())
            self.quorum.persisted((log.end, log.last_term))
        self._apply_committed()

    def leave(self) -> None:
        """The node stops: a member of several says nothing any more, and nobody waits for it."""
        if self._peers is not None:
            self._end(NotControllerError("The node stops."))

    async def idle(self) -> None:
        """Wait until nothing is being written."""
        await self._writer.idle()
        if self._snapshot_task is not None:
            await self._snapshot_task
        for task in list(self._carrying.values()):
            await task

    def _end(self, error: AnabranchError) -> None:
        if self._ended_because is None:
            self._ended_because = self._silent_because = error
            self._writer.clear()
            self._waits.fail_all(error)

    @property
    def is_ended(self) -> bool:
        """Takes no part any more, until a restart."""
        return self._ended_because is not None

    # --- who leads -----------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Leads, and has applied all that was committed before."""
        return self._silent_because is None and self.quorum.is_in_charge

    @property
    def leader_id(self) -> BrokerId | None:
        leader = self.quorum.leader
        return BrokerId(leader.broker_id) if leader is not None and self._silent_because is None else None

    @property
    def term(self) -> int:
        return self.quorum.term

    @property
    def members(self) -> Members:
        return self.quorum.members

    @property
    def commit_end(self) -> Offset:
        return Offset(self.quorum.commit_end)

    @property
    def ends(self) -> Mapping[Member, int]:
        """At the leader: how far each member is known to have the log on its disk; elsewhere empty."""
        return self.quorum.ends()

    @property
    def applied_end(self) -> Offset:
        """What the table holds. The core counts a leader's snapshot at once, the table has it once the disk does."""
        return self._applied_end

    # --- changes -------------------------------------------------------------------------------------------------

    async def commit(self, entry: Entry) -> Offset:
        """Make one change; it is applied here when this returns. The caller holds `lock`.

        Raises NotControllerError or StorageError, and then nothing has changed; or QuorumBusyError: this broker
        leads no more, and whether the change is made is for the next leader to say.
        """
        assert self.lock.locked()
        self._check_leader()
        return await self._committed(self.quorum.propose([encode_entry(entry)]))

    async def commit_all(self, entries: Sequence[Entry]) -> list[AnabranchError | None]:
        """Make several changes of which none depends on another, in one write and one round of the quorum; why each
        was not made, as `commit` would have raised it. The caller holds `lock`. Raises as `commit` does if this broker
        may not make any."""
        assert self.lock.locked()
        self._check_leader()
        start, term = self.quorum.propose([encode_entry(entry) for entry in entries]), self.quorum.term
        futures = [self._waits.commit(start + number, term) for number in range(len(entries))]
        self._stir()
        await asyncio.wait(futures)
        errors: list[AnabranchError | None] = []
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, AnabranchError):
                raise error
            errors.append(error)
        return errors

    async def propose(self, entry: Entry | bytes) -> Offset:
        """Make a change that is checked when it is applied, and changes nothing if it does not fit then: nobody holds
        `lock`, and any number may be under way. It is applied here when this returns. Raises as `commit` does."""
        self._check_leader()
        data = entry if isinstance(entry, bytes) else encode_entry(entry)
        return await self._committed(self.quorum.propose([data]))

    async def change_members(self, members: Members) -> Offset:
        """One voter more or less at a time. Raises as `commit` does, and QuorumBusyError if the change before it is
        not committed."""
        self._check_leader()
        return await self._committed(self.quorum.change_members(members))

    def transfer(self, to: Member) -> bool:
        """Hand the leadership over. False: that member lacks something; try again."""
        self._check_leader()
        is_asked = self.quorum.transfer(to)
        self._stir()
        return is_asked

    def _check_leader(self) -> None:
        if isinstance(self._silent_because, StorageError):
            raise type(self._silent_because)(str(self._silent_because))
        if not self.is_leader:
            raise NotControllerError("This broker does not lead the metadata quorum.")

    def _committed(self, offset: int) -> "asyncio.Future[Offset]":
        future = self._waits.commit(offset, self.quorum.term)
        self._stir()
        return future

    # --- reading what is certain ---------------------------------------------------------------------------------

    async def read_index(self) -> Offset:
        """Of the leader: everything committed before this call lies below. Raises NotControllerError."""
        self._check_leader()
        future = self._waits.read(self.quorum.term)
        self.quorum.read(future)
        self._stir()
        return await future

    async def caught_up(self) -> None:
        """Everything committed before this call is applied here when it returns. Raises QuorumBusyError: nobody leads,
        or the leader cannot be reached."""
        try:
            async with asyncio.timeout(CAUGHT_UP_MS_MAX / 1000):
                end = await self._read_index_anywhere()
                await self._waits.applied(end, self._applied_end)
        except (TimeoutError, PeerError, NotControllerError) as error:
            raise QuorumBusyError(f"The leader of the metadata quorum does not answer: {error}") from error

    async def _read_index_anywhere(self) -> Offset:
        leader = self.leader_id
        if leader is None:
            raise NotControllerError("There is no leader at the moment.")
        if leader == self.me.broker_id:
            return await self.read_index()
        from anabranch.broker.peers.messages import ReadIndex, ReadIndexAnswer  # Not for a node alone.

        assert self._peers is not None
        answer = await self._peers.ask(leader, ReadIndex(), CAUGHT_UP_MS_MAX)
        assert isinstance(answer, ReadIndexAnswer)
        return Offset(answer.end)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call it after each change of the table, in order, with the entry; with None once a snapshot has replaced
        the whole table."""
        self._subscribers.append(subscriber)

    # --- what happens --------------------------------------------------------------------------------------------

    def heard(self, message: Message) -> None:
        """A member of the quorum has said this. What is meant for an earlier disk of this broker is nobody's."""
        if self._silent_because is None and message.receiver == self.me:
            self.quorum.step(message)
            self._stir()

    def tick(self, now_ms: int) -> None:
        """By the monotonic clock, a few times per `BEAT_MS`; a sole voter needs none."""
        if self._silent_because is None:
            self.quorum.tick(now_ms)
            self._turn()

    def _stir(self) -> None:
        """See to what follows at the end of this turn of the loop, so that those who ask now share it."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        if self._silent_because is not None:
            return
        if self.quorum.has_ready():
            ready = self.quorum.ready()
            for future, end in ready.answered:
                self._waits.answer(future, end)
            self._writer.take(ready)
        self._apply_or_end()
        is_due = self._is_snapshot_due()
        if not is_due or self.table.has_objects:
            self._waits.tell_committed()  # Many commits come while a snapshot that names objects is written.
        if is_due and self._snapshot_task is None:
            self._snapshot_task = self._loop.create_task(self._take_snapshot())
        self._waits.check_reign(self.quorum.term if self.quorum.role is Role.LEADER else None)

    def send(self, messages: list[Message]) -> None:
        if self._peers is not None and self._silent_because is None:
            for message in messages:
                if isinstance(message, SendSnapshot) and self.table.has_objects:
                    self._carry(message)
                else:
                    self._peers.tell(BrokerId(message.receiver.broker_id), message)

    def _carry(self, message: SendSnapshot) -> None:
        """Our own snapshot names files; another member gets what is in them."""
        if message.receiver not in self._carrying:  # It is asked for again and again until it is there.
            task = self._loop.create_task(self._send_carried(message))
            self._carrying[message.receiver] = task

    async def _send_carried(self, message: SendSnapshot) -> None:
        try:
            snapshot = await self._writer.carry(lambda: self.quorum.log.snapshot, self._coordinates)
            if self._silent_because is None and self._peers is not None:
                to = BrokerId(message.receiver.broker_id)
                self._peers.tell(to, message._replace(snapshot=snapshot))
        except AnabranchError as error:
            logger.error("broker %s gets no snapshot of the metadata: %s", message.receiver.broker_id, error)
        finally:
            del self._carrying[message.receiver]

    # --- applying ------------------------------------------------------------------------------------------------

    def _apply_or_end(self) -> None:
        try:
            self._apply_committed()
        except AnabranchError as error:
            logger.error("the metadata cannot be followed any further: %s", error)
            self._end(StorageError(f"The metadata cannot be followed any further: {error}"))

    def _apply_committed(self) -> None:
        for offset, entry in self.quorum.take_committed():
            if entry.kind is EntryKind.CHANGE:
                self._apply(Offset(offset), entry)
            self._applied_end = Offset(offset + 1)
            self._waits.applied_one(offset, entry.term)
        self._note_firm()

    def _apply(self, offset: Offset, entry: QuorumEntry) -> None:
        change = decode_entry(entry.data)
        self._bytes_applied += len(entry.data)
        self.table.apply(change, offset)
        self._tell(offset, change)

    def _tell(self, offset: Offset, change: Entry | None) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(offset, change)
            except Exception:
                logger.exception("a change of the metadata could not be followed: this is a defect")

    def _note_firm(self) -> None:
        log = self.partition.log
        if log.firm_offset is not None:
            log.firm_offset = self._applied_end

    # --- what the writer says ------------------------------------------------------------------------------------

    def persisted(self, token: tuple[int, int]) -> None:
        self.quorum.persisted(token)
        self._turn()

    def empty_table(self) -> MetadataTable:
        return MetadataTable(self._coordinates)

    def replaced(self, snapshot: Snapshot, table: MetadataTable) -> None:
        """A leader's snapshot is on the disk, instead of everything that was there."""
        self.table.adopt(table)
        if self.quorum.log.start == snapshot.end:
            self.quorum.log.snapshot = snapshot  # As our disk has it: without the rows.
        self._bytes_written = self._bytes_applied
        self._applied_end = Offset(snapshot.end)
        self._note_firm()
        self._tell(Offset(snapshot.end), None)
        self._waits.applied_upto(snapshot.end)

    def waits_for_room(self, error: StorageError) -> bool:
        """The disk is full, and nothing else is the matter: until there is room this member is as one that stands
        still, which all others can bear."""
        if self._peers is None or self.partition.log.fenced or not _is_for_want_of_room(error):
            return False
        if self._silent_because is None:
            logger.error("this broker takes no part in the metadata quorum until there is room: %s", error)
            self._silent_because = error
            self._waits.fail_all(QuorumBusyError(f"Whether this was done is not known: {error}"))
        return True

    def has_room(self) -> None:
        if self._ended_because is None:
            self._silent_because = None
            logger.info("there is room again, and this broker takes part in the metadata quorum")

    def refused(self, error: StorageError) -> None:
        """The disk took nothing of what was to be written."""
        if self._ended_because is not None:
            return
        if self._peers is None and not self.partition.log.fenced:
            # Nobody else knows of these entries, so they have never been; the next one may find room.
            self.quorum.log.take_back(self.quorum.log.stable_end)
            self._waits.fail_all(error)
            return
        logger.error("this broker takes no part in the metadata quorum until a restart: %s", error)
        self._end(error)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def _is_snapshot_due(self) -> bool:
        end = self.quorum.applied_end
        is_due = (
            end - self.quorum.log.start >= ENTRIES_PER_SNAPSHOT
            or self._bytes_applied - self._bytes_written >= BYTES_PER_SNAPSHOT
        )
        # With objects there are many entries, and a full disk is not asked for each of them.
        patience = ENTRIES_PER_SNAPSHOT // 10 if self.table.has_objects else 0
        return is_due and end > self._snapshot_refused_at + patience and self._silent_because is None

    async def _take_snapshot(self) -> None:
        """Whoever waits for a commit that made it due is told behind it."""
        end = self.quorum.applied_end
        try:
            await self._writer.write_snapshot(self._freeze, self._written)
        except (StorageError, OSError) as error:
            # The entries count already; the next one tries again to shorten the log.
            logger.warning("the metadata snapshot cannot be written: %s", error)
            self._snapshot_refused_at = Offset(end)
        except Exception:
            logger.exception("the metadata snapshot cannot be written: this is a defect")
            self._snapshot_refused_at = Offset(end)
        self._snapshot_task = None
        self._waits.tell_committed()

    def _freeze(self) -> tuple[Snapshot, FrozenTable] | None:
        """What there is now; None: a leader's snapshot is on its way to the disk, or nothing is new."""
        log, end = self.quorum.log, self.quorum.applied_end
        if end != self._applied_end or end <= log.start:
            return None
        term = log.term_before(end)
        assert term is not None
        self._bytes_frozen = self._bytes_applied
        return Snapshot(end, term, log.members_at(end)), self.table.freeze()

    def _written(self, snapshot: Snapshot) -> None:
        self._bytes_written = self._bytes_frozen
        if self.quorum.log.start < snapshot.end:  # Another member's may have come meanwhile.
            self.quorum.drop(snapshot.end, snapshot.data if self._peers is not None else None)


def _is_for_want_of_room(error: StorageError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


__all__ = ["ENTRIES_PER_SNAPSHOT", "MetadataLog", "read_records"]
